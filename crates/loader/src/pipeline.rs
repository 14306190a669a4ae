//! The threads of a loader: fetchers make batches ahead of the consumer, a bounded line gives them out in order.
//!
//! A fetcher takes the next step under the lock, makes its batch without it, and puts it into the line at its place; the consumer takes the first
//! one when it is there. Steps go on over the end of an epoch, whose place in the line is an [`Entry::End`]. Bounds: steps taken and not yet
//! handed over (`batches_ahead`), and bytes that are ready (`ready_bytes_max`; one batch is always allowed). The first batch is made alone: it should have
//! the lake for itself.
//!
//! Waking a thread costs as much as some samples do, so nobody is woken in vain: the consumer by the batch that it waits for, fetchers when one of them waits,
//! and whoever reads ahead when the consumer has come a good way ([`prefetch::Ahead::look_every`]).
//!
//! What has to be decoded is decoded by a pool of its own (`decoding.rs`), while its fetcher waits.
//!
//! Life cycle: started by the loader when a batch is asked for, closed and joined when it is dropped; a call to the node that is under way
//! ends first, within the client's timeout. Locks are those of std, which have no state outside of themselves: in a forked child the
//! threads are gone and a lock may be held for ever, so a pipeline that a child inherits is never waited for, only left ([`Pipeline::is_own`]).

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forebay_client::{Interrupt, Loaded, Sources};
use forebay_core::{Error, Kind, Result};
use forebay_dataset::order::{self, Ranks, Split};

use crate::assemble::{Assembler, Batch};
use crate::course::Course;
use crate::dataset::Inner;
use crate::decoding::Decoding;
use crate::fetch::nanoseconds;
use crate::held::{self, Held};
use crate::options::LoaderOptions;
use crate::prefetch;
use crate::report::Report;
use crate::rounds::Rounds;

/// How often a wait looks around.
const WAIT_SLICE: Duration = Duration::from_millis(100);
/// How often the node hears what was handed over, at most.
const REPORT_EVERY: Duration = Duration::from_secs(1);

/// What a pipeline works on.
pub(crate) struct Job {
    pub(crate) course: Arc<Course>,
    pub(crate) datasets: Arc<[Arc<Inner>]>,
    pub(crate) options: LoaderOptions,
    /// Where to begin.
    pub(crate) epoch: u64,
    pub(crate) position: u64,
}

/// What comes out, in order.
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
    /// What the nodes were told, one for each dataset; ends after the threads.
    _rounds: Vec<Rounds>,
}

/// What the threads and the consumer share.
pub(crate) struct Shared {
    pub(crate) job: Job,
    line: Mutex<Line>,
    /// The batch that the consumer waits for is there.
    filled: Condvar,
    /// There is room for another batch.
    room: Condvar,
    /// The first batch was made, or the consumer has moved on.
    moved: Condvar,
    pub(crate) prefetched: [AtomicU64; 5],
    decoding: Arc<Decoding>,
    pub(crate) held: Arc<Held>,
    /// Positions that the consumer goes before somebody looks whether more can be read ahead.
    look_every: u64,
    report: Report,
}

