//! Admission of requests to one lake: every kind of request takes the same path.
//!
//! A request has [`Attempts`]. Each attempt walks gate → rate → breaker and then goes to the lake: the `gate`
//! bounds how many are at the lake, the `rate` of the key's prefix says how many a second, the `breaker` holds
//! them back while the lake is away. The end of the attempt teaches all three. A failed attempt is tried again
//! after a backoff: a few times if the lake answers others, and as long as the patience of the lake lasts if the
//! lake refuses for the number of requests or is away. Reads (`schedule/part.rs`) and all other requests of an S3
//! lake (`backend/s3/client.rs`) share one [`Admission`]; see docs/flows/lake-request.md.
//!
//! Limits: [`AdmissionOptions`]; one rate for each of [`PREFIXES`] groups of top-level prefixes.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use forebay_core::{Error, Kind};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::layer::retry::{RetryBudget, RetryPolicy};

mod attempts;
mod breaker;
mod gate;
mod rate;

pub(crate) use attempts::{Attempts, Repeat};
use breaker::{Breaker, Verdict};
pub(crate) use gate::{Gate, Permit, Place};
use rate::Rate;

/// Groups of prefixes with a rate of their own.
const PREFIXES: usize = 16;
/// Waiters look at the breaker again after this time: another one may have found that the lake is back.
const LOOK_PERIOD: Duration = Duration::from_millis(100);

/// Limits of an [`Admission`].
#[derive(Debug, Clone)]
pub struct AdmissionOptions {
    /// Requests at the lake at once.
    pub in_flight_max: usize,
    /// Requests that may wait for a permit; more are `Busy`.
    pub waiting_max: usize,
    /// Tries of a request while the lake answers others.
    pub retry: RetryPolicy,
    /// Retries that all requests together may have outstanding; successes earn them back.
    pub retry_tokens_max: u32,
    /// The longest wait of a request for a lake that refuses it for the number of requests, or is away. Zero
    /// gives no more than the tries of `retry`.
    pub patience: Duration,
}

impl Default for AdmissionOptions {
    fn default() -> Self {
        Self {
            in_flight_max: 64,
            waiting_max: 16_384,
            retry: RetryPolicy::default(),
            retry_tokens_max: 200,
            patience: Duration::ZERO,
        }
    }
}

/// Condition of a lake, as its requests find it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum LakeCondition {
    /// It takes what it is asked.
    Well,
    /// It refuses some requests; they are sent at this pace.
    Throttled {
        /// Requests per second; of the slowest prefix.
        per_s: f64,
    },
    /// It cannot be reached or does not answer.
    Away {
        /// For so long.
        elapsed: Duration,
    },
}

impl fmt::Display for LakeCondition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Well => f.write_str("answers"),
            Self::Throttled { per_s } => write!(f, "throttles; {per_s:.0} requests/s"),
            Self::Away { elapsed } => write!(f, "has been away for {} s", elapsed.as_secs()),
        }
    }
}

/// Counters of an [`Admission`].
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct AdmissionStats {
    /// Requests that the lake refused because there were too many.
    pub refused: u64,
    /// Times that the lake went away.
    pub outages: u64,
    /// Requests that wait for the pace, a backoff or the lake's return, now.
    pub waiting: usize,
    /// The pace of the slowest prefix that waits for one; `None` if nothing is limited.
    pub per_s: Option<f64>,
}

/// The way to one lake; shared by all who ask it.
pub struct Admission {
    lake: String,
    options: AdmissionOptions,
    gate: Arc<Gate>,
    prefixes: Box<[PacedPrefix]>,
    breaker: Mutex<Breaker>,
    budget: RetryBudget,
    hasher: RandomState,
    began: Instant,
    refused: AtomicU64,
    outages: AtomicU64,
    waiting: AtomicUsize,
}

