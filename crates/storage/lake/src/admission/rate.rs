//! The pace of requests to one prefix of a lake: a pure function of the time and of the lake's answers.
//!
//! Nothing is limited until the lake refuses a request (429, `SlowDown`). Then the pace is what the lake has
//! accepted within the last second, less a little (multiplicative decrease), and grows slowly from there
//! (additive increase). Refusals that come within one reaction time count once, because they answer requests of
//! the old pace. After a long time without a refusal the growth doubles, so that a pace that was measured too low,
//! or a lake that has grown, is found. The pace grows only while somebody waits for it.
//!
//! A lake that accepts nothing at all for a reaction time is closed: it gets a few probes a second, and the pace
//! of before once it accepts one of them. `Retry-After` says when the first probe is sent.
//!
//! Time is a duration since some start and never goes back. Limits: the pace stays between [`PER_S_MIN`] and
//! [`PER_S_MAX`]; past that there is none.

use std::time::Duration;

/// The slowest pace.
const PER_S_MIN: f64 = 1.0;
/// A pace above this limits nothing.
const PER_S_MAX: f64 = 20_000.0;
/// Refusals within this time after a decrease are answers to requests of the old pace.
const REACTION: Duration = Duration::from_millis(300);
/// Share of the accepted requests that is the new pace.
const DECREASE: f64 = 0.95;
/// The pace never falls below this share of what it was.
const DECREASE_MAX: f64 = 0.5;
/// Growth in a second, as a share of the pace after the last decrease.
const INCREASE: f64 = 0.04;
/// After so long without a refusal the pace doubles …
const QUIET: Duration = Duration::from_secs(6);
/// … within this time.
const DOUBLING: Duration = Duration::from_secs(3);
/// A first pace that was measured on few requests doubles within this time, until the next refusal.
const DOUBLING_FIRST: Duration = Duration::from_millis(250);
/// A first pace that was measured on so many requests is believed.
const BELIEVED_MIN: u32 = 100;
/// Probes per second of a lake that accepts nothing.
const PROBES_PER_S: f64 = 4.0;
/// The longest `Retry-After` that is believed.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(30);
/// Slots that were missed because timers are late are made up for.
const CATCH_UP: Duration = Duration::from_millis(6);
/// Accepted requests are counted in so many periods of [`PERIOD`]: a second, and the period that has begun.
const PERIODS: usize = 11;
const PERIOD: Duration = Duration::from_millis(100);
const SECOND: Duration = Duration::from_secs(1);

/// The pace of one prefix.
#[derive(Debug, Clone, Default)]
pub(super) struct Rate {
    /// Requests per second; `None` before the first refusal.
    per_s: Option<f64>,
    /// The time of the next request.
    next: Duration,
    accepted: Accepted,
    decreased_at: Duration,
    per_s_decreased: f64,
    grown_at: Duration,
    /// The time when somebody had to wait last.
    waited_at: Option<Duration>,
    is_measured: bool,
    is_closed: bool,
}

impl Rate {
    /// The time at which the next request may be sent; `now` or earlier means at once.
    pub(super) fn ready_at(&mut self, now: Duration) -> Duration {
        if self.per_s.is_none() {
            return now;
        }
        if self.next > now {
            self.waited_at = Some(now);
        }
        self.next
    }

    /// Takes the place of the next request, which is sent now.
    pub(super) fn take(&mut self, now: Duration) {
        let Some(per_s) = self.per_s else { return };
        let per_s = if self.is_closed {
            per_s.min(PROBES_PER_S)
        } else {
            per_s
        };
        let slot = self.next.max(now.saturating_sub(CATCH_UP));
        self.next = slot + Duration::from_secs_f64(1.0 / per_s);
    }

    /// The lake has accepted a request.
    pub(super) fn accepted(&mut self, now: Duration) {
        self.accepted.count(now);
        if self.is_closed {
            self.is_closed = false;
            self.decreased_at = now;
            self.grown_at = now;
            self.next = self.next.min(now);
        }
        self.grow(now);
    }

