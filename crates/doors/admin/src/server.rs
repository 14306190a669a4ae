//! Connections of the admin API: accept, limit, serve HTTP/1.1, and end in order.
//!
//! Whoever can connect may try to hold the door shut, on loopback every user of the host. So there is a limit
//! of connections, idle ones and heads that do not come make room, and slow readers are cut: the same rules
//! as at the S3 endpoint (`forebay_net::Connections`, `forebay_net::Guarded`), with limits of its own, so
//! that neither door can starve the other.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::http::Request;
use forebay_core::Result;
use forebay_net::{Activity, Connections, Guarded, Listener, NoSeat, Origin, PaceLimits, Seat, Stream};
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Pause after an accept that failed, and between looks for a place.
const RETRY_DELAY: Duration = Duration::from_millis(50);

/// Time of a head from its first byte on.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);

/// Time that an idle connection is kept.
const IDLE_TIMEOUT: Duration = Duration::from_secs(75);

/// What is asked of a client that takes an answer.
const PACE: PaceLimits = PaceLimits {
    grace: Duration::from_secs(15),
    bytes_per_second_min: 4 << 10,
};

/// Heads and buffered bodies.
const BUFFER_BYTES_MAX: usize = 64 << 10;

/// Serves until `stop` fires, then lets running requests finish.
pub async fn serve(
    mut listener: Listener,
    router: Router,
    connections_max: usize,
    stop: CancellationToken,
) -> Result<()> {
    let connections = Connections::new(connections_max);
    let tracker = TaskTracker::new();
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok(stream) => {
                let seat = tokio::select! {
                    () = stop.cancelled() => break,
                    seat = seat(&connections, &stream) => seat,
                };
                if let Some(seat) = seat {
                    tracker.spawn(connection(stream, seat, router.clone(), stop.clone()));
                }
            }
            // Usually too many open files: a pause lets others close theirs.
            Err(error) => {
                tracing::warn!(%error, "accept failed");
                tokio::time::sleep(RETRY_DELAY).await;
            }
        }
    }
    drop(listener);
    tracker.close();
    tracker.wait().await;
    Ok(())
}

/// Waits for a place; none for an address that has its share.
async fn seat(connections: &Arc<Connections>, stream: &Stream) -> Option<Seat> {
    loop {
        match connections.enter(Origin::of(stream.peer().address)) {
            Ok(seat) => return Some(seat),
            Err(NoSeat::Share) => return None,
            Err(NoSeat::Full) => {
                let _ = tokio::time::timeout(RETRY_DELAY, connections.changed()).await;
            }
        }
    }
}

async fn connection(stream: Stream, seat: Seat, router: Router, stop: CancellationToken) {
    let activity = Arc::clone(seat.activity());
    let io = Guarded::new(stream, Arc::clone(&activity), HEAD_TIMEOUT, PACE);
    let service = TowerToHyperService::new(router);
    let service = service_fn(move |request: Request<Incoming>| {
        activity.begin_answer();
        let answer = hyper::service::Service::call(&service, request);
        let activity = Arc::clone(&activity);
        async move {
            let answer = answer.await;
            answer.map(|response| response.map(|inner| Answer { inner, activity }))
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE_TIMEOUT)
        .max_buf_size(BUFFER_BYTES_MAX)
        .serve_connection(TokioIo::new(io), service);
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = seat.closed() => {
            connection.as_mut().graceful_shutdown();
            tokio::select! {
                ended = connection.as_mut() => ended,
                () = seat.activity().quiet_after(RETRY_DELAY) => return,
            }
        }
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.as_mut().await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "connection ended early");
    }
}

/// An answer on its way; its end is the end of the request.
struct Answer {
    inner: Body,
    activity: Arc<Activity>,
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.inner).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.activity.end_answer();
    }
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use forebay_net::Connector;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    fn router() -> Router {
        Router::new().route("/", get(|| async { "hello" }))
    }

    const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";

    /// A door in memory.
    fn door() -> Connector {
        let (listener, connector) = Listener::in_memory();
        tokio::spawn(serve(listener, router(), 8, CancellationToken::new()));
        connector
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_head_is_cut_and_an_idle_connection_lives_longer() {
        let door = door();
        let mut idle = door.connect("node", 1).await.unwrap();
        let mut slow = door.connect("node", 1).await.unwrap();
        slow.write_all(b"GET / HT").await.unwrap();
        let began = tokio::time::Instant::now();
        let mut byte = [0; 1];
        loop {
            tokio::select! {
                read = slow.read(&mut byte) => {
                    assert!(!matches!(read, Ok(1..)));
                    break;
                }
                () = tokio::time::sleep(Duration::from_secs(1)) => {
                    if slow.write_all(b"x").await.is_err() {
                        break;
                    }
                }
            }
        }
        assert!(
            began.elapsed() <= HEAD_TIMEOUT + Duration::from_secs(2),
            "{:?}",
            began.elapsed()
        );
        idle.write_all(REQUEST).await.unwrap();
        let mut answer = String::new();
        idle.read_to_string(&mut answer).await.unwrap();
        assert!(answer.ends_with("hello"), "{answer}");
    }

    #[tokio::test]
    async fn connections_that_say_nothing_do_not_keep_others_out() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        let served = tokio::spawn(serve(Listener::tcp(listener), router(), 8, stop.clone()));
        let mut silent = Vec::new();
        for n in 0..50 {
            let mut stream = TcpStream::connect(address).await.unwrap();
            if n % 2 == 0 {
                let _ = stream.write_all(b"POST /v1/cache/evict HT").await;
            }
            silent.push(stream);
        }
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(REQUEST).await.unwrap();
        let mut answer = String::new();
        let read = tokio::time::timeout(Duration::from_secs(20), stream.read_to_string(&mut answer));
        read.await.expect("an answer in time").unwrap();
        assert!(answer.ends_with("hello"), "{answer}");
        stop.cancel();
        served.await.unwrap().unwrap();
    }
}
