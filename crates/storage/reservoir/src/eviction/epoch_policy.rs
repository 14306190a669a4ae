//! Keep-what-is-in: eviction for working sets, whose pages are read once an epoch, each time in another
//! order.
//!
//! Under such reads the page that was just used is the last one that is needed again. Replacing old pages by
//! new ones (LRU, FIFO, S3-FIFO) therefore evicts future hits. No policy can beat the share of the data that
//! fits; not replacing reaches it. Pages of working sets come in two kinds. *Kept* pages stay; new pages
//! become kept while there is room. *Passing* pages came when there was none: they stay until the readers'
//! read-ahead came in behind them. All other pages are left to S3-FIFO.
//!
//! A partly filled page grows later in the epoch. Admission therefore charges it its current bytes plus half
//! of its missing bytes; otherwise growth would evict pages that are still needed.
//!
//! Order of victims: passing pages beyond the read-ahead, then other pages beyond a quarter of the tier (a
//! dataset and other work share it), then kept pages beyond the rest. The newest passing pages were not read
//! yet. So when readers hold the older ones, a kept page goes: one that was read in this epoch, because its
//! next use is as far away as that of the page that replaces it. Both queues are in the order in which pages
//! were last announced by [`Eviction::will_need`]; that tells which were read in this epoch. The capacity is
//! learned when a victim is asked for: the tier is full then. Without a working set this is S3-FIFO alone.

use std::sync::Arc;

use super::fifo_queue::{FifoQueue, Size};
use super::{Eviction, S3Fifo};
use crate::key::PageKey;
use crate::working_set::WorkingSets;

/// Other pages keep one part in this many of the bytes, as far as they have them.
const OTHERS_SHARE: u64 = 4;

/// Passing pages get at most one part in this many, however far readers want to be ahead.
const PASSING_SHARE: u64 = 2;

/// S3-FIFO, and beside it what working sets keep.
#[derive(Debug)]
pub(crate) struct EpochPolicy {
    working_sets: Arc<WorkingSets>,
    /// Of the working sets that pages were last sorted by.
    generation: u64,
    others: S3Fifo,
    kept: FifoQueue,
    passing: FifoQueue,
    /// Learned when the tier was last full.
    kept_bytes_max: u64,
}

impl EpochPolicy {
    /// A policy that knows no page.
    pub(crate) fn new(working_sets: Arc<WorkingSets>) -> Self {
        Self {
            generation: working_sets.generation(),
            working_sets,
            others: S3Fifo::new(),
            kept: FifoQueue::default(),
            passing: FifoQueue::default(),
            kept_bytes_max: u64::MAX,
        }
    }

    fn admit(&mut self, key: PageKey, size: Size) {
        let bytes = self.kept.bytes() + size.bytes;
        let missing_bytes = (self.kept.whole_bytes() + size.whole_bytes).saturating_sub(bytes);
        let is_kept = self.kept.has(&key)
            || !self.passing.has(&key) && bytes + missing_bytes / 2 <= self.kept_bytes_max;
        let queue = if is_kept {
            &mut self.kept
        } else {
            &mut self.passing
        };
        queue.push(key, size);
    }

    /// Sorts all pages anew if working sets have begun or ended since the last time.
    fn follow_working_sets(&mut self) {
        let generation = self.working_sets.generation();
        if generation == self.generation {
            return;
        }
        self.generation = generation;
        self.kept_bytes_max = u64::MAX;
        let working_sets = Arc::clone(&self.working_sets);
        let is_over = |key: &PageKey| !working_sets.cover(&key.object);
        for (key, bytes) in [self.kept.take_where(is_over), self.passing.take_where(is_over)].concat() {
            self.others.insert(key, bytes);
        }
        for (key, bytes) in self.others.take_where(|key| working_sets.cover(&key.object)) {
            self.admit(
                key,
                Size {
                    bytes,
                    whole_bytes: bytes,
                },
            );
        }
    }
}

impl Eviction for EpochPolicy {
    fn insert(&mut self, key: PageKey, bytes: u64) {
        self.insert_part(key, bytes, bytes);
    }

    fn insert_part(&mut self, key: PageKey, bytes: u64, whole_bytes: u64) {
        self.follow_working_sets();
        if self.working_sets.cover(&key.object) {
            self.admit(key, Size { bytes, whole_bytes });
        } else {
            self.others.insert(key, bytes);
        }
    }

    fn touch(&mut self, key: &PageKey) {
        self.others.touch(key);
    }

    fn will_need(&mut self, key: &PageKey) {
        self.passing.move_to_end(key);
        self.kept.move_to_end(key);
    }

    fn remove(&mut self, key: &PageKey) {
        if self.kept.remove(key).is_none() && self.passing.remove(key).is_none() {
            self.others.remove(key);
        }
    }

    fn victim(&mut self, may_go: &mut dyn FnMut(&PageKey) -> bool) -> Option<PageKey> {
        self.follow_working_sets();
        let all = self.others.bytes() + self.kept.bytes() + self.passing.bytes();
        let passing_max = self.working_sets.ahead_bytes().min(all / PASSING_SHARE);
        let others_max = all / OTHERS_SHARE;
        self.kept_bytes_max = all - passing_max - self.others.bytes().min(others_max);
        // Somebody has too much: the first of these it is. Passing pages go at their limit already, else it
        // would be another's page.
        if let Some(key) = self.passing.pop_first(passing_max, may_go) {
            return Some(key);
        }
        if self.others.bytes() > others_max
            && let Some(key) = self.others.victim(may_go)
        {
            return Some(key);
        }
        if self.kept.bytes() > self.kept_bytes_max
            && let Some(key) = self.kept.pop_last(passing_max, may_go)
        {
            return Some(key);
        }
        // All that should go is held by somebody.
        self.others
            .victim(may_go)
            .or_else(|| self.kept.pop_last(passing_max, may_go))
            .or_else(|| self.kept.pop_first(0, may_go))
            .or_else(|| self.passing.pop_first(0, may_go))
    }
}

#[cfg(test)]
mod tests;
