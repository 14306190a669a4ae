//! Several datasets as one, by weights.
//!
//! [`Choice`] says which source comes at which position, so a mix needs no state but its position. Each
//! source goes through its own epochs: one that is small starts again, shuffled anew, as often as the weights
//! ask for it. An epoch of the mix ends where [`Stop`] says; in the next one every source goes on where it
//! was, so that of a large source nothing comes twice before all of it came once.

use forebay_core::{Error, Kind, Result};
use serde::{Deserialize, Serialize};

use super::choice::Choice;
use super::cursor::Cursor;
use super::plan::Plan;
use super::state::{MixState, OrderState, STATE_VERSION, SourceState, check_version};

/// Datasets that can be mixed.
pub const SOURCES_MAX: usize = 4096;
/// Weights that are no whole numbers are scaled so that the largest becomes this.
const WEIGHT_MAX: f64 = 4_294_967_296.0;
/// Shares that differ by less are the same weights, written in another way (7 and 3, 0.7 and 0.3).
const SHARE_TOLERANCE: f64 = 1e-6;

/// End of an epoch of a mix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stop {
    /// Before the first source would start again.
    #[default]
    FirstExhausted,
    /// Ends when every source came whole at least once.
    AllExhausted,
    /// Never: there is one epoch without an end.
    Forever,
}

/// Several datasets, mixed by weights.
#[derive(Debug, Clone)]
pub struct Mix {
    sources: Vec<Plan>,
    weights: Vec<u64>,
    seed: u64,
    stop: Stop,
    choice: Choice,
    samples: Option<u64>,
    /// Samples that each source gives in an epoch of the mix.
    given: Vec<u64>,
}

/// The sample at a position of a mix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pick {
    /// Its source.
    pub source: usize,
    /// Epoch of that source.
    pub epoch: u64,
    /// Position in that epoch.
    pub position: u64,
}

impl Mix {
    /// Mixes these datasets by these weights, of which only the proportions matter.
    ///
    /// # Errors
    /// `InvalidInput` if there are none or more than [`SOURCES_MAX`], one is empty, or a weight is not above
    /// 0.
    pub fn new(sources: Vec<(Plan, f64)>, seed: u64, stop: Stop) -> Result<Self> {
        let weights = whole(&sources.iter().map(|(_, weight)| *weight).collect::<Vec<_>>())?;
        Self::build(
            sources.into_iter().map(|(plan, _)| plan).collect(),
            weights,
            seed,
            stop,
        )
    }

    fn build(sources: Vec<Plan>, weights: Vec<u64>, seed: u64, stop: Stop) -> Result<Self> {
        if let Some(source) = sources.iter().position(|plan| plan.epoch_samples() == 0) {
            return Err(Error::new(
                Kind::InvalidInput,
                "an empty dataset can not be mixed: leave it out",
            )
            .with("source", source));
        }
        let choice = Choice::new(seed, &weights);
        let each = || sources.iter().map(Plan::epoch_samples).enumerate();
        let samples = match stop {
            Stop::FirstExhausted => each()
                .map(|(source, samples)| choice.position(source, samples))
                .min(),
            Stop::AllExhausted => each()
                .map(|(source, samples)| choice.position(source, samples - 1).saturating_add(1))
                .max(),
            Stop::Forever => None,
        };
        let given = each()
            .map(|(source, _)| samples.map_or(0, |samples| choice.count(source, samples)))
            .collect();
        Ok(Self {
            sources,
            weights,
            seed,
            stop,
            choice,
            samples,
            given,
        })
    }

    /// Returns how many positions an epoch of the mix has; none if it never ends.
    #[must_use]
    pub fn epoch_samples(&self) -> Option<u64> {
        self.samples
    }

    /// The datasets.
    #[must_use]
    pub fn sources(&self) -> &[Plan] {
        &self.sources
    }

    /// Returns how many samples each source gives before a position of an epoch.
    #[must_use]
    pub fn given(&self, position: u64) -> Vec<u64> {
        (0..self.sources.len())
            .map(|source| self.choice.count(source, position))
            .collect()
    }

    /// Returns what comes at a position of an epoch; none behind its end.
    #[must_use]
    pub fn pick(&self, epoch: u64, position: u64) -> Option<Pick> {
        match self.samples {
            Some(samples) if position >= samples => return None,
            None if epoch > 0 => return None,
            _ => {}
        }
        let (source, number) = self.choice.at(position);
        let number = u128::from(epoch) * u128::from(self.given[source]) + u128::from(number);
        let samples = u128::from(self.sources[source].epoch_samples());
        Some(Pick {
            source,
            epoch: u64::try_from(number / samples).ok()?,
            position: (number % samples) as u64,
        })
    }

    /// A reader of an epoch.
    #[must_use]
    pub fn cursor(&self, epoch: u64) -> MixCursor {
        MixCursor {
            mix: self.clone(),
            epoch,
            cursors: vec![None; self.sources.len()],
        }
    }

    /// The state after so many samples of an epoch.
    #[must_use]
    pub fn state(&self, epoch: u64, position: u64) -> OrderState {
        OrderState {
            version: STATE_VERSION,
            epoch,
            position,
            sources: self.sources.iter().map(SourceState::of).collect(),
            mix: Some(MixState {
                seed: self.seed,
                weights: self.weights.clone(),
                stop: self.stop,
            }),
        }
    }

