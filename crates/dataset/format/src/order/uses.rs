//! Next uses of a shard: what a prefetcher reads next, and what a cache should keep.
//!
//! Answers are in windows. Inside one all samples of it are needed all along, so a reader that has fetched
//! the window's pieces will not wait again until its end; a cache that has to drop something drops what has
//! the farthest next use, in this epoch or in the next. Without shuffling a window is a shard; with the
//! global shuffle there is one window.

use std::ops::Range;

use super::epoch::{Kind, Order};

/// Some consecutive samples of a shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// The shard.
    pub shard: usize,
    /// The rows of that shard, from the first to the last that is needed. A filter may leave out some between
    /// them.
    pub rows: Range<u64>,
}

/// A piece and the positions of the window that needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Use {
    /// Between these positions of the epoch.
    pub positions: Range<u64>,
    /// These samples.
    pub piece: Piece,
}

impl Order {
    /// Returns how many windows the epoch has. Some may be empty.
    #[must_use]
    pub fn windows(&self) -> u64 {
        match &self.kind {
            Kind::Spread(_) => self.plan.left.shards() as u64,
            Kind::Global(_) => 1,
            Kind::Windows(windows) => windows.count(),
        }
    }

    /// The window that a position lies in; none behind the end.
    #[must_use]
    pub fn window_at(&self, position: u64) -> Option<u64> {
        if position >= self.samples() {
            return None;
        }
        match &self.kind {
            Kind::Spread(spread) => self
                .plan
                .left
                .place_of(spread.at(position))
                .map(|(shard, _)| shard as u64),
            Kind::Global(_) => Some(0),
            Kind::Windows(windows) => Some(windows.window_at(position)),
        }
    }

    /// The positions of a window; empty behind the last one.
    #[must_use]
    pub fn window_positions(&self, window: u64) -> Range<u64> {
        let positions = match &self.kind {
            Kind::Spread(spread) => {
                let samples = self
                    .plan
                    .left
                    .samples_of(usize::try_from(window).unwrap_or(usize::MAX));
                spread.reach(samples.start)..spread.reach(samples.end)
            }
            Kind::Global(_) => 0..if window == 0 { self.samples() } else { 0 },
            Kind::Windows(windows) => windows.positions(window),
        };
        positions.start.min(self.samples())..positions.end.min(self.samples())
    }

    /// Returns what has to be read for a window, in an order that is as good as any other.
    #[must_use]
    pub fn pieces(&self, window: u64) -> Vec<Piece> {
        if self.window_positions(window).is_empty() {
            return Vec::new();
        }
        match &self.kind {
            Kind::Spread(_) => self
                .piece(self.plan.left.samples_of(window as usize))
                .into_iter()
                .collect(),
            Kind::Global(_) => {
                let shards = 0..self.plan.left.shards();
                shards
                    .filter_map(|shard| self.piece(self.plan.left.samples_of(shard)))
                    .collect()
            }
            Kind::Windows(windows) => windows
                .ranges(window)
                .filter_map(|range| self.piece(range))
                .collect(),
        }
    }

    /// Returns when the samples of a shard are needed, soonest first. Empty if they are not.
    #[must_use]
    pub fn uses(&self, shard: usize) -> Vec<Use> {
        let samples = self.plan.left.samples_of(shard);
        let uses = match &self.kind {
            Kind::Spread(_) => vec![(self.window_positions(shard as u64), samples)],
            Kind::Global(_) => vec![(0..self.samples(), samples)],
            Kind::Windows(windows) => windows.uses(samples),
        };
        let end = self.samples();
        let uses = uses.into_iter().filter_map(|(positions, ordinals)| {
            let positions = positions.start..positions.end.min(end);
            let piece = self.piece(ordinals)?;
            (!positions.is_empty()).then_some(Use { positions, piece })
        });
        uses.collect()
    }

    /// The piece that holds these ordinals of one shard.
    fn piece(&self, ordinals: Range<u64>) -> Option<Piece> {
        if ordinals.is_empty() {
            return None;
        }
        let (first, last) = match &self.plan.subset {
            Some(subset) => (subset.select(ordinals.start), subset.select(ordinals.end - 1)),
            None => (ordinals.start, ordinals.end - 1),
        };
        let (shard, row) = self.plan.shape.place_of(first)?;
        Some(Piece {
            shard,
            rows: row..row + (last - first) + 1,
        })
    }
}
