//! The lake trait and the values that cross it.
//!
//! A lake is an object store: flat keys, whole-object versions (ETags), ranged reads, conditional writes,
//! multipart uploads. Back-ends (`backend/`) and decorators (`layer/`) all implement [`Lake`];
//! `testkit::lake_suite` runs the same behaviour tests on each.

use std::collections::BTreeMap;
use std::fmt;
use std::time::SystemTime;

use async_trait::async_trait;
use bytes::Bytes;
use forebay_core::{ByteRange, Error, Kind, ObjectKey, Result, Version};
use futures::stream::BoxStream;
use serde::{Deserialize, Serialize};

/// A stream of body bytes; an error ends it.
pub type ByteStream = BoxStream<'static, Result<Bytes>>;

/// Headers that HTTP and S3 clients attach to an object.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Attributes {
    /// `Content-Type`.
    pub content_type: Option<String>,
    /// `Content-Encoding`.
    pub content_encoding: Option<String>,
    /// `Content-Language`.
    pub content_language: Option<String>,
    /// `Content-Disposition`.
    pub content_disposition: Option<String>,
    /// `Cache-Control`.
    pub cache_control: Option<String>,
    /// User metadata (`x-amz-meta-*`), names in lower case without the prefix.
    pub user: BTreeMap<String, String>,
}

/// Name of the state that a conditional update replaces; opaque, because stores differ
/// (ETag on S3, generation on GCS).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpdateToken {
    /// The ETag, if the store has one.
    pub etag: Option<String>,
    /// The store's version or generation, if it has one.
    pub version: Option<String>,
}

/// One object as `head` and `get` see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectMeta {
    /// Its key.
    pub key: ObjectKey,
    /// Its size in bytes.
    pub bytes: u64,
    /// Its version.
    pub version: Version,
    /// Time of its last write.
    pub modified: SystemTime,
    /// Content type, user metadata and so on.
    pub attributes: Attributes,
    /// For `PutMode::Update`.
    pub token: UpdateToken,
}

/// One object as a listing sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedObject {
    /// Its key.
    pub key: ObjectKey,
    /// Its size in bytes.
    pub bytes: u64,
    /// Its version, equal to what `head` says.
    pub version: Version,
    /// Time of its last write.
    pub modified: SystemTime,
}

/// Wanted bytes of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GetRange {
    /// These bytes; the end is cut at the object's end, a start at or past it is `OutOfRange`.
    Bounded(ByteRange),
    /// From this offset to the end.
    From(u64),
    /// The last so many bytes.
    Last(u64),
}

/// Options of a read.
#[derive(Debug, Clone, Default)]
pub struct GetOptions {
    /// All bytes if `None`.
    pub range: Option<GetRange>,
    /// Fails with `Changed` if the object has another version now.
    pub if_match: Option<Version>,
}

/// A read that has begun.
pub struct GetResult {
    /// The object as it is now.
    pub meta: ObjectMeta,
    /// Offset of the first byte of `body` in the object.
    pub start: u64,
    /// Number of bytes in `body`; fewer is an `Unavailable` error at its end, never a silent short read.
    pub bytes: u64,
    /// The bytes.
    pub body: ByteStream,
}

impl fmt::Debug for GetResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GetResult")
            .field("meta", &self.meta)
            .field("start", &self.start)
            .field("bytes", &self.bytes)
            .finish()
    }
}

/// Condition of a write.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum PutMode {
    /// Replace whatever is there.
    #[default]
    Overwrite,
    /// Only if nothing is there; else `AlreadyExists`.
    Create,
    /// Only if the object is still the one the token names; else `PreconditionFailed`.
    Update(UpdateToken),
}

/// Options of a write.
#[derive(Debug, Clone, Default)]
pub struct PutOptions {
    /// The condition.
    pub mode: PutMode,
    /// Headers to keep beside the bytes.
    pub attributes: Attributes,
    /// The MD5 that the caller says the bytes have; checked before the object becomes visible, else
    /// `Checksum`.
    pub md5: Option<[u8; 16]>,
    /// The caller's own digest of the bytes, 32 hexadecimal digits: a lake that would hash them for
    /// their ETag takes this instead, with `-1` behind it, so that nobody takes it for an MD5. Known before
    /// the first byte.
    pub content: Option<String>,
}

/// A write that the lake has acknowledged as durable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PutReceipt {
    /// The new version.
    pub version: Version,
    /// For a later `PutMode::Update`.
    pub token: UpdateToken,
    /// Time of the write, if the lake gives it with its answer.
    pub modified: Option<SystemTime>,
}

/// A body being written piece by piece; nothing is visible before [`LakeWriter::finish`].
///
/// Dropping a writer abandons the write; what it left behind is removed at once or by age.
#[async_trait]
pub trait LakeWriter: Send {
    /// Adds bytes; waits while too much is in flight.
    async fn write(&mut self, bytes: Bytes) -> Result<()>;

    /// Returns whether attributes given to `finish` can still take effect. A cloud lake fixes them when it
    /// has to turn the write into a multipart upload, so what is known late must then be kept elsewhere.
    fn takes_attributes_at_finish(&self) -> bool;

    /// Makes the object visible. `options` replaces what was given when the writer was made.
    async fn finish(self: Box<Self>, options: PutOptions) -> Result<PutReceipt>;

    /// Drops what was written so far.
    async fn abort(self: Box<Self>) -> Result<()>;
}

/// The number of an S3 part, 1 to 10,000.
pub type PartNumber = u16;

