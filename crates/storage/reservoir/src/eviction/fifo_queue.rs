//! A queue of pages: first in, first out; any page may leave it early.

use std::collections::{HashMap, VecDeque};

use crate::key::PageKey;

/// Queues shorter than this are not swept of pages that have left.
const SWEEP_LEN_MIN: usize = 64;

/// Pages in the order in which they came.
#[derive(Debug, Default)]
pub(super) struct FifoQueue {
    /// Tickets and pages; a ticket that is not the page's own any more is a leftover.
    slots: VecDeque<(u64, PageKey)>,
    pages: HashMap<PageKey, QueuedPage>,
    bytes: u64,
    whole_bytes: u64,
    next_ticket: u64,
}

#[derive(Debug, Clone, Copy)]
struct QueuedPage {
    ticket: u64,
    size: Size,
}

/// The filled part of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) bytes: u64,
    /// Its size once all of it is there.
    pub(super) whole_bytes: u64,
}

impl FifoQueue {
    /// Bytes of all pages in it.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes of all pages in it if all of each was there.
    pub(super) fn whole_bytes(&self) -> u64 {
        self.whole_bytes
    }

    /// Puts a page at the end; one that is in the queue stays where it is and has this size now.
    pub(super) fn push(&mut self, key: PageKey, size: Size) {
        self.bytes += size.bytes;
        self.whole_bytes += size.whole_bytes;
        if let Some(queued) = self.pages.get_mut(&key) {
            let before = std::mem::replace(&mut queued.size, size);
            self.bytes -= before.bytes;
            self.whole_bytes -= before.whole_bytes;
            return;
        }
        self.next_ticket += 1;
        let ticket = self.next_ticket;
        self.slots.push_back((ticket, key));
        self.pages.insert(key, QueuedPage { ticket, size });
    }

    /// Returns whether a page is in it.
    pub(super) fn has(&self, key: &PageKey) -> bool {
        self.pages.contains_key(key)
    }

    /// Takes a page out; its size, `None` if it is not in the queue.
    pub(super) fn remove(&mut self, key: &PageKey) -> Option<Size> {
        let queued = self.pages.remove(key)?;
        self.bytes -= queued.size.bytes;
        self.whole_bytes -= queued.size.whole_bytes;
        if self.slots.len() > SWEEP_LEN_MIN.max(2 * self.pages.len()) {
            let pages = &self.pages;
            let is_own =
                |(ticket, key): &(u64, PageKey)| pages.get(key).is_some_and(|it| it.ticket == *ticket);
            self.slots.retain(is_own);
        }
        Some(queued.size)
    }

    /// Takes the first page out that may go, as long as so many bytes are left from it on to the end. Those
    /// that may not go keep their place.
    pub(super) fn pop_first(
        &mut self,
        left_bytes_min: u64,
        may_go: &mut dyn FnMut(&PageKey) -> bool,
    ) -> Option<PageKey> {
        while self.slots.front().is_some_and(|slot| !self.is_own(slot)) {
            self.slots.pop_front();
        }
        let mut left_bytes = self.bytes;
        let mut found = None;
        for slot in self.slots.iter().filter(|slot| self.is_own(slot)) {
            if left_bytes < left_bytes_min {
                break;
            }
            if may_go(&slot.1) {
                found = Some(slot.1);
                break;
            }
            left_bytes -= self.pages.get(&slot.1).map_or(0, |it| it.size.bytes);
        }
        self.remove(&found?);
        found
    }

    /// Takes the last page out that may go and has so many bytes behind it.
    pub(super) fn pop_last(
        &mut self,
        behind_bytes_min: u64,
        may_go: &mut dyn FnMut(&PageKey) -> bool,
    ) -> Option<PageKey> {
        while self.slots.back().is_some_and(|slot| !self.is_own(slot)) {
            self.slots.pop_back();
        }
        let mut behind_bytes = 0;
        let mut found = None;
        for slot in self.slots.iter().rev().filter(|slot| self.is_own(slot)) {
            if behind_bytes >= behind_bytes_min && may_go(&slot.1) {
                found = Some(slot.1);
                break;
            }
            behind_bytes += self.pages.get(&slot.1).map_or(0, |it| it.size.bytes);
        }
        self.remove(&found?);
        found
    }

    /// Puts a page that is in the queue at its end.
    pub(super) fn move_to_end(&mut self, key: &PageKey) {
        if let Some(size) = self.remove(key) {
            self.push(*key, size);
        }
    }

    /// Returns whether a slot is the one of its page.
    fn is_own(&self, (ticket, key): &(u64, PageKey)) -> bool {
        self.pages.get(key).is_some_and(|it| it.ticket == *ticket)
    }

    /// Takes out all pages that are like this, the first ones first.
    pub(super) fn take_where(
        &mut self,
        mut is_like_this: impl FnMut(&PageKey) -> bool,
    ) -> Vec<(PageKey, u64)> {
        let found: Vec<PageKey> = self
            .slots
            .iter()
            .filter(|(ticket, key)| {
                self.pages.get(key).is_some_and(|it| it.ticket == *ticket) && is_like_this(key)
            })
            .map(|(_, key)| *key)
            .collect();
        let taken = found
            .into_iter()
            .filter_map(|key| Some((key, self.remove(&key)?.bytes)));
        taken.collect()
    }
}
