//! Multipart uploads: documents under `.forebay/uploads/` in the bucket, bytes in the lake's own parts.

use std::time::SystemTime;

use bytes::Bytes;
use forebay_core::{BucketName, ByteRange, ObjectKey, Result};
use forebay_lake::{Attributes, ByteStream};

use crate::{ChecksumKind, Conditions, Engine, ObjectChecksum, Tag, WriteCondition, WriteReceipt};

/// How to open an upload.
#[derive(Debug, Clone, Default)]
pub struct CreateUpload {
    /// Content type, user metadata …
    pub attributes: Attributes,
    /// Tags.
    pub tags: Vec<Tag>,
    /// The checksum algorithm that the parts will carry, and what the object's checksum covers.
    pub checksum: Option<(String, ChecksumKind)>,
}

/// An open upload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UploadInfo {
    /// Its id.
    pub id: String,
    /// The key it will become.
    pub key: ObjectKey,
    /// When it was opened.
    pub initiated: SystemTime,
    /// See [`CreateUpload`].
    pub checksum: Option<(String, ChecksumKind)>,
}

/// An upload in a listing.
pub type ListedUpload = UploadInfo;

/// One part to store.
pub struct PartRequest {
    /// The upload's key.
    pub key: ObjectKey,
    /// The upload's id.
    pub upload: String,
    /// 1 to 10,000.
    pub number: u16,
    /// Exact size.
    pub bytes: u64,
    /// The body.
    pub body: ByteStream,
    /// `Content-MD5`.
    pub md5: Option<[u8; 16]>,
}

/// A stored part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartInfo {
    /// Its number.
    pub number: u16,
    /// Its ETag without quotes.
    pub etag: String,
    /// Its size.
    pub bytes: u64,
    /// When it was stored.
    pub modified: SystemTime,
    /// Its checksums.
    pub checksums: Vec<ObjectChecksum>,
}

/// A part as the client names it when it completes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompletedPart {
    /// Its number.
    pub number: u16,
    /// The ETag the client got for it, without quotes.
    pub etag: String,
    /// Checksums the client got for it.
    pub checksums: Vec<ObjectChecksum>,
}

/// How to complete.
#[derive(Debug, Clone, Default)]
pub struct CompleteRequest {
    /// The parts, in ascending order.
    pub parts: Vec<CompletedPart>,
    /// The condition on the object that is there now.
    pub condition: WriteCondition,
    /// The checksum that the client says the whole has.
    pub checksum: Option<ObjectChecksum>,
    /// The size that the client says the whole has.
    pub bytes: Option<u64>,
}

#[allow(unused_variables, missing_docs, reason = "draft")]
impl Engine {
    pub async fn create_upload(&self, bucket: &BucketName, key: &ObjectKey, request: CreateUpload) -> Result<UploadInfo> {
        todo!()
    }

    /// Stores a part. `trailing` is asked for the part's verified checksums after the body has ended.
    pub async fn upload_part(
        &self,
        bucket: &BucketName,
        part: PartRequest,
        trailing: impl FnOnce() -> Result<Vec<ObjectChecksum>> + Send,
    ) -> Result<PartInfo> {
        todo!()
    }

    pub async fn copy_part(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
        upload: &str,
        number: u16,
        source: (BucketName, ObjectKey),
        range: Option<ByteRange>,
        conditions: &Conditions,
    ) -> Result<PartInfo> {
        todo!()
    }

    /// Returns the receipt and the object's checksum, if the upload carries one.
    pub async fn complete_upload(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
        upload: &str,
        request: CompleteRequest,
    ) -> Result<(WriteReceipt, Option<ObjectChecksum>)> {
        todo!()
    }

    pub async fn abort_upload(&self, bucket: &BucketName, key: &ObjectKey, upload: &str) -> Result<()> {
        todo!()
    }

    /// Parts with a number above `after`, at most `limit`, and whether there are more.
    pub async fn list_parts(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
        upload: &str,
        after: u16,
        limit: usize,
    ) -> Result<(UploadInfo, Vec<PartInfo>, bool)> {
        todo!()
    }

    /// All open uploads whose key starts with `prefix`, by key, then by time.
    pub async fn list_uploads(&self, bucket: &BucketName, prefix: &str) -> Result<Vec<ListedUpload>> {
        todo!()
    }
}

#[allow(dead_code)]
fn _uses(_: Bytes) {}
