//! A read: pages in order, what is missing claimed and fetched ahead of the consumer.
//!
//! Life cycle of a read: it plans a window of pages in front of the consumer (finds or makes each page,
//! claims the missing blocks that nobody else fills, gives them memory, hands the claims to the filler), then
//! waits for the next block, checks every block that it is about to hand out, and leases the bytes. A block
//! that fails the check is a miss: its page is quarantined and planned again. A fill that failed for a reason
//! that may pass is tried once more.
//!
//! Limits: one read holds at most a window of pages, and windows together half of the RAM that is not pinned,
//! beyond which a read gets one page at a time: readers that are slower than the lake must not take the cache
//! from the others. When there is no memory even for the next page it waits: for pages that NVMe is to get
//! before they go, while that is worth it, else a moment. Then it streams past the cache ([`Bypass`]); it
//! never waits for memory without an end.

mod bypass;
mod prefetch;
mod shared_fetch;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use forebay_core::{BLOCK_BYTES, BlockMask, ByteRange, Error, Kind, PAGE_BYTES, PageIndex, Result, Tier};
use futures::StreamExt;
use tokio::time::Instant;

use crate::fill::{FillRequest, RoutedClaims};
use crate::index::EntryHandle;
use crate::page::{InWindow, Page, Waited};
use crate::ram::Shortage;
use crate::reservoir::Reservoir;
use crate::run::Run;
use crate::{BlockChecksums, ObjectVersion, Piece, PieceStream, Priority, Source};

use bypass::Bypass;
pub(crate) use shared_fetch::SharedFetches;

/// Bytes in front of the consumer that one read has planned, at most.
const WINDOW_BYTES_MAX: u64 = 16 << 20;
/// Bytes that are checked and handed out at a time: few enough to be in the CPU's cache still when they are
/// sent.
const PIECE_BYTES_MAX: usize = 256 << 10;
/// One read may hold one part in this many of the RAM budget.
const WINDOW_SHARE: u64 = 8;
/// All windows together grow up to one part in this many of the RAM that is not pinned.
const WINDOWS_SHARE: u64 = 2;
/// The longest wait of a read for memory before it goes past the cache.
const SPACE_WAIT_MAX: Duration = Duration::from_millis(100);
/// Bytes that go past the cache before it is tried again.
const BYPASS_BYTES_MAX: u64 = 16 << 20;
/// Fills that a read sees fail within a page's worth of bytes, or pages that turn out corrupt, before it
/// gives up.
const FAILURES_MAX: u32 = 2;
const CORRUPT_MAX: u32 = 3;
const ABANDONED_MAX: u32 = 16;
/// Waits in a row for other reads that find no memory, before a read goes past the cache.
const STARVED_MAX: u32 = 16;

/// One read under way.
struct Reading {
    reservoir: Arc<Reservoir>,
    entry: EntryHandle,
    request: FillRequest,
    range: ByteRange,
    /// The next byte to hand out.
    position: u64,
    /// Pages up to here are in `ahead`.
    planned: u64,
    window_bytes: u64,
    ahead: VecDeque<Planned>,
    run: Option<Arc<Run>>,
    bypass: Option<Bypass>,
    started: bool,
    /// Bytes past the request are fetched if its reader looks sequential.
    reads_ahead: bool,
    /// Set once it has waited for memory in vain: the next time it goes past the cache without delay.
    waited: bool,
    /// Policy for a moment in which NVMe does not have yet what could make room.
    shortage: Shortage,
    failures: u32,
    /// The position of the last of them.
    failed_at: u64,
    corrupt: u32,
    abandoned: u32,
    starved: u32,
}

/// A page in the window.
struct Planned {
    page: InWindow,
    /// Blocks that were in RAM when the read came by.
    found: BlockMask,
}

impl Reservoir {
    /// The bytes of a range, in order, each checked, each piece within one page and leased from RAM where
    /// possible.
    ///
    /// Missing blocks come from NVMe or from `source`, once however many read them. Nothing happens before
    /// the stream is polled, inside a tokio runtime. Dropping it is safe at any time; fills that it started
    /// go on for the others.
    pub fn read(
        self: &Arc<Self>,
        object: &ObjectVersion,
        range: ByteRange,
        source: &Arc<dyn Source>,
    ) -> PieceStream {
        self.pieces(object, range, source, true)
    }

    /// As [`Self::read`], for a reader that looks ahead itself: nothing but the range is fetched.
    pub fn read_exactly(
        self: &Arc<Self>,
        object: &ObjectVersion,
        range: ByteRange,
        source: &Arc<dyn Source>,
    ) -> PieceStream {
        self.pieces(object, range, source, false)
    }

