//! One signed request to the S3 endpoint of a node, and what its refusals mean.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::time::SystemTime;

use forebay_core::{Clock, Error, Kind, Result};
use forebay_sigv4::{CanonicalRequest, SigningKey, UNSIGNED_PAYLOAD, sha256_hex};
use jiff::Timestamp;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;

use super::Remote;
use super::http::{Head, HttpConnection};

/// Everything but what RFC 3986 calls unreserved.
const QUERY: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'~');

/// The same for a path, where slashes stay.
const PATH: &AsciiSet = &QUERY.remove(b'/');

/// The longest document that is not the content of an object: a page of a listing.
pub(super) const DOCUMENT_BYTES_MAX: usize = 32 << 20;

/// A request.
pub(super) struct Request<'a> {
    pub(super) method: &'static str,
    /// Percent-encoded.
    path: String,
    /// Percent-encoded.
    query: String,
    /// Names in lower case.
    headers: Vec<(Cow<'a, str>, String)>,
    body: &'a [u8],
    /// The hash of the body is signed; for small ones, since it costs a pass over them.
    signs_body: bool,
    /// Sending it twice is as good as once.
    pub(super) is_idempotent: bool,
}

impl<'a> Request<'a> {
    /// For a path that is not yet encoded.
    pub(super) fn new(method: &'static str, path: &str) -> Self {
        Self {
            method,
            path: utf8_percent_encode(path, PATH).to_string(),
            query: String::new(),
            headers: Vec::new(),
            body: &[],
            signs_body: true,
            is_idempotent: true,
        }
    }

    /// With a query; pairs must come sorted by name.
    pub(super) fn query(mut self, pairs: &[(&str, &str)]) -> Self {
        let encoded = |text| utf8_percent_encode(text, QUERY);
        let pairs = pairs
            .iter()
            .map(|(name, value)| format!("{}={}", encoded(name), encoded(value)));
        self.query = pairs.collect::<Vec<_>>().join("&");
        self
    }

    pub(super) fn header(mut self, name: impl Into<Cow<'a, str>>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    pub(super) fn body(mut self, body: &'a [u8]) -> Self {
        self.body = body;
        self
    }

    /// The body's hash is not signed; it should have a checksum header.
    pub(super) fn unsigned_body(mut self) -> Self {
        self.signs_body = false;
        self
    }

    pub(super) fn once(mut self) -> Self {
        self.is_idempotent = false;
        self
    }

    /// The head as it goes over the wire.
    fn head(&self, remote: &Remote, now: SystemTime) -> Result<String> {
        let now = Timestamp::try_from(now)
            .map_err(|why| Error::new(Kind::Internal, "the clock of this machine is wrong").caused_by(why))?;
        let date = now.strftime("%Y%m%dT%H%M%SZ").to_string();
        let payload = if self.signs_body {
            sha256_hex(self.body)
        } else {
            UNSIGNED_PAYLOAD.to_owned()
        };
        let mut headers: Vec<(&str, &str)> = vec![("host", &remote.host)];
        headers.extend(self.headers.iter().map(|(name, value)| (&**name, value.as_str())));
        check_headers(&headers)?;
        let authorization = remote.credentials.as_ref().map(|keys| {
            headers.extend([
                ("x-amz-content-sha256", payload.as_str()),
                ("x-amz-date", date.as_str()),
            ]);
            let day = date.split('T').next().unwrap_or_default();
            let key = SigningKey::new(&keys.access_key_id, &keys.secret_access_key, day, &remote.region);
            let what = CanonicalRequest {
                method: self.method,
                path: &self.path,
                query: &self.query,
                headers: &headers,
                payload: &payload,
            };
            key.authorization(&date, &what)
        });
        let mark = if self.query.is_empty() { "" } else { "?" };
        let mut head = format!("{} {}{mark}{} HTTP/1.1\r\n", self.method, self.path, self.query);
        let length = self.body.len().to_string();
        let unsigned = [("content-length", Some(length)), ("authorization", authorization)];
        for (name, value) in &headers {
            let _ = write!(head, "{name}: {value}\r\n");
        }
        for (name, value) in unsigned
            .iter()
            .filter_map(|(name, value)| value.as_ref().map(|value| (name, value)))
        {
            let _ = write!(head, "{name}: {value}\r\n");
        }
        head.push_str("\r\n");
        Ok(head)
    }
}

