//! The leases of a process, as plain data: those in use, those to be given back, those on
//! their way back.
//!
//! A lease belongs to the whole process, so it is counted here: two views of one batch, or a view and its
//! unpickled copy, may share one, and only the last of them gives it back. Giving back is a message; it
//! travels in front of the next request, or by itself when the rule in [`Leases::is_due`] says so. What stays
//! behind in a process that does nothing more is bounded by that rule.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

/// Leases that may wait for the next request.
const PENDING_MAX: usize = 64;

/// Bytes under leases that may wait for the next request.
const PENDING_BYTES_MAX: u64 = 4 << 20;

/// A lease waits at least for its siblings that are dropped in the same moment.
const PENDING_TIME: Duration = Duration::from_millis(1);

#[derive(Debug, Clone, Copy)]
struct LeaseCount {
    views: u32,
    bytes: u64,
}

/// The books.
#[derive(Debug)]
pub(crate) struct Leases {
    live: HashMap<u64, LeaseCount>,
    pending: Vec<u64>,
    pending_bytes: u64,
    /// Sent, but not confirmed.
    releasing: HashSet<u64>,
    /// Never given back: a forked child looks at them without a session of its own.
    pinned: HashSet<u64>,
    /// Shares that were asked for and not yet answered, by lease. Nothing is given back meanwhile: the node
    /// counts one share for the whole process, so the return of one view would end the share that another
    /// thread is about to get.
    asked: HashMap<u64, u32>,
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
            asked: HashMap::new(),
            flushed: Instant::now(),
        }
    }

    /// One more view looks at this lease.
    pub(crate) fn hold(&mut self, lease: u64, bytes: u64) {
        let held = self
            .live
            .entry(lease)
            .or_insert(LeaseCount { views: 0, bytes: 0 });
        held.views += 1;
        held.bytes += bytes;
    }

    /// Takes a share in a lease of another process, or says what is needed for that.
    pub(crate) fn begin_share(&mut self, lease: u64, bytes: u64) -> Share {
        if self.releasing.contains(&lease) {
            return Share::Ending;
        }
        if self.hold_again(lease, bytes) {
            return Share::Held;
        }
        *self.asked.entry(lease).or_insert(0) += 1;
        Share::Ask
    }

    /// The node has answered whether the lease is shared, or nobody knows (`None`).
    pub(crate) fn end_share(&mut self, lease: u64, bytes: u64, is_shared: Option<bool>) {
        if let Some(asked) = self.asked.get_mut(&lease) {
            *asked -= 1;
            if *asked == 0 {
                self.asked.remove(&lease);
            }
        }
        match is_shared {
            Some(true) => self.hold(lease, bytes),
            Some(false) => {}
            None if self.pending.contains(&lease) => {}
            None => self.give_back(lease),
        }
    }

    /// Holds a lease that this process certainly has; `false` if it does not, or nobody knows.
    fn hold_again(&mut self, lease: u64, bytes: u64) -> bool {
        let waiting = self.pending.iter().position(|pending| *pending == lease);
        if let Some(index) = waiting {
            self.pending.swap_remove(index);
        } else if !self.live.contains_key(&lease) {
            return false;
        }
        self.hold(lease, bytes);
        true
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
            self.give_back(lease);
        }
    }

    /// Nobody looks at it: goes back unless a child or another thread needs it.
    fn give_back(&mut self, lease: u64) {
        let is_needed =
            self.live.contains_key(&lease) || self.pinned.contains(&lease) || self.asked.contains_key(&lease);
        if !is_needed {
            self.pending.push(lease);
        }
    }

    /// A lease that no view ever looked at goes back.
    pub(crate) fn return_unused(&mut self, leases: impl IntoIterator<Item = u64>) {
        let unused = leases.into_iter().filter(|lease| !self.live.contains_key(lease));
        self.pending.extend(unused);
    }

    /// Returns whether the pending ones should be sent without a request to travel with.
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

    /// Releases that were sent on a connection that broke go back into the queue.
    pub(crate) fn requeue(&mut self, leases: Vec<u64>) {
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

/// Outcome of an attempt to share a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Share {
    /// It is this process's already.
    Held,
    /// It is on its way back, or was sent back and nobody knows whether that arrived: too late.
    Ending,
    /// The node has to be asked; [`Leases::end_share`] follows.
    Ask,
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
        assert_eq!(leases.begin_share(7, 10), Share::Ending);
        leases.confirm(&[7]);
        assert_eq!(leases.begin_share(7, 10), Share::Ask);
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
        assert_eq!(leases.begin_share(1, 10), Share::Held);
        assert!(leases.take_pending().is_empty());
        leases.drop_view(1);
        assert_eq!(leases.take_pending(), [1]);
        assert_eq!(leases.begin_share(1, 10), Share::Ending);
    }

    #[test]
    fn what_was_sent_back_once_is_not_held_again_when_it_has_to_be_said_again() {
        let mut leases = Leases::new();
        leases.hold(1, 10);
        leases.drop_view(1);
        let sent = leases.take_pending();
        leases.requeue(sent); // The connection broke; the node may have read it.
        assert_eq!(leases.begin_share(1, 10), Share::Ending);
        assert_eq!(leases.take_pending(), [1]);
    }

    #[test]
    fn nothing_is_given_back_while_another_thread_asks_for_a_share_in_it() {
        let mut leases = Leases::new();
        assert_eq!(leases.begin_share(1, 10), Share::Ask);
        assert_eq!(leases.begin_share(1, 10), Share::Ask);
        leases.end_share(1, 10, Some(true));
        leases.drop_view(1);
        assert!(
            leases.take_pending().is_empty(),
            "the other one is not answered yet"
        );
        leases.end_share(1, 10, Some(true));
        leases.drop_view(1);
        assert_eq!(leases.take_pending(), [1]);
    }

    #[test]
    fn a_share_that_nobody_knows_about_is_given_back() {
        let mut leases = Leases::new();
        assert_eq!(leases.begin_share(1, 10), Share::Ask);
        leases.end_share(1, 10, None);
        assert_eq!(leases.take_pending(), [1]);
        assert_eq!(leases.begin_share(2, 10), Share::Ask);
        leases.end_share(2, 10, Some(false));
        assert!(leases.take_pending().is_empty());
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
