//! A frame: the memory of one page, block by block, with its checksums.
//!
//! A block is missing, claimed (one holder of a [`Claim`] fills it) or present. Memory is attached to blocks
//! when they are claimed, so a page of which two blocks were read holds two blocks of memory; a page of which
//! all will be read gets it in one piece before. A present block is never written again and never becomes
//! missing: a bad page is dropped as a whole.
//!
//! Why this is sound: the state of all blocks is one atomic word. A claim is given to one holder only, and
//! only it writes to the block; publishing (release) hands the bytes to readers, who look at the word first
//! (acquire).

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use forebay_core::{BLOCK_BYTES, BlockMask, crc32c};

use super::{Segment, SegmentId};
use crate::arena::Extent;
use crate::free_space::units_of;

const BLOCK: usize = BLOCK_BYTES as usize;

/// Memory of one page.
#[derive(Debug)]
pub(crate) struct Frame {
    bytes: usize,
    /// Present blocks in the low half, claimed ones in the high half.
    state: AtomicU32,
    blocks: Box<[Slot]>,
}

#[derive(Debug, Default)]
struct Slot {
    memory: OnceLock<Memory>,
    checksum: AtomicU32,
}

/// The location of a block: an extent, kept alive by all blocks in it, and an offset inside.
#[derive(Debug, Clone)]
struct Memory {
    extent: Arc<Extent>,
    offset: usize,
}

impl Memory {
    fn segment_offset(&self) -> usize {
        self.extent.offset() + self.offset
    }

    fn pointer(&self) -> NonNull<u8> {
        // SAFETY: the extent lies inside the segment and the offset inside the extent (checked in `attach`).
        unsafe { self.extent.segment().base().add(self.segment_offset()) }
    }

    fn segment(&self) -> &Arc<Segment> {
        self.extent.segment()
    }
}

impl Frame {
    /// A frame for a page of this many bytes, without memory.
    pub(crate) fn new(bytes: u64) -> Self {
        let blocks = bytes.div_ceil(BLOCK_BYTES);
        let bytes = usize::try_from(bytes).expect("a page has at most 1 MiB");
        Self {
            bytes,
            state: AtomicU32::new(0),
            blocks: (0..blocks).map(|_| Slot::default()).collect(),
        }
    }

    /// Bytes of the page.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns which blocks are present and which are claimed, at one moment.
    pub(crate) fn state(&self) -> (BlockMask, BlockMask) {
        let state = self.state.load(Ordering::Acquire);
        (BlockMask(state as u16), BlockMask((state >> 16) as u16))
    }

    /// Returns which blocks are present.
    pub(crate) fn present(&self) -> BlockMask {
        self.state().0
    }

    /// Returns which blocks have memory.
    pub(crate) fn backed(&self) -> BlockMask {
        let bits = self
            .blocks
            .iter()
            .enumerate()
            .map(|(block, slot)| u16::from(slot.memory.get().is_some()) << block);
        BlockMask(bits.fold(0, |mask, bit| mask | bit))
    }

    /// Bytes of the blocks that have memory.
    pub(crate) fn backed_bytes(&self) -> u64 {
        self.backed()
            .blocks()
            .map(|block| self.block_bytes(block) as u64)
            .sum()
    }

    /// Bytes of a block: 64 KiB, or less at the end of the page.
    pub(crate) fn block_bytes(&self, block: u32) -> usize {
        BLOCK.min(self.bytes.saturating_sub(block as usize * BLOCK))
    }

    /// Claims those of `wanted` that are neither present nor claimed; `None` if there are none.
    pub(crate) fn claim(self: &Arc<Self>, wanted: BlockMask) -> Option<Claim> {
        let wanted = wanted.intersect(BlockMask::full(self.bytes as u64));
        let mut state = self.state.load(Ordering::Acquire);
        loop {
            let taken = BlockMask(state as u16 | (state >> 16) as u16);
            let fresh = wanted.without(taken);
            if fresh.is_empty() {
                return None;
            }
            let next = state | u32::from(fresh.0) << 16;
            match self
                .state
                .compare_exchange_weak(state, next, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => {
                    return Some(Claim {
                        frame: Arc::clone(self),
                        blocks: fresh,
                    });
                }
                Err(now) => state = now,
            }
        }
    }

    /// The longest slice that starts at `start`, ends at `end` or before, lies in present blocks and in one
    /// run of memory. Empty if the block of `start` is not present.
    pub(crate) fn slice(&self, start: usize, end: usize) -> &[u8] {
        let end = end.min(self.bytes);
        let present = self.present();
        let first = start / BLOCK;
        let is_present = |block: usize| present.contains(BlockMask(1 << block));
        if start >= end || !is_present(first) {
            return &[];
        }
        let memory = |block: usize| {
            self.blocks[block]
                .memory
                .get()
                .expect("a present block has memory")
        };
        let (base, mut last) = (memory(first), first);
        while (last + 1) * BLOCK < end && is_present(last + 1) && follows(memory(last), memory(last + 1)) {
            last += 1;
        }
        let end = end.min((last + 1) * BLOCK);
        // SAFETY: blocks first..=last are present, so nobody writes to them any more and the acquire load saw
        // their bytes; they lie one after the other in one segment, which lives as long as the extents held
        // by `self`.
        unsafe { std::slice::from_raw_parts(base.pointer().as_ptr().add(start - first * BLOCK), end - start) }
    }

