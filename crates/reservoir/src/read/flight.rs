//! A flight: one fetch past the cache that all who want the same bytes share.
//!
//! Life cycle: the first reader that finds no memory opens a flight over the bytes it wants; a task of the filler pulls them
//! from the source and keeps the last few megabytes. Readers join when their next byte is kept or comes soon, take chunks at
//! their own speed, and leave; with the last one the task ends. A reader that falls behind what is kept has to open or join
//! another flight, so a slow one delays nobody.
//!
//! Limits: a flight runs at most [`AHEAD_BYTES_MAX`] in front of its fastest reader and keeps at most [`KEPT_BYTES_MAX`] (and the
//! chunk that it got last); how many flights there are is bounded by their turns.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Weak};

use bytes::Bytes;
use forebay_core::{ByteRange, Error, Kind, Result};
use futures::StreamExt;
use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use crate::ObjectId;
use crate::fill::Want;

/// Flights at once.
const FLIGHTS_MAX: usize = 64;
/// Bytes that a flight keeps for readers that are slower than the fastest one.
const KEPT_BYTES_MAX: u64 = 4 << 20;
/// Bytes that it fetches before somebody asks for them.
const AHEAD_BYTES_MAX: u64 = 1 << 20;

/// All flights under way.
#[derive(Debug)]
pub(crate) struct Flights {
    by_object: Mutex<HashMap<ObjectId, Vec<Weak<Flight>>>>,
    turns: Arc<Semaphore>,
}

impl Default for Flights {
    fn default() -> Self {
        Self {
            by_object: Mutex::default(),
            turns: Arc::new(Semaphore::new(FLIGHTS_MAX)),
        }
    }
}

impl Flights {
    /// A turn to open a flight; waits for one.
    pub(super) async fn turn(&self) -> Result<OwnedSemaphorePermit> {
        let turn = Arc::clone(&self.turns).acquire_owned().await;
        turn.map_err(|_| Error::new(Kind::Cancelled, "the cache is shutting down"))
    }

    /// A seat in a flight that has the byte at `position` or will have it soon.
    pub(super) fn join(&self, id: &ObjectId, position: u64) -> Option<Seat> {
        let by_object = self.by_object.lock();
        let mut flights = by_object.get(id)?.iter().filter_map(Weak::upgrade);
        flights.find_map(|flight| flight.board(position))
    }

    /// Joins a flight that is there by now, or opens one: then the task that pulls it must be started.
    pub(super) fn join_or_open(
        &self,
        id: ObjectId,
        range: ByteRange,
        turn: OwnedSemaphorePermit,
    ) -> (Seat, Option<Puller>) {
        let mut by_object = self.by_object.lock();
        let flights = by_object.entry(id).or_default();
        flights.retain(|flight| flight.strong_count() > 0);
        let joined = flights.iter().filter_map(Weak::upgrade);
        if let Some(seat) = joined.into_iter().find_map(|flight| flight.board(range.start())) {
            return (seat, None);
        }
        let flight = Arc::new(Flight::new(range));
        flights.push(Arc::downgrade(&flight));
        by_object.retain(|_, flights| flights.iter().any(|flight| flight.strong_count() > 0));
        let puller = Puller {
            flight: Arc::clone(&flight),
            _turn: turn,
        };
        (Seat { flight }, Some(puller))
    }

    /// Readers in all flights.
    #[cfg(test)]
    pub(crate) fn seats(&self) -> usize {
        let by_object = self.by_object.lock();
        let flights = by_object.values().flatten().filter_map(Weak::upgrade);
        flights.map(|flight| flight.state.lock().seats).sum()
    }
}

/// One fetch under way.
#[derive(Debug)]
struct Flight {
    range: ByteRange,
    state: Mutex<State>,
    /// Wakes readers: there are more bytes, or the flight ended.
    arrived: Notify,
    /// Wakes the puller: a reader has moved on or left.
    moved: Notify,
}

#[derive(Debug)]
struct State {
    /// What is kept: `start..end` of the object.
    start: u64,
    end: u64,
    chunks: VecDeque<Bytes>,
    /// Where the fastest reader is.
    fastest: u64,
    seats: usize,
    /// Why it ended before its range did.
    failure: Option<Error>,
}

impl Flight {
    /// A flight with one reader and no bytes yet.
    fn new(range: ByteRange) -> Self {
        let state = State {
            start: range.start(),
            end: range.start(),
            chunks: VecDeque::new(),
            fastest: range.start(),
            seats: 1,
            failure: None,
        };
        Self {
            range,
            state: Mutex::new(state),
            arrived: Notify::new(),
            moved: Notify::new(),
        }
    }

