//! Eviction: the choice of the next victim, pure, behind one trait.
//!
//! A tier tells its policy what came in, what was read and what left; the policy names the next victim. It
//! holds keys and sizes only, never does I/O and never blocks, so each policy is tested alone. Pinned pages
//! are best kept out of the policy altogether; leased and filling ones are refused through `may_go`.

mod epoch_policy;
mod fifo_queue;
mod s3_fifo;

pub(crate) use epoch_policy::EpochPolicy;
pub(crate) use s3_fifo::S3Fifo;

use crate::key::PageKey;

/// Knows the pages of one tier and picks victims. Holds keys only; it never does I/O and never blocks.
pub(crate) trait Eviction: Send + std::fmt::Debug {
    /// A page came in (or grew to `bytes`).
    fn insert(&mut self, key: PageKey, bytes: u64);
    /// A page came in, or grew to `bytes`, of which all would be `whole_bytes`.
    fn insert_part(&mut self, key: PageKey, bytes: u64, _whole_bytes: u64) {
        self.insert(key, bytes);
    }
    /// A page was read.
    fn touch(&mut self, key: &PageKey);
    /// A page will be read soon, somebody said: it should still be there then.
    fn will_need(&mut self, _key: &PageKey) {}
    /// A page left for another reason.
    fn remove(&mut self, key: &PageKey);
    /// The next page to go among those that `may_go` allows (not pinned, leased, staged, filling), removed
    /// from the policy. `None` if there is none.
    fn victim(&mut self, may_go: &mut dyn FnMut(&PageKey) -> bool) -> Option<PageKey>;
}
