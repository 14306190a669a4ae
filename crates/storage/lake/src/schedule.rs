//! Reads ranges of one lake: in parallel, in order, bounded, with retries.
//!
//! [`ReadScheduler::fetch`] turns a range into a stream of exactly these bytes of exactly this version. Long
//! ranges are cut into parts (`plan`) that run side by side as tasks owned by the stream: dropping the stream
//! stops them. The stream hands out the parts in order; at most `parts_ahead_max` parts exist at once, so
//! what waits for a slow reader is bounded by `parts_ahead_max x part_bytes`. All requests to the lake pass
//! its [`Admission`], which learns how many the lake can take. `part` retries from the last good byte and pins the
//! version, `hedge` says when to ask twice.
//!
//! ```
//! # tokio::runtime::Runtime::new().unwrap().block_on(async {
//! use bytes::Bytes;
//! use forebay_core::{ByteRange, ObjectKey};
//! use forebay_lake::{FetchPriority, Lake, MemoryLake, PutOptions, ReadScheduler, SchedulerOptions};
//! use futures::TryStreamExt;
//! use std::sync::Arc;
//!
//! let lake: Arc<dyn Lake> = Arc::new(MemoryLake::new());
//! let key = ObjectKey::new("a")?;
//! let receipt = lake.put(&key, Bytes::from_static(b"0123456789"), PutOptions::default()).await?;
//! let scheduler = ReadScheduler::new(lake, SchedulerOptions::default());
//! let body = scheduler.fetch(&key, &receipt.version, 10, ByteRange::new(2, 5)?, FetchPriority::Demand)?;
//! let chunks: Vec<Bytes> = body.try_collect().await?;
//! assert_eq!(chunks.concat(), b"234");
//! # Ok::<(), forebay_core::Error>(()) }).unwrap();
//! ```

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use forebay_core::{ByteRange, Error, Kind, ObjectKey, Result, Version};
use futures::future::{BoxFuture, Shared as SharedFuture};
use futures::{FutureExt, StreamExt};
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

use crate::admission::{Admission, AdmissionOptions};
use crate::layer::retry::RetryPolicy;
use crate::{ByteStream, Lake};

mod hedge;
mod part;
pub mod plan;

use hedge::Hedge;
use part::Target;

/// Priority of a fetch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FetchPriority {
    /// A client waits.
    Demand,
    /// Nobody waits yet.
    ReadAhead,
}

/// Urgency of a fetch, now and later. Clones share it.
#[derive(Debug, Clone)]
pub struct FetchUrgency {
    /// Ends when read-ahead becomes demand; nothing if it was demand from the start.
    pub(crate) raised: Option<SharedFuture<BoxFuture<'static, ()>>>,
}

impl FetchUrgency {
    /// Read-ahead until the future ends, then demand: somebody waits for the bytes by now.
    pub fn read_ahead_until(raised: impl Future<Output = ()> + Send + 'static) -> Self {
        Self {
            raised: Some(raised.boxed().shared()),
        }
    }
}

impl From<FetchPriority> for FetchUrgency {
    fn from(priority: FetchPriority) -> Self {
        match priority {
            FetchPriority::Demand => Self { raised: None },
            FetchPriority::ReadAhead => Self::read_ahead_until(std::future::pending()),
        }
    }
}

/// Limits of a [`ReadScheduler`].
#[derive(Debug, Clone)]
pub struct SchedulerOptions {
    /// Longer ranges are cut into parts of this size.
    pub part_bytes: u64,
    /// Requests at the lake at once.
    pub in_flight_max: usize,
    /// Requests that may wait for a permit; more are `Busy`.
    pub waiting_max: usize,
    /// Parts of one fetch that run or wait to be taken at once.
    pub parts_ahead_max: usize,
    /// Chunks of one part that may wait for the reader.
    pub chunks_waiting_max: usize,
    /// A request without a byte for so long is given up and asked again.
    pub stall_max: Duration,
    /// Tries per part without progress.
    pub retry: RetryPolicy,
    /// Retries that all requests together may have outstanding; successes earn them back.
    pub retry_tokens_max: u32,
    /// The longest wait for a lake that throttles or is away.
    pub patience: Duration,
    /// The way to the lake that its other requests take. If there is one, it has the limits of requests, tries
    /// and patience, and those above count nothing; else reads have a way of their own.
    pub admission: Option<Arc<Admission>>,
    /// Sends late requests a second time.
    pub hedging: bool,
}

impl Default for SchedulerOptions {
    fn default() -> Self {
        Self {
            part_bytes: 8 << 20,
            in_flight_max: 64,
            waiting_max: 16_384,
            parts_ahead_max: 4,
            chunks_waiting_max: 128,
            stall_max: Duration::from_secs(15),
            retry: RetryPolicy::default(),
            retry_tokens_max: 200,
            patience: Duration::ZERO,
            admission: None,
            hedging: true,
        }
    }
}

/// Counters of a scheduler.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SchedulerStats {
    /// Requests at the lake now.
    pub in_flight: usize,
    /// Requests that may be at the lake now.
    pub window: usize,
    /// Requests sent, retries and hedges included.
    pub requests: u64,
    /// Requests that asked again after a failure.
    pub retries: u64,
    /// Second requests for late ones.
    pub hedges: u64,
    /// Hedges that were faster than the first request.
    pub hedges_won: u64,
    /// Bytes that hedges asked for; not part of `bytes` unless the hedge won.
    pub hedged_bytes: u64,
    /// Answers that told us to slow down.
    pub throttled: u64,
    /// Bytes read.
    pub bytes: u64,
}

