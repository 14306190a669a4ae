//! Read-ahead of one dataset: which units, and when they begin.
//!
//! A unit is what is begun at once: a window, or without shuffling a part of a shard. It may begin when it
//! fits beside those that were begun and are not behind the consumer; and when none is left, whatever its
//! size: every byte of the window in which the consumer stands will be needed before its end, so holding it
//! back would save nothing. The global shuffle is different: its one window is the dataset, which is read
//! ahead only if all of it fits.

use std::collections::VecDeque;
use std::sync::Arc;

use forebay_client::{Item, ItemRange};
use forebay_core::Result;
use forebay_dataset::order::{Order, Piece, Plan, Shuffle};
use forebay_dataset::shard::Layout;

use crate::dataset::{Access, Inner, ShardLocation};
use crate::leased_pages::PrefetchRange;
use crate::rows;
use crate::sampler::SourcePosition;
use crate::streams;

/// One range.
const RANGE_BYTES: u64 = 8 << 20;
/// Into so many units what may be ahead is cut without shuffling.
const PARTS: u64 = 4;
/// Windows that one call looks at: some may be empty or behind the consumer.
const LOOKS_MAX: usize = 64;

/// Units of a dataset that were begun, and the next ones.
pub(super) struct SourcePrefetcher {
    dataset: Arc<Inner>,
    plan: Plan,
    order: Order,
    /// The next window to look at.
    window: u64,
    /// The rest of the last one.
    units: VecDeque<PrefetchUnit>,
    begun: VecDeque<PrefetchUnit>,
    bytes_max: u64,
    /// Rank and number of ranks.
    rank: (u64, u64),
}

/// Ranges that are begun at once; behind the consumer when it stands at `end`.
struct PrefetchUnit {
    epoch: u64,
    end: u64,
    bytes: u64,
    items: Vec<ShardItem>,
}

/// A range of a shard.
type ShardItem = (u32, Item);

impl SourcePrefetcher {
    pub(super) fn new(
        dataset: &Arc<Inner>,
        plan: &Plan,
        source_position: SourcePosition,
        bytes_max: u64,
        rank: (u64, u64),
    ) -> Self {
        let order = plan.epoch(source_position.epoch);
        Self {
            dataset: Arc::clone(dataset),
            plan: plan.clone(),
            window: order.window_at(source_position.position).unwrap_or(0),
            order,
            units: VecDeque::new(),
            begun: VecDeque::new(),
            bytes_max,
            rank,
        }
    }

    pub(super) fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    /// The ranges of the next unit, if it may begin; none otherwise.
    pub(super) fn begin(
        &mut self,
        source: usize,
        source_position: SourcePosition,
    ) -> Result<Vec<PrefetchRange>> {
        if self.bytes_max == 0 {
            return Ok(Vec::new());
        }
        let here = (source_position.epoch, source_position.position);
        let is_behind = |unit: &PrefetchUnit| (unit.epoch, unit.end) <= here;
        while self.begun.front().is_some_and(is_behind) {
            self.begun.pop_front();
        }
        while self.units.front().is_some_and(is_behind) {
            self.units.pop_front();
        }
        if self.units.is_empty() {
            self.look(source_position)?;
        }
        let begun: u64 = self.begun.iter().map(|unit| unit.bytes).sum();
        let fits = |unit: &PrefetchUnit| self.begun.is_empty() || begun + unit.bytes <= self.bytes_max;
        if !self.units.front().is_some_and(fits) {
            return Ok(Vec::new());
        }
        let Some(mut unit) = self.units.pop_front() else {
            return Ok(Vec::new());
        };
        let until = (unit.epoch, unit.end);
        let range = |(shard, item)| PrefetchRange {
            source,
            shard,
            item,
            until,
        };
        let ranges = std::mem::take(&mut unit.items).into_iter().map(range);
        let ranges = ranges.collect();
        self.begun.push_back(unit);
        Ok(ranges)
    }

    /// Finds the units of the next window that has some; at most those of the next epoch.
    fn look(&mut self, source_position: SourcePosition) -> Result<()> {
        for _ in 0..LOOKS_MAX {
            if self.order.epoch() > source_position.epoch.saturating_add(1) {
                return Ok(());
            }
            let positions = self.order.window_positions(self.window);
            let here = (source_position.epoch, source_position.position);
            if !positions.is_empty() && (self.order.epoch(), positions.end) > here {
                let items = self.items()?;
                self.cut(items, positions);
            }
            self.advance();
            if !self.units.is_empty() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Makes units of the ranges of a window.
    fn cut(&mut self, mut items: Vec<ShardItem>, positions: std::ops::Range<u64>) {
        let epoch = self.order.epoch();
        let bytes: u64 = items.iter().map(item_bytes).sum();
        match self.plan.options().shuffle {
            Shuffle::Global if bytes > self.bytes_max => {}
            Shuffle::Global | Shuffle::Window(_) => {
                // Ranks of a host share what they fetch: each begins elsewhere. Ranks are below their number,
                // so this is below the length.
                let (rank, ranks) = self.rank;
                let first = items.len() as u128 * u128::from(rank) / u128::from(ranks);
                items.rotate_left(first as usize);
                let end = positions.end;
                self.units.push_back(PrefetchUnit {
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
                    match self.units.back_mut() {
                        Some(last) if last.bytes + more <= each => {
                            last.bytes += more;
                            last.end = end;
                            last.items.push(item);
                        }
                        _ => self.units.push_back(PrefetchUnit {
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
    fn items(&self) -> Result<Vec<ShardItem>> {
        let mut items = Vec::new();
        for piece in self.order.pieces(self.window) {
            self.piece_items(&piece, &mut items)?;
        }
        Ok(items)
    }

    fn piece_items(&self, piece: &Piece, items: &mut Vec<ShardItem>) -> Result<()> {
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

/// Cuts a unit of a shard into ranges; they end where pages of the node do.
fn add_ranges(shard: u32, place: &ShardLocation, start: u64, end: u64, items: &mut Vec<ShardItem>) {
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

fn item_bytes((_, item): &ShardItem) -> u64 {
    match item.range {
        ItemRange::Range { length, .. } => length,
        _ => 0,
    }
}
