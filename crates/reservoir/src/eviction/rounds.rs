//! Keep what is in: for objects that are read in rounds, each page once a round, in another order every time.
//!
//! Under such reads a page that has just been used is the last that will be needed again, so replacing old pages by new ones (LRU, FIFO, and S3-FIFO too)
//! throws out what would have been hit. No policy can beat the share of the data that fits, and not replacing reaches it. So pages of
//! planned objects come in two kinds. *Kept* ones stay; new ones become kept while there is room. What comes when there is
//! none is *passing*: it stays until as much came behind it as the readers fetch ahead, then it goes. All other pages are left to S3-FIFO.
//!
//! A page that comes in part will grow when its other parts are read, in other windows of the round. If it was kept by what it has now, those who were kept before it would
//! have to go for its growth, and some of them would be missed. So half of what pages lack counts as there when one more is to be kept.
//!
//! Who gives way: passing pages beyond what is fetched ahead, then other pages beyond a quarter of all (so that a dataset and other work
//! can live together), then kept ones beyond what is left. Passing pages that came last were not read yet, so when older ones are held by
//! readers it is a kept page that goes: one that was read in this round already, because its next use is as far away as that of the page that comes
//! (and is kept in its place); one that was not would be missed before the round ends. Which were read is known from what readers expect: both lines
//! are in the order in which pages were last expected. How much there is in all is learned when a victim is asked for:
//! the tier is full then. Without a plan all this is S3-FIFO alone.

use std::sync::Arc;

use super::line::{Line, Size};
use super::{Eviction, S3Fifo};
use crate::key::PageKey;
use crate::plan::Plans;

/// Other pages keep one part in this many of the bytes, as far as they have them.
const OTHERS_SHARE: u64 = 4;

/// Passing pages get at most one part in this many, however far readers want to be ahead.
const PASSING_SHARE: u64 = 2;

/// S3-FIFO, and beside it what plans keep.
#[derive(Debug)]
pub(crate) struct Rounds {
    plans: Arc<Plans>,
    /// Of the plans that pages were last sorted by.
    generation: u64,
    others: S3Fifo,
    kept: Line,
    passing: Line,
    /// Learned when the tier was last full.
    kept_bytes_max: u64,
}

impl Rounds {
    /// A policy that knows no page.
    pub(crate) fn new(plans: Arc<Plans>) -> Self {
        Self {
            generation: plans.generation(),
            plans,
            others: S3Fifo::new(),
            kept: Line::default(),
            passing: Line::default(),
            kept_bytes_max: u64::MAX,
        }
    }

    fn admit(&mut self, key: PageKey, size: Size) {
        let bytes = self.kept.bytes() + size.bytes;
        let missing_bytes = (self.kept.whole_bytes() + size.whole_bytes).saturating_sub(bytes);
        let is_kept = self.kept.has(&key)
            || !self.passing.has(&key) && bytes + missing_bytes / 2 <= self.kept_bytes_max;
        let line = if is_kept {
            &mut self.kept
        } else {
            &mut self.passing
        };
        line.push(key, size);
    }

    /// Sorts all pages anew if plans have begun or ended since the last time.
    fn follow_plans(&mut self) {
        let generation = self.plans.generation();
        if generation == self.generation {
            return;
        }
        self.generation = generation;
        self.kept_bytes_max = u64::MAX;
        let plans = Arc::clone(&self.plans);
        let is_over = |key: &PageKey| !plans.cover(&key.object);
        for (key, bytes) in [self.kept.take_where(is_over), self.passing.take_where(is_over)].concat() {
            self.others.insert(key, bytes);
        }
        for (key, bytes) in self.others.take_where(|key| plans.cover(&key.object)) {
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

impl Eviction for Rounds {
    fn insert(&mut self, key: PageKey, bytes: u64) {
        self.insert_part(key, bytes, bytes);
    }

    fn insert_part(&mut self, key: PageKey, bytes: u64, whole_bytes: u64) {
        self.follow_plans();
        if self.plans.cover(&key.object) {
            self.admit(key, Size { bytes, whole_bytes });
        } else {
            self.others.insert(key, bytes);
        }
    }

    fn touch(&mut self, key: &PageKey) {
        self.others.touch(key);
    }

    fn expect(&mut self, key: &PageKey) {
        self.passing.move_to_end(key);
        self.kept.move_to_end(key);
    }

    fn remove(&mut self, key: &PageKey) {
        if self.kept.remove(key).is_none() && self.passing.remove(key).is_none() {
            self.others.remove(key);
        }
    }

    fn victim(&mut self, may_go: &mut dyn FnMut(&PageKey) -> bool) -> Option<PageKey> {
        self.follow_plans();
        let all = self.others.bytes() + self.kept.bytes() + self.passing.bytes();
        let passing_max = self.plans.ahead_bytes().min(all / PASSING_SHARE);
        let others_max = all / OTHERS_SHARE;
        self.kept_bytes_max = all - passing_max - self.others.bytes().min(others_max);
        // Somebody has too much: the first of these it is. Passing pages go at their limit already, else it would be another's page.
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
