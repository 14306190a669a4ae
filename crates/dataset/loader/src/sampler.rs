//! The sampler of a loader: the sample at each position, of one dataset or of a mix.
//!
//! Two kinds of order ([`Plan`], [`Mix`]) behind one interface. Pure: positions in, samples out.

use std::ops::Range;

use forebay_core::{Error, Kind, Result};
use forebay_dataset::order::{Cursor, Mix, MixCursor, OrderState, Plan};

/// The order of samples.
#[derive(Debug, Clone)]
pub(crate) enum Sampler {
    One(Plan),
    Mix(Box<Mix>),
}

/// A sample of one of the datasets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SampleRef {
    pub(crate) source: usize,
    pub(crate) number: u64,
}

/// Position of one source when the mix stands at some position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SourcePosition {
    pub(crate) epoch: u64,
    pub(crate) position: u64,
}

impl Sampler {
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
    pub(crate) fn cursor(&self, epoch: u64) -> SamplerCursor {
        match self {
            Self::One(plan) => SamplerCursor::One(Box::new(plan.epoch(epoch).cursor())),
            Self::Mix(mix) => SamplerCursor::Mix(Box::new(mix.cursor(epoch))),
        }
    }

    /// Returns where a source stands at a position of an epoch.
    pub(crate) fn source_position(&self, source: usize, epoch: u64, position: u64) -> SourcePosition {
        let Self::Mix(mix) = self else {
            return SourcePosition { epoch, position };
        };
        let given = |position| u128::from(mix.given(position).get(source).copied().unwrap_or_default());
        let per_epoch = mix.epoch_samples().map_or(0, given);
        let number = u128::from(epoch) * per_epoch + given(position);
        let samples = u128::from(mix.sources().get(source).map_or(1, Plan::epoch_samples).max(1));
        SourcePosition {
            epoch: u64::try_from(number / samples).unwrap_or(u64::MAX),
            position: (number % samples) as u64,
        }
    }

    /// Returns what may come in place of the sample at a position: the others of its window, the next ones
    /// first.
    pub(crate) fn substitutes(&self, epoch: u64, position: u64) -> Box<dyn Iterator<Item = SampleRef>> {
        let (source, plan, source_position) = match self {
            Self::One(plan) => (0, plan, SourcePosition { epoch, position }),
            Self::Mix(mix) => match mix.pick(epoch, position) {
                Some(pick) => {
                    let source_position = SourcePosition {
                        epoch: pick.epoch,
                        position: pick.position,
                    };
                    (pick.source, &mix.sources()[pick.source], source_position)
                }
                None => return Box::new(std::iter::empty()),
            },
        };
        let order = plan.epoch(source_position.epoch);
        let window = order.window_at(source_position.position);
        let window: Range<u64> = window.map_or(0..0, |window| order.window_positions(window));
        let next = source_position.position.saturating_add(1)..window.end;
        let positions = next.chain(window.start..source_position.position);
        let mut cursor = order.cursor();
        Box::new(positions.filter_map(move |position| {
            Some(SampleRef {
                source,
                number: cursor.at(position)?,
            })
        }))
    }

    /// A random number for a position: the same on every rank and after every resume.
    pub(crate) fn sample_seed(&self, epoch: u64, position: u64) -> Option<u64> {
        self.plans().first().map(|plan| plan.sample_seed(epoch, position))
    }

    /// The state after so many samples of an epoch.
    pub(crate) fn state(&self, epoch: u64, position: u64) -> OrderState {
        match self {
            Self::One(plan) => plan.state(epoch, position),
            Self::Mix(mix) => mix.state(epoch, position),
        }
    }

    /// The sampler that a state was taken on.
    pub(crate) fn resume(&self, state: &OrderState) -> Result<Self> {
        match self {
            Self::One(plan) => Ok(Self::One(plan.resume(state)?)),
            Self::Mix(mix) => Ok(Self::Mix(Box::new(mix.resume(state)?))),
        }
    }
}

/// A cursor over an epoch; fast as long as it moves on.
#[derive(Debug, Clone)]
pub(crate) enum SamplerCursor {
    One(Box<Cursor>),
    Mix(Box<MixCursor>),
}

impl SamplerCursor {
    /// The sample at a position.
    pub(crate) fn at(&mut self, position: u64) -> Result<SampleRef> {
        let sample_ref = match self {
            Self::One(cursor) => cursor.at(position).map(|number| SampleRef { source: 0, number }),
            Self::Mix(cursor) => cursor
                .at(position)
                .map(|(source, number)| SampleRef { source, number }),
        };
        sample_ref.ok_or_else(|| {
            Error::new(Kind::Internal, "a step reaches behind its epoch").with("position", position)
        })
    }
}
