//! Writes, signs, verifies and splits datasets: the library behind `forebay dataset pack`, `manifest`,
//! `verify` and `split`.
//!
//! [`Pack`] writes a dataset anew as shards of another format, size or order. [`write_manifest`] and
//! [`verify`] compare every byte of a folder with its `SHA256SUMS`. [`split`] divides samples into named
//! parts. All of it reads and writes through a node ([`Folder`]), blocks, and prints nothing: progress goes to
//! the callback of [`Work`]. docs/flows/dataset-pack.md names the files in the order in which they work.
//!
//! ```no_run
//! use forebay_client::{Client, ClientOptions};
//! use forebay_dataset::shard::Format;
//! use forebay_dataset_pack::{Folder, Pack, PackOptions, Work};
//! use forebay_loader::{Dataset, DatasetOptions};
//!
//! # fn main() -> forebay_core::Result<()> {
//! let client = Client::connect(ClientOptions::default())?;
//! let photos = Dataset::open(&client, &["forebay://lake/photos/"], DatasetOptions::default(), None)?;
//! let pack = Pack::plan(photos, &PackOptions::new(Format::Tar))?;
//! let report = pack.write(&Folder::new(client, "lake", "photos-tar/"), &Work::default())?;
//! println!("{} samples in {} shards", report.samples, report.shards);
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod folder;
mod manifest;
mod pack;
mod split;
mod verify;
mod work;

pub use folder::Folder;
pub use manifest::{ManifestReport, check_manifest, write_manifest};
pub use pack::{Compression, Pack, PackOptions, PackReport, SortBy};
pub use split::{PartShare, SplitOptions, SplitUnit, split};
pub use verify::{VerifyReport, verify};
pub use work::{OnProgress, Progress, Stage, Work};
