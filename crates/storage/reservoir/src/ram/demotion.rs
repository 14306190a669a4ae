//! The way down to NVMe: pages that wait to be written, and whether the disk is worth waiting for.
//!
//! Whoever needs memory and finds only pages that are not on NVMe hands them over here and waits until the
//! demoter (`demote.rs`) has written and evicted them. So reads that are faster than the disk are slowed to
//! its rate, and no page is lost.
//!
//! Waiting ends where it gains nothing or would last: the tier below is full (what comes in pushes something
//! else out), the disk has finished no write for a while, it is slower than a disk should be, or one read has
//! waited long enough ([`DemotionLimits`]). Then readers evict for themselves, and what they evict and is not
//! on NVMe is lost to it and counted. A disk that refuses writes at once delays nobody:
//! the demoter evicts what it could not write, and counts it too.
//!
//! Limits: pages that wait hold no more memory than the reserve.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use forebay_core::PAGE_BYTES;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::nvme::NvmeStore;
use crate::page::Page;

/// The reserve is one part in this many of the budget, within limits.
const RESERVE_SHARE: u64 = 32;
const RESERVE_BYTES_MAX: u64 = 64 << 20;

/// A rate is measured over at least so much time with writes under way.
const SAMPLE_MIN: Duration = Duration::from_millis(500);

/// The part of a new sample in the measured rate.
const SAMPLE_WEIGHT: f64 = 0.5;

/// The bounds of waiting for the disk.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DemotionLimits {
    /// The longest wait of one read for memory that comes free when pages are written.
    pub(crate) wait_max: Duration,
    /// A disk that has writes and finishes none for so long is not waited for.
    pub(crate) silence_max: Duration,
    /// A disk below both rates is not waited for: bytes a second, and pages a second, because those of small
    /// objects take few bytes.
    pub(crate) bytes_per_s_min: f64,
    pub(crate) pages_per_s_min: f64,
}

impl Default for DemotionLimits {
    fn default() -> Self {
        Self {
            wait_max: Duration::from_secs(5),
            silence_max: Duration::from_secs(2),
            bytes_per_s_min: (16 << 20) as f64,
            pages_per_s_min: 200.0,
        }
    }
}

/// Policy for a moment in which all that could go is not on NVMe yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shortage {
    /// Have it written, and get no memory now; while the disk is worth waiting for.
    Wait,
    /// Evict it all the same; NVMe loses it.
    Drop,
}

/// The result of making room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Room {
    /// So many bytes came free.
    Freed(u64),
    /// Pages are on their way to NVMe; their memory comes free then.
    Coming,
    /// Nothing can go.
    Nothing,
}

/// The pages on their way to NVMe.
#[derive(Debug)]
pub(super) struct Demotion {
    pub(super) nvme: Arc<NvmeStore>,
    pub(super) reserve_bytes: u64,
    pub(super) limits: DemotionLimits,
    pub(super) low: Notify,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    waiting: VecDeque<Arc<Page>>,
    waiting_bytes: u64,
    disk: DiskRate,
}

impl Demotion {
    pub(super) fn new(nvme: Arc<NvmeStore>, budget_bytes: u64, limits: DemotionLimits) -> Self {
        let reserve_bytes = (budget_bytes / RESERVE_SHARE).clamp(2 * PAGE_BYTES, RESERVE_BYTES_MAX);
        let state = State {
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            disk: DiskRate::new(Instant::now()),
        };
        Self {
            nvme,
            reserve_bytes: reserve_bytes.min(budget_bytes / 2),
            limits,
            low: Notify::new(),
            state: Mutex::new(state),
        }
    }

    /// Returns whether readers should wait for the disk rather than drop what it does not have.
    pub(super) fn is_worth_waiting(&self) -> bool {
        self.state.lock().disk.keeps_pace(Instant::now(), &self.limits) && self.nvme.has_room()
    }

    /// Returns whether pages are being written or wait for it.
    pub(super) fn is_under_way(&self) -> bool {
        let state = self.state.lock();
        state.disk.under_way > 0 || !state.waiting.is_empty()
    }

    /// Returns whether no more pages may wait.
    pub(super) fn is_full(&self) -> bool {
        self.state.lock().waiting_bytes >= self.reserve_bytes
    }

    /// Has a page written and then evicted; the policy does not know it any more.
    pub(super) fn hand_over(&self, page: Arc<Page>) {
        let mut state = self.state.lock();
        state.waiting_bytes += page.frame.backed_bytes();
        state.waiting.push_back(page);
        drop(state);
        self.low.notify_one();
    }