/// The id of an open multipart upload, as the lake named it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct UploadId(pub String);

/// A part that the lake has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartReceipt {
    /// Its number.
    pub number: PartNumber,
    /// Its ETag, without quotes.
    pub etag: String,
    /// Its size.
    pub bytes: u64,
}

/// Options of a listing: one page of keys in byte order.
#[derive(Debug, Clone, Default)]
pub struct ListOptions {
    /// Only keys that start with this (plain text, not a path).
    pub prefix: String,
    /// Groups keys at the first delimiter after the prefix, as S3 does. Usually `/`.
    pub delimiter: Option<String>,
    /// Only keys (and common prefixes) after this one, in byte order.
    pub start_after: Option<String>,
    /// At most so many objects and common prefixes together; 0 means the lake's own page size.
    pub limit: usize,
}

/// One page of a listing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListPage {
    /// Objects, in byte order of their keys.
    pub objects: Vec<ListedObject>,
    /// Common prefixes, in byte order; each ends with the delimiter.
    pub prefixes: Vec<String>,
    /// Pass this as `start_after` to go on; `None` means that this page is the last.
    pub next: Option<String>,
}

/// An object store.
///
/// All methods may be called from many tasks at once. Cancelling a read is safe; cancelling a write leaves
/// either the old or the new object, never a mix. Errors carry the lake's URL and the key as context.
#[async_trait]
pub trait Lake: Send + Sync + fmt::Debug + 'static {
    /// The lake's URL for messages, without secrets.
    fn url(&self) -> &str;

    /// Metadata of one object.
    async fn head(&self, key: &ObjectKey) -> Result<ObjectMeta>;

    /// Starts reading.
    async fn get(&self, key: &ObjectKey, options: GetOptions) -> Result<GetResult>;

    /// Starts writing an object of unknown size; `options.attributes` are what is known already.
    /// `bytes_hint` is the expected size, if known, and only helps to choose part sizes.
    async fn writer(
        &self,
        key: &ObjectKey,
        options: PutOptions,
        bytes_hint: Option<u64>,
    ) -> Result<Box<dyn LakeWriter>>;

    /// Writes a small object in one call.
    async fn put(&self, key: &ObjectKey, body: Bytes, options: PutOptions) -> Result<PutReceipt> {
        let mut writer = self.writer(key, options.clone(), Some(body.len() as u64)).await?;
        if !body.is_empty() {
            writer.write(body).await?;
        }
        writer.finish(options).await
    }

    /// Removes an object; removing one that is not there is fine.
    async fn delete(&self, key: &ObjectKey) -> Result<()>;

    /// Removes an object only if it is still the one that the token names: else `PreconditionFailed`, or, if
    /// there is none, `NotFound` where the lake tells the two apart. `Unsupported` where the lake cannot
    /// decide that in one step.
    async fn delete_if(&self, key: &ObjectKey, _token: &UpdateToken) -> Result<()> {
        let message = "this lake cannot remove an object under a condition; remove it without one";
        Err(Error::new(Kind::Unsupported, message)
            .with("lake", self.url())
            .with("key", key))
    }

    /// Copies inside the lake. `attributes: None` keeps those of the source. `if_match` pins the source's
    /// version.
    async fn copy(&self, from: &ObjectKey, to: &ObjectKey, options: CopyOptions) -> Result<PutReceipt>;

    /// One page of keys in byte order: complete, or an error.
    async fn list(&self, options: ListOptions) -> Result<ListPage>;

    /// Opens a multipart upload.
    async fn start_upload(&self, key: &ObjectKey, attributes: Attributes) -> Result<UploadId>;

    /// Stores a part; the same number again replaces it. `bytes` is the exact size of `body`.
    async fn upload_part(
        &self,
        key: &ObjectKey,
        upload: &UploadId,
        number: PartNumber,
        bytes: u64,
        body: ByteStream,
    ) -> Result<PartReceipt>;

    /// Joins the named parts, in ascending order of their numbers, into the object.
    async fn complete_upload(
        &self,
        key: &ObjectKey,
        upload: &UploadId,
        parts: &[PartReceipt],
        options: PutOptions,
    ) -> Result<PutReceipt>;

    /// The uploads of this key that are neither completed nor forgotten, newest first. `Unsupported` where
    /// the lake does not tell; then an upload can only be gone on with by who knows its id.
    async fn open_uploads(&self, key: &ObjectKey) -> Result<Vec<UploadId>> {
        Err(does_not_tell(self.url(), key))
    }

    /// The parts that an upload has so far, by number. `Unsupported` as above.
    async fn upload_parts(&self, key: &ObjectKey, upload: &UploadId) -> Result<Vec<PartReceipt>> {
        Err(does_not_tell(self.url(), key).with("upload", &upload.0))
    }

    /// Forgets an upload and its parts; forgetting twice is fine.
    async fn abort_upload(&self, key: &ObjectKey, upload: &UploadId) -> Result<()>;
}

fn does_not_tell(url: &str, key: &ObjectKey) -> Error {
    Error::new(
        Kind::Unsupported,
        "this lake does not tell about unfinished uploads",
    )
    .with("lake", url)
    .with("key", key)
}

/// Options of a copy.
#[derive(Debug, Clone, Default)]
pub struct CopyOptions {
    /// New attributes; `None` keeps the source's.
    pub attributes: Option<Attributes>,
    /// Fails with `Changed` unless the source still has this version.
    pub if_match: Option<Version>,
}
