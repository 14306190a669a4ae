//! A lake in an S3 bucket: any server that speaks S3, any legal key.
//!
//! Each method is one request (`client`) and the reading of its answer (`headers`, `xml`). A pinned ranged
//! read is sent once, because it comes from the scheduler, which retries by itself and has to see when the
//! lake throttles; all else is tried again here within the lake's budget. Servers differ, so answers are not
//! trusted further than needed: a read checks that it got the version and range it asked for, a conditional
//! multipart write looks before it completes, and ETags are sent without quotes to a server that wants them
//! so.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ::http::header::{self, HeaderValue};
use ::http::{HeaderMap, Method};
use async_trait::async_trait;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use forebay_core::{Error, Kind, ObjectKey, Result, Version};
use parking_lot::Mutex;
use tokio::task::JoinSet;

use crate::etag::{check_part_number, check_part_order};
use crate::{
    Attributes, ByteStream, CopyOptions, GetOptions, GetRange, GetResult, Lake, LakeWriter, ListOptions,
    ListPage, ObjectMeta, PartNumber, PartReceipt, PutMode, PutOptions, PutReceipt, UpdateToken, UploadId,
    resolve_range,
};

pub(crate) mod client;
mod copy;
pub(crate) mod credentials;
mod error;
mod headers;
mod http;
mod list;
pub(crate) mod profile;
mod route;
mod sign;
#[cfg(test)]
mod tests;
mod upload;
mod walk;
mod writer;
mod xml;

use self::http::answer_body;
use client::{Call, RetryMode, S3Client};
use headers::Quotes;
use list::Lister;
use upload::part_call;
use writer::S3Writer;

/// A short XML answer.
const XML_BYTES_MAX: usize = 1 << 20;
/// Uploads that are being given up in the background.
const CLEANUPS_MAX: usize = 64;

/// A lake in an S3 bucket.
#[derive(Debug, Clone)]
pub(crate) struct S3Lake {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    url: String,
    client: S3Client,
    lister: Lister,
    without_quotes: AtomicBool,
    /// An update with quotes has worked, so one that is refused is refused for good.
    knows_quotes: AtomicBool,
    /// Aborts of uploads whose writers were dropped; ends with the lake.
    cleanups: Mutex<JoinSet<()>>,
}

impl S3Lake {
    /// A lake at `url` (for messages) behind this client.
    pub(crate) fn new(url: String, client: S3Client) -> Self {
        Self {
            inner: Arc::new(Inner {
                url,
                client,
                lister: Lister::default(),
                without_quotes: AtomicBool::new(false),
                knows_quotes: AtomicBool::new(false),
                cleanups: Mutex::default(),
            }),
        }
    }

    fn client(&self) -> &S3Client {
        &self.inner.client
    }

    fn at(&self, error: Error, key: &ObjectKey) -> Error {
        error.with("lake", &self.inner.url).with("key", key)
    }

    fn quotes(&self) -> Quotes {
        if self.inner.without_quotes.load(Ordering::Relaxed) {
            Quotes::Without
        } else {
            Quotes::With
        }
    }

    /// Writes bytes in memory as one object.
    async fn put_chunks(
        &self,
        key: &ObjectKey,
        chunks: Vec<Bytes>,
        options: &PutOptions,
    ) -> Result<PutReceipt> {
        let quotes = self.quotes();
        let answer = self.put_with(key, chunks.clone(), options, quotes).await;
        let PutMode::Update(token) = &options.mode else {
            return answer;
        };
        let may_be_quotes = quotes == Quotes::With && !self.inner.knows_quotes.load(Ordering::Relaxed);
        match answer {
            Ok(receipt) => {
                self.inner
                    .knows_quotes
                    .store(quotes == Quotes::With, Ordering::Relaxed);
                Ok(receipt)
            }
            Err(error) if error.kind() == Kind::PreconditionFailed && may_be_quotes => {
                // Old Ceph compares the quotes too. Only if the object is still the one that the token names.
                let is_same = self
                    .send_head(key)
                    .await
                    .is_ok_and(|meta| token.etag.as_deref() == Some(meta.version.as_str()));
                if !is_same {
                    return Err(error);
                }
                let receipt = self.put_with(key, chunks, options, Quotes::Without).await?;
                self.inner.without_quotes.store(true, Ordering::Relaxed);
                Ok(receipt)
            }
            // The object that the token names is gone.
            Err(error) if error.kind() == Kind::NotFound => Err(Error::new(
                Kind::PreconditionFailed,
                "the object to update is not there any more",
            )
            .caused_by(error)),
            Err(error) => Err(error),
        }
    }

