//! The circuit breaker of a lake: a pure function of the time and of the ends of requests.
//!
//! Closed, it lets everything pass. A few failures in a row without any answer in between open it: the lake is
//! away, so nobody has to find that out for himself at the price of a timeout. While it is open, one request at
//! a time passes as a probe, at growing pauses; the first answer, a refusal included, closes it.

use std::time::Duration;

/// Failures in a row that open it …
const FAILURES_MIN: u32 = 4;
/// … if the first of them was so long ago.
const SILENCE_MIN: Duration = Duration::from_millis(300);
/// Pause before the first probe; doubles from then on.
const PAUSE_FIRST: Duration = Duration::from_millis(250);
/// Longest pause between probes.
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// A probe without an end is forgotten after this time, and another one is sent.
const PROBE_MAX: Duration = Duration::from_secs(5);

/// The breaker of one lake.
#[derive(Debug, Clone, Default)]
pub(super) struct Breaker {
    failures: u32,
    /// The time of the first failure after the last answer.
    silent_since: Option<Duration>,
    answered_at: Option<Duration>,
    open: Option<Open>,
}

#[derive(Debug, Clone, Copy)]
struct Open {
    since: Duration,
    probe_at: Duration,
    pause: Duration,
}

/// Answer of the breaker to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It may go to the lake.
    Pass,
    /// It has to wait until this time and ask again.
    WaitUntil(Duration),
}

impl Breaker {
    /// Asks for one request.
    pub(super) fn ask(&mut self, now: Duration) -> Verdict {
        match &mut self.open {
            None => Verdict::Pass,
            Some(open) if now >= open.probe_at => {
                open.probe_at = now + PROBE_MAX;
                Verdict::Pass
            }
            Some(open) => Verdict::WaitUntil(open.probe_at),
        }
    }

    /// The lake has answered, whatever it said. Returns for how long the breaker was open, if this closes it.
    pub(super) fn answered(&mut self, now: Duration) -> Option<Duration> {
        self.failures = 0;
        self.silent_since = None;
        self.answered_at = Some(now);
        self.open.take().map(|open| now.saturating_sub(open.since))
    }

    /// The lake could not be reached or did not answer. Returns whether this opens the breaker.
    pub(super) fn failed(&mut self, now: Duration) -> bool {
        self.failures = self.failures.saturating_add(1);
        if let Some(open) = &mut self.open {
            open.pause = (open.pause * 2).min(PAUSE_MAX);
            open.probe_at = now + open.pause;
            return false;
        }
        let silent_since = *self.silent_since.get_or_insert(now);
        if self.failures < FAILURES_MIN || now.saturating_sub(silent_since) < SILENCE_MIN {
            return false;
        }
        self.open = Some(Open {
            since: now,
            probe_at: now + PAUSE_FIRST,
            pause: PAUSE_FIRST,
        });
        true
    }

    /// Since when it is open.
    pub(super) fn open_since(&self) -> Option<Duration> {
        self.open.map(|open| open.since)
    }

    /// The time of the lake's last answer.
    pub(super) fn answered_at(&self) -> Option<Duration> {
        self.answered_at
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn opened(at: Duration) -> Breaker {
        let mut breaker = Breaker::default();
        for _ in 1..FAILURES_MIN {
            assert!(!breaker.failed(at - SILENCE_MIN));
        }
        assert!(breaker.failed(at));
        breaker
    }

    #[test]
    fn a_burst_of_failures_at_one_moment_does_not_open_it() {
        let mut breaker = Breaker::default();
        assert!((0..1000).all(|_| !breaker.failed(ms(5))));
    }

    #[test]
    fn an_answer_in_between_keeps_it_closed() {
        let mut breaker = Breaker::default();
        for at in 0..100 {
            breaker.failed(ms(at * 100));
            if at % 3 == 0 {
                breaker.answered(ms(at * 100));
            }
            assert_eq!(breaker.open_since(), None);
        }
    }

    #[test]
    fn while_it_is_open_one_probe_passes_at_a_time() {
        let mut breaker = opened(ms(1000));
        assert_eq!(breaker.ask(ms(1001)), Verdict::WaitUntil(ms(1250)));
        assert_eq!(breaker.ask(ms(1250)), Verdict::Pass);
        assert!(matches!(breaker.ask(ms(1250)), Verdict::WaitUntil(_)));
        breaker.failed(ms(1260));
        assert_eq!(breaker.ask(ms(1261)), Verdict::WaitUntil(ms(1260 + 500)));
    }

    #[test]
    fn the_first_answer_closes_it() {
        let mut breaker = opened(ms(1000));
        assert_eq!(breaker.answered(ms(4000)), Some(ms(3000)));
        assert_eq!(breaker.ask(ms(4000)), Verdict::Pass);
        assert_eq!(breaker.answered(ms(4001)), None);
    }

    proptest! {
        /// However a lake fails, a waiter is never told to wait longer than a probe takes.
        #[test]
        fn no_wait_is_without_end(events in prop::collection::vec((0_u8..3, 0_u64..3_000), 1..200)) {
            let (mut breaker, mut now) = (Breaker::default(), Duration::ZERO);
            for (event, pause) in events {
                now += ms(pause);
                match event {
                    0 => drop(breaker.answered(now)),
                    1 => drop(breaker.failed(now)),
                    _ => {
                        if let Verdict::WaitUntil(at) = breaker.ask(now) {
                            prop_assert!(at > now && at <= now + PROBE_MAX);
                        }
                    }
                }
            }
        }
    }
}
