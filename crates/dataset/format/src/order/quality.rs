//! Quality of a shuffle: the median distance between neighbours.
//!
//! The measure of the loader comparisons: take two samples that come one after the other, how far apart do
//! they lie in the dataset? Perfect shuffling gives a median of `1 - 1/sqrt(2)` = 29 % of the dataset; a
//! shuffle buffer of a thousand gives hundreds, whatever the size of the dataset. It is measured at up to so
//! many places, spread over the epoch; the same places every time.

use super::epoch::Order;
use super::key::{Key, Purpose};

/// Quality of a shuffle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quality {
    /// The median distance between neighbours, in samples.
    pub median_distance: u64,
    /// Distance that perfect shuffling of this many samples would give.
    pub uniform_distance: u64,
    /// At how many places it was measured.
    pub pairs: u64,
}

impl Quality {
    /// The distance as a part of what perfect shuffling would give: near 1 is good.
    #[must_use]
    pub fn ratio(&self) -> f64 {
        self.median_distance as f64 / self.uniform_distance.max(1) as f64
    }
}

impl Order {
    /// Measures the mixing at no more than so many places; 10,000 are enough for two digits.
    #[must_use]
    pub fn quality(&self, pairs_max: u64) -> Quality {
        let places = self.samples().saturating_sub(1);
        let pairs = places.min(pairs_max);
        let key = Key::new(0).derive(Purpose::Quality, 0);
        let mut cursor = self.cursor();
        let mut distances: Vec<u64> = (0..pairs)
            .filter_map(|pair| {
                // One place at random in each of as many equal stretches.
                let bound = |pair: u64| (u128::from(places) * u128::from(pair) / u128::from(pairs)) as u64;
                let position = bound(pair) + key.below(pair, bound(pair + 1) - bound(pair));
                Some(cursor.ordinal(position)?.abs_diff(cursor.ordinal(position + 1)?))
            })
            .collect();
        distances.sort_unstable();
        Quality {
            median_distance: distances.get(distances.len() / 2).copied().unwrap_or(0),
            uniform_distance: (self.plan.subset_samples() as f64 * (1.0 - std::f64::consts::FRAC_1_SQRT_2))
                as u64,
            pairs,
        }
    }
}