    fn pieces(
        self: &Arc<Self>,
        object: &ObjectVersion,
        range: ByteRange,
        source: &Arc<dyn Source>,
        reads_ahead: bool,
    ) -> PieceStream {
        if range.end() > object.bytes {
            let error = Error::new(Kind::OutOfRange, "the range ends past the end of the object")
                .with("range", range)
                .with("bytes", object.bytes);
            return futures::stream::once(async { Err(error) }).boxed();
        }
        let entry = self.ram.entry(object);
        let request = FillRequest::new(&entry.object, source, Priority::Demand);
        let reading = Reading {
            reservoir: Arc::clone(self),
            entry,
            request,
            range,
            position: range.start(),
            planned: range.start(),
            window_bytes: WINDOW_BYTES_MAX
                .min(self.ram.budget_bytes() / WINDOW_SHARE)
                .max(PAGE_BYTES),
            ahead: VecDeque::new(),
            run: None,
            bypass: None,
            started: false,
            reads_ahead,
            waited: false,
            shortage: Shortage::Wait,
            failures: 0,
            failed_at: range.start(),
            corrupt: 0,
            abandoned: 0,
            starved: 0,
        };
        // Boxed, because it is moved from piece to piece.
        futures::stream::try_unfold(Box::new(reading), |mut reading| async move {
            let piece = reading.next().await?;
            Ok(piece.map(|piece| (piece, reading)))
        })
        .boxed()
    }

    /// Fetches a range that nobody asked for yet, as far as memory is there; skipped when enough is in
    /// flight.
    fn fetch_ahead(&self, entry: &EntryHandle, range: ByteRange, request: &FillRequest) {
        let in_flight = self.counters.read_ahead_bytes.get();
        if in_flight + range.len() > self.ram.budget_bytes() / WINDOW_SHARE {
            return;
        }
        let mut claims = RoutedClaims::new(&self.filler, request, Priority::ReadAhead);
        for index in range.pages() {
            let page = self.ram.index.page(entry, index);
            let wanted = wanted_blocks(index, range);
            if page.frame.present().contains(wanted) {
                continue;
            }
            let Some(mut claim) = page.claim(wanted, &claims.control(index.start())) else {
                continue;
            };
            if !self.ram.allocate_for(&mut claim, None, Shortage::Wait) {
                claim.fail_no_memory();
                self.ram.drop_if_empty(&page);
                break;
            }
            claims.push(claim);
        }
        claims.start();
    }
}

/// The blocks of a page that hold bytes of the range.
fn wanted_blocks(page: PageIndex, range: ByteRange) -> BlockMask {
    let start = range.start().saturating_sub(page.start());
    let end = range.end().saturating_sub(page.start()).min(PAGE_BYTES);
    BlockMask::covering(start, end)
}

impl Reading {
    /// The next piece, or `None` at the end.
    async fn next(&mut self) -> Result<Option<Piece>> {
        loop {
            if self.position >= self.range.end() {
                return Ok(None);
            }
            if let Some(piece) = self.next_past_cache().await? {
                return Ok(Some(piece));
            }
            if self.planned < self.range.end() && self.planned - self.position <= self.window_bytes / 2 {
                self.plan();
            }
            let Some(front) = self.ahead.front() else {
                self.wait_for_memory().await?;
                continue;
            };
            let (page, found) = (Arc::clone(&front.page), front.found);
            let block = ((self.position % PAGE_BYTES) / BLOCK_BYTES) as u32;
            match page.wait_for(block).await {
                Waited::Ready => {
                    if let Some(piece) = self.hand_out(&page, found)? {
                        return Ok(Some(piece));
                    }
                }
                Waited::NoMemory => {
                    drop(page);
                    self.after_starving().await?;
                }
                Waited::Abandoned(failure) => self.after_failure(failure)?,
            }
        }
    }

