//! The course of a loader: which sample comes at which position, of one dataset or of a mix.
//!
//! Two kinds of order ([`Plan`], [`Mix`]) behind one set of questions. Pure: positions in, samples out.

use std::ops::Range;

use forebay_core::{Error, Kind, Result};
use forebay_dataset::order::{Cursor, Mix, MixCursor, Plan, State};

/// What is read, in which order.
#[derive(Debug, Clone)]
pub(crate) enum Course {
    One(Plan),
    Mix(Box<Mix>),
}

/// A sample of one of the datasets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Spot {
    pub(crate) source: usize,
    pub(crate) number: u64,
}

/// Where a source stands when the whole stands somewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Standing {
    pub(crate) epoch: u64,
    pub(crate) position: u64,
}

impl Course {
    /// Positions of an epoch; none if it never ends.
    pub(crate) fn epoch_samples(&self) -> Option<u64> {
        match self {
            Self::One(plan) => Some(plan.epoch_samples()),
            Self::Mix(mix) => mix.epoch_samples(),
        }
    }

    /// The plan of each dataset.
    pub(crate) fn plans(&self) -> &[Plan] {
        match self {
            Self::One(plan) => std::slice::from_ref(plan),
            Self::Mix(mix) => mix.sources(),
        }
    }

    /// A reader of an epoch.
    pub(crate) fn walk(&self, epoch: u64) -> Walk {
        match self {
            Self::One(plan) => Walk::One(Box::new(plan.epoch(epoch).cursor())),
            Self::Mix(mix) => Walk::Mix(Box::new(mix.cursor(epoch))),
        }
    }

    /// Where a source stands at a position of an epoch.
    pub(crate) fn standing(&self, source: usize, epoch: u64, position: u64) -> Standing {
        let Self::Mix(mix) = self else {
            return Standing { epoch, position };
        };
        let given = |position| u128::from(mix.given(position).get(source).copied().unwrap_or_default());
        let per_epoch = mix.epoch_samples().map_or(0, given);
        let number = u128::from(epoch) * per_epoch + given(position);
        let samples = u128::from(mix.sources().get(source).map_or(1, Plan::epoch_samples).max(1));
        Standing {
            epoch: u64::try_from(number / samples).unwrap_or(u64::MAX),
            position: (number % samples) as u64,
        }
    }

    /// What may come in place of the sample at a position: the others of its window, the next ones first.
    pub(crate) fn substitutes(&self, epoch: u64, position: u64) -> Box<dyn Iterator<Item = Spot>> {
        let (source, plan, standing) = match self {
            Self::One(plan) => (0, plan, Standing { epoch, position }),
            Self::Mix(mix) => match mix.pick(epoch, position) {
                Some(pick) => {
                    let standing = Standing {
                        epoch: pick.epoch,
                        position: pick.position,
                    };
                    (pick.source, &mix.sources()[pick.source], standing)
                }
                None => return Box::new(std::iter::empty()),
            },
        };
        let order = plan.epoch(standing.epoch);
        let window = order.window_at(standing.position);
        let window: Range<u64> = window.map_or(0..0, |window| order.window_positions(window));
        let next = standing.position.saturating_add(1)..window.end;
        let positions = next.chain(window.start..standing.position);
        let mut cursor = order.cursor();
        Box::new(positions.filter_map(move |position| {
            Some(Spot {
                source,
                number: cursor.at(position)?,
            })
        }))
    }

    /// A random number for a position: the same on every rank and after every resume.
    pub(crate) fn draw(&self, epoch: u64, position: u64) -> Option<u64> {
        self.plans().first().map(|plan| plan.draw(epoch, position))
    }

    /// The state after so many samples of an epoch.
    pub(crate) fn state(&self, epoch: u64, position: u64) -> State {
        match self {
            Self::One(plan) => plan.state(epoch, position),
            Self::Mix(mix) => mix.state(epoch, position),
        }
    }

    /// The course that a state was taken on.
    pub(crate) fn resume(&self, state: &State) -> Result<Self> {
        match self {
            Self::One(plan) => Ok(Self::One(plan.resume(state)?)),
            Self::Mix(mix) => Ok(Self::Mix(Box::new(mix.resume(state)?))),
        }
    }
}

/// A reader of an epoch; fast as long as it moves on.
#[derive(Debug, Clone)]
pub(crate) enum Walk {
    One(Box<Cursor>),
    Mix(Box<MixCursor>),
}

impl Walk {
    /// The sample at a position.
    pub(crate) fn at(&mut self, position: u64) -> Result<Spot> {
        let spot = match self {
            Self::One(cursor) => cursor.at(position).map(|number| Spot { source: 0, number }),
            Self::Mix(cursor) => cursor
                .at(position)
                .map(|(source, number)| Spot { source, number }),
        };
        spot.ok_or_else(|| {
            Error::new(Kind::Internal, "a step reaches behind its epoch").with("position", position)
        })
    }
}
