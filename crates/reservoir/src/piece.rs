//! What a read hands out: leased bytes, in order.

use bytes::Bytes;
use forebay_core::Result;
use futures::stream::BoxStream;

/// Which tier a served byte came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Tier {
    /// The RAM tier.
    Ram,
    /// The NVMe tier.
    Nvme,
    /// It had to be fetched from the source for this read (also for those who waited for the same fetch).
    Lake,
}

/// A piece of an object, leased: the page behind `bytes` stays untouched until the last clone of it is dropped.
#[derive(Debug, Clone)]
pub struct Piece {
    /// Offset of the first byte in the object.
    pub start: u64,
    /// Verified bytes, pointing into the RAM tier where possible (no copy).
    pub bytes: Bytes,
    /// Where they came from.
    pub tier: Tier,
}

/// The pieces of a read, in order, without gaps. An error ends the stream.
pub type PieceStream = BoxStream<'static, Result<Piece>>;
