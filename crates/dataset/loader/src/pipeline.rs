//! The threads of a loader: fetchers make batches ahead of the consumer, a bounded queue gives them out in
//! order.
//!
//! A fetcher takes the next step under the lock, makes its batch without it, and puts it into the queue at
//! its place; the consumer takes the first one when it is there. Steps go on over the end of an epoch, whose
//! place in the queue is an [`Entry::End`]. Bounds: steps taken and not yet handed over (`batches_ahead`),
//! and bytes that are ready (`ready_bytes_max`; one batch is always allowed). The first batch is made alone:
//! it should have the lake for itself.
//!
//! Waking a thread costs as much as some samples do, so nobody is woken in vain: the consumer by the batch
//! that it waits for, fetchers when one of them waits, and whoever reads ahead when the consumer has come a
//! good way ([`prefetch::Prefetcher::look_every`]).
//!
//! What has to be decoded is decoded by a pool of its own (`decoding.rs`), while its fetcher waits.
//!
//! Life cycle: started by the loader when a batch is asked for, closed and joined when it is dropped; a call
//! to the node that is under way ends first, within the client's timeout. Locks are those of std, which have
//! no state outside of themselves: in a forked child the threads are gone and a lock may be held for ever,
//! so a pipeline that a child inherits is never waited for, only left ([`Pipeline::is_own`]).

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forebay_client::{Interrupt, LoaderReport, TierBytes};
use forebay_core::{Error, Kind, Result};
use forebay_dataset::order::{self, Ranks, Split};

use crate::assemble::{Assembler, Batch};
use crate::dataset::Inner;
use crate::decoding::Decoding;
use crate::fetch::nanoseconds;
use crate::leased_pages::{self, LeasedPages};
use crate::options::LoaderOptions;
use crate::prefetch;
use crate::reporter::Reporter;
use crate::sampler::Sampler;
use crate::working_set_hint::WorkingSetHint;

/// Period in which a wait checks for interrupts and dead threads.
const WAIT_SLICE: Duration = Duration::from_millis(100);
/// Shortest time between two reports to the node.
const REPORT_EVERY: Duration = Duration::from_secs(1);

/// Input of a pipeline.
pub(crate) struct Job {
    pub(crate) sampler: Arc<Sampler>,
    pub(crate) datasets: Arc<[Arc<Inner>]>,
    pub(crate) options: LoaderOptions,
    /// Position to begin at.
    pub(crate) epoch: u64,
    pub(crate) position: u64,
}

/// Output of a pipeline, in order.
pub(crate) enum Entry {
    Batch(Box<Batch>),
    /// This epoch is over.
    End(u64),
}

/// An entry and what it cost to wait for it.
pub(crate) struct Next {
    pub(crate) entry: Result<Entry>,
    pub(crate) wait_ns: u64,
    pub(crate) was_ready: bool,
}

/// Running threads.
pub(crate) struct Pipeline {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    pid: u32,
    /// One hint for each dataset; ends after the threads.
    _hints: Vec<WorkingSetHint>,
}

/// State that the threads and the consumer share.
pub(crate) struct Shared {
    pub(crate) job: Job,
    queue: Mutex<BatchQueue>,
    /// The batch that the consumer waits for is there.
    filled: Condvar,
    /// There is room for another batch.
    room: Condvar,
    /// The first batch was made, or the consumer has moved on.
    moved: Condvar,
    pub(crate) prefetched: [AtomicU64; 5],
    decoding: Arc<Decoding>,
    pub(crate) leased: Arc<LeasedPages>,
    /// Positions that the consumer goes before somebody looks whether more can be read ahead.
    look_every: u64,
    reporter: Reporter,
}

struct BatchQueue {
    /// The next step: its epoch and number.
    epoch: u64,
    step: u64,
    split: Split,
    /// Number of the next entry that somebody begins, and of the next one to hand over.
    next: u64,
    head: u64,
    entries: BTreeMap<u64, Result<Entry>>,
    ready_bytes: u64,
    /// Epoch and position of the consumer.
    consumed: (u64, u64),
    /// Positions that it has gone since somebody looked whether more can be read ahead.
    unseen: u64,
    /// Fetchers that wait for room.
    idle_fetchers: usize,
    is_awaited: bool,
    closed: bool,
}

