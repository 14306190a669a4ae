//! Reads windows ahead of the consumer, in long runs, so that the lake sees large reads and the fetchers
//! find their samples in RAM.
//!
//! The order says which runs of which shards a window needs (`order/uses.rs`). Those of the window in
//! which the consumer stands, and of the next ones, are asked for in ranges of 8 MiB, which the node brings
//! into its RAM; what is there costs it a look. Ranks of one host ask for the same ranges, each starting at
//! another one; the node fetches each once.
//!
//! Bound: what was begun and is not yet behind the consumer, in bytes; `prefetch/source.rs` says what is
//! begun when. Nothing starts before the first batch is made, which should have the lake for itself. An error
//! here is nobody's: whoever needs the bytes will meet it.

mod source;

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use forebay_dataset::order::{Plan, Shuffle, Span};

use crate::dataset::{Access, Inner};
use crate::leased_pages::{LeasedPages, PrefetchRange};
use crate::options::Prefetch;
use crate::pipeline::{Job, Shared};
use crate::sampler::Sampler;
use crate::working_set_hint::WorkingSetHint;
use source::SourcePrefetcher;

/// Threads that read ahead, a range each: while some wait for the lake, the bytes of the others keep it busy.
/// They share what the lake sends and so end at about the same time; there are enough that the last of them
/// outlast the latency of the first one's next range.
pub(crate) const THREADS: usize = 8;
/// Limit of `Prefetch::Auto`: one part in this many of the node's RAM.
const AUTO_RAM_SHARE: u64 = 4;
/// While the consumer goes through what is read ahead, somebody looks so often whether there is room for
/// more.
const LOOKS: u64 = 32;
/// Without shuffling what is read ahead is about half of this.
const SMALL_SHARDS_BYTES: u64 = 256 << 20;

/// Ranges that were begun, and the next ones.
pub(crate) struct Prefetcher {
    sampler: Arc<Sampler>,
    sources: Vec<SourcePrefetcher>,
    /// Ranges of windows that were begun.
    waiting: VecDeque<PrefetchRange>,
    look_every: u64,
}

/// Runs a prefetching thread until the queue is closed.
pub(crate) fn run(shared: &Shared, ahead: &Mutex<Prefetcher>) {
    while let Some(range) = next(shared, ahead) {
        let dataset = &shared.job.datasets[range.source];
        match dataset.client.prefetch(vec![range.item.clone()]) {
            Ok(prefetched) => {
                if dataset.access() == Access::Ranges && prefetched.iter().all(Result::is_ok) {
                    shared.leased.hold(dataset, &range);
                }
                for of in prefetched.into_iter().flatten() {
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

/// The next range; waits until the consumer has moved on if there is none. One thread waits, the others stand
/// in line behind it.
fn next(shared: &Shared, ahead: &Mutex<Prefetcher>) -> Option<PrefetchRange> {
    let mut ahead = ahead.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        let consumed = shared.consumed()?;
        if let Some(next) = ahead.next(consumed, &shared.leased) {
            return Some(next);
        }
        shared.wait_moved();
    }
}

impl Prefetcher {
    /// For a job; `None` if nothing is to be read ahead.
    pub(crate) fn new(job: &Job, hints: &[WorkingSetHint]) -> Option<Self> {
        let plans = job.sampler.plans();
        let share = plans.len().max(1) as u64;
        let mut sources = Vec::with_capacity(plans.len());
        let mut look_every = u64::MAX;
        for (source, ((plan, dataset), hints)) in plans.iter().zip(job.datasets.iter()).zip(hints).enumerate()
        {
            let window_bytes = window_bytes(plan, dataset);
            let bytes_max = match job.options.prefetch {
                Prefetch::Off => 0,
                Prefetch::Bytes(bytes) => bytes,
                Prefetch::Auto => {
                    let node_bytes = hints.node_ram_bytes.map_or(0, |bytes| bytes / AUTO_RAM_SHARE);
                    window_bytes.saturating_mul(2).min(node_bytes)
                }
            };
            // A window in which the consumer stands is read whole, however large it is.
            let ahead_bytes = (bytes_max / share).max(window_bytes.min(dataset.bytes()));
            hints.name(dataset, ahead_bytes, is_dense(plan, dataset, bytes_max / share));
            let samples_ahead = samples_of(bytes_max / share / LOOKS, plan, dataset);
            look_every = look_every.min(samples_ahead.max(1));
            let source_position = job.sampler.source_position(source, job.epoch, job.position);
            let rank = (job.options.rank, job.options.world_size.max(1));
            sources.push(SourcePrefetcher::new(
                dataset,
                plan,
                source_position,
                bytes_max / share,
                rank,
            ));
        }
        sources.iter().any(|source| source.bytes_max() > 0).then(|| Self {
            sampler: Arc::clone(&job.sampler),
            sources,
            waiting: VecDeque::new(),
            look_every,
        })
    }

    /// Returns how many positions the consumer goes on before it is worth a look whether more can be asked
    /// for.
    pub(crate) fn look_every(&self) -> u64 {
        self.look_every
    }

    /// The next range to ask for; `None` until the consumer has moved on. What is behind it is given back.
    fn next(&mut self, consumed: (u64, u64), leased: &LeasedPages) -> Option<PrefetchRange> {
        for source in 0..self.sources.len() {
            let source_position = self.sampler.source_position(source, consumed.0, consumed.1);
            leased.release(source, (source_position.epoch, source_position.position));
        }
        if self.waiting.is_empty() {
            self.begin(consumed);
        }
        self.waiting.pop_front()
    }

    /// Begins a unit of each source that has room.
    fn begin(&mut self, (epoch, position): (u64, u64)) {
        for (source, ahead) in self.sources.iter_mut().enumerate() {
            let source_position = self.sampler.source_position(source, epoch, position);
            match ahead.begin(source, source_position) {
                Ok(ranges) => self.waiting.extend(ranges),
                Err(error) => tracing::debug!(%error, "cannot read ahead"),
            }
        }
    }
}

/// Returns whether the runs that are read ahead cover the shards from end to end: not where only some
/// columns are read, or nothing is read ahead.
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
