//! `Allocate`, `Free` and `Put`: writes from memory that the client filled.
//!
//! A buffer belongs to the session until `Put` hands it over. From then on the write is a task of the node:
//! it goes on when the client dies, and a stopping node waits for it. The bytes are not copied on their way
//! to the lake; the client still maps them, so one that writes to a buffer after `Put` spoils its own object,
//! and the checksum that it sent along is compared before anything is written.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use forebay_core::{BucketName, Error, Kind, ObjectKey, Result, crc32c};
use forebay_engine::{Engine, Finish, WriteReceipt, WriteRequest, kept_metadata_name};
use forebay_lake::Attributes;
use forebay_wire::Headers;
use forebay_wire::writes::{Answer, Buffer, Put};
use tokio::sync::oneshot;

use super::Context;

/// Bytes given to the lake at once.
const CHUNK_BYTES: usize = 8 << 20;
/// A checksum over more is not for a thread of the runtime.
const INLINE_BYTES_MAX: usize = 1 << 20;
/// Names and values of user metadata together, as S3 has it.
const METADATA_BYTES_MAX: usize = 2048;
/// The value of one other header.
const HEADER_BYTES_MAX: usize = 256;

pub(super) async fn allocate(context: Context<'_>, bytes: u64) -> Result<Answer> {
    let staging = Arc::clone(&context.writes.services.staging);
    let uid = context.session.uid();
    // Fresh memory takes a while.
    let allocated = tokio::task::spawn_blocking(move || staging.allocate(uid, bytes)).await;
    let allocated =
        allocated.map_err(|why| Error::new(Kind::Internal, "memory could not be had").caused_by(why))?;
    if allocated.as_ref().is_err_and(|error| error.kind() == Kind::Busy) {
        context.writes.services.pressure.staging_is_full();
    }
    let buffer = allocated?;
    let allocated = Buffer {
        buffer: buffer.id().0,
        bytes: buffer.bytes(),
        mapped_bytes: buffer.mapped_bytes(),
    };
    context.session.add_buffer(buffer)?;
    Ok(Answer::Buffer(allocated))
}

pub(super) fn free(context: Context<'_>, buffer: u64) -> Answer {
    drop(context.session.take_buffer(buffer));
    Answer::Done
}

pub(super) async fn put(context: Context<'_>, put: Put) -> Result<Answer> {
    let (bucket, key) = context.object(&put.object)?;
    let request = WriteRequest {
        attributes: attributes(put.headers, put.metadata)?,
        condition: put.condition,
        bytes: Some(put.from.bytes),
        ..WriteRequest::default()
    };
    let engine = Arc::clone(context.engine()?);
    let body = Body {
        bytes: context.session.take_bytes(put.from.buffer, put.from.bytes)?,
        crc32c: put.from.crc32c,
    };
    let (done, answer) = oneshot::channel();
    context.writes.spawn(async move {
        let result = write(&engine, &bucket, &key, request, body).await;
        if let Err(Err(error)) = done.send(result) {
            tracing::warn!(%error, %bucket, %key, "a write failed whose client is gone");
        }
    })?;
    let receipt = answer
        .await
        .map_err(|_| Error::new(Kind::Cancelled, "the node stopped before the write was done"))??;
    Ok(written(&receipt))
}

pub(super) fn written(receipt: &WriteReceipt) -> Answer {
    Answer::Written {
        version: receipt.version.as_str().into(),
        bytes: receipt.bytes,
    }
}

struct Body {
    bytes: Bytes,
    crc32c: Option<u32>,
}

impl Body {
    /// Compares the client's checksum.
    async fn check(&self) -> Result<()> {
        let Some(expected) = self.crc32c else {
            return Ok(());
        };
        let found = if self.bytes.len() <= INLINE_BYTES_MAX {
            crc32c::crc32c(&self.bytes)
        } else {
            let bytes = self.bytes.clone();
            let counted = tokio::task::spawn_blocking(move || crc32c::crc32c(&bytes)).await;
            counted.map_err(|why| Error::new(Kind::Internal, "a checksum was stopped").caused_by(why))?
        };
        if found == expected {
            return Ok(());
        }
        let message = "the bytes in the buffer do not match their checksum; nothing was written";
        Err(Error::new(Kind::Checksum, message)
            .with("found", found)
            .with("expected", expected))
    }
}

async fn write(
    engine: &Arc<Engine>,
    bucket: &BucketName,
    key: &ObjectKey,
    request: WriteRequest,
    body: Body,
) -> Result<WriteReceipt> {
    body.check().await?;
    let mut write = engine.write(bucket, key, request).await?;
    let mut rest = body.bytes;
    while !rest.is_empty() {
        let chunk = rest.split_to(CHUNK_BYTES.min(rest.len()));
        if let Err(error) = write.push(chunk).await {
            write.abort().await;
            return Err(error);
        }
    }
    write.finish(Finish::default()).await
}

/// Returns what is kept beside the bytes, checked.
pub(super) fn attributes(headers: Headers, metadata: Vec<(String, String)>) -> Result<Attributes> {
    let wrong = |message: &str| Err(Error::new(Kind::InvalidInput, message));
    let bytes: usize = metadata
        .iter()
        .map(|(name, value)| name.len() + value.len())
        .sum();
    if bytes > METADATA_BYTES_MAX {
        return wrong("the metadata is longer than 2048 bytes");
    }
    for (name, value) in headers.fields() {
        if value.is_some_and(|text| !is_header_value(text) || text.len() > HEADER_BYTES_MAX) {
            let message = "the header is too long or has characters that a header cannot have";
            return Err(Error::new(Kind::InvalidInput, message)
                .with("header", name)
                .with("bytes_max", HEADER_BYTES_MAX));
        }
    }
    let mut user = BTreeMap::new();
    for (name, value) in metadata {
        let is_name = |c: u8| c.is_ascii_alphanumeric() || b"-_.".contains(&c);
        if name.is_empty() || !name.bytes().all(is_name) {
            return wrong("a name of metadata may only have letters, digits, '-', '_' and '.'");
        }
        if !is_header_value(&value) {
            return wrong("a value of metadata has characters that a header cannot have");
        }
        user.insert(kept_metadata_name(name.to_ascii_lowercase()), value);
    }
    Ok(Attributes {
        content_type: headers.content_type,
        content_encoding: headers.content_encoding,
        content_language: headers.content_language,
        content_disposition: headers.content_disposition,
        cache_control: headers.cache_control,
        user,
    })
}

fn is_header_value(text: &str) -> bool {
    text.chars().all(|c| !c.is_control())
}
