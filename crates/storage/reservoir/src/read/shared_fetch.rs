//! A shared fetch: one fetch past the cache for all readers that want the same bytes.
//!
//! Life cycle: the first reader that finds no memory opens one over the bytes it wants; a task of the
//! filler pulls them from the source and keeps the last few megabytes. Readers join when their next byte is
//! kept or comes soon, take chunks at their own speed, and leave; with the last one the task ends. A reader
//! that falls behind what is kept has to open or join another fetch, so a slow one delays nobody.
//!
//! The bytes come by a fill (`fill.rs`): checked against the checksum they came with, from the fallback of the
//! source if need be.
//!
//! Limits: a fetch runs at most [`AHEAD_BYTES_MAX`] in front of its fastest reader and keeps at most
//! [`KEPT_BYTES_MAX`] (and the chunk that it got last); how many fetches there are is bounded by their
//! permits.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Weak};

use bytes::Bytes;
use forebay_core::{ByteRange, Error, Kind, Result, Tier};
use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use crate::fill::{BlockSink, Fill, FillControl, FillRequest, checked};
use crate::{ObjectId, SourceBlock};

/// Shared fetches at once.
const FETCHES_MAX: usize = 64;
/// Bytes that a fetch keeps for readers that are slower than the fastest one.
const KEPT_BYTES_MAX: u64 = 4 << 20;
/// Bytes that it fetches before somebody asks for them.
const AHEAD_BYTES_MAX: u64 = 1 << 20;

/// All fetches under way.
#[derive(Debug)]
pub(crate) struct SharedFetches {
    by_object: Mutex<HashMap<ObjectId, Vec<Weak<SharedFetch>>>>,
    permits: Arc<Semaphore>,
}

impl Default for SharedFetches {
    fn default() -> Self {
        Self {
            by_object: Mutex::default(),
            permits: Arc::new(Semaphore::new(FETCHES_MAX)),
        }
    }
}

impl SharedFetches {
    /// A permit to open a fetch; waits for one.
    pub(super) async fn permit(&self) -> Result<OwnedSemaphorePermit> {
        let permit = Arc::clone(&self.permits).acquire_owned().await;
        permit.map_err(|_| Error::new(Kind::Cancelled, "the cache is shutting down"))
    }

    /// A subscription in a fetch that has the byte at `position` or will have it soon.
    pub(super) fn join(&self, id: &ObjectId, position: u64, reader: &FillControl) -> Option<Subscription> {
        let by_object = self.by_object.lock();
        let mut fetches = by_object.get(id)?.iter().filter_map(Weak::upgrade);
        fetches.find_map(|fetch| fetch.subscribe(position, reader))
    }

    /// Joins a fetch that is there by now, or opens one: then the task that pulls it must be started.
    pub(super) fn join_or_open(
        &self,
        id: ObjectId,
        range: ByteRange,
        request: &FillRequest,
        permit: OwnedSemaphorePermit,
    ) -> (Subscription, Option<Producer>) {
        let mut by_object = self.by_object.lock();
        let fetches = by_object.entry(id).or_default();
        fetches.retain(|fetch| fetch.strong_count() > 0);
        let joined = fetches.iter().filter_map(Weak::upgrade);
        if let Some(subscription) = joined
            .into_iter()
            .find_map(|fetch| fetch.subscribe(range.start(), &request.control))
        {
            return (subscription, None);
        }
        let fetch = Arc::new(SharedFetch::new(range, request.control.clone()));
        fetches.push(Arc::downgrade(&fetch));
        by_object.retain(|_, fetches| fetches.iter().any(|fetch| fetch.strong_count() > 0));
        let producer = Producer {
            fetch: Arc::clone(&fetch),
            _permit: permit,
        };
        (Subscription { fetch }, Some(producer))
    }

    /// Readers in all fetches.
    #[cfg(test)]
    pub(crate) fn subscribers(&self) -> usize {
        let by_object = self.by_object.lock();
        let fetches = by_object.values().flatten().filter_map(Weak::upgrade);
        fetches.map(|fetch| fetch.state.lock().subscribers).sum()
    }
}

/// One fetch under way.
#[derive(Debug)]
struct SharedFetch {
    range: ByteRange,
    control: FillControl,
    state: Mutex<FetchState>,
    /// Wakes readers: there are more bytes, or the fetch ended.
    arrived: Notify,
    /// Wakes the producer: a reader has moved on or left.
    moved: Notify,
}

#[derive(Debug)]
struct FetchState {
    /// The kept bytes: `start..end` of the object.
    start: u64,
    end: u64,
    chunks: VecDeque<(Bytes, Tier)>,
    /// The position of the fastest reader.
    fastest: u64,
    subscribers: usize,
    /// Why it ended before its range did.
    failure: Option<Error>,
}

impl SharedFetch {
    /// A fetch with one reader and no bytes yet.
    fn new(range: ByteRange, control: FillControl) -> Self {
        let state = FetchState {
            start: range.start(),
            end: range.start(),
            chunks: VecDeque::new(),
            fastest: range.start(),
            subscribers: 1,
            failure: None,
        };
        Self {
            range,
            control,
            state: Mutex::new(state),
            arrived: Notify::new(),
            moved: Notify::new(),
        }
    }

