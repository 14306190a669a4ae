//! Signed S3 requests with retries.
//!
//! A [`Call`] is everything about one request that does not change between tries. `call` sends it when the lake's
//! [`Admission`] lets it, turns every answer that is not a success into an error, and tries again what may be
//! tried again: an idempotent request after any passing failure, a conditional write only when the lake cannot
//! have acted on it. Streams are sent once, because their bytes are gone. A read of the scheduler was admitted by
//! it, and goes out at once.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use forebay_core::{Clock, Error, Kind, Result, SystemClock};
use forebay_net::ClientTls;
use http::header::{HeaderValue, SERVER, USER_AGENT};
use http::{HeaderMap, Method, Request, Response, Uri};
use hyper::body::Incoming;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::error::from_answer;
use super::sign::{CanonicalRequest, Signer, UNSIGNED_PAYLOAD, sha256_hex};
use crate::admission::{Admission, Repeat};
use crate::backend::s3::credentials::Credentials;
use crate::backend::s3::http::{Failure, HttpClient, RequestBody, Tls, answer_text};
use crate::backend::s3::route::Proxy;
use crate::layer::clean_keys::{TAKES_KEYS_FOR_PATHS, is_clean_path};
use crate::schedule::{FetchPriority, FetchUrgency};
use crate::{AddressStyle, ByteStream};

/// An error answer longer than this is cut off by refusing to read it.
const ERROR_BYTES_MAX: usize = 64 << 10;

const QUERY: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');
const PATH: &AsciiSet = &QUERY.remove(b'/');

/// Endpoint, region and name of a bucket.
#[derive(Debug, Clone)]
pub(crate) struct BucketLocation {
    /// `http://host:port`, without a path.
    pub(crate) endpoint: Uri,
    pub(crate) region: String,
    pub(crate) bucket: String,
    pub(crate) style: AddressStyle,
}

/// Condition under which a request may be sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RetryMode {
    /// Sent once; the caller has its own admission and retries.
    Never,
    /// Only when the lake cannot have acted on it.
    IfNotApplied,
    /// After any passing failure.
    Always,
}

/// One request.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    pub(crate) method: Method,
    /// `None` addresses the bucket.
    pub(crate) key: Option<&'a str>,
    pub(crate) query: Vec<(&'static str, String)>,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Vec<Bytes>,
    pub(crate) retry_mode: RetryMode,
    /// Meaning of status 412 here.
    pub(crate) on_412: Kind,
}

impl<'a> Call<'a> {
    pub(crate) fn new(method: Method, key: Option<&'a str>) -> Self {
        Self {
            method,
            key,
            query: Vec::new(),
            headers: HeaderMap::new(),
            body: Vec::new(),
            retry_mode: RetryMode::Always,
            on_412: Kind::PreconditionFailed,
        }
    }

    /// The key, or the prefix of a listing: the lake may have a pace of its own for each.
    fn place(&self) -> &str {
        let prefix = self.query.iter().find(|(name, _)| *name == "prefix");
        self.key
            .or(prefix.map(|(_, prefix)| prefix.as_str()))
            .unwrap_or_default()
    }

    pub(crate) fn query(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.query.push((name, value.into()));
        self
    }
}

/// A client of one bucket.
pub(crate) struct S3Client {
    location: BucketLocation,
    host: String,
    credentials: Credentials,
    signer: Signer,
    http: HttpClient,
    clock: SystemClock,
    admission: Arc<Admission>,
    normalizes_keys: AtomicBool,
}

impl fmt::Debug for S3Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("S3Client")
            .field("location", &self.location)
            .finish_non_exhaustive()
    }
}

