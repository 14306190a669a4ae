//! Pins: prefixes whose objects stay.
//!
//! A pin covers what is in RAM now and what comes later under its prefix. Pinned pages are not evicted from
//! RAM; they are capped at three quarters of the budget, and what comes past the cap is an ordinary page.
//! Pins live in the node's memory: whoever composes the node sets them again after a restart.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay_core::BucketName;
use parking_lot::RwLock;

use crate::ObjectVersion;
use crate::index::Entry;
use crate::page::Page;
use crate::ram::RamTier;

/// Prefixes that are pinned.
#[derive(Debug, Default)]
pub(crate) struct Pins {
    prefixes: RwLock<Vec<(BucketName, String)>>,
}

impl Pins {
    /// Adds a prefix; the same one twice is one pin.
    pub(crate) fn add(&self, bucket: &BucketName, prefix: &str) {
        let mut prefixes = self.prefixes.write();
        if !prefixes.iter().any(|pin| pin.0 == *bucket && pin.1 == prefix) {
            prefixes.push((bucket.clone(), prefix.to_owned()));
        }
    }

    /// Removes every pin at or below a prefix.
    pub(crate) fn remove(&self, bucket: &BucketName, prefix: &str) {
        self.prefixes
            .write()
            .retain(|pin| pin.0 != *bucket || !pin.1.starts_with(prefix));
    }

    /// Returns whether a pin covers the object.
    pub(crate) fn covers(&self, object: &ObjectVersion) -> bool {
        let is_over =
            |pin: &(BucketName, String)| pin.0 == object.bucket && object.key.as_str().starts_with(&pin.1);
        self.prefixes.read().iter().any(is_over)
    }
}

impl RamTier {
    fn pinned_bytes_max(&self) -> u64 {
        self.budget_bytes() / 4 * 3
    }

    /// Pins a page unless the cap is reached.
    pub(crate) fn pin_page(&self, page: &Arc<Page>) -> bool {
        let bytes = page.frame.bytes() as u64;
        if page.pinned.load(Ordering::Relaxed) {
            return true;
        }
        if !self
            .counters
            .pinned_ram_bytes
            .add_within(bytes, self.pinned_bytes_max())
        {
            return false;
        }
        if page.pinned.swap(true, Ordering::AcqRel) {
            self.counters.pinned_ram_bytes.sub(bytes); // Somebody else was quicker.
        }
        self.exempt(page);
        true
    }

    /// Pins the pages of an entry; how many bytes that were.
    pub(crate) fn pin_entry(&self, entry: &Entry) -> u64 {
        entry.pinned.store(true, Ordering::Relaxed);
        let pages = entry.pages();
        pages
            .iter()
            .filter(|page| self.pin_page(page))
            .map(|page| page.frame.backed_bytes())
            .sum()
    }

    /// Lets the pages of an entry go again unless another pin covers it; how many bytes that were.
    pub(crate) fn unpin_entry(&self, entry: &Entry) -> u64 {
        if self.pins.covers(&entry.object) {
            return 0;
        }
        entry.pinned.store(false, Ordering::Relaxed);
        let mut bytes = 0;
        for page in entry.pages() {
            if page.unpin() {
                bytes += page.frame.backed_bytes();
                self.admit(&page);
            }
        }
        bytes
    }
}
