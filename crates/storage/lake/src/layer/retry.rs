//! Retries that cannot make an outage worse: a backoff with jitter and a budget shared by a whole lake.
//!
//! A single request may be tried a few times with growing, jittered pauses. Over all requests the
//! [`RetryBudget`] bounds how many retries there are: it is a bucket of tokens, a retry takes one, a success
//! gives back a tenth. In an outage the bucket runs dry and requests fail at their first error; when the lake
//! recovers, successes fill it again.

use std::time::Duration;

use parking_lot::Mutex;

/// Number and pace of the retries of one request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RetryPolicy {
    /// Tries in all, the first included.
    pub attempts_max: u32,
    /// Pause before the second try; doubles from then on.
    pub backoff_first: Duration,
    /// Longest pause.
    pub backoff_max: Duration,
    /// No new try is begun after so long.
    pub deadline: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            attempts_max: 6,
            backoff_first: Duration::from_millis(50),
            backoff_max: Duration::from_secs(2),
            deadline: Duration::from_secs(60),
        }
    }
}

impl RetryPolicy {
    /// The pause after the given number of failures in a row (1 is the first): between half of the step and
    /// all of it.
    #[must_use]
    pub fn backoff(&self, failures: u32) -> Duration {
        let doublings = failures.saturating_sub(1).min(16);
        let step = self
            .backoff_first
            .saturating_mul(1 << doublings)
            .min(self.backoff_max);
        step.mul_f64(0.5 + fastrand::f64() / 2.0)
    }
}

/// Tokens for retries, shared by all requests to one lake.
#[derive(Debug)]
pub struct RetryBudget {
    tokens_max: f64,
    tokens: Mutex<f64>,
}

/// Share of a token that one success gives back.
const REFUND: f64 = 0.1;

impl RetryBudget {
    /// A full bucket.
    #[must_use]
    pub fn new(tokens_max: u32) -> Self {
        Self {
            tokens_max: f64::from(tokens_max),
            tokens: Mutex::new(f64::from(tokens_max)),
        }
    }

    /// Takes a token; `false` means that the request must not be tried again.
    #[must_use]
    pub fn take(&self) -> bool {
        let mut tokens = self.tokens.lock();
        if *tokens < 1.0 {
            return false;
        }
        *tokens -= 1.0;
        true
    }

    /// Counts a success.
    pub fn refund(&self) {
        let mut tokens = self.tokens.lock();
        *tokens = (*tokens + REFUND).min(self.tokens_max);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_budget_refuses_until_successes_fill_it() {
        let budget = RetryBudget::new(2);
        assert!(budget.take());
        assert!(budget.take());
        assert!(!budget.take());
        for _ in 0..11 {
            budget.refund();
        }
        assert!(budget.take());
        assert!(!budget.take());
    }

    #[test]
    fn backoff_grows_and_stays_below_its_maximum() {
        let policy = RetryPolicy::default();
        for failures in 1..40 {
            let pause = policy.backoff(failures);
            assert!(pause <= policy.backoff_max);
            assert!(pause >= Duration::from_millis(25));
        }
        assert!(policy.backoff(7) >= Duration::from_secs(1));
    }
}
