//! Multipart uploads: the bytes are parts of the lake, the rest is documents in the bucket
//! (`upload/ledger.rs`).
//!
//! Nothing of an upload lives in a node only: it goes on after a restart and on another node. A part is
//! acknowledged after the lake has both its bytes and its document.

mod ledger;
mod part_body;

use std::sync::Arc;
use std::time::SystemTime;

use forebay_core::{BucketName, ByteRange, Error, Kind, ObjectKey, Result};
use forebay_lake::{Attributes, ByteStream, PartReceipt, PutOptions, PutReceipt};
use futures::StreamExt;
use md5::{Digest, Md5};
use parking_lot::Mutex;

use self::ledger::UploadDocument;
use crate::bucket::Bucket;
use crate::document::{self, Extras};
use crate::write::lost_race;
use crate::{
    ChecksumKind, Conditions, Engine, ObjectChecksum, RangeRequest, ReadAnswer, Tag, WriteCondition,
    WriteReceipt,
};

/// The smallest part but for the last one, as S3 has it.
const PART_BYTES_MIN: u64 = 5 << 20;

/// The highest part number.
const PART_NUMBER_MAX: u16 = 10_000;

/// Options of a new upload.
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
    /// The time when it was opened.
    pub initiated: SystemTime,
    /// See [`CreateUpload`].
    pub checksum: Option<(String, ChecksumKind)>,
}

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

/// A part whose body is a range of another object.
#[derive(Debug, Clone)]
pub struct PartCopy {
    /// The upload's key.
    pub key: ObjectKey,
    /// The upload's id.
    pub upload: String,
    /// 1 to 10,000.
    pub number: u16,
    /// The source of the bytes.
    pub source: (BucketName, ObjectKey),
    /// The range of them; `None` means all.
    pub range: Option<ByteRange>,
    /// Must hold for the source.
    pub conditions: Conditions,
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
    /// The time when it was stored.
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

/// Options of a completion.
#[derive(Debug, Clone, Default)]
pub struct CompleteRequest {
    /// The parts, in ascending order.
    pub parts: Vec<CompletedPart>,
    /// The condition on the object that is there now.
    pub condition: WriteCondition,
    /// The checksum of the whole, computed by the edge from the parts' checksums or given by the client and
    /// compared.
    pub checksum: Option<ObjectChecksum>,
    /// The size that the client says the whole has.
    pub bytes: Option<u64>,
}

impl Engine {
    /// Opens an upload.
    pub async fn create_upload(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
        request: CreateUpload,
    ) -> Result<UploadInfo> {
        let bucket = self.buckets.existing(bucket).await?;
        self.check_writable(&bucket, key).await?;
        let initiated = self.clock.wall();
        let id = ledger::new_id(initiated);
        // Part sizes are known at the end only, so the object will have an extras document.
        let attributes = document::with_extras(request.attributes.clone());
        let upload = UploadDocument {
            key: key.clone(),
            lake_upload: bucket.lake.start_upload(key, attributes).await?,
            initiated_ms: document::unix_seconds(initiated) * 1000,
            attributes: request.attributes,
            tags: request.tags,
            checksum: request.checksum,
        };
        if let Err(error) = ledger::write_upload(&*bucket.lake, &id, &upload).await {
            if let Err(why) = bucket.lake.abort_upload(key, &upload.lake_upload).await {
                tracing::debug!(%key, error = %why, "an upload that nobody knows of stays in the lake");
            }
            return Err(error);
        }
        Ok(upload.info(&id))
    }

    /// Stores a part. `checksums` is asked for the part's verified checksums when the body has ended and the
    /// lake has not yet got all of it; an error of it, or in the body, leaves the part as it was.
    pub async fn upload_part(
        &self,
        bucket: &BucketName,
        part: PartRequest,
        checksums: impl FnOnce() -> Result<Vec<ObjectChecksum>> + Send + 'static,
    ) -> Result<PartInfo> {
        check_part_number(part.number)?;
        let bucket = self.buckets.open(bucket)?;
        let upload = ledger::read_upload(&*bucket.lake, &part.upload, &part.key).await?;
        let body = match part.md5 {
            Some(md5) => part_body::check_md5(part.body, md5),
            None => part.body,
        };
        let (asked, verified) = (Arc::new(Mutex::new(Some(checksums))), Arc::new(Mutex::default()));
        let verify = {
            let verified = Arc::clone(&verified);
            move || {
                let Some(checksums) = asked.lock().take() else {
                    return Ok(());
                };
                *verified.lock() = checksums()?;
                Ok(())
            }
        };
        let body = part_body::then_check(body, verify.clone());
        let receipt = bucket
            .lake
            .upload_part(&part.key, &upload.lake_upload, part.number, part.bytes, body)
            .await
            .map_err(|error| match error.kind() {
                Kind::NotFound => ledger::no_such_upload(&part.upload).caused_by(error),
                _ => error,
            })?;
        // A lake need not look for the end of an empty body.
        verify()?;
        let checksums = std::mem::take(&mut *verified.lock());
        let info = PartInfo {
            number: part.number,
            etag: receipt.etag,
            bytes: receipt.bytes,
            modified: self.clock.wall(),
            checksums,
        };
        ledger::write_part(&*bucket.lake, &part.upload, &info).await?;
        Ok(info)
    }

