//! S3-FIFO: three queues, no lists to relink on a hit.
//!
//! New pages enter a small queue (a tenth of the bytes). Those read twice or more while they pass through it
//! move to the main queue, the others leave and are remembered by key only (the ghost queue); a page that
//! comes back while it is remembered goes straight to the main queue. A page in the main queue gets one more
//! round for each read, three at most. A scan therefore passes through the small queue and leaves the hot
//! pages alone.
//!
//! Limits: the ghost queue remembers as many keys as there are pages; removed pages leave a mark in their
//! queue that is swept once marks outnumber pages. Paper: "FIFO queues are all you need for cache eviction",
//! SOSP 2023.

use std::collections::{HashMap, VecDeque};

use super::Eviction;
use crate::key::PageKey;

/// Reads that count for one page, at most.
const FREQUENCY_MAX: u8 = 3;

/// Reads in the small queue that bring a page into the main queue.
const FREQUENCY_PROMOTED: u8 = 2;

/// The small queue gets one part in this many of the bytes.
const SMALL_SHARE: u64 = 10;

/// Queues shorter than this are not swept of removed pages.
const SWEEP_LEN_MIN: usize = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum QueueId {
    Small,
    Main,
}

#[derive(Debug)]
struct QueuedPage {
    bytes: u64,
    frequency: u8,
    queue_id: QueueId,
    /// The queue slot that stands for this page; other slots with its key are leftovers.
    ticket: u64,
}

#[derive(Debug, Default)]
struct Queue {
    slots: VecDeque<(u64, PageKey)>,
    pages: usize,
    bytes: u64,
}

/// The S3-FIFO policy.
#[derive(Debug, Default)]
pub(crate) struct S3Fifo {
    entries: HashMap<PageKey, QueuedPage>,
    small: Queue,
    main: Queue,
    ghosts: HashMap<PageKey, u64>,
    ghost_order: VecDeque<(u64, PageKey)>,
    next_ticket: u64,
}

impl S3Fifo {
    /// A policy that knows no page.
    #[must_use]
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Bytes of all pages.
    pub(super) fn bytes(&self) -> u64 {
        self.small.bytes + self.main.bytes
    }

    /// Forgets all pages that are like this and gives them to the caller, the oldest of each queue first.
    pub(super) fn take_where(&mut self, is_like_this: impl Fn(&PageKey) -> bool) -> Vec<(PageKey, u64)> {
        let slots = self.small.slots.iter().chain(&self.main.slots);
        let keys: Vec<PageKey> = slots
            .filter(|(ticket, key)| {
                is_like_this(key) && self.entries.get(key).is_some_and(|entry| entry.ticket == *ticket)
            })
            .map(|(_, key)| *key)
            .collect();
        let taken = keys.into_iter().filter_map(|key| {
            let entry = self.take(&key)?;
            self.sweep(entry.queue_id);
            Some((key, entry.bytes))
        });
        taken.collect()
    }

    fn queue(&mut self, queue_id: QueueId) -> &mut Queue {
        match queue_id {
            QueueId::Small => &mut self.small,
            QueueId::Main => &mut self.main,
        }
    }

    fn ticket(&mut self) -> u64 {
        self.next_ticket += 1;
        self.next_ticket
    }

    /// Puts a page at the end of a queue.
    fn enqueue(&mut self, key: PageKey, bytes: u64, frequency: u8, queue_id: QueueId) {
        let ticket = self.ticket();
        let queue = self.queue(queue_id);
        queue.slots.push_back((ticket, key));
        queue.pages += 1;
        queue.bytes += bytes;
        self.entries.insert(
            key,
            QueuedPage {
                bytes,
                frequency,
                queue_id,
                ticket,
            },
        );
    }

    /// Takes the oldest page out of a queue, passing over leftovers.
    fn dequeue(&mut self, queue_id: QueueId) -> Option<(PageKey, QueuedPage)> {
        loop {
            let (ticket, key) = self.queue(queue_id).slots.pop_front()?;
            if self.entries.get(&key).is_some_and(|entry| entry.ticket == ticket) {
                return self.take(&key).map(|entry| (key, entry));
            }
        }
    }

