//! A page in RAM: its frame, who waits for it, who holds it.
//!
//! Life cycle: made when a reader first wants it, filled block by block under claims, found by others through
//! the index, evicted when nobody holds it. Holding is an `Arc`: readers, leases and fills each have one, and
//! the index gives a page up only when its own is the last. So the memory of a page that was evicted,
//! forgotten or quarantined lives until its last lease ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, Ordering};

use bytes::Bytes;
use forebay_core::{BLOCK_BYTES, BlockMask, Error, Tier, page_bytes};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::fill::FillControl;
use crate::segment::{Claim, Frame};
use crate::stats::Counters;
use crate::{ObjectVersion, PageKey};

/// One page of one object version in RAM.
#[derive(Debug)]
pub(crate) struct Page {
    pub(crate) key: PageKey,
    pub(crate) object: Arc<ObjectVersion>,
    pub(crate) frame: Arc<Frame>,
    /// Woken when a block was published or a claim given up.
    changed: Notify,
    /// Why the last claim was given up; gone when the next one starts.
    given_up: Mutex<Option<GivenUp>>,
    /// Claimed blocks whose fill a reader may have to change: read-ahead, and fills from a source that has a
    /// fallback.
    fills: Mutex<Vec<(BlockMask, FillControl)>>,
    /// Blocks that came from NVMe.
    from_nvme: AtomicU16,
    /// Blocks that came from peers.
    from_peer: AtomicU16,
    /// Blocks that were handed out at least once.
    seen: AtomicU16,
    pub(crate) pinned: AtomicBool,
    leases: AtomicU32,
    /// Reads that have it in their window.
    windows: AtomicU32,
    counters: Arc<Counters>,
}

/// Why a claim was given up.
#[derive(Debug)]
enum GivenUp {
    NoMemory,
    Failed(Error),
}

/// The end of a wait for a block.
#[derive(Debug)]
pub(crate) enum Waited {
    /// The block is there.
    Ready,
    /// Whoever wanted to fill it found no memory for it.
    NoMemory,
    /// Nobody fills it (any more), and why, if that is known.
    Abandoned(Option<Error>),
}

impl Page {
    /// A page without memory.
    pub(crate) fn new(key: PageKey, object: Arc<ObjectVersion>, counters: Arc<Counters>) -> Self {
        let frame = Frame::new(page_bytes(object.bytes, key.page));
        Self::with_frame(key, object, frame, counters)
    }

    /// A page that was filled by a write.
    pub(crate) fn with_frame(
        key: PageKey,
        object: Arc<ObjectVersion>,
        frame: Frame,
        counters: Arc<Counters>,
    ) -> Self {
        Self {
            key,
            object,
            frame: Arc::new(frame),
            changed: Notify::new(),
            given_up: Mutex::new(None),
            fills: Mutex::default(),
            from_nvme: AtomicU16::new(0),
            from_peer: AtomicU16::new(0),
            seen: AtomicU16::new(0),
            pinned: AtomicBool::new(false),
            leases: AtomicU32::new(0),
            windows: AtomicU32::new(0),
            counters,
        }
    }

    /// Claims those of `wanted` that nobody has or fills; `None` if there are none.
    pub(crate) fn claim(self: &Arc<Self>, wanted: BlockMask, control: &FillControl) -> Option<PageClaim> {
        if !control.may_change() {
            return self.claim_blocks(wanted);
        }
        let mut fills = self.fills.lock(); // Whoever finds the blocks claimed finds what changes them, too.
        let claim = self.claim_blocks(wanted)?;
        let (_, claimed) = self.frame.state();
        fills.retain(|(blocks, _)| !blocks.intersect(claimed).without(claim.blocks()).is_empty());
        fills.push((claim.blocks(), control.clone()));
        Some(claim)
    }

    fn claim_blocks(self: &Arc<Self>, wanted: BlockMask) -> Option<PageClaim> {
        let claim = self.frame.claim(wanted)?;
        self.given_up.lock().take();
        Some(PageClaim {
            claim,
            page: Arc::clone(self),
        })
    }