    async fn put_with(
        &self,
        key: &ObjectKey,
        chunks: Vec<Bytes>,
        options: &PutOptions,
        quotes: Quotes,
    ) -> Result<PutReceipt> {
        let mut call = Call::new(Method::PUT, Some(key.as_str()));
        headers::add_attributes(&mut call.headers, &options.attributes)?;
        call.on_412 = headers::add_condition(&mut call.headers, &options.mode, quotes)?;
        if options.mode != PutMode::Overwrite {
            call.retry_mode = RetryMode::IfNotApplied;
        }
        if let Some(md5) = options.md5 {
            let text = HeaderValue::from_str(&STANDARD.encode(md5)).expect("base64 is a legal header value");
            call.headers.insert("content-md5", text);
        }
        call.body = chunks;
        let response = self.client().call(&call).await?;
        receipt(headers::written_version(response.headers())?)
    }

    async fn send_head(&self, key: &ObjectKey) -> Result<ObjectMeta> {
        let response = self
            .client()
            .call(&Call::new(Method::HEAD, Some(key.as_str())))
            .await?;
        let meta = headers::object_meta(
            key,
            headers::content_length(response.headers())?,
            response.headers(),
        )?;
        refuse_bare_folder(meta)
    }

    async fn send_get(&self, key: &ObjectKey, options: &GetOptions) -> Result<GetResult> {
        let mut call = Call::new(Method::GET, Some(key.as_str()));
        call.on_412 = Kind::Changed;
        if let Some(range) = options.range {
            call.headers.insert(header::RANGE, range_value(range)?);
        }
        if let Some(version) = &options.if_match {
            call.headers.insert(
                header::IF_MATCH,
                headers::etag_value(version.as_str(), self.quotes())?,
            );
        }
        if options.range.is_some() && options.if_match.is_some() {
            call.retry_mode = RetryMode::Never;
        }
        let response = self.client().call(&call).await?;
        let (head, body) = response.into_parts();
        let bytes = headers::content_length(&head.headers)?;
        let (start, object_bytes) = headers::content_range(&head.headers).unwrap_or((0, bytes));
        let meta = refuse_bare_folder(headers::object_meta(key, object_bytes, &head.headers)?)?;
        if options
            .if_match
            .as_ref()
            .is_some_and(|version| *version != meta.version)
        {
            return Err(
                Error::new(Kind::Changed, "the object has another version now").with("found", &meta.version)
            );
        }
        let wanted = resolve_range(options.range, object_bytes)?;
        if wanted != (start..start.saturating_add(bytes)) {
            return Err(Error::new(
                Kind::Unavailable,
                "the lake answered with other bytes than it was asked for",
            )
            .with("asked", format!("{wanted:?}"))
            .with("start", start)
            .with("bytes", bytes));
        }
        Ok(GetResult {
            meta,
            start,
            bytes,
            body: answer_body(body, bytes),
        })
    }
}

fn refuse_bare_folder(meta: ObjectMeta) -> Result<ObjectMeta> {
    if xml::is_bare_folder(meta.key.as_str(), meta.version.as_str()) {
        return Err(Error::new(Kind::NotFound, "not in the lake"));
    }
    Ok(meta)
}

fn receipt(version: Version) -> Result<PutReceipt> {
    let token = UpdateToken {
        etag: Some(version.to_string()),
        version: None,
    };
    Ok(PutReceipt {
        version,
        token,
        modified: None,
    })
}

fn range_value(range: GetRange) -> Result<HeaderValue> {
    let text = match range {
        GetRange::Bounded(range) => format!("bytes={}-{}", range.start(), range.end() - 1),
        GetRange::From(start) => format!("bytes={start}-"),
        GetRange::Last(0) => return Err(Error::new(Kind::OutOfRange, "the last 0 bytes are no range")),
        GetRange::Last(bytes) => format!("bytes=-{bytes}"),
    };
    Ok(HeaderValue::from_str(&text).expect("a range is plain ASCII"))
}

#[async_trait]
impl Lake for S3Lake {
    fn url(&self) -> &str {
        &self.inner.url
    }

