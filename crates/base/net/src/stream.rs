//! One connection: TCP or a duplex in memory, plain or inside TLS.
//!
//! An enum and not a trait object: the plain path costs a branch, not an allocation or an indirect call.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsStream;

use crate::tls::CertificateInfo;

/// A connection, ready for use: the handshake is done.
#[derive(Debug)]
pub struct Stream {
    io: Io,
    peer: Peer,
}

/// The other end of a connection.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Peer {
    /// Its address; none in memory.
    pub address: Option<SocketAddr>,
    /// Its certificate, if it has shown one; verified.
    pub certificate: Option<CertificateInfo>,
}

#[derive(Debug)]
enum Io {
    Plain(Transport),
    Tls(Box<TlsStream<Transport>>),
}

/// The carrier of bytes below TLS.
#[derive(Debug)]
pub(crate) enum Transport {
    Tcp(TcpStream),
    Memory(DuplexStream),
}

impl Stream {
    pub(crate) fn plain(transport: Transport) -> Self {
        let peer = Peer {
            address: transport.peer_addr(),
            certificate: None,
        };
        Self {
            io: Io::Plain(transport),
            peer,
        }
    }

    pub(crate) fn tls(stream: TlsStream<Transport>) -> Self {
        let (transport, session) = stream.get_ref();
        let first = session.peer_certificates().and_then(|chain| chain.first());
        let peer = Peer {
            address: transport.peer_addr(),
            certificate: first.and_then(|certificate| CertificateInfo::read(certificate)),
        };
        Self {
            io: Io::Tls(Box::new(stream)),
            peer,
        }
    }

    /// Returns the other end.
    #[must_use]
    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// Returns whether bytes travel in TLS.
    #[must_use]
    pub fn is_tls(&self) -> bool {
        matches!(self.io, Io::Tls(_))
    }

    /// Returns the socket, for its options; none in memory.
    #[must_use]
    pub fn tcp(&self) -> Option<&TcpStream> {
        let transport = match &self.io {
            Io::Plain(transport) => transport,
            Io::Tls(stream) => stream.get_ref().0,
        };
        match transport {
            Transport::Tcp(stream) => Some(stream),
            Transport::Memory(_) => None,
        }
    }
}

impl Transport {
    pub(crate) fn peer_addr(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(stream) => stream.peer_addr().ok(),
            Self::Memory(_) => None,
        }
    }
}

impl AsyncRead for Stream {
    #[inline]
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().io {
            Io::Plain(inner) => Pin::new(inner).poll_read(cx, buf),
            Io::Tls(inner) => Pin::new(inner).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Stream {
    #[inline]
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().io {
            Io::Plain(inner) => Pin::new(inner).poll_write(cx, buf),
            Io::Tls(inner) => Pin::new(inner).poll_write(cx, buf),
        }
    }

    #[inline]
    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().io {
            Io::Plain(inner) => Pin::new(inner).poll_write_vectored(cx, bufs),
            Io::Tls(inner) => Pin::new(inner).poll_write_vectored(cx, bufs),
        }
    }

    #[inline]
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().io {
            Io::Plain(inner) => Pin::new(inner).poll_flush(cx),
            Io::Tls(inner) => Pin::new(inner).poll_flush(cx),
        }
    }

    #[inline]
    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().io {
            Io::Plain(inner) => Pin::new(inner).poll_shutdown(cx),
            Io::Tls(inner) => Pin::new(inner).poll_shutdown(cx),
        }
    }

    #[inline]
    fn is_write_vectored(&self) -> bool {
        match &self.io {
            Io::Plain(inner) => inner.is_write_vectored(),
            Io::Tls(inner) => inner.is_write_vectored(),
        }
    }
}

impl AsyncRead for Transport {
    #[inline]
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(inner) => Pin::new(inner).poll_read(cx, buf),
            Self::Memory(inner) => Pin::new(inner).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Transport {
    #[inline]
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(inner) => Pin::new(inner).poll_write(cx, buf),
            Self::Memory(inner) => Pin::new(inner).poll_write(cx, buf),
        }
    }

    #[inline]
    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(inner) => Pin::new(inner).poll_write_vectored(cx, bufs),
            Self::Memory(inner) => Pin::new(inner).poll_write_vectored(cx, bufs),
        }
    }

    #[inline]
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(inner) => Pin::new(inner).poll_flush(cx),
            Self::Memory(inner) => Pin::new(inner).poll_flush(cx),
        }
    }

    #[inline]
    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(inner) => Pin::new(inner).poll_shutdown(cx),
            Self::Memory(inner) => Pin::new(inner).poll_shutdown(cx),
        }
    }

    #[inline]
    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Tcp(inner) => inner.is_write_vectored(),
            Self::Memory(inner) => inner.is_write_vectored(),
        }
    }
}
