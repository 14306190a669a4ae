//! The meaning of a bucket: what has to be the same on two nodes before they share its bytes.
//!
//! Pages are keyed by bucket name, key, version and size. Two nodes that serve different lakes under one bucket
//! name would answer for each other's objects, so a node compares before it answers. What differs is named to
//! both sides. A receiver never believes what a peer says about itself beyond this comparison: who may map the
//! bytes comes from its own configuration.

use serde::{Deserialize, Serialize};

/// The longest word of a meaning.
const WORD_BYTES_MAX: usize = 4096;

/// The meaning of a bucket on one node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BucketMeaning {
    /// The identity of its lake.
    pub lake: String,
    /// The folder of the bucket in the lake; empty if it has the whole lake.
    pub prefix: String,
    /// The freshness of its metadata.
    pub consistency: String,
    /// The users who may map its bytes.
    pub domain: String,
}

impl BucketMeaning {
    /// The settings that differ between two nodes; empty if they may share the bucket.
    #[must_use]
    pub fn differences(&self, other: &Self) -> Vec<&'static str> {
        let words = [
            ("lake", &self.lake, &other.lake),
            ("prefix", &self.prefix, &other.prefix),
            ("consistency", &self.consistency, &other.consistency),
            ("allow_uids", &self.domain, &other.domain),
        ];
        let differing = words.into_iter().filter(|(_, own, other)| own != other);
        differing.map(|(word, _, _)| word).collect()
    }

    /// Returns whether no word is longer than a peer may send.
    pub(crate) fn is_bounded(&self) -> bool {
        let words = [&self.lake, &self.prefix, &self.consistency, &self.domain];
        words.iter().all(|word| word.len() <= WORD_BYTES_MAX)
    }
}
