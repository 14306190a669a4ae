//! Counters of the saver, for metrics.

use std::sync::atomic::{AtomicU64, Ordering};

use forebay_wire::saves::{SavePhase, SaveState};

/// Counters and gauges of the saver at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SaveStats {
    /// Saves that clients fill.
    pub open: u64,
    /// Saves that were handed over and are not durable yet.
    pub staged: u64,
    /// Bytes of these.
    pub staged_bytes: u64,
    /// Age of the oldest of these since it was staged, seconds.
    pub oldest_staged_seconds: u64,
    /// Bytes that saves take on disk, open ones and those of an earlier incarnation among them.
    pub disk_bytes: u64,
    /// Budget of these.
    pub disk_bytes_max: u64,
    /// Saves that became durable.
    pub durable: u64,
    /// Saves that failed.
    pub failed: u64,
    /// Saves that were given up.
    pub given_up: u64,
    /// Bytes that durable saves wrote to the lake.
    pub written_bytes: u64,
    /// Bytes that durable saves found in their parents.
    pub reused_bytes: u64,
    /// Alarms of durable saves.
    pub alarms: u64,
    /// Saves that were refused because an older one was overdue.
    pub refusals: u64,
}

/// The live numbers of what has ended.
#[derive(Debug, Default)]
pub(super) struct Counters {
    durable: AtomicU64,
    failed: AtomicU64,
    given_up: AtomicU64,
    written_bytes: AtomicU64,
    reused_bytes: AtomicU64,
    alarms: AtomicU64,
    pub(super) refusals: AtomicU64,
}

pub(super) fn add(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}

impl Counters {
    /// Counts a save that has ended.
    pub(super) fn ended(&self, state: &SaveState) {
        if state.phase != SavePhase::Durable {
            let last_error = state.last_error.as_ref();
            let is_given_up = last_error.is_some_and(|last_error| last_error.kind == "cancelled");
            add(if is_given_up { &self.given_up } else { &self.failed }, 1);
            return;
        }
        add(&self.durable, 1);
        add(&self.written_bytes, state.written_bytes);
        add(&self.reused_bytes, state.reused_bytes);
        add(&self.alarms, state.alarms.len() as u64);
    }

    /// Everything, with what these saves hold.
    pub(super) fn stats<'a>(&self, states: impl Iterator<Item = &'a SaveState>) -> SaveStats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let mut stats = SaveStats {
            durable: get(&self.durable),
            failed: get(&self.failed),
            given_up: get(&self.given_up),
            written_bytes: get(&self.written_bytes),
            reused_bytes: get(&self.reused_bytes),
            alarms: get(&self.alarms),
            refusals: get(&self.refusals),
            ..SaveStats::default()
        };
        for state in states {
            match state.phase {
                SavePhase::Open => stats.open += 1,
                SavePhase::Staged => {
                    stats.staged += 1;
                    stats.staged_bytes += state.bytes;
                    let age_ms = state.age_ms.saturating_sub(state.staged_ms.unwrap_or(0));
                    stats.oldest_staged_seconds = stats.oldest_staged_seconds.max(age_ms / 1000);
                }
                SavePhase::Durable | SavePhase::Failed => {}
            }
        }
        stats
    }
}
