//! A dataset with a way to shuffle it: the source of the orders of all epochs.
//!
//! Made once per run (and again on resume, from the state). Cheap to clone; everything large is shared.

use std::sync::Arc;

use forebay_core::Result;

use super::epoch::Order;
use super::key::{Key, Purpose};
use super::shape::{Fingerprint, Shape};
use super::subset::Subset;
use super::windows::Runs;
use super::{OrderOptions, Shuffle};

/// A dataset, or a subset of it, with a way to shuffle it.
#[derive(Debug, Clone)]
pub struct Plan {
    pub(super) options: OrderOptions,
    /// The dataset as it is.
    pub(super) shape: Arc<Shape>,
    /// Shape that the subset leaves; its samples are ordinals.
    pub(super) left: Arc<Shape>,
    pub(super) subset: Option<Arc<Subset>>,
    /// Only for windows.
    pub(super) runs: Option<Arc<Runs>>,
    epoch_samples: u64,
}

impl Plan {
    /// The plan for a whole dataset.
    ///
    /// # Errors
    /// `InvalidInput` if the options make no sense.
    pub fn new(shape: impl Into<Arc<Shape>>, options: OrderOptions) -> Result<Self> {
        let shape = shape.into();
        Self::build(Arc::clone(&shape), shape, None, options)
    }

    /// The plan for the samples that a filter let through.
    ///
    /// # Errors
    /// `InvalidInput` if the options make no sense or the subset names samples that the dataset does not
    /// have.
    pub fn filtered(
        shape: impl Into<Arc<Shape>>,
        subset: impl Into<Arc<Subset>>,
        options: OrderOptions,
    ) -> Result<Self> {
        let (shape, subset) = (shape.into(), subset.into());
        let left = Arc::new(subset.shape(&shape)?);
        Self::build(shape, left, Some(subset), options)
    }

    fn build(
        shape: Arc<Shape>,
        left: Arc<Shape>,
        subset: Option<Arc<Subset>>,
        options: OrderOptions,
    ) -> Result<Self> {
        options.check()?;
        let epoch_samples = options.take.of(left.samples())?;
        let runs = match options.shuffle {
            Shuffle::Window(window) => Some(Arc::new(Runs::new(&left, window))),
            Shuffle::None | Shuffle::Global => None,
        };
        Ok(Self {
            options,
            shape,
            left,
            subset,
            runs,
            epoch_samples,
        })
    }

    /// The same samples in another way.
    ///
    /// # Errors
    /// `InvalidInput` if the options make no sense.
    pub fn with_options(&self, options: OrderOptions) -> Result<Self> {
        Self::build(
            Arc::clone(&self.shape),
            Arc::clone(&self.left),
            self.subset.clone(),
            options,
        )
    }

    /// The order of an epoch. Takes time and memory for the shards, not for the samples.
    #[must_use]
    pub fn epoch(&self, epoch: u64) -> Order {
        Order::new(self.clone(), epoch)
    }

    /// Returns how many samples an epoch has.
    #[must_use]
    pub fn epoch_samples(&self) -> u64 {
        self.epoch_samples
    }

    /// Returns how it is shuffled.
    #[must_use]
    pub fn options(&self) -> &OrderOptions {
        &self.options
    }

    /// The dataset.
    #[must_use]
    pub fn shape(&self) -> &Arc<Shape> {
        &self.shape
    }

    /// Returns which dataset this is, and which subset of it.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        self.left.fingerprint()
    }

    /// Returns how many samples there are to take from.
    pub(super) fn subset_samples(&self) -> u64 {
        self.left.samples()
    }

    /// A random number for a position of an epoch, the same whenever it is asked for: what random steps of
    /// decoders use.
    #[must_use]
    pub fn sample_seed(&self, epoch: u64, position: u64) -> u64 {
        sample_seed(self.options.seed, epoch, position)
    }

    pub(super) fn epoch_key(&self, epoch: u64) -> Key {
        Key::new(self.options.seed).derive(Purpose::Epoch, epoch)
    }
}

/// A random number for a place of an epoch: a position in it, or a sample where somebody else decides on the
/// order.
#[must_use]
pub fn sample_seed(seed: u64, epoch: u64, place: u64) -> u64 {
    let epoch = Key::new(seed).derive(Purpose::Epoch, epoch);
    epoch.derive(Purpose::Draw, 0).word(place)
}
