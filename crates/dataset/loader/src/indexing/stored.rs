//! The index in the lake: its location, reading and writing it.
//!
//! `<folder>/.forebay/index-<16 hex>.fbi`, see docs/flows/dataset-read.md. The digits come from the names of
//! the shards and how they are cut, so two views of one folder have an index each. It is read as a view: all
//! processes of a host look at one copy. It is written under the condition that nobody wrote meanwhile; where
//! a lake cannot decide that, without one: an index is checked before it is believed, and is written whole or
//! not at all.

use forebay_client::{Client, ItemRange, Name, PutOptions, PutSource, WriteCondition};
use forebay_core::{Error, Kind, Result, Version, crc32c};
use forebay_dataset::index::Index;
use forebay_dataset::order::Fingerprint;
use forebay_dataset::tokens::TokenWindows;

use crate::DatasetOptions;
use crate::source::{Base, ShardObject};

/// Hex digits of a fingerprint that are part of the name.
const DIGITS: usize = 16;

/// The place of the index of one dataset.
pub(super) struct IndexLocation(Name);

/// The object that was found there.
pub(super) struct StoredIndex {
    /// `None`: there is none that can be read.
    pub(super) index: Option<Index>,
    /// The version of the object, whatever is in it; `None`: there is no object.
    pub(super) version: Option<String>,
}

/// Outcome of a write.
pub(super) enum Written {
    Done,
    /// Somebody else wrote at the same time.
    Overtaken,
    /// The lake does not want it.
    Refused(Error),
}

/// Returns how tokens are cut, in a word.
pub(super) fn token_text(tokens: &TokenWindows) -> String {
    let kind = tokens.token.map_or("own", |token| token.as_str());
    format!("{}/{}/{kind}", tokens.length, tokens.stride)
}

impl IndexLocation {
    /// Of these shards.
    pub(super) fn of(base: &Base, shards: &[ShardObject], options: &DatasetOptions) -> Result<Self> {
        let tokens = options.tokens.as_ref().map(token_text).unwrap_or_default();
        let names: Vec<String> = shards.iter().map(|shard| base.relative(&shard.name)).collect();
        let parts = names.iter().zip(shards);
        let fingerprint = Fingerprint::of(parts.map(|(name, shard)| {
            let cut = if tokens.is_empty() {
                shard.format.as_str()
            } else {
                &tokens
            };
            (name.as_str(), cut, 0)
        }));
        let digits = fingerprint.to_string();
        let (bucket, folder) = base.home();
        // At the root of a bucket `.forebay/` belongs to the node.
        let own = if folder.is_empty() {
            ".forebay-dataset"
        } else {
            ".forebay"
        };
        let key = format!(
            "{folder}{own}/index-{}.fbi",
            digits.get(..DIGITS).unwrap_or(&digits)
        );
        Name::new(bucket, &key).map(Self)
    }

    pub(super) fn name(&self) -> &Name {
        &self.0
    }

    /// The version of what is there.
    pub(super) fn version(&self, client: &Client) -> Result<Option<String>> {
        match client.stat(&self.0) {
            Ok(stat) => Ok(Some(stat.version)),
            Err(error) if error.kind() == Kind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The index that is there. One that cannot be read counts as none; it will be replaced.
    pub(super) fn load(&self, client: &Client) -> Result<StoredIndex> {
        let view = match client.get(&self.0, ItemRange::Whole, None) {
            Ok(view) => view,
            Err(error) if error.kind() == Kind::NotFound => {
                return Ok(StoredIndex {
                    index: None,
                    version: None,
                });
            }
            Err(error) => return Err(error),
        };
        let version = Some(view.version().to_owned());
        let index = match Index::from_bytes(view) {
            Ok(index) => Some(index),
            Err(error) => {
                tracing::warn!(index = %self.0, %error, "cannot read the stored dataset index");
                None
            }
        };
        Ok(StoredIndex { index, version })
    }

    /// Writes an index over the version that was there before.
    pub(super) fn store(&self, client: &Client, bytes: &[u8], before: Option<String>) -> Written {
        let condition = before.map_or(WriteCondition::Absent, |version| {
            WriteCondition::Version(Version::new(&version))
        });
        let put = |condition| {
            let options = PutOptions {
                condition,
                crc32c: Some(crc32c::crc32c(bytes)),
                ..PutOptions::default()
            };
            client.put(&self.0, PutSource::Slice(bytes), options)
        };
        let written = match put(condition) {
            Err(error) if error.kind() == Kind::Unsupported => put(WriteCondition::None),
            other => other,
        };
        match written.map_err(|error| (error.kind(), error)) {
            Ok(_) => Written::Done,
            Err((Kind::PreconditionFailed | Kind::AlreadyExists | Kind::Conflict | Kind::Changed, _)) => {
                Written::Overtaken
            }
            Err((_, error)) => Written::Refused(error),
        }
    }
}
