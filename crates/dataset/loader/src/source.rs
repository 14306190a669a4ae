//! Contents of a dataset: shards with size and version, or the objects of raw folders.
//!
//! Made once when a dataset is opened (`source/find.rs` asks the node), read by the indexing, then dropped.
//! The names of shards that an index keeps are relative to [`Base`], the folder that all of them have in
//! common; so a folder that is copied elsewhere with its index keeps it.

mod find;

use forebay_client::{ListedObject, Name, ObjectName};
use forebay_core::Result;
use forebay_dataset::manifest::Digest;
use forebay_dataset::mds::MdsFile;
use forebay_dataset::shard::{Codec, Format};

use crate::DatasetOptions;
pub(crate) use find::find;

/// Options of the search for shards.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SearchOptions {
    /// Overrules what endings suggest.
    pub(crate) format: Option<Format>,
    /// Takes a folder whose pack is not finished.
    pub(crate) unfinished: bool,
    /// Takes shards that an index names outside of its folder.
    pub(crate) shards_outside: bool,
}

impl SearchOptions {
    pub(crate) fn of(options: &DatasetOptions) -> Self {
        Self {
            format: options.format,
            unfinished: options.unfinished,
            shards_outside: options.shards_outside,
        }
    }
}

/// A shard that is one object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ShardObject {
    pub(crate) name: Name,
    pub(crate) bytes: u64,
    pub(crate) version: String,
    pub(crate) format: Format,
    /// Codec by a document beside it; `None`: look at its first bytes.
    pub(crate) codec: Option<Codec>,
    /// Bytes that it unpacks to, as a document beside it says.
    pub(crate) stream_bytes: Option<u64>,
    /// Hashes by a document beside it.
    pub(crate) hashes: Option<MdsFile>,
}

/// A folder in which every object is a sample.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RawFolder {
    pub(crate) bucket: String,
    /// With its slash; empty for a whole bucket.
    pub(crate) prefix: String,
    /// Keys are whole.
    pub(crate) objects: Vec<ListedObject>,
    /// CRC32C of each object, if they were read; else empty.
    pub(crate) crcs: Vec<u32>,
}

/// Folders and documents that were named: a manifest has to vouch for them if the data is verified.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Origins {
    /// Whole folders: bucket, and prefix with its slash.
    pub(crate) folders: Vec<(String, String)>,
    /// Documents that say which shards there are, as they were read.
    pub(crate) documents: Vec<(Name, Digest)>,
}

/// All of a dataset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Source {
    Shards {
        base: Base,
        shards: Vec<ShardObject>,
        /// Encodings of fields, where a document says so.
        encodings: Vec<(String, String)>,
    },
    Raw(Vec<RawFolder>),
}

/// The bucket and folder that all shards have in common.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Base {
    /// `None`: they lie in several buckets.
    bucket: Option<String>,
    /// With its slash, or empty.
    folder: String,
    /// Bucket and folder of the first shard.
    first: (String, String),
}

impl Base {
    /// Of these names, which are not none.
    pub(crate) fn of(names: &[Name]) -> Self {
        let Some(first) = names.first() else {
            return Self {
                bucket: None,
                folder: String::new(),
                first: Default::default(),
            };
        };
        let mut folder = folder_of(first.key());
        for name in names {
            while !name.key().starts_with(folder) {
                folder = folder_of(folder.trim_end_matches('/'));
            }
        }
        let one_bucket = names.iter().all(|name| name.bucket() == first.bucket());
        Self {
            bucket: one_bucket.then(|| first.bucket().to_owned()),
            folder: if one_bucket {
                folder.to_owned()
            } else {
                String::new()
            },
            first: (first.bucket().to_owned(), folder_of(first.key()).to_owned()),
        }
    }

    /// The name of a shard as an index keeps it.
    pub(crate) fn relative(&self, name: &Name) -> String {
        match &self.bucket {
            Some(_) => name.key()[self.folder.len().min(name.key().len())..].to_owned(),
            None => name.to_string(),
        }
    }

    /// The object behind such a name.
    pub(crate) fn absolute(&self, relative: &str) -> Result<ObjectName> {
        let name = match &self.bucket {
            Some(bucket) => Name::new(bucket, &format!("{}{relative}", self.folder)),
            None => Name::parse(relative),
        };
        Ok(name?.to_wire())
    }

    /// Bucket and folder in which things about the dataset are kept.
    pub(crate) fn home(&self) -> (&str, &str) {
        match &self.bucket {
            Some(bucket) => (bucket, &self.folder),
            None => (&self.first.0, &self.first.1),
        }
    }
}

/// Everything up to the last slash.
pub(crate) fn folder_of(key: &str) -> &str {
    &key[..key.rfind('/').map_or(0, |slash| slash + 1)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn base(names: &[&str]) -> Base {
        Base::of(
            &names
                .iter()
                .map(|name| Name::parse(name).unwrap())
                .collect::<Vec<_>>(),
        )
    }

    #[test]
    fn names_are_relative_to_the_common_folder() {
        for (names, home, relative) in [
            (&["bkt/a/x/1.tar", "bkt/a/x/2.tar"][..], ("bkt", "a/x/"), "1.tar"),
            (&["bkt/a/x/1.tar", "bkt/a/y/2.tar"], ("bkt", "a/"), "x/1.tar"),
            (&["bkt/1.tar", "bkt/a/2.tar"], ("bkt", ""), "1.tar"),
            (&["bkt/ab/1.tar", "bkt/a/2.tar"], ("bkt", ""), "ab/1.tar"),
            (&["bkt/a/1.tar", "ckt/a/1.tar"], ("bkt", "a/"), "bkt/a/1.tar"),
        ] {
            let base = base(names);
            let first = Name::parse(names[0]).unwrap();
            assert_eq!(base.home(), home, "{names:?}");
            assert_eq!(base.relative(&first), relative, "{names:?}");
            assert_eq!(base.absolute(relative).unwrap(), first.to_wire());
        }
    }
}