/// One entry to make.
struct Ticket {
    number: u64,
    epoch: u64,
    step: Option<(order::Batch, u64)>,
}

impl Pipeline {
    /// Starts the threads.
    pub(crate) fn start(job: Job) -> Result<Self> {
        let split = Split::new(job.sampler.epoch_samples(), job.position, job.options.ranks())?;
        let queue = BatchQueue {
            epoch: job.epoch,
            step: 0,
            split,
            next: 0,
            head: 0,
            entries: BTreeMap::new(),
            ready_bytes: 0,
            consumed: (job.epoch, job.position),
            unseen: 0,
            idle_fetchers: 0,
            is_awaited: false,
            closed: false,
        };
        let decoding = Arc::new(Decoding::new(&job.options.decode));
        let decode_threads = if decoding.has_pool() {
            job.options.decode_threads
        } else {
            0
        };
        let plans = job.sampler.plans().iter().zip(job.datasets.iter());
        let hints: Vec<WorkingSetHint> = plans
            .map(|(plan, dataset)| WorkingSetHint::begin(dataset, plan))
            .collect();
        let node_ram_bytes = hints.iter().map(|hints| hints.node_ram_bytes).min().flatten();
        let ahead = prefetch::Prefetcher::new(&job, &hints);
        let shared = Arc::new(Shared {
            job,
            leased: LeasedPages::start(node_ram_bytes),
            queue: Mutex::new(queue),
            filled: Condvar::new(),
            room: Condvar::new(),
            moved: Condvar::new(),
            prefetched: Default::default(),
            decoding,
            look_every: ahead.as_ref().map_or(u64::MAX, prefetch::Prefetcher::look_every),
            reporter: Reporter::default(),
        });
        let mut pipeline = Self {
            shared,
            threads: Vec::new(),
            pid: std::process::id(),
            _hints: hints,
        };
        for _ in 0..pipeline.shared.job.options.fetch_threads {
            pipeline.spawn("forebay-fetch", Shared::fetch)?;
        }
        for _ in 0..decode_threads {
            pipeline.spawn("forebay-decode", |shared| shared.decoding.run())?;
        }
        if let Some(ahead) = ahead {
            let ahead = Arc::new(Mutex::new(ahead));
            for _ in 0..prefetch::THREADS {
                let ahead = Arc::clone(&ahead);
                pipeline.spawn("forebay-ahead", move |shared| prefetch::run(shared, &ahead))?;
            }
        }
        Ok(pipeline)
    }

    fn spawn(&mut self, name: &str, work: impl FnOnce(&Shared) + Send + 'static) -> Result<()> {
        let shared = Arc::clone(&self.shared);
        let thread = std::thread::Builder::new()
            .name(name.into())
            .spawn(move || work(&shared))
            .map_err(|why| Error::io("cannot start a thread of the loader", why))?;
        self.threads.push(thread);
        Ok(())
    }

    /// Returns whether this process started it.
    pub(crate) fn is_own(&self) -> bool {
        self.pid == std::process::id()
    }