    /// Plans pages up to the end of the window, or as far as there is memory, and starts their fills.
    fn plan(&mut self) {
        let is_first = !std::mem::replace(&mut self.started, true);
        if is_first && ByteRange::whole(self.request.object.bytes) == Some(self.range) {
            self.run = self.reservoir.ram.reserve_run(&self.entry);
        }
        if self.entry.is_dead() {
            // Evicted under our feet: go on where others find what we fetch, and we what they do.
            self.entry = self.reservoir.ram.entry(&self.request.object);
        }
        let target = self.range.end().min(self.position + self.window_bytes);
        let (reservoir, request) = (Arc::clone(&self.reservoir), self.request.clone());
        let mut claims = RoutedClaims::new(&reservoir.filler, &request, Priority::Demand);
        while self.planned < target {
            let index = PageIndex(
                u32::try_from(self.planned / PAGE_BYTES).expect("objects have fewer than 2^32 pages"),
            );
            let rest = ByteRange::new(self.planned, self.range.end()).expect("planned is before the end");
            let wanted = wanted_blocks(index, rest);
            let page = self.reservoir.ram.index.page(&self.entry, index);
            if !self.may_hold(&page) {
                self.reservoir.ram.drop_if_empty(&page);
                break;
            }
            let found = page.frame.present();
            if !found.contains(wanted) {
                let control = claims.control(index.start());
                if let Some(mut claim) = page.claim(wanted, &control) {
                    let (ram, run) = (&self.reservoir.ram, self.run.as_deref());
                    if !ram.allocate_for(&mut claim, run, self.shortage) {
                        claim.fail_no_memory();
                        self.reservoir.ram.drop_if_empty(&page);
                        break;
                    }
                    claims.push(claim);
                }
                page.join_fills(wanted, &control);
            }
            let page = InWindow::new(page);
            self.ahead.push_back(Planned { page, found });
            self.planned = (index.start() + PAGE_BYTES).min(self.range.end());
        }
        claims.start();
        if is_first && self.reads_ahead {
            self.look_ahead();
        }
    }

    /// Returns whether the window may grow by this page: always by the first one, then while all windows keep
    /// to their share.
    fn may_hold(&self, page: &Page) -> bool {
        let (ram, counters) = (&self.reservoir.ram, &self.reservoir.counters);
        let unpinned_bytes = ram.budget_bytes().saturating_sub(counters.pinned_ram_bytes.get());
        let bytes = counters.window_bytes.get() + page.frame.bytes() as u64;
        self.ahead.is_empty() || page.is_in_window() || bytes <= unpinned_bytes / WINDOWS_SHARE
    }

    /// Has bytes past this request fetched if its reader looks sequential.
    fn look_ahead(&self) {
        let bytes = self.request.object.bytes;
        let ahead = self
            .reservoir
            .read_ahead
            .lock()
            .observe(self.entry.id, self.range, bytes);
        if let Some(range) = ahead {
            self.reservoir.fetch_ahead(&self.entry, range, &self.request);
        }
    }

    /// Checks and leases what is there from the position on; `None` if it was corrupt and has been planned
    /// again.
    fn hand_out(&mut self, page: &Arc<Page>, found: BlockMask) -> Result<Option<Piece>> {
        let page_start = page.key.page.start();
        let start = (self.position - page_start) as usize;
        let end = (self.range.end() - page_start).min(PAGE_BYTES) as usize;
        // Ends at the border of a block, so that no block is checked twice.
        let end = end.min(start - start % BLOCK_BYTES as usize + PIECE_BYTES_MAX);
        let bytes = page.lease(start, end);
        let blocks = BlockMask::covering(start as u64, (start + bytes.len()) as u64);
        let corrupt = page.frame.corrupt(blocks);
        if !corrupt.is_empty() {
            self.reservoir.ram.quarantine(page, corrupt);
            self.corrupt += 1;
            if self.corrupt > CORRUPT_MAX {
                return Err(Error::new(
                    Kind::Checksum,
                    "pages in ram keep failing their checksum; check the memory of this machine",
                )
                .with("bucket", &self.request.object.bucket)
                .with("key", &self.request.object.key));
            }
            self.plan_again();
            return Ok(None);
        }
        if page.mark_read(blocks) && found.contains(blocks) {
            self.reservoir.ram.touch(page);
        }
        let tier = match () {
            () if found.contains(blocks) => Tier::Ram,
            () => page.filled_from(blocks),
        };
        let checksums = match start as u64 % BLOCK_BYTES {
            0 => blocks.blocks().map(|block| page.frame.checksum(block)).collect(),
            _ => BlockChecksums::new(),
        };
        let piece = Piece {
            start: self.position,
            bytes,
            tier,
            checksums,
        };
        self.advance(&piece);
        Ok(Some(piece))
    }