    /// These datasets as they were mixed when the state was taken, whatever the seed of this mix.
    ///
    /// # Errors
    /// `Changed` if a dataset is another one, `Unsupported` if the state is of another version,
    /// `InvalidInput` if it does not fit: other datasets, other weights, or another end of the epoch.
    pub fn resume(&self, state: &OrderState) -> Result<Self> {
        check_version(state.version)?;
        let Some(mix) = state
            .mix
            .as_ref()
            .filter(|_| state.sources.len() == self.sources.len())
        else {
            return Err(Error::new(
                Kind::InvalidInput,
                "this state is of other datasets: resume it with the same ones",
            )
            .with("state", state.sources.len())
            .with("datasets", self.sources.len()));
        };
        if mix.weights.len() != self.sources.len()
            || mix.weights.iter().any(|weight| !(1..=1 << 32).contains(weight))
        {
            return Err(Error::new(
                Kind::InvalidInput,
                "the weights of this state are damaged",
            ));
        }
        self.check_mixed_alike(mix)?;
        let plans = state
            .sources
            .iter()
            .zip(&self.sources)
            .map(|(source, plan)| source.restore(plan));
        let resumed = Self::build(
            plans.collect::<Result<_>>()?,
            mix.weights.clone(),
            mix.seed,
            mix.stop,
        )?;
        if resumed.samples.is_some_and(|samples| state.position > samples) {
            return Err(
                Error::new(Kind::InvalidInput, "the state lies behind the end of its epoch")
                    .with("position", state.position),
            );
        }
        Ok(resumed)
    }
}

impl Mix {
    /// Refuses a state of other weights or of another end: the run that goes on would not be the one that
    /// was asked for, and nobody would notice.
    fn check_mixed_alike(&self, state: &MixState) -> Result<()> {
        let advice = "resume with them as they were, or begin the next epoch without the state";
        if state.stop != self.stop {
            let message = format!("the epochs of this state's mix end in another way: {advice}");
            return Err(Error::new(Kind::InvalidInput, message)
                .with("state", format!("{:?}", state.stop))
                .with("mix", format!("{:?}", self.stop)));
        }
        let (then, now) = (shares(&state.weights), shares(&self.weights));
        let is_alike = |(then, now): (&f64, &f64)| (then - now).abs() <= SHARE_TOLERANCE;
        if !then.iter().zip(&now).all(is_alike) {
            let message = format!("this state is of a mix with other weights: {advice}");
            return Err(Error::new(Kind::InvalidInput, message)
                .with("state", percentages(&then))
                .with("mix", percentages(&now)));
        }
        Ok(())
    }
}

/// Weights as parts of 1.
fn shares(weights: &[u64]) -> Vec<f64> {
    let total: f64 = weights.iter().map(|weight| *weight as f64).sum();
    weights.iter().map(|weight| *weight as f64 / total).collect()
}

/// The first shares, for a message.
fn percentages(shares: &[f64]) -> String {
    const SHOWN_MAX: usize = 16;
    let shown = shares.iter().take(SHOWN_MAX);
    let shown: Vec<String> = shown.map(|share| format!("{:.4} %", share * 100.0)).collect();
    let more = if shares.len() > SHOWN_MAX { ", …" } else { "" };
    format!("{}{more}", shown.join(", "))
}

/// Reads an epoch of a mix; fast as long as it moves on.
#[derive(Debug, Clone)]
pub struct MixCursor {
    mix: Mix,
    epoch: u64,
    cursors: Vec<Option<Cursor>>,
}

impl MixCursor {
    /// The source and its sample at a position; none behind the end.
    pub fn at(&mut self, position: u64) -> Option<(usize, u64)> {
        let pick = self.mix.pick(self.epoch, position)?;
        let cursor = match &mut self.cursors[pick.source] {
            Some(cursor) if cursor.order().epoch() == pick.epoch => cursor,
            cursor => cursor.insert(self.mix.sources[pick.source].epoch(pick.epoch).cursor()),
        };
        Some((pick.source, cursor.at(pick.position)?))
    }
}

/// Weights as whole numbers up to 2^32: as they are if they are whole, else scaled.
fn whole(weights: &[f64]) -> Result<Vec<u64>> {
    if weights.is_empty() || weights.len() > SOURCES_MAX {
        return Err(
            Error::new(Kind::InvalidInput, "a mix has between 1 and 4096 datasets")
                .with("datasets", weights.len()),
        );
    }
    if let Some(weight) = weights
        .iter()
        .find(|weight| !weight.is_finite() || **weight <= 0.0)
    {
        return Err(Error::new(
            Kind::InvalidInput,
            "a weight is a number above 0; leave out a dataset that should not come",
        )
        .with("weight", weight));
    }
    let largest = weights.iter().copied().fold(0.0, f64::max);
    let scale = if weights.iter().all(|weight| weight.fract() == 0.0) && largest <= WEIGHT_MAX {
        1.0
    } else {
        WEIGHT_MAX / largest
    };
    Ok(weights
        .iter()
        .map(|weight| ((weight * scale).round() as u64).max(1))
        .collect())
}
