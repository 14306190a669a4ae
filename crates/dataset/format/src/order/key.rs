//! Keys: how one seed becomes an independent number for each epoch, window and round.
//!
//! The mixing function is the finaliser of SplitMix64 (Stafford's variant 13): a bijection of 64-bit words
//! that passes the usual batteries on consecutive inputs. It is not cryptography: who knows the seed knows
//! the order, and that is the point. Its definition is part of the order (docs/flows/dataset-order.md); a
//! change here changes every run that resumes.

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Scrambles a word.
pub(super) const fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// Purpose of a derived key, so that no two uses of a seed share their numbers.
#[derive(Debug, Clone, Copy)]
pub(super) enum Purpose {
    Epoch = 1,
    Runs = 2,
    Window = 3,
    Samples = 4,
    Take = 5,
    Mix = 6,
    Quality = 7,
    Draw = 8,
}

/// A word that stands for a seed and a purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Key(u64);

impl Key {
    /// The key of a seed.
    pub(super) const fn new(seed: u64) -> Self {
        Self(mix(seed.wrapping_add(GOLDEN)))
    }

    /// The key for the `number`-th use for this purpose.
    pub(super) const fn derive(self, purpose: Purpose, number: u64) -> Self {
        let purpose = mix(self.0 ^ mix((purpose as u64).wrapping_add(GOLDEN)));
        Self(mix(purpose ^ mix(number.wrapping_add(GOLDEN))))
    }

    /// The `number`-th word of this key's stream.
    pub(super) const fn word(self, number: u64) -> u64 {
        mix(self.0.wrapping_add(number.wrapping_add(1).wrapping_mul(GOLDEN)))
    }

    /// The `number`-th word, brought into `[0, bound)`.
    pub(super) const fn below(self, number: u64, bound: u64) -> u64 {
        scale(self.word(number), bound)
    }
}

/// Brings a word evenly into `[0, bound)`, by its high bits.
pub(super) const fn scale(word: u64, bound: u64) -> u64 {
    ((word as u128 * bound as u128) >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_of_keys_does_not_change() {
        let key = Key::new(7).derive(Purpose::Epoch, 3);
        assert_eq!(mix(1), 0x5692_161d_100b_05e5);
        assert_eq!(key, Key::new(7).derive(Purpose::Epoch, 3));
        assert_ne!(key, Key::new(7).derive(Purpose::Runs, 3));
        assert_ne!(key, Key::new(7).derive(Purpose::Epoch, 4));
        assert_ne!(key, Key::new(8).derive(Purpose::Epoch, 3));
    }

    #[test]
    fn scaled_words_stay_below_the_bound() {
        assert_eq!(scale(u64::MAX, 10), 9);
        assert_eq!(scale(0, 10), 0);
        assert_eq!(scale(u64::MAX, 1), 0);
    }
}