impl Remote {
    /// Sends a request and gives back its answer if it is a good one; the connection has the body.
    pub(super) fn ask(&self, request: &Request<'_>) -> Result<(Head, HttpConnection)> {
        loop {
            let (mut connection, is_fresh) = self.take()?;
            let head = request.head(self, self.clock.wall())?;
            let sent = connection.send(head.as_bytes(), request.body, &self.options);
            let answer = sent.and_then(|()| connection.head(request.method == "HEAD", &self.options));
            match answer {
                Ok(head) if (200..300).contains(&head.status) => return Ok((head, connection)),
                Ok(head) => return Err(self.refusal(&head, connection)),
                // A kept connection that the node closed meanwhile.
                Err(error)
                    if error.kind() == Kind::Unavailable
                        && !is_fresh
                        && !connection.answered
                        && request.is_idempotent => {}
                Err(error) => return Err(error.with("address", &self.host)),
            }
        }
    }

    /// A request whose answer is a document.
    pub(super) fn document(&self, request: &Request<'_>) -> Result<(Head, Vec<u8>)> {
        let (head, mut connection) = self.ask(request)?;
        let body = connection.whole_body(DOCUMENT_BYTES_MAX, &self.options)?;
        self.keep(connection);
        Ok((head, body))
    }

    fn refusal(&self, head: &Head, mut connection: HttpConnection) -> Error {
        let body = connection.whole_body(1 << 20, &self.options).unwrap_or_default();
        self.keep(connection);
        let text = String::from_utf8_lossy(&body);
        let said: ErrorBody = quick_xml::de::from_str(&text).unwrap_or_default();
        let kind = kind_of(head.status, &said.code);
        let message = if said.message.is_empty() {
            meaning(kind).to_owned()
        } else {
            said.message
        };
        let error = Error::new(kind, message).with("status", head.status);
        if said.code.is_empty() {
            error
        } else {
            error.with("code", said.code)
        }
    }
}

/// Names come from metadata of the caller, so neither they nor values may end a header and begin another.
fn check_headers(headers: &[(&str, &str)]) -> Result<()> {
    let is_name = |name: &str| {
        name.bytes()
            .all(|c| c.is_ascii_alphanumeric() || b"-_.".contains(&c))
    };
    if let Some((name, _)) = headers.iter().find(|(name, _)| !is_name(name)) {
        let message = "a name of metadata may only have letters, digits, '-', '_' and '.'";
        return Err(Error::new(Kind::InvalidInput, message).with("name", name.escape_debug()));
    }
    if headers
        .iter()
        .any(|(_, value)| value.contains(['\r', '\n', '\0']))
    {
        return Err(Error::new(Kind::InvalidInput, "a header has a line break in it"));
    }
    Ok(())
}

/// `<Error>`.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct ErrorBody {
    code: String,
    message: String,
}

/// The failure that a good answer turned out to be: some start before their end is known.
pub(super) fn failure_in(body: &[u8]) -> Option<Error> {
    let text = String::from_utf8_lossy(body);
    let start = text.find("<Error>")?;
    let said: ErrorBody = quick_xml::de::from_str(&text[start..]).unwrap_or_default();
    let status = match said.code.as_str() {
        "PreconditionFailed" => 412,
        "NoSuchUpload" | "NoSuchKey" | "NoSuchBucket" => 404,
        "ConditionalRequestConflict" | "OperationAborted" => 409,
        "AccessDenied" => 403,
        "SlowDown" | "ServiceUnavailable" => 503,
        "NotImplemented" => 501,
        "InternalError" => 500,
        _ => 400,
    };
    let error = Error::new(kind_of(status, &said.code), said.message);
    Some(error.with("code", said.code))
}

