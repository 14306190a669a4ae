//! Bytes to and from a remote node: a plain socket, or TLS over it.
//!
//! Blocking, in slices: a read or write that must wait longer returns `WouldBlock`, so that the call can look
//! at its deadline and its interrupt. TLS keeps its place across such returns. A fork is safe as long as the
//! child does not use its parent's streams (`remote.rs` sees to that): dropping one closes the descriptor and
//! sends nothing.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use forebay_core::{Error, Kind, Result};
use forebay_net::{ClientTls, explain, server_name};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};

use crate::options::ClientOptions;
use crate::wait::{WAIT_SLICE, Wait};

const CONNECT_TIMEOUT_MAX: Duration = Duration::from_secs(10);

/// TLS towards one node: whom to trust, and the name that its certificate must have.
pub(super) struct TlsTarget {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

impl TlsTarget {
    /// Reads the files of the options, or those that the environment names.
    pub(super) fn new(host: &str, tls: &ClientTls) -> Result<Self> {
        Ok(Self {
            config: Arc::new(tls.clone().or_environment().config()?),
            name: server_name(host)?,
        })
    }
}

/// A stream to a node.
pub(super) enum NodeStream {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl NodeStream {
    /// Connects to `host:port`; with TLS also does the handshake.
    pub(super) fn open(host: &str, tls: Option<&TlsTarget>, options: &ClientOptions) -> Result<Self> {
        let unavailable = |why: std::io::Error| {
            let message = "no node answers here; check the address and that the node is running";
            Error::new(Kind::Unavailable, message)
                .with("address", host)
                .caused_by(why)
        };
        let timeout = options
            .timeout
            .min(CONNECT_TIMEOUT_MAX)
            .max(Duration::from_millis(1));
        let mut last = std::io::Error::from(ErrorKind::NotFound);
        for address in host.to_socket_addrs().map_err(unavailable)? {
            match TcpStream::connect_timeout(&address, timeout) {
                Ok(stream) => {
                    prepare(&stream).map_err(unavailable)?;
                    return match tls {
                        None => Ok(Self::Plain(stream)),
                        Some(tls) => {
                            handshake(stream, tls, options).map_err(|error| error.with("address", host))
                        }
                    };
                }
                Err(why) => last = why,
            }
        }
        Err(unavailable(last))
    }

    /// Returns whether the other side has closed the connection or said something that nobody asked for.
    pub(super) fn is_hung_up(&self) -> bool {
        let socket = match self {
            Self::Plain(socket) => socket,
            Self::Tls(stream) => &stream.sock,
        };
        let peek = || {
            socket.set_nonblocking(true)?;
            let peeked = socket.peek(&mut [0]);
            socket.set_nonblocking(false)?;
            peeked
        };
        !peek().is_err_and(|why| why.kind() == ErrorKind::WouldBlock)
    }
}

fn prepare(stream: &TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(WAIT_SLICE))?;
    stream.set_write_timeout(Some(WAIT_SLICE))
}

fn handshake(mut socket: TcpStream, tls: &TlsTarget, options: &ClientOptions) -> Result<NodeStream> {
    let connection = ClientConnection::new(Arc::clone(&tls.config), tls.name.clone());
    let mut connection =
        connection.map_err(|why| Error::new(Kind::Internal, "TLS cannot begin").caused_by(why))?;
    let wait = Wait::start(options);
    while connection.is_handshaking() {
        match connection.complete_io(&mut socket) {
            Ok(_) => {}
            Err(why) if is_wait(&why) => wait.check()?,
            Err(why) if why.kind() == ErrorKind::UnexpectedEof => {
                let message = "the connection ended while TLS began; is this the port of a node, and has it a certificate?";
                return Err(Error::new(Kind::Unavailable, message).caused_by(why));
            }
            Err(why) => return Err(broke(why)),
        }
    }
    Ok(NodeStream::Tls(Box::new(StreamOwned::new(connection, socket))))
}

impl Read for NodeStream {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.read(buf),
            Self::Tls(stream) => stream.read(buf),
        }
    }
}

impl Write for NodeStream {
    fn write(&mut self, buf: &[u8]) -> std::io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.write(buf),
            Self::Tls(stream) => stream.write(buf),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        match self {
            Self::Plain(stream) => stream.flush(),
            Self::Tls(stream) => stream.flush(),
        }
    }
}

pub(super) fn is_wait(why: &std::io::Error) -> bool {
    matches!(
        why.kind(),
        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
    )
}

/// Says why a connection broke: TLS says what to do, the rest may be tried again.
pub(super) fn broke(why: std::io::Error) -> Error {
    explain(&why)
        .unwrap_or_else(|| Error::new(Kind::Unavailable, "the connection to the node broke").caused_by(why))
}