/// A group of prefixes: requests to it are sent one after the other, at its pace.
#[derive(Debug, Default)]
struct PacedPrefix {
    rate: Mutex<Rate>,
    /// Held by who waits for the next place; the others line up behind.
    next: tokio::sync::Mutex<()>,
}

impl fmt::Debug for Admission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Admission")
            .field("lake", &self.lake)
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

impl Admission {
    /// The way to the lake of this name (for messages).
    #[must_use]
    pub fn new(lake: impl Into<String>, options: AdmissionOptions) -> Arc<Self> {
        Arc::new(Self {
            lake: lake.into(),
            gate: Gate::new(options.in_flight_max, options.waiting_max),
            prefixes: (0..PREFIXES).map(|_| PacedPrefix::default()).collect(),
            breaker: Mutex::default(),
            budget: RetryBudget::new(options.retry_tokens_max),
            hasher: RandomState::new(),
            began: Instant::now(),
            refused: AtomicU64::new(0),
            outages: AtomicU64::new(0),
            waiting: AtomicUsize::new(0),
            options,
        })
    }

    /// The condition of the lake now.
    #[must_use]
    pub fn condition(&self) -> LakeCondition {
        let now = self.now();
        if let Some(since) = self.breaker.lock().open_since() {
            let elapsed = now.saturating_sub(since);
            return LakeCondition::Away { elapsed };
        }
        match self.limiting_per_s(now) {
            Some(per_s) => LakeCondition::Throttled { per_s },
            None => LakeCondition::Well,
        }
    }

    /// The time since the lake's last answer to anybody; `None` if it has not answered yet.
    #[must_use]
    pub fn since_answer(&self) -> Option<Duration> {
        let answered_at = self.breaker.lock().answered_at()?;
        Some(self.now().saturating_sub(answered_at))
    }

    /// Counters.
    #[must_use]
    pub fn stats(&self) -> AdmissionStats {
        AdmissionStats {
            refused: self.refused.load(Ordering::Relaxed),
            outages: self.outages.load(Ordering::Relaxed),
            waiting: self.waiting.load(Ordering::Relaxed),
            per_s: self.limiting_per_s(self.now()),
        }
    }

    /// The attempts of one request for a key, or for the prefix of a listing.
    pub(crate) fn attempts(self: &Arc<Self>, key: &str) -> Attempts {
        let prefix = key.split_once('/').map_or("", |(first, _)| first);
        let group = self.hasher.hash_one(prefix) % PREFIXES as u64;
        let group = usize::try_from(group).expect("a remainder is small");
        Attempts::new(Arc::clone(self), group)
    }

