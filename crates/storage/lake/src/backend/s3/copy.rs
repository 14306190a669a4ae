//! Copies inside the bucket: one request up to 5 GiB, part by part beyond.

use forebay_core::{Error, Kind, ObjectKey, Result};
use futures::{StreamExt, TryStreamExt};
use http::Method;
use http::header::HeaderValue;

use super::client::{Call, RetryMode};
use super::headers::{self, Quotes};
use super::upload::part_call;
use super::{S3Lake, receipt, xml};
use crate::{CopyOptions, ObjectMeta, PartNumber, PartReceipt, PutMode, PutReceipt, UploadId};

/// Most bytes that S3 copies in one request.
const COPY_BYTES_MAX: u64 = 5 << 30;
/// Parts of a long copy; 5 TiB has 10,240 of 512 MiB, so they grow with the object.
const COPY_PART_BYTES: u64 = 512 << 20;
const COPY_PARTS_MAX: u64 = 9_000;
const COPIES_AT_ONCE: usize = 8;

/// Copies; the source is pinned to the version that it has when the copy starts.
pub(super) async fn copy(
    lake: &S3Lake,
    from: &ObjectKey,
    to: &ObjectKey,
    options: &CopyOptions,
) -> Result<PutReceipt> {
    let source = lake.send_head(from).await?;
    if options
        .if_match
        .as_ref()
        .is_some_and(|version| *version != source.version)
    {
        return Err(
            Error::new(Kind::Changed, "the source has another version now").with("found", &source.version)
        );
    }
    if source.bytes > COPY_BYTES_MAX {
        return copy_parts(lake, &source, to, options).await;
    }
    let mut call = Call::new(Method::PUT, Some(to.as_str()));
    add_source(&mut call, lake, &source)?;
    if let Some(attributes) = &options.attributes {
        call.headers
            .insert("x-amz-metadata-directive", HeaderValue::from_static("REPLACE"));
        headers::add_attributes(&mut call.headers, attributes)?;
    }
    let written = lake.written(&call, Kind::Changed).await?;
    let mut receipt = match written.etag.as_deref() {
        Some(etag) if !etag.is_empty() => receipt(xml::version(etag))?,
        _ => receipt(lake.send_head(to).await?.version)?,
    };
    receipt.modified = written.modified();
    Ok(receipt)
}

fn add_source(call: &mut Call<'_>, lake: &S3Lake, source: &ObjectMeta) -> Result<()> {
    let path = lake.client().copy_source(source.key.as_str());
    let path = HeaderValue::from_str(&path)
        .map_err(|why| Error::new(Kind::Internal, "copy source").caused_by(why))?;
    call.headers.insert("x-amz-copy-source", path);
    // Every server tested takes the quotes here, old Ceph too.
    let pin = headers::etag_value(source.version.as_str(), Quotes::With)?;
    call.headers.insert("x-amz-copy-source-if-match", pin);
    call.on_412 = Kind::Changed;
    Ok(())
}

async fn copy_parts(
    lake: &S3Lake,
    source: &ObjectMeta,
    to: &ObjectKey,
    options: &CopyOptions,
) -> Result<PutReceipt> {
    let attributes = options.attributes.as_ref().unwrap_or(&source.attributes);
    let upload = lake.send_start_upload(to, attributes).await?;
    let copied = copy_each_part(lake, source, to, &upload).await;
    match copied {
        Ok(parts) => lake.send_complete(to, &upload, &parts, &PutMode::Overwrite).await,
        Err(error) => {
            lake.abort_later(to.clone(), upload);
            Err(error)
        }
    }
}

async fn copy_each_part(
    lake: &S3Lake,
    source: &ObjectMeta,
    to: &ObjectKey,
    upload: &UploadId,
) -> Result<Vec<PartReceipt>> {
    let part_bytes = COPY_PART_BYTES.max(source.bytes.div_ceil(COPY_PARTS_MAX));
    let starts = (0..source.bytes).step_by(usize::try_from(part_bytes).unwrap_or(usize::MAX));
    let numbered = starts.zip(1..=PartNumber::MAX);
    let copies = futures::stream::iter(numbered).map(|(start, number)| async move {
        let end = (start + part_bytes).min(source.bytes);
        let mut call = part_call(to, upload, number);
        add_source(&mut call, lake, source)?;
        let range =
            HeaderValue::from_str(&format!("bytes={start}-{}", end - 1)).expect("a range is plain ASCII");
        call.headers.insert("x-amz-copy-source-range", range);
        call.retry_mode = RetryMode::Always;
        let etag = lake.written(&call, Kind::Changed).await?.etag;
        let etag =
            etag.ok_or_else(|| Error::new(Kind::Unsupported, "the lake gave no ETag for a copied part"))?;
        Ok(PartReceipt {
            number,
            etag: xml::version(&etag).to_string(),
            bytes: end - start,
        })
    });
    copies.buffered(COPIES_AT_ONCE).try_collect().await
}
