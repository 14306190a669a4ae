//! The NVMe tier: pages in segment files that survive a restart (signatures first, the store follows).
#![allow(
    dead_code,
    clippy::unused_async,
    unused_variables,
    reason = "signatures for the integration; the body follows"
)]

use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use forebay_core::{BlockMask, Error, Kind, PageIndex, Result};

use crate::{ObjectId, ObjectVersion, PageKey};

/// Where the tier lives and how much it may hold.
#[derive(Debug, Clone)]
pub(crate) struct NvmeOptions {
    /// The folder; made if it is not there.
    pub(crate) dir: PathBuf,
    /// Bytes of segment files, their headers and the index journal together.
    pub(crate) budget_bytes: u64,
}

/// The good blocks of a read.
#[derive(Debug, Clone)]
pub(crate) struct NvmeRead {
    /// Blocks that were there and matched their checksum.
    pub(crate) blocks: BlockMask,
    /// CRC32C of each good block, at its block number.
    pub(crate) checksums: [u32; 16],
}

impl NvmeRead {
    /// The verified bytes of a block (the last block of a page may be short); `None` if it is not in `blocks`.
    pub(crate) fn block(&self, block: u32) -> Option<Bytes> {
        None
    }
}

/// Counters and gauges at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct NvmeStats {
    /// Pages in the index.
    pub(crate) pages: u64,
    /// Bytes of page data.
    pub(crate) used_bytes: u64,
    /// Bytes of page data that belong to pinned objects.
    pub(crate) pinned_bytes: u64,
    /// Pages evicted.
    pub(crate) evicted_pages: u64,
    /// Blocks whose bytes did not match their checksum.
    pub(crate) corrupt_blocks: u64,
    /// Reads that the disk refused; the blocks were dropped.
    pub(crate) read_errors: u64,
    /// Writes that the disk refused or that found no room.
    pub(crate) write_errors: u64,
    /// Files set aside because they were damaged or not ours.
    pub(crate) set_aside_files: u64,
}

/// Pages on NVMe.
#[derive(Debug)]
pub(crate) struct NvmeStore {}

impl NvmeStore {
    /// Opens the folder, replays its index and is ready to serve.
    pub(crate) async fn open(options: NvmeOptions) -> Result<Arc<Self>> {
        Err(Error::new(Kind::Unsupported, "the nvme tier is not there yet")
            .with("dir", options.dir.display()))
    }

    /// Which blocks of the page are there. Memory only.
    pub(crate) fn lookup(&self, key: &PageKey) -> Option<BlockMask> {
        None
    }

    /// Reads and verifies blocks; `None` if none of them is there. Cancel-safe.
    pub(crate) async fn read(&self, key: &PageKey, blocks: BlockMask) -> Result<Option<NvmeRead>> {
        Ok(None)
    }

    /// Keeps blocks of a page. `page_bytes` is page-relative; only `blocks` of it are valid. Cancel-safe.
    pub(crate) async fn write(
        &self,
        object: &Arc<ObjectVersion>,
        page: PageIndex,
        blocks: BlockMask,
        page_bytes: Bytes,
        checksums: [u32; 16],
    ) -> Result<()> {
        Ok(())
    }

    /// Forgets every page of the object.
    pub(crate) fn remove_object(&self, id: &ObjectId) {}

    /// Keeps the object's pages (also those still to come) from eviction, or lets them go again.
    pub(crate) fn set_pinned(&self, id: &ObjectId, pinned: bool) {}

    /// Every object with bytes here, and how many.
    pub(crate) fn objects(&self) -> Vec<(Arc<ObjectVersion>, u64)> {
        Vec::new()
    }

    /// Counters and gauges now.
    pub(crate) fn stats(&self) -> NvmeStats {
        NvmeStats::default()
    }

    /// Writes what is pending, compacts the index, ends the threads and gives the folder free. Idempotent.
    pub(crate) async fn shutdown(&self) {}
}
