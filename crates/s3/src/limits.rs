//! Admission: a hard limit of requests and bytes in flight.
//!
//! A request is admitted before anything is read or looked up, and counts until its answer's last byte has
//! gone (or its connection is lost). What it counts is what it can make the node hold at one time, not what it
//! moves in all: an upload its size up to a window, everything else a fixed cost. Beyond the limit the answer
//! is `503 SlowDown` with `Retry-After`, so that clients back off and memory stays bounded.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a request without a body counts: about one page on its way to the socket.
const READ_COST_BYTES: u64 = 512 << 10;

/// An upload never holds more than this at one time, however large it is.
const UPLOAD_COST_BYTES_MAX: u64 = 16 << 20;

/// Requests and bytes in flight at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct InFlight {
    /// Requests.
    pub requests: u64,
    /// Bytes they count for.
    pub bytes: u64,
}

/// The limit and what is in flight.
#[derive(Debug)]
pub(crate) struct Admission {
    requests_max: u64,
    bytes_max: u64,
    requests: AtomicU64,
    bytes: AtomicU64,
}

impl Admission {
    pub(crate) fn new(requests_max: u64, bytes_max: u64) -> Arc<Self> {
        Arc::new(Self {
            requests_max,
            bytes_max,
            requests: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        })
    }

    /// Lets a request with this `Content-Length` in, or not.
    pub(crate) fn admit(self: &Arc<Self>, content_bytes: Option<u64>) -> Option<Permit> {
        let cost_bytes = cost_bytes(content_bytes);
        if !take(&self.requests, 1, self.requests_max) {
            return None;
        }
        if !take(&self.bytes, cost_bytes, self.bytes_max) {
            self.requests.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        Some(Permit {
            admission: Arc::clone(self),
            cost_bytes,
        })
    }

    pub(crate) fn in_flight(&self) -> InFlight {
        InFlight {
            requests: self.requests.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
        }
    }
}

fn cost_bytes(content_bytes: Option<u64>) -> u64 {
    content_bytes
        .unwrap_or(0)
        .clamp(READ_COST_BYTES, UPLOAD_COST_BYTES_MAX)
}

fn take(counter: &AtomicU64, amount: u64, max: u64) -> bool {
    let add = |now: u64| now.checked_add(amount).filter(|sum| *sum <= max);
    counter
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add)
        .is_ok()
}

/// A place among the requests in flight; dropping it gives it back.
#[derive(Debug)]
pub(crate) struct Permit {
    admission: Arc<Admission>,
    cost_bytes: u64,
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.admission.bytes.fetch_sub(self.cost_bytes, Ordering::Relaxed);
        self.admission.requests.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_beyond_the_limit_are_refused_until_one_ends() {
        let admission = Admission::new(2, u64::MAX);
        let first = admission.admit(None).unwrap();
        let _second = admission.admit(None).unwrap();
        assert!(admission.admit(None).is_none());
        drop(first);
        assert!(admission.admit(None).is_some());
    }

    #[test]
    fn bytes_beyond_the_limit_are_refused_and_nothing_leaks() {
        let admission = Admission::new(100, 2 * READ_COST_BYTES);
        let big = admission.admit(Some(2 * READ_COST_BYTES)).unwrap();
        assert!(admission.admit(None).is_none());
        drop(big);
        assert_eq!(admission.in_flight(), InFlight::default());
    }

    #[test]
    fn an_upload_counts_its_window_not_its_size() {
        let admission = Admission::new(100, UPLOAD_COST_BYTES_MAX);
        assert!(admission.admit(Some(u64::MAX)).is_some());
    }
}
