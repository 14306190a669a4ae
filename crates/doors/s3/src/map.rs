//! Engine values in S3's words: the one table from error kinds to S3 codes, and the small conversions.
//!
//! An error may name its S3 code itself (context `code`), where the kind says too little: `NoSuchUpload`,
//! `EntityTooSmall`. What an S3 lake calls its error (context `lake_code`) is passed on only where it is
//! about the client's request: a wrong key of ours for the lake must not look like a wrong key of the client.
//! Clients see the message; context and source, which may name the lake, go to the log.

use std::str::FromStr;
use std::time::SystemTime;

use forebay_core::{BucketName, Error, Kind, ObjectKey, Version};
use forebay_engine::{Conditions, DeleteCondition, WriteCondition};
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{Extensions, HeaderMap, HeaderValue, StatusCode};
use s3s::dto::{CopySource, ETag, ETagCondition, Owner, Timestamp};
use s3s::{S3Error, S3ErrorCode, S3Result, s3_error};

use crate::context::RequestContext;

/// Codes of an S3 lake that are about what the client sent.
const LAKE_CODES: [&str; 7] = [
    "EntityTooLarge",
    "EntityTooSmall",
    "InvalidPart",
    "InvalidPartOrder",
    "KeyTooLongError",
    "MetadataTooLarge",
    "NoSuchUpload",
];

/// The S3 code of an error, where nothing more is known about it.
pub(crate) fn code_of_kind(kind: Kind) -> S3ErrorCode {
    match kind {
        Kind::NotFound => S3ErrorCode::NoSuchKey,
        Kind::AlreadyExists | Kind::PreconditionFailed => S3ErrorCode::PreconditionFailed,
        Kind::InvalidInput => S3ErrorCode::InvalidArgument,
        Kind::OutOfRange => S3ErrorCode::InvalidRange,
        Kind::Denied => S3ErrorCode::AccessDenied,
        Kind::Unsupported => S3ErrorCode::NotImplemented,
        Kind::Busy | Kind::Throttled => S3ErrorCode::SlowDown,
        Kind::Changed | Kind::Unavailable | Kind::Timeout | Kind::Cancelled => {
            S3ErrorCode::ServiceUnavailable
        }
        Kind::Checksum => S3ErrorCode::BadDigest,
        Kind::NoSpace => S3ErrorCode::Custom("InsufficientStorage".into()),
        Kind::Conflict => S3ErrorCode::ConditionalRequestConflict,
        // Corrupt, Io, Internal, and kinds that do not exist yet.
        _ => S3ErrorCode::InternalError,
    }
}

fn code_of(error: &Error) -> S3ErrorCode {
    let context = |wanted: &str| {
        error
            .context()
            .find(|(name, _)| *name == wanted)
            .map(|(_, value)| value)
    };
    let of_lake = || context("lake_code").filter(|code| LAKE_CODES.contains(code));
    if let Some(code) = context("code").or_else(of_lake) {
        let Ok(code) = S3ErrorCode::from_str(code);
        return code;
    }
    match error.kind() {
        Kind::NotFound if context("upload").is_some() => S3ErrorCode::NoSuchUpload,
        Kind::NotFound if context("key").is_none() && context("bucket").is_some() => {
            S3ErrorCode::NoSuchBucket
        }
        // The lake refuses the node's keys, not the client's.
        Kind::Denied if context("lake").is_some() => S3ErrorCode::ServiceUnavailable,
        kind => code_of_kind(kind),
    }
}

/// An engine error as an answer; noted in the request's context and, if it is our fault, logged here once.
pub(crate) fn failure(error: &Error, extensions: &Extensions) -> S3Error {
    failure_as(error, code_of(error), extensions)
}

/// Like [`failure`], for a read: bytes that do not match are our problem, not the client's.
pub(crate) fn read_failure(error: &Error, extensions: &Extensions) -> S3Error {
    let code = if error.kind() == Kind::Checksum {
        S3ErrorCode::InternalError
    } else {
        code_of(error)
    };
    failure_as(error, code, extensions)
}

