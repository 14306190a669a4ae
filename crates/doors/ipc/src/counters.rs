//! Counters of the socket door, for metrics, status and tests.

use std::sync::atomic::{AtomicU64, Ordering};

use forebay_wire::loaders::LoaderReport;

/// Counters and gauges of the socket door at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IpcStats {
    /// Processes that use the socket.
    pub sessions: u64,
    /// Their connections.
    pub connections: u64,
    /// Connections that were refused: a user who may not, or too many.
    pub refused_connections: u64,
    /// Requests by kind.
    pub requests: Vec<(&'static str, u64)>,
    /// Leases that clients hold.
    pub leases: u64,
    /// Their bytes.
    pub leased_bytes: u64,
    /// Leases that were held too long, so that their memory was given up.
    pub expired_leases: u64,
    /// Bytes of staging memory.
    pub staging_held_bytes: u64,
    /// Bytes of it that clients have.
    pub staging_lent_bytes: u64,
    /// Its budget.
    pub staging_budget_bytes: u64,
    /// Times a client asked for staging memory and there was none.
    pub staging_refusals: u64,
    /// Writes in parts that are under way.
    pub open_writes: u64,
    /// Sum of the reports of loaders on this host.
    pub loaded: LoaderReport,
}

/// The live numbers.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) connections: AtomicU64,
    pub(crate) refused: AtomicU64,
}

pub(crate) fn add(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}

pub(crate) fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

/// Counts one for as long as it lives.
#[derive(Debug)]
pub(crate) struct Present<'a>(&'a AtomicU64);

impl<'a> Present<'a> {
    pub(crate) fn new(gauge: &'a AtomicU64) -> Self {
        add(gauge, 1);
        Self(gauge)
    }
}

impl Drop for Present<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
