//! What the native edge counts, for metrics, status and tests.

use std::sync::atomic::{AtomicU64, Ordering};

use forebay_core::wire::{Loaded, Request};
use parking_lot::Mutex;

/// The kinds of requests, as metrics name them.
const KINDS: [&str; 30] = [
    "hello",
    "stat",
    "list",
    "delete",
    "buckets",
    "read",
    "fill",
    "release",
    "adopt",
    "map_segment",
    "register",
    "unregister",
    "allocate",
    "free",
    "put",
    "begin_write",
    "write_part",
    "finish_write",
    "abort_write",
    "begin_save",
    "save_file",
    "save_object",
    "stage_save",
    "save_states",
    "abort_save",
    "gather",
    "prepare",
    "plan",
    "loaded",
    "other",
];

/// What the native edge did and holds, at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NativeStats {
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
    /// What loaders on this host said of themselves.
    pub loaded: Loaded,
}

/// The live numbers.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) connections: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) expired: AtomicU64,
    requests: [AtomicU64; KINDS.len()],
    loaded: Mutex<Loaded>,
}

impl Counters {
    pub(super) fn request(&self, request: &Request) {
        let kind = match request {
            Request::Hello(_) => 0,
            Request::Stat(_) => 1,
            Request::List(_) => 2,
            Request::Delete(_) => 3,
            Request::Buckets => 4,
            Request::Read { .. } => 5,
            Request::Fill(_) => 6,
            Request::Release { .. } => 7,
            Request::Adopt { .. } => 8,
            Request::MapSegment { .. } => 9,
            Request::Register { .. } => 10,
            Request::Unregister { .. } => 11,
            Request::Allocate { .. } => 12,
            Request::Free { .. } => 13,
            Request::Put(_) => 14,
            Request::BeginWrite(_) => 15,
            Request::WritePart(_) => 16,
            Request::FinishWrite(_) => 17,
            Request::AbortWrite { .. } => 18,
            Request::BeginSave(_) => 19,
            Request::SaveFile(_) => 20,
            Request::SaveObject(_) => 21,
            Request::StageSave { .. } => 22,
            Request::SaveStates { .. } => 23,
            Request::AbortSave { .. } => 24,
            Request::Gather(_) => 25,
            Request::Prepare { .. } => 26,
            Request::Plan(_) | Request::EndPlan { .. } => 27,
            Request::Loaded(_) => 28,
            Request::CreateBucket(_) | Request::Ping => 29,
        };
        add(&self.requests[kind], 1);
    }

    pub(super) fn add_loaded(&self, loaded: &Loaded) {
        let mut sum = self.loaded.lock();
        *sum = sum.plus(loaded);
    }

    pub(super) fn loaded(&self) -> Loaded {
        *self.loaded.lock()
    }

    pub(super) fn requests(&self) -> Vec<(&'static str, u64)> {
        KINDS.into_iter().zip(self.requests.iter().map(get)).collect()
    }
}

pub(super) fn add(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}

pub(super) fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

/// Counts one for as long as it lives.
#[derive(Debug)]
pub(super) struct Present<'a>(&'a AtomicU64);

impl<'a> Present<'a> {
    pub(super) fn new(gauge: &'a AtomicU64) -> Self {
        add(gauge, 1);
        Self(gauge)
    }
}

impl Drop for Present<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
