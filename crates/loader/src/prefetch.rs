//! Reads windows ahead of the consumer, in long stretches, so that the lake sees large reads and the fetchers find their samples in RAM.
//!
//! The order says which stretches of which shards a window needs (`order/uses.rs`). Those of the window in which the consumer stands, and of the next ones, are
//! asked for in ranges of [`RANGE_BYTES`], and the views are dropped at once: the node keeps the bytes. Ranks of one host ask for the same
//! ranges, each starting at another one; the node fetches each once.
//!
//! Bound: windows that were begun and are not yet behind the consumer, in bytes. A window that does not fit is left to the fetchers (the global
//! shuffle of a large dataset is one such window). Nothing starts before the first batch is made, which should have the lake for itself. An
//! error here is nobody's: whoever needs the bytes will meet it.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use forebay_client::{Item, ItemRange};
use forebay_core::Result;
use forebay_dataset::order::{Order, Piece, Plan, Shuffle, Span};
use forebay_dataset::shard::Layout;

use crate::course::{Course, Standing};
use crate::dataset::Inner;
use crate::options::Prefetch;
use crate::pipeline::{Job, Shared};

/// Threads that read ahead: while one waits for the lake, the other has asked already.
pub(crate) const THREADS: usize = 2;
/// One range.
const RANGE_BYTES: u64 = 8 << 20;
/// Ranges of one question.
const RANGES_MAX: usize = 2;
/// What `Prefetch::Auto` takes at most: as much as fits into the RAM of the smallest sensible node.
const AUTO_BYTES_MAX: u64 = 256 << 20;

/// What was begun and what comes next.
pub(crate) struct Ahead {
    course: Arc<Course>,
    sources: Vec<SourceAhead>,
    /// Ranges of windows that were begun: source and item.
    waiting: VecDeque<(usize, Item)>,
}

struct SourceAhead {
    dataset: Arc<Inner>,
    plan: Plan,
    order: Order,
    /// The next window to begin.
    window: u64,
    begun: VecDeque<Begun>,
    bytes_max: u64,
    /// Which of how many ranks.
    rank: (u64, u64),
}

/// A window that was begun: behind the consumer when it stands there.
struct Begun {
    epoch: u64,
    end: u64,
    bytes: u64,
}

/// The life of a prefetching thread.
pub(crate) fn run(shared: &Shared, ahead: &Mutex<Ahead>) {
    while let Some(consumed) = shared.consumed() {
        let next = ahead
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .next(consumed);
        let Some((source, items)) = next else {
            shared.wait_consumed(consumed);
            continue;
        };
        let dataset = &shared.job.datasets[source];
        match dataset.client.get_batch(items) {
            Ok(views) => {
                for view in views.iter().flatten() {
                    let of = view.sources();
                    for (counter, bytes) in shared
                        .prefetched
                        .iter()
                        .zip([of.ram, of.nvme, of.lake, of.copied])
                    {
                        counter.fetch_add(bytes, Ordering::Relaxed);
                    }
                }
            }
            Err(error) => tracing::debug!(%error, "reading ahead failed"),
        }
    }
}

impl Ahead {
    /// For a job; `None` if nothing is to be read ahead.
    pub(crate) fn new(job: &Job) -> Option<Self> {
        let plans = job.course.plans();
        let share = plans.len().max(1) as u64;
        let mut sources = Vec::with_capacity(plans.len());
        for (source, (plan, dataset)) in plans.iter().zip(job.datasets.iter()).enumerate() {
            let bytes_max = match job.options.prefetch {
                Prefetch::Off => 0,
                Prefetch::Bytes(bytes) => bytes,
                Prefetch::Auto if dataset.client.address().starts_with("http") => 0,
                Prefetch::Auto => window_bytes(plan, dataset).saturating_mul(2).min(AUTO_BYTES_MAX),
            };
            let standing = job.course.standing(source, job.epoch, job.position);
            let order = plan.epoch(standing.epoch);
            sources.push(SourceAhead {
                dataset: Arc::clone(dataset),
                plan: plan.clone(),
                window: order.window_at(standing.position).unwrap_or(0),
                order,
                begun: VecDeque::new(),
                bytes_max: bytes_max / share,
                rank: (job.options.rank, job.options.world_size.max(1)),
            });
        }
        sources.iter().any(|source| source.bytes_max > 0).then(|| Self {
            course: Arc::clone(&job.course),
            sources,
            waiting: VecDeque::new(),
        })
    }

