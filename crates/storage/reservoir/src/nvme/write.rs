//! Writing: check, copy into an aligned buffer, make room, transfer, tell the index.
//!
//! A write that finds no room or a disk that refuses it is counted and forgotten: the tier is a cache, and
//! the caller has the bytes. Only wrong input and bytes that no longer match their checksum are errors.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use forebay_core::{
    BLOCK_BYTES, BLOCKS_PER_PAGE, BlockMask, Error, Kind, PageIndex, Result, crc32c, page_bytes,
};
use tokio::sync::oneshot;
use tracing::warn;

use super::NvmeStore;
use super::buffer::AlignedBuffer;
use super::engine::{Direction, Transfer, io_segments};
use super::extent::{Extent, block_bytes, blocks_units};
use super::index::{Change, Page};
use super::record::{PageRecord, VERSION_BYTES_MAX};
use super::space::{RUNS_MAX, UNIT_BYTES};
use crate::{ObjectId, ObjectVersion, PageKey};

/// Writes after which a disk that was full is tried again.
const GROWTH_RETRY_WRITES: u64 = 256;

/// Rounds of eviction for one write, at most.
const ROOM_ROUNDS_MAX: usize = 32;

/// Each eviction makes at least one part in this many of the capacity free, so that free runs are long.
const EVICTION_SHARE: u64 = 128;

/// A write that the index knows of, until it is dropped.
#[derive(Debug)]
struct WriteUnderWay<'a> {
    store: &'a NvmeStore,
    object: ObjectId,
    begun: u64,
}

impl Drop for WriteUnderWay<'_> {
    fn drop(&mut self) {
        self.store.index.lock().end_write(&self.object);
    }
}

/// The blocks that a write is about to put on disk.
#[derive(Debug)]
struct NewBlocks<'a> {
    object: &'a Arc<ObjectVersion>,
    key: PageKey,
    blocks: BlockMask,
    page_bytes: u64,
}

impl NewBlocks<'_> {
    fn units(&self) -> u64 {
        blocks_units(self.page_bytes, self.blocks)
    }
}

impl NvmeStore {
    /// Keeps blocks of a page; those that are here already are left as they are. `page_bytes` is
    /// page-relative, and only `blocks` of it are valid. Full or failing disks are counted, not reported; an
    /// error means wrong input, or `Checksum` if the bytes do not match `checksums` any more. Cancel-safe: a
    /// dropped write leaves nothing.
    pub(crate) async fn write(
        &self,
        object: &Arc<ObjectVersion>,
        page: PageIndex,
        blocks: BlockMask,
        page_bytes: Bytes,
        checksums: [u32; BLOCKS_PER_PAGE as usize],
    ) -> Result<()> {
        let Ok(permit) = Arc::clone(&self.write_permits).acquire_owned().await else {
            return Ok(());
        };
        let key = PageKey {
            object: ObjectId::of(object),
            page,
        };
        let Some((under_way, new)) = self.begin(object, key, blocks, &page_bytes)? else {
            return Ok(());
        };
        let buffer = self.pack(&new, &page_bytes, &checksums)?;
        drop(page_bytes);
        let Some(extent) = self.make_room(&new).await else {
            self.counters.skipped_writes.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        };
        let (done, answer) = oneshot::channel();
        let mut all = Vec::new();
        io_segments(extent.runs(), 0..extent.units() * UNIT_BYTES, 0, &mut all);
        self.engine.submit(Transfer {
            direction: Direction::Write,
            io_segments: all,
            buffer,
            hold: Arc::clone(&extent),
            permit,
            done,
        });
        match answer.await {
            Ok(Ok(_)) => self.commit(&under_way, &new, &extent, checksums),
            Ok(Err(error)) => self.refused(&extent, &error),
            Err(_) => {}
        }
        Ok(())
    }