    async fn head(&self, key: &ObjectKey) -> Result<ObjectMeta> {
        self.send_head(key).await.map_err(|error| self.at(error, key))
    }

    async fn get(&self, key: &ObjectKey, options: GetOptions) -> Result<GetResult> {
        self.send_get(key, &options)
            .await
            .map_err(|error| self.at(error, key))
    }

    async fn writer(
        &self,
        key: &ObjectKey,
        options: PutOptions,
        bytes_hint: Option<u64>,
    ) -> Result<Box<dyn LakeWriter>> {
        Ok(Box::new(S3Writer::new(
            self.clone(),
            key.clone(),
            options,
            bytes_hint,
        )))
    }

    async fn delete(&self, key: &ObjectKey) -> Result<()> {
        match self
            .client()
            .call(&Call::new(Method::DELETE, Some(key.as_str())))
            .await
        {
            // A missing object is fine, a missing bucket is not.
            Err(error) if error.kind() == Kind::NotFound && !error.message().contains("bucket") => Ok(()),
            Err(error) => Err(self.at(error, key)),
            Ok(_) => Ok(()),
        }
    }

    async fn delete_if(&self, key: &ObjectKey, token: &UpdateToken) -> Result<()> {
        let mut call = Call::new(Method::DELETE, Some(key.as_str()));
        call.on_412 =
            headers::add_condition(&mut call.headers, &PutMode::Update(token.clone()), self.quotes())
                .map_err(|error| self.at(error, key))?;
        call.retry_mode = RetryMode::IfNotApplied;
        let answer = self.client().call(&call).await;
        answer.map(|_| ()).map_err(|error| self.at(error, key))
    }

    async fn copy(&self, from: &ObjectKey, to: &ObjectKey, options: CopyOptions) -> Result<PutReceipt> {
        copy::copy(self, from, to, &options)
            .await
            .map_err(|error| self.at(error, from).with("to", to))
    }

    async fn list(&self, options: ListOptions) -> Result<ListPage> {
        let page = self.inner.lister.list(self.client(), &options).await;
        page.map_err(|error| {
            error
                .with("lake", &self.inner.url)
                .with("prefix", &options.prefix)
        })
    }

    async fn start_upload(&self, key: &ObjectKey, attributes: Attributes) -> Result<UploadId> {
        self.send_start_upload(key, &attributes)
            .await
            .map_err(|error| self.at(error, key))
    }

    async fn upload_part(
        &self,
        key: &ObjectKey,
        upload: &UploadId,
        number: PartNumber,
        bytes: u64,
        body: ByteStream,
    ) -> Result<PartReceipt> {
        check_part_number(number).map_err(|error| self.at(error, key))?;
        let call = part_call(key, upload, number);
        let response = self.client().call_streaming(&call, bytes, body).await;
        let headers: HeaderMap = response
            .map_err(|error| self.at(error, key).with("part", number))?
            .into_parts()
            .0
            .headers;
        let etag = headers::written_version(&headers)
            .map_err(|error| self.at(error, key))?
            .to_string();
        Ok(PartReceipt { number, etag, bytes })
    }

    async fn complete_upload(
        &self,
        key: &ObjectKey,
        upload: &UploadId,
        parts: &[PartReceipt],
        options: PutOptions,
    ) -> Result<PutReceipt> {
        check_part_order(parts).map_err(|error| self.at(error, key))?;
        if options.md5.is_some() {
            let error = Error::new(
                Kind::Unsupported,
                "an S3 lake cannot check the MD5 of a joined object; check the parts",
            );
            return Err(self.at(error, key));
        }
        self.send_complete(key, upload, parts, &options.mode)
            .await
            .map_err(|error| self.at(error, key))
    }

    async fn open_uploads(&self, key: &ObjectKey) -> Result<Vec<UploadId>> {
        self.send_open_uploads(key)
            .await
            .map_err(|error| self.at(error, key))
    }

    async fn upload_parts(&self, key: &ObjectKey, upload: &UploadId) -> Result<Vec<PartReceipt>> {
        self.send_upload_parts(key, upload)
            .await
            .map_err(|error| self.at(error, key).with("upload", &upload.0))
    }

    async fn abort_upload(&self, key: &ObjectKey, upload: &UploadId) -> Result<()> {
        self.send_abort(key, upload)
            .await
            .map_err(|error| self.at(error, key))
    }
}