    /// The next ranges to ask for; `None` until the consumer has moved on.
    fn next(&mut self, consumed: (u64, u64)) -> Option<(usize, Vec<Item>)> {
        if self.waiting.is_empty() {
            self.begin(consumed);
        }
        let (source, first) = self.waiting.pop_front()?;
        let mut items = vec![first];
        while items.len() < RANGES_MAX && self.waiting.front().is_some_and(|(next, _)| *next == source) {
            items.extend(self.waiting.pop_front().map(|(_, item)| item));
        }
        Some((source, items))
    }

    /// Begins a window of each source that has room.
    fn begin(&mut self, (epoch, position): (u64, u64)) {
        for (source, ahead) in self.sources.iter_mut().enumerate() {
            let standing = self.course.standing(source, epoch, position);
            match ahead.begin(standing) {
                Ok(items) => self.waiting.extend(items.into_iter().map(|item| (source, item))),
                Err(error) => tracing::debug!(%error, "cannot read ahead"),
            }
        }
    }
}

impl SourceAhead {
    /// The ranges of the next window, if it may begin; none otherwise.
    fn begin(&mut self, standing: Standing) -> Result<Vec<Item>> {
        let here = (standing.epoch, standing.position);
        while self
            .begun
            .front()
            .is_some_and(|begun| (begun.epoch, begun.end) <= here)
        {
            self.begun.pop_front();
        }
        // A few windows may be empty, behind the consumer or too large; the rest is for the next time.
        for _ in 0..64 {
            // The next epoch is begun in this one, no further.
            if self.order.epoch() > standing.epoch.saturating_add(1) {
                return Ok(Vec::new());
            }
            let end = self.order.window_positions(self.window).end;
            let epoch = self.order.epoch();
            if (epoch, end) <= here || self.order.window_positions(self.window).is_empty() {
                self.advance();
                continue;
            }
            let items = self.window_items()?;
            let bytes: u64 = items.iter().map(item_bytes).sum();
            if bytes > self.bytes_max {
                self.advance();
                continue;
            }
            let begun: u64 = self.begun.iter().map(|begun| begun.bytes).sum();
            if begun + bytes > self.bytes_max {
                return Ok(Vec::new());
            }
            self.begun.push_back(Begun { epoch, end, bytes });
            self.advance();
            return Ok(items);
        }
        Ok(Vec::new())
    }

    fn advance(&mut self) {
        self.window += 1;
        if self.window >= self.order.windows() {
            self.order = self.plan.epoch(self.order.epoch() + 1);
            self.window = 0;
        }
    }

    /// Ranges of a window, from another place on for each rank.
    fn window_items(&self) -> Result<Vec<Item>> {
        let mut items = Vec::new();
        for piece in self.order.pieces(self.window) {
            self.piece_items(&piece, &mut items)?;
        }
        let (rank, ranks) = self.rank;
        // Ranks are below their number, so this is below the length.
        let first = (items.len() as u128 * u128::from(rank) / u128::from(ranks)) as usize;
        items.rotate_left(first);
        Ok(items)
    }

    fn piece_items(&self, piece: &Piece, items: &mut Vec<Item>) -> Result<()> {
        let number = u32::try_from(piece.shard).unwrap_or(u32::MAX);
        let place = self.dataset.shard(number)?;
        // Objects of their own are as large as they are; asking for them early is the fetchers' business.
        if place.record_layout() == Layout::ObjectPerSample || piece.rows.is_empty() {
            return Ok(());
        }
        let first_sample = self.dataset.index.shard(number)?.first_sample();
        let first = self.dataset.index.sample(first_sample + piece.rows.start)?;
        let last = self.dataset.index.sample(first_sample + piece.rows.end - 1)?;
        let Some(start) = first.fields.iter().map(|field| field.offset).min() else {
            return Ok(());
        };
        let ends = last
            .fields
            .iter()
            .map(|field| field.offset.saturating_add(field.bytes));
        let end = ends.max().unwrap_or(start);
        let mut offset = start;
        while offset < end {
            let length = RANGE_BYTES.min(end - offset);
            items.push(Item {
                object: place.object.clone(),
                range: ItemRange::Range { offset, length },
                version: place.version.clone(),
            });
            offset += length;
        }
        Ok(())
    }
}

fn item_bytes(item: &Item) -> u64 {
    match item.range {
        ItemRange::Range { length, .. } => length,
        _ => 0,
    }
}

/// About how large a window is.
fn window_bytes(plan: &Plan, dataset: &Inner) -> u64 {
    let bytes = dataset.bytes();
    let samples = plan.shape().samples().max(1);
    match plan.options().shuffle {
        Shuffle::Window(window) => match window.span {
            Span::Bytes(bytes) => bytes,
            Span::Samples(count) => (u128::from(bytes) * u128::from(count) / u128::from(samples)) as u64,
        },
        Shuffle::Global => bytes,
        // Without shuffling a window is a shard.
        Shuffle::None => dataset.largest_shard_bytes(),
    }
}