    /// The next entry; waits for it. `Cancelled` if interrupted, and then nothing is lost.
    pub(crate) fn next(&self, interrupt: Option<&Interrupt>) -> Result<Next> {
        let started = Instant::now();
        let mut queue = self.shared.lock();
        let head = queue.head;
        let was_ready = queue.entries.contains_key(&head);
        while !queue.entries.contains_key(&head) {
            queue.is_awaited = true;
            let waited = self.shared.filled.wait_timeout(queue, WAIT_SLICE);
            let (again, time) = waited.unwrap_or_else(PoisonError::into_inner);
            queue = again;
            queue.is_awaited = false;
            if !time.timed_out() {
                continue;
            }
            if interrupt.is_some_and(|interrupt| interrupt()) {
                let message = "interrupted while waiting for a batch";
                return Err(Error::new(Kind::Cancelled, message));
            }
            if self.threads.iter().any(JoinHandle::is_finished) {
                return Err(Error::new(
                    Kind::Internal,
                    "a thread of the loader has ended before its time",
                ));
            }
        }
        let entry = queue.entries.remove(&head);
        queue.head += 1;
        let was_seen = queue.unseen < self.shared.look_every;
        match &entry {
            Some(Ok(Entry::Batch(batch))) => {
                queue.ready_bytes -= batch.memory_bytes;
                queue.unseen += batch.position_after.saturating_sub(queue.consumed.1);
                queue.consumed = (batch.epoch, batch.position_after);
            }
            Some(Ok(Entry::End(epoch))) => queue.consumed = (epoch + 1, 0),
            _ => {}
        }
        let has_moved = was_seen && queue.unseen >= self.shared.look_every;
        let has_idle = queue.idle_fetchers > 0 && queue.has_room(&self.shared.job.options);
        drop(queue);
        if has_idle {
            self.shared.room.notify_one();
        }
        if has_moved {
            self.shared.moved.notify_all();
        }
        Ok(Next {
            entry: entry.unwrap_or_else(|| Err(Error::new(Kind::Internal, "an entry has left the queue"))),
            wait_ns: nanoseconds(started.elapsed()),
            was_ready,
        })
    }

    /// Counts what was handed over, for the node's metrics.
    pub(crate) fn count(&self, more: &LoaderReport) {
        self.shared.reporter.add(more);
    }

    /// Returns where the bytes of the prefetcher came from.
    pub(crate) fn prefetched(&self) -> TierBytes {
        let [ram, nvme, peer, lake, copied] = &self.shared.prefetched;
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        TierBytes {
            ram: of(ram),
            nvme: of(nvme),
            peer: of(peer),
            lake: of(lake),
            copied: of(copied),
        }
    }
}

impl Drop for Pipeline {
    fn drop(&mut self) {
        if !self.is_own() {
            // A forked child: the threads are its parent's. Ready batches are let go if nobody held the
            // lock at the fork.
            if let Ok(mut queue) = self.shared.queue.try_lock() {
                queue.entries.clear();
            }
            self.shared.leased.clear_in_child();
            self.threads.drain(..).for_each(std::mem::forget);
            return;
        }
        self.shared.lock().closed = true;
        self.shared.decoding.close();
        self.shared.room.notify_all();
        self.shared.moved.notify_all();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of the loader has panicked");
            }
        }
        self.shared
            .reporter
            .send(&self.shared.job.datasets, Duration::ZERO);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, BatchQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a fetcher until the queue is closed.
    fn fetch(&self) {
        let mut assembler = Assembler {
            sampler: Arc::clone(&self.job.sampler),
            datasets: Arc::clone(&self.job.datasets),
            on_error: self.job.options.on_error,
            decoding: Arc::clone(&self.decoding),
            leased: Arc::clone(&self.leased),
            cursor: None,
        };
        while let Some(ticket) = self.take() {
            let entry = match &ticket.step {
                None => Ok(Entry::End(ticket.epoch)),
                Some((step, position_after)) => {
                    let batch = assembler.batch(ticket.epoch, step, *position_after);
                    batch.map(|batch| Entry::Batch(Box::new(batch)))
                }
            };
            let mut queue = self.lock();
            if let Ok(Entry::Batch(batch)) = &entry {
                queue.ready_bytes += batch.memory_bytes;
            }
            queue.entries.insert(ticket.number, entry);
            let is_awaited = queue.is_awaited && queue.head == ticket.number;
            drop(queue);
            if is_awaited {
                self.filled.notify_one();
            }
            if ticket.number == 0 {
                // Others have waited until it was made.
                self.room.notify_all();
                self.moved.notify_all();
            }
            self.reporter.send(&self.job.datasets, REPORT_EVERY);
        }
    }

    /// The next step to make, when there is room for it; `None` when all is over.
    fn take(&self) -> Option<Ticket> {
        let mut queue = self.lock();
        loop {
            if queue.closed {
                return None;
            }
            if queue.has_room(&self.job.options) {
                let ticket = queue.ticket(self.job.sampler.epoch_samples(), self.job.options.ranks());
                if queue.idle_fetchers > 0 && queue.has_room(&self.job.options) {
                    self.room.notify_one();
                }
                return Some(ticket);
            }
            queue.idle_fetchers += 1;
            queue = self.room.wait(queue).unwrap_or_else(PoisonError::into_inner);
            queue.idle_fetchers -= 1;
        }
    }

    /// Returns where the consumer stands, once a batch was made; `None` when all is over.
    pub(crate) fn consumed(&self) -> Option<(u64, u64)> {
        let mut queue = self.lock();
        while !queue.closed && queue.head == 0 && queue.entries.is_empty() {
            queue = self.moved.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        (!queue.closed).then_some(queue.consumed)
    }

    /// Waits until the consumer has come a good way since the last call, or for [`leased_pages::IDLE`]; if it
    /// has not moved at all by then, what is leased for it is given back.
    pub(crate) fn wait_moved(&self) {
        let mut queue = self.lock();
        let before = queue.consumed;
        while !queue.closed && queue.unseen < self.look_every {
            let waited = self.moved.wait_timeout(queue, leased_pages::IDLE);
            let (again, time) = waited.unwrap_or_else(PoisonError::into_inner);
            queue = again;
            if time.timed_out() && queue.consumed == before {
                drop(queue);
                self.leased.clear();
                queue = self.lock();
            } else if time.timed_out() {
                break;
            }
        }
        queue.unseen = 0;
    }
}

