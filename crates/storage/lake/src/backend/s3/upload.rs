//! Multipart uploads of an S3 lake: open, fill, join, give up, and what is known of those that were left.
//!
//! A condition on the joined object is looked at before it is joined, because not every server checks it;
//! that is not atomic, but better than not. An upload whose writer is dropped is given up in the background.

use bytes::Bytes;
use forebay_core::{Error, Kind, ObjectKey, Result};
use http::Method;
use http::header::{self, HeaderValue};

use super::client::{Call, RetryMode};
use super::{CLEANUPS_MAX, S3Lake, XML_BYTES_MAX, error, headers, receipt, xml};
use crate::backend::s3::http::answer_text;
use crate::{Attributes, PartNumber, PartReceipt, PutMode, PutReceipt, UploadId};

/// Pages of a listing of uploads or parts: as many as 10,000 parts have.
const PAGES_MAX: usize = 10;
/// A page of 1000 uploads whose keys are long, and what surrounds them.
const PAGE_BYTES_MAX: usize = 16 << 20;

impl S3Lake {
    pub(super) async fn send_start_upload(
        &self,
        key: &ObjectKey,
        attributes: &Attributes,
    ) -> Result<UploadId> {
        let mut call = Call::new(Method::POST, Some(key.as_str())).query("uploads", "");
        headers::add_attributes(&mut call.headers, attributes)?;
        let response = self.client().call(&call).await?;
        let body: xml::UploadBody = xml::parse(&answer_text(response.into_body(), XML_BYTES_MAX).await?)?;
        Ok(UploadId(body.upload_id))
    }

    pub(super) async fn upload_chunks(
        &self,
        key: &ObjectKey,
        upload: &UploadId,
        number: PartNumber,
        chunks: Vec<Bytes>,
    ) -> Result<PartReceipt> {
        let bytes = chunks.iter().map(|chunk| chunk.len() as u64).sum();
        let mut call = part_call(key, upload, number);
        call.body = chunks;
        let response = self.client().call(&call).await?;
        let etag = headers::written_version(response.headers())?.to_string();
        Ok(PartReceipt { number, etag, bytes })
    }

    pub(super) async fn send_complete(
        &self,
        key: &ObjectKey,
        upload: &UploadId,
        parts: &[PartReceipt],
        mode: &PutMode,
    ) -> Result<PutReceipt> {
        self.check_condition(key, mode).await?;
        let mut call = Call::new(Method::POST, Some(key.as_str())).query("uploadId", &upload.0);
        call.on_412 = headers::add_condition(&mut call.headers, mode, self.quotes())?;
        call.headers
            .insert(header::CONTENT_TYPE, HeaderValue::from_static("application/xml"));
        call.retry_mode = RetryMode::IfNotApplied;
        call.body = vec![Bytes::from(xml::complete_request(parts))];
        let on_412 = call.on_412;
        let written = self.written(&call, on_412).await?;
        match written.etag {
            Some(etag) if !etag.is_empty() => receipt(xml::version(&etag)),
            _ => receipt(self.send_head(key).await?.version),
        }
    }

    /// Not every server checks the condition of a complete request, so we look first: not atomic, but better
    /// than not.
    async fn check_condition(&self, key: &ObjectKey, mode: &PutMode) -> Result<()> {
        let found = match mode {
            PutMode::Overwrite => return Ok(()),
            PutMode::Create | PutMode::Update(_) => self.send_head(key).await,
        };
        match (mode, found) {
            (PutMode::Create, Ok(_)) => Err(Error::new(Kind::AlreadyExists, "already in the lake")),
            (PutMode::Update(token), Ok(meta)) if token.etag.as_deref() == Some(meta.version.as_str()) => {
                Ok(())
            }
            (PutMode::Update(_), Ok(_)) => Err(Error::new(
                Kind::PreconditionFailed,
                "the object is not the one the update names",
            )),
            (PutMode::Update(_), Err(error)) if error.kind() == Kind::NotFound => Err(Error::new(
                Kind::PreconditionFailed,
                "the object to update is not there any more",
            )),
            (_, Err(error)) if error.kind() == Kind::NotFound => Ok(()),
            (_, Err(error)) => Err(error),
            (PutMode::Overwrite, Ok(_)) => Ok(()),
        }
    }

