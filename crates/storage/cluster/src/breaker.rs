//! A breaker per peer: one that failed is left alone for a while, so that readers do not each wait for it.
//!
//! The pause doubles with each failure in a row, from one second to thirty. When it is over one request is let
//! through as a probe, and the others go on passing the peer by until it has answered.

use std::time::Duration;

use tokio::time::Instant;

const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// The state of one peer, as the readers of this node have found it.
#[derive(Debug, Default)]
pub(crate) struct Breaker {
    failures: u32,
    /// Requests are refused until then.
    closed_until: Option<Instant>,
}

impl Breaker {
    /// Returns whether the peer may be asked now; after failures this is the probe, and others are refused.
    pub(crate) fn admit(&mut self, now: Instant) -> bool {
        match self.closed_until {
            None => true,
            Some(until) if now < until => false,
            Some(_) => {
                self.closed_until = Some(now + PAUSE_MIN);
                true
            }
        }
    }

    /// Returns whether the peer has failed since it last answered.
    pub(crate) fn has_failed(&self) -> bool {
        self.failures > 0
    }

    /// The peer answered.
    pub(crate) fn succeed(&mut self) {
        (self.failures, self.closed_until) = (0, None);
    }

    /// The peer failed.
    pub(crate) fn fail(&mut self, now: Instant) {
        let pause = PAUSE_MIN.saturating_mul(1 << self.failures.min(5));
        self.failures = self.failures.saturating_add(1);
        self.closed_until = Some(now + pause.min(PAUSE_MAX));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_peer_is_probed_once_per_pause_and_an_answer_ends_it() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut breaker = Breaker::default();
        assert!(breaker.admit(start));
        breaker.fail(start);
        assert!(!breaker.admit(at(999)));
        assert!(breaker.admit(at(1000)), "the probe");
        assert!(!breaker.admit(at(1001)), "others wait for the probe");
        breaker.fail(at(1500));
        assert!(!breaker.admit(at(3499)), "the pause has doubled");
        assert!(breaker.admit(at(3500)));
        breaker.succeed();
        assert!(breaker.admit(at(3501)) && breaker.admit(at(3501)));
    }

    #[test]
    fn the_pause_is_never_longer_than_half_a_minute() {
        let start = Instant::now();
        let mut breaker = Breaker::default();
        (0..1000).for_each(|_| breaker.fail(start));
        assert!(breaker.admit(start + PAUSE_MAX));
    }
}