/// Like [`failure`], with the code chosen by the operation.
pub(crate) fn failure_as(error: &Error, code: S3ErrorCode, extensions: &Extensions) -> S3Error {
    let status = status_of(&code);
    let mut answer = S3Error::with_message(code, error.message().to_owned());
    answer.set_status_code(status);
    if status == StatusCode::SERVICE_UNAVAILABLE {
        let mut headers = HeaderMap::new();
        // Given headers replace all others, so the content type has to come along.
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/xml"));
        headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
        answer.set_headers(headers);
    }
    let context = RequestContext::of(extensions);
    if let Some(context) = context {
        context.update(|notes| notes.own_error = true);
    }
    if status.is_server_error() {
        let request_id = context.map_or("-", |context| context.id.as_str());
        tracing::warn!(request_id, status = status.as_u16(), error = ?error, "request failed");
    }
    answer
}

fn status_of(code: &S3ErrorCode) -> StatusCode {
    let status = match code.as_str() {
        "InsufficientStorage" => StatusCode::INSUFFICIENT_STORAGE,
        "XAmzContentSHA256Mismatch" | "MalformedTrailerError" | "RequestTimeout" => StatusCode::BAD_REQUEST,
        "InvalidPartNumber" => StatusCode::RANGE_NOT_SATISFIABLE,
        _ => return code.status_code().unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
    };
    code.status_code().unwrap_or(status)
}

/// The bucket's name, checked.
pub(crate) fn bucket(name: &str) -> S3Result<BucketName> {
    BucketName::new(name).map_err(|error| s3_error!(InvalidBucketName, "{}", error.message()))
}

/// The key, checked.
pub(crate) fn key(key: &str) -> S3Result<ObjectKey> {
    ObjectKey::new(key).map_err(|error| s3_error!(InvalidArgument, "{}", error.message()))
}

/// The key of an object that is to be written; ours are refused.
pub(crate) fn writable_key(text: &str) -> S3Result<ObjectKey> {
    let key = key(text)?;
    if key.is_reserved() {
        return Err(s3_error!(
            InvalidArgument,
            "keys under .forebay/ are kept for forebay itself; choose another"
        ));
    }
    Ok(key)
}

/// The key of an object that is to be read; ours do not exist.
pub(crate) fn readable_key(text: &str) -> S3Result<ObjectKey> {
    let key = key(text)?;
    if key.is_reserved() {
        return Err(s3_error!(NoSuchKey, "there is no such object"));
    }
    Ok(key)
}

/// There are no versions; only `null` names what is there.
pub(crate) fn refuse_version(version_id: Option<&str>) -> S3Result<()> {
    match version_id {
        None | Some("" | "null") => Ok(()),
        Some(_) => Err(s3_error!(
            NoSuchVersion,
            "objects here have no versions; leave the version id out"
        )),
    }
}

/// A version as an ETag; characters that a header cannot hold are left out.
pub(crate) fn etag(version: &str) -> ETag {
    ETag::Strong(
        version
            .chars()
            .filter(|c| c.is_ascii_graphic() && *c != '"')
            .collect(),
    )
}

/// A time in `s3s`'s type.
pub(crate) fn timestamp(time: SystemTime) -> Timestamp {
    Timestamp::from(time)
}

fn system_time(timestamp: &Timestamp) -> SystemTime {
    time::OffsetDateTime::from(timestamp.clone()).into()
}

fn etags(condition: &ETagCondition) -> Vec<String> {
    vec![
        condition
            .as_etag()
            .map_or_else(|| "*".to_owned(), |etag| etag.value().to_owned()),
    ]
}

/// The conditions of a read.
pub(crate) fn conditions(
    if_match: Option<&ETagCondition>,
    if_none_match: Option<&ETagCondition>,
    if_modified_since: Option<&Timestamp>,
    if_unmodified_since: Option<&Timestamp>,
) -> Conditions {
    Conditions {
        if_match: if_match.map(etags),
        if_none_match: if_none_match.map(etags),
        if_modified_since: if_modified_since.map(system_time),
        if_unmodified_since: if_unmodified_since.map(system_time),
    }
}

