//! Observer of a transfer: hears of each object and of the bytes on their way.

use forebay_core::Error;

use crate::open_location::{Entry, OpenLocation};

/// Result of a copy that did not fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyOutcome {
    /// The object was copied, or would be.
    Copied,
    /// The target has the same bytes already.
    Skipped,
}

/// Observer of a transfer; called from any task of it, in no order among objects.
pub trait Observer: Send + Sync {
    /// The copy of an object begins.
    fn started(&self, _entry: &Entry) {}

    /// So many more bytes are there: copied, or found to be there already.
    fn advanced(&self, _bytes: u64) {}

    /// An object is at its target.
    fn finished(&self, _entry: &Entry, _target: &OpenLocation, _outcome: CopyOutcome) {}

    /// An object of many failed; the others go on.
    fn failed(&self, _error: Error) {}
}

/// Observer that ignores everything.
#[derive(Debug, Clone, Copy)]
pub struct Silent;

impl Observer for Silent {}