    /// Stores a range of another object as a part.
    pub async fn copy_part(&self, bucket: &BucketName, part: PartCopy) -> Result<PartInfo> {
        let range = match part.range {
            Some(range) => RangeRequest::Bounded {
                first: range.start(),
                last: range.end() - 1,
            },
            None => RangeRequest::Whole,
        };
        let answer = self
            .read(&part.source.0, &part.source.1, range, &part.conditions)
            .await?;
        let read = match answer {
            ReadAnswer::Object(read) => read,
            ReadAnswer::NotModified(info) => return Err(crate::read::failed_condition(&info)),
        };
        if part.range.is_some_and(|range| range.end() > read.info.bytes) {
            let error = Error::new(Kind::OutOfRange, "the range ends past the end of the source");
            return Err(error
                .with("key", &part.source.1)
                .with("object_bytes", read.info.bytes));
        }
        let request = PartRequest {
            key: part.key,
            upload: part.upload,
            number: part.number,
            bytes: read.range.map_or(0, ByteRange::len),
            body: read.pieces.map(|piece| piece.map(|piece| piece.bytes)).boxed(),
            md5: None,
        };
        self.upload_part(bucket, request, || Ok(Vec::new())).await
    }

    /// Joins the parts into the object; returns the receipt and the object's checksum, if it has one.
    pub async fn complete_upload(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
        id: &str,
        request: CompleteRequest,
    ) -> Result<(WriteReceipt, Option<ObjectChecksum>)> {
        let bucket = self.buckets.open(bucket)?;
        let upload = ledger::read_upload(&*bucket.lake, id, key).await?;
        let stored = ledger::read_parts(&*bucket.lake, id, 0, usize::MAX).await?;
        let parts = match_parts(&request, &stored)?;
        let mode = self.put_mode(&bucket, key, &request.condition).await?;
        let attributes = document::with_extras(upload.attributes.clone());
        let options = PutOptions {
            mode,
            attributes,
            ..PutOptions::default()
        };

        // The key may have become part of a view since the upload was opened.
        self.check_writable(&bucket, key).await?;
        let write = self.freshness.begin_write(&bucket.name, key);
        let completed = bucket
            .lake
            .complete_upload(key, &upload.lake_upload, &parts, options)
            .await;
        let receipt = match completed {
            // The lake has forgotten the upload, but we have not: an earlier try may have been cut off in
            // between.
            Err(error) if error.kind() == Kind::NotFound => joined_before(&bucket, key, &parts)
                .await?
                .ok_or_else(|| ledger::no_such_upload(id).caused_by(error))?,
            completed => completed.map_err(|error| lost_race(error, key))?,
        };
        let bytes = parts.iter().map(|part| part.bytes).sum();
        let mut info = self.info_of_write(&bucket, key, receipt, bytes, upload.attributes);
        info.checksums = request.checksum.clone().into_iter().collect();
        info.part_bytes = parts.iter().map(|part| part.bytes).collect();
        let extras = Extras {
            key: key.clone(),
            object_version: info.version.clone(),
            checksums: info.checksums.clone(),
            part_bytes: info.part_bytes.clone(),
        };
        document::write_extras(&bucket, &extras).await?;
        self.reservoir.forget_others(&info.object_version());
        let receipt = WriteReceipt {
            version: info.version.clone(),
            bytes,
            modified: info.modified,
        };
        if upload.tags.is_empty() {
            write.done(Some(Arc::new(info)));
        } else {
            write.done(None);
            self.tag_written(&bucket, key, &receipt.version, upload.tags)
                .await?;
        }
        if let Err(error) = ledger::remove(&*bucket.lake, id).await {
            // The object is there; what stays of the upload is only listed a little longer.
            tracing::warn!(bucket = %bucket.name, %key, upload = id, %error, "documents of a completed upload stay");
        }
        Ok((receipt, request.checksum))
    }

    /// Forgets an upload and its parts.
    pub async fn abort_upload(&self, bucket: &BucketName, key: &ObjectKey, id: &str) -> Result<()> {
        let bucket = self.buckets.open(bucket)?;
        let upload = ledger::read_upload(&*bucket.lake, id, key).await?;
        bucket.lake.abort_upload(key, &upload.lake_upload).await?;
        ledger::remove(&*bucket.lake, id).await
    }

