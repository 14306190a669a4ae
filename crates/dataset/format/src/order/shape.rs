//! The shape of a dataset: how many samples and bytes each shard has, and a fingerprint of what it is.
//!
//! That is all an order needs to know. A shard here is a run of consecutive samples that are best read
//! together; whoever has an object per sample may call a thousand of them one shard. Samples are numbered
//! from 0 in the order of the shards. Memory: 16 bytes a shard.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use forebay_core::{Error, Kind, Result};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// Samples of a dataset are numbered below this.
pub const SAMPLES_MAX: u64 = 1 << 62;

/// Size of a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShardSize {
    /// Samples.
    pub samples: u64,
    /// Bytes; only windows given in bytes look at it.
    pub bytes: u64,
}

/// Samples and bytes of each shard.
#[derive(Debug, Clone)]
pub struct Shape {
    /// The number of the first sample of each shard, and at the end of all.
    first: Vec<u64>,
    bytes: Vec<u64>,
    fingerprint: Fingerprint,
}

impl Shape {
    /// The shape of these shards; the fingerprint says which versions they are.
    ///
    /// # Errors
    /// `InvalidInput` if there are more than 2^62 samples or 2^32 shards.
    pub fn new(shards: impl IntoIterator<Item = ShardSize>, fingerprint: Fingerprint) -> Result<Self> {
        let mut first = vec![0_u64];
        let mut bytes = Vec::new();
        let mut total = 0_u64;
        for shard in shards {
            total = total.saturating_add(shard.samples);
            first.push(total);
            bytes.push(shard.bytes);
        }
        if total > SAMPLES_MAX || u32::try_from(bytes.len()).is_err() {
            return Err(
                Error::new(Kind::InvalidInput, "the dataset is too large: split it")
                    .with("samples", total)
                    .with("shards", bytes.len()),
            );
        }
        Ok(Self {
            first,
            bytes,
            fingerprint,
        })
    }

    /// Returns how many samples there are.
    #[must_use]
    pub fn samples(&self) -> u64 {
        self.first[self.bytes.len()]
    }

    /// Returns how many shards there are.
    #[must_use]
    pub fn shards(&self) -> usize {
        self.bytes.len()
    }

    /// The numbers of the samples of a shard; empty if there is no such shard.
    #[must_use]
    pub fn samples_of(&self, shard: usize) -> Range<u64> {
        if shard < self.shards() {
            self.first[shard]..self.first[shard + 1]
        } else {
            0..0
        }
    }

    /// The shard of a sample and its row there.
    #[must_use]
    pub fn place_of(&self, sample: u64) -> Option<(usize, u64)> {
        if sample >= self.samples() {
            return None;
        }
        let shard = self.first.partition_point(|first| *first <= sample) - 1;
        Some((shard, sample - self.first[shard]))
    }

    /// Returns which versions of which shards this is.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// Returns how many bytes a shard has.
    pub(super) fn bytes_of(&self, shard: usize) -> u64 {
        self.bytes[shard]
    }
}

/// Identity of a dataset: the same for the same shards in the same versions, in the same order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Fingerprint([u8; 16]);

impl Fingerprint {
    /// The fingerprint of shards given by name, version (ETag) and number of samples.
    pub fn of<'a>(shards: impl IntoIterator<Item = (&'a str, &'a str, u64)>) -> Self {
        let mut hash = Sha256::new();
        for (name, version, samples) in shards {
            for text in [name, version] {
                hash.update((text.len() as u64).to_le_bytes());
                hash.update(text.as_bytes());
            }
            hash.update(samples.to_le_bytes());
        }
        Self::first_half(hash)
    }

    /// The fingerprint of a part of this dataset, or of this dataset seen in another way.
    pub(super) fn and(self, word: u64) -> Self {
        let mut hash = Sha256::new();
        hash.update(self.0);
        hash.update(word.to_le_bytes());
        Self::first_half(hash)
    }

    fn first_half(hash: Sha256) -> Self {
        let digest = hash.finalize();
        Self(std::array::from_fn(|index| digest[index]))
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for Fingerprint {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = || Error::new(Kind::InvalidInput, "a fingerprint is 32 hexadecimal digits");
        let mut bytes = [0; 16];
        hex::decode_to_slice(text, &mut bytes).map_err(|_| wrong().with("fingerprint", text))?;
        Ok(Self(bytes))
    }
}

impl TryFrom<String> for Fingerprint {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<Fingerprint> for String {
    fn from(fingerprint: Fingerprint) -> Self {
        fingerprint.to_string()
    }
}
