//! Pieces that a read hands out: leased bytes, in order.

use bytes::Bytes;
use forebay_core::{Result, Tier};
use futures::stream::BoxStream;
use smallvec::SmallVec;

/// The checksums of the blocks of a piece, which has at most four.
pub type BlockChecksums = SmallVec<[u32; 4]>;

/// A piece of an object, leased: the page behind `bytes` stays untouched until the last clone of it is
/// dropped.
#[derive(Debug, Clone)]
pub struct Piece {
    /// Offset of the first byte in the object.
    pub start: u64,
    /// Verified bytes, pointing into the RAM tier where possible (no copy).
    pub bytes: Bytes,
    /// The tier that they came from.
    pub tier: Tier,
    /// CRC32C of each block that the piece has bytes of, as it was when the block first entered a node. Empty if
    /// the piece begins inside a block, or went past the cache.
    pub checksums: BlockChecksums,
}

/// The pieces of a read, in order, without gaps. An error ends the stream.
pub type PieceStream = BoxStream<'static, Result<Piece>>;
