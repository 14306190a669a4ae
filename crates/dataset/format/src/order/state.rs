//! Position and order of a run, in a few hundred bytes of JSON.
//!
//! A state counts the samples that all ranks together have consumed of an epoch. It does not know of ranks,
//! batches or workers, so it can be resumed with any number of them, and every rank has the same one after
//! the same step ([`Split::position_after`]). It carries what the order depends on, so a resumed run goes on
//! with the order that it had, whatever the new options say; and a fingerprint of the data, so that a run on
//! changed data is refused: positions would mean other samples.
//!
//! [`Split::position_after`]: super::Split::position_after

use forebay_core::{Error, Kind, Result};
use serde::{Deserialize, Serialize};

use super::mix::Stop;
use super::plan::Plan;
use super::shape::Fingerprint;
use super::{OrderOptions, Shuffle, Take};

/// The version of states, and of the definition of the order that their positions count in.
pub const STATE_VERSION: u32 = 1;
/// A state that is larger was not written by us.
const STATE_BYTES_MAX: usize = 1 << 20;

/// Position and order of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OrderState {
    /// [`STATE_VERSION`].
    pub version: u32,
    /// The epoch.
    pub epoch: u64,
    /// Samples of it that all ranks together have consumed.
    pub position: u64,
    /// Its sources: one dataset, or those of a mix.
    pub sources: Vec<SourceState>,
    /// Mix of several datasets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mix: Option<MixState>,
}

/// Options that the order of one dataset depends on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SourceState {
    /// The seed.
    pub seed: u64,
    /// Its shuffle.
    pub shuffle: Shuffle,
    /// Samples of an epoch.
    pub epoch_samples: u64,
    /// Identity of the dataset and its subset.
    pub fingerprint: Fingerprint,
}

/// Options that the choice between datasets depends on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MixState {
    /// The seed.
    pub seed: u64,
    /// The weight of each source.
    pub weights: Vec<u64>,
    /// End of an epoch of the mix.
    pub stop: Stop,
}

impl OrderState {
    /// The state as JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("a state has no maps with other keys than strings")
    }

    /// The state from JSON.
    ///
    /// # Errors
    /// `InvalidInput` if it is no state, `Unsupported` if it is one of another version.
    pub fn from_json(text: &str) -> Result<Self> {
        #[derive(Deserialize)]
        struct Version {
            version: u32,
        }
        let wrong = || Error::new(Kind::InvalidInput, "this is no state of a loader");
        if text.len() > STATE_BYTES_MAX {
            return Err(wrong().with("bytes", text.len()));
        }
        let version: Version = serde_json::from_str(text).map_err(|error| wrong().caused_by(error))?;
        check_version(version.version)?;
        serde_json::from_str(text).map_err(|error| wrong().caused_by(error))
    }
}

pub(super) fn check_version(version: u32) -> Result<()> {
    if version == STATE_VERSION {
        return Ok(());
    }
    Err(Error::new(
        Kind::Unsupported,
        "this state is of another version of Forebay: resume with that version, or begin a new epoch without it",
    )
    .with("version", version)
    .with("supported", STATE_VERSION))
}

impl SourceState {
    pub(super) fn of(plan: &Plan) -> Self {
        Self {
            seed: plan.options().seed,
            shuffle: plan.options().shuffle,
            epoch_samples: plan.epoch_samples(),
            fingerprint: plan.fingerprint(),
        }
    }

    /// The plan as it was when the state was taken.
    pub(super) fn restore(&self, plan: &Plan) -> Result<Plan> {
        if self.fingerprint != plan.fingerprint() {
            return Err(Error::new(
                Kind::Changed,
                "the dataset is not the one that this state was taken from (shards, versions or filter differ): \
                 resume with the data as it was, or begin a new epoch without the state",
            )
            .with("state", self.fingerprint)
            .with("dataset", plan.fingerprint()));
        }
        let take = if self.epoch_samples == plan.subset_samples() {
            Take::All
        } else {
            Take::Samples(self.epoch_samples)
        };
        plan.with_options(OrderOptions {
            seed: self.seed,
            shuffle: self.shuffle,
            take,
        })
    }
}

impl Plan {
    /// The state after so many samples of an epoch.
    #[must_use]
    pub fn state(&self, epoch: u64, position: u64) -> OrderState {
        OrderState {
            version: STATE_VERSION,
            epoch,
            position,
            sources: vec![SourceState::of(self)],
            mix: None,
        }
    }

    /// This dataset in the order that the state was taken in, whatever the options of this plan.
    ///
    /// # Errors
    /// `Changed` if the dataset is another one, `Unsupported` if the state is of another version,
    /// `InvalidInput` if it does not fit.
    pub fn resume(&self, state: &OrderState) -> Result<Self> {
        check_version(state.version)?;
        let ([source], None) = (state.sources.as_slice(), &state.mix) else {
            return Err(Error::new(
                Kind::InvalidInput,
                "this state is of a mix of datasets: resume it with the same datasets",
            )
            .with("datasets", state.sources.len()));
        };
        let plan = source.restore(self)?;
        if state.position > plan.epoch_samples() {
            return Err(
                Error::new(Kind::InvalidInput, "the state lies behind the end of its epoch")
                    .with("position", state.position)
                    .with("samples", plan.epoch_samples()),
            );
        }
        Ok(plan)
    }
}
