//! Steps of a training run, through the client: list, load, verify, compare, export, import, prune.
//!
//! Blocks and has threads of its own where that pays, like the loader
//! (docs/decisions/0006-a-loader-crate.md). Read `root.rs` first, then `step.rs` (one committed step) and
//! `read.rs` (bytes into the caller's memory).
//!
//! ```no_run
//! use forebay_checkpoint::TensorBox;
//! use forebay_client::{Client, ClientOptions};
//! use forebay_checkpoint_client::{Root, Want};
//!
//! # fn main() -> forebay_core::Result<()> {
//! let root = Root::open(Client::connect(ClientOptions::default())?, "forebay://lake/run-7")?;
//! let step = root.step(1000)?;
//! let mut weight = vec![0; 4 * 256];
//! let want = Want { name: "weight", at: TensorBox::whole(&[256]), target: &mut weight };
//! step.load(&mut [want], 2)?;
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod compare;
mod dcp;
mod decode;
mod detail;
mod export;
mod file;
mod import;
mod parallel;
mod plain;
mod prune;
mod read;
mod root;
mod step;
mod tables;
mod verify;
mod view;

pub use compare::{Change, Changed, Compared};
pub use detail::StepDetail;
pub use export::{ExportOptions, Exported, Layout, write_whole};
pub use file::PlainFile;
pub use import::{ImportOptions, Imported};
pub use plain::{DIGESTS_BYTES_MAX, EntryDigest, PlainDigests, PlainKind};
pub use prune::{PruneOptions, PruneSelection, Pruned};
pub use read::{Loaded, Want};
pub use root::Root;
pub use step::Step;
pub use verify::{FINDINGS_MAX, Finding, Verified};
pub use view::TensorView;