    /// A reader waits for these blocks from now on: read-ahead becomes demand, and for a reader whose own source
    /// is a last resort the fill changes to its fallback.
    pub(crate) fn join_fills(&self, wanted: BlockMask, reader: &FillControl) {
        self.fills.lock().retain(|(blocks, control)| {
            let is_wanted = !blocks.intersect(wanted).is_empty();
            if is_wanted {
                control.join(reader);
            }
            !is_wanted || control.may_change()
        });
    }

    /// Waits until the block is there or nobody fills it. Cancel-safe.
    pub(crate) async fn wait_for(&self, block: u32) -> Waited {
        let wanted = BlockMask(1 << block);
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            let (present, claimed) = self.frame.state();
            if present.contains(wanted) {
                return Waited::Ready;
            }
            if !claimed.contains(wanted) {
                return match &*self.given_up.lock() {
                    Some(GivenUp::NoMemory) => Waited::NoMemory,
                    Some(GivenUp::Failed(error)) => Waited::Abandoned(Some(error.share())),
                    None => Waited::Abandoned(None),
                };
            }
            changed.await;
        }
    }

    /// Returns whether a read has it in its window.
    pub(crate) fn is_in_window(&self) -> bool {
        self.windows.load(Ordering::Relaxed) > 0
    }

    /// Ends the pin of this page; says whether there was one.
    pub(crate) fn unpin(&self) -> bool {
        let was_pinned = self.pinned.swap(false, Ordering::AcqRel);
        if was_pinned {
            self.counters.pinned_ram_bytes.sub(self.frame.bytes() as u64);
        }
        was_pinned
    }

    /// The farthest tier that one of these blocks came from when it was filled.
    pub(crate) fn filled_from(&self, blocks: BlockMask) -> Tier {
        let nvme = self.from_nvme.load(Ordering::Relaxed);
        let peer = self.from_peer.load(Ordering::Relaxed);
        match () {
            () if BlockMask(nvme).contains(blocks) => Tier::Nvme,
            () if BlockMask(nvme | peer).contains(blocks) => Tier::Peer,
            () => Tier::Lake,
        }
    }

    /// Remembers that the blocks were handed out; says whether any of them was before.
    pub(crate) fn mark_read(&self, blocks: BlockMask) -> bool {
        let before = self.seen.fetch_or(blocks.0, Ordering::Relaxed);
        before & blocks.0 != 0
    }

    /// Returns whether all bytes of `start..end` are there.
    pub(crate) fn has(&self, start: u64, end: u64) -> bool {
        end <= self.frame.bytes() as u64 && self.frame.present().contains(BlockMask::covering(start, end))
    }

    /// The blocks that hold bytes of `start..end`.
    pub(crate) fn blocks(&self, start: usize, end: usize) -> BlockMask {
        BlockMask::covering(start as u64, end as u64)
    }

    /// Leases `start..end` of the page, or the front of it that lies together in memory; the block of `start`
    /// is present.
    pub(crate) fn lease(self: &Arc<Self>, start: usize, end: usize) -> Bytes {
        let end = start + self.frame.slice(start, end).len();
        Bytes::from_owner(Lease {
            page: PageLease::new(Arc::clone(self)),
            start,
            end,
        })
    }

    /// The whole page as one run of bytes, of which only present blocks are valid: in place if it lies
    /// together, else copied.
    pub(crate) fn flat(self: &Arc<Self>) -> Bytes {
        if self.frame.slice(0, self.frame.bytes()).len() == self.frame.bytes() {
            return self.lease(0, self.frame.bytes());
        }
        let mut copy = vec![0; self.frame.bytes()];
        for block in self.frame.present().blocks() {
            let start = block as usize * BLOCK_BYTES as usize;
            let bytes = self.frame.slice(start, start + BLOCK_BYTES as usize);
            copy[start..start + bytes.len()].copy_from_slice(bytes);
        }
        copy.into()
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        self.unpin();
    }
}

/// Keeps a page in the window of a read. Bytes in windows are counted once, however many reads share them.
#[derive(Debug)]
pub(crate) struct InWindow(Arc<Page>);