    /// Says where `start..end` lies, block by block: segment, offset in it, bytes. `false` if a block of it
    /// is not present.
    pub(crate) fn places(
        &self,
        start: usize,
        end: usize,
        mut place: impl FnMut(SegmentId, u64, u64),
    ) -> bool {
        if end > self.bytes
            || !self
                .present()
                .contains(BlockMask::covering(start as u64, end as u64))
        {
            return false;
        }
        let mut at = start;
        while at < end {
            let memory = self.blocks[at / BLOCK]
                .memory
                .get()
                .expect("a present block has memory");
            let next = end.min((at / BLOCK + 1) * BLOCK);
            let offset = memory.segment_offset() + at % BLOCK;
            place(memory.segment().id(), offset as u64, (next - at) as u64);
            at = next;
        }
        true
    }

    /// Gives memory to `blocks` from `first` on, as many as the extent has bytes for; returns the block after
    /// the last one. Blocks that have memory already are left as they are. Those that nobody has claimed yet
    /// find it when somebody does.
    pub(crate) fn attach(&self, blocks: BlockMask, first: u32, extent: Extent) -> u32 {
        let extent = Arc::new(extent);
        let (mut block, mut offset) = (first, 0);
        while (block as usize) < self.blocks.len() && blocks.contains(BlockMask(1 << block)) {
            let bytes = self.block_bytes(block);
            if offset + bytes as u64 > extent.bytes() {
                break;
            }
            let memory = Memory {
                extent: Arc::clone(&extent),
                offset: usize::try_from(offset).expect("within a page"),
            };
            let _ = self.blocks[block as usize].memory.set(memory);
            offset += bytes as u64;
            block += 1;
        }
        block
    }

    /// Says in which segment each block has memory, and how many units.
    pub(crate) fn visit_memory(&self, mut visit: impl FnMut(SegmentId, u32)) {
        for (block, slot) in (0..).zip(&self.blocks) {
            if let Some(memory) = slot.memory.get() {
                visit(memory.segment().id(), units_of(self.block_bytes(block) as u64));
            }
        }
    }

    /// The checksum that was recorded when the block was filled.
    pub(crate) fn checksum(&self, block: u32) -> u32 {
        self.blocks
            .get(block as usize)
            .map_or(0, |slot| slot.checksum.load(Ordering::Relaxed))
    }

    /// Those of the present blocks in `blocks` whose bytes do not match their checksum.
    pub(crate) fn corrupt(&self, blocks: BlockMask) -> BlockMask {
        let is_bad = |block: &u32| {
            let start = *block as usize * BLOCK;
            crc32c::crc32c(self.slice(start, start + BLOCK)) != self.checksum(*block)
        };
        let bad = blocks.intersect(self.present()).blocks().filter(is_bad);
        BlockMask(bad.fold(0, |mask, block| mask | 1 << block))
    }

    /// Flips a bit of a present block, as a broken memory chip would.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn flip_bit(&self, offset: usize) -> bool {
        let (block, inside) = (offset / BLOCK, offset % BLOCK);
        if offset >= self.bytes || !self.present().contains(BlockMask(1 << block)) {
            return false;
        }
        let Some(memory) = self.blocks[block].memory.get() else {
            return false;
        };
        // SAFETY: inside the block. That readers may look at the byte at this moment is the point; the write
        // is volatile and only tests do it.
        unsafe {
            let byte = memory.pointer().add(inside);
            byte.write_volatile(byte.read_volatile() ^ 1);
        }
        true
    }
}

/// Returns whether the second block starts right behind the (full) first one in the same mapping.
fn follows(first: &Memory, second: &Memory) -> bool {
    Arc::ptr_eq(first.segment(), second.segment())
        && first.segment_offset() + BLOCK == second.segment_offset()
}

/// The exclusive right to fill blocks of a frame. What is not published when it is dropped is missing again.
#[derive(Debug)]
pub(crate) struct Claim {
    frame: Arc<Frame>,
    blocks: BlockMask,
}

impl Claim {
    /// The blocks that are still to be filled.
    pub(crate) fn blocks(&self) -> BlockMask {
        self.blocks
    }

    /// The claimed blocks that have no memory yet.
    pub(crate) fn unbacked(&self) -> BlockMask {
        self.blocks.without(self.frame.backed())
    }

    /// Passes some of the blocks to a claim of their own; `None` if it has none of them.
    pub(crate) fn split_off(&mut self, blocks: BlockMask) -> Option<Self> {
        let moved = self.blocks.intersect(blocks);
        self.blocks = self.blocks.without(moved);
        (!moved.is_empty()).then(|| Self {
            frame: Arc::clone(&self.frame),
            blocks: moved,
        })
    }

