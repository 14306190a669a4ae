//! The HTTP client of the S3 lake: HTTP/1.1, a large pool of idle connections, bodies without copies.
//!
//! It is hyper's pooled client, not a URL-based one: a URL library folds `a/../b` to `b`, and both are
//! legal, different keys. Failures say whether the request can have reached the lake, because that decides
//! whether a conditional write may be sent again.

use std::collections::VecDeque;
use std::error::Error as _;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use forebay_core::{Error, Kind, Result};
use forebay_net::ClientTls;
use futures::StreamExt;
use http::header::PROXY_AUTHORIZATION;
use http::{Request, Response};
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};

use super::route::{Proxy, Route};
use crate::ByteStream;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
const IDLE_CONNECTIONS_MAX: usize = 256;
/// A request or answer that does not move for so long is given up.
const STALL_MAX: Duration = Duration::from_secs(60);

/// Why there is no answer.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) error: Error,
    /// Set if the lake can have acted on the request.
    pub(crate) maybe_applied: bool,
}

/// A pooled client.
#[derive(Debug, Clone)]
pub(crate) struct HttpClient {
    client: Client<HttpsConnector<Route>, RequestBody>,
    proxy: Option<Proxy>,
}

impl HttpClient {
    /// `tls` loads the machine's certificates; without it only `http` works. With a proxy all requests go
    /// through it.
    pub(crate) fn new(tls: Tls, proxy: Option<Proxy>) -> Result<Self> {
        let mut connector = HttpConnector::new();
        connector.enforce_http(false);
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
        connector.set_keepalive(Some(IDLE_TIMEOUT));
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = match tls {
            Tls::Machine => HttpsConnectorBuilder::new().with_provider_and_platform_verifier(provider),
            Tls::Given(tls) => {
                let mut config = tls.config()?;
                // The connector names the protocols itself, and this process does not fork.
                config.alpn_protocols.clear();
                config.resumption = rustls::client::Resumption::default();
                Ok(HttpsConnectorBuilder::new().with_tls_config(config))
            }
            Tls::None => rustls::ClientConfig::builder_with_provider(provider)
                .with_safe_default_protocol_versions()
                .map(|builder| {
                    builder
                        .with_root_certificates(rustls::RootCertStore::empty())
                        .with_no_client_auth()
                })
                .map(|config| HttpsConnectorBuilder::new().with_tls_config(config))
                .map_err(std::io::Error::other),
        };
        let builder = builder.map_err(|why| {
            Error::new(
                Kind::Unavailable,
                "cannot load the CA certificates of this machine; install ca-certificates",
            )
            .caused_by(why)
        })?;
        let client = Client::builder(TokioExecutor::new())
            .pool_idle_timeout(IDLE_TIMEOUT)
            .pool_timer(TokioTimer::new())
            .pool_max_idle_per_host(IDLE_CONNECTIONS_MAX)
            .build(builder.https_or_http().enable_http1().wrap_connector(Route {
                direct: connector,
                proxy: proxy.clone(),
            }));
        Ok(Self { client, proxy })
    }

    /// Sends a request and waits for the head of the answer. Cancel-safe.
    pub(crate) async fn send(
        &self,
        mut request: Request<RequestBody>,
    ) -> Result<Response<Incoming>, Failure> {
        // hyper leaves the length of an empty body out, and S3 answers 411 to a PUT without one.
        if matches!(*request.method(), http::Method::PUT | http::Method::POST) {
            let bytes = request.body().bytes_left.into();
            request.headers_mut().insert(http::header::CONTENT_LENGTH, bytes);
        }
        // A tunnel has said so already, and what goes through it is not for the proxy.
        let is_forwarded = request.uri().scheme_str() == Some("http");
        if let Some(authorization) = self.proxy.as_ref().and_then(Proxy::authorization)
            && is_forwarded
        {
            let authorization = authorization.clone();
            request.headers_mut().insert(PROXY_AUTHORIZATION, authorization);
        }
        let sent_chunks = Arc::clone(&request.body().sent_chunks);
        let answer = self.client.request(request);
        tokio::pin!(answer);
        loop {
            let sent_before = sent_chunks.load(Ordering::Relaxed);
            match tokio::time::timeout(STALL_MAX, &mut answer).await {
                Ok(Ok(response)) => return Ok(response),
                Ok(Err(why)) => {
                    if let Some(error) = body_error(&why) {
                        return Err(Failure {
                            error,
                            maybe_applied: false,
                        });
                    }
                    let maybe_applied = !why.is_connect();
                    let message = if maybe_applied {
                        "the connection to the lake broke"
                    } else {
                        "cannot connect to the lake"
                    };
                    let error = Error::new(Kind::Unavailable, message).caused_by(why);
                    return Err(Failure { error, maybe_applied });
                }
                Err(_) if sent_chunks.load(Ordering::Relaxed) != sent_before => {}
                Err(_) => {
                    let error = Error::new(Kind::Timeout, "the lake did not answer in time")
                        .with("stall_ms", STALL_MAX.as_millis());
                    return Err(Failure {
                        error,
                        maybe_applied: true,
                    });
                }
            }
        }
    }
}

/// The error of our own body, if that is why the request failed.
fn body_error(why: &hyper_util::client::legacy::Error) -> Option<Error> {
    let mut next = why.source();
    while let Some(cause) = next {
        if let Some(error) = cause.downcast_ref::<Error>() {
            return Some(error.share());
        }
        next = cause.source();
    }
    None
}

/// Certificates that are trusted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Tls {
    /// Those of the machine.
    Machine,
    /// As given, with a certificate of our own perhaps.
    Given(ClientTls),
    /// No TLS wanted.
    None,
}

