//! A connection that a peer cannot hold for nothing.
//!
//! Around the [`Stream`] of a door: the head of a request has a short time once its first byte is there, what
//! we write has to be taken at a minimum pace (`pace.rs`), and closing is gentle when the peer may still be
//! sending. The idle time between requests is the server's to limit, and ends early when another connection
//! needs the place (`connections.rs`).

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use crate::connections::Activity;
use crate::pace::{Pace, PaceLimits};
use crate::stream::Stream;

/// Bytes and time that a client may still send after it was refused, so that it gets to read why.
const LINGER_BYTES_MAX: usize = 64 << 20;
const LINGER_TIME_MAX: Duration = Duration::from_secs(2);

/// A stream whose peer has to keep going.
#[derive(Debug)]
pub struct Guarded {
    stream: Stream,
    activity: Arc<Activity>,
    head_timeout: Duration,
    /// Runs while a head comes in.
    head: Option<Pin<Box<Sleep>>>,
    pace: Pace,
    /// Made when our direction has been closed and the peer may still send.
    linger: Option<Linger>,
}

/// The rest of a closed connection's life.
#[derive(Debug)]
struct Linger {
    until: Pin<Box<Sleep>>,
    bytes_left: usize,
}

impl Guarded {
    /// Guards a stream. `head_timeout` is the time of a request's head from its first byte on, `pace` what is
    /// asked of a peer that reads.
    #[must_use]
    pub fn new(stream: Stream, activity: Arc<Activity>, head_timeout: Duration, pace: PaceLimits) -> Self {
        Self {
            stream,
            activity,
            head_timeout,
            head: None,
            pace: Pace::new(pace),
            linger: None,
        }
    }

    /// Lets the clock of a head run while there is one. Ready when it has taken too long.
    fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if !self.activity.is_in_head() {
            self.head = None;
            return Poll::Pending;
        }
        let timeout = self.head_timeout;
        self.head
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(timeout)))
            .as_mut()
            .poll(cx)
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

    /// Counts the time of a write that has to wait, and what it has moved in the end.
    fn watch<T>(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<T>>,
        bytes: impl FnOnce(&T) -> usize,
    ) -> Poll<io::Result<T>> {
        match &written {
            Poll::Ready(Ok(moved)) => self.pace.moved(bytes(moved)),
            Poll::Ready(Err(_)) => {}
            Poll::Pending => {
                std::task::ready!(self.pace.poll_wait(cx));
                return Poll::Ready(Err(timed_out("the peer reads too slowly")));
            }
        }
        written
    }
}

fn timed_out(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, why)
}

impl AsyncRead for Guarded {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.poll_head(cx).is_ready() {
            return Poll::Ready(Err(timed_out("the head of a request took too long")));
        }
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        if read.is_ready() && buf.filled().len() > before && self.activity.received() {
            // The clock begins here; it is looked at when more is asked for.
            let _ = self.poll_head(cx);
        }
        read
    }
}

impl AsyncWrite for Guarded {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.watch(cx, written, |bytes| *bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.watch(cx, written, |bytes| *bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // TLS keeps the end of an answer in a buffer of its own, so its flush can stall as a write can.
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        let flushed = self.watch(cx, flushed, |()| 0);
        if matches!(flushed, Poll::Ready(Ok(()))) {
            self.activity.flushed();
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.linger.is_none() {
            std::task::ready!(Pin::new(&mut self.stream).poll_shutdown(cx))?;
            if self.activity.has_unread() {
                self.linger = Some(Linger {
                    until: Box::pin(tokio::time::sleep(LINGER_TIME_MAX)),
                    bytes_left: LINGER_BYTES_MAX,
                });
            }
        }
        self.poll_linger(cx).map(Ok)
    }
}