    /// Forgets a page; its slot, if it still has one, becomes a leftover.
    fn take(&mut self, key: &PageKey) -> Option<QueuedPage> {
        let entry = self.entries.remove(key)?;
        let queue = self.queue(entry.queue_id);
        queue.pages -= 1;
        queue.bytes -= entry.bytes;
        Some(entry)
    }

    fn sweep(&mut self, queue_id: QueueId) {
        let queue = match queue_id {
            QueueId::Small => &mut self.small,
            QueueId::Main => &mut self.main,
        };
        if queue.slots.len() > SWEEP_LEN_MIN.max(2 * queue.pages) {
            let entries = &self.entries;
            queue
                .slots
                .retain(|(ticket, key)| entries.get(key).is_some_and(|entry| entry.ticket == *ticket));
        }
    }

    fn remember(&mut self, key: PageKey) {
        let ticket = self.ticket();
        self.ghosts.insert(key, ticket);
        self.ghost_order.push_back((ticket, key));
        while self.ghost_order.len() > SWEEP_LEN_MIN.max(self.entries.len()) {
            let Some((ticket, key)) = self.ghost_order.pop_front() else {
                return;
            };
            if self.ghosts.get(&key) == Some(&ticket) {
                self.ghosts.remove(&key);
            }
        }
    }

    /// Returns which queue gives the next victim, or `None` when every page of both was refused.
    fn next_queue(&self, small_refused: usize, main_refused: usize) -> Option<QueueId> {
        let small_open = small_refused < self.small.pages;
        // A page with reads to its name is passed over up to three times before it is asked about.
        let main_open = main_refused < self.main.pages * (usize::from(FREQUENCY_MAX) + 1);
        let small_is_over = self.small.bytes * SMALL_SHARE >= self.small.bytes + self.main.bytes;
        match (small_open, main_open) {
            (false, false) => None,
            (true, false) => Some(QueueId::Small),
            (false, true) => Some(QueueId::Main),
            (true, true) if small_is_over => Some(QueueId::Small),
            (true, true) => Some(QueueId::Main),
        }
    }
}

impl Eviction for S3Fifo {
    fn insert(&mut self, key: PageKey, bytes: u64) {
        if let Some(entry) = self.entries.get_mut(&key) {
            let (queue_id, before) = (entry.queue_id, std::mem::replace(&mut entry.bytes, bytes));
            let queue = self.queue(queue_id);
            queue.bytes = queue.bytes - before + bytes;
            return;
        }
        let queue_id = if self.ghosts.remove(&key).is_some() {
            QueueId::Main
        } else {
            QueueId::Small
        };
        self.enqueue(key, bytes, 0, queue_id);
    }

    fn touch(&mut self, key: &PageKey) {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.frequency = (entry.frequency + 1).min(FREQUENCY_MAX);
        }
    }

    fn remove(&mut self, key: &PageKey) {
        if let Some(entry) = self.take(key) {
            self.sweep(entry.queue_id);
        }
    }

    fn victim(&mut self, may_go: &mut dyn FnMut(&PageKey) -> bool) -> Option<PageKey> {
        let (mut small_refused, mut main_refused) = (0, 0);
        loop {
            let queue_id = self.next_queue(small_refused, main_refused)?;
            let (key, entry) = self.dequeue(queue_id)?;
            match queue_id {
                QueueId::Small if entry.frequency >= FREQUENCY_PROMOTED => {
                    self.enqueue(key, entry.bytes, 0, QueueId::Main);
                }
                QueueId::Main if entry.frequency > 0 => {
                    self.enqueue(key, entry.bytes, entry.frequency - 1, QueueId::Main);
                }
                _ if may_go(&key) => {
                    if queue_id == QueueId::Small {
                        self.remember(key);
                    }
                    return Some(key);
                }
                _ => {
                    self.enqueue(key, entry.bytes, entry.frequency, queue_id);
                    match queue_id {
                        QueueId::Small => small_refused += 1,
                        QueueId::Main => main_refused += 1,
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
