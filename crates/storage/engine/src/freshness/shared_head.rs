//! `HEAD`s in single flight: readers that need metadata at the same time share one request to the lake.
//!
//! A reader joins a `HEAD` that was not sent yet, or one that was sent recently enough for its bucket and that
//! no write has overtaken since. So a reader that came after a write never gets the answer of a `HEAD` that left
//! before it, and a reader that wants the lake's word now ([`Demand::Now`]) joins only what is still to be sent.
//!
//! Life cycle: the first reader makes the future, whoever waits drives it, and the last one to leave drops it.
//! A reader that goes away therefore neither fails nor delays the others.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use forebay_core::{BucketName, ObjectKey, Result};
use futures::FutureExt;
use futures::future::{BoxFuture, Shared, WeakShared};

use super::{Ask, Freshness, Name};
use crate::ObjectInfo;
use crate::engine::Consistency;

/// The answer of a `HEAD` to all who wait for it.
type Answer = Arc<Result<Arc<ObjectInfo>>>;

/// The `HEAD` that a reader can do with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Demand {
    /// One that was sent at most so long ago.
    Within(Duration),
    /// One that is still to be sent.
    Now,
}

impl Demand {
    /// The demand of a reader of a bucket.
    pub(crate) fn of(consistency: Consistency) -> Self {
        match consistency {
            Consistency::Always => Self::Now,
            Consistency::RevalidateAfter(age) => Self::Within(age),
            Consistency::Immutable => Self::Within(Duration::MAX),
        }
    }
}

/// A `HEAD` that others may join.
pub(super) struct HeadInFlight {
    id: u64,
    answer: WeakShared<BoxFuture<'static, Answer>>,
    /// `None` until it is sent.
    sent: Option<Sent>,
}

#[derive(Debug, Clone, Copy)]
struct Sent {
    at: Duration,
    writes: u64,
}

impl HeadInFlight {
    /// Returns whether its answer is good enough for a reader that comes now.
    fn may_answer(&self, demand: Demand, now: Duration, writes: u64) -> bool {
        match (self.sent, demand) {
            (None, _) => true,
            (Some(_), Demand::Now) => false,
            (Some(sent), Demand::Within(age)) => sent.writes == writes && now.saturating_sub(sent.at) <= age,
        }
    }
}

impl Freshness {
    /// Waits for a `HEAD` that is under way, if it may answer this reader, else for one of its own: `send` makes
    /// it and keeps its answer. Cancel-safe.
    pub(crate) async fn share_head<F>(
        self: &Arc<Self>,
        bucket: &BucketName,
        key: &ObjectKey,
        demand: Demand,
        send: impl FnOnce(Ask) -> F + Send + 'static,
    ) -> Result<Arc<ObjectInfo>>
    where
        F: Future<Output = Result<Arc<ObjectInfo>>> + Send + 'static,
    {
        let answer = self.join_head((bucket.clone(), key.clone()), demand, send);
        match &*answer.await {
            Ok(info) => Ok(Arc::clone(info)),
            Err(error) => Err(error.share()),
        }
    }

    fn join_head<F>(
        self: &Arc<Self>,
        name: Name,
        demand: Demand,
        send: impl FnOnce(Ask) -> F + Send + 'static,
    ) -> Shared<BoxFuture<'static, Answer>>
    where
        F: Future<Output = Result<Arc<ObjectInfo>>> + Send + 'static,
    {
        let mut stripe = self.stripe(&name).lock();
        let (now, writes) = (self.clock.monotonic(), stripe.writes);
        let joined = stripe
            .heads
            .get(&name)
            .filter(|head| head.may_answer(demand, now, writes))
            .and_then(|head| head.answer.upgrade());
        if let Some(answer) = joined {
            return answer;
        }
        let id = self.next_head.fetch_add(1, Ordering::Relaxed);
        let entry = Entry {
            freshness: Arc::clone(self),
            name: name.clone(),
            id,
        };
        let answer = async move {
            // Readers that are about to run come first and join.
            tokio::task::yield_now().await;
            let ask = entry.sent();
            Arc::new(send(ask).await)
        };
        let answer = answer.boxed().shared();
        if let Some(weak) = answer.downgrade() {
            let head = HeadInFlight {
                id,
                answer: weak,
                sent: None,
            };
            stripe.heads.insert(name, head);
        }
        answer
    }
}

/// The entry of a `HEAD` among those under way; removed with it.
struct Entry {
    freshness: Arc<Freshness>,
    name: Name,
    id: u64,
}

impl Entry {
    /// Dates the `HEAD`: it is sent now.
    fn sent(&self) -> Ask {
        let mut stripe = self.freshness.stripe(&self.name).lock();
        let (at, writes) = (self.freshness.clock.monotonic(), stripe.writes);
        if let Some(head) = stripe.heads.get_mut(&self.name).filter(|head| head.id == self.id) {
            head.sent = Some(Sent { at, writes });
        }
        Ask {
            freshness: Arc::clone(&self.freshness),
            name: self.name.clone(),
            asked_at: at,
            writes,
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let mut stripe = self.freshness.stripe(&self.name).lock();
        if stripe
            .heads
            .get(&self.name)
            .is_some_and(|head| head.id == self.id)
        {
            stripe.heads.remove(&self.name);
        }
    }
}

#[cfg(test)]
mod tests;
