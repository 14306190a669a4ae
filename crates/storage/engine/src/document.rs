//! Our own documents in a bucket, under `.forebay/`: small JSON objects that any node can read.
//!
//! The documents hold what S3 clients can see of an object but a lake cannot keep with it: checksums that
//! came too late to be metadata, part sizes, tags. Each document names the object and its version and is
//! ignored when they do not fit, so a document that outlives its object does no harm. Format:
//! docs/formats/bucket-documents.md.

use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, SystemTime};

use bytes::{Bytes, BytesMut};
use forebay_core::{Error, Kind, ObjectKey, Result, Version};
use forebay_lake::{Attributes, GetOptions, Lake, ListOptions, ObjectMeta, PutOptions};
use futures::StreamExt;
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::bucket::Bucket;
use crate::{ChecksumKind, ObjectChecksum, ObjectInfo, Tag};

/// User metadata that holds the checksums; never shown to clients.
const CHECKSUMS_ENTRY: &str = "forebay-checksums";

/// User metadata that says that an extras document may exist; never shown to clients.
const EXTRAS_ENTRY: &str = "forebay-extras";

/// The largest document we read; 10,000 parts need about 200 KB.
const DOCUMENT_BYTES_MAX: u64 = 4 << 20;

const EXTRAS_FOLDER: &str = ".forebay/extras/";
const TAGS_FOLDER: &str = ".forebay/tags/";

/// The extras of an object besides its metadata.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Extras {
    pub(crate) key: ObjectKey,
    pub(crate) object_version: Version,
    #[serde(default)]
    pub(crate) checksums: Vec<ObjectChecksum>,
    #[serde(default)]
    pub(crate) part_bytes: Vec<u64>,
}

/// The tags of an object. Bound to the time of writing too, because equal bytes have equal versions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Tags {
    pub(crate) key: ObjectKey,
    pub(crate) object_version: Version,
    pub(crate) modified_s: u64,
    pub(crate) tags: Vec<Tag>,
}

/// The time for which a bucket without tags is believed to have none; another node may add the first one.
const NO_TAGS_FOR: Duration = Duration::from_secs(60);

/// Knows if a bucket has documents beside objects, so that reads and deletes need not look for them in vain.
#[derive(Debug, Default)]
pub(crate) struct DocumentsSeen {
    any: AtomicU8,
    tags: AtomicU8,
    /// The time when it was last seen to have no tags.
    no_tags_at: Mutex<Duration>,
}

impl DocumentsSeen {
    const NONE: u8 = 1;
    const SOME: u8 = 2;

    async fn has_tags(&self, bucket: &Bucket, now: Duration) -> Result<bool> {
        match self.tags.load(Ordering::Relaxed) {
            Self::SOME => return Ok(true),
            Self::NONE if now.saturating_sub(*self.no_tags_at.lock()) < NO_TAGS_FOR => return Ok(false),
            _ => {}
        }
        let options = ListOptions {
            prefix: TAGS_FOLDER.into(),
            limit: 1,
            ..ListOptions::default()
        };
        let has_tags = !bucket.lake.list(options).await?.objects.is_empty();
        *self.no_tags_at.lock() = now;
        // A tag that was set meanwhile is not forgotten.
        let seen = if has_tags { Self::SOME } else { Self::NONE };
        self.tags.fetch_max(seen, Ordering::Relaxed);
        Ok(has_tags || self.tags.load(Ordering::Relaxed) == Self::SOME)
    }
}

/// The document that holds an empty bucket.
pub(crate) fn bucket_key() -> ObjectKey {
    ObjectKey::new(".forebay/bucket.json").expect("a short constant is a valid key")
}

