//! A part of a dataset: the samples that a filter let through.
//!
//! An order over a subset runs over the ordinals of its samples (0 for the first that is in, and so on), so
//! it stays exact: each once, no gaps. The subset translates both ways. It is a bitmap with counts where it
//! is dense (1.1 bits per sample of the dataset) and a sorted list where it is sparse (8 bytes per sample of
//! the subset), whichever is smaller.

use forebay_core::{Error, Kind, Result};

use super::key::mix;
use super::shape::{Shape, ShardSize};

/// Bits that share one count.
const BLOCK_BITS: u64 = 512;
const WORDS: usize = (BLOCK_BITS / 64) as usize;

/// Some of the samples of a dataset.
#[derive(Debug, Clone)]
pub struct Subset {
    samples: u64,
    digest: u64,
    kind: Set,
}

#[derive(Debug, Clone)]
enum Set {
    Sparse(Vec<u64>),
    /// The words of the bitmap, padded to whole blocks, and how many bits are set before each block.
    Dense {
        words: Vec<u64>,
        before: Vec<u64>,
    },
}

impl Subset {
    /// The subset of these samples, which come in ascending order, each once.
    ///
    /// # Errors
    /// `InvalidInput` if they are not in ascending order.
    pub fn from_sorted(samples: Vec<u64>) -> Result<Self> {
        if let Some(pair) = samples.windows(2).find(|pair| pair[0] >= pair[1]) {
            return Err(Error::new(
                Kind::InvalidInput,
                "the samples of a subset must be in ascending order, each once",
            )
            .with("sample", pair[0])
            .with("next", pair[1]));
        }
        let end = samples.last().map_or(0, |last| last.saturating_add(1));
        if is_sparse(samples.len() as u64, end) {
            let words = samples.chunk_by(|one, other| one / 64 == other / 64);
            let words = words.map(|group| {
                (
                    group[0] / 64,
                    group.iter().fold(0, |word, sample| word | 1 << (sample % 64)),
                )
            });
            return Ok(Self {
                samples: samples.len() as u64,
                digest: digest(words),
                kind: Set::Sparse(samples),
            });
        }
        let mut words = vec![0_u64; end.div_ceil(64) as usize];
        for sample in samples {
            words[(sample / 64) as usize] |= 1 << (sample % 64);
        }
        Ok(Self::from_bitmap(words))
    }

    /// The subset of the samples whose bits are set: bit `n % 64` of word `n / 64` for sample `n`.
    #[must_use]
    pub fn from_bitmap(mut words: Vec<u64>) -> Self {
        let used = words
            .iter()
            .rposition(|word| *word != 0)
            .map_or(0, |last| last + 1);
        words.truncate(used);
        let samples = words.iter().map(|word| u64::from(word.count_ones())).sum();
        let digest = digest(
            words
                .iter()
                .enumerate()
                .map(|(index, word)| (index as u64, *word)),
        );
        let kind = if is_sparse(samples, used as u64 * 64) {
            Set::Sparse(
                (0..used as u64 * 64)
                    .filter(|sample| is_set(&words, *sample))
                    .collect(),
            )
        } else {
            dense(words)
        };
        Self {
            samples,
            digest,
            kind,
        }
    }

    /// The subset of the samples for which the filter says yes.
    pub fn filter(shape: &Shape, allowed: impl Fn(u64) -> bool) -> Self {
        let mut words = vec![0_u64; shape.samples().div_ceil(64) as usize];
        for sample in (0..shape.samples()).filter(|sample| allowed(*sample)) {
            words[(sample / 64) as usize] |= 1 << (sample % 64);
        }
        Self::from_bitmap(words)
    }

    /// The samples that are in both.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        let (few, many) = if self.samples <= other.samples {
            (self, other)
        } else {
            (other, self)
        };
        let both = (0..few.samples).map(|ordinal| few.select(ordinal));
        let both = both.filter(|sample| many.ordinal(*sample).is_some()).collect();
        Self::from_sorted(both).expect("ordinals ascend, and so do their samples")
    }

    /// Returns how many samples are in it.
    #[must_use]
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// The sample with this ordinal, if there is one.
    #[must_use]
    pub fn sample(&self, ordinal: u64) -> Option<u64> {
        (ordinal < self.samples).then(|| self.select(ordinal))
    }

    /// The sample with this ordinal, which is below [`Subset::samples`].
    pub(super) fn select(&self, ordinal: u64) -> u64 {
        match &self.kind {
            Set::Sparse(list) => list[ordinal as usize],
            Set::Dense { words, before } => {
                let block = before.partition_point(|count| *count <= ordinal) - 1;
                let mut left = ordinal - before[block];
                let mut word = block * WORDS;
                while left >= u64::from(words[word].count_ones()) {
                    left -= u64::from(words[word].count_ones());
                    word += 1;
                }
                word as u64 * 64 + u64::from(select_bit(words[word], left))
            }
        }
    }

    /// Returns how many samples of the subset are below this one.
    pub(super) fn rank(&self, sample: u64) -> u64 {
        match &self.kind {
            Set::Sparse(list) => list.partition_point(|other| *other < sample) as u64,
            Set::Dense { words, before } => {
                let word = (sample / 64) as usize;
                if word >= words.len() {
                    return self.samples;
                }
                let block = word / WORDS;
                let whole: u32 = words[block * WORDS..word]
                    .iter()
                    .map(|word| word.count_ones())
                    .sum();
                let part = words[word] & ((1_u64 << (sample % 64)) - 1);
                before[block] + u64::from(whole) + u64::from(part.count_ones())
            }
        }
    }

    /// The ordinal of a sample, if it is in.
    #[must_use]
    pub fn ordinal(&self, sample: u64) -> Option<u64> {
        let rank = self.rank(sample);
        (rank < self.samples && self.select(rank) == sample).then_some(rank)
    }

    /// The shape of what is left of the dataset.
    pub(super) fn shape(&self, full: &Shape) -> Result<Shape> {
        if self.samples > 0 && self.select(self.samples - 1) >= full.samples() {
            return Err(Error::new(
                Kind::InvalidInput,
                "the subset names samples that the dataset does not have",
            )
            .with("sample", self.select(self.samples - 1))
            .with("samples", full.samples()));
        }
        let shards = (0..full.shards()).map(|shard| {
            let range = full.samples_of(shard);
            let all = range.end - range.start;
            let samples = self.rank(range.end) - self.rank(range.start);
            let bytes = u128::from(full.bytes_of(shard)) * u128::from(samples) / u128::from(all.max(1));
            ShardSize {
                samples,
                bytes: bytes as u64,
            }
        });
        Shape::new(shards, full.fingerprint().and(self.digest))
    }
}

