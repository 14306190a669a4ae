//! From a dataset's name to batches: finds shards, keeps their index, reads samples, loads epochs.
//!
//! `dataset` knows what is in a shard and in which order samples come; the client reads bytes from a node; this crate puts the two
//! together. It blocks and has its own few threads (no async runtime), which start with the first batch: its process may be a trainer that forks.
//! Read docs/flows/dataset-read.md, then `dataset.rs` and `loader.rs`.
//!
//! ```no_run
//! use forebay_client::{Client, ClientOptions};
//! use forebay_loader::{Dataset, DatasetOptions};
//!
//! # fn main() -> forebay_core::Result<()> {
//! let client = Client::connect(ClientOptions::default())?;
//! let dataset = Dataset::open(&client, &["forebay://lake/images/{000..127}.tar"], DatasetOptions::default(), None)?;
//! let sample = dataset.sample(12_345)?;
//! println!("{} bytes of {}", sample.bytes(), sample.shard);
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod dataset;
mod fetch;
mod indexing;
mod pattern;
mod sample;
mod source;

pub use dataset::{Dataset, DatasetOptions};
pub use indexing::{IndexOrigin, OnProgress, Progress, Rebuild};
pub use pattern::{NAMES_MAX, expand};
pub use sample::{FieldBytes, SampleBytes};
