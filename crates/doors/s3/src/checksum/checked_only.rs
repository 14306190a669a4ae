//! Checksums that are compared with the body and not kept: MD5, SHA512 and the xxHashes.
//!
//! S3 took them up later than `s3s` knows; so they are read from the headers and trailers here, and answers
//! do not have them. The xxHashes are written most significant byte first.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use s3s::crypto::{Checksum as _, Md5};
use sha2::{Digest as _, Sha512};
use xxhash_rust::xxh3::Xxh3;
use xxhash_rust::xxh64::Xxh64;

/// An algorithm of a checksum that is compared and not kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CheckedOnly {
    Md5,
    Sha512,
    XxHash64,
    XxHash3,
    XxHash128,
}

impl CheckedOnly {
    pub(crate) const ALL: [Self; 5] = [
        Self::Md5,
        Self::Sha512,
        Self::XxHash64,
        Self::XxHash3,
        Self::XxHash128,
    ];

    /// S3's name.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Md5 => "MD5",
            Self::Sha512 => "SHA512",
            Self::XxHash64 => "XXHASH64",
            Self::XxHash3 => "XXHASH3",
            Self::XxHash128 => "XXHASH128",
        }
    }

    pub(crate) const fn header(self) -> &'static str {
        match self {
            Self::Md5 => "x-amz-checksum-md5",
            Self::Sha512 => "x-amz-checksum-sha512",
            Self::XxHash64 => "x-amz-checksum-xxhash64",
            Self::XxHash3 => "x-amz-checksum-xxhash3",
            Self::XxHash128 => "x-amz-checksum-xxhash128",
        }
    }

    /// The algorithm of this header or trailer.
    pub(crate) fn of_header(name: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|one| one.header().eq_ignore_ascii_case(name))
    }

    pub(crate) const fn digest_bytes(self) -> usize {
        match self {
            Self::XxHash64 | Self::XxHash3 => 8,
            Self::Md5 | Self::XxHash128 => 16,
            Self::Sha512 => 64,
        }
    }

    pub(super) fn hasher(self) -> Hasher {
        match self {
            Self::Md5 => Hasher::Md5(Md5::new()),
            Self::Sha512 => Hasher::Sha512(Sha512::new()),
            Self::XxHash64 => Hasher::XxHash64(Xxh64::new(0)),
            Self::XxHash3 => Hasher::XxHash3(Box::default()),
            Self::XxHash128 => Hasher::XxHash128(Box::default()),
        }
    }

    /// The checksum of these bytes.
    pub(crate) fn value_of(self, bytes: &[u8]) -> String {
        let mut hasher = self.hasher();
        hasher.update(bytes);
        hasher.finish()
    }
}

/// A computation under way.
pub(super) enum Hasher {
    Md5(Md5),
    Sha512(Sha512),
    XxHash64(Xxh64),
    XxHash3(Box<Xxh3>),
    XxHash128(Box<Xxh3>),
}

impl Hasher {
    pub(super) fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Md5(hasher) => hasher.update(bytes),
            Self::Sha512(hasher) => hasher.update(bytes),
            Self::XxHash64(hasher) => hasher.update(bytes),
            Self::XxHash3(hasher) | Self::XxHash128(hasher) => hasher.update(bytes),
        }
    }

    /// Base64.
    pub(super) fn finish(self) -> String {
        match self {
            Self::Md5(hasher) => BASE64.encode(hasher.finalize()),
            Self::Sha512(hasher) => BASE64.encode(hasher.finalize()),
            Self::XxHash64(hasher) => BASE64.encode(hasher.digest().to_be_bytes()),
            Self::XxHash3(hasher) => BASE64.encode(hasher.digest().to_be_bytes()),
            Self::XxHash128(hasher) => BASE64.encode(hasher.digest128().to_be_bytes()),
        }
    }
}
