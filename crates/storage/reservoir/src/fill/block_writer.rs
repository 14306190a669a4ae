//! Copies the bytes of a fetch into claimed blocks, in whatever pieces they come.
//!
//! The checksum of a block is taken from the arriving bytes, so that a bad copy is found too. Bytes that came with
//! a checksum are compared with it before the block is published; a block that came as one piece keeps the checksum
//! that it came with.

use std::collections::VecDeque;

use forebay_core::{ByteRange, Error, Kind, Result, Tier, crc32c};

use super::{BlockSink, claimed_range};
use crate::SourceBlock;
use crate::page::PageClaim;

/// Fills claimed blocks that lie one after the other.
pub(super) struct BlockWriter {
    claims: VecDeque<PageClaim>,
    /// Bytes written of the block that is being filled.
    offset: usize,
    checksum: u32,
    /// The farthest tier that its bytes came from.
    tier: Tier,
}

impl BlockWriter {
    pub(super) fn new(claims: VecDeque<PageClaim>) -> Self {
        Self {
            claims,
            offset: 0,
            checksum: 0,
            tier: Tier::Peer,
        }
    }

    /// Gives up what is not published, and tells those who wait why.
    pub(super) fn fail(self, error: &Error) {
        for claim in self.claims {
            claim.fail(error);
        }
    }

    fn copy(&mut self, block: &SourceBlock) -> Result<()> {
        let checksum = checked(block)?;
        let mut bytes = &block.bytes[..];
        while !bytes.is_empty() {
            let Some(claim) = self.claims.front_mut() else {
                return Ok(());
            };
            let Some(number) = claim.blocks().blocks().next() else {
                self.claims.pop_front();
                continue;
            };
            let block_bytes = claim.page().frame.block_bytes(number);
            let (part, after) = bytes.split_at(bytes.len().min(block_bytes - self.offset));
            claim.write(number, self.offset, part);
            let is_all = self.offset == 0 && part.len() == block.bytes.len();
            self.checksum = match checksum.filter(|_| is_all) {
                Some(checksum) => checksum, // The one that it came with; no need to sum up again.
                None => crc32c::crc32c_append(self.checksum, part),
            };
            self.tier = self.tier.max(block.tier);
            self.offset += part.len();
            bytes = after;
            if self.offset == block_bytes {
                claim.publish(number, self.checksum, self.tier);
                (self.offset, self.checksum, self.tier) = (0, 0, Tier::Peer);
                if claim.blocks().is_empty() {
                    self.claims.pop_front();
                }
            }
        }
        Ok(())
    }
}

impl BlockSink for BlockWriter {
    fn restart(&mut self) -> Option<ByteRange> {
        (self.offset, self.checksum, self.tier) = (0, 0, Tier::Peer);
        let mut ranges = self.claims.iter().filter_map(claimed_range);
        let first = ranges.next()?;
        Some(ranges.fold(first, ByteRange::cover))
    }

    fn is_done(&self) -> bool {
        self.claims.is_empty()
    }

    async fn write(&mut self, block: SourceBlock) -> Result<()> {
        self.copy(&block)
    }
}

/// The checksum that bytes came with, after a comparison with their own.
///
/// Errors: `Checksum` (they are not what they were), `Internal` (they come from no source).
pub(crate) fn checked(block: &SourceBlock) -> Result<Option<u32>> {
    if !matches!(block.tier, Tier::Peer | Tier::Lake) {
        let message = "a source gave bytes of a tier that is no source";
        return Err(Error::new(Kind::Internal, message).with("tier", format!("{:?}", block.tier)));
    }
    let Some(given) = block.crc32c else {
        return Ok(None);
    };
    let found = crc32c::crc32c(&block.bytes);
    if found == given {
        return Ok(Some(given));
    }
    let message = "bytes of a source do not match the checksum that they came with";
    Err(Error::new(Kind::Checksum, message)
        .with("tier", format!("{:?}", block.tier))
        .with("bytes", block.bytes.len())
        .with("given", format!("{given:08x}"))
        .with("found", format!("{found:08x}")))
}
