//! Hashes of whole files, as an `index.json` has them.
//!
//! The document may name any algorithm of Python's `hashlib` or `xxhash`. Those that are known here are
//! computed while the file streams by and compared; the others are named in the answer, so that nobody takes
//! them for checked.

use forebay_core::{Error, Kind, Result};
use sha2::Digest;
use xxhash_rust::xxh3::Xxh3;
use xxhash_rust::xxh32::Xxh32;
use xxhash_rust::xxh64::Xxh64;

use super::MdsFile;

/// Result of a check.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Checked {
    /// Algorithms whose hashes are right.
    pub right: Vec<String>,
    /// Algorithms that are not known here.
    pub unchecked: Vec<String>,
}

enum Hasher {
    Md5(md5::Md5),
    Sha1(sha1::Sha1),
    Sha224(sha2::Sha224),
    Sha256(sha2::Sha256),
    Sha384(sha2::Sha384),
    Sha512(sha2::Sha512),
    Xxh32(Xxh32),
    Xxh64(Xxh64),
    Xxh3(Box<Xxh3>, fn(&Xxh3) -> Vec<u8>),
}

impl Hasher {
    fn new(name: &str) -> Option<Self> {
        let xxh3 = |digest| Self::Xxh3(Box::new(Xxh3::new()), digest);
        Some(match name {
            "md5" => Self::Md5(md5::Md5::new()),
            "sha1" => Self::Sha1(sha1::Sha1::new()),
            "sha224" => Self::Sha224(sha2::Sha224::new()),
            "sha256" => Self::Sha256(sha2::Sha256::new()),
            "sha384" => Self::Sha384(sha2::Sha384::new()),
            "sha512" => Self::Sha512(sha2::Sha512::new()),
            "xxh32" => Self::Xxh32(Xxh32::new(0)),
            "xxh64" => Self::Xxh64(Xxh64::new(0)),
            "xxh3_64" => xxh3(|hash| hash.digest().to_be_bytes().to_vec()),
            "xxh128" | "xxh3_128" => xxh3(|hash| hash.digest128().to_be_bytes().to_vec()),
            _ => return None,
        })
    }

    fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Md5(hasher) => hasher.update(bytes),
            Self::Sha1(hasher) => hasher.update(bytes),
            Self::Sha224(hasher) => hasher.update(bytes),
            Self::Sha256(hasher) => hasher.update(bytes),
            Self::Sha384(hasher) => hasher.update(bytes),
            Self::Sha512(hasher) => hasher.update(bytes),
            Self::Xxh32(hasher) => hasher.update(bytes),
            Self::Xxh64(hasher) => hasher.update(bytes),
            Self::Xxh3(hasher, _) => hasher.update(bytes),
        }
    }

    fn finish(self) -> String {
        match self {
            Self::Md5(hasher) => hex::encode(hasher.finalize()),
            Self::Sha1(hasher) => hex::encode(hasher.finalize()),
            Self::Sha224(hasher) => hex::encode(hasher.finalize()),
            Self::Sha256(hasher) => hex::encode(hasher.finalize()),
            Self::Sha384(hasher) => hex::encode(hasher.finalize()),
            Self::Sha512(hasher) => hex::encode(hasher.finalize()),
            Self::Xxh32(hasher) => hex::encode(hasher.digest().to_be_bytes()),
            Self::Xxh64(hasher) => hex::encode(hasher.digest().to_be_bytes()),
            Self::Xxh3(hasher, digest) => hex::encode(digest(&hasher)),
        }
    }
}

/// Computes the hashes of one file.
pub struct MdsHasher {
    name: String,
    expected_bytes: u64,
    bytes: u64,
    known: Vec<(String, String, Hasher)>,
    unchecked: Vec<String>,
}

impl MdsHasher {
    /// For a file with these hashes.
    #[must_use]
    pub fn new(file: &MdsFile) -> Self {
        let (mut known, mut unchecked) = (Vec::new(), Vec::new());
        for (algorithm, expected) in &file.hashes {
            match Hasher::new(algorithm) {
                Some(hasher) => known.push((algorithm.clone(), expected.clone(), hasher)),
                None => unchecked.push(algorithm.clone()),
            }
        }
        Self {
            name: file.name.clone(),
            expected_bytes: file.bytes,
            bytes: 0,
            known,
            unchecked,
        }
    }

    /// Takes the next bytes of the file.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        for (_, _, hasher) in &mut self.known {
            hasher.update(bytes);
        }
    }

    /// Compares. Errors: `Checksum` if size or a hash is wrong.
    pub fn finish(self) -> Result<Checked> {
        let wrong = |what: &str| {
            let message =
                format!("the {what} of the shard is not what index.json says; fetch or write it again");
            Error::new(Kind::Checksum, message).with("shard", &self.name)
        };
        if self.bytes != self.expected_bytes {
            let error = wrong("size").with("bytes", self.bytes);
            return Err(error.with("expected", self.expected_bytes));
        }
        let mut right = Vec::new();
        for (algorithm, expected, hasher) in self.known {
            let found = hasher.finish();
            if !found.eq_ignore_ascii_case(&expected) {
                return Err(wrong(&algorithm).with("found", found).with("expected", expected));
            }
            right.push(algorithm);
        }
        Ok(Checked {
            right,
            unchecked: self.unchecked,
        })
    }
}
