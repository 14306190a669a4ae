//! The way to a lake: straight, or through the proxy that the environment names.
//!
//! `HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY` and `NO_PROXY`, in capitals or not, mean what they mean to curl.
//! To an `https` lake the proxy opens a tunnel and sees nothing of what goes through; an `http` one is asked
//! through it, request by request. Proxies that are themselves spoken to over TLS or SOCKS are refused when
//! the lake is opened, instead of going past them.

use std::io::IoSlice;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use forebay_core::{Error, Kind, Result};
use futures::FutureExt;
use futures::future::{BoxFuture, poll_fn};
use http::{HeaderValue, Uri};
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::client::proxy::matcher::Matcher;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tower::Service;

/// Time that a proxy may take to open a tunnel.
const TUNNEL_TIMEOUT: Duration = Duration::from_secs(20);

/// A proxy.
#[derive(Debug, Clone)]
pub(crate) struct Proxy {
    uri: Uri,
    authorization: Option<HeaderValue>,
}

impl Proxy {
    /// The one that the environment names for this lake.
    pub(crate) fn from_env(lake: &Uri) -> Result<Option<Self>> {
        Self::by(&Matcher::from_env(), lake)
    }

    pub(crate) fn by(matcher: &Matcher, lake: &Uri) -> Result<Option<Self>> {
        let Some(found) = matcher.intercept(lake) else {
            return Ok(None);
        };
        let uri = found.uri().clone();
        if uri.scheme_str() != Some("http") {
            let message = "the environment names a proxy that is not spoken to over plain HTTP, which lakes cannot use; \
                           name an http:// one in HTTPS_PROXY or HTTP_PROXY, or the lake in NO_PROXY";
            return Err(Error::new(Kind::Unsupported, message).with("proxy", uri));
        }
        Ok(Some(Self {
            uri,
            authorization: found.basic_auth().cloned(),
        }))
    }

    /// Returns what each request to an `http` lake has to say to the proxy.
    pub(crate) fn authorization(&self) -> Option<&HeaderValue> {
        self.authorization.as_ref()
    }
}

/// Connects to lakes.
#[derive(Debug, Clone)]
pub(crate) struct Route {
    pub(crate) direct: HttpConnector,
    pub(crate) proxy: Option<Proxy>,
}

impl Service<Uri> for Route {
    type Response = LakeStream;
    type Error = Box<dyn std::error::Error + Send + Sync>;
    type Future = BoxFuture<'static, Result<LakeStream, Self::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.direct.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, lake: Uri) -> Self::Future {
        let Some(proxy) = self.proxy.clone() else {
            let connecting = self.direct.call(lake);
            return async move { Ok(LakeStream::new(connecting.await?, false)) }.boxed();
        };
        if lake.scheme_str() == Some("https") {
            return tunnel(self.direct.clone(), proxy, lake).boxed();
        }
        let connecting = self.direct.call(proxy.uri);
        async move { Ok(LakeStream::new(connecting.await?, true)) }.boxed()
    }
}

async fn tunnel(
    direct: HttpConnector,
    proxy: Proxy,
    lake: Uri,
) -> Result<LakeStream, Box<dyn std::error::Error + Send + Sync>> {
    let shown = proxy.uri.to_string();
    let refused = |kind| {
        let message = "the proxy does not open a way to the lake; check HTTPS_PROXY and NO_PROXY";
        Error::new(kind, message).with("proxy", shown)
    };
    let mut tunnel = Tunnel::new(proxy.uri, direct);
    if let Some(authorization) = proxy.authorization {
        tunnel = tunnel.with_auth(authorization);
    }
    poll_fn(|cx| tunnel.poll_ready(cx)).await?;
    match tokio::time::timeout(TUNNEL_TIMEOUT, tunnel.call(lake)).await {
        Ok(Ok(stream)) => Ok(LakeStream::new(stream, false)),
        Ok(Err(why)) => Err(refused(Kind::Unavailable).caused_by(why).into()),
        Err(_) => Err(refused(Kind::Timeout).into()),
    }
}

/// An open connection.
pub(crate) struct LakeStream {
    stream: TokioIo<TcpStream>,
    /// The other end is a proxy that wants whole URLs.
    is_forwarded: bool,
}

impl LakeStream {
    fn new(stream: TokioIo<TcpStream>, is_forwarded: bool) -> Self {
        Self { stream, is_forwarded }
    }

    fn stream(self: Pin<&mut Self>) -> Pin<&mut TokioIo<TcpStream>> {
        Pin::new(&mut self.get_mut().stream)
    }
}

impl Connection for LakeStream {
    fn connected(&self) -> Connected {
        self.stream.connected().proxy(self.is_forwarded)
    }
}

impl Read for LakeStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<std::io::Result<()>> {
        self.stream().poll_read(cx, buffer)
    }
}

impl Write for LakeStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        self.stream().poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        self.stream().poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        self.stream().poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        self.stream().poll_write_vectored(cx, slices)
    }
}

#[cfg(test)]
mod tests;
