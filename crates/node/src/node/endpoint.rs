//! A listening endpoint of a node, S3 or admin: its socket, TLS if there is a certificate, its URL.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;

use forebay_core::{Error, Result};
use forebay_net::{Listener, ServerTls};
use tokio::net::TcpListener;

/// An endpoint that is bound and not yet served.
pub(super) struct Endpoint {
    pub(super) listener: Listener,
    pub(super) addr: SocketAddr,
}

impl Endpoint {
    /// Binds to the address, if there is one.
    pub(super) async fn bind(
        addr: Option<SocketAddr>,
        setting: &'static str,
        tls: Option<&Arc<ServerTls>>,
    ) -> Result<Option<Self>> {
        let Some(addr) = addr else { return Ok(None) };
        let socket = TcpListener::bind(addr)
            .await
            .map_err(|why| cannot_listen(addr, setting, why))?;
        let addr = socket
            .local_addr()
            .map_err(|why| Error::io("a listening socket has no address", why))?;
        let listener = Listener::tcp(socket);
        let listener = match tls {
            Some(tls) => listener.with_tls(Arc::clone(tls)),
            None => listener,
        };
        Ok(Some(Self { listener, addr }))
    }
}

fn cannot_listen(addr: SocketAddr, setting: &'static str, why: std::io::Error) -> Error {
    let message = match why.kind() {
        ErrorKind::AddrInUse => {
            format!("{addr} is taken by another program; choose another with --{setting}")
        }
        ErrorKind::PermissionDenied => {
            format!("this user may not listen on {addr}; choose a port above 1023")
        }
        ErrorKind::AddrNotAvailable => {
            format!("{addr} is not an address of this machine; choose another with --{setting}")
        }
        _ => format!("cannot listen on {addr}: {why}"),
    };
    Error::io(message, why).with("setting", setting)
}