    /// Sends what is answered with a result or, under status 200 too, with an error.
    pub(super) async fn written(&self, call: &Call<'_>, on_412: Kind) -> Result<xml::WrittenBody> {
        let response = self.client().call(call).await?;
        let (head, body) = response.into_parts();
        let body = answer_text(body, XML_BYTES_MAX).await?;
        if xml::error_in(&body).is_some() {
            return Err(error::from_answer(head.status, &head.headers, &body, on_412));
        }
        xml::parse(&body)
    }

    pub(super) async fn send_abort(&self, key: &ObjectKey, upload: &UploadId) -> Result<()> {
        let call = Call::new(Method::DELETE, Some(key.as_str())).query("uploadId", &upload.0);
        match self.client().call(&call).await {
            // Some servers call an id that they do not know invalid.
            Err(error) if !matches!(error.kind(), Kind::NotFound | Kind::InvalidInput) => Err(error),
            _ => Ok(()),
        }
    }

    /// Gives an upload up without making anyone wait. Called from `drop`, possibly without a runtime.
    pub(super) fn abort_later(&self, key: ObjectKey, upload: UploadId) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        let lake = self.clone();
        let mut cleanups = self.inner.cleanups.lock();
        while cleanups.try_join_next().is_some() {}
        if cleanups.len() >= CLEANUPS_MAX {
            tracing::warn!(%key, "too many abandoned uploads at once; the lake keeps this one until its age limit");
            return;
        }
        let abort = async move {
            if let Err(error) = lake.send_abort(&key, &upload).await {
                tracing::warn!(%key, %error, "cannot give up an abandoned upload");
            }
        };
        cleanups.spawn_on(abort, &runtime);
    }

    pub(super) async fn send_open_uploads(&self, key: &ObjectKey) -> Result<Vec<UploadId>> {
        let mut found = Vec::new();
        let mut marker: Option<(String, String)> = None;
        for _ in 0..PAGES_MAX {
            let mut call = Call::new(Method::GET, None)
                .query("uploads", "")
                .query("prefix", key.as_str());
            if let Some((key, upload)) = &marker {
                call = call.query("key-marker", key).query("upload-id-marker", upload);
            }
            let response = self.client().call(&call).await?;
            let page: xml::UploadsBody =
                xml::parse(&answer_text(response.into_body(), PAGE_BYTES_MAX).await?)?;
            let of_key = page
                .upload
                .into_iter()
                .filter(|upload| upload.key == key.as_str());
            found.extend(of_key);
            marker = page.next_key_marker.zip(page.next_upload_id_marker);
            // Keys come in order, so those behind ours are other keys.
            let is_past = marker
                .as_ref()
                .is_none_or(|(marker, _)| marker.as_str() > key.as_str());
            if !page.is_truncated || is_past {
                break;
            }
        }
        // Times are ISO 8601 in UTC, so the later one is the greater text.
        found.sort_by(|a, b| b.initiated.cmp(&a.initiated));
        Ok(found
            .into_iter()
            .map(|upload| UploadId(upload.upload_id))
            .collect())
    }

    pub(super) async fn send_upload_parts(
        &self,
        key: &ObjectKey,
        upload: &UploadId,
    ) -> Result<Vec<PartReceipt>> {
        let mut found = Vec::new();
        let mut marker: Option<String> = None;
        for _ in 0..PAGES_MAX {
            let mut call = Call::new(Method::GET, Some(key.as_str())).query("uploadId", &upload.0);
            if let Some(marker) = &marker {
                call = call.query("part-number-marker", marker);
            }
            let response = self.client().call(&call).await?;
            let page: xml::PartsBody = xml::parse(&answer_text(response.into_body(), PAGE_BYTES_MAX).await?)?;
            found.extend(page.part.iter().map(|part| PartReceipt {
                number: part.part_number,
                etag: xml::version(&part.etag).to_string(),
                bytes: part.size,
            }));
            marker = page.next_part_number_marker;
            if !page.is_truncated || marker.is_none() {
                break;
            }
        }
        Ok(found)
    }
}

pub(super) fn part_call<'a>(key: &'a ObjectKey, upload: &UploadId, number: PartNumber) -> Call<'a> {
    Call::new(Method::PUT, Some(key.as_str()))
        .query("partNumber", number.to_string())
        .query("uploadId", &upload.0)
}