    fn advance(&mut self, piece: &Piece) {
        (self.abandoned, self.starved) = (0, 0);
        self.reservoir
            .counters
            .served(piece.tier, piece.bytes.len() as u64);
        self.position += piece.bytes.len() as u64;
        self.corrupt = 0; // Each page has its tries; only one that stays bad is given up.
        let is_done = |planned: &Planned| planned.page.key.page.start() + PAGE_BYTES <= self.position;
        while self.ahead.front().is_some_and(is_done) {
            self.ahead.pop_front();
        }
    }

    /// Forgets the window, so that the next round looks at every page anew.
    fn plan_again(&mut self) {
        self.let_go();
        self.planned = self.position;
    }

    /// Gives the window up, and pages that never got memory with it.
    fn let_go(&mut self) {
        for planned in self.ahead.drain(..) {
            let page = Arc::clone(&planned.page);
            drop(planned);
            if page.frame.backed().is_empty() {
                self.reservoir.ram.drop_if_empty(&page);
            }
        }
    }

    /// Another read wanted to fill the next block and found no memory: try again, or go past the cache.
    async fn after_starving(&mut self) -> Result<()> {
        self.starved += 1;
        self.plan_again();
        match () {
            () if self.starved <= STARVED_MAX => Ok(()),
            () if self.reservoir.ram.is_room_coming() => self.wait_for_memory().await,
            () => self.go_past_cache().await,
        }
    }

    /// The fill of the next block was given up: try again, or give up too.
    fn after_failure(&mut self, failure: Option<Error>) -> Result<()> {
        if self.reservoir.filler.is_stopped() {
            return Err(Error::new(Kind::Cancelled, "the cache is shutting down"));
        }
        self.abandoned += 1;
        if let Some(error) = failure {
            if self.position - self.failed_at >= PAGE_BYTES {
                self.failures = 0; // The last one is behind us; a long read outlives one now and then.
            }
            (self.failures, self.failed_at) = (self.failures + 1, self.position);
            if !error.is_retryable() || self.failures >= FAILURES_MAX {
                return Err(error);
            }
        } else if self.abandoned > ABANDONED_MAX {
            return Err(Error::new(
                Kind::Internal,
                "fills were given up again and again without a reason",
            ));
        }
        self.plan_again();
        Ok(())
    }

    /// Waits a moment for memory, and longer while pages are on their way to NVMe that make room; then opens
    /// a way past the cache.
    async fn wait_for_memory(&mut self) -> Result<()> {
        let reservoir = Arc::clone(&self.reservoir);
        let wait = if self.waited {
            Duration::ZERO
        } else {
            SPACE_WAIT_MAX
        };
        let deadline = Instant::now() + wait;
        let demotion_deadline = Instant::now() + reservoir.ram.demotion_wait_max();
        while reservoir.ram.budget_bytes() > 0 {
            let mut freed = std::pin::pin!(reservoir.ram.arena.space_freed.notified());
            freed.as_mut().enable();
            if Instant::now() >= demotion_deadline {
                self.shortage = Shortage::Drop;
            }
            self.plan();
            if !self.ahead.is_empty() {
                self.shortage = Shortage::Wait;
                return Ok(());
            }
            // A segment that is being faulted in is memory that will come, and a page that is being written.
            let is_demoting = self.shortage == Shortage::Wait && reservoir.ram.is_room_coming();
            let is_coming = reservoir.ram.arena.is_preparing() || is_demoting;
            let until = if is_coming {
                Instant::now() + SPACE_WAIT_MAX
            } else {
                deadline
            };
            if tokio::time::timeout_at(until, freed).await.is_err() && !is_coming {
                break;
            }
        }
        self.shortage = Shortage::Wait;
        self.go_past_cache().await
    }

    /// Opens a way past the cache for the next bytes.
    async fn go_past_cache(&mut self) -> Result<()> {
        self.waited = true;
        let end = self.range.end().min(self.position + BYPASS_BYTES_MAX);
        let range = ByteRange::new(self.position, end)?;
        self.bypass = Some(Bypass::open(&self.reservoir, self.entry.id, &self.request, range).await?);
        Ok(())
    }

    /// The next piece from the source itself, while a bypass is open.
    async fn next_past_cache(&mut self) -> Result<Option<Piece>> {
        let Some(bypass) = &mut self.bypass else {
            return Ok(None);
        };
        let Some((bytes, tier)) = bypass.next().await? else {
            self.bypass = None;
            return Ok(None);
        };
        let piece = Piece {
            start: self.position,
            bytes,
            tier,
            checksums: BlockChecksums::new(),
        };
        self.advance(&piece);
        self.planned = self.planned.max(self.position);
        Ok(Some(piece))
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.let_go();
    }
}