impl InWindow {
    /// Counts the page.
    pub(crate) fn new(page: Arc<Page>) -> Self {
        if page.windows.fetch_add(1, Ordering::Relaxed) == 0 {
            page.counters.window_bytes.add(page.frame.bytes() as u64);
        }
        Self(page)
    }
}

impl std::ops::Deref for InWindow {
    type Target = Arc<Page>;

    fn deref(&self) -> &Arc<Page> {
        &self.0
    }
}

impl Drop for InWindow {
    fn drop(&mut self) {
        if self.0.windows.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.0.counters.window_bytes.sub(self.0.frame.bytes() as u64);
        }
    }
}

/// Keeps a page while somebody may look at its bytes.
#[derive(Debug)]
pub(crate) struct PageLease(Arc<Page>);

impl PageLease {
    /// Counts the page as leased.
    pub(crate) fn new(page: Arc<Page>) -> Self {
        if page.leases.fetch_add(1, Ordering::Relaxed) == 0 {
            page.counters.leased_pages.add(1);
            page.counters.leased_bytes.add(page.frame.bytes() as u64);
        }
        Self(page)
    }

    /// Returns whether both keep the same page.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl std::ops::Deref for PageLease {
    type Target = Arc<Page>;

    fn deref(&self) -> &Arc<Page> {
        &self.0
    }
}

impl Drop for PageLease {
    fn drop(&mut self) {
        if self.0.leases.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.0.counters.leased_pages.sub(1);
            self.0.counters.leased_bytes.sub(self.0.frame.bytes() as u64);
        }
    }
}

/// Leased bytes of a page.
struct Lease {
    page: PageLease,
    start: usize,
    end: usize,
}

impl AsRef<[u8]> for Lease {
    fn as_ref(&self) -> &[u8] {
        self.page.frame.slice(self.start, self.end)
    }
}

/// The exclusive right to fill blocks of a page. Whoever waits is woken by each block and when it is given
/// up.
#[derive(Debug)]
pub(crate) struct PageClaim {
    claim: Claim,
    page: Arc<Page>,
}

impl PageClaim {
    /// The page.
    pub(crate) fn page(&self) -> &Arc<Page> {
        &self.page
    }

    /// The blocks, to give memory to.
    pub(crate) fn claim_mut(&mut self) -> &mut Claim {
        &mut self.claim
    }

    /// The blocks that are still to be filled.
    pub(crate) fn blocks(&self) -> BlockMask {
        self.claim.blocks()
    }

    /// Passes some of the blocks to a claim of their own; `None` if it has none of them.
    pub(crate) fn split_off(&mut self, blocks: BlockMask) -> Option<Self> {
        let claim = self.claim.split_off(blocks)?;
        Some(Self {
            claim,
            page: Arc::clone(&self.page),
        })
    }

    /// Writes bytes into one block.
    pub(crate) fn write(&mut self, block: u32, offset: usize, bytes: &[u8]) {
        self.claim.write(block, offset, bytes);
    }

    /// Makes a filled block readable and wakes those who wait.
    pub(crate) fn publish(&mut self, block: u32, checksum: u32, tier: Tier) {
        match tier {
            Tier::Nvme => self.page.from_nvme.fetch_or(1 << block, Ordering::Relaxed),
            Tier::Peer => self.page.from_peer.fetch_or(1 << block, Ordering::Relaxed),
            Tier::Ram | Tier::Lake => 0,
        };
        self.claim.publish(block, checksum);
        self.page.changed.notify_waiters();
    }

    /// Gives the blocks up and tells those who wait why.
    pub(crate) fn fail(self, error: &Error) {
        *self.page.given_up.lock() = Some(GivenUp::Failed(error.share()));
    }

    /// Gives the blocks up because there is no memory for them.
    pub(crate) fn fail_no_memory(self) {
        *self.page.given_up.lock() = Some(GivenUp::NoMemory);
    }
}

impl Drop for PageClaim {
    fn drop(&mut self) {
        // The blocks are free again before the waiters look.
        let blocks = self.claim.blocks();
        drop(self.claim.split_off(blocks));
        if !blocks.is_empty() {
            self.page.changed.notify_waiters();
        }
    }
}
