//! A write on its way: its bytes are kept aside as pages, and become readable when the lake has the object.
//!
//! Whoever writes pushes the same bytes here and to the lake. Nothing about this can fail the write: when the
//! object is too large or there is no memory, the fill gives up, frees what it has and ignores the rest.
//!
//! Limits: the size of one object (`write_fill_bytes_max`), and half of the RAM budget for all fills
//! together, because what they hold cannot be evicted before it is committed.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use forebay_core::{PAGE_BYTES, PageIndex};
use tokio::time::{Instant, timeout};

use crate::arena::Extent;
use crate::page::Page;
use crate::ram::Shortage;
use crate::reservoir::Reservoir;
use crate::segment::Draft;
use crate::{ObjectVersion, PageKey, TrustDomain};

/// All fills together hold at most one part in this many of the RAM budget.
const FILL_SHARE: u64 = 2;

/// The longest wait of one fill for memory: a write is not slowed to the rate of a disk that it does not need.
const WAIT_MAX: Duration = Duration::from_millis(100);

/// Pages of an object that is being written. Dropping it forgets them.
#[derive(Debug)]
pub struct Fill {
    reservoir: Arc<Reservoir>,
    domain: TrustDomain,
    drafts: Vec<Draft>,
    /// Memory for the pages to come, side by side, if the size was known and there was such a run.
    run: VecDeque<Extent>,
    bytes_hint: Option<u64>,
    pushed_bytes: u64,
    /// Bytes that count against the share of all fills.
    held_bytes: u64,
    /// Time that it may still wait for memory.
    wait_left: Duration,
    given_up: bool,
}

impl Reservoir {
    /// Starts keeping the bytes of a write to the default domain; `bytes_hint` is its size if that is known.
    pub fn begin_fill(self: &Arc<Self>, bytes_hint: Option<u64>) -> Fill {
        self.begin_fill_in(TrustDomain::DEFAULT, bytes_hint)
    }

    /// Starts keeping the bytes of a write to a bucket of this domain.
    pub fn begin_fill_in(self: &Arc<Self>, domain: TrustDomain, bytes_hint: Option<u64>) -> Fill {
        let mut fill = Fill {
            reservoir: Arc::clone(self),
            domain,
            drafts: Vec::new(),
            run: VecDeque::new(),
            bytes_hint,
            pushed_bytes: 0,
            held_bytes: 0,
            wait_left: WAIT_MAX,
            given_up: false,
        };
        fill.reserve();
        fill
    }
}

impl Fill {
    /// Takes memory for the whole object at once if its size is known.
    fn reserve(&mut self) {
        let Some(bytes) = self.bytes_hint else { return };
        if bytes > self.reservoir.write_fill_bytes_max {
            self.give_up();
        } else if bytes > PAGE_BYTES && self.hold(bytes) {
            match self.reservoir.ram.allocate_run(self.domain, bytes) {
                Some(extents) => self.run = extents.into(),
                None => self.unhold(bytes),
            }
        }
    }

    /// Keeps the next bytes of the object. Never fails: gives up silently when there is no room.
    /// Waits a moment, once, where pages are on their way to NVMe that make room. Cancel-safe only in so far
    /// as the fill can be dropped.
    pub async fn push(&mut self, bytes: &Bytes) {
        self.pushed_bytes += bytes.len() as u64;
        if self.pushed_bytes > self.reservoir.write_fill_bytes_max {
            self.give_up();
        }
        let mut rest: &[u8] = bytes;
        while !rest.is_empty() && !self.given_up {
            let taken = self.drafts.last_mut().map_or(0, |draft| draft.push(rest));
            rest = &rest[taken..];
            if taken == 0 && !self.add_page_or_wait().await {
                self.give_up();
            }
        }
    }

    /// The lake has the object under this version: its pages become readable.
    pub fn commit(mut self, object: &ObjectVersion) {
        // Pages of one domain never lie in memory of another: a fill that began in the wrong one is lost.
        if self.given_up || self.pushed_bytes != object.bytes || self.domain != object.domain {
            return;
        }
        let ram = &self.reservoir.ram;
        let entry = ram.entry(object);
        for (number, draft) in (0..).zip(std::mem::take(&mut self.drafts)) {
            let key = PageKey {
                object: entry.id,
                page: PageIndex(number),
            };
            let counters = Arc::clone(&self.reservoir.counters);
            let page = Page::with_frame(key, Arc::clone(&entry.object), draft.into_frame(), counters);
            ram.insert(&entry, &Arc::new(page));
        }
    }

    /// Starts the next page; waits while pages are on their way to NVMe that make room for it.
    async fn add_page_or_wait(&mut self) -> bool {
        let reservoir = Arc::clone(&self.reservoir);
        loop {
            let mut freed = std::pin::pin!(reservoir.ram.arena.space_freed.notified());
            freed.as_mut().enable();
            if self.add_page() {
                return true;
            }
            let begun = Instant::now();
            if !reservoir.ram.is_room_coming() || timeout(self.wait_left, freed).await.is_err() {
                return false;
            }
            self.wait_left = self.wait_left.saturating_sub(begun.elapsed());
        }
    }

    /// Starts the next page; `false` if there is no memory for it.
    fn add_page(&mut self) -> bool {
        if let Some(extent) = self.run.pop_front() {
            self.drafts.push(Draft::new(vec![extent]));
            return true;
        }
        let start = self.drafts.len() as u64 * PAGE_BYTES;
        let bytes = self
            .bytes_hint
            .map_or(PAGE_BYTES, |hint| PAGE_BYTES.min(hint.saturating_sub(start)));
        if bytes == 0 || !self.hold(bytes) {
            return false;
        }
        let Some(extents) = self.reservoir.ram.allocate(self.domain, bytes, Shortage::Wait) else {
            self.unhold(bytes);
            return false;
        };
        self.drafts.push(Draft::new(extents));
        true
    }

    fn hold(&mut self, bytes: u64) -> bool {
        let max = self.reservoir.ram.budget_bytes() / FILL_SHARE;
        let is_within = self.reservoir.counters.write_fill_bytes.add_within(bytes, max);
        self.held_bytes += if is_within { bytes } else { 0 };
        is_within
    }

    fn unhold(&mut self, bytes: u64) {
        self.reservoir.counters.write_fill_bytes.sub(bytes);
        self.held_bytes -= bytes;
    }

    fn give_up(&mut self) {
        self.given_up = true;
        self.drafts.clear();
        self.run.clear();
        self.unhold(self.held_bytes);
    }
}

impl Drop for Fill {
    fn drop(&mut self) {
        self.unhold(self.held_bytes);
    }
}
