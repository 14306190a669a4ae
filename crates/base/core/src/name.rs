//! Names that come from outside and are checked once, when they enter.

use std::fmt;
use std::sync::Arc;

use crate::{Error, Kind, Result};

/// Keys of our own documents start with this inside a bucket; clients neither see nor touch them.
pub const RESERVED_PREFIX: &str = ".forebay/";

/// The longest key that S3 allows, in bytes of UTF-8.
pub const KEY_BYTES_MAX: usize = 1024;

/// The name of a bucket: S3's rules, so that it is safe as a folder name and in a host name.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BucketName(Arc<str>);

impl BucketName {
    /// Checks S3's rules: 3–63 of `a-z 0-9 . -`, first and last a letter or digit, no `..`, no IPv4 address.
    pub fn new(name: &str) -> Result<Self> {
        let wrong = |why: &str| {
            Err(Error::new(Kind::InvalidInput, format!("bucket name {why}")).with("bucket", name))
        };
        if !(3..=63).contains(&name.len()) {
            return wrong("must have 3 to 63 characters");
        }
        let is_alphanumeric = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
        if !name.bytes().all(|c| is_alphanumeric(c) || c == b'.' || c == b'-') {
            return wrong("may only have lower-case letters, digits, dots and hyphens");
        }
        let ends_are_alphanumeric = name.bytes().next().is_some_and(is_alphanumeric)
            && name.bytes().next_back().is_some_and(is_alphanumeric);
        if !ends_are_alphanumeric || name.contains("..") {
            return wrong("must start and end with a letter or digit and have no two dots in a row");
        }
        if name.parse::<std::net::Ipv4Addr>().is_ok() {
            return wrong("must not look like an IP address");
        }
        Ok(Self(name.into()))
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The key of an object inside a bucket or lake: 1–1024 bytes of UTF-8 without NUL.
///
/// A key is a name, not a path: `a//b`, `dir/` and `..` are legal keys. A lake that stores keys as paths has
/// to refuse what would escape it.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectKey(Arc<str>);

impl ObjectKey {
    /// Checks the length and that there is no NUL.
    pub fn new(key: &str) -> Result<Self> {
        if key.is_empty() {
            return Err(Error::new(Kind::InvalidInput, "object key must not be empty"));
        }
        if key.len() > KEY_BYTES_MAX {
            let message = format!("object key is longer than {KEY_BYTES_MAX} bytes");
            return Err(Error::new(Kind::InvalidInput, message).with("bytes", key.len()));
        }
        if key.contains('\0') {
            return Err(Error::new(
                Kind::InvalidInput,
                "object key must not contain a NUL character",
            ));
        }
        Ok(Self(key.into()))
    }

    /// The key as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns whether the key belongs to our own documents.
    #[must_use]
    pub fn is_reserved(&self) -> bool {
        self.0.starts_with(RESERVED_PREFIX) || &*self.0 == ".forebay"
    }
}

macro_rules! text_traits {
    ($type:ident) => {
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&*self.0, f)
            }
        }
        impl AsRef<str> for $type {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }
        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                Self::new(&text).map_err(serde::de::Error::custom)
            }
        }
    };
}
text_traits!(BucketName);
text_traits!(ObjectKey);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bucket_names_follow_s3() {
        for good in ["abc", "my-lake.v2", "a1b", &"x".repeat(63)] {
            assert!(BucketName::new(good).is_ok(), "{good}");
        }
        for bad in [
            "ab",
            "Abc",
            "a_b",
            "-abc",
            "abc-",
            "a..b",
            "192.168.0.1",
            "../etc",
            "a/b",
            "",
            &"x".repeat(64),
        ] {
            assert!(BucketName::new(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn keys_are_bounded_and_free_of_nul() {
        assert!(ObjectKey::new("a//b/../c/").is_ok());
        assert!(ObjectKey::new("").is_err());
        assert!(ObjectKey::new("a\0b").is_err());
        assert!(ObjectKey::new(&"x".repeat(KEY_BYTES_MAX)).is_ok());
        assert!(ObjectKey::new(&"x".repeat(KEY_BYTES_MAX + 1)).is_err());
    }

    #[test]
    fn our_own_documents_are_reserved() {
        assert!(ObjectKey::new(".forebay/uploads/x").unwrap().is_reserved());
        assert!(!ObjectKey::new("data/.forebay/x").unwrap().is_reserved());
    }
}
