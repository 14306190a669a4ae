//! Reading: plan under the lock, transfer, check block by block, forget what is bad.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use forebay_core::{BLOCK_BYTES, BLOCKS_PER_PAGE, BlockMask, Error, Kind, Result, crc32c, page_bytes};
use futures::future::join_all;
use tokio::sync::oneshot;
use tracing::warn;

use super::NvmeStore;
use super::engine::{Direction, IoSegment, Transfer, io_segments};
use super::extent::{Extent, block_bytes, blocks_units};
use super::index::{Change, PagePart};
use super::space::UNIT_BYTES;
use crate::PageKey;

/// The good blocks of a read.
#[derive(Debug, Clone)]
pub(crate) struct NvmeRead {
    /// Blocks that were there and matched their checksum.
    pub(crate) blocks: BlockMask,
    /// CRC32C of each good block, at its block number; zero elsewhere.
    pub(crate) checksums: [u32; BLOCKS_PER_PAGE as usize],
    page_bytes: u64,
    /// Packed blocks; bad ones are left in place but not in `blocks`.
    packs: Vec<(BlockMask, Bytes)>,
}

impl NvmeRead {
    /// The verified bytes of a block (the last block of a page may be short); `None` if it is not in
    /// `blocks`.
    pub(crate) fn block(&self, block: u32) -> Option<Bytes> {
        let bit = BlockMask(1u16.checked_shl(block)?);
        if !self.blocks.contains(bit) {
            return None;
        }
        let (mask, bytes) = self.packs.iter().find(|(mask, _)| mask.contains(bit))?;
        let start = rank(*mask, block) * BLOCK_BYTES as usize;
        Some(bytes.slice(start..start + block_bytes(self.page_bytes, block) as usize))
    }
}

/// The blocks that a read takes from one part of a page.
#[derive(Debug)]
struct PartPlan {
    wanted: BlockMask,
    extent: Arc<Extent>,
    io_segments: Vec<IoSegment>,
    buffer_bytes: usize,
}

/// The parts that a read takes from a page.
#[derive(Debug)]
struct PagePlan {
    page_bytes: u64,
    checksums: [u32; BLOCKS_PER_PAGE as usize],
    parts: Vec<PartPlan>,
}

impl NvmeStore {
    /// Reads and verifies blocks. `None` if none of them is there and good; a bad block is counted and
    /// forgotten, the others are still answered. Fails only when a running transfer is cut off by a shutdown.
    /// Cancel-safe.
    pub(crate) async fn read(&self, key: &PageKey, blocks: BlockMask) -> Result<Option<NvmeRead>> {
        let Some(plan) = self.plan_read(key, blocks) else {
            return Ok(None);
        };
        let packs = join_all(plan.parts.iter().map(|part| self.read_part(part))).await;
        let mut answer = NvmeRead {
            blocks: BlockMask::EMPTY,
            checksums: [0; BLOCKS_PER_PAGE as usize],
            page_bytes: plan.page_bytes,
            packs: Vec::with_capacity(packs.len()),
        };
        for (part, pack) in plan.parts.iter().zip(packs) {
            let Some(bytes) = self.keep_or_forget(key, part, pack?) else {
                continue;
            };
            let good = good_blocks(&plan, part.wanted, &bytes);
            let bad = part.wanted.without(good);
            if !bad.is_empty() {
                self.counters
                    .corrupt_blocks
                    .fetch_add(u64::from(bad.count()), Ordering::Relaxed);
                warn!(page = ?key, blocks = ?bad, "blocks on nvme do not match their checksums; they will be fetched again");
                self.forget(key, &part.extent, bad);
            }
            for block in good.blocks() {
                answer.checksums[block as usize] = plan.checksums[block as usize];
            }
            answer.blocks = answer.blocks.union(good);
            answer.packs.push((part.wanted, bytes));
        }
        Ok((!answer.blocks.is_empty()).then_some(answer))
    }

