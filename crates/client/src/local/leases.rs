//! The leases of a process, as plain books: which are looked at, which are to be given back, which are on their way back.
//!
//! A lease belongs to the whole process, so it is counted here: two views of one batch, or a view and its unpickled copy, may share one, and
//! only the last of them gives it back. Giving back is a message; it travels in front of the next request, or by itself when
//! the rule in [`Leases::is_due`] says so. What stays behind in a process that does nothing more is bounded by that rule.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

/// Leases that may wait for the next request.
const PENDING_MAX: usize = 64;

/// Bytes under leases that may wait for the next request.
const PENDING_BYTES_MAX: u64 = 4 << 20;

/// A lease waits at least for its siblings that are dropped in the same moment.
const PENDING_TIME: Duration = Duration::from_millis(1);

#[derive(Debug, Clone, Copy)]
struct Held {
    views: u32,
    bytes: u64,
}

/// The books.
#[derive(Debug)]
pub(crate) struct Leases {
    live: HashMap<u64, Held>,
    pending: Vec<u64>,
    pending_bytes: u64,
    /// Sent, but not confirmed.
    releasing: HashSet<u64>,
    /// Never given back: a forked child looks at them without a session of its own.
    pinned: HashSet<u64>,
    flushed: Instant,
}

impl Leases {
    pub(crate) fn new() -> Self {
        Self {
            live: HashMap::new(),
            pending: Vec::new(),
            pending_bytes: 0,
            releasing: HashSet::new(),
            pinned: HashSet::new(),
            flushed: Instant::now(),
        }
    }

    /// One more view looks at this lease.
    pub(crate) fn hold(&mut self, lease: u64, bytes: u64) {
        let held = self.live.entry(lease).or_insert(Held { views: 0, bytes: 0 });
        held.views += 1;
        held.bytes += bytes;
    }

    /// Holds a lease that this process may still have; `false` if it does not.
    pub(crate) fn hold_again(&mut self, lease: u64, bytes: u64) -> bool {
        let waiting = self.pending.iter().position(|pending| *pending == lease);
        if let Some(index) = waiting {
            self.pending.swap_remove(index);
        } else if !self.live.contains_key(&lease) {
            return false;
        }
        self.hold(lease, bytes);
        true
    }

    /// Whether its release is on its way, so that asking for a share in it would race with that.
    pub(crate) fn is_releasing(&self, lease: u64) -> bool {
        self.releasing.contains(&lease)
    }

    /// A view ended.
    pub(crate) fn drop_view(&mut self, lease: u64) {
        let Some(held) = self.live.get_mut(&lease) else {
            return;
        };
        held.views -= 1;
        if held.views == 0 {
            self.pending_bytes += held.bytes;
            self.live.remove(&lease);
            if !self.pinned.contains(&lease) {
                self.pending.push(lease);
            }
        }
    }

    /// A lease that no view ever looked at goes back.
    pub(crate) fn return_unused(&mut self, leases: impl IntoIterator<Item = u64>) {
        let unused = leases.into_iter().filter(|lease| !self.live.contains_key(lease));
        self.pending.extend(unused);
    }

    /// Whether the pending ones should be sent without a request to travel with.
    pub(crate) fn is_due(&self) -> bool {
        let many = self.pending.len() >= PENDING_MAX || self.pending_bytes >= PENDING_BYTES_MAX;
        !self.pending.is_empty() && (many || self.live.is_empty() || self.flushed.elapsed() > PENDING_TIME)
    }

    /// The pending ones, to be sent now.
    pub(crate) fn take_pending(&mut self) -> Vec<u64> {
        if self.pending.is_empty() {
            return Vec::new();
        }
        self.pending_bytes = 0;
        self.flushed = Instant::now();
        self.releasing.extend(&self.pending);
        std::mem::take(&mut self.pending)
    }

    /// The node has confirmed these.
    pub(crate) fn confirm(&mut self, leases: &[u64]) {
        for lease in leases {
            self.releasing.remove(lease);
        }
    }

    /// These were sent on a connection that broke: say it again.
    pub(crate) fn say_again(&mut self, leases: Vec<u64>) {
        self.pending.extend(leases);
    }

    /// All that some view looks at.
    pub(crate) fn live(&self) -> impl Iterator<Item = u64> {
        self.live.keys().copied()
    }

    /// Never gives back what is live now.
    pub(crate) fn pin_live(&mut self) {
        self.pinned.extend(self.live.keys());
    }

    /// In a forked child: what was to be given back is the parent's affair.
    pub(crate) fn forget_returns(&mut self) {
        self.pending.clear();
        self.pending_bytes = 0;
        self.releasing.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_lease_is_given_back_once_by_the_last_view() {
        let mut leases = Leases::new();
        leases.hold(7, 10);
        leases.hold(7, 10);
        leases.drop_view(7);
        assert!(leases.take_pending().is_empty());
        leases.drop_view(7);
        assert_eq!(leases.take_pending(), [7]);
        assert!(leases.is_releasing(7));
        leases.confirm(&[7]);
        assert!(!leases.is_releasing(7));
    }

    #[test]
    fn the_last_view_of_all_makes_returns_due_and_others_wait_for_company() {
        let mut leases = Leases::new();
        leases.hold(1, 10);
        leases.hold(2, 10);
        leases.flushed = Instant::now() + Duration::from_secs(60);
        leases.drop_view(1);
        assert!(!leases.is_due());
        leases.drop_view(2);
        assert!(leases.is_due());
    }

    #[test]
    fn many_bytes_are_due_at_once() {
        let mut leases = Leases::new();
        leases.hold(1, PENDING_BYTES_MAX);
        leases.hold(2, 10);
        leases.flushed = Instant::now() + Duration::from_secs(60);
        leases.drop_view(1);
        assert!(leases.is_due());
    }

    #[test]
    fn a_pending_lease_can_be_held_again_and_a_sent_one_cannot() {
        let mut leases = Leases::new();
        leases.hold(1, 10);
        leases.drop_view(1);
        assert!(leases.hold_again(1, 10));
        assert!(leases.take_pending().is_empty());
        leases.drop_view(1);
        assert_eq!(leases.take_pending(), [1]);
        assert!(!leases.hold_again(1, 10));
        assert!(leases.is_releasing(1));
    }

    #[test]
    fn pinned_leases_are_never_given_back() {
        let mut leases = Leases::new();
        leases.hold(1, 10);
        leases.pin_live();
        leases.drop_view(1);
        assert!(leases.take_pending().is_empty());
    }
}
