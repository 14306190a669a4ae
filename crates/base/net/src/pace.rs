//! The pace of a peer: how long a transfer may wait for its other end.
//!
//! A peer has a credit of time. Waiting for it uses the credit up, bytes that it moves earn it back at a
//! minimum rate, never beyond the grace that it began with. So a pause of any reason is fine as long as it is
//! short, a transfer at the minimum rate or above goes on for ever, and one byte a minute does not. Only time
//! in which we wait for the peer counts: a lake that is slow costs its clients nothing.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep};

/// Minimum that is asked of a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PaceLimits {
    /// The longest wait without a byte, and the most that can be earned.
    pub grace: Duration,
    /// Bytes a second that earn as much time as they may take; 0 lets any byte earn all of the grace.
    pub bytes_per_second_min: u64,
}

/// The credit of one direction of one transfer.
#[derive(Debug)]
pub struct Pace {
    limits: PaceLimits,
    credit: Duration,
    waiting_since: Option<Instant>,
    is_slow: bool,
    /// Made at the first wait: most transfers never have one.
    timer: Option<Pin<Box<Sleep>>>,
}

impl Pace {
    /// A transfer that begins.
    #[must_use]
    pub fn new(limits: PaceLimits) -> Self {
        Self {
            limits,
            credit: limits.grace,
            waiting_since: None,
            is_slow: false,
            timer: None,
        }
    }

    /// Waits for the peer; ready when its credit is used up.
    pub fn poll_wait(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let is_new = self.waiting_since.is_none();
        let since = *self.waiting_since.get_or_insert_with(Instant::now);
        let deadline = since + self.credit;
        let first = if self.is_slow {
            deadline
        } else {
            since + self.credit.saturating_sub(self.slow_credit())
        };
        let timer = self
            .timer
            .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(first)));
        if is_new {
            timer.as_mut().reset(first);
        }
        std::task::ready!(timer.as_mut().poll(cx));
        if self.is_slow {
            return Poll::Ready(());
        }
        self.is_slow = true;
        timer.as_mut().reset(deadline);
        timer.as_mut().poll(cx)
    }

    /// The wait is over, with so many bytes moved.
    pub fn moved(&mut self, bytes: usize) {
        if let Some(since) = self.waiting_since.take() {
            self.credit = self.credit.saturating_sub(since.elapsed());
            self.is_slow |= self.credit < self.slow_credit();
        }
        if bytes > 0 {
            self.credit = self
                .credit
                .saturating_add(self.earned(bytes))
                .min(self.limits.grace);
        }
    }

    /// Returns whether the peer has ever used up a quarter of the grace.
    #[must_use]
    pub fn is_slow(&self) -> bool {
        self.is_slow
    }

    fn slow_credit(&self) -> Duration {
        self.limits.grace / 4 * 3
    }

    fn earned(&self, bytes: usize) -> Duration {
        match self.limits.bytes_per_second_min {
            0 => self.limits.grace,
            rate => Duration::from_micros((bytes as u64).saturating_mul(1_000_000) / rate),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    const LIMITS: PaceLimits = PaceLimits {
        grace: Duration::from_secs(60),
        bytes_per_second_min: 1000,
    };

    /// Plays a peer that moves so many bytes each time it has waited; returns the time until it is cut.
    async fn time_until_cut(limits: PaceLimits, every: Duration, bytes: usize) -> Option<Duration> {
        let (mut pace, began) = (Pace::new(limits), Instant::now());
        while began.elapsed() < Duration::from_secs(3600) {
            tokio::select! {
                () = poll_fn(|cx| pace.poll_wait(cx)) => return Some(began.elapsed()),
                () = tokio::time::sleep(every) => pace.moved(bytes),
            }
        }
        None
    }

    #[tokio::test(start_paused = true)]
    async fn one_byte_now_and_then_is_no_progress() {
        let cut = time_until_cut(LIMITS, Duration::from_secs(50), 1).await;
        assert!(cut.is_some_and(|cut| cut < Duration::from_secs(61)), "{cut:?}");
        let silent = time_until_cut(LIMITS, Duration::from_secs(500), 1).await;
        assert_eq!(silent.map(|cut| cut.as_secs()), Some(60));
    }

    #[tokio::test(start_paused = true)]
    async fn the_minimum_rate_is_enough_for_ever_also_in_lumps() {
        assert_eq!(time_until_cut(LIMITS, Duration::from_secs(1), 1000).await, None);
        assert_eq!(
            time_until_cut(LIMITS, Duration::from_secs(50), 50_000).await,
            None
        );
        assert!(
            time_until_cut(LIMITS, Duration::from_secs(1), 900)
                .await
                .is_some()
        );
    }

    #[tokio::test(start_paused = true)]
    async fn bytes_that_came_early_buy_no_more_than_the_grace() {
        let mut pace = Pace::new(LIMITS);
        pace.moved(1 << 30);
        let began = Instant::now();
        poll_fn(|cx| pace.poll_wait(cx)).await;
        assert_eq!(began.elapsed().as_secs(), 60);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_peer_is_known_before_it_is_cut() {
        let mut pace = Pace::new(LIMITS);
        let wait = poll_fn(|cx| {
            let waited = pace.poll_wait(cx);
            if pace.is_slow() {
                Poll::Ready(waited.is_ready())
            } else {
                Poll::Pending
            }
        });
        let began = Instant::now();
        assert!(!wait.await, "it still has credit");
        assert_eq!(began.elapsed().as_secs(), 15);
        poll_fn(|cx| pace.poll_wait(cx)).await;
        assert_eq!(began.elapsed().as_secs(), 60);
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_rate_any_byte_counts() {
        let any = PaceLimits {
            bytes_per_second_min: 0,
            ..LIMITS
        };
        assert_eq!(time_until_cut(any, Duration::from_secs(50), 1).await, None);
    }
}
