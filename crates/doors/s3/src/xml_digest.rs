//! `Content-MD5` of documents: the XML bodies of `DeleteObjects`, tags and completions.
//!
//! Object bytes are compared with their digest on their way to the lake. A document is read whole by `s3s`,
//! which does not look at the header, so it passes through here: at its end the body fails if it is not what
//! the client meant, and the request is answered with `BadDigest` before anything is done.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, Method};
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use s3s::crypto::{Checksum, Md5};

use crate::body::BodyFault;
use crate::rechunk::is_chunked;
use crate::refusal::Refusal;

/// Why a document ends early.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum DocumentFault {
    /// The body below broke off.
    Body(BodyFault),
    /// It has another digest than was said.
    Digest,
}

impl fmt::Display for DocumentFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Body(fault) => fault.fmt(f),
            Self::Digest => f.write_str("the body does not match Content-MD5"),
        }
    }
}

impl std::error::Error for DocumentFault {}

/// The digest that a request's document must have, if it has one and says so.
pub(crate) fn wanted(parts: &Parts) -> Result<Option<[u8; 16]>, Refusal> {
    if !is_document(&parts.method, parts.uri.query().unwrap_or_default()) || is_chunked(&parts.headers) {
        return Ok(None);
    }
    digest(&parts.headers)
}

/// Returns whether the body is a document: a POST, or a PUT of something other than an object or part.
pub(crate) fn is_document(method: &Method, query: &str) -> bool {
    let names_a_setting = || {
        let mut names = query.split('&').filter_map(|pair| pair.split('=').next());
        names.any(|name| {
            let is_signature = name
                .get(..6)
                .is_some_and(|start| start.eq_ignore_ascii_case("x-amz-"));
            !is_signature && !matches!(name, "" | "x-id" | "partNumber" | "uploadId" | "versionId")
        })
    };
    method == Method::POST || (method == Method::PUT && names_a_setting())
}

fn digest(headers: &HeaderMap) -> Result<Option<[u8; 16]>, Refusal> {
    let Some(value) = headers.get("content-md5") else {
        return Ok(None);
    };
    let digest = STANDARD.decode(value.as_bytes()).ok();
    match digest.and_then(|digest| digest.try_into().ok()) {
        Some(digest) => Ok(Some(digest)),
        None => Err(Refusal::bad(
            "InvalidDigest",
            "Content-MD5 must be the base64 of 16 bytes",
        )),
    }
}

/// A document that must have this digest.
pub(crate) struct Digested<B> {
    inner: B,
    md5: Option<Md5>,
    wanted: [u8; 16],
}

impl<B> Digested<B> {
    pub(crate) fn new(inner: B, wanted: [u8; 16]) -> Self {
        Self {
            inner,
            md5: Some(Md5::new()),
            wanted,
        }
    }
}

impl<B> HttpBody for Digested<B>
where
    B: HttpBody<Data = Bytes, Error = BodyFault> + Unpin,
{
    type Data = Bytes;
    type Error = DocumentFault;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, DocumentFault>>> {
        let this = &mut *self;
        let frame = match ready!(Pin::new(&mut this.inner).poll_frame(cx)) {
            Some(frame) => frame.map_err(DocumentFault::Body)?,
            None => {
                let found = this.md5.take().map(Checksum::finalize);
                let is_wrong = found.is_some_and(|found| found.as_ref() != this.wanted);
                return Poll::Ready(is_wrong.then_some(Err(DocumentFault::Digest)));
            }
        };
        if let (Some(md5), Some(data)) = (&mut this.md5, frame.data_ref()) {
            md5.update(data);
        }
        Poll::Ready(Some(Ok(frame)))
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_told_from_objects_and_parts() {
        for (method, query) in [
            (Method::POST, "delete"),
            (Method::POST, "uploadId=1"),
            (Method::PUT, "tagging="),
        ] {
            assert!(is_document(&method, query), "{method} {query}");
        }
        for query in [
            "",
            "partNumber=1&uploadId=2",
            "X-Amz-Signature=1&x-id=PutObject",
            "x-amz-date=1",
        ] {
            assert!(!is_document(&Method::PUT, query), "{query}");
        }
        assert!(!is_document(&Method::GET, "tagging"));
    }
}