struct Line {
    /// The next step: its epoch and number.
    epoch: u64,
    step: u64,
    split: Split,
    /// Number of the next entry that somebody begins, and of the next one to hand over.
    next: u64,
    head: u64,
    entries: BTreeMap<u64, Result<Entry>>,
    ready_bytes: u64,
    /// Where the consumer stands: epoch and position.
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
        let split = Split::new(job.course.epoch_samples(), job.position, job.options.ranks())?;
        let line = Line {
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
        let plans = job.course.plans().iter().zip(job.datasets.iter());
        let rounds: Vec<Rounds> = plans
            .map(|(plan, dataset)| Rounds::begin(dataset, plan))
            .collect();
        let node_ram_bytes = rounds.iter().map(|rounds| rounds.node_ram_bytes).min().flatten();
        let ahead = prefetch::Ahead::new(&job, &rounds);
        let shared = Arc::new(Shared {
            job,
            held: Held::start(node_ram_bytes),
            line: Mutex::new(line),
            filled: Condvar::new(),
            room: Condvar::new(),
            moved: Condvar::new(),
            prefetched: Default::default(),
            decoding,
            look_every: ahead.as_ref().map_or(u64::MAX, prefetch::Ahead::look_every),
            report: Report::default(),
        });
        let mut pipeline = Self {
            shared,
            threads: Vec::new(),
            pid: std::process::id(),
            _rounds: rounds,
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

    /// Whether this process started it.
    pub(crate) fn is_own(&self) -> bool {
        self.pid == std::process::id()
    }

    /// The next entry; waits for it. `Cancelled` if interrupted, and then nothing is lost.
    pub(crate) fn next(&self, interrupt: Option<&Interrupt>) -> Result<Next> {
        let started = Instant::now();
        let mut line = self.shared.lock();
        let head = line.head;
        let was_ready = line.entries.contains_key(&head);
        while !line.entries.contains_key(&head) {
            line.is_awaited = true;
            let waited = self.shared.filled.wait_timeout(line, WAIT_SLICE);
            let (again, time) = waited.unwrap_or_else(PoisonError::into_inner);
            line = again;
            line.is_awaited = false;
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
        let entry = line.entries.remove(&head);
        line.head += 1;
        let was_seen = line.unseen < self.shared.look_every;
        match &entry {
            Some(Ok(Entry::Batch(batch))) => {
                line.ready_bytes -= batch.memory_bytes;
                line.unseen += batch.position_after.saturating_sub(line.consumed.1);
                line.consumed = (batch.epoch, batch.position_after);
            }
            Some(Ok(Entry::End(epoch))) => line.consumed = (epoch + 1, 0),
            _ => {}
        }
        let has_moved = was_seen && line.unseen >= self.shared.look_every;
        let has_idle = line.idle_fetchers > 0 && line.has_room(&self.shared.job.options);
        drop(line);
        if has_idle {
            self.shared.room.notify_one();
        }
        if has_moved {
            self.shared.moved.notify_all();
        }
        Ok(Next {
            entry: entry.unwrap_or_else(|| Err(Error::new(Kind::Internal, "an entry has left the line"))),
            wait_ns: nanoseconds(started.elapsed()),
            was_ready,
        })
    }

    /// Counts what was handed over, for the node's metrics.
    pub(crate) fn count(&self, more: &Loaded) {
        self.shared.report.add(more);
    }

    /// Where the bytes of the prefetcher came from.
    pub(crate) fn prefetched(&self) -> Sources {
        let [ram, nvme, peer, lake, copied] = &self.shared.prefetched;
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Sources {
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
            // A forked child: the threads are its parent's. Ready batches are let go if nobody held the lock at the fork.
            if let Ok(mut line) = self.shared.line.try_lock() {
                line.entries.clear();
            }
            self.shared.held.clear_in_child();
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
        self.shared.report.send(&self.shared.job.datasets, Duration::ZERO);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The life of a fetcher.
    fn fetch(&self) {
        let mut assembler = Assembler {
            course: Arc::clone(&self.job.course),
            datasets: Arc::clone(&self.job.datasets),
            on_error: self.job.options.on_error,
            decoding: Arc::clone(&self.decoding),
            held: Arc::clone(&self.held),
            walk: None,
        };
        while let Some(ticket) = self.take() {
            let entry = match &ticket.step {
                None => Ok(Entry::End(ticket.epoch)),
                Some((step, position_after)) => {
                    let batch = assembler.batch(ticket.epoch, step, *position_after);
                    batch.map(|batch| Entry::Batch(Box::new(batch)))
                }
            };
            let mut line = self.lock();
            if let Ok(Entry::Batch(batch)) = &entry {
                line.ready_bytes += batch.memory_bytes;
            }
            line.entries.insert(ticket.number, entry);
            let is_awaited = line.is_awaited && line.head == ticket.number;
            drop(line);
            if is_awaited {
                self.filled.notify_one();
            }
            if ticket.number == 0 {
                // Others have waited until it was made.
                self.room.notify_all();
                self.moved.notify_all();
            }
            self.report.send(&self.job.datasets, REPORT_EVERY);
        }
    }

    /// The next step to make, when there is room for it; `None` when all is over.
    fn take(&self) -> Option<Ticket> {
        let mut line = self.lock();
        loop {
            if line.closed {
                return None;
            }
            if line.has_room(&self.job.options) {
                let ticket = line.ticket(self.job.course.epoch_samples(), self.job.options.ranks());
                if line.idle_fetchers > 0 && line.has_room(&self.job.options) {
                    self.room.notify_one();
                }
                return Some(ticket);
            }
            line.idle_fetchers += 1;
            line = self.room.wait(line).unwrap_or_else(PoisonError::into_inner);
            line.idle_fetchers -= 1;
        }
    }

    /// Where the consumer stands, once a batch was made; `None` when all is over.
    pub(crate) fn consumed(&self) -> Option<(u64, u64)> {
        let mut line = self.lock();
        while !line.closed && line.head == 0 && line.entries.is_empty() {
            line = self.moved.wait(line).unwrap_or_else(PoisonError::into_inner);
        }
        (!line.closed).then_some(line.consumed)
    }

    /// Waits until the consumer has come a good way since the last call, or for [`held::IDLE`]; if it has not moved at all by then, what is held for it is given back.
    pub(crate) fn wait_moved(&self) {
        let mut line = self.lock();
        let before = line.consumed;
        while !line.closed && line.unseen < self.look_every {
            let waited = self.moved.wait_timeout(line, held::IDLE);
            let (again, time) = waited.unwrap_or_else(PoisonError::into_inner);
            line = again;
            if time.timed_out() && line.consumed == before {
                drop(line);
                self.held.clear();
                line = self.lock();
            } else if time.timed_out() {
                break;
            }
        }
        line.unseen = 0;
    }
}

impl Line {
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
        let mut line = Line {
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
        assert!(line.has_room(&options));
        let first = line.ticket(Some(100), options.ranks());
        assert!(
            !line.has_room(&options),
            "the first batch has the lake for itself"
        );
        line.entries.insert(first.number, Ok(Entry::End(0)));
        for _ in 1..options.batches_ahead {
            assert!(line.has_room(&options));
            line.ticket(Some(100), options.ranks());
        }
        assert!(!line.has_room(&options));
        // Later ones are made side by side, also while the consumer waits.
        line.entries.clear();
        line.head = 1;
        assert!(line.has_room(&options));
    }
}
