//! Decides when a second request for the same bytes is worth it.
//!
//! Keeps the last times to the first byte. A request is late when it has waited clearly longer than the 95th
//! percentile of these; it may be hedged only while hedged bytes stay within a hundredth of all bytes read.

use std::time::Duration;

use parking_lot::Mutex;

const SAMPLES_MAX: usize = 256;
/// Below so many samples the percentile says nothing.
const SAMPLES_MIN: usize = 32;
/// Faster than this, waiting costs less than asking twice.
const LATE_MIN: Duration = Duration::from_millis(20);
/// One hedged byte for so many read bytes.
const BYTES_PER_HEDGED_BYTE: u64 = 100;

#[derive(Debug, Default)]
struct HedgeState {
    samples: Vec<Duration>,
    oldest: usize,
    late_after: Option<Duration>,
    read_bytes: u64,
    hedged_bytes: u64,
}

/// The latency memory and hedge budget of one lake.
#[derive(Debug, Default)]
pub(crate) struct Hedge {
    state: Mutex<HedgeState>,
}

impl Hedge {
    /// Remembers how long a request took to its first byte.
    pub(crate) fn observe(&self, to_first_byte: Duration) {
        let mut state = self.state.lock();
        if state.samples.len() < SAMPLES_MAX {
            state.samples.push(to_first_byte);
        } else {
            let oldest = state.oldest;
            state.samples[oldest] = to_first_byte;
        }
        state.oldest = (state.oldest + 1) % SAMPLES_MAX;
        if state.samples.len() >= SAMPLES_MIN && state.oldest.is_multiple_of(16) {
            state.late_after = Some(late_after(state.samples.clone()));
        }
    }

    /// After how long without a byte a request counts as late; `None` while too little is known.
    pub(crate) fn late_after(&self) -> Option<Duration> {
        self.state.lock().late_after
    }

    /// Counts bytes that were read.
    pub(crate) fn add_read(&self, bytes: u64) {
        self.state.lock().read_bytes += bytes;
    }

    /// Reserves the bytes of a second request, if the budget has them.
    pub(crate) fn reserve(&self, bytes: u64) -> bool {
        let mut state = self.state.lock();
        let hedged_bytes = state.hedged_bytes.saturating_add(bytes);
        if hedged_bytes > state.read_bytes / BYTES_PER_HEDGED_BYTE {
            return false;
        }
        state.hedged_bytes = hedged_bytes;
        true
    }

    /// Bytes that were asked for a second time.
    pub(crate) fn hedged_bytes(&self) -> u64 {
        self.state.lock().hedged_bytes
    }
}

fn late_after(mut samples: Vec<Duration>) -> Duration {
    let position = samples.len() * 95 / 100;
    let (_, p95, _) = samples.select_nth_unstable(position);
    p95.mul_f64(1.5).max(LATE_MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_late_before_enough_is_known() {
        let hedge = Hedge::default();
        for _ in 0..SAMPLES_MIN - 1 {
            hedge.observe(Duration::from_millis(100));
        }
        assert_eq!(hedge.late_after(), None);
        hedge.observe(Duration::from_millis(100));
        assert_eq!(hedge.late_after(), Some(Duration::from_millis(150)));
    }

    #[test]
    fn the_slow_tail_does_not_move_the_threshold() {
        let hedge = Hedge::default();
        for request in 0..SAMPLES_MAX {
            hedge.observe(Duration::from_millis(if request % 50 == 0 { 5_000 } else { 100 }));
        }
        assert_eq!(hedge.late_after(), Some(Duration::from_millis(150)));
    }

    #[test]
    fn hedged_bytes_stay_within_a_hundredth() {
        let hedge = Hedge::default();
        hedge.add_read(1_000);
        assert!(hedge.reserve(10));
        assert!(!hedge.reserve(1));
        assert_eq!(hedge.hedged_bytes(), 10);
    }
}
