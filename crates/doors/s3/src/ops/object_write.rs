//! `PutObject`: headers to a write request, the body through the checksum verifier into the engine.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use forebay_core::{Error, Kind};
use forebay_engine::{Finish, ObjectChecksum, ObjectWrite, WriteRequest};
use futures::StreamExt;
use http::{Extensions, HeaderMap};
use s3s::dto::*;
use s3s::{S3Response, S3Result, StdError, s3_error};

use super::{Request, Response};
use crate::attributes::{self, GivenHeaders};
use crate::body::BodyFault;
use crate::checksum::{self, Values, Verifier};
use crate::context::RequestContext;
use crate::map;
use crate::operations::Operations;

/// S3's largest object.
const OBJECT_BYTES_MAX: u64 = 5 << 40;

/// `PutObject`.
pub(crate) async fn put(
    operations: &Operations,
    mut request: Request<PutObjectInput>,
) -> Response<PutObjectOutput> {
    let body = request.input.body.take();
    let given = Values {
        crc32: request.input.checksum_crc32.take(),
        crc32c: request.input.checksum_crc32c.take(),
        crc64nvme: request.input.checksum_crc64nvme.take(),
        sha1: request.input.checksum_sha1.take(),
        sha256: request.input.checksum_sha256.take(),
    };
    let verifier = Verifier::new(&request, &given)?;
    let (bucket, key) = (
        map::bucket(&request.input.bucket)?,
        map::writable_key(&request.input.key)?,
    );
    let write_request = write_request(request.input, &request.headers, &verifier)?;

    let fail = |error: Error| map::failure(&error, &request.extensions);
    let mut write = operations
        .engine
        .write(&bucket, &key, write_request)
        .await
        .map_err(fail)?;
    let checksums = match stream_body(body, verifier, &mut write, &request.extensions).await {
        Ok(checksums) => checksums,
        Err(error) => {
            write.abort().await;
            return Err(fail(error));
        }
    };
    let receipt = write
        .finish(Finish {
            checksums: checksums.clone(),
        })
        .await
        .map_err(fail)?;
    let shown = Values::of(&checksums);
    Ok(S3Response::new(PutObjectOutput {
        checksum_crc32: shown.crc32,
        checksum_crc32c: shown.crc32c,
        checksum_crc64nvme: shown.crc64nvme,
        checksum_sha1: shown.sha1,
        checksum_sha256: shown.sha256,
        checksum_type: checksums
            .first()
            .map(|one| ChecksumType::from_static(checksum::kind_name(one.kind))),
        e_tag: Some(map::etag(receipt.version.as_str())),
        ..Default::default()
    }))
}

fn write_request(input: PutObjectInput, headers: &HeaderMap, verifier: &Verifier) -> S3Result<WriteRequest> {
    let given = GivenHeaders {
        content_type: input.content_type,
        content_encoding: input.content_encoding,
        content_language: input.content_language,
        content_disposition: input.content_disposition,
        cache_control: input.cache_control,
        expires: input.expires,
        metadata: input.metadata,
    };
    Ok(WriteRequest {
        attributes: given.into_attributes()?,
        tags: attributes::parse_tagging_header(input.tagging.as_deref())?,
        condition: map::write_condition(input.if_match.as_ref(), input.if_none_match.as_ref())?,
        bytes: Some(body_bytes(input.content_length, headers, OBJECT_BYTES_MAX)?),
        md5: parse_md5(input.content_md5.as_deref())?,
        checksums: verifier.announced(),
        late_checksums: verifier.has_trailer(),
        content: None,
    })
}

/// Pushes the body; returns its checksums, compared with what was announced.
async fn stream_body(
    body: Option<StreamingBlob>,
    mut verifier: Verifier,
    write: &mut ObjectWrite,
    extensions: &Extensions,
) -> Result<Vec<ObjectChecksum>, Error> {
    if let Some(mut body) = body {
        while let Some(chunk) = body.next().await {
            let chunk = chunk.map_err(|error| body_error(&error, extensions))?;
            verifier.update(&chunk);
            write.push(chunk).await?;
        }
    }
    verifier.finish()
}