impl BatchQueue {
    fn has_room(&self, options: &LoaderOptions) -> bool {
        let ahead = self.next - self.head;
        let first_is_there = self.entries.contains_key(&self.head);
        // Somebody waits for the very first batch: it has the lake for itself.
        if self.head == 0 && !first_is_there && ahead > 0 {
            return false;
        }
        ahead < options.batches_ahead as u64
            && !(first_is_there && self.ready_bytes >= options.ready_bytes_max)
    }

    fn ticket(&mut self, samples: Option<u64>, ranks: Ranks) -> Ticket {
        let number = self.next;
        let epoch = self.epoch;
        self.next += 1;
        let step = self.split.batch(self.step);
        let step = step.map(|step| (step, self.split.position_after(step.step + 1)));
        if step.is_some() {
            self.step += 1;
        } else {
            self.epoch += 1;
            self.step = 0;
            // The same numbers made a split before; position 0 is in every epoch.
            self.split = Split::new(samples, 0, ranks).unwrap_or(self.split);
        }
        Ticket { number, epoch, step }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_batch_is_made_alone_and_then_as_many_as_may_be_ahead() {
        let options = LoaderOptions::default();
        let mut queue = BatchQueue {
            epoch: 0,
            step: 0,
            split: Split::new(Some(100), 0, options.ranks()).unwrap(),
            next: 0,
            head: 0,
            entries: BTreeMap::new(),
            ready_bytes: 0,
            consumed: (0, 0),
            unseen: 0,
            idle_fetchers: 0,
            is_awaited: false,
            closed: false,
        };
        assert!(queue.has_room(&options));
        let first = queue.ticket(Some(100), options.ranks());
        assert!(
            !queue.has_room(&options),
            "the first batch has the lake for itself"
        );
        queue.entries.insert(first.number, Ok(Entry::End(0)));
        for _ in 1..options.batches_ahead {
            assert!(queue.has_room(&options));
            queue.ticket(Some(100), options.ranks());
        }
        assert!(!queue.has_room(&options));
        // Later ones are made side by side, also while the consumer waits.
        queue.entries.clear();
        queue.head = 1;
        assert!(queue.has_room(&options));
    }
}