impl S3Client {
    pub(crate) fn new(
        location: BucketLocation,
        credentials: Credentials,
        tls: &ClientTls,
        admission: Arc<Admission>,
    ) -> Result<Self> {
        let tls = match location.endpoint.scheme_str() {
            Some("https") if *tls == ClientTls::default() => Tls::Machine,
            Some("https") => Tls::Given(tls.clone()),
            _ => Tls::None,
        };
        let authority = location
            .endpoint
            .authority()
            .map(ToString::to_string)
            .unwrap_or_default();
        let host = match location.style {
            AddressStyle::Path => authority,
            AddressStyle::Virtual => format!("{}.{authority}", location.bucket),
        };
        let signer = Signer::new(location.region.clone());
        let scheme = location.endpoint.scheme_str().unwrap_or("http");
        let lake = format!("{scheme}://{host}")
            .parse()
            .map_err(|why: http::uri::InvalidUri| {
                Error::new(Kind::InvalidInput, "the endpoint of the lake is not a URL").caused_by(why)
            })?;
        let proxy = Proxy::from_env(&lake)?;
        Ok(Self {
            location,
            host,
            credentials,
            signer,
            http: HttpClient::new(tls, proxy)?,
            clock: SystemClock::new(),
            admission,
            normalizes_keys: AtomicBool::new(false),
        })
    }

    /// Sends a request until it succeeds or may not be sent again. Cancel-safe as far as the request is.
    pub(crate) async fn call(&self, call: &Call<'_>) -> Result<Response<Incoming>> {
        if call.retry_mode == RetryMode::Never {
            let answer = self.send(call, RequestBody::chunks(&call.body), None).await;
            return answer.map_err(|failure| failure.error);
        }
        let mut attempts = self.admission.attempts(call.place());
        let urgency = FetchUrgency::from(FetchPriority::Demand);
        loop {
            let permit = attempts.enter(&urgency).await?;
            let failure = match self.send(call, RequestBody::chunks(&call.body), None).await {
                Ok(response) => {
                    attempts.answered();
                    attempts.succeeded();
                    return Ok(response);
                }
                Err(failure) => failure,
            };
            drop(permit);
            let repeat = match call.retry_mode {
                RetryMode::IfNotApplied if failure.maybe_applied => Repeat::No,
                RetryMode::IfNotApplied | RetryMode::Always => Repeat::Yes,
                RetryMode::Never => Repeat::No,
            };
            let shown = failure.error.share();
            attempts.failed(failure.error, repeat)?;
            let failures = attempts.failures();
            tracing::debug!(failures, method = %call.method, error = ?shown, "lake request failed, trying again");
            attempts.backoff().await;
        }
    }

    /// Sends a body of known size that can be read only once.
    pub(crate) async fn call_streaming(
        &self,
        call: &Call<'_>,
        bytes: u64,
        body: ByteStream,
    ) -> Result<Response<Incoming>> {
        let mut attempts = self.admission.attempts(call.place());
        attempts.enter_without_permit().await?;
        let body = RequestBody::stream(bytes, body);
        match self.send(call, body, Some(UNSIGNED_PAYLOAD)).await {
            Ok(response) => {
                attempts.answered();
                Ok(response)
            }
            Err(failure) => match attempts.failed(failure.error, Repeat::No) {
                Err(error) => Err(error),
                Ok(()) => Err(Error::new(
                    Kind::Internal,
                    "a body that is gone was to be sent again",
                )),
            },
        }
    }

    async fn send(
        &self,
        call: &Call<'_>,
        body: RequestBody,
        payload: Option<&str>,
    ) -> Result<Response<Incoming>, Failure> {
        let not_sent = |error| Failure {
            error,
            maybe_applied: false,
        };
        let request = self.request(call, body, payload).await.map_err(not_sent)?;
        let response = self.http.send(request).await?;
        if response
            .headers()
            .get(SERVER)
            .is_some_and(|server| server.as_bytes().starts_with(b"SeaweedFS"))
        {
            self.normalizes_keys.store(true, Ordering::Relaxed);
        }
        if response.status().is_success() {
            return Ok(response);
        }
        let (head, body) = response.into_parts();
        let text = answer_text(body, ERROR_BYTES_MAX).await.unwrap_or_default();
        let error = from_answer(head.status, &head.headers, &text, call.on_412);
        // These say that nothing was done; a 500 or a gateway's timeout does not.
        let maybe_applied = matches!(error.kind(), Kind::Unavailable | Kind::Timeout);
        Err(Failure { error, maybe_applied })
    }