    /// A seat for a reader at `position`, if the flight is of use to it. One without readers is about to end.
    fn board(self: &Arc<Self>, position: u64) -> Option<Seat> {
        let mut state = self.state.lock();
        let has_it = position >= state.start && position < self.range.end();
        let is_near = position <= state.end.saturating_add(AHEAD_BYTES_MAX);
        if !has_it || !is_near || state.seats == 0 || state.failure.is_some() {
            return None;
        }
        state.seats += 1;
        Some(Seat {
            flight: Arc::clone(self),
        })
    }

    /// Keeps a chunk, lets the oldest ones go; says whether it was the last.
    fn keep(&self, mut chunk: Bytes) -> bool {
        let mut state = self.state.lock();
        let missing = usize::try_from(self.range.end() - state.end).unwrap_or(usize::MAX);
        chunk.truncate(missing);
        if !chunk.is_empty() {
            state.end += chunk.len() as u64;
            state.chunks.push_back(chunk);
        }
        while state.end - state.start > KEPT_BYTES_MAX && state.chunks.len() > 1 {
            let gone = state.chunks.pop_front().map_or(0, |chunk| chunk.len() as u64);
            state.start += gone;
        }
        state.end == self.range.end()
    }

    fn fail(&self, error: Error) {
        self.state.lock().failure = Some(error);
        self.arrived.notify_waiters();
    }
}

/// What a reader finds at its position.
pub(super) enum Found {
    /// Bytes from there on.
    Bytes(Bytes),
    /// They were let go: it was too slow for this flight.
    Gone,
    /// The flight ended before it got there.
    Failed(Error),
}

/// A reader's place in a flight.
#[derive(Debug)]
pub(super) struct Seat {
    flight: Arc<Flight>,
}

impl Seat {
    /// Where the flight ends.
    pub(super) fn end(&self) -> u64 {
        self.flight.range.end()
    }

    /// The bytes at `position`, which lies before the end; waits for them. Cancel-safe.
    pub(super) async fn bytes_at(&self, position: u64) -> Found {
        loop {
            let mut arrived = std::pin::pin!(self.flight.arrived.notified());
            arrived.as_mut().enable();
            if let Some(found) = self.look(position) {
                return found;
            }
            arrived.await;
        }
    }

    fn look(&self, position: u64) -> Option<Found> {
        let mut state = self.flight.state.lock();
        if position > state.fastest {
            state.fastest = position;
            self.flight.moved.notify_waiters();
        }
        if position < state.start {
            return Some(Found::Gone);
        }
        let mut chunk_start = state.start;
        for chunk in &state.chunks {
            let skip = position - chunk_start;
            if skip < chunk.len() as u64 {
                let skip = usize::try_from(skip).expect("less than the length of a chunk");
                return Some(Found::Bytes(chunk.slice(skip..)));
            }
            chunk_start += chunk.len() as u64;
        }
        state.failure.as_ref().map(|error| Found::Failed(error.share()))
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.flight.state.lock().seats -= 1;
        self.flight.moved.notify_waiters();
    }
}

/// The side of a flight that gets the bytes. Dropping it ends the flight for its readers.
#[derive(Debug)]
pub(super) struct Puller {
    flight: Arc<Flight>,
    _turn: OwnedSemaphorePermit,
}

impl Puller {
    /// Pulls bytes as long as somebody wants them.
    pub(super) async fn pull(self, want: Want) {
        tokio::select! {
            biased;
            () = self.abandoned() => {}
            pulled = self.pull_all(&want) => {
                if let Err(error) = pulled {
                    self.flight.fail(error);
                }
            }
        }
    }

    async fn pull_all(&self, want: &Want) -> Result<()> {
        let range = self.flight.range;
        let mut stream = want.source.fetch(&want.object, range, &want.urgency).await?;
        loop {
            let Some(chunk) = stream.next().await else {
                return Err(
                    Error::new(Kind::Unavailable, "the lake sent fewer bytes than were asked for")
                        .with("range", range)
                        .with("bucket", &want.object.bucket)
                        .with("key", &want.object.key),
                );
            };
            let is_last = self.flight.keep(chunk?);
            self.flight.arrived.notify_waiters();
            if is_last {
                drop(stream);
                return std::future::pending().await; // What is kept stays for as long as there are readers.
            }
            self.wait_until(|state| state.end < state.fastest + AHEAD_BYTES_MAX)
                .await;
        }
    }

    async fn abandoned(&self) {
        self.wait_until(|state| state.seats == 0).await;
    }

    async fn wait_until(&self, is_so: impl Fn(&State) -> bool) {
        loop {
            let mut moved = std::pin::pin!(self.flight.moved.notified());
            moved.as_mut().enable();
            if is_so(&self.flight.state.lock()) {
                return;
            }
            moved.await;
        }
    }
}

impl Drop for Puller {
    fn drop(&mut self) {
        let mut state = self.flight.state.lock();
        if state.end < self.flight.range.end() && state.failure.is_none() {
            state.failure = Some(Error::new(Kind::Cancelled, "the cache is shutting down"));
        }
        drop(state);
        self.flight.arrived.notify_waiters();
    }
}
