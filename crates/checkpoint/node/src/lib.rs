//! The saver: steps of training runs that clients staged on this node become durable in the lake.
//!
//! A client begins a save ([`NewSave`], [`Saves::begin`]), fills it piece by piece and stages it
//! ([`Save::stage`]); from then on the node goes on alone. The node that composes this crate scans for staged
//! saves before it listens ([`LeftBehind::scan`]) and finishes them when its lakes have answered
//! ([`resume`]).
//!
//! Read in this order: `new_save.rs` (a request, checked), `saves.rs` (all saves of the node), `save.rs` (one
//! of them: state, promise, end), `work.rs` (its task from the lease to the record), `attempt_lease.rs` (who
//! is at work until when), `parent.rs` (what the step before has), `copy_gate.rs` (nothing heavy while a
//! trainer copies), `file.rs` (a data file: hash, header, lake), `differences.rs` (parts as differences from
//! the parent), `record.rs` (what a rank wrote), `records.rs` (those of all ranks, and whether what they name
//! is there), `commit.rs` (the manifest), `documents.rs` (both off the runtime), `run_lake.rs` (names and
//! puts below the root of a run), `staged_save.rs` and `resume.rs` (what outlives the node, in the reservoir's staging log). The flow is
//! docs/flows/checkpoint-save.md, what lies in the lake afterwards docs/formats/checkpoint.md.
//!
//! [`StepViews`] (`step_view.rs`) shows each committed step as whole safetensors files, which no lake has:
//! register it with `forebay_engine::EngineOptions::derived`. The flow is docs/flows/step-view.md.
//!
//! `family.rs` answers the requests of clients on this host, `group_family.rs` those of ranks that gather.
//! [`all_gather`] is how ranks of a host agree before they save. It knows nothing of saves.
#![forbid(unsafe_code)]

pub mod all_gather;
mod attempt_lease;
mod commit;
mod copy_gate;
mod differences;
mod documents;
mod fail_point;
mod family;
mod file;
mod group_family;
mod new_save;
mod parent;
mod record;
mod records;
mod resume;
mod run_lake;
mod save;
mod saves;
mod staged_save;
mod stats;
mod step_view;
#[cfg(test)]
mod test_engine;
#[cfg(test)]
mod testing;
mod work;

pub use family::SavesFamily;
pub use group_family::GroupFamily;
pub use new_save::{NewSave, Writer};
pub use resume::{LeftBehind, resume};
pub use save::{OpenSave, Save};
pub use saves::{Saves, SavesOptions};
pub use stats::SaveStats;
pub use step_view::StepViews;