    /// Parts with a number above `after`, at most `limit`, and whether there are more.
    pub async fn list_parts(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
        id: &str,
        after: u16,
        limit: usize,
    ) -> Result<(UploadInfo, Vec<PartInfo>, bool)> {
        let bucket = self.buckets.open(bucket)?;
        let upload = ledger::read_upload(&*bucket.lake, id, key).await?;
        let mut parts = ledger::read_parts(&*bucket.lake, id, after, limit.saturating_add(1)).await?;
        let has_more = parts.len() > limit;
        parts.truncate(limit);
        Ok((upload.info(id), parts, has_more))
    }

    /// All open uploads whose key starts with `prefix`, by key, then by time.
    pub async fn list_uploads(&self, bucket: &BucketName, prefix: &str) -> Result<Vec<UploadInfo>> {
        let bucket = self.buckets.existing(bucket).await?;
        let mut uploads = ledger::read_uploads(&*bucket.lake).await?;
        uploads.retain(|upload| upload.key.as_str().starts_with(prefix));
        uploads.sort_by(|a, b| (&a.key, &a.id).cmp(&(&b.key, &b.id)));
        Ok(uploads)
    }
}

/// The receipt of the object if it is what these parts make, by size and by the ETag that S3 gives a joined
/// object.
async fn joined_before(
    bucket: &Bucket,
    key: &ObjectKey,
    parts: &[PartReceipt],
) -> Result<Option<PutReceipt>> {
    let mut md5 = Md5::new();
    for part in parts {
        let Ok(digest) = hex::decode(&part.etag) else {
            return Ok(None);
        };
        md5.update(digest);
    }
    let etag = format!("{}-{}", hex::encode(md5.finalize()), parts.len());
    let bytes: u64 = parts.iter().map(|part| part.bytes).sum();
    let meta = match bucket.lake.head(key).await {
        Ok(meta) => meta,
        Err(error) if error.kind() == Kind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let receipt = PutReceipt {
        version: meta.version,
        token: meta.token,
        modified: Some(meta.modified),
    };
    Ok(Some(receipt).filter(|receipt| receipt.version.as_str() == etag && meta.bytes == bytes))
}

fn check_part_number(number: u16) -> Result<()> {
    if (1..=PART_NUMBER_MAX).contains(&number) {
        return Ok(());
    }
    let message = format!("part numbers go from 1 to {PART_NUMBER_MAX}");
    Err(Error::new(Kind::InvalidInput, message)
        .with("code", "InvalidArgument")
        .with("part", number))
}

/// Compares what the client names with what is stored, as S3 does.
fn match_parts(request: &CompleteRequest, stored: &[PartInfo]) -> Result<Vec<PartReceipt>> {
    let wrong = |code: &'static str, message: &str, number: u16| {
        Err(Error::new(Kind::InvalidInput, message)
            .with("code", code)
            .with("part", number))
    };
    if request.parts.is_empty() {
        return wrong("MalformedXML", "an upload is completed with at least one part", 0);
    }
    let mut parts: Vec<PartReceipt> = Vec::with_capacity(request.parts.len());
    for part in &request.parts {
        if parts
            .last()
            .is_some_and(|previous| previous.number >= part.number)
        {
            return wrong(
                "InvalidPartOrder",
                "parts must be named in ascending order",
                part.number,
            );
        }
        let found = stored
            .iter()
            .find(|stored| stored.number == part.number && stored.etag == part.etag);
        let Some(found) = found else {
            return wrong(
                "InvalidPart",
                "there is no part with this number and ETag",
                part.number,
            );
        };
        let same = |checksum: &ObjectChecksum| {
            let kept = found
                .checksums
                .iter()
                .find(|kept| kept.algorithm == checksum.algorithm);
            kept.is_none_or(|kept| kept.value == checksum.value)
        };
        if !part.checksums.iter().all(same) {
            return wrong(
                "InvalidPart",
                "the checksum of the part is another one",
                part.number,
            );
        }
        if parts
            .last()
            .is_some_and(|previous| previous.bytes < PART_BYTES_MIN)
        {
            return wrong(
                "EntityTooSmall",
                "every part but the last must have at least 5 MiB",
                part.number - 1,
            );
        }
        parts.push(PartReceipt {
            number: part.number,
            etag: found.etag.clone(),
            bytes: found.bytes,
        });
    }
    let bytes: u64 = parts.iter().map(|part| part.bytes).sum();
    if request.bytes.is_some_and(|expected| expected != bytes) {
        return wrong(
            "InvalidRequest",
            "the parts do not add up to the announced size",
            0,
        );
    }
    Ok(parts)
}

#[cfg(test)]
mod tests;
