//! From a dataset's name to batches: finds shards, keeps their index, reads samples, loads epochs.
//!
//! `dataset` knows what is in a shard and in which order samples come; the client reads bytes from a node;
//! this crate puts the two together. It blocks and has its own few threads (no async runtime), which start
//! with the first batch: its process may be a trainer that forks. Read docs/flows/dataset-read.md, then
//! `dataset.rs` and `loader.rs`.
//!
//! ```no_run
//! use forebay_client::{Client, ClientOptions};
//! use forebay_loader::{Dataset, DatasetOptions, LoaderOptions};
//!
//! # fn main() -> forebay_core::Result<()> {
//! let client = Client::connect(ClientOptions::default())?;
//! let dataset = Dataset::open(&client, &["forebay://lake/images/{000..127}.tar"], DatasetOptions::default(), None)?;
//! let sample = dataset.sample(12_345)?;
//! println!("{} bytes of {}", sample.bytes(), sample.shard);
//! let mut loader = dataset.loader(LoaderOptions { batch_size: 256, seed: 7, ..LoaderOptions::default() })?;
//! while let Some(batch) = loader.next_batch()? {
//!     println!("step {}: {} samples", batch.step, batch.samples.len());
//! }
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod assemble;
mod buffer_pool;
mod dataset;
mod decoding;
mod fetch;
mod indexing;
mod leased_pages;
mod loader;
mod lru_cache;
mod options;
mod pattern;
mod pipeline;
mod prefetch;
mod process;
mod reporter;
mod rows;
mod sample;
mod sampler;
mod selection;
mod source;
mod stats;
mod streams;
mod verify;
mod working_set_hint;

pub use assemble::Batch;
pub use buffer_pool::PooledBuffer;
pub use dataset::{Dataset, DatasetOptions};
pub use decoding::{Column, FieldDecoder};
pub use indexing::{DamagedShard, IndexOrigin, OnProgress, Progress, Rebuild};
pub use loader::Loader;
pub use options::{LoaderOptions, OnError, Prefetch, WINDOW_BYTES_DEFAULT};
pub use pattern::{NAMES_MAX, expand};
pub use sample::{FieldBytes, Memory, SampleBytes};
pub use selection::SampleSelection;
pub use stats::{BAD_SAMPLES_KEPT_MAX, BadSample, BatchStats, LoaderStats, Times};
pub use verify::Verify;