    /// Gives memory to claimed blocks from `first` on, as many as the extent has bytes for; returns the block
    /// after the last one. Blocks that have memory already are left as they are.
    pub(crate) fn attach(&mut self, first: u32, extent: Extent) -> u32 {
        self.frame.attach(self.blocks, first, extent)
    }

    /// Writes bytes into one claimed block that has memory.
    ///
    /// # Panics
    /// If the block is not claimed, has no memory, or is too short: all are mistakes of this crate.
    pub(crate) fn write(&mut self, block: u32, offset: usize, bytes: &[u8]) {
        assert!(
            self.blocks.contains(BlockMask(1 << block)),
            "the block is claimed"
        );
        assert!(
            offset + bytes.len() <= self.frame.block_bytes(block),
            "the bytes fit the block"
        );
        let memory = self.frame.blocks[block as usize]
            .memory
            .get()
            .expect("a claimed block was given memory");
        // SAFETY: the target is inside a block that this claim holds alone, so nobody reads or writes it; the
        // source is a borrowed slice and cannot overlap, because slices of a frame cover present blocks only.
        unsafe {
            let target = memory.pointer().as_ptr().add(offset);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), target, bytes.len());
        }
    }

    /// Makes a filled block readable.
    pub(crate) fn publish(&mut self, block: u32, checksum: u32) {
        let bit = BlockMask(1 << block);
        assert!(self.blocks.contains(bit), "the block is claimed");
        self.frame.blocks[block as usize]
            .checksum
            .store(checksum, Ordering::Relaxed);
        self.blocks = self.blocks.without(bit);
        // Claimed and not present before, present and not claimed after, in one step.
        self.frame
            .state
            .fetch_xor(u32::from(bit.0) | u32::from(bit.0) << 16, Ordering::AcqRel);
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.frame
            .state
            .fetch_and(!(u32::from(self.blocks.0) << 16), Ordering::AcqRel);
    }
}

/// A page on its way in by a write: filled front to back by one owner, then turned into a frame.
#[derive(Debug)]
pub(crate) struct Draft {
    /// Every extent but the last holds whole blocks.
    extents: Vec<Extent>,
    written: usize,
    checksums: Vec<u32>,
    checksum: u32,
}

impl Draft {
    /// Starts at the first byte of the first extent.
    pub(crate) fn new(extents: Vec<Extent>) -> Self {
        Self {
            extents,
            written: 0,
            checksums: Vec::new(),
            checksum: 0,
        }
    }

    /// Bytes that it has memory for.
    pub(crate) fn capacity(&self) -> usize {
        self.extents
            .iter()
            .map(|extent| usize::try_from(extent.bytes()).expect("at most a page"))
            .sum()
    }

    /// Takes as much of `bytes` as there is memory for; returns how much that was.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> usize {
        let room = self.capacity() - self.written;
        let bytes = &bytes[..room.min(bytes.len())];
        let mut rest = bytes;
        while !rest.is_empty() {
            let (part, after) = rest.split_at(rest.len().min(BLOCK - self.written % BLOCK));
            self.copy(part);
            self.checksum = crc32c::crc32c_append(self.checksum, part);
            self.written += part.len();
            if self.written.is_multiple_of(BLOCK) {
                self.checksums.push(std::mem::take(&mut self.checksum));
            }
            rest = after;
        }
        bytes.len()
    }

    /// Copies bytes that do not cross the border of a block to where `written` points.
    fn copy(&mut self, part: &[u8]) {
        let mut offset = self.written;
        for extent in &self.extents {
            let extent_bytes = usize::try_from(extent.bytes()).expect("at most a page");
            if offset < extent_bytes {
                assert!(
                    offset + part.len() <= extent_bytes,
                    "no block lies in two extents"
                );
                // SAFETY: the extent belongs to this draft alone (`&mut self`), and the part ends inside it.
                unsafe {
                    let target = extent.segment().base().add(extent.offset() + offset);
                    std::ptr::copy_nonoverlapping(part.as_ptr(), target.as_ptr(), part.len());
                }
                return;
            }
            offset -= extent_bytes;
        }
    }

    /// A frame whose blocks are all present; unused memory is given back.
    pub(crate) fn into_frame(mut self) -> Frame {
        if !self.written.is_multiple_of(BLOCK) {
            self.checksums.push(self.checksum);
        }
        let frame = Arc::new(Frame::new(self.written as u64));
        if let Some(mut claim) = frame.claim(BlockMask::full(self.written as u64)) {
            let (mut block, mut left) = (0, self.written as u64);
            for extent in self.extents.drain(..) {
                let used = left.min(extent.bytes());
                left -= used;
                if used > 0 {
                    block = claim.attach(block, extent.truncate(used));
                }
            }
            for (block, checksum) in (0..).zip(&self.checksums) {
                claim.publish(block, *checksum);
            }
        }
        Arc::into_inner(frame).expect("the only claim is gone")
    }
}

#[cfg(test)]
mod tests;