    /// Checks the input and finds what is new; `None` if nothing is, or if the object cannot be described.
    fn begin<'a>(
        &'a self,
        object: &'a Arc<ObjectVersion>,
        key: PageKey,
        blocks: BlockMask,
        bytes: &Bytes,
    ) -> Result<Option<(WriteUnderWay<'a>, NewBlocks<'a>)>> {
        let page_bytes = page_bytes(object.bytes, key.page);
        let end_bytes = blocks.blocks().last().map_or(0, |last| {
            u64::from(last) * BLOCK_BYTES + block_bytes(page_bytes, last)
        });
        if !BlockMask::full(page_bytes).contains(blocks) || (bytes.len() as u64) < end_bytes {
            return Err(Error::new(Kind::InvalidInput, "blocks lie outside the page")
                .with("key", &object.key)
                .with("page", key.page)
                .with("bytes", bytes.len()));
        }
        let mut index = self.index.lock();
        let new = blocks.without(index.page(&key).map_or(BlockMask::EMPTY, Page::live));
        if new.is_empty() || object.version.as_str().len() > VERSION_BYTES_MAX {
            return Ok(None);
        }
        let under_way = WriteUnderWay {
            store: self,
            object: key.object,
            begun: index.begin_write(key.object),
        };
        Ok(Some((
            under_way,
            NewBlocks {
                object,
                key,
                blocks: new,
                page_bytes,
            },
        )))
    }

    /// Copies the blocks together and checks the copy: bytes that flipped in RAM must not get a good name on
    /// disk.
    fn pack(&self, new: &NewBlocks<'_>, bytes: &Bytes, checksums: &[u32; 16]) -> Result<AlignedBuffer> {
        let mut buffer = self.buffers.take((new.units() * UNIT_BYTES) as usize);
        let mut rest = buffer.as_mut_slice();
        for block in new.blocks.blocks() {
            let start = (u64::from(block) * BLOCK_BYTES) as usize;
            let block_bytes = block_bytes(new.page_bytes, block) as usize;
            let (target, after) = std::mem::take(&mut rest).split_at_mut(block_bytes);
            target.copy_from_slice(&bytes[start..start + block_bytes]);
            if crc32c::crc32c(target) != checksums[block as usize] {
                return Err(Error::new(
                    Kind::Checksum,
                    "block changed in memory before it was written to nvme",
                )
                .with("key", &new.object.key)
                .with("page", new.key.page)
                .with("block", block));
            }
            rest = after;
        }
        rest.fill(0);
        Ok(buffer)
    }

    /// Finds units, evicting if it must; one writer at a time does, so that they do not evict for each other.
    async fn make_room(&self, new: &NewBlocks<'_>) -> Option<Arc<Extent>> {
        if let Some(extent) = self.try_allocate(new) {
            return Some(extent);
        }
        let _turn = self.room_turn.acquire().await.ok()?;
        for _ in 0..ROOM_ROUNDS_MAX {
            if let Some(extent) = self.try_allocate(new) {
                return Some(extent);
            }
            let sequence = self.evict_for(new)?;
            self.journal.written(sequence).await;
        }
        None
    }

    fn try_allocate(&self, new: &NewBlocks<'_>) -> Option<Arc<Extent>> {
        let mut index = self.index.lock();
        index.reclaim();
        if index.space.is_shrunk()
            && self.writes_since_refusal.fetch_add(1, Ordering::Relaxed) + 1 >= GROWTH_RETRY_WRITES
        {
            self.writes_since_refusal.store(0, Ordering::Relaxed);
            index.space.retry_growth();
        }
        if index.totals().record_bytes + self.record_bytes(&index, new) > self.shares.record_bytes_max {
            return None;
        }
        let runs = index.space.allocate(new.units())?;
        Some(Extent::new(runs, &self.returned))
    }

    /// Evicts enough for the write; `None` if nothing may go and nothing is on its way back. Wait for the
    /// answer before trying again.
    fn evict_for(&self, new: &NewBlocks<'_>) -> Option<u64> {
        let mut index = self.index.lock();
        let record_bytes = self.record_bytes(&index, new);
        let missing_record_bytes =
            (index.totals().record_bytes + record_bytes).saturating_sub(self.shares.record_bytes_max);
        let units = if missing_record_bytes > 0 {
            0
        } else {
            new.units().max(index.space.usable_units() / EVICTION_SHARE)
        };
        let mut change = Change::default();
        let gone = index.evict(units, missing_record_bytes, &mut change);
        let sequence = self.journal.push(change);
        (gone != (0, 0) || !self.journal.is_written(sequence)).then_some(sequence)
    }

    fn record_bytes(&self, index: &super::Index, new: &NewBlocks<'_>) -> u64 {
        index.record_bytes_of(new.object, &new.key.object, RUNS_MAX, new.blocks)
    }

    fn commit(
        &self,
        under_way: &WriteUnderWay<'_>,
        new: &NewBlocks<'_>,
        extent: &Arc<Extent>,
        checksums: [u32; 16],
    ) {
        let record = PageRecord {
            key: new.key,
            generation: 0,
            stored: new.blocks,
            live: new.blocks,
            runs: extent.runs().to_vec(),
            checksums,
        };
        let mut index = self.index.lock();
        let mut change = Change::default();
        index.add(under_way.begun, new.object, record, extent, &mut change);
        self.journal.push(change);
    }

    /// The disk is full or broken there: keep the units out of use for a while.
    fn refused(&self, extent: &Arc<Extent>, error: &std::io::Error) {
        self.counters.write_errors.fetch_add(1, Ordering::Relaxed);
        extent.refuse();
        if !self.index.lock().space.is_shrunk() {
            warn!(%error, "the disk of the nvme tier refused a write; the tier goes on with less room");
        }
    }
}
