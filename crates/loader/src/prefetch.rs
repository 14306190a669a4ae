//! Reads windows ahead of the consumer, in long stretches, so that the lake sees large reads and the fetchers find their samples in RAM.
//!
//! The order says which stretches of which shards a window needs (`order/uses.rs`). Those of the window in which the consumer stands, and of the next ones, are
//! asked for in ranges of 8 MiB, which the node brings into its RAM; what is there costs it a look. Ranks of one host ask for the same
//! ranges, each starting at another one; the node fetches each once.
//!
//! Bound: what was begun and is not yet behind the consumer, in bytes; `prefetch/stretch.rs` says what is begun when. Nothing starts before the first batch is made, which should have the lake for itself. An
//! error here is nobody's: whoever needs the bytes will meet it.

mod stretch;

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use forebay_dataset::order::{Plan, Shuffle, Span};

use crate::course::Course;
use crate::dataset::{Access, Inner};
use crate::held::{Held, Range};
use crate::options::Prefetch;
use crate::pipeline::{Job, Shared};
use crate::rounds::Rounds;
use stretch::SourceAhead;

/// Threads that read ahead, a range each: while some wait for the lake, the bytes of the others keep it busy. They share what the lake
/// sends and so end at about the same time; there are enough that the last of them outlast the latency of the first one's next range.
pub(crate) const THREADS: usize = 8;
/// What `Prefetch::Auto` takes at most: one part in this many of the node's RAM.
const AUTO_RAM_SHARE: u64 = 4;
/// While the consumer goes through what is read ahead, somebody looks so often whether there is room for more.
const LOOKS: u64 = 32;
/// Without shuffling what is read ahead is about half of this.
const SMALL_SHARDS_BYTES: u64 = 256 << 20;

/// What was begun and what comes next.
pub(crate) struct Ahead {
    course: Arc<Course>,
    sources: Vec<SourceAhead>,
    /// Ranges of windows that were begun.
    waiting: VecDeque<Range>,
    look_every: u64,
}

/// The life of a prefetching thread.
pub(crate) fn run(shared: &Shared, ahead: &Mutex<Ahead>) {
    while let Some(range) = next(shared, ahead) {
        let dataset = &shared.job.datasets[range.source];
        match dataset.client.prepare(vec![range.item.clone()]) {
            Ok(prepared) => {
                if dataset.access() == Access::Ranges && prepared.iter().all(Result::is_ok) {
                    shared.held.hold(dataset, &range);
                }
                for of in prepared.into_iter().flatten() {
                    for (counter, bytes) in shared
                        .prefetched
                        .iter()
                        .zip([of.ram, of.nvme, of.peer, of.lake, of.copied])
                    {
                        counter.fetch_add(bytes, Ordering::Relaxed);
                    }
                }
            }
            Err(error) => tracing::debug!(%error, "reading ahead failed"),
        }
    }
}

/// The next range; waits until the consumer has moved on if there is none. One thread waits, the others stand in line behind it.
fn next(shared: &Shared, ahead: &Mutex<Ahead>) -> Option<Range> {
    let mut ahead = ahead.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        let consumed = shared.consumed()?;
        if let Some(next) = ahead.next(consumed, &shared.held) {
            return Some(next);
        }
        shared.wait_moved();
    }
}

impl Ahead {
    /// For a job; `None` if nothing is to be read ahead.
    pub(crate) fn new(job: &Job, rounds: &[Rounds]) -> Option<Self> {
        let plans = job.course.plans();
        let share = plans.len().max(1) as u64;
        let mut sources = Vec::with_capacity(plans.len());
        let mut look_every = u64::MAX;
        for (source, ((plan, dataset), rounds)) in
            plans.iter().zip(job.datasets.iter()).zip(rounds).enumerate()
        {
            let window_bytes = window_bytes(plan, dataset);
            let bytes_max = match job.options.prefetch {
                Prefetch::Off => 0,
                Prefetch::Bytes(bytes) => bytes,
                Prefetch::Auto => {
                    let node_bytes = rounds.node_ram_bytes.map_or(0, |bytes| bytes / AUTO_RAM_SHARE);
                    window_bytes.saturating_mul(2).min(node_bytes)
                }
            };
            // A window in which the consumer stands is read whole, however large it is.
            let ahead_bytes = (bytes_max / share).max(window_bytes.min(dataset.bytes()));
            rounds.name(dataset, ahead_bytes, is_dense(plan, dataset, bytes_max / share));
            let samples_ahead = samples_of(bytes_max / share / LOOKS, plan, dataset);
            look_every = look_every.min(samples_ahead.max(1));
            let standing = job.course.standing(source, job.epoch, job.position);
            let rank = (job.options.rank, job.options.world_size.max(1));
            sources.push(SourceAhead::new(dataset, plan, standing, bytes_max / share, rank));
        }
        sources.iter().any(|source| source.bytes_max() > 0).then(|| Self {
            course: Arc::clone(&job.course),
            sources,
            waiting: VecDeque::new(),
            look_every,
        })
    }

    /// How many positions the consumer goes on before it is worth a look whether more can be asked for.
    pub(crate) fn look_every(&self) -> u64 {
        self.look_every
    }

    /// The next range to ask for; `None` until the consumer has moved on. What is behind it is given back.
    fn next(&mut self, consumed: (u64, u64), held: &Held) -> Option<Range> {
        for source in 0..self.sources.len() {
            let standing = self.course.standing(source, consumed.0, consumed.1);
            held.release(source, (standing.epoch, standing.position));
        }
        if self.waiting.is_empty() {
            self.begin(consumed);
        }
        self.waiting.pop_front()
    }

    /// Begins a stretch of each source that has room.
    fn begin(&mut self, (epoch, position): (u64, u64)) {
        for (source, ahead) in self.sources.iter_mut().enumerate() {
            let standing = self.course.standing(source, epoch, position);
            match ahead.begin(source, standing) {
                Ok(ranges) => self.waiting.extend(ranges),
                Err(error) => tracing::debug!(%error, "cannot read ahead"),
            }
        }
    }
}

/// Whether the stretches that are read ahead cover the shards from end to end: not where only some columns are read, or nothing is read ahead.
fn is_dense(plan: &Plan, dataset: &Inner, bytes_max: u64) -> bool {
    let fits = plan.options().shuffle != Shuffle::Global || dataset.bytes() <= bytes_max;
    dataset.access() == Access::Ranges && bytes_max > 0 && fits
}

/// About how many samples have so many bytes.
fn samples_of(bytes: u64, plan: &Plan, dataset: &Inner) -> u64 {
    scale(bytes, plan.shape().samples(), dataset.bytes())
}

/// `number` times `by` in `whole`.
fn scale(number: u64, by: u64, whole: u64) -> u64 {
    (u128::from(number) * u128::from(by) / u128::from(whole.max(1))) as u64
}

/// About how large a window is.
fn window_bytes(plan: &Plan, dataset: &Inner) -> u64 {
    let bytes = dataset.bytes();
    match plan.options().shuffle {
        Shuffle::Window(window) => match window.span {
            Span::Bytes(bytes) => bytes,
            Span::Samples(count) => scale(count, bytes, plan.shape().samples()),
        },
        Shuffle::Global => bytes,
        // Without shuffling a window is a shard, and there may be many small ones.
        Shuffle::None => dataset.largest_shard_bytes().max(SMALL_SHARDS_BYTES / 4),
    }
}
