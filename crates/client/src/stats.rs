//! Counters of a client: bytes by origin and by the way they were handed over, requests, waits.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_wire::TierBytes;

/// Counters of one client since it was made; a forked child goes on from its parent's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ClientStats {
    /// Calls that went to the node.
    pub requests: u64,
    /// Bytes that were handed out as mapped memory, without a copy.
    pub mapped_bytes: u64,
    /// Bytes that were copied on their way, by the client or the node.
    pub copied_bytes: u64,
    /// Bytes that the node had in RAM.
    pub ram_bytes: u64,
    /// Bytes that the node had on NVMe.
    pub nvme_bytes: u64,
    /// Bytes that the node fetched from the lake for this client.
    pub lake_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Time spent waiting for answers, over all threads.
    pub wait: Duration,
    /// Times that the node had to be found again.
    pub reconnects: u64,
}

/// The counters behind [`ClientStats`].
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) requests: AtomicU64,
    pub(crate) mapped_bytes: AtomicU64,
    pub(crate) copied_bytes: AtomicU64,
    ram_bytes: AtomicU64,
    nvme_bytes: AtomicU64,
    lake_bytes: AtomicU64,
    pub(crate) written_bytes: AtomicU64,
    wait_ns: AtomicU64,
    pub(crate) reconnects: AtomicU64,
}

/// Adds to a counter.
pub(crate) fn add(counter: &AtomicU64, value: u64) {
    counter.fetch_add(value, Ordering::Relaxed);
}

/// Takes back what was added to a counter.
pub(crate) fn subtract(counter: &AtomicU64, value: u64) {
    counter.fetch_sub(value, Ordering::Relaxed);
}

impl Counters {
    /// Counts where bytes came from.
    pub(crate) fn count_sources(&self, sources: &TierBytes) {
        add(&self.ram_bytes, sources.ram);
        add(&self.nvme_bytes, sources.nvme);
        add(&self.lake_bytes, sources.lake);
        add(&self.copied_bytes, sources.copied);
    }

    /// Counts a request and the time since it was sent.
    pub(crate) fn count_wait(&self, since: Instant) {
        add(&self.requests, 1);
        add(
            &self.wait_ns,
            u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX),
        );
    }

    /// All of them now.
    pub(crate) fn snapshot(&self) -> ClientStats {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ClientStats {
            requests: of(&self.requests),
            mapped_bytes: of(&self.mapped_bytes),
            copied_bytes: of(&self.copied_bytes),
            ram_bytes: of(&self.ram_bytes),
            nvme_bytes: of(&self.nvme_bytes),
            lake_bytes: of(&self.lake_bytes),
            written_bytes: of(&self.written_bytes),
            wait: Duration::from_nanos(of(&self.wait_ns)),
            reconnects: of(&self.reconnects),
        }
    }
}