    /// The lake has refused a request because there were too many.
    pub(super) fn refused(&mut self, now: Duration, retry_after: Option<Duration>) {
        let Some(per_s) = self.per_s else {
            return self.measure(now);
        };
        if now.saturating_sub(self.decreased_at) < REACTION {
            return;
        }
        if self.accepted.within(now, REACTION) == 0 {
            let pause = retry_after.unwrap_or_default().min(RETRY_AFTER_MAX);
            let probe = Duration::from_secs_f64(1.0 / PROBES_PER_S);
            self.is_closed = true;
            self.decreased_at = now;
            self.next = self.next.max(now + pause.max(probe));
            return;
        }
        // A lake that counts by the second is measured over a second; while the pace grows fast, the last moments
        // say more.
        let delivered = self
            .accepted
            .per_s(now, SECOND)
            .max(self.accepted.per_s(now, REACTION));
        let decreased = per_s.min(delivered) * DECREASE;
        self.decrease(decreased.max(per_s * DECREASE_MAX), now);
        self.is_measured = true;
    }

    /// Requests per second; `None` if nothing limits them.
    pub(super) fn per_s(&self) -> Option<f64> {
        self.per_s
    }

    /// Returns whether somebody waits for the pace.
    pub(super) fn is_limiting(&self, now: Duration) -> bool {
        let has_waited = |at| now.saturating_sub(at) <= Duration::from_secs(1);
        self.per_s.is_some() && (self.is_closed || self.waited_at.is_some_and(has_waited))
    }

    /// Returns whether the lake accepts nothing at present.
    #[cfg(test)]
    fn is_closed(&self) -> bool {
        self.is_closed
    }

    fn measure(&mut self, now: Duration) {
        self.is_measured = self.accepted.within(now, SECOND) >= BELIEVED_MIN;
        self.next = now;
        self.decrease(self.accepted.per_s(now, SECOND) * DECREASE, now);
    }

    fn decrease(&mut self, per_s: f64, now: Duration) {
        let per_s = per_s.clamp(PER_S_MIN, PER_S_MAX);
        self.per_s = Some(per_s);
        self.per_s_decreased = per_s;
        self.decreased_at = now;
        self.grown_at = now;
    }

    fn grow(&mut self, now: Duration) {
        let Some(per_s) = self.per_s else { return };
        let elapsed = now.saturating_sub(self.grown_at);
        self.grown_at = now;
        if !self.is_limiting(now) {
            return;
        }
        let quiet = now.saturating_sub(self.decreased_at);
        let doubling = match (self.is_measured, quiet > QUIET) {
            (false, _) => Some(DOUBLING_FIRST),
            (true, true) => Some(DOUBLING),
            (true, false) => None,
        };
        let grown = match doubling {
            Some(doubling) => per_s * (elapsed.as_secs_f64() / doubling.as_secs_f64()).exp2(),
            None => per_s + (self.per_s_decreased * INCREASE).max(PER_S_MIN) * elapsed.as_secs_f64(),
        };
        self.per_s = (grown <= PER_S_MAX).then_some(grown);
    }
}

/// Requests that were accepted, by period, for the last second.
#[derive(Debug, Clone, Default)]
struct Accepted {
    /// Number of the newest period since the start of time.
    newest: u128,
    counts: [u32; PERIODS],
}

impl Accepted {
    fn count(&mut self, now: Duration) {
        let period = now.as_nanos() / PERIOD.as_nanos();
        if period > self.newest {
            let skipped = (period - self.newest).min(PERIODS as u128);
            for missed in 0..skipped {
                self.counts[index(period - missed)] = 0;
            }
            self.newest = period;
        }
        let count = &mut self.counts[index(period)];
        *count = count.saturating_add(1);
    }

    /// Accepted within this time (whole periods, at most a second) and in the period that has begun.
    fn within(&self, now: Duration, time: Duration) -> u32 {
        let period = now.as_nanos() / PERIOD.as_nanos();
        let wanted = time.as_nanos() / PERIOD.as_nanos() + 1;
        (0..wanted.min(PERIODS as u128))
            .filter_map(|age| period.checked_sub(age))
            .filter(|period| *period <= self.newest && self.newest - period < PERIODS as u128)
            .map(|period| self.counts[index(period)])
            .fold(0, u32::saturating_add)
    }

    /// The same per second.
    fn per_s(&self, now: Duration, time: Duration) -> f64 {
        let period = u64::try_from(PERIOD.as_nanos()).expect("a period is short");
        let begun = Duration::from_nanos(u64::from(now.subsec_nanos()) % period);
        f64::from(self.within(now, time)) / (time + begun).as_secs_f64()
    }
}

fn index(period: u128) -> usize {
    usize::try_from(period % PERIODS as u128).expect("a remainder is small")
}

#[cfg(test)]
mod tests;