/// The condition of a write.
pub(crate) fn write_condition(
    if_match: Option<&ETagCondition>,
    if_none_match: Option<&ETagCondition>,
) -> S3Result<WriteCondition> {
    match (if_match, if_none_match) {
        (None, None) => Ok(WriteCondition::None),
        (None, Some(ETagCondition::Any)) => Ok(WriteCondition::Absent),
        (Some(ETagCondition::ETag(etag)), None) => Ok(WriteCondition::Version(Version::new(etag.value()))),
        (None, Some(_)) => Err(s3_error!(NotImplemented, "If-None-Match on a write takes only *")),
        (Some(ETagCondition::Any), None) => Err(s3_error!(
            NotImplemented,
            "If-Match on a write takes an ETag, not *"
        )),
        (Some(_), Some(_)) => Err(s3_error!(
            InvalidRequest,
            "give either If-Match or If-None-Match, not both"
        )),
    }
}

/// The condition of a delete.
pub(crate) fn delete_condition(if_match: Option<&ETagCondition>) -> DeleteCondition {
    match if_match {
        None => DeleteCondition::None,
        Some(ETagCondition::Any) => DeleteCondition::Exists,
        Some(ETagCondition::ETag(etag)) => DeleteCondition::Version(Version::new(etag.value())),
    }
}

/// Bucket and key of a copy's source.
pub(crate) fn copy_source(source: &CopySource) -> S3Result<(BucketName, ObjectKey)> {
    let CopySource::Bucket {
        bucket: name,
        key,
        version_id,
    } = source
    else {
        return Err(s3_error!(
            NotImplemented,
            "copy sources are given as <bucket>/<key>"
        ));
    };
    refuse_version(version_id.as_deref())?;
    Ok((bucket(name)?, readable_key(key)?))
}

/// The one owner of everything, as S3 clients expect one.
pub(crate) fn owner() -> Owner {
    Owner {
        display_name: Some("forebay".to_owned()),
        id: Some("forebay".to_owned()),
    }
}

