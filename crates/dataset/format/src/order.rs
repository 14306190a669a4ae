//! The order of an epoch: which sample comes at which position, as a pure function of seed, epoch and
//! position.
//!
//! [`Shape`] says what the dataset is, [`OrderOptions`] how it is shuffled; a [`Plan`] puts them together and
//! gives an [`Order`] for each epoch. An order answers both ways (sample at a position, position of a
//! sample), needs memory for the shards and not for the samples, and knows when a shard is needed. It does
//! not know of ranks: a [`Split`] cuts its positions into steps and gives each rank its slice, so the order
//! is the same for any number of them. A [`OrderState`] is where one stands, in a few hundred bytes. A
//! [`Mix`] interleaves several datasets.
//!
//! Nothing here reads, allocates per sample, or draws random numbers: docs/flows/dataset-order.md has the
//! whole definition.
//!
//! ```
//! use forebay_dataset::order::{Fingerprint, OrderOptions, Plan, Shape, ShardSize, Shuffle, Window};
//!
//! let shards = [ShardSize { samples: 1000, bytes: 52_000_000 }; 8];
//! let shape = Shape::new(shards, Fingerprint::of([("a.tar", "etag", 8000)]))?;
//! let options = OrderOptions { seed: 7, shuffle: Shuffle::Window(Window::samples(2000)), ..OrderOptions::default() };
//! let order = Plan::new(shape, options)?.epoch(0);
//! let sample = order.at(5).unwrap();
//! assert_eq!(order.position_of(sample), Some(5));
//! assert_eq!(order.iter(0..8000).count(), 8000);
//! # Ok::<(), forebay_core::Error>(())
//! ```

mod choice;
mod cursor;
mod epoch;
mod key;
mod mix;
mod permutation;
mod plan;
mod quality;
mod shape;
mod split;
mod state;
mod subset;
mod uses;
mod windows;

use forebay_core::{Error, Kind, Result};
use serde::{Deserialize, Serialize};

pub use cursor::{Cursor, Iter};
pub use epoch::Order;
pub use mix::{Mix, MixCursor, Pick, SOURCES_MAX, Stop};
pub use plan::{Plan, sample_seed};
pub use quality::Quality;
pub use shape::{Fingerprint, SAMPLES_MAX, Shape, ShardSize};
pub use split::{Batch, Ranks, Split, Tail};
pub use state::{MixState, OrderState, STATE_VERSION, SourceState};
pub use subset::Subset;
pub use uses::{Piece, Use};

/// Into how many runs a window is cut at least, unless said otherwise.
pub const RUNS_MIN_DEFAULT: u32 = 16;
const RUNS_MIN_MAX: u32 = 1 << 16;

/// Shuffle of an epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Shuffle {
    /// Not at all: the order of the dataset.
    #[default]
    None,
    /// Every sample may come anywhere: the best mixing, and reads all over the lake.
    Global,
    /// Runs of samples in random order, samples mixed inside a window of many runs: nearly as good, and reads
    /// in long stretches.
    Window(Window),
}

/// The window of [`Shuffle::Window`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window {
    /// Size of a window.
    pub span: Span,
    /// A window mixes at least this many runs: shards are cut until it does. 1 leaves them whole, which only
    /// pays where a shard can only be read from its start (compressed ones).
    pub runs_min: u32,
}

/// Size of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Span {
    /// In samples.
    Samples(u64),
    /// In bytes, where samples of a shard count alike.
    Bytes(u64),
}

impl Window {
    /// A window of so many samples.
    #[must_use]
    pub const fn samples(samples: u64) -> Self {
        Self {
            span: Span::Samples(samples),
            runs_min: RUNS_MIN_DEFAULT,
        }
    }

    /// A window of so many bytes.
    #[must_use]
    pub const fn bytes(bytes: u64) -> Self {
        Self {
            span: Span::Bytes(bytes),
            runs_min: RUNS_MIN_DEFAULT,
        }
    }

    /// Leaves shards whole where they fit.
    #[must_use]
    pub const fn whole_shards(mut self) -> Self {
        self.runs_min = 1;
        self
    }
}

impl Span {
    const fn size(self) -> u64 {
        match self {
            Self::Samples(size) | Self::Bytes(size) => size,
        }
    }
}

/// Share of the dataset that an epoch takes.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Take {
    /// All of it.
    #[default]
    All,
    /// This fraction of the samples, above 0 and at most 1, others in each epoch.
    Fraction(f64),
    /// This many samples, others in each epoch.
    Samples(u64),
}

impl Take {
    /// Returns how many of so many samples.
    fn of(self, samples: u64) -> Result<u64> {
        let advice =
            "an epoch takes a fraction above 0 and at most 1, or at least one sample and at most all";
        let wrong = |what: &dyn std::fmt::Display| {
            Error::new(Kind::InvalidInput, advice)
                .with("take", what)
                .with("samples", samples)
        };
        match self {
            Self::All => Ok(samples),
            Self::Fraction(fraction) if fraction > 0.0 && fraction <= 1.0 => {
                Ok(((samples as f64 * fraction).round() as u64).clamp(samples.min(1), samples))
            }
            Self::Fraction(fraction) => Err(wrong(&fraction)),
            Self::Samples(count) if (1..=samples).contains(&count) => Ok(count),
            Self::Samples(count) => Err(wrong(&count)),
        }
    }
}

/// Options of an order, besides the dataset.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct OrderOptions {
    /// Another seed, another order.
    pub seed: u64,
    /// Its shuffle.
    pub shuffle: Shuffle,
    /// Share of the dataset that an epoch takes.
    pub take: Take,
}

impl OrderOptions {
    fn check(&self) -> Result<()> {
        let Shuffle::Window(window) = self.shuffle else {
            return Ok(());
        };
        if window.span.size() == 0 {
            return Err(Error::new(
                Kind::InvalidInput,
                "a window needs a size of at least one sample or byte",
            ));
        }
        if !(1..=RUNS_MIN_MAX).contains(&window.runs_min) {
            return Err(
                Error::new(Kind::InvalidInput, "a window mixes between 1 and 65536 runs")
                    .with("runs_min", window.runs_min),
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
