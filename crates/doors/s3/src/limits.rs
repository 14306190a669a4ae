//! Admission: a hard limit of requests and bytes in flight.
//!
//! A request is admitted before anything is read or looked up, and counts until its answer's last byte has
//! gone (or its connection is lost). What it counts is what it can make the node hold at one time, not what
//! it moves in all: an upload its size up to a window, everything else a fixed cost. Beyond the limit the
//! answer is `503 SlowDown` with `Retry-After`, so that clients back off and memory stays bounded. A request
//! that would count more than the whole limit counts the whole limit, so it comes in when it is alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a request without a body counts: about one page on its way to the socket.
const READ_COST_BYTES: u64 = 512 << 10;

/// A part is passed on while it comes in.
const PART_WINDOW_BYTES: u64 = 16 << 20;

/// A lake's writer cuts a large object into parts of at least this size and at most 10,000 of them, and holds
/// five.
const WRITER_PART_BYTES_MIN: u64 = 16 << 20;
const WRITER_PARTS_MAX: u64 = 10_000;
const WRITER_PARTS_HELD: u64 = 5;

/// What a request brings, as far as its head says.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load {
    /// The size of its body; `None` if that is not known.
    pub(crate) bytes: Option<u64>,
    /// Whether it is one part of a multipart upload.
    pub(crate) is_part: bool,
}

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

    /// Lets a request in, or not.
    pub(crate) fn admit(self: &Arc<Self>, load: Load) -> Option<Permit> {
        let cost_bytes = cost_bytes(load).min(self.bytes_max);
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

fn cost_bytes(load: Load) -> u64 {
    let window = if load.is_part {
        PART_WINDOW_BYTES
    } else {
        let part_bytes = (load.bytes.unwrap_or(0) / WRITER_PARTS_MAX).max(WRITER_PART_BYTES_MIN);
        part_bytes * WRITER_PARTS_HELD
    };
    load.bytes
        .map_or(window, |bytes| bytes.min(window))
        .max(READ_COST_BYTES)
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

    const READ: Load = Load {
        bytes: Some(0),
        is_part: false,
    };

    fn put(bytes: Option<u64>) -> Load {
        Load {
            bytes,
            is_part: false,
        }
    }

    #[test]
    fn requests_beyond_the_limit_are_refused_until_one_ends() {
        let admission = Admission::new(2, u64::MAX);
        let first = admission.admit(READ).unwrap();
        let _second = admission.admit(READ).unwrap();
        assert!(admission.admit(READ).is_none());
        drop(first);
        assert!(admission.admit(READ).is_some());
    }

    #[test]
    fn bytes_beyond_the_limit_are_refused_and_nothing_leaks() {
        let admission = Admission::new(100, 2 * READ_COST_BYTES);
        let big = admission.admit(put(Some(2 * READ_COST_BYTES))).unwrap();
        assert!(admission.admit(READ).is_none());
        drop(big);
        assert_eq!(admission.in_flight(), InFlight::default());
    }

    #[test]
    fn an_upload_counts_its_window_not_its_size() {
        assert_eq!(cost_bytes(put(Some(20 << 20))), 20 << 20);
        assert_eq!(cost_bytes(put(Some(1 << 30))), 80 << 20);
        let part = Load {
            bytes: Some(1 << 30),
            is_part: true,
        };
        assert_eq!(cost_bytes(part), 16 << 20);
    }

    #[test]
    fn the_window_grows_with_the_parts_of_a_huge_object() {
        assert!(cost_bytes(put(Some(5 << 40))) > 2 << 30);
        assert!(cost_bytes(put(Some(u64::MAX))) > 0);
    }

    #[test]
    fn a_body_of_unknown_length_counts_a_whole_window() {
        assert_eq!(cost_bytes(put(None)), 80 << 20);
    }

    #[test]
    fn what_counts_more_than_the_limit_comes_in_alone() {
        let admission = Admission::new(100, 1 << 20);
        let alone = admission.admit(put(Some(1 << 30))).unwrap();
        assert!(admission.admit(READ).is_none());
        drop(alone);
        assert_eq!(admission.in_flight(), InFlight::default());
    }
}
