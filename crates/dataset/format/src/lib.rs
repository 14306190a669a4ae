//! Datasets as they lie in a lake: what is in a shard, and where.
//!
//! Everything here is pure: bytes go in, places come out; reading is the caller's business. Read `scan.rs`
//! (one pass over a shard of any [`shard::Format`]), then `index.rs` (what is kept of it), then the file of a
//! format; `order.rs` says which sample comes when, `manifest.rs` whether data is what it was.
//!
//! ```
//! use forebay_dataset::index::{Index, IndexBuilder};
//! use forebay_dataset::scan::{ScanOptions, ShardScan};
//! use forebay_dataset::shard::{Format, ShardRecord};
//!
//! let lines = b"{\"text\": \"one\"}\n{\"text\": \"two\"}\n";
//! let record = ShardRecord::new("a.jsonl", Format::Jsonl, lines.len() as u64).with_version("etag");
//! let mut scan = ShardScan::new(record, ScanOptions::new(Format::Jsonl));
//! for piece in lines.chunks(7) {
//!     scan.push(piece)?;
//! }
//! let mut index = IndexBuilder::new();
//! index.add(scan.finish()?)?;
//! let index = Index::from_bytes(index.finish()?)?;
//! let sample = index.sample(1)?;
//! assert_eq!((sample.fields[0].offset, sample.fields[0].bytes), (16, 15));
//! assert_eq!(sample.fields[0].crc32c, Some(0x2df4_c4bf));
//! # Ok::<(), forebay_core::Error>(())
//! ```
//!
//! Members of an archive by name, without reading their contents:
//!
//! ```
//! use forebay_dataset::tar::{TarIndex, TarIndexLimits, TarScanner, Want};
//!
//! # fn shard() -> Vec<u8> { vec![0; 1024] }
//! let shard = shard();
//! let mut scanner = TarScanner::new(shard.len() as u64);
//! let mut index = TarIndex::builder(TarIndexLimits::default());
//! while let Want::From(offset) = scanner.want() {
//!     // Any piece that starts there will do: the whole rest, or a small window.
//!     let window = &shard[offset as usize..shard.len().min(offset as usize + 4096)];
//!     scanner.push(offset, window, |member| index.add(&member))?;
//! }
//! let index = index.finish();
//! assert!(index.find("0001.jpg").is_err());
//! # Ok::<(), forebay_core::Error>(())
//! ```
#![forbid(unsafe_code)]

pub mod filter;
pub mod foreign;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
pub mod index;
pub mod jsonl;
pub mod manifest;
pub mod mds;
pub mod order;
pub mod parquet;
pub mod part;
pub mod raw;
pub mod scan;
pub mod shard;
pub mod tar;
pub mod tfrecord;
pub mod tokens;
pub mod write;