    /// A subscription for a reader at `position`, if the fetch is of use to it. One without readers is about
    /// to end.
    fn subscribe(self: &Arc<Self>, position: u64, reader: &FillControl) -> Option<Subscription> {
        let mut state = self.state.lock();
        let has_it = position >= state.start && position < self.range.end();
        let is_near = position <= state.end.saturating_add(AHEAD_BYTES_MAX);
        if !has_it || !is_near || state.subscribers == 0 || state.failure.is_some() {
            return None;
        }
        state.subscribers += 1;
        self.control.join(reader);
        Some(Subscription {
            fetch: Arc::clone(self),
        })
    }

    /// Keeps a chunk, lets the oldest ones go.
    fn keep(&self, mut chunk: Bytes, tier: Tier) {
        let mut state = self.state.lock();
        let missing = usize::try_from(self.range.end() - state.end).unwrap_or(usize::MAX);
        chunk.truncate(missing);
        if !chunk.is_empty() {
            state.end += chunk.len() as u64;
            state.chunks.push_back((chunk, tier));
        }
        while state.end - state.start > KEPT_BYTES_MAX && state.chunks.len() > 1 {
            let gone = state
                .chunks
                .pop_front()
                .map_or(0, |(chunk, _)| chunk.len() as u64);
            state.start += gone;
        }
    }

    fn fail(&self, error: Error) {
        self.state.lock().failure = Some(error);
        self.arrived.notify_waiters();
    }
}

/// The bytes at a reader's position, or why there are none.
pub(super) enum FetchedBytes {
    /// Bytes from there on, and the tier that they came from.
    Bytes(Bytes, Tier),
    /// They were let go: it was too slow for this fetch.
    Gone,
    /// The fetch ended before it got there.
    Failed(Error),
}

/// A reader's place in a fetch.
#[derive(Debug)]
pub(super) struct Subscription {
    fetch: Arc<SharedFetch>,
}

impl Subscription {
    /// Returns where the fetch ends.
    pub(super) fn end(&self) -> u64 {
        self.fetch.range.end()
    }

    /// The bytes at `position`, which lies before the end; waits for them. Cancel-safe.
    pub(super) async fn bytes_at(&self, position: u64) -> FetchedBytes {
        loop {
            let mut arrived = std::pin::pin!(self.fetch.arrived.notified());
            arrived.as_mut().enable();
            if let Some(found) = self.look(position) {
                return found;
            }
            arrived.await;
        }
    }

    fn look(&self, position: u64) -> Option<FetchedBytes> {
        let mut state = self.fetch.state.lock();
        if position > state.fastest {
            state.fastest = position;
            self.fetch.moved.notify_waiters();
        }
        if position < state.start {
            return Some(FetchedBytes::Gone);
        }
        let mut chunk_start = state.start;
        for (chunk, tier) in &state.chunks {
            let skip = position - chunk_start;
            if skip < chunk.len() as u64 {
                let skip = usize::try_from(skip).expect("less than the length of a chunk");
                return Some(FetchedBytes::Bytes(chunk.slice(skip..), *tier));
            }
            chunk_start += chunk.len() as u64;
        }
        state
            .failure
            .as_ref()
            .map(|error| FetchedBytes::Failed(error.share()))
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.fetch.state.lock().subscribers -= 1;
        self.fetch.moved.notify_waiters();
    }
}

/// The side of a fetch that gets the bytes. Dropping it ends the fetch for its readers.
#[derive(Debug)]
pub(super) struct Producer {
    fetch: Arc<SharedFetch>,
    _permit: OwnedSemaphorePermit,
}

impl Producer {
    /// Pulls bytes as long as somebody wants them.
    pub(super) async fn pull(self, fill: Fill) {
        let mut chunks = Chunks { producer: &self };
        let all = async {
            match fill.run(&mut chunks).await {
                Ok(()) => std::future::pending().await, // What is kept stays for as long as there are readers.
                Err(error) => self.fetch.fail(error),
            }
        };
        tokio::select! {
            biased;
            () = self.abandoned() => {}
            () = all => {}
        }
    }

    async fn abandoned(&self) {
        self.wait_until(|state| state.subscribers == 0).await;
    }

    async fn wait_until(&self, is_so: impl Fn(&FetchState) -> bool) {
        loop {
            let mut moved = std::pin::pin!(self.fetch.moved.notified());
            moved.as_mut().enable();
            if is_so(&self.fetch.state.lock()) {
                return;
            }
            moved.await;
        }
    }
}

/// Keeps the bytes of the fill for the readers, a little ahead of the fastest.
struct Chunks<'a> {
    producer: &'a Producer,
}

impl BlockSink for Chunks<'_> {
    fn restart(&mut self) -> Option<ByteRange> {
        let fetch = &self.producer.fetch;
        let end = fetch.state.lock().end;
        ByteRange::new(end, fetch.range.end()).ok()
    }

    fn is_done(&self) -> bool {
        let fetch = &self.producer.fetch;
        fetch.state.lock().end == fetch.range.end()
    }

    async fn write(&mut self, block: SourceBlock) -> Result<()> {
        checked(&block)?;
        self.producer.fetch.keep(block.bytes, block.tier);
        self.producer.fetch.arrived.notify_waiters();
        if !self.is_done() {
            self.producer
                .wait_until(|state| state.end < state.fastest + AHEAD_BYTES_MAX)
                .await;
        }
        Ok(())
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        let mut state = self.fetch.state.lock();
        if state.end < self.fetch.range.end() && state.failure.is_none() {
            state.failure = Some(Error::new(Kind::Cancelled, "the cache is shutting down"));
        }
        drop(state);
        self.fetch.arrived.notify_waiters();
    }
}
