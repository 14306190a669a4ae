//! The saver: steps of training runs that clients staged here become durable in the lake.
//!
//! Read in this order: `saves.rs` (all saves this node knows), `save.rs` (one of them: state, promise, end), `work.rs` (its task from the
//! lease to the record), `lease.rs` (who is at work until when), `parent.rs` (what the step before has), `copying.rs` (nothing heavy while a trainer copies), `quiet.rs` (nice threads for what is heavy), `file.rs` (a data file: hash, header, lake), `differences.rs` (parts as differences from the parent), `record.rs` (what a rank wrote), `records.rs` (those of all ranks, and whether what they name is there), `commit.rs` (the manifest), `documents.rs` (both off the runtime),
//! `run_lake.rs` (names and puts below the root of a run), `disk.rs` and `resume.rs` (what outlives the node), `gather.rs` (exchanges between ranks). The flow is docs/flows/checkpoint-save.md, what
//! lies in the lake afterwards docs/formats/checkpoint.md.

mod commit;
mod copying;
mod differences;
mod disk;
mod documents;
mod fail_point;
mod file;
mod gather;
mod lease;
mod parent;
mod record;
mod records;
mod resume;
mod run_lake;
mod save;
mod saves;
mod stats;
#[cfg(test)]
mod testing;
mod work;

pub(crate) use gather::Gathers;
pub(crate) use resume::{LeftBehind, resume};
pub(crate) use run_lake::RunLake;
pub(crate) use save::{OpenSave, Save};
pub(crate) use saves::{NewSave, Saves, SavesOptions, attempt_of};
pub use stats::SaveStats;
