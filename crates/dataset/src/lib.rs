//! Datasets as they lie in a lake: what is in a shard, and where.
//!
//! Everything here is pure: bytes go in, places come out; reading is the caller's business. So far there is one format,
//! [`tar`]; read `tar.rs`, then `tar/scanner.rs` and `tar/index.rs`.
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

pub mod foreign;
#[doc(hidden)]
pub mod fuzzing;
pub mod index;
pub mod jsonl;
pub mod manifest;
pub mod mds;
pub mod order;
pub mod raw;
pub mod scan;
pub mod shard;
pub mod tar;
pub mod tfrecord;
pub mod tokens;
