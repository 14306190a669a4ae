//! Connections: accept, limit, serve HTTP/1.1, and end in order.
//!
//! The listener yields connections whose TLS handshake, if there is one, is done (`forebay_net`). The accept loop owns all connection tasks through a tracker. On shutdown it stops accepting, lets requests
//! in flight finish, and cuts what is left after the deadline. A connection beyond the limit waits in the
//! listen queue. A peer that stops reading is cut after the idle timeout, so that it cannot hold leased
//! pages.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use forebay_core::Result;
use forebay_net::{Listener, Stream};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::{Instant, Sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::S3Edge;
use crate::body::Unread;

/// After an accept failure (too many open files …) wait so long before trying again.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(50);

/// Bytes that are gathered before they are written to the socket: one piece of the reservoir, so that it goes
/// out right after it was checked.
const WRITE_BYTES: usize = 256 << 10;

/// What the kernel may hold for a peer on this host. Left alone it grows to megabytes for each connection,
/// together more than the CPU's cache holds, and the peer then takes from memory what it could have had from
/// the cache. Towards other hosts the kernel decides: distance needs long queues.
const LOCAL_SEND_BYTES: usize = 256 << 10;

/// What a client may still send after it was refused, so that it gets to read why.
const LINGER_BYTES_MAX: usize = 64 << 20;
const LINGER_TIME_MAX: Duration = Duration::from_secs(2);

/// Serves the edge on this listener until `shutdown` is cancelled; returns when all connections have ended.
///
/// Cancel-safe in the sense that dropping the future closes the listener; connections then end on their own.
pub async fn serve(mut listener: Listener, edge: Arc<S3Edge>, shutdown: CancellationToken) -> Result<()> {
    let places = Arc::new(Semaphore::new(edge.options.connections_max));
    let tracker = TaskTracker::new();
    let cut = CancellationToken::new();
    loop {
        let place = tokio::select! {
            () = shutdown.cancelled() => break,
            place = Arc::clone(&places).acquire_owned() => place.expect("the semaphore is never closed"),
        };
        let accepted = tokio::select! {
            () = shutdown.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok(stream) => {
                let connection = connection(stream, Arc::clone(&edge), shutdown.clone(), cut.clone());
                tracker.spawn(async move {
                    connection.await;
                    drop(place);
                });
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

async fn connection(stream: Stream, edge: Arc<S3Edge>, shutdown: CancellationToken, cut: CancellationToken) {
    if let Some(socket) = stream.tcp() {
        shorten_queue(socket);
    }
    let unread = Unread::default();
    let io = Unstalled::new(stream, edge.options.body_idle_timeout, Arc::clone(&unread));
    let io = TokioIo::new(io);
    let header_read_timeout = edge.options.header_read_timeout;
    let buffer_bytes_max = WRITE_BYTES.max(edge.options.header_bytes_max);
    let service = service_fn(move |request| {
        let (edge, unread) = (Arc::clone(&edge), Arc::clone(&unread));
        async move { Ok::<_, std::convert::Infallible>(edge.handle(request, &unread).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(header_read_timeout)
        .max_buf_size(buffer_bytes_max)
        .serve_connection(io, service);
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = cut.cancelled() => return,
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

/// A stream whose writes fail when the peer has not read for too long, and that closes gently.
///
/// A socket that is closed with unread bytes in it sends a reset, which can overtake the answer. So when a
/// body was left unread (a refused PUT), closing first ends our direction and then reads on for a moment and
/// throws away.
struct Unstalled {
    stream: Stream,
    timeout: Duration,
    /// Made at the first write that has to wait.
    stall: Option<Pin<Box<Sleep>>>,
    is_waiting: bool,
    unread: Unread,
    /// Made when our direction has been closed and the peer may still send.
    linger: Option<Linger>,
}

/// How much longer a closed connection is read from.
struct Linger {
    until: Pin<Box<Sleep>>,
    bytes_left: usize,
}

impl Unstalled {
    fn new(stream: Stream, timeout: Duration, unread: Unread) -> Self {
        Self {
            stream,
            timeout,
            stall: None,
            is_waiting: false,
            unread,
            linger: None,
        }
    }

    /// Throws away what the peer still sends, until it ends or the time or the bytes are used up.
    fn poll_linger(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(linger) = &mut self.linger else {
            return Poll::Ready(());
        };
        let mut bytes = [0; 16 << 10];
        while linger.until.as_mut().poll(cx).is_pending() {
            let mut buffer = ReadBuf::new(&mut bytes);
            let read = std::task::ready!(Pin::new(&mut self.stream).poll_read(cx, &mut buffer));
            let count = buffer.filled().len();
            if read.is_err() || count == 0 || count > linger.bytes_left {
                return Poll::Ready(());
            }
            linger.bytes_left -= count;
        }
        Poll::Ready(())
    }

    fn watch<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.is_waiting = false;
            return written;
        }
        let deadline = Instant::now() + self.timeout;
        let stall = self
            .stall
            .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
        if !self.is_waiting {
            self.is_waiting = true;
            stall.as_mut().reset(deadline);
        }
        stall.as_mut().poll(cx).map(|()| {
            Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "the peer stopped reading",
            ))
        })
    }
}

impl AsyncRead for Unstalled {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Unstalled {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.watch(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.watch(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // TLS keeps the end of an answer in a buffer of its own, so its flush can stall as a write can.
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.watch(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.linger.is_none() {
            std::task::ready!(Pin::new(&mut self.stream).poll_shutdown(cx))?;
            if self.unread.load(Ordering::Relaxed) {
                self.linger = Some(Linger {
                    until: Box::pin(tokio::time::sleep(LINGER_TIME_MAX)),
                    bytes_left: LINGER_BYTES_MAX,
                });
            }
        }
        self.poll_linger(cx).map(Ok)
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
