//! Connections between a node and everybody else: listeners, streams and TLS.
//!
//! A door takes a [`Listener`] and serves each [`Stream`] that it yields. Neither knows whether bytes travel
//! over TCP or a duplex in memory, in the clear or in TLS. [`Connector`] is the other end. TLS is configured
//! once for both sides: [`ServerTls`] follows the files of a certificate, [`ClientTls`] says whom a client
//! trusts, and [`explain`] turns a failed handshake into a sentence that says what to do.
//!
//! The cost of one peer for the others is limited here for all doors: [`Connections`] has the places and who
//! may have them, [`Guarded`] the clock of heads and slow readers, [`Pace`] the minimum rate of a transfer.
//!
//! A handshake runs in a task of its own with a deadline, so a slow peer delays nobody. The number of
//! handshakes under way is bounded. The plain path adds one branch per read or write to the socket's own
//! cost.
//!
//! The feature `tokio` (on by default) adds listeners, streams and the connector. The blocking client of a
//! process that may fork does without it and shares the TLS configuration alone.
//!
//! ```
//! use forebay_net::{Connector, Listener};
//! use tokio::io::{AsyncReadExt, AsyncWriteExt};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (mut listener, connector) = Listener::in_memory();
//! let (client, server) = tokio::join!(connector.connect("node", 9000), listener.accept());
//! let (mut client, mut server) = (client?, server?);
//! client.write_all(b"hello").await?;
//! let mut bytes = [0; 5];
//! server.read_exact(&mut bytes).await?;
//! assert_eq!(&bytes, b"hello");
//! # Ok(())
//! # }
//! ```

#[cfg(feature = "tokio")]
mod connections;
#[cfg(feature = "tokio")]
mod connector;
#[cfg(feature = "tokio")]
mod guarded;
#[cfg(feature = "tokio")]
mod handshakes;
#[cfg(feature = "tokio")]
mod listener;
#[cfg(feature = "tokio")]
mod pace;
mod share;
#[cfg(feature = "tokio")]
mod stream;
mod tls;

#[cfg(feature = "tokio")]
pub use connections::{Activity, Connections, NoSeat, Seat};
#[cfg(feature = "tokio")]
pub use connector::Connector;
#[cfg(feature = "tokio")]
pub use guarded::Guarded;
#[cfg(feature = "tokio")]
pub use listener::Listener;
#[cfg(feature = "tokio")]
pub use pace::{Pace, PaceLimits};
pub use share::{Origin, share_fits, share_max};
#[cfg(feature = "tokio")]
pub use stream::{Peer, Stream};
pub use tls::{CertificateInfo, ClientTls, ServerTls, TlsFiles, explain, server_name};
