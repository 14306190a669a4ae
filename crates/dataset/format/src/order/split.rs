//! Steps, ranks and workers: who takes which positions of an epoch.
//!
//! Step `s` of an epoch that starts at position `p` takes the `world x batch` positions from `p + s x world x
//! batch` on, rank `r` the `r`-th slice of `batch` of them. So what a step sees depends on the size of the
//! global batch alone, and all ranks have the same number of steps. At the end there may be too few positions
//! for a whole step: they are dropped, or the step is filled up with the first positions of the epoch; both
//! are counted. Workers of a rank take its batches in turn, as torch's loader hands them out.

use std::ops::Range;

use forebay_core::{Error, Kind, Result};
use serde::{Deserialize, Serialize};

/// Limit for ranks, samples in a batch and workers; their product fits into 64 bits.
const COUNT_MAX: u64 = 1 << 31;

/// Policy for the positions at the end that do not fill a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tail {
    /// They are left out.
    #[default]
    Drop,
    /// The step is filled up with the first samples of the epoch.
    Pad,
}

/// One rank among all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ranks {
    /// This rank, from 0.
    pub rank: u64,
    /// Number of ranks.
    pub world: u64,
    /// Samples of a rank in a step.
    pub batch: u64,
    /// Policy for the end.
    pub tail: Tail,
}

/// The steps of the rest of an epoch, as one rank sees them.
#[derive(Debug, Clone, Copy)]
pub struct Split {
    ranks: Ranks,
    /// Positions of the epoch; none if it has no end.
    samples: Option<u64>,
    start: u64,
}

/// Positions of a rank in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Batch {
    /// The step, counted from the start of the split.
    pub step: u64,
    first: u64,
    samples: u64,
    epoch_samples: Option<u64>,
}

impl Split {
    /// The steps from position `start` on of an epoch with so many positions (none: it never ends).
    ///
    /// # Errors
    /// `InvalidInput` if the rank is not among the ranks, a count is 0 or above 2^31, or the start lies
    /// behind the end.
    pub fn new(samples: Option<u64>, start: u64, ranks: Ranks) -> Result<Self> {
        if ranks.rank >= ranks.world {
            return Err(
                Error::new(Kind::InvalidInput, "ranks count from 0 to the world size less 1")
                    .with("rank", ranks.rank)
                    .with("world", ranks.world),
            );
        }
        if ranks.world > COUNT_MAX || !(1..=COUNT_MAX).contains(&ranks.batch) {
            return Err(
                Error::new(Kind::InvalidInput, "world and batch size are between 1 and 2^31")
                    .with("world", ranks.world)
                    .with("batch", ranks.batch),
            );
        }
        if samples.is_some_and(|samples| start > samples) {
            return Err(
                Error::new(Kind::OutOfRange, "the epoch ends before this position")
                    .with("position", start)
                    .with("samples", samples.unwrap_or_default()),
            );
        }
        Ok(Self {
            ranks,
            samples,
            start,
        })
    }

    /// Returns how many samples all ranks together take in a step.
    #[must_use]
    pub fn global_batch(&self) -> u64 {
        self.ranks.world * self.ranks.batch
    }

    /// Returns how many steps there are, on every rank; none if there is no end.
    #[must_use]
    pub fn steps(&self) -> Option<u64> {
        let left = self.samples? - self.start;
        Some(match self.ranks.tail {
            Tail::Drop => left / self.global_batch(),
            Tail::Pad => left.div_ceil(self.global_batch()),
        })
    }

    /// Returns how many samples are left out at the end.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        match (self.samples, self.ranks.tail) {
            (Some(samples), Tail::Drop) => (samples - self.start) % self.global_batch(),
            _ => 0,
        }
    }

    /// Returns how many samples come a second time to fill up the last step.
    #[must_use]
    pub fn padded(&self) -> u64 {
        match (self.samples, self.ranks.tail) {
            (Some(samples), Tail::Pad) => {
                (samples - self.start).next_multiple_of(self.global_batch()) - (samples - self.start)
            }
            _ => 0,
        }
    }

    /// Returns what this rank takes in a step; none behind the last one.
    #[must_use]
    pub fn batch(&self, step: u64) -> Option<Batch> {
        if self.steps().is_some_and(|steps| step >= steps) {
            return None;
        }
        let before = step.checked_mul(self.global_batch())?.checked_add(self.start)?;
        before.checked_add(self.global_batch())?;
        Some(Batch {
            step,
            first: before + self.ranks.rank * self.ranks.batch,
            samples: self.ranks.batch,
            epoch_samples: self.samples,
        })
    }

    /// The position after so many steps: what a state of this rank, and of every other one, says then.
    #[must_use]
    pub fn position_after(&self, steps: u64) -> u64 {
        let position = self
            .start
            .saturating_add(steps.saturating_mul(self.global_batch()));
        self.samples.map_or(position, |samples| position.min(samples))
    }
}

impl Batch {
    /// The positions of the epoch, padding included.
    pub fn positions(&self) -> impl Iterator<Item = u64> + use<> {
        let (end, epoch_samples) = (self.first + self.samples, self.epoch_samples);
        (self.first..end).map(move |position| match epoch_samples {
            Some(samples) if position >= samples => position % samples,
            _ => position,
        })
    }

    /// The positions that are not padding.
    #[must_use]
    pub fn own(&self) -> Range<u64> {
        let limit = self.epoch_samples.unwrap_or(u64::MAX);
        self.first.min(limit)..(self.first + self.samples).min(limit)
    }

    /// Returns how many of the positions are padding.
    #[must_use]
    pub fn padded(&self) -> u64 {
        let own = self.own();
        self.samples - (own.end - own.start)
    }
}
