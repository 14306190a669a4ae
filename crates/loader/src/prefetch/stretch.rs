//! What of one dataset is read ahead, and when.
//!
//! A stretch is what is begun at once: a window, or without shuffling a part of a shard. It may begin when it fits beside those that were begun and
//! are not behind the consumer; and when none is left, whatever its size: every byte of the window in which the consumer stands will be needed
//! before its end, so holding it back would save nothing. The global shuffle is different: its one window is the dataset, which is read ahead only
//! if all of it fits.

use std::collections::VecDeque;
use std::sync::Arc;

use forebay_client::{Item, ItemRange};
use forebay_core::Result;
use forebay_dataset::order::{Order, Piece, Plan, Shuffle};
use forebay_dataset::shard::Layout;

use crate::course::Standing;
use crate::dataset::{Access, Inner, ShardPlace};
use crate::held::Range;
use crate::rows;
use crate::streams;

/// One range.
const RANGE_BYTES: u64 = 8 << 20;
/// Into so many stretches what may be ahead is cut without shuffling.
const PARTS: u64 = 4;
/// Windows that one call looks at: some may be empty or behind the consumer.
const LOOKS_MAX: usize = 64;

/// What was begun of a dataset, and what comes next.
pub(super) struct SourceAhead {
    dataset: Arc<Inner>,
    plan: Plan,
    order: Order,
    /// The next window to look at.
    window: u64,
    /// The rest of the last one.
    stretches: VecDeque<Stretch>,
    begun: VecDeque<Stretch>,
    bytes_max: u64,
    /// Which of how many ranks.
    rank: (u64, u64),
}

/// Ranges that are begun at once; behind the consumer when it stands at `end`.
struct Stretch {
    epoch: u64,
    end: u64,
    bytes: u64,
    items: Vec<Part>,
}

/// A range of a shard.
type Part = (u32, Item);

impl SourceAhead {
    pub(super) fn new(
        dataset: &Arc<Inner>,
        plan: &Plan,
        standing: Standing,
        bytes_max: u64,
        rank: (u64, u64),
    ) -> Self {
        let order = plan.epoch(standing.epoch);
        Self {
            dataset: Arc::clone(dataset),
            plan: plan.clone(),
            window: order.window_at(standing.position).unwrap_or(0),
            order,
            stretches: VecDeque::new(),
            begun: VecDeque::new(),
            bytes_max,
            rank,
        }
    }

    pub(super) fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    /// The ranges of the next stretch, if it may begin; none otherwise.
    pub(super) fn begin(&mut self, source: usize, standing: Standing) -> Result<Vec<Range>> {
        if self.bytes_max == 0 {
            return Ok(Vec::new());
        }
        let here = (standing.epoch, standing.position);
        let is_behind = |stretch: &Stretch| (stretch.epoch, stretch.end) <= here;
        while self.begun.front().is_some_and(is_behind) {
            self.begun.pop_front();
        }
        while self.stretches.front().is_some_and(is_behind) {
            self.stretches.pop_front();
        }
        if self.stretches.is_empty() {
            self.look(standing)?;
        }
        let begun: u64 = self.begun.iter().map(|stretch| stretch.bytes).sum();
        let fits = |stretch: &Stretch| self.begun.is_empty() || begun + stretch.bytes <= self.bytes_max;
        if !self.stretches.front().is_some_and(fits) {
            return Ok(Vec::new());
        }
        let Some(mut stretch) = self.stretches.pop_front() else {
            return Ok(Vec::new());
        };
        let until = (stretch.epoch, stretch.end);
        let range = |(shard, item)| Range {
            source,
            shard,
            item,
            until,
        };
        let ranges = std::mem::take(&mut stretch.items).into_iter().map(range);
        let ranges = ranges.collect();
        self.begun.push_back(stretch);
        Ok(ranges)
    }