/// A size in `s3s`'s type.
pub(crate) fn size(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lake_that_refuses_our_keys_is_not_the_clients_fault() {
        let refused = Error::new(Kind::Denied, "the lake refuses access").with("lake", "s3://x");
        let answer = failure(&refused, &Extensions::new());
        assert_eq!(answer.status_code().map(|status| status.as_u16()), Some(503));
    }

    #[test]
    fn every_kind_has_its_code_and_status() {
        let expected = [
            (Kind::NotFound, "NoSuchKey", 404),
            (Kind::AlreadyExists, "PreconditionFailed", 412),
            (Kind::PreconditionFailed, "PreconditionFailed", 412),
            (Kind::Changed, "ServiceUnavailable", 503),
            (Kind::InvalidInput, "InvalidArgument", 400),
            (Kind::OutOfRange, "InvalidRange", 416),
            (Kind::Denied, "AccessDenied", 403),
            (Kind::Unsupported, "NotImplemented", 501),
            (Kind::Busy, "SlowDown", 503),
            (Kind::Throttled, "SlowDown", 503),
            (Kind::Unavailable, "ServiceUnavailable", 503),
            (Kind::Timeout, "ServiceUnavailable", 503),
            (Kind::Checksum, "BadDigest", 400),
            (Kind::Corrupt, "InternalError", 500),
            (Kind::NoSpace, "InsufficientStorage", 507),
            (Kind::Conflict, "ConditionalRequestConflict", 409),
            (Kind::Cancelled, "ServiceUnavailable", 503),
            (Kind::Io, "InternalError", 500),
            (Kind::Internal, "InternalError", 500),
        ];
        assert_eq!(expected.map(|(kind, ..)| kind), Kind::ALL);
        for (kind, code, status) in expected {
            let answer = failure(&Error::new(kind, "x"), &Extensions::new());
            assert_eq!(answer.code().as_str(), code, "{kind}");
            assert_eq!(
                answer.status_code().map(|status| status.as_u16()),
                Some(status),
                "{kind}"
            );
        }
    }

    #[test]
    fn missing_bucket_upload_and_key_are_told_apart() {
        let code = |error: Error| failure(&error, &Extensions::new()).code().as_str().to_owned();
        let missing = || Error::new(Kind::NotFound, "x").with("bucket", "b");
        assert_eq!(code(missing()), "NoSuchBucket");
        assert_eq!(code(missing().with("key", "k")), "NoSuchKey");
        assert_eq!(
            code(missing().with("key", "k").with("upload", "u")),
            "NoSuchUpload"
        );
        assert_eq!(
            code(Error::new(Kind::InvalidInput, "x").with("code", "EntityTooSmall")),
            "EntityTooSmall"
        );
    }

    #[test]
    fn a_lakes_trouble_with_our_keys_is_not_the_clients() {
        let answer = |kind, code| {
            let error = Error::new(kind, "x").with("lake_code", code);
            let answer = failure(&error, &Extensions::new());
            (
                answer.code().as_str().to_owned(),
                answer.status_code().map(|status| status.as_u16()),
            )
        };
        assert_eq!(
            answer(Kind::Denied, "InvalidAccessKeyId"),
            ("AccessDenied".to_owned(), Some(403))
        );
        assert_eq!(
            answer(Kind::Throttled, "ThrottlingException"),
            ("SlowDown".to_owned(), Some(503))
        );
        assert_eq!(
            answer(Kind::InvalidInput, "InvalidPart"),
            ("InvalidPart".to_owned(), Some(400))
        );
    }

    #[test]
    fn named_codes_have_a_status_of_their_own() {
        for name in [
            "EntityTooSmall",
            "InvalidPart",
            "InvalidPartOrder",
            "IncompleteBody",
            "RequestTimeout",
        ] {
            let answer = failure(
                &Error::new(Kind::InvalidInput, "x").with("code", name),
                &Extensions::new(),
            );
            assert_eq!(answer.status_code(), Some(StatusCode::BAD_REQUEST), "{name}");
        }
    }

    #[test]
    fn corrupt_reads_are_not_the_clients_fault() {
        let answer = read_failure(&Error::new(Kind::Checksum, "x"), &Extensions::new());
        assert_eq!(answer.status_code(), Some(StatusCode::INTERNAL_SERVER_ERROR));
    }

    #[test]
    fn overload_says_when_to_come_back() {
        let answer = failure(&Error::new(Kind::Busy, "x"), &Extensions::new());
        assert_eq!(answer.headers().unwrap()[RETRY_AFTER], "1");
    }

    #[test]
    fn context_stays_inside() {
        let error = Error::new(Kind::Unavailable, "lake is away").with("lake", "s3://secret-place");
        let answer = failure(&error, &Extensions::new());
        assert_eq!(answer.message(), Some("lake is away"));
    }

    #[test]
    fn write_conditions_are_all_or_one_etag() {
        let etag = ETagCondition::ETag(etag("abc"));
        assert_eq!(
            write_condition(None, Some(&ETagCondition::Any)).unwrap(),
            WriteCondition::Absent
        );
        assert_eq!(
            write_condition(Some(&etag), None).unwrap(),
            WriteCondition::Version(Version::new("abc"))
        );
        assert!(write_condition(None, Some(&etag)).is_err());
        assert!(write_condition(Some(&etag), Some(&ETagCondition::Any)).is_err());
    }

    #[test]
    fn our_own_documents_cannot_be_reached() {
        assert_eq!(
            writable_key(".forebay/x").unwrap_err().code().as_str(),
            "InvalidArgument"
        );
        assert_eq!(
            readable_key(".forebay/x").unwrap_err().code().as_str(),
            "NoSuchKey"
        );
    }
}
