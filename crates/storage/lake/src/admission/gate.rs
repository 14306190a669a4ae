//! Bounds the requests at the lake and decides who goes first.
//!
//! The window follows the lake: it shrinks by a third when the lake does not answer in time (once per reaction
//! time, so that one burst of errors counts once) and grows by one request per window of successes, up to the
//! configured limit. Demand goes before read-ahead, and read-ahead may take at most three quarters of the
//! window, so that a demand read finds room even when read-ahead is busy. Waiters are a bounded queue; a
//! permit is returned when dropped, also when it was handed to a waiter that had given up.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use forebay_core::{Error, Kind, Result};
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::schedule::{FetchPriority, FetchUrgency};

/// Place of a request among those that wait for a permit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// Behind those that came before.
    Back,
    /// Before them: it had its turn already, and the lake sent it back.
    Front,
}

/// One burst of errors shrinks the window once.
const REACTION: Duration = Duration::from_millis(200);
/// Share of the window that is left after a shrink.
const SHRINK: f64 = 0.66;

#[derive(Debug)]
struct GateState {
    window: f64,
    in_flight: usize,
    ahead_in_flight: usize,
    demand: VecDeque<oneshot::Sender<Permit>>,
    ahead: VecDeque<oneshot::Sender<Permit>>,
    shrunk_at: Option<Instant>,
}

/// The window of one lake.
#[derive(Debug)]
pub(crate) struct Gate {
    in_flight_max: usize,
    waiting_max: usize,
    state: Mutex<GateState>,
}

/// Permission for one request at the lake; dropping it admits the next waiter.
#[derive(Debug)]
pub(crate) struct Permit {
    /// `None` once it was given back by hand.
    gate: Option<Arc<Gate>>,
    priority: FetchPriority,
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(gate) = self.gate.take() {
            gate.state.lock().free(self.priority);
            gate.admit();
        }
    }
}

impl Gate {
    pub(crate) fn new(in_flight_max: usize, waiting_max: usize) -> Arc<Self> {
        let in_flight_max = in_flight_max.max(1);
        let state = GateState {
            window: in_flight_max as f64,
            in_flight: 0,
            ahead_in_flight: 0,
            demand: VecDeque::new(),
            ahead: VecDeque::new(),
            shrunk_at: None,
        };
        Arc::new(Self {
            in_flight_max,
            waiting_max,
            state: Mutex::new(state),
        })
    }

    /// Waits for a permit; a read-ahead that is raised meanwhile goes over to those in demand. Cancel-safe.
    pub(crate) async fn enter(self: &Arc<Self>, urgency: &FetchUrgency, place: Place) -> Result<Permit> {
        if let Some(raised) = &urgency.raised {
            tokio::select! {
                biased;
                () = raised.clone() => {}
                permit = self.wait(FetchPriority::ReadAhead, place) => return permit,
            }
        }
        self.wait(FetchPriority::Demand, place).await
    }

    async fn wait(self: &Arc<Self>, priority: FetchPriority, place: Place) -> Result<Permit> {
        let admitted = {
            let mut state = self.state.lock();
            if state.demand.len() + state.ahead.len() >= self.waiting_max {
                state.forget_cancelled();
            }
            if state.demand.len() + state.ahead.len() >= self.waiting_max {
                return Err(
                    Error::new(Kind::Busy, "too many requests wait for the lake; try again later")
                        .with("waiting_max", self.waiting_max),
                );
            }
            let (sender, admitted) = oneshot::channel();
            let queue = match priority {
                FetchPriority::Demand => &mut state.demand,
                FetchPriority::ReadAhead => &mut state.ahead,
            };
            match place {
                Place::Back => queue.push_back(sender),
                Place::Front => queue.push_front(sender),
            }
            admitted
        };
        self.admit();
        admitted
            .await
            .map_err(|_| Error::new(Kind::Internal, "the gate dropped a waiter"))
    }

    /// A permit for a second try at the same bytes: only if nobody waits and the lake is not what limits us.
    pub(crate) fn enter_spare(self: &Arc<Self>) -> Option<Permit> {
        let mut state = self.state.lock();
        let is_limited =
            state.window_requests() < self.in_flight_max || state.in_flight >= self.in_flight_max;
        if is_limited || !state.demand.is_empty() || !state.ahead.is_empty() {
            return None;
        }
        state.in_flight += 1;
        Some(Permit {
            gate: Some(Arc::clone(self)),
            priority: FetchPriority::Demand,
        })
    }

    /// The lake answered well.
    pub(crate) fn grow(&self) {
        let mut state = self.state.lock();
        state.window = (state.window + 1.0 / state.window).min(self.in_flight_max as f64);
    }

    /// The lake did not answer in time.
    pub(crate) fn shrink(&self) {
        let mut state = self.state.lock();
        let now = Instant::now();
        if state
            .shrunk_at
            .is_some_and(|at| now.duration_since(at) < REACTION)
        {
            return;
        }
        state.shrunk_at = Some(now);
        state.window = (state.window * SHRINK).max(1.0);
    }

    /// Requests at the lake now, and how many there may be.
    pub(crate) fn load(&self) -> (usize, usize) {
        let state = self.state.lock();
        (state.in_flight, state.window_requests())
    }

    /// Lets in whoever fits.
    fn admit(self: &Arc<Self>) {
        loop {
            let Some((sender, priority)) = self.state.lock().next() else {
                return;
            };
            let permit = Permit {
                gate: Some(Arc::clone(self)),
                priority,
            };
            if let Err(mut unclaimed) = sender.send(permit) {
                // The waiter gave up. Freed by hand, because its drop would call us again, once per such
                // waiter.
                unclaimed.gate = None;
                self.state.lock().free(priority);
            }
        }
    }
}

impl GateState {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the window lies between 1 and a usize"
    )]
    fn window_requests(&self) -> usize {
        self.window as usize
    }

    fn next(&mut self) -> Option<(oneshot::Sender<Permit>, FetchPriority)> {
        let window = self.window_requests();
        if self.in_flight >= window {
            return None;
        }
        if let Some(sender) = self.demand.pop_front() {
            self.in_flight += 1;
            return Some((sender, FetchPriority::Demand));
        }
        if self.ahead_in_flight >= (window * 3 / 4).max(1) {
            return None;
        }
        let sender = self.ahead.pop_front()?;
        self.in_flight += 1;
        self.ahead_in_flight += 1;
        Some((sender, FetchPriority::ReadAhead))
    }

    fn free(&mut self, priority: FetchPriority) {
        self.in_flight -= 1;
        if priority == FetchPriority::ReadAhead {
            self.ahead_in_flight -= 1;
        }
    }

    fn forget_cancelled(&mut self) {
        self.demand.retain(|sender| !sender.is_closed());
        self.ahead.retain(|sender| !sender.is_closed());
    }
}
