//! From S3's answers to our kinds, once.

use bytes::Bytes;
use forebay_core::{Error, Kind};
use http::{HeaderMap, StatusCode, header};

use super::xml;

/// Makes the error of an answer; `on_412` is the meaning of a failed condition here.
pub(crate) fn from_answer(status: StatusCode, headers: &HeaderMap, body: &Bytes, on_412: Kind) -> Error {
    let found = xml::error_in(body).unwrap_or_default();
    let kind = kind_of(status, &found.code, on_412);
    let message = match kind {
        Kind::NotFound if found.code == "NoSuchBucket" => "the bucket does not exist in the lake".to_owned(),
        Kind::NotFound => "not in the lake".to_owned(),
        Kind::AlreadyExists => "already in the lake".to_owned(),
        Kind::Changed => "the object has another version now".to_owned(),
        Kind::PreconditionFailed => "the object is not the one the condition names".to_owned(),
        Kind::Throttled => "the lake asks us to slow down".to_owned(),
        Kind::Denied => "the lake refuses access; check the keys and their permissions".to_owned(),
        Kind::InvalidInput if status.is_redirection() || found.code == "AuthorizationHeaderMalformed" => {
            wrong_region(headers)
        }
        _ => "the lake refused the request".to_owned(),
    };
    let mut error = Error::new(kind, message).with("status", status.as_u16());
    if !found.code.is_empty() {
        error = error.with("lake_code", &found.code);
    }
    if !found.message.is_empty() {
        error = error.with("answer", &found.message);
    }
    if let Some(seconds) = headers.get(header::RETRY_AFTER).and_then(seconds) {
        error = error.with("retry_after_s", seconds);
    }
    if let Some(id) = headers.get("x-amz-request-id").and_then(|id| id.to_str().ok()) {
        error = error.with("request", id);
    }
    error
}

/// `Retry-After` in seconds; the form with a date is not used by object stores.
fn seconds(value: &http::HeaderValue) -> Option<u64> {
    value.to_str().ok()?.trim().parse().ok()
}

fn wrong_region(headers: &HeaderMap) -> String {
    match headers
        .get("x-amz-bucket-region")
        .and_then(|region| region.to_str().ok())
    {
        Some(region) => format!("the bucket is in another region; add ?region={region} to the lake's URL"),
        None => {
            "the bucket is behind another endpoint or region; set ?endpoint= or ?region= in the lake's URL"
                .to_owned()
        }
    }
}

fn kind_of(status: StatusCode, code: &str, on_412: Kind) -> Kind {
    match code {
        "SlowDown" | "Throttling" | "ThrottlingException" | "RequestLimitExceeded" | "TooManyRequests" => {
            Kind::Throttled
        }
        "BadDigest" | "InvalidDigest" | "XAmzContentSHA256Mismatch" => Kind::Checksum,
        "RequestTimeout" | "InternalError" => Kind::Unavailable,
        "AuthorizationHeaderMalformed" => Kind::InvalidInput,
        "InvalidRange" => Kind::OutOfRange,
        "PreconditionFailed" => on_412,
        _ => match status.as_u16() {
            401 | 403 => Kind::Denied,
            404 => Kind::NotFound,
            409 => Kind::Conflict,
            412 => on_412,
            416 => Kind::OutOfRange,
            429 | 503 => Kind::Throttled,
            501 => Kind::Unsupported,
            507 => Kind::NoSpace,
            408 | 500..=599 => Kind::Unavailable,
            300..=499 => Kind::InvalidInput,
            // 200 with an error inside.
            _ => Kind::Unavailable,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_become_the_kinds_that_callers_branch_on() {
        let kind =
            |status: u16, code: &str| kind_of(StatusCode::from_u16(status).unwrap(), code, Kind::Changed);
        assert_eq!(kind(404, "NoSuchKey"), Kind::NotFound);
        assert_eq!(kind(412, "PreconditionFailed"), Kind::Changed);
        assert_eq!(kind(409, "ConditionalRequestConflict"), Kind::Conflict);
        assert_eq!(kind(429, ""), Kind::Throttled);
        assert_eq!(kind(503, "SlowDown"), Kind::Throttled);
        assert_eq!(kind(503, "InternalError"), Kind::Unavailable);
        assert_eq!(kind(500, ""), Kind::Unavailable);
        assert_eq!(kind(403, "AccessDenied"), Kind::Denied);
        assert_eq!(kind(416, ""), Kind::OutOfRange);
        assert_eq!(kind(200, "InternalError"), Kind::Unavailable);
        assert_eq!(kind(400, "BadDigest"), Kind::Checksum);
        assert_eq!(kind(301, ""), Kind::InvalidInput);
    }

    #[test]
    fn a_wrong_region_says_which_one_is_right() {
        let mut headers = HeaderMap::new();
        headers.insert("x-amz-bucket-region", "eu-west-1".parse().unwrap());
        let error = from_answer(
            StatusCode::MOVED_PERMANENTLY,
            &headers,
            &Bytes::new(),
            Kind::Changed,
        );
        assert!(error.to_string().contains("?region=eu-west-1"), "{error}");
    }
}