    /// Finds the stretches of the next window that has some; at most those of the next epoch.
    fn look(&mut self, standing: Standing) -> Result<()> {
        for _ in 0..LOOKS_MAX {
            if self.order.epoch() > standing.epoch.saturating_add(1) {
                return Ok(());
            }
            let positions = self.order.window_positions(self.window);
            let here = (standing.epoch, standing.position);
            if !positions.is_empty() && (self.order.epoch(), positions.end) > here {
                let items = self.items()?;
                self.cut(items, positions);
            }
            self.advance();
            if !self.stretches.is_empty() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Makes stretches of the ranges of a window.
    fn cut(&mut self, mut items: Vec<Part>, positions: std::ops::Range<u64>) {
        let epoch = self.order.epoch();
        let bytes: u64 = items.iter().map(item_bytes).sum();
        match self.plan.options().shuffle {
            Shuffle::Global if bytes > self.bytes_max => {}
            Shuffle::Global | Shuffle::Window(_) => {
                // Ranks of a host share what they fetch: each begins elsewhere. Ranks are below their number, so this is below the length.
                let (rank, ranks) = self.rank;
                let first = items.len() as u128 * u128::from(rank) / u128::from(ranks);
                items.rotate_left(first as usize);
                let end = positions.end;
                self.stretches.push_back(Stretch {
                    epoch,
                    end,
                    bytes,
                    items,
                });
            }
            Shuffle::None => {
                let each = (self.bytes_max / PARTS).max(1);
                let mut done = 0;
                for item in items {
                    let more = item_bytes(&item);
                    done += more;
                    let share = u128::from(positions.end - positions.start) * u128::from(done);
                    let end = positions.start + (share / u128::from(bytes.max(1))) as u64;
                    match self.stretches.back_mut() {
                        Some(last) if last.bytes + more <= each => {
                            last.bytes += more;
                            last.end = end;
                            last.items.push(item);
                        }
                        _ => self.stretches.push_back(Stretch {
                            epoch,
                            end,
                            bytes: more,
                            items: vec![item],
                        }),
                    }
                }
            }
        }
    }

    fn advance(&mut self) {
        self.window += 1;
        if self.window >= self.order.windows() {
            self.order = self.plan.epoch(self.order.epoch() + 1);
            self.window = 0;
        }
    }

    /// The ranges of the window.
    fn items(&self) -> Result<Vec<Part>> {
        let mut items = Vec::new();
        for piece in self.order.pieces(self.window) {
            self.piece_items(&piece, &mut items)?;
        }
        Ok(items)
    }

    fn piece_items(&self, piece: &Piece, items: &mut Vec<Part>) -> Result<()> {
        let number = u32::try_from(piece.shard).unwrap_or(u32::MAX);
        let place = self.dataset.shard(number)?;
        // Objects of their own are as large as they are; asking for them early is the fetchers' business.
        if place.record_layout() == Layout::ObjectPerSample || piece.rows.is_empty() {
            return Ok(());
        }
        if self.dataset.access() == Access::Rows {
            for (start, end) in rows::ahead(&self.dataset, number, piece.rows.clone())? {
                add_ranges(number, place, start, end, items);
            }
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
        let stored = streams::ahead(place, start..end);
        add_ranges(number, place, stored.start, stored.end, items);
        Ok(())
    }
}

/// Cuts a stretch of a shard into ranges; they end where pages of the node do.
fn add_ranges(shard: u32, place: &ShardPlace, start: u64, end: u64, items: &mut Vec<Part>) {
    let mut offset = start;
    while offset < end {
        let length = (RANGE_BYTES - offset % RANGE_BYTES).min(end - offset);
        let item = Item {
            object: place.object.clone(),
            range: ItemRange::Range { offset, length },
            version: place.version.clone(),
        };
        items.push((shard, item));
        offset += length;
    }
}

fn item_bytes((_, item): &Part) -> u64 {
    match item.range {
        ItemRange::Range { length, .. } => length,
        _ => 0,
    }
}