    /// The page that has waited longest.
    pub(super) fn take_waiting(&self) -> Option<Arc<Page>> {
        let mut state = self.state.lock();
        let page = state.waiting.pop_front()?;
        // Its memory may have grown while it waited.
        state.waiting_bytes = state.waiting_bytes.saturating_sub(page.frame.backed_bytes());
        if state.waiting.is_empty() {
            state.waiting_bytes = 0;
        }
        Some(page)
    }

    /// Tells that a demotion begins.
    pub(super) fn begin_write(&self) {
        self.state.lock().disk.begin(Instant::now());
    }

    /// Tells that a demotion has ended for which the disk had to take so many bytes.
    pub(super) fn end_write(&self, bytes: u64) {
        self.state.lock().disk.end(Instant::now(), bytes);
    }
}

/// The rate at which the disk takes pages, measured while it has some to take.
#[derive(Debug)]
struct DiskRate {
    under_way: usize,
    /// Start of the sample, and end of the last write or start of the first.
    since: Instant,
    progress: Instant,
    bytes: u64,
    pages: u64,
    /// Of the samples so far; a disk is taken for fast until it was measured.
    bytes_per_s: f64,
    pages_per_s: f64,
}

impl DiskRate {
    fn new(now: Instant) -> Self {
        Self {
            under_way: 0,
            since: now,
            progress: now,
            bytes: 0,
            pages: 0,
            bytes_per_s: f64::MAX,
            pages_per_s: f64::MAX,
        }
    }

    fn begin(&mut self, now: Instant) {
        if self.under_way == 0 {
            (self.since, self.progress, self.bytes, self.pages) = (now, now, 0, 0);
        }
        self.under_way += 1;
    }

    fn end(&mut self, now: Instant, bytes: u64) {
        self.under_way -= 1;
        self.progress = now;
        self.bytes += bytes;
        self.pages += u64::from(bytes > 0);
        let time = now - self.since;
        if time >= SAMPLE_MIN && self.bytes > 0 {
            self.bytes_per_s = mean(self.bytes_per_s, self.bytes as f64 / time.as_secs_f64());
            self.pages_per_s = mean(self.pages_per_s, self.pages as f64 / time.as_secs_f64());
            (self.since, self.bytes, self.pages) = (now, 0, 0);
        }
    }

    fn keeps_pace(&self, now: Instant, limits: &DemotionLimits) -> bool {
        let is_silent = self.under_way > 0 && now - self.progress > limits.silence_max;
        let is_slow = self.bytes_per_s < limits.bytes_per_s_min && self.pages_per_s < limits.pages_per_s_min;
        !is_silent && !is_slow
    }
}

/// The rate so far with a new sample in it.
fn mean(so_far: f64, sample: f64) -> f64 {
    if so_far == f64::MAX {
        return sample;
    }
    so_far * (1.0 - SAMPLE_WEIGHT) + sample * SAMPLE_WEIGHT
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes one page after the other, each in this time; returns whether the disk is worth waiting for.
    fn after(rate: &mut DiskRate, now: &mut Instant, writes: u32, each: Duration, bytes: u64) -> bool {
        rate.begin(*now);
        for _ in 0..writes {
            *now += each;
            rate.begin(*now);
            rate.end(*now, bytes);
        }
        rate.end(*now, bytes);
        rate.keeps_pace(*now, &DemotionLimits::default())
    }

    #[test]
    fn a_slow_disk_is_not_waited_for_until_it_is_fast_again() {
        let mut now = Instant::now();
        let mut rate = DiskRate::new(now);
        let (fast, slow) = (Duration::from_millis(4), Duration::from_millis(400));
        assert!(after(&mut rate, &mut now, 1000, fast, PAGE_BYTES));
        assert!(!after(&mut rate, &mut now, 20, slow, PAGE_BYTES));
        assert!(after(&mut rate, &mut now, 1000, fast, PAGE_BYTES));
    }

    #[test]
    fn a_disk_that_takes_many_small_pages_is_fast() {
        let mut now = Instant::now();
        let mut rate = DiskRate::new(now);
        assert!(after(&mut rate, &mut now, 5000, Duration::from_millis(1), 4096));
    }

    #[test]
    fn a_disk_that_finishes_nothing_is_not_waited_for() {
        let mut now = Instant::now();
        let mut rate = DiskRate::new(now);
        let limits = DemotionLimits::default();
        rate.begin(now);
        now += limits.silence_max;
        assert!(rate.keeps_pace(now, &limits));
        assert!(!rate.keeps_pace(now + Duration::from_millis(1), &limits));
        rate.end(now, PAGE_BYTES);
        assert!(
            !rate.keeps_pace(now, &limits),
            "it took {:?} for a page",
            limits.silence_max
        );
    }
}
