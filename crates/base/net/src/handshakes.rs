//! TLS handshakes under way, off the accept loop.
//!
//! Each runs in a task of its own and has ten seconds. There are at most 256. While there is no room, one
//! that has taken longer than a second gives way to the next connection, so peers that connect and stay
//! silent cannot keep others out. A peer that speaks plain HTTP is told so in HTTP. One whose certificate is
//! refused gets to read why: the connection is closed after a short linger, not reset.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;

use crate::stream::{Stream, Transport};
use crate::tls::ServerTls;

/// Handshakes under way, at most.
const UNDER_WAY_MAX: usize = 256;
/// Time of a handshake.
const TIME_MAX: Duration = Duration::from_secs(10);
/// Time of a handshake that others wait for.
const TIME_MAX_WHEN_FULL: Duration = Duration::from_secs(1);
/// Time and bytes that a refused peer may still send.
const LINGER_TIME_MAX: Duration = Duration::from_secs(1);
const LINGER_BYTES_MAX: usize = 64 << 10;

/// First byte of every TLS connection: a record of the handshake.
const HANDSHAKE_RECORD: u8 = 0x16;

/// Body of the answer to plain HTTP, in S3's form so that its clients show the sentence.
const SPEAK_TLS: &str = "<?xml version=\"1.0\" encoding=\"UTF-8\"?><Error><Code>InvalidRequest</Code>\
    <Message>This port speaks TLS. Use https:// instead of http://.</Message></Error>";

#[derive(Debug)]
pub(crate) struct Handshakes {
    tls: Arc<ServerTls>,
    under_way: JoinSet<Option<Stream>>,
    /// The oldest first; may still hold some that are done.
    begun: VecDeque<(Instant, AbortHandle)>,
}

impl Handshakes {
    pub(crate) fn new(tls: Arc<ServerTls>) -> Self {
        Self {
            tls,
            under_way: JoinSet::new(),
            begun: VecDeque::new(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.under_way.is_empty()
    }

    pub(crate) fn has_room(&self) -> bool {
        self.under_way.len() < UNDER_WAY_MAX
    }

    pub(crate) fn start(&mut self, transport: Transport) {
        if self.begun.len() >= 2 * UNDER_WAY_MAX {
            self.begun.retain(|(_, handle)| !handle.is_finished());
        }
        let handle = self.under_way.spawn(handshake(Arc::clone(&self.tls), transport));
        self.begun.push_back((Instant::now(), handle));
    }

    /// Waits until a handshake has ended; `None` if it failed. Ends the oldest where there is no room and it
    /// has had its time. Cancel-safe.
    pub(crate) async fn next_done(&mut self) -> Option<Stream> {
        loop {
            let oldest = self.oldest();
            let is_full = !self.has_room();
            tokio::select! {
                biased;
                ended = self.under_way.join_next() => return ended?.ok()?,
                () = tokio::time::sleep_until(oldest + TIME_MAX_WHEN_FULL), if is_full => {
                    if let Some((_, handle)) = self.begun.pop_front() {
                        tracing::debug!("ended a slow TLS handshake: others wait");
                        handle.abort();
                    }
                }
            }
        }
    }

    /// Start of the oldest handshake under way; far away if there is none.
    fn oldest(&mut self) -> Instant {
        while let Some((begun, handle)) = self.begun.front() {
            if !handle.is_finished() {
                return *begun;
            }
            self.begun.pop_front();
        }
        Instant::now() + TIME_MAX
    }
}

/// One handshake, from the first byte to a stream; `None` if it failed.
async fn handshake(tls: Arc<ServerTls>, transport: Transport) -> Option<Stream> {
    let peer = transport.peer_addr();
    match tokio::time::timeout(TIME_MAX, shake_hands(tls, transport)).await {
        Ok(Ok(stream)) => return Some(stream),
        Ok(Err(error)) => tracing::debug!(%error, ?peer, "TLS handshake failed"),
        Err(_) => tracing::debug!(?peer, "TLS handshake was too slow"),
    }
    None
}

async fn shake_hands(tls: Arc<ServerTls>, transport: Transport) -> io::Result<Stream> {
    if let Transport::Tcp(stream) = &transport {
        let mut first = [0];
        if stream.peek(&mut first).await? == 1 && first[0] != HANDSHAKE_RECORD {
            answer_plain(transport).await?;
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the client does not speak TLS",
            ));
        }
    }
    if tls.is_look_due() {
        let tls = Arc::clone(&tls);
        tokio::task::spawn_blocking(move || tls.reload()).await?;
    }
    let accept = TlsAcceptor::from(tls.config()).accept(transport);
    match accept.into_fallible().await {
        Ok(stream) => Ok(Stream::tls(stream.into())),
        Err((why, transport)) => {
            linger(transport).await;
            Err(why)
        }
    }
}

async fn answer_plain(mut transport: Transport) -> io::Result<()> {
    let length = SPEAK_TLS.len();
    let answer = format!(
        "HTTP/1.1 400 Bad Request\r\ncontent-type: application/xml\r\ncontent-length: {length}\r\n\
         connection: close\r\n\r\n{SPEAK_TLS}"
    );
    transport.write_all(answer.as_bytes()).await?;
    linger(transport).await;
    Ok(())
}

/// Ends our direction and throws away what still comes: a socket that is closed with unread bytes in it sends
/// a reset, which can overtake what was said last.
async fn linger(mut transport: Transport) {
    let drain = async {
        transport.shutdown().await?;
        let mut left = LINGER_BYTES_MAX;
        let mut bytes = [0; 4 << 10];
        loop {
            let read = transport.read(&mut bytes).await?;
            if read == 0 || read > left {
                return io::Result::Ok(());
            }
            left -= read;
        }
    };
    // The peer was refused; how it takes that is its own affair.
    let _ = tokio::time::timeout(LINGER_TIME_MAX, drain).await;
}
