//! SHA-256 digests, and the hasher that bytes are pushed through.

use std::fmt;
use std::str::FromStr;

use forebay_core::{Error, Kind, Result};
use sha2::{Digest as _, Sha256};

/// A SHA-256 digest.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest(pub [u8; 32]);

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Digest {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut digest = [0; 32];
        hex::decode_to_slice(text, &mut digest)
            .map_err(|_| Error::new(Kind::InvalidInput, "a SHA-256 digest is 64 hexadecimal digits"))?;
        Ok(Self(digest))
    }
}

/// Hashes a file whose bytes come piece by piece.
#[derive(Debug, Clone, Default)]
pub struct Hasher(Sha256);

impl Hasher {
    /// A hasher that has seen nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The digest of all bytes.
    #[must_use]
    pub fn finish(self) -> Digest {
        let digest = self.0.finalize();
        Digest(std::array::from_fn(|index| digest[index]))
    }
}