fn dense(mut words: Vec<u64>) -> Set {
    words.resize(words.len().next_multiple_of(WORDS), 0);
    let mut before = Vec::with_capacity(words.len() / WORDS);
    let mut count = 0_u64;
    for block in words.chunks_exact(WORDS) {
        before.push(count);
        count += block.iter().map(|word| u64::from(word.count_ones())).sum::<u64>();
    }
    Set::Dense { words, before }
}

/// Returns whether a list of so many samples is smaller than a bitmap that ends there.
fn is_sparse(samples: u64, end: u64) -> bool {
    end / 56 > samples
}

fn is_set(words: &[u64], sample: u64) -> bool {
    words[(sample / 64) as usize] >> (sample % 64) & 1 == 1
}

/// The same for the same samples, in either form.
fn digest(words: impl Iterator<Item = (u64, u64)>) -> u64 {
    let words = words.filter(|(_, word)| *word != 0);
    words.fold(0, |digest, (index, word)| {
        mix(mix(digest ^ word).wrapping_add(index))
    })
}

/// The place of the set bit that has `skip` set bits below it.
fn select_bit(mut word: u64, skip: u64) -> u32 {
    for _ in 0..skip {
        word &= word - 1;
    }
    word.trailing_zeros()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn select_and_rank_agree_in_both_forms() {
        for step in [1, 3, 50, 1000] {
            let list: Vec<u64> = (0..3000)
                .map(|index| 7 + index * step + index % step.min(2))
                .collect();
            let subset = Subset::from_sorted(list.clone()).unwrap();
            assert_eq!(matches!(subset.kind, Set::Sparse(_)), step == 1000, "{step}");
            for (ordinal, sample) in list.iter().enumerate() {
                assert_eq!(subset.select(ordinal as u64), *sample);
                assert_eq!(subset.ordinal(*sample), Some(ordinal as u64));
                assert_eq!(subset.rank(*sample + 1), ordinal as u64 + 1);
            }
            assert_eq!(subset.ordinal(6), None);
            assert_eq!(subset.ordinal(list[2999] + 1), None);
            assert_eq!(subset.rank(u64::MAX), 3000);
        }
    }

    #[test]
    fn a_bitmap_is_the_same_subset_as_a_list() {
        for list in [
            vec![],
            vec![3, 64, 65, 200],
            vec![5, 100_000],
            (0..5000).collect(),
        ] {
            let mut words = vec![0_u64; 2000];
            for sample in &list {
                words[*sample as usize / 64] |= 1 << (sample % 64);
            }
            let (one, other) = (
                Subset::from_sorted(list.clone()).unwrap(),
                Subset::from_bitmap(words),
            );
            assert_eq!((one.samples, one.digest), (other.samples, other.digest));
            assert!((0..other.samples).map(|ordinal| other.select(ordinal)).eq(list));
        }
        assert_ne!(
            Subset::from_bitmap(vec![1, 0, 1]).digest,
            Subset::from_bitmap(vec![1, 1]).digest
        );
    }

    #[test]
    fn what_is_in_both_is_what_is_in_each() {
        let every = |step: u64| Subset::from_sorted((0..4000).map(|number| number * step).collect()).unwrap();
        for (one, other) in [(2, 3), (3, 2), (1, 100), (100, 1)] {
            let both = every(one).and(&every(other));
            let end = 3999 * one.min(other);
            let expected: Vec<u64> = (0..=end)
                .filter(|number| number % one == 0 && number % other == 0)
                .collect();
            assert!(
                (0..both.samples).map(|ordinal| both.select(ordinal)).eq(expected),
                "{one} {other}"
            );
        }
    }

    #[test]
    fn unsorted_samples_are_refused() {
        assert_eq!(
            Subset::from_sorted(vec![1, 1]).unwrap_err().kind(),
            Kind::InvalidInput
        );
        assert_eq!(
            Subset::from_sorted(vec![2, 1]).unwrap_err().kind(),
            Kind::InvalidInput
        );
    }
}
