//! Walking along an order: the window that one is in is opened once, not for each sample.

use std::iter::FusedIterator;
use std::ops::Range;

use super::epoch::{Kind, Order};
use super::windows::Open;

/// Reads an order; fast as long as it stays in one window.
#[derive(Debug, Clone)]
pub struct Cursor {
    order: Order,
    open: Option<Open>,
}

impl Cursor {
    pub(super) fn new(order: Order) -> Self {
        Self { order, open: None }
    }

    /// The order that this reads.
    #[must_use]
    pub fn order(&self) -> &Order {
        &self.order
    }

    /// The sample at a position; none behind the end.
    pub fn at(&mut self, position: u64) -> Option<u64> {
        let ordinal = self.ordinal(position)?;
        Some(
            self.order
                .plan
                .subset
                .as_ref()
                .map_or(ordinal, |subset| subset.select(ordinal)),
        )
    }

    /// The ordinal among the samples of the subset, which is the sample itself if there is none.
    pub(super) fn ordinal(&mut self, position: u64) -> Option<u64> {
        if position >= self.order.samples() {
            return None;
        }
        Some(match &self.order.kind {
            Kind::Spread(spread) => spread.at(position),
            Kind::Global(permutation) => permutation.at(position),
            Kind::Windows(windows) => {
                let open = match &mut self.open {
                    Some(open) if open.positions.contains(&position) => open,
                    open => open.insert(windows.open(windows.window_at(position))),
                };
                windows.at(open, position)
            }
        })
    }
}

/// The samples at consecutive positions.
#[derive(Debug, Clone)]
pub struct Iter {
    cursor: Cursor,
    positions: Range<u64>,
}

impl Iter {
    pub(super) fn new(cursor: Cursor, positions: Range<u64>) -> Self {
        Self { cursor, positions }
    }
}

impl Iterator for Iter {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        let position = self.positions.next()?;
        self.cursor.at(position)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.positions.size_hint()
    }
}

impl FusedIterator for Iter {}