#[derive(Debug, Default)]
struct Counters {
    requests: AtomicU64,
    retries: AtomicU64,
    hedges: AtomicU64,
    hedges_won: AtomicU64,
    throttled: AtomicU64,
    bytes: AtomicU64,
}

/// State that all parts share.
struct Shared {
    lake: Arc<dyn Lake>,
    options: SchedulerOptions,
    admission: Arc<Admission>,
    hedge: Hedge,
    counters: Counters,
}

/// The reader of one lake.
pub struct ReadScheduler {
    shared: Arc<Shared>,
}

impl fmt::Debug for ReadScheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadScheduler")
            .field("lake", &self.shared.lake.url())
            .field("stats", &self.stats())
            .finish()
    }
}

impl ReadScheduler {
    /// A scheduler in front of a lake; one per lake, because the window and the budget belong to the lake.
    #[must_use]
    pub fn new(lake: Arc<dyn Lake>, options: SchedulerOptions) -> Arc<Self> {
        let own = || {
            let limits = AdmissionOptions {
                in_flight_max: options.in_flight_max,
                waiting_max: options.waiting_max,
                retry: options.retry,
                retry_tokens_max: options.retry_tokens_max,
                patience: options.patience,
            };
            Admission::new(lake.url(), limits)
        };
        let shared = Shared {
            admission: options.admission.clone().unwrap_or_else(own),
            lake,
            options,
            hedge: Hedge::default(),
            counters: Counters::default(),
        };
        Arc::new(Self {
            shared: Arc::new(shared),
        })
    }

    /// The bytes of a range of one version, in order. The read starts at once (inside a tokio runtime) and
    /// stops when the stream is dropped. A replaced object ends the stream with `Changed`.
    pub fn fetch(
        &self,
        key: &ObjectKey,
        version: &Version,
        object_bytes: u64,
        range: ByteRange,
        urgency: impl Into<FetchUrgency>,
    ) -> Result<ByteStream> {
        if range.end() > object_bytes {
            return Err(
                Error::new(Kind::OutOfRange, "the range ends past the end of the object")
                    .with("key", key)
                    .with("range", range)
                    .with("object_bytes", object_bytes),
            );
        }
        let target = Arc::new(Target {
            key: key.clone(),
            version: version.clone(),
            object_bytes,
        });
        let parts = plan::split(range, self.shared.options.part_bytes);
        let mut fetch = Fetch {
            shared: Arc::clone(&self.shared),
            target,
            urgency: urgency.into(),
            waiting: Box::new(parts),
            running: VecDeque::new(),
        };
        fetch.start_parts();
        Ok(futures::stream::unfold(fetch, Fetch::next).boxed())
    }

    /// The lake behind.
    #[must_use]
    pub fn lake(&self) -> &Arc<dyn Lake> {
        &self.shared.lake
    }

    /// The way to the lake.
    #[must_use]
    pub fn admission(&self) -> &Arc<Admission> {
        &self.shared.admission
    }

    /// Returns what happened so far.
    #[must_use]
    pub fn stats(&self) -> SchedulerStats {
        let counters = &self.shared.counters;
        let (in_flight, window) = self.shared.admission.gate().load();
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        SchedulerStats {
            in_flight,
            window,
            requests: of(&counters.requests),
            retries: of(&counters.retries),
            hedges: of(&counters.hedges),
            hedges_won: of(&counters.hedges_won),
            hedged_bytes: self.shared.hedge.hedged_bytes(),
            throttled: of(&counters.throttled),
            bytes: of(&counters.bytes),
        }
    }
}

struct Running {
    chunks: mpsc::Receiver<Result<Bytes>>,
    bytes_missing: u64,
    _task: AbortOnDropHandle<()>,
}

/// The state of one stream.
struct Fetch {
    shared: Arc<Shared>,
    target: Arc<Target>,
    urgency: FetchUrgency,
    waiting: Box<dyn Iterator<Item = ByteRange> + Send>,
    running: VecDeque<Running>,
}

impl Fetch {
    /// Keeps the allowed number of parts running.
    fn start_parts(&mut self) {
        while self.running.len() < self.shared.options.parts_ahead_max.max(1) {
            let Some(range) = self.waiting.next() else { return };
            let (sender, chunks) = mpsc::channel(self.shared.options.chunks_waiting_max.max(1));
            let (shared, target, urgency) = (
                Arc::clone(&self.shared),
                Arc::clone(&self.target),
                self.urgency.clone(),
            );
            let task =
                tokio::spawn(async move { part::run(&shared, &target, range, &urgency, &sender).await });
            let task = AbortOnDropHandle::new(task);
            self.running.push_back(Running {
                chunks,
                bytes_missing: range.len(),
                _task: task,
            });
        }
    }

    /// The next chunk of the first part; goes to the next part when it is complete. An error ends the stream.
    async fn next(mut self) -> Option<(Result<Bytes>, Self)> {
        loop {
            let part = self.running.front_mut()?;
            if part.bytes_missing == 0 {
                self.running.pop_front();
                self.start_parts();
                continue;
            }
            let chunk = part.chunks.recv().await.unwrap_or_else(|| {
                Err(Error::new(Kind::Internal, "a read ended without its last bytes")
                    .with("key", &self.target.key))
            });
            match &chunk {
                Ok(bytes) => part.bytes_missing = part.bytes_missing.saturating_sub(bytes.len() as u64),
                Err(_) => {
                    self.running.clear();
                    self.waiting = Box::new(std::iter::empty());
                }
            }
            return Some((chunk, self));
        }
    }
}
