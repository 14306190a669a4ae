//! A door's listener: yields connections whose handshake is done.
//!
//! Plain connections come straight from the socket. With TLS the listener accepts and starts handshakes
//! (`handshakes.rs`) and yields them as they are finished, whichever is first. Dropping it closes the socket
//! and ends the handshakes under way; streams that it has yielded go on.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::DuplexStream;
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use crate::connector::Connector;
use crate::handshakes::Handshakes;
use crate::stream::{Stream, Transport};
use crate::tls::ServerTls;

/// Connections in memory that wait to be accepted.
const MEMORY_BACKLOG: usize = 128;

/// Entrance of connections.
#[derive(Debug)]
pub struct Listener {
    incoming: Incoming,
    handshakes: Option<Handshakes>,
}

#[derive(Debug)]
enum Incoming {
    Tcp(TcpListener),
    Memory(mpsc::Receiver<DuplexStream>),
}

impl Listener {
    /// Takes a socket that listens, without TLS.
    #[must_use]
    pub fn tcp(listener: TcpListener) -> Self {
        Self {
            incoming: Incoming::Tcp(listener),
            handshakes: None,
        }
    }

    /// Makes a listener without a network, and its only way in. For simulations and tests.
    #[must_use]
    pub fn in_memory() -> (Self, Connector) {
        let (sender, receiver) = mpsc::channel(MEMORY_BACKLOG);
        let listener = Self {
            incoming: Incoming::Memory(receiver),
            handshakes: None,
        };
        (listener, Connector::memory(sender))
    }

    /// Asks every connection for a TLS handshake.
    #[must_use]
    pub fn with_tls(mut self, tls: Arc<ServerTls>) -> Self {
        self.handshakes = Some(Handshakes::new(tls));
        self
    }

    /// Returns the address that it listens on; `Unsupported` in memory.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        match &self.incoming {
            Incoming::Tcp(listener) => listener.local_addr(),
            Incoming::Memory(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Waits for the next connection. An error is the socket's (too many open files), never a client's: a
    /// failed handshake is dropped here. Cancel-safe.
    pub async fn accept(&mut self) -> io::Result<Stream> {
        let Some(handshakes) = &mut self.handshakes else {
            return self.incoming.accept().await.map(Stream::plain);
        };
        loop {
            tokio::select! {
                biased;
                done = handshakes.next_done(), if !handshakes.is_empty() => {
                    if let Some(stream) = done {
                        return Ok(stream);
                    }
                }
                accepted = self.incoming.accept(), if handshakes.has_room() => handshakes.start(accepted?),
            }
        }
    }
}

impl Incoming {
    async fn accept(&mut self) -> io::Result<Transport> {
        match self {
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                if let Err(error) = stream.set_nodelay(true) {
                    tracing::debug!(%error, "cannot set TCP_NODELAY");
                }
                Ok(Transport::Tcp(stream))
            }
            Self::Memory(receiver) => match receiver.recv().await {
                Some(stream) => Ok(Transport::Memory(stream)),
                // All connectors are gone: nobody will come any more.
                None => std::future::pending().await,
            },
        }
    }
}
