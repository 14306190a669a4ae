//! The pool: pages of objects in RAM and on NVMe, filled once, checked always.
//!
//! Objects are known by name and version ([`ObjectVersion`]) and cut into pages of 1 MiB and blocks of 64
//! KiB. A read finds its pages, fetches what is missing through a [`Source`], once however many wait, and
//! hands out leased bytes ([`Piece`]) whose checksums were just verified. Both tiers have byte budgets; the
//! eviction policy is S3-FIFO.
//!
//! Read in this order: [`Reservoir`], `read.rs` (a read), `fill.rs` (how missing blocks come in), `ram.rs`
//! (memory and eviction), `segment/frame.rs` (blocks and claims), `nvme.rs`.
//!
//! ```
//! use std::{sync::Arc, time::Duration};
//! use forebay_core::{BucketName, ByteRange, ObjectKey, Result, SystemClock, Version};
//! use forebay_reservoir::{
//!     ObjectVersion, Reservoir, ReservoirOptions, Source, SourceBlock, SourceStream, TrustDomain, Urgency,
//! };
//! use futures::{StreamExt, TryStreamExt, stream};
//!
//! /// A lake full of zeros.
//! #[derive(Debug)]
//! struct Zeros;
//!
//! #[async_trait::async_trait]
//! impl Source for Zeros {
//!     async fn fetch(&self, _: &ObjectVersion, range: ByteRange, _: &Urgency) -> Result<SourceStream> {
//!         let zeros = SourceBlock::from_lake(vec![0; range.len() as usize].into());
//!         Ok(stream::iter([Ok(zeros)]).boxed())
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<()> {
//! let reservoir = Reservoir::open(ReservoirOptions {
//!     ram_bytes: 16 << 20,
//!     nvme_bytes: 0,
//!     nvme_dir: "unused".into(),
//!     scrub_period: Duration::from_secs(3600),
//!     read_ahead_bytes_max: 8 << 20,
//!     write_fill_bytes_max: 1 << 20,
//!     fill_silence_max: ReservoirOptions::FILL_SILENCE_DEFAULT,
//! })
//! .await?;
//! let object = ObjectVersion {
//!     bucket: BucketName::new("lake")?,
//!     key: ObjectKey::new("zeros")?,
//!     version: Version::new("1"),
//!     bytes: 3 << 20,
//!     domain: TrustDomain::DEFAULT,
//! };
//! let source: Arc<dyn Source> = Arc::new(Zeros);
//! let pieces: Vec<_> = reservoir.read(&object, ByteRange::new(5, 2 << 20)?, &source).try_collect().await?;
//! assert!(pieces.iter().all(|piece| piece.bytes.iter().all(|byte| *byte == 0)));
//! assert_eq!(reservoir.stats().fetched_demand_bytes, 2 << 20);
//! reservoir.shutdown(Duration::from_secs(1)).await;
//! # Ok(())
//! # }
//! ```
#![deny(unsafe_code)]

mod arena;
mod demote;
mod eviction;
mod fill;
mod free_space;
mod index;
mod key;
mod lease;
mod nvme;
mod nvme_names;
mod object;
mod options;
mod page;
mod piece;
mod pin;
mod ram;
mod read;
mod read_ahead;
mod reservoir;
mod run;
mod scrub;
mod segment;
mod source;
mod staging;
pub mod staging_log;
mod stats;
mod working_set;
mod write_fill;

pub use key::{ObjectId, PageKey};
pub use lease::{Leased, LeasedPart};
pub use object::{ObjectVersion, TrustDomain};
pub use options::ReservoirOptions;
pub use piece::{BlockChecksums, Piece, PieceStream};
pub use reservoir::{CacheChange, Reservoir, Residency};
pub use segment::SegmentId;
pub use source::{Priority, Route, Source, SourceBlock, SourceStream, Urgency};
pub use staging::{Staging, StagingBuffer, StagingStats};
pub use stats::ReservoirStats;
pub use working_set::WorkingSetGuard;
pub use write_fill::Fill;

#[cfg(test)]
mod tests;