/// The announced size of a body; S3 wants to know it. A client that sends an aws-chunked body in HTTP chunks
/// has no `Content-Length`, only the length of what is inside.
pub(crate) fn body_bytes(content_length: Option<i64>, headers: &HeaderMap, bytes_max: u64) -> S3Result<u64> {
    let decoded = headers
        .get("x-amz-decoded-content-length")
        .and_then(|length| length.to_str().ok()?.parse().ok());
    let Some(length) = content_length.or(decoded) else {
        return Err(s3_error!(
            MissingContentLength,
            "the Content-Length header is needed"
        ));
    };
    let bytes =
        u64::try_from(length).map_err(|_| s3_error!(InvalidArgument, "Content-Length is negative"))?;
    if bytes > bytes_max {
        return Err(s3_error!(
            EntityTooLarge,
            "the body is larger than the {bytes_max} bytes that are allowed"
        ));
    }
    Ok(bytes)
}

/// `Content-MD5`.
pub(crate) fn parse_md5(header: Option<&str>) -> S3Result<Option<[u8; 16]>> {
    let Some(text) = header else { return Ok(None) };
    let digest = BASE64
        .decode(text)
        .ok()
        .and_then(|digest| <[u8; 16]>::try_from(digest).ok());
    digest
        .map(Some)
        .ok_or_else(|| s3_error!(InvalidDigest, "Content-MD5 must be 16 bytes in base64"))
}

/// Why a body ended early: the client's connection, its signature, its framing.
///
/// The errors of `s3s`'s streams have no public type, so they are told apart by their text (pinned by tests).
pub(crate) fn body_error(error: &StdError, extensions: &Extensions) -> Error {
    let fault = RequestContext::of(extensions).and_then(|context| context.read(|notes| notes.body_fault));
    let text = error.to_string();
    let (code, message) = match fault {
        Some(BodyFault::Stalled) => ("RequestTimeout", "the request body came too slowly"),
        Some(BodyFault::NoRoom) => ("SlowDown", "too much is in flight; try again in a second"),
        Some(BodyFault::TooLong) => ("MaxMessageLengthExceeded", "the request body is too long"),
        Some(BodyFault::Broken) => ("IncompleteBody", "the request body broke off"),
        None if text.contains("Sha256Mismatch") => (
            "XAmzContentSHA256Mismatch",
            "the body does not match x-amz-content-sha256",
        ),
        None if text.contains("SignedChunkTooLarge") => (
            "InvalidRequest",
            "a signed chunk may have at most 16 MiB; send smaller chunks",
        ),
        None if text.contains("SignatureMismatch") => (
            "SignatureDoesNotMatch",
            "a chunk of the body does not match its signature",
        ),
        None if text.contains("Incomplete") || text.contains("LengthMismatch") => {
            ("IncompleteBody", "the body has another length than was announced")
        }
        None => ("InvalidRequest", "the framing of the request body is wrong"),
    };
    Error::new(Kind::InvalidInput, message)
        .with("code", code)
        .caused_by(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_must_be_known_and_sane() {
        assert_eq!(
            body_bytes(None, &HeaderMap::new(), 10)
                .unwrap_err()
                .code()
                .as_str(),
            "MissingContentLength"
        );
        assert_eq!(
            body_bytes(Some(-1), &HeaderMap::new(), 10)
                .unwrap_err()
                .code()
                .as_str(),
            "InvalidArgument"
        );
        assert_eq!(
            body_bytes(Some(11), &HeaderMap::new(), 10)
                .unwrap_err()
                .code()
                .as_str(),
            "EntityTooLarge"
        );
        assert_eq!(body_bytes(Some(10), &HeaderMap::new(), 10).unwrap(), 10);
        let chunked = HeaderMap::from_iter([(
            http::HeaderName::from_static("x-amz-decoded-content-length"),
            http::HeaderValue::from_static("7"),
        )]);
        assert_eq!(body_bytes(None, &chunked, 10).unwrap(), 7);
    }

    #[test]
    fn content_md5_must_be_a_digest() {
        assert_eq!(parse_md5(None).unwrap(), None);
        assert!(parse_md5(Some("1B2M2Y8AsgTpgAmY7PhCfg==")).unwrap().is_some());
        assert_eq!(
            parse_md5(Some("abc")).unwrap_err().code().as_str(),
            "InvalidDigest"
        );
        assert_eq!(parse_md5(Some("")).unwrap_err().code().as_str(), "InvalidDigest");
    }
}