fn kind_of(status: u16, code: &str) -> Kind {
    match (status, code) {
        (_, "BucketAlreadyExists" | "BucketAlreadyOwnedByYou") => Kind::AlreadyExists,
        (_, "BadDigest" | "XAmzContentChecksumMismatch") => Kind::Checksum,
        (_, "RequestTimeout") | (408 | 504, _) => Kind::Timeout,
        (_, "QuotaExceeded" | "InsufficientStorage") | (507, _) => Kind::NoSpace,
        (400, _) => Kind::InvalidInput,
        (401 | 403, _) => Kind::Denied,
        (404, _) => Kind::NotFound,
        (409, _) => Kind::Conflict,
        (412, _) => Kind::PreconditionFailed,
        (416, _) => Kind::OutOfRange,
        (429 | 503, _) => Kind::Busy,
        (405 | 501, _) => Kind::Unsupported,
        (500..=599, _) => Kind::Unavailable,
        _ => Kind::InvalidInput,
    }
}

/// Returns what to say when the answer says nothing (answers to `HEAD` have no body).
fn meaning(kind: Kind) -> &'static str {
    match kind {
        Kind::NotFound => "there is no such object or bucket",
        Kind::Denied => {
            "the node refused the request; check FOREBAY_ACCESS_KEY_ID and FOREBAY_SECRET_ACCESS_KEY"
        }
        Kind::PreconditionFailed => "the condition does not hold",
        Kind::Busy => "the node is busy; try again later",
        _ => "the node refused the request",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_queries_are_encoded_as_s3_wants_it() {
        let request =
            Request::new("GET", "/bucket/a b+c/ü$").query(&[("list-type", "2"), ("prefix", "a/b c")]);
        assert_eq!(request.path, "/bucket/a%20b%2Bc/%C3%BC%24");
        assert_eq!(request.query, "list-type=2&prefix=a%2Fb%20c");
    }

    #[test]
    fn neither_a_name_nor_a_value_begins_another_header() {
        assert!(check_headers(&[("host", "a:1"), ("x-amz-meta-a_b.c", "any text: really")]).is_ok());
        let bad = [
            ("x-amz-meta-a: b\r\nx-evil", "1"),
            ("x-amz-meta-a", "1\r\nx-evil: 1"),
            ("x-amz-meta-a b", "1"),
        ];
        for header in bad {
            assert_eq!(
                check_headers(&[header]).unwrap_err().kind(),
                Kind::InvalidInput,
                "{header:?}"
            );
        }
    }

    #[test]
    fn a_failure_behind_a_good_status_is_found() {
        let body = b"<?xml version=\"1.0\"?>\n   <Error><Code>PreconditionFailed</Code><Message>no</Message></Error>";
        let failure = failure_in(body).unwrap();
        assert_eq!(failure.kind(), Kind::PreconditionFailed);
        assert!(failure_in(b"<CompleteMultipartUploadResult/>").is_none());
    }

    #[test]
    fn refusals_have_the_kind_of_their_status_or_code() {
        assert_eq!(kind_of(404, "NoSuchKey"), Kind::NotFound);
        assert_eq!(kind_of(412, "PreconditionFailed"), Kind::PreconditionFailed);
        assert_eq!(kind_of(503, "SlowDown"), Kind::Busy);
        assert_eq!(kind_of(400, "BadDigest"), Kind::Checksum);
        assert_eq!(kind_of(409, "BucketAlreadyOwnedByYou"), Kind::AlreadyExists);
        assert_eq!(kind_of(599, ""), Kind::Unavailable);
    }
}