/// Reads a document; `None` if there is none.
pub(crate) async fn read<T: DeserializeOwned>(lake: &dyn Lake, key: &ObjectKey) -> Result<Option<T>> {
    let mut answer = match lake.get(key, GetOptions::default()).await {
        Ok(answer) => answer,
        Err(error) if error.kind() == Kind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    if answer.bytes > DOCUMENT_BYTES_MAX {
        return Err(damaged(key).with("bytes", answer.bytes));
    }
    let mut text = BytesMut::new();
    while let Some(chunk) = answer.body.next().await {
        text.extend_from_slice(&chunk?);
    }
    serde_json::from_slice(&text)
        .map(Some)
        .map_err(|why| damaged(key).caused_by(why))
}

/// Writes a document.
pub(crate) async fn write<T: Serialize>(lake: &dyn Lake, key: &ObjectKey, document: &T) -> Result<()> {
    let mut text = serde_json::to_vec(document).map_err(|why| {
        Error::new(Kind::Internal, "cannot write a document as JSON")
            .with("key", key)
            .caused_by(why)
    })?;
    text.push(b'\n');
    let attributes = Attributes {
        content_type: Some("application/json".into()),
        ..Attributes::default()
    };
    lake.put(
        key,
        Bytes::from(text),
        PutOptions {
            attributes,
            ..PutOptions::default()
        },
    )
    .await?;
    Ok(())
}

fn damaged(key: &ObjectKey) -> Error {
    Error::new(
        Kind::Corrupt,
        "a forebay document in the lake is damaged; remove it to go on without it",
    )
    .with("key", key)
}

fn key_beside(folder: &str, key: &ObjectKey) -> ObjectKey {
    // Hashed, because a key may be as long as a key can be and need not be a legal path.
    let name = hex::encode(&blake3::hash(key.as_str().as_bytes()).as_bytes()[..16]);
    ObjectKey::new(&format!("{folder}{name}.json")).expect("a short name is a valid key")
}

/// Metadata as the lake has it, turned into what clients see.
/// `now` is monotonic time.
pub(crate) async fn info_from_meta(bucket: &Bucket, meta: ObjectMeta, now: Duration) -> Result<ObjectInfo> {
    let mut attributes = meta.attributes;
    let mut checksums = attributes
        .user
        .remove(CHECKSUMS_ENTRY)
        .map(|text| parse_checksums(&text))
        .unwrap_or_default();
    let mut part_bytes = Vec::new();
    if attributes.user.remove(EXTRAS_ENTRY).is_some() {
        let extras: Option<Extras> = match read(&*bucket.lake, &key_beside(EXTRAS_FOLDER, &meta.key)).await {
            // Bytes must not become unreadable because a note beside them is.
            Err(error) if error.kind() == Kind::Corrupt => {
                tracing::warn!(bucket = %bucket.name, key = %meta.key, %error, "going on without checksums and part sizes");
                None
            }
            extras => extras?,
        };
        if let Some(extras) =
            extras.filter(|extras| extras.key == meta.key && extras.object_version == meta.version)
        {
            checksums = extras.checksums;
            part_bytes = extras.part_bytes;
        }
    }
    let mut info = ObjectInfo {
        bucket: bucket.name.clone(),
        key: meta.key,
        domain: bucket.domain,
        bytes: meta.bytes,
        version: meta.version,
        modified: meta.modified,
        attributes,
        token: meta.token,
        checksums,
        part_bytes,
        tag_count: 0,
        id: std::sync::OnceLock::new(),
        source: crate::object::SourceCell::default(),
    };
    // Only a bucket that has tagged objects pays for the question.
    if bucket.documents.has_tags(bucket, now).await? {
        info.tag_count = read_tags(bucket, &info).await?.len();
    }
    Ok(info)
}

/// Attributes as the lake gets them when the checksums are known in time.
pub(crate) fn with_checksums(mut attributes: Attributes, checksums: &[ObjectChecksum]) -> Attributes {
    if !checksums.is_empty() {
        attributes
            .user
            .insert(CHECKSUMS_ENTRY.into(), format_checksums(checksums));
    }
    attributes
}

/// Attributes as the lake gets them when an extras document will follow.
pub(crate) fn with_extras(mut attributes: Attributes) -> Attributes {
    attributes.user.insert(EXTRAS_ENTRY.into(), "1".into());
    attributes
}

fn format_checksums(checksums: &[ObjectChecksum]) -> String {
    let one = |checksum: &ObjectChecksum| {
        let kind = match checksum.kind {
            ChecksumKind::FullObject => "full",
            ChecksumKind::Composite => "composite",
        };
        format!("{}:{}:{kind}", checksum.algorithm, checksum.value)
    };
    checksums.iter().map(one).collect::<Vec<_>>().join(",")
}

/// Reads what `format_checksums` wrote; entries of another form are left out, for anyone may edit metadata in
/// a lake.
fn parse_checksums(text: &str) -> Vec<ObjectChecksum> {
    let one = |entry: &str| {
        let mut fields = entry.split(':');
        let (algorithm, value, kind) = (fields.next()?, fields.next()?, fields.next()?);
        let kind = match kind {
            "full" => ChecksumKind::FullObject,
            "composite" => ChecksumKind::Composite,
            _ => return None,
        };
        Some(ObjectChecksum {
            algorithm: algorithm.into(),
            value: value.into(),
            kind,
        })
    };
    text.split(',').filter_map(one).collect()
}

/// Keeps extras of an object that has just been written.
pub(crate) async fn write_extras(bucket: &Bucket, extras: &Extras) -> Result<()> {
    bucket.documents.any.store(DocumentsSeen::SOME, Ordering::Relaxed);
    write(&*bucket.lake, &key_beside(EXTRAS_FOLDER, &extras.key), extras).await
}

/// Keeps, replaces or (if there are none) removes the tags of an object.
pub(crate) async fn write_tags(bucket: &Bucket, info: &ObjectInfo, tags: Vec<Tag>) -> Result<()> {
    let key = key_beside(TAGS_FOLDER, &info.key);
    if tags.is_empty() {
        return bucket.lake.delete(&key).await;
    }
    bucket.documents.any.store(DocumentsSeen::SOME, Ordering::Relaxed);
    bucket
        .documents
        .tags
        .store(DocumentsSeen::SOME, Ordering::Relaxed);
    let document = Tags {
        key: info.key.clone(),
        object_version: info.version.clone(),
        modified_s: unix_seconds(info.modified),
        tags,
    };
    write(&*bucket.lake, &key, &document).await
}

/// The tags of an object.
pub(crate) async fn read_tags(bucket: &Bucket, info: &ObjectInfo) -> Result<Vec<Tag>> {
    let document: Option<Tags> = read(&*bucket.lake, &key_beside(TAGS_FOLDER, &info.key)).await?;
    let fits = |tags: &Tags| {
        tags.key == info.key
            && tags.object_version == info.version
            && tags.modified_s == unix_seconds(info.modified)
    };
    Ok(document
        .filter(fits)
        .map(|document| document.tags)
        .unwrap_or_default())
}

/// Removes the documents of a deleted object. They would be ignored anyway, so a failure is only logged.
pub(crate) async fn forget_beside(bucket: &Bucket, key: &ObjectKey) {
    if bucket.documents.any.load(Ordering::Relaxed) == 0 {
        let seen = if has_documents(bucket).await {
            DocumentsSeen::SOME
        } else {
            DocumentsSeen::NONE
        };
        let _ = bucket
            .documents
            .any
            .compare_exchange(0, seen, Ordering::Relaxed, Ordering::Relaxed);
    }
    if bucket.documents.any.load(Ordering::Relaxed) != DocumentsSeen::SOME {
        return;
    }
    for folder in [EXTRAS_FOLDER, TAGS_FOLDER] {
        if let Err(error) = bucket.lake.delete(&key_beside(folder, key)).await {
            tracing::debug!(bucket = %bucket.name, %key, %error, "a document of a deleted object stays");
        }
    }
}

async fn has_documents(bucket: &Bucket) -> bool {
    for folder in [EXTRAS_FOLDER, TAGS_FOLDER] {
        let options = ListOptions {
            prefix: folder.into(),
            limit: 1,
            ..ListOptions::default()
        };
        match bucket.lake.list(options).await {
            Ok(page) if page.objects.is_empty() => {}
            _ => return true,
        }
    }
    false
}

/// Whole seconds since 1970, the finest time that all lakes keep.
pub(crate) fn unix_seconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or(Duration::ZERO)
        .as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_survive_as_metadata() {
        let checksums = vec![
            ObjectChecksum {
                algorithm: "CRC32".into(),
                value: "AAAAAA==".into(),
                kind: ChecksumKind::FullObject,
            },
            ObjectChecksum {
                algorithm: "SHA256".into(),
                value: "abc=-3".into(),
                kind: ChecksumKind::Composite,
            },
        ];
        assert_eq!(parse_checksums(&format_checksums(&checksums)), checksums);
    }

    #[test]
    fn foreign_checksum_text_is_left_out() {
        assert_eq!(parse_checksums("nonsense,CRC32:x,CRC32:x:odd,:::,"), vec![]);
    }

    #[test]
    fn documents_of_long_keys_have_short_names() {
        let key = ObjectKey::new(&"x/".repeat(512)).unwrap();
        assert!(key_beside(TAGS_FOLDER, &key).as_str().len() < 64);
    }
}
