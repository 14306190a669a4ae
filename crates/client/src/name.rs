//! The name of an object as people write it: `bucket/key`, or `forebay://bucket/key`.

use std::fmt;
use std::str::FromStr;

use forebay_core::{BucketName, Error, Kind, ObjectKey, Result};
use forebay_wire::ObjectName;

const SCHEME: &str = "forebay://";

/// An object: bucket and key, both checked.
///
/// ```
/// use forebay_client::Name;
///
/// let name = Name::parse("forebay://models/llama/weights.safetensors").unwrap();
/// assert_eq!((name.bucket(), name.key()), ("models", "llama/weights.safetensors"));
/// assert_eq!(name.to_string(), "models/llama/weights.safetensors");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name {
    bucket: BucketName,
    key: ObjectKey,
}

impl Name {
    /// Reads `bucket/key` or `forebay://bucket/key`.
    pub fn parse(text: &str) -> Result<Self> {
        let plain = text.strip_prefix(SCHEME).unwrap_or(text);
        // `s3:` is not a bucket: this is a URL of something else.
        let parts = plain.split_once('/').filter(|(bucket, _)| !bucket.ends_with(':'));
        let Some((bucket, key)) = parts else {
            let error = Error::new(
                Kind::InvalidInput,
                "the name of an object is bucket/key or forebay://bucket/key",
            );
            return Err(error.with("name", text));
        };
        Self::new(bucket, key).map_err(|why| why.with("name", text))
    }

    /// From its two parts.
    pub fn new(bucket: &str, key: &str) -> Result<Self> {
        Ok(Self {
            bucket: BucketName::new(bucket)?,
            key: ObjectKey::new(key)?,
        })
    }

    /// The bucket.
    #[must_use]
    pub fn bucket(&self) -> &str {
        self.bucket.as_str()
    }

    /// The key.
    #[must_use]
    pub fn key(&self) -> &str {
        self.key.as_str()
    }

    /// As it goes over the wire.
    #[must_use]
    pub fn to_wire(&self) -> ObjectName {
        ObjectName {
            bucket: self.bucket().into(),
            key: self.key().into(),
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.bucket(), self.key())
    }
}

impl FromStr for Name {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::parse(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_without_key_or_with_a_bad_bucket_is_refused() {
        for bad in [
            "bucket",
            "bucket/",
            "/key",
            "Bucket/key",
            "s3://bucket/key",
            "forebay://bucket",
            "",
        ] {
            assert_eq!(Name::parse(bad).unwrap_err().kind(), Kind::InvalidInput, "{bad}");
        }
    }

    #[test]
    fn a_key_may_hold_anything_but_the_first_slash() {
        let name = Name::parse("bucket//a/../b//").unwrap();
        assert_eq!(name.key(), "/a/../b//");
    }
}