    fn plan_read(&self, key: &PageKey, blocks: BlockMask) -> Option<PagePlan> {
        let mut index = self.index.lock();
        let page = index.page(key)?;
        let page_bytes = page_bytes(index.object(&key.object)?.bytes, key.page);
        let parts: Vec<PartPlan> = page
            .parts
            .iter()
            .filter(|part| !part.live.intersect(blocks).is_empty())
            .map(|part| plan_part(part, part.live.intersect(blocks), page_bytes))
            .collect();
        let checksums = page.checksums;
        if parts.is_empty() {
            return None;
        }
        index.touch(key);
        Some(PagePlan {
            page_bytes,
            checksums,
            parts,
        })
    }

    /// The bytes of a part, or what the disk said instead. `None` if the store is shut.
    async fn read_part(&self, part: &PartPlan) -> Result<Option<std::io::Result<Bytes>>> {
        let Ok(permit) = Arc::clone(&self.read_permits).acquire_owned().await else {
            return Ok(None);
        };
        let (done, answer) = oneshot::channel();
        self.engine.submit(Transfer {
            direction: Direction::Read,
            io_segments: part.io_segments.clone(),
            buffer: self.buffers.take(part.buffer_bytes),
            hold: Arc::clone(&part.extent),
            permit,
            done,
        });
        let moved = answer
            .await
            .map_err(|_| Error::new(Kind::Cancelled, "the nvme tier was shut down"))?;
        Ok(Some(moved.map(super::buffer::AlignedBuffer::into_bytes)))
    }

    fn keep_or_forget(
        &self,
        key: &PageKey,
        part: &PartPlan,
        pack: Option<std::io::Result<Bytes>>,
    ) -> Option<Bytes> {
        match pack? {
            Ok(bytes) => Some(bytes),
            Err(error) => {
                self.counters.read_errors.fetch_add(1, Ordering::Relaxed);
                warn!(page = ?key, %error, "cannot read a page on nvme; it will be fetched again");
                self.forget(key, &part.extent, BlockMask(u16::MAX));
                None
            }
        }
    }

    /// Forgets blocks, but only those that still lie where they were read.
    fn forget(&self, key: &PageKey, extent: &Arc<Extent>, blocks: BlockMask) {
        let mut index = self.index.lock();
        let part = index
            .page(key)
            .and_then(|page| page.parts.iter().find(|part| Arc::ptr_eq(&part.extent, extent)));
        let Some(gone) = part.map(|part| part.live.intersect(blocks)) else {
            return;
        };
        let mut change = Change::default();
        index.remove_blocks(key, gone, &mut change);
        self.journal.push(change);
    }
}

/// Returns how many blocks of the mask lie before `block`.
fn rank(mask: BlockMask, block: u32) -> usize {
    (u32::from(mask.0) & ((1u32 << block) - 1)).count_ones() as usize
}

/// Blocks that lie next to each other on disk are read together; in the buffer all wanted ones are packed.
fn plan_part(part: &PagePart, wanted: BlockMask, page_bytes: u64) -> PartPlan {
    let mut ranges: Vec<Range<u64>> = Vec::new();
    for block in wanted.blocks() {
        let start = rank(part.stored, block) as u64 * BLOCK_BYTES;
        let end = start + block_bytes(page_bytes, block).next_multiple_of(UNIT_BYTES);
        match ranges.last_mut() {
            Some(last) if last.end == start => last.end = end,
            _ => ranges.push(start..end),
        }
    }
    let (mut all, mut at) = (Vec::new(), 0);
    for range in ranges {
        let bytes = (range.end - range.start) as usize;
        io_segments(part.extent.runs(), range, at, &mut all);
        at += bytes;
    }
    let buffer_bytes = (blocks_units(page_bytes, wanted) * UNIT_BYTES) as usize;
    PartPlan {
        wanted,
        extent: Arc::clone(&part.extent),
        io_segments: all,
        buffer_bytes,
    }
}

fn good_blocks(plan: &PagePlan, wanted: BlockMask, pack: &[u8]) -> BlockMask {
    let is_good = |block: &u32| {
        let start = rank(wanted, *block) * BLOCK_BYTES as usize;
        let bytes = block_bytes(plan.page_bytes, *block) as usize;
        crc32c::crc32c(&pack[start..start + bytes]) == plan.checksums[*block as usize]
    };
    BlockMask(
        wanted
            .blocks()
            .filter(is_good)
            .fold(0, |mask, block| mask | 1 << block),
    )
}