    async fn request(
        &self,
        call: &Call<'_>,
        body: RequestBody,
        payload: Option<&str>,
    ) -> Result<Request<RequestBody>> {
        self.check_key(call)?;
        let path = self.path(call.key);
        let query = query_text(&call.query);
        let mut headers = call.headers.clone();
        if let Some(keys) = self.credentials.keys().await? {
            let payload = payload.map_or_else(|| self.payload(&call.body), str::to_owned);
            let what = CanonicalRequest {
                method: &call.method,
                host: &self.host,
                path: &path,
                query: &query,
                payload: &payload,
            };
            let now = jiff::Timestamp::try_from(self.clock.wall()).map_err(|why| {
                Error::new(Kind::Internal, "the clock of this machine is off").caused_by(why)
            })?;
            self.signer.sign(&keys, now, &what, &mut headers)?;
        }
        headers.insert(
            USER_AGENT,
            HeaderValue::from_static(concat!("forebay/", env!("CARGO_PKG_VERSION"))),
        );
        let scheme = self.location.endpoint.scheme_str().unwrap_or("http");
        let mark = if query.is_empty() { "" } else { "?" };
        let uri = format!("{scheme}://{}{path}{mark}{query}", self.host);
        let mut request = Request::new(body);
        *request.method_mut() = call.method.clone();
        *request.uri_mut() = uri.parse().map_err(|why: http::uri::InvalidUri| {
            Error::new(Kind::InvalidInput, "the key does not fit in a URL").caused_by(why)
        })?;
        *request.headers_mut() = headers;
        Ok(request)
    }

    /// Returns whether the server said that it is one which takes keys for paths: it lists folder by folder
    /// and folds `a//b` and `a\\b` to `a/b`.
    pub(crate) fn normalizes_keys(&self) -> bool {
        self.normalizes_keys.load(Ordering::Relaxed)
    }

    /// A key that such a server would take for another one is refused, or is just not there.
    fn check_key(&self, call: &Call<'_>) -> Result<()> {
        let key = call.key.unwrap_or_default();
        if !self.normalizes_keys() || is_clean_path(key) {
            return Ok(());
        }
        match call.method {
            Method::GET | Method::HEAD | Method::DELETE => Err(Error::new(Kind::NotFound, "not in the lake")),
            _ => Err(Error::new(Kind::InvalidInput, TAKES_KEYS_FOR_PATHS)),
        }
    }

    /// TLS protects a body on its way; without it the signature does.
    fn payload(&self, body: &[Bytes]) -> String {
        if self.location.endpoint.scheme_str() == Some("https") && !body.is_empty() {
            return UNSIGNED_PAYLOAD.to_owned();
        }
        sha256_hex(body)
    }

    fn path(&self, key: Option<&str>) -> String {
        let key = utf8_percent_encode(key.unwrap_or_default(), PATH);
        match self.location.style {
            AddressStyle::Path => format!("/{}/{key}", self.location.bucket),
            AddressStyle::Virtual => format!("/{key}"),
        }
    }

    /// The value of `x-amz-copy-source`.
    pub(crate) fn copy_source(&self, key: &str) -> String {
        format!("/{}/{}", self.location.bucket, utf8_percent_encode(key, PATH))
    }
}

fn query_text(query: &[(&'static str, String)]) -> String {
    let mut sorted: Vec<_> = query.iter().collect();
    sorted.sort();
    let pairs: Vec<String> = sorted
        .iter()
        .map(|(name, value)| format!("{name}={}", utf8_percent_encode(value, QUERY)))
        .collect();
    pairs.join("&")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_sorted_by_name_and_escaped() {
        let query = [
            ("prefix", "a b/+".to_owned()),
            ("list-type", "2".to_owned()),
            ("delimiter", "/".to_owned()),
        ];
        assert_eq!(query_text(&query), "delimiter=%2F&list-type=2&prefix=a%20b%2F%2B");
    }
}
