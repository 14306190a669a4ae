//! The order of one epoch, in both directions.
//!
//! Made by [`Plan::epoch`], cheap to clone, never changed. [`Order::at`] is for single questions; who walks
//! along takes a [`Cursor`], which remembers the window that it is in.
//!
//! An epoch that takes less than the whole dataset is, if shuffled, the beginning of the whole order:
//! uniform, and it reads no more of the lake than it takes. Unshuffled, it is every so-many-th sample,
//! starting elsewhere in each epoch.

use std::ops::Range;
use std::sync::Arc;

use super::Shuffle;
use super::cursor::{Cursor, Iter};
use super::key::Purpose;
use super::permutation::Permutation;
use super::plan::Plan;
use super::windows::Windows;

/// The sample at each position of an epoch.
#[derive(Debug, Clone)]
pub struct Order {
    pub(super) plan: Plan,
    epoch: u64,
    pub(super) kind: Kind,
}

#[derive(Debug, Clone)]
pub(super) enum Kind {
    Spread(Spread),
    Global(Permutation),
    Windows(Arc<Windows>),
}

/// `take` of `samples`, in their order and evenly apart, beginning at `offset / take`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Spread {
    samples: u64,
    take: u64,
    offset: u64,
}

impl Spread {
    pub(super) fn at(self, position: u64) -> u64 {
        if self.take == self.samples {
            return position;
        }
        let place = u128::from(position) * u128::from(self.samples) + u128::from(self.offset);
        (place / u128::from(self.take)) as u64
    }

    /// The first position whose sample is this one or a later one.
    pub(super) fn reach(self, sample: u64) -> u64 {
        if self.take == self.samples {
            return sample.min(self.take);
        }
        let place = (u128::from(sample) * u128::from(self.take)).saturating_sub(u128::from(self.offset));
        (place.div_ceil(u128::from(self.samples)) as u64).min(self.take)
    }
}

impl Order {
    pub(super) fn new(plan: Plan, epoch: u64) -> Self {
        let key = plan.epoch_key(epoch);
        let samples = plan.left.samples();
        let kind = match (&plan.options.shuffle, &plan.runs) {
            (Shuffle::Global, _) => Kind::Global(Permutation::new(key.derive(Purpose::Samples, 0), samples)),
            (Shuffle::Window(_), Some(runs)) => Kind::Windows(Arc::new(Windows::new(Arc::clone(runs), key))),
            (Shuffle::None | Shuffle::Window(_), _) => Kind::Spread(Spread {
                samples,
                take: plan.epoch_samples(),
                offset: key.derive(Purpose::Take, 0).below(0, samples),
            }),
        };
        Self { plan, epoch, kind }
    }

    /// Returns which epoch this is.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns how many positions there are.
    #[must_use]
    pub fn samples(&self) -> u64 {
        self.plan.epoch_samples()
    }

    /// The plan that this is an epoch of.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The sample at a position; none behind the end.
    #[must_use]
    pub fn at(&self, position: u64) -> Option<u64> {
        self.cursor().at(position)
    }

    /// The position of a sample; none if it is not part of this epoch.
    #[must_use]
    pub fn position_of(&self, sample: u64) -> Option<u64> {
        let ordinal = match &self.plan.subset {
            Some(subset) => subset.ordinal(sample)?,
            None => sample,
        };
        if ordinal >= self.plan.left.samples() {
            return None;
        }
        let position = match &self.kind {
            Kind::Spread(spread) => {
                let position = spread.reach(ordinal);
                if position >= spread.take || spread.at(position) != ordinal {
                    return None;
                }
                position
            }
            Kind::Global(permutation) => permutation.inverse(ordinal),
            Kind::Windows(windows) => windows.position_of(ordinal),
        };
        (position < self.samples()).then_some(position)
    }

    /// A reader of this order that is fast as long as it stays in one window.
    #[must_use]
    pub fn cursor(&self) -> Cursor {
        Cursor::new(self.clone())
    }

    /// The samples at these positions; those behind the end are left out.
    #[must_use]
    pub fn iter(&self, positions: Range<u64>) -> Iter {
        Iter::new(self.cursor(), positions.start..positions.end.min(self.samples()))
    }
}
