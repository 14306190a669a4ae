//! The client's end of a [`Listener`](crate::Listener), for async code.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use forebay_core::{Error, Kind, Result};
use rustls::ClientConfig;
use tokio::io::DuplexStream;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_rustls::TlsConnector;

use crate::stream::{Stream, Transport};
use crate::tls::{explain, server_name};

/// Time for the connection and its handshake together.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(10);

/// Bytes that one direction of a connection in memory holds.
const MEMORY_BYTES: usize = 256 << 10;

/// Opens connections: over TCP, or to one listener in memory.
#[derive(Debug, Clone, Default)]
pub struct Connector {
    /// The listener in memory; `None` goes by TCP.
    memory: Option<mpsc::Sender<DuplexStream>>,
    tls: Option<Arc<ClientConfig>>,
}

impl Connector {
    /// Goes by TCP, without TLS.
    #[must_use]
    pub fn tcp() -> Self {
        Self::default()
    }

    pub(crate) fn memory(listener: mpsc::Sender<DuplexStream>) -> Self {
        Self {
            memory: Some(listener),
            tls: None,
        }
    }

    /// Does a TLS handshake on every connection.
    #[must_use]
    pub fn with_tls(mut self, config: Arc<ClientConfig>) -> Self {
        self.tls = Some(config);
        self
    }

    /// Connects within ten seconds. In memory the host is only the name that the certificate must have.
    /// Cancel-safe: dropped, it closes what it had opened.
    pub async fn connect(&self, host: &str, port: u16) -> Result<Stream> {
        self.connect_as(host, port, host).await
    }

    /// As [`Self::connect`], where the certificate must have another name than the address: that of a node, say.
    pub async fn connect_as(&self, host: &str, port: u16, name: &str) -> Result<Stream> {
        let connected = tokio::time::timeout(CONNECT_TIME_MAX, self.open(host, port, name)).await;
        let late = || Err(Error::new(Kind::Timeout, "nobody answers here in time"));
        connected
            .unwrap_or_else(|_| late())
            .map_err(|error| error.with("host", host).with("port", port))
    }

    async fn open(&self, host: &str, port: u16, name: &str) -> Result<Stream> {
        let transport = self
            .dial(host, port)
            .await
            .map_err(|why| Error::new(Kind::Unavailable, format!("cannot connect: {why}")).caused_by(why))?;
        let Some(config) = &self.tls else {
            return Ok(Stream::plain(transport));
        };
        let connector = TlsConnector::from(Arc::clone(config));
        match connector.connect(server_name(name)?, transport).await {
            Ok(stream) => Ok(Stream::tls(stream.into())),
            Err(why) => Err(explain(&why).unwrap_or_else(|| {
                let message = "the connection broke while TLS began; is this the port of a node?";
                Error::new(Kind::Unavailable, message).caused_by(why)
            })),
        }
    }

    async fn dial(&self, host: &str, port: u16) -> io::Result<Transport> {
        let Some(listener) = &self.memory else {
            let stream = TcpStream::connect((host, port)).await?;
            stream.set_nodelay(true)?;
            return Ok(Transport::Tcp(stream));
        };
        let (ours, theirs) = tokio::io::duplex(MEMORY_BYTES);
        let sent = listener.send(theirs).await;
        sent.map_err(|_| io::Error::from(io::ErrorKind::ConnectionRefused))?;
        Ok(Transport::Memory(ours))
    }
}
