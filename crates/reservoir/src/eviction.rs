//! Which page goes next: a pure choice behind one trait.

use crate::key::PageKey;

/// Knows the pages of one tier and picks victims. Holds keys only; it never does I/O and never blocks.
pub(crate) trait Eviction: Send + std::fmt::Debug {
    /// A page came in (or grew to `bytes`).
    fn insert(&mut self, key: PageKey, bytes: u64);
    /// A page was read.
    fn touch(&mut self, key: &PageKey);
    /// A page left for another reason.
    fn remove(&mut self, key: &PageKey);
    /// The next page to go among those that `may_go` allows (not pinned, leased, staged, filling), removed from
    /// the policy. `None` if there is none.
    fn victim(&mut self, may_go: &mut dyn FnMut(&PageKey) -> bool) -> Option<PageKey>;
}
