//! Connections: accept, limit, serve HTTP/1.1, and end in order.
//!
//! The listener yields connections whose TLS handshake, if there is one, is done (`forebay_net`). The accept
//! loop owns all connection tasks through a tracker. On shutdown it stops accepting, lets requests in flight
//! finish, and cuts what is left after the deadline. When all places are taken, the oldest idle connection
//! makes room; if there is none, the next one waits, and who has its share already is told to come back
//! (`forebay_net::Connections`). A peer that is slow with a head or with reading is cut
//! (`forebay_net::Guarded`), so that it cannot hold leased pages.

use std::sync::Arc;
use std::time::Duration;

use forebay_core::Result;
use forebay_net::{Connections, Guarded, Listener, NoSeat, Origin, Seat, Stream};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::S3Edge;

/// After an accept failure (too many open files …) wait so long before trying again.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(50);

/// Bytes that are gathered before they are written to the socket: one piece of the reservoir, so that it goes
/// out right after it was checked.
const WRITE_BYTES: usize = 256 << 10;

/// Most bytes that the kernel may hold for a peer on this host. Left alone it grows to megabytes for each connection,
/// together more than the CPU's cache holds, and the peer then takes from memory what it could have had from
/// the cache. Towards other hosts the kernel decides: distance needs long queues.
const LOCAL_SEND_BYTES: usize = 256 << 10;

/// A connection that has to make room gets so long to send what it still has.
const ROOM_DEADLINE: Duration = Duration::from_secs(1);

/// The answer to a connection of an address that has its share.
const BUSY: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";

/// Serves the edge on this listener until `shutdown` is cancelled; returns when all connections have ended.
///
/// Cancel-safe in the sense that dropping the future closes the listener; connections then end on their own.
pub async fn serve(mut listener: Listener, edge: Arc<S3Edge>, shutdown: CancellationToken) -> Result<()> {
    let connections = Connections::new(edge.options.connections_max);
    let tracker = TaskTracker::new();
    let cut = CancellationToken::new();
    loop {
        let accepted = tokio::select! {
            () = shutdown.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok(stream) => {
                let seat = tokio::select! {
                    () = shutdown.cancelled() => break,
                    seat = seat(&connections, &stream) => seat,
                };
                if let Some(seat) = seat {
                    let edge = Arc::clone(&edge);
                    tracker.spawn(connection(stream, seat, edge, shutdown.clone(), cut.clone()));
                }
            }
            Err(error) => {
                tracing::warn!(%error, "accept failed");
                tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
            }
        }
    }
    drop(listener);
    tracker.close();
    if tokio::time::timeout(edge.options.shutdown_deadline, tracker.wait())
        .await
        .is_err()
    {
        tracing::warn!(
            connections = tracker.len(),
            "shutdown deadline passed; cutting connections"
        );
        cut.cancel();
        tracker.wait().await;
    }
    Ok(())
}

/// Waits for a place, or tells a connection to come back if those who sent it have enough of them.
async fn seat(connections: &Arc<Connections>, stream: &Stream) -> Option<Seat> {
    loop {
        match connections.enter(Origin::of(stream.peer().address)) {
            Ok(seat) => return Some(seat),
            Err(NoSeat::Full) => {
                let _ = tokio::time::timeout(ACCEPT_RETRY_DELAY, connections.changed()).await;
            }
            Err(NoSeat::Share) => {
                if let Some(socket) = stream.tcp().filter(|_| !stream.is_tls()) {
                    let _ = socket.try_write(BUSY);
                }
                return None;
            }
        }
    }
}

/// Keeps the queue towards a peer on this host short.
fn shorten_queue(stream: &TcpStream) {
    let is_local =
        matches!((stream.peer_addr(), stream.local_addr()), (Ok(peer), Ok(own)) if peer.ip() == own.ip());
    if !is_local {
        return;
    }
    let socket = socket2::SockRef::from(stream);
    if let Err(error) = socket.set_send_buffer_size(LOCAL_SEND_BYTES) {
        tracing::debug!(%error, "cannot set SO_SNDBUF");
    }
}

async fn connection(
    stream: Stream,
    seat: Seat,
    edge: Arc<S3Edge>,
    shutdown: CancellationToken,
    cut: CancellationToken,
) {
    if let Some(socket) = stream.tcp() {
        shorten_queue(socket);
    }
    let (origin, options) = (Origin::of(stream.peer().address), &edge.options);
    let activity = Arc::clone(seat.activity());
    let io = Guarded::new(
        stream,
        Arc::clone(&activity),
        options.head_timeout,
        options.pace(),
    );
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(options.idle_timeout)
        .max_buf_size(WRITE_BYTES.max(options.header_bytes_max));
    let service = service_fn(move |request| {
        let (edge, activity) = (Arc::clone(&edge), Arc::clone(&activity));
        async move { Ok::<_, std::convert::Infallible>(edge.handle(request, origin, &activity).await) }
    });
    let connection = builder.serve_connection(TokioIo::new(io), service);
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = cut.cancelled() => return,
        () = seat.closed() => {
            // A request that came at the same moment is answered.
            connection.as_mut().graceful_shutdown();
            tokio::select! {
                ended = connection.as_mut() => ended,
                () = seat.activity().quiet_after(ROOM_DEADLINE) => return,
                () = cut.cancelled() => return,
            }
        }
        () = shutdown.cancelled() => {
            connection.as_mut().graceful_shutdown();
            tokio::select! {
                ended = connection.as_mut() => ended,
                () = cut.cancelled() => return,
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "connection ended early");
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn the_queue_to_a_peer_on_this_host_is_short() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let (peer, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
        let (_peer, (stream, _)) = (peer.expect("connected"), accepted.expect("accepted"));
        // What the kernel makes of the number, which it doubles and may cut.
        let other =
            socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).expect("a socket");
        other.set_send_buffer_size(LOCAL_SEND_BYTES).expect("a size");
        let expected = other.send_buffer_size().expect("its size");
        let bytes = || {
            socket2::SockRef::from(&stream)
                .send_buffer_size()
                .expect("its size")
        };
        assert_ne!(bytes(), expected, "else this shows nothing");
        shorten_queue(&stream);
        assert_eq!(bytes(), expected);
    }
}
