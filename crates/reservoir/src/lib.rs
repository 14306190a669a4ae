//! The pool: pages of objects in RAM and on NVMe, filled once, checked always.
//!
//! Objects are known by name and version ([`ObjectVersion`]) and cut into pages of 1 MiB and blocks of 64 KiB. A read finds its
//! pages, fetches what is missing through a [`Source`], once however many wait, and hands out leased bytes
//! ([`Piece`]) whose checksums were just verified. Both tiers have byte budgets; the eviction policy is S3-FIFO.
//!
//! Read in this order: [`Reservoir`], `read.rs` (a read), `fill.rs` (how missing blocks come in), `ram.rs` (memory and eviction),
//! `segment/frame.rs` (blocks and claims), `nvme.rs`.
#![deny(unsafe_code)]

mod arena;
mod demote;
mod eviction;
mod fill;
mod free_space;
mod index;
mod key;
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
mod stats;
mod write_fill;

pub use key::{ObjectId, PageKey};
pub use object::ObjectVersion;
pub use options::ReservoirOptions;
pub use piece::{Piece, PieceStream, Tier};
pub use reservoir::{CacheChange, Reservoir, Residency};
pub use source::{Priority, Source};
pub use stats::ReservoirStats;
pub use write_fill::Fill;

#[cfg(test)]
mod tests;