/// The body of a request, of known size.
pub(crate) struct RequestBody {
    source: Source,
    bytes_left: u64,
    /// Moves whenever a chunk was taken, to tell a slow body from a dead connection.
    sent_chunks: Arc<AtomicU64>,
}

enum Source {
    Chunks(VecDeque<Bytes>),
    Stream { stream: ByteStream, last: Option<Bytes> },
}

impl RequestBody {
    /// Bytes in memory; can be made again for a retry.
    pub(crate) fn chunks(chunks: &[Bytes]) -> Self {
        let bytes_left = chunks.iter().map(|chunk| chunk.len() as u64).sum();
        let chunks = chunks.iter().filter(|chunk| !chunk.is_empty()).cloned().collect();
        Self {
            source: Source::Chunks(chunks),
            bytes_left,
            sent_chunks: Arc::default(),
        }
    }

    /// A stream that must have exactly so many bytes.
    pub(crate) fn stream(bytes: u64, stream: ByteStream) -> Self {
        Self {
            source: Source::Stream {
                stream: stream.fuse().boxed(),
                last: None,
            },
            bytes_left: bytes,
            sent_chunks: Arc::default(),
        }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>>>> {
        let this = &mut *self;
        this.sent_chunks.fetch_add(1, Ordering::Relaxed);
        match &mut this.source {
            Source::Chunks(chunks) => Poll::Ready(chunks.pop_front().map(|chunk| {
                this.bytes_left -= chunk.len() as u64;
                Ok(Frame::data(chunk))
            })),
            Source::Stream { stream, last } => poll_stream(stream, last, &mut this.bytes_left, cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.bytes_left == 0 && matches!(self.source, Source::Chunks(_))
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes_left)
    }
}

/// The last announced chunk is held back until the stream has ended: once it is sent, the object is written,
/// and bytes beyond would be lost without a word.
fn poll_stream(
    stream: &mut ByteStream,
    last: &mut Option<Bytes>,
    bytes_left: &mut u64,
    cx: &mut Context<'_>,
) -> Poll<Option<Result<Frame<Bytes>>>> {
    let wrong_size = |message| Poll::Ready(Some(Err(Error::new(Kind::InvalidInput, message))));
    loop {
        match ready!(stream.as_mut().poll_next(cx)) {
            Some(Ok(chunk)) if chunk.is_empty() => {}
            Some(Ok(chunk)) => {
                let held_bytes = last.as_ref().map_or(0, |last| last.len() as u64);
                if chunk.len() as u64 > *bytes_left - held_bytes {
                    return wrong_size("the body is longer than announced");
                }
                if chunk.len() as u64 == *bytes_left {
                    *last = Some(chunk);
                    continue;
                }
                *bytes_left -= chunk.len() as u64;
                return Poll::Ready(Some(Ok(Frame::data(chunk))));
            }
            Some(Err(error)) => return Poll::Ready(Some(Err(error))),
            None => {
                let Some(chunk) = last.take() else {
                    return if *bytes_left > 0 {
                        wrong_size("the body is shorter than announced")
                    } else {
                        Poll::Ready(None)
                    };
                };
                *bytes_left = 0;
                return Poll::Ready(Some(Ok(Frame::data(chunk))));
            }
        }
    }
}

/// The bytes of an answer; an error ends it when there are fewer than `bytes`, or none for too long.
pub(crate) fn answer_body(body: Incoming, bytes: u64) -> ByteStream {
    let state = (body.into_data_stream(), bytes);
    futures::stream::unfold(Some(state), |state| async move {
        let (mut body, bytes_left) = state?;
        let chunk =
            match tokio::time::timeout(STALL_MAX, body.next()).await {
                Ok(Some(Ok(chunk))) if chunk.len() as u64 <= bytes_left => {
                    let bytes_left = bytes_left - chunk.len() as u64;
                    return Some((Ok(chunk), Some((body, bytes_left))));
                }
                Ok(Some(Ok(_))) => Err(Error::new(
                    Kind::Unavailable,
                    "the lake sent more bytes than it promised",
                )),
                Ok(Some(Err(why))) => {
                    Err(Error::new(Kind::Unavailable, "the lake broke off its answer").caused_by(why))
                }
                Ok(None) if bytes_left > 0 => {
                    Err(Error::new(Kind::Unavailable, "the lake's answer is short")
                        .with("bytes_missing", bytes_left))
                }
                Ok(None) => return None,
                Err(_) => Err(Error::new(Kind::Timeout, "the lake stopped sending")
                    .with("stall_ms", STALL_MAX.as_millis())),
            };
        Some((chunk, None))
    })
    .boxed()
}

/// A whole short answer (XML); a longer one is an error. It may take long as long as something comes: a
/// server that joins many parts sends blanks until it is done.
pub(crate) async fn answer_text(body: Incoming, bytes_max: usize) -> Result<Bytes> {
    let mut body = body.into_data_stream();
    let mut text = BytesMut::new();
    loop {
        let chunk = match tokio::time::timeout(STALL_MAX, body.next()).await {
            Ok(None) => return Ok(text.freeze()),
            Ok(Some(Ok(chunk))) => chunk,
            Ok(Some(Err(why))) => {
                return Err(Error::new(Kind::Unavailable, "cannot read the lake's answer").caused_by(why));
            }
            Err(_) => {
                return Err(Error::new(Kind::Timeout, "the lake stopped sending")
                    .with("stall_ms", STALL_MAX.as_millis()));
            }
        };
        if text.len() + chunk.len() > bytes_max {
            return Err(
                Error::new(Kind::Unavailable, "the lake's answer is too long").with("bytes_max", bytes_max)
            );
        }
        text.extend_from_slice(&chunk);
    }
}
