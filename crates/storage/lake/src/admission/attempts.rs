//! The attempts of one request: the path to the lake, and the decision to walk it again.

use std::sync::Arc;
use std::time::Duration;

use forebay_core::{Error, Kind, Result};
use tokio::time::Instant;

use super::gate::{Permit, Place};
use super::{Admission, Waits, retry_after};
use crate::schedule::FetchUrgency;

/// The longest pause that a lake may ask one request for.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(30);

/// The attempts of one request.
pub(crate) struct Attempts {
    admission: Arc<Admission>,
    /// The group of prefixes of its key.
    group: usize,
    /// Start of the request, or its last progress.
    began: Instant,
    /// Failures in a row.
    failures: u32,
    /// Failures in a row that count against the tries.
    tries: u32,
    pause: Duration,
}

impl Attempts {
    pub(super) fn new(admission: Arc<Admission>, group: usize) -> Self {
        Self {
            admission,
            group,
            began: Instant::now(),
            failures: 0,
            tries: 0,
            pause: Duration::ZERO,
        }
    }

    /// Walks gate → rate → breaker; the attempt holds the permit while it is at the lake. Cancel-safe.
    pub(crate) async fn enter(&self, urgency: &FetchUrgency) -> Result<Permit> {
        let place = if self.failures == 0 {
            Place::Back
        } else {
            Place::Front
        };
        let permit = self.admission.gate().enter(urgency, place).await?;
        self.enter_without_permit().await?;
        Ok(permit)
    }

    /// Walks rate → breaker. For a body whose bytes come at the pace of a client: it must not hold a permit, or
    /// slow clients would keep all others from the lake. Cancel-safe.
    pub(crate) async fn enter_without_permit(&self) -> Result<()> {
        self.admission.wait_for_place(self.group).await;
        self.admission.wait_for_lake(self.began).await
    }

    /// Returns whether the lake limits the pace of this request's prefix.
    pub(crate) fn is_paced(&self) -> bool {
        self.admission.prefixes[self.group].rate.lock().per_s().is_some()
    }

    /// The lake has begun to answer well.
    pub(crate) fn answered(&self) {
        self.admission.learn_answer(self.group);
    }

    /// The whole request is done.
    pub(crate) fn succeeded(&self) {
        self.admission.gate().grow();
        self.admission.budget.refund();
    }

    /// Some of the bytes have come: what failed before is forgotten.
    pub(crate) fn progressed(&mut self) {
        self.began = Instant::now();
        self.failures = 0;
        self.tries = 0;
    }

    /// Learns from the failure and decides: `Ok` says that the request may be sent again after
    /// [`Self::backoff`], `Err` gives the failure back for good.
    pub(crate) fn failed(&mut self, error: Error, repeat: Repeat) -> Result<()> {
        let admission = &self.admission;
        let is_for_all = admission.is_for_all(&error, self.began);
        admission.learn_failure(self.group, &error);
        self.failures += 1;
        // Busy is our own full queue: waiting here would only make it longer.
        if repeat == Repeat::No || !error.is_retryable() || error.kind() == Kind::Busy {
            return Err(error.with("attempts", self.failures));
        }
        let (options, waited) = (&admission.options, self.began.elapsed());
        if is_for_all && waited < options.patience {
            let asked = retry_after(&error).unwrap_or_default().min(RETRY_AFTER_MAX);
            let left = options.patience - waited;
            self.pause = options.retry.backoff(self.failures).max(asked).min(left);
            return Ok(());
        }
        self.tries += 1;
        if self.tries >= options.retry.attempts_max
            || waited > options.retry.deadline
            || !admission.budget.take()
        {
            let error = error.with("attempts", self.failures);
            return Err(if is_for_all {
                error.with("waited_s", waited.as_secs())
            } else {
                error
            });
        }
        self.pause = options.retry.backoff(self.tries);
        Ok(())
    }

    /// Waits before the next attempt. Cancel-safe.
    pub(crate) async fn backoff(&self) {
        let _waits = Waits::new(&self.admission.waiting);
        tokio::time::sleep(self.pause).await;
    }

    #[cfg(test)]
    pub(super) fn group(&self) -> usize {
        self.group
    }

    /// Failures in a row.
    pub(crate) fn failures(&self) -> u32 {
        self.failures
    }
}

/// Permission to send the same request again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Repeat {
    /// It does no harm.
    Yes,
    /// The lake may have acted on it, or its bytes are gone.
    No,
}
