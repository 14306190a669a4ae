//! Pages of the windows ahead that a loader leases, so that most samples cost no request to the node.
//!
//! Whoever reads ahead takes a lease on what was read, page by page, and gives it back when the consumer has
//! passed. A fetcher cuts samples out of these pages; one that lies across two of them, or in none, is asked
//! for as ever.
//!
//! Bound: a part of the node's RAM; ranks of a host hold the same pages. Memory that is leased for too long
//! is lost to the node's cache, so nothing is leased for longer than [`AGE_MAX`], nor for a consumer that has
//! stood still for [`IDLE`]. A forked child would hold its share for as long as it lives, so a fork ends all
//! of it.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};
use std::time::{Duration, Instant};

use forebay_client::{BeforeFork, Item, ItemRange, Scattered, View, tell_before_fork};
use forebay_core::{ByteRange, PAGE_BYTES};

use crate::dataset::Inner;

/// Longest lease for a consumer that does not move.
pub(crate) const IDLE: Duration = Duration::from_secs(30);
/// Longest lease of all.
const AGE_MAX: Duration = Duration::from_secs(600);
/// Pause without leases after the node had no memory for them.
const REST: Duration = Duration::from_secs(60);
/// Limit of all leases: one part in this many of the node's RAM.
const RAM_SHARE: u64 = 4;

/// A position in a dataset: epoch, and position in it.
pub(crate) type EpochPosition = (u64, u64);

/// A range of a shard that is read ahead, and until when it is needed.
pub(crate) struct PrefetchRange {
    pub(crate) source: usize,
    pub(crate) shard: u32,
    pub(crate) item: Item,
    pub(crate) until: EpochPosition,
}

/// The leased pages of one loader; see the top of this file.
pub(crate) struct LeasedPages {
    pages: RwLock<PageTable>,
    bytes_max: u64,
}

/// Pages that are leased now.
#[derive(Default)]
pub(crate) struct PageTable {
    by_page: HashMap<(usize, u32, u64), Vec<Page>>,
    /// Bytes that are leased, or asked for to be.
    bytes: u64,
    /// The node had no memory for it.
    rest_until: Option<Instant>,
}

/// Bytes of a shard within one page of it that lie together in memory.
struct Page {
    start: u64,
    end: u64,
    view: View,
    until: EpochPosition,
    since: Instant,
}

impl LeasedPages {
    /// For a node with so much RAM; `None`, because it does not say or is remote, leases nothing.
    pub(crate) fn start(node_ram_bytes: Option<u64>) -> Arc<Self> {
        let leased = Arc::new(Self {
            pages: RwLock::default(),
            bytes_max: node_ram_bytes.unwrap_or(0) / RAM_SHARE,
        });
        let weak: Weak<Self> = Arc::downgrade(&leased);
        tell_before_fork(&(weak as Weak<dyn BeforeFork>));
        leased
    }

    /// Takes leases on a range that the node has just read.
    pub(crate) fn hold(&self, dataset: &Inner, range: &PrefetchRange) {
        let ItemRange::Range { offset, length } = range.item.range else {
            return;
        };
        if !self.write().reserve(length, self.bytes_max) {
            return;
        }
        let bounds = by_page(offset, offset + length);
        let item = |(start, end): (u64, u64)| Item {
            range: ItemRange::Range {
                offset: start,
                length: end - start,
            },
            ..range.item.clone()
        };
        let read = dataset.client.read(bounds.map(item).collect());
        let read = read.inspect_err(|error| tracing::debug!(%error, "pages ahead are not leased"));
        // Errors are for whoever needs the bytes.
        let items = read.into_iter().flatten().flatten();
        let pieces: Vec<View> = items.flat_map(Scattered::pieces).flatten().collect();
        let is_copied = pieces.iter().any(|view| view.sources().copied > 0);
        let mut pages = self.write();
        pages.bytes -= length;
        // Dropped without the lock, because that talks to the node.
        let unused: Vec<View> = if is_copied {
            pieces
        } else {
            let place = (range.source, range.shard);
            let add = |view| pages.add(place, view, range.until);
            pieces.into_iter().filter_map(add).collect()
        };
        let old = is_copied.then(|| pages.rest());
        drop(pages);
        drop((unused, old));
    }

    /// Returns what is leased now; keep the answer briefly.
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, PageTable> {
        self.pages.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, PageTable> {
        self.pages.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives back what of a dataset is not needed from here on, and what was leased for long.
    pub(crate) fn release(&self, source: usize, here: EpochPosition) {
        let oldest = Instant::now().checked_sub(AGE_MAX);
        let passed = |key: usize, page: &Page| {
            (key == source && page.until <= here) || oldest.is_some_and(|oldest| page.since < oldest)
        };
        let has_passed = self.read().any(passed);
        if has_passed {
            let old = self.write().take(passed);
            drop(old);
        }
    }

    /// Gives everything back.
    pub(crate) fn clear(&self) {
        let old = self.write().take(|_, _| true);
        drop(old);
    }

    /// The same in a forked child, where a lock may be held by a thread that is not there.
    pub(crate) fn clear_in_child(&self) {
        if let Ok(mut pages) = self.pages.try_write() {
            drop(pages.take(|_, _| true));
        }
    }
}

impl BeforeFork for LeasedPages {
    fn before_fork(&self) {
        self.clear();
    }
}

impl PageTable {
    /// Returns where these bytes of a shard lie, if they lie together in a page that is leased: the first
    /// byte of a view, and the view.
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

    /// Counts bytes before they are asked for; `false` if they are too many.
    fn reserve(&mut self, bytes: u64, bytes_max: u64) -> bool {
        let now = Instant::now();
        self.rest_until = self.rest_until.filter(|until| *until > now);
        let fits = self.rest_until.is_none() && self.bytes + bytes <= bytes_max;
        self.bytes += if fits { bytes } else { 0 };
        fits
    }

    /// Gives back a view of what is leased already.
    fn add(&mut self, (source, shard): (usize, u32), view: View, until: EpochPosition) -> Option<View> {
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
            return Some(view);
        }
        self.bytes += end - start;
        pages.push(Page {
            start,
            end,
            view,
            until,
            since: Instant::now(),
        });
        None
    }

    /// Holds nothing for a while; gives what was leased.
    fn rest(&mut self) -> Vec<Page> {
        tracing::debug!(bytes = self.bytes, "the node has no memory for pages ahead");
        self.rest_until = Some(Instant::now() + REST);
        self.take(|_, _| true)
    }

    fn any(&self, which: impl Fn(usize, &Page) -> bool) -> bool {
        let mut pages = self.by_page.iter();
        pages.any(|(key, pages)| pages.iter().any(|page| which(key.0, page)))
    }

    /// Takes pages out, by their dataset and what they are; to be dropped without the lock, because that
    /// talks to the node.
    #[must_use]
    fn take(&mut self, which: impl Fn(usize, &Page) -> bool) -> Vec<Page> {
        let mut taken = Vec::new();
        self.by_page.retain(|key, pages| {
            taken.extend(pages.extract_if(.., |page| which(key.0, page)));
            !pages.is_empty()
        });
        self.bytes -= taken.iter().map(|page| page.end - page.start).sum::<u64>();
        taken
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
