//! Pages of the windows ahead that a loader holds, so that most samples cost no question to the node.
//!
//! Whoever reads ahead takes a lease on what was read, page by page, and gives it back when the consumer has passed. A fetcher cuts samples out of these
//! pages; one that lies across two of them, or in none, is asked for as ever.
//!
//! Bound: a part of the node's RAM; ranks of a host hold the same pages. A consumer that stands still holds nothing after [`IDLE`]: memory that is
//! leased for too long is lost to the node's cache.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use forebay_client::{Item, ItemRange, View};
use forebay_core::{ByteRange, PAGE_BYTES};

use crate::dataset::Inner;

/// How long pages are held for a consumer that does not move.
pub(crate) const IDLE: Duration = Duration::from_secs(30);
/// What is held at most: one part in this many of the node's RAM.
const RAM_SHARE: u64 = 4;

/// Where somebody stands in a dataset: epoch and position.
pub(crate) type Place = (u64, u64);

/// A range of a shard that is read ahead, and until when it is needed.
pub(crate) struct Range {
    pub(crate) source: usize,
    pub(crate) shard: u32,
    pub(crate) item: Item,
    pub(crate) until: Place,
}

/// See the top of this file.
pub(crate) struct Held {
    pages: RwLock<Pages>,
    bytes_max: u64,
    /// The node has no memory left for this.
    has_ended: AtomicBool,
}

/// What is held now.
#[derive(Default)]
pub(crate) struct Pages {
    by_page: HashMap<(usize, u32, u64), Vec<Page>>,
    bytes: u64,
}

/// Bytes of a shard within one page of it that lie together in memory.
struct Page {
    start: u64,
    end: u64,
    view: View,
    until: Place,
}

impl Held {
    /// For a node with so much RAM; `None`, because it does not say or is elsewhere, holds nothing.
    pub(crate) fn new(node_ram_bytes: Option<u64>) -> Self {
        Self {
            pages: RwLock::default(),
            bytes_max: node_ram_bytes.unwrap_or(0) / RAM_SHARE,
            has_ended: AtomicBool::new(false),
        }
    }

    /// Takes leases on a range that the node has in RAM.
    pub(crate) fn hold(&self, dataset: &Inner, range: &Range) {
        let ItemRange::Range { offset, length } = range.item.range else {
            return;
        };
        let fits = self.read().bytes + length <= self.bytes_max;
        if !fits || self.has_ended.load(Ordering::Relaxed) {
            return;
        }
        let bounds: Vec<_> = by_page(offset, offset + length).collect();
        let item = |(start, end): &(u64, u64)| Item {
            range: ItemRange::Range {
                offset: *start,
                length: end - start,
            },
            ..range.item.clone()
        };
        let parts = match dataset.client.get_batch_parts(bounds.iter().map(item).collect()) {
            Ok(parts) => parts,
            Err(error) => return tracing::debug!(%error, "pages ahead are not held"),
        };
        let mut pages = self.write();
        // Errors are for whoever needs the bytes.
        for view in parts.into_iter().flatten().flatten() {
            if view.sources().copied > 0 {
                self.has_ended.store(true, Ordering::Relaxed);
            } else {
                pages.add((range.source, range.shard), view, range.until);
            }
        }
    }

    /// What is held now; keep the answer briefly.
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, Pages> {
        self.pages.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Pages> {
        self.pages.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives back what of a dataset is not needed from here on.
    pub(crate) fn release(&self, source: usize, here: Place) {
        let passed = self.read().passed(source, here);
        if passed {
            let old = self.write().take_passed(source, here);
            drop(old);
        }
    }

    /// Gives everything back.
    pub(crate) fn clear(&self) {
        let old = std::mem::take(&mut *self.write());
        drop(old);
    }

    /// The same in a forked child, where a lock may be held by a thread that is not there.
    pub(crate) fn clear_in_child(&self) {
        if let Ok(mut pages) = self.pages.try_write() {
            *pages = Pages::default();
        }
    }
}

impl Pages {
    /// Where these bytes of a shard lie, if they lie together in a page that is held: the first byte of a view, and the view.
    pub(crate) fn find(&self, source: usize, shard: u32, span: ByteRange) -> Option<(u64, &View)> {
        let parts = self.by_page.get(&(source, shard, span.start() / PAGE_BYTES))?;
        let page = parts
            .iter()
            .find(|part| part.start <= span.start() && span.end() <= part.end)?;
        Some((page.start, &page.view))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_page.is_empty()
    }

    fn add(&mut self, (source, shard): (usize, u32), view: View, until: Place) {
        let (start, end) = (view.offset(), view.offset() + view.len() as u64);
        let pages = self
            .by_page
            .entry((source, shard, start / PAGE_BYTES))
            .or_default();
        if let Some(same) = pages
            .iter_mut()
            .find(|page| (page.start, page.end) == (start, end))
        {
            same.until = same.until.max(until);
            return;
        }
        self.bytes += end - start;
        pages.push(Page {
            start,
            end,
            view,
            until,
        });
    }

    fn passed(&self, source: usize, here: Place) -> bool {
        let mine = self.by_page.iter().filter(|(key, _)| key.0 == source);
        mine.flat_map(|(_, pages)| pages).any(|page| page.until <= here)
    }

    /// Takes out what is not needed from here on; dropped without the lock, because that talks to the node.
    fn take_passed(&mut self, source: usize, here: Place) -> Vec<Page> {
        let mut passed = Vec::new();
        for (key, pages) in &mut self.by_page {
            if key.0 == source {
                passed.extend(pages.extract_if(.., |page| page.until <= here));
            }
        }
        self.by_page.retain(|_, pages| !pages.is_empty());
        self.bytes -= passed.iter().map(|page| page.end - page.start).sum::<u64>();
        passed
    }
}

/// A range cut where pages end.
fn by_page(start: u64, end: u64) -> impl Iterator<Item = (u64, u64)> {
    let mut next = start;
    std::iter::from_fn(move || {
        let first = next;
        next = ((first / PAGE_BYTES + 1) * PAGE_BYTES).min(end);
        (first < end).then_some((first, next))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_cut_where_pages_end() {
        let cut = |start, end| by_page(start, end).collect::<Vec<_>>();
        assert_eq!(cut(5, 5), []);
        assert_eq!(cut(5, 9), [(5, 9)]);
        let (page, two) = (PAGE_BYTES, 2 * PAGE_BYTES);
        assert_eq!(
            cut(page - 1, two + 1),
            [(page - 1, page), (page, two), (two, two + 1)]
        );
        assert_eq!(cut(page, two), [(page, two)]);
    }
}
