//! Access keys: who may come in, what they may do, in which buckets.
//!
//! The table is read at every request and replaced as a whole when the configuration changes, so a request
//! sees either the old keys or the new ones. Secrets never show up in `Debug`. Signatures are compared in
//! constant time by `s3s`; the table itself is only ever asked by key id, which is no secret.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;

use forebay_core::BucketName;
use parking_lot::RwLock;
use s3s::auth::{S3Auth, SecretKey};
use s3s::{S3Result, s3_error};

/// Operations that a key may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Read and list.
    ReadOnly,
    /// Everything.
    ReadWrite,
}

/// Buckets in which a key may do it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Buckets {
    /// In every bucket.
    All,
    /// Only in these.
    Only(BTreeSet<BucketName>),
}

impl Buckets {
    /// Returns whether the bucket is among them.
    #[must_use]
    pub fn contains(&self, bucket: &str) -> bool {
        match self {
            Self::All => true,
            Self::Only(names) => names.iter().any(|name| name.as_str() == bucket),
        }
    }
}

/// One access key.
#[derive(Clone)]
pub struct AccessKey {
    /// The public part.
    pub id: String,
    /// The secret part.
    pub secret: String,
    /// Operations that it may do.
    pub access: Access,
    /// Buckets in which it may.
    pub buckets: Buckets,
}

impl AccessKey {
    /// A key that may do everything everywhere.
    #[must_use]
    pub fn full(id: &str, secret: &str) -> Self {
        Self {
            id: id.to_owned(),
            secret: secret.to_owned(),
            access: Access::ReadWrite,
            buckets: Buckets::All,
        }
    }
}

impl fmt::Debug for AccessKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AccessKey")
            .field("id", &self.id)
            .field("secret", &"(hidden)")
            .field("access", &self.access)
            .field("buckets", &self.buckets)
            .finish()
    }
}

/// The table of keys. Cheap to ask, replaced as a whole.
#[derive(Debug)]
pub struct AccessKeys {
    table: RwLock<Arc<HashMap<String, AccessKey>>>,
}

impl AccessKeys {
    /// A table of these keys; of two with the same id the later one counts.
    #[must_use]
    pub fn new(keys: impl IntoIterator<Item = AccessKey>) -> Self {
        Self {
            table: RwLock::new(Arc::new(by_id(keys))),
        }
    }

    /// Puts other keys in place of all present ones; requests that have begun go on.
    pub fn replace(&self, keys: impl IntoIterator<Item = AccessKey>) {
        let table = Arc::new(by_id(keys));
        *self.table.write() = table;
    }

    /// The table as it is now.
    pub(crate) fn snapshot(&self) -> Arc<HashMap<String, AccessKey>> {
        Arc::clone(&self.table.read())
    }
}

fn by_id(keys: impl IntoIterator<Item = AccessKey>) -> HashMap<String, AccessKey> {
    keys.into_iter().map(|key| (key.id.clone(), key)).collect()
}

/// Lends the secrets to `s3s`.
pub(crate) struct KeyAuth(pub(crate) Arc<AccessKeys>);

#[async_trait::async_trait]
impl S3Auth for KeyAuth {
    async fn get_secret_key(&self, access_key: &str) -> S3Result<SecretKey> {
        match self.0.snapshot().get(access_key) {
            Some(key) => Ok(SecretKey::from(key.secret.as_str())),
            None => Err(s3_error!(
                InvalidAccessKeyId,
                "the access key id is not known here"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_do_not_show_in_debug() {
        let keys = AccessKeys::new([AccessKey::full("who", "hush-hush")]);
        let text = format!("{keys:?}");
        assert!(text.contains("who") && !text.contains("hush-hush"), "{text}");
    }

    #[test]
    fn replaced_keys_are_gone_at_once() {
        let keys = AccessKeys::new([AccessKey::full("old", "s")]);
        keys.replace([AccessKey::full("new", "s")]);
        assert!(keys.snapshot().get("old").is_none());
        assert!(keys.snapshot().get("new").is_some());
    }

    #[test]
    fn listed_buckets_are_the_only_ones() {
        let only = Buckets::Only([BucketName::new("abc").unwrap()].into());
        assert!(only.contains("abc") && !only.contains("abcd"));
        assert!(Buckets::All.contains("anything"));
    }
}