    pub(crate) fn gate(&self) -> &Arc<Gate> {
        &self.gate
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    fn limiting_per_s(&self, now: Duration) -> Option<f64> {
        let limiting = self.prefixes.iter().filter_map(|prefix| {
            let rate = prefix.rate.lock();
            rate.per_s().filter(|_| rate.is_limiting(now))
        });
        limiting.min_by(f64::total_cmp)
    }

    /// Waits for the next place of a group of prefixes. Cancel-safe.
    async fn wait_for_place(&self, group: usize) {
        let prefix = &self.prefixes[group];
        let try_take = || {
            let (mut rate, now) = (prefix.rate.lock(), self.now());
            let at = rate.ready_at(now);
            if at <= now {
                rate.take(now);
            }
            at.checked_sub(now).filter(|pause| !pause.is_zero())
        };
        if prefix.rate.lock().per_s().is_none() {
            return;
        }
        let _waits = Waits::new(&self.waiting);
        let _next = prefix.next.lock().await;
        while let Some(pause) = try_take() {
            tokio::time::sleep(pause).await;
        }
    }

    /// Waits until the breaker lets one request pass; gives up when the patience ends. Cancel-safe.
    async fn wait_for_lake(&self, began: Instant) -> Result<(), Error> {
        let mut waits = None;
        loop {
            let now = self.now();
            let verdict = self.breaker.lock().ask(now);
            let Verdict::WaitUntil(at) = verdict else {
                return Ok(());
            };
            if began.elapsed() >= self.options.patience {
                return Err(self.away());
            }
            waits.get_or_insert_with(|| Waits::new(&self.waiting));
            tokio::time::sleep(at.saturating_sub(now).min(LOOK_PERIOD)).await;
        }
    }

    fn away(&self) -> Error {
        let error = Error::new(
            Kind::Unavailable,
            "the lake is away: it cannot be reached or does not answer; try again later",
        );
        let error = error.with("lake", &self.lake);
        match self.condition() {
            LakeCondition::Away { elapsed } => error.with("away_s", elapsed.as_secs()),
            _ => error,
        }
    }

    /// The lake has answered a request, whatever it said.
    fn learn_answer(&self, group: usize) {
        let now = self.now();
        self.prefixes[group].rate.lock().accepted(now);
        self.learn_presence(now);
    }

    fn learn_presence(&self, now: Duration) {
        let ended = self.breaker.lock().answered(now);
        if let Some(lasted) = ended {
            let lasted_s = lasted.as_secs_f64();
            tracing::info!(lake = self.lake, lasted_s, "lake answers again; requests go on");
        }
    }

    fn learn_refusal(&self, group: usize, error: &Error) {
        self.refused.fetch_add(1, Ordering::Relaxed);
        let now = self.now();
        let mut rate = self.prefixes[group].rate.lock();
        let was_limited = rate.per_s().is_some();
        rate.refused(now, retry_after(error));
        let per_s = rate.per_s();
        drop(rate);
        if !was_limited {
            tracing::info!(lake = self.lake, per_s, "lake throttles; requests are paced");
        }
        self.learn_presence(now);
    }

    fn learn_absence(&self, error: &Error) {
        if error.kind() == Kind::Timeout {
            self.gate.shrink();
        }
        let opens = self.breaker.lock().failed(self.now());
        if opens {
            self.outages.fetch_add(1, Ordering::Relaxed);
            let patience_s = self.options.patience.as_secs();
            tracing::warn!(lake = self.lake, patience_s, error = ?error, "lake is away; requests wait for it");
        }
    }

    /// Teaches gate, rate and breaker the end of a failed attempt.
    fn learn_failure(&self, group: usize, error: &Error) {
        match error.kind() {
            Kind::Throttled => self.learn_refusal(group, error),
            Kind::Timeout => self.learn_absence(error),
            Kind::Unavailable if is_absence(error) => self.learn_absence(error),
            // These come from this side of the lake.
            Kind::Busy | Kind::Cancelled | Kind::Internal | Kind::InvalidInput | Kind::Unsupported => {}
            _ => self.learn_answer(group),
        }
    }

    /// Returns whether a failed attempt says something about all requests, not just about its own.
    fn is_for_all(&self, error: &Error, began: Instant) -> bool {
        let has_answered_since = self.since_answer().is_some_and(|since| since < began.elapsed());
        match error.kind() {
            Kind::Throttled => true,
            Kind::Timeout | Kind::Unavailable => {
                let is_open = self.breaker.lock().open_since().is_some();
                is_open || (is_absence(error) && !has_answered_since)
            }
            _ => false,
        }
    }
}

/// A waiter, counted while it lives.
struct Waits<'a>(&'a AtomicUsize);

impl<'a> Waits<'a> {
    fn new(waiting: &'a AtomicUsize) -> Self {
        waiting.fetch_add(1, Ordering::Relaxed);
        Self(waiting)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Returns whether nothing of the lake itself has answered; a 500 is an answer of the lake about one request.
fn is_absence(error: &Error) -> bool {
    !error
        .context()
        .any(|(name, value)| name == "status" && value == "500")
}

/// The pause that the lake asked for.
fn retry_after(error: &Error) -> Option<Duration> {
    let (_, seconds) = error.context().find(|(name, _)| *name == "retry_after_s")?;
    seconds.parse().ok().map(Duration::from_secs)
}

#[cfg(test)]
mod tests;
