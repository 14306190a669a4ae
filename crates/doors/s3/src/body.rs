//! Bodies: what comes in is counted and must keep moving; what goes out is counted and is whole or cut.
//!
//! [`RequestBody`] wraps hyper's body before `s3s` sees it. [`PieceBody`] turns the engine's pieces into an
//! answer without copying; if a piece fails, the body ends with an error and hyper cuts the connection, so
//! that a client can never take a short body for a whole one. [`ResponseBody`] is what hyper sends: it holds
//! the request's permit and ends its context when it is dropped.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use forebay_core::{Error, Kind};
use forebay_engine::Piece;
use futures::Stream;
use http::StatusCode;
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use parking_lot::Mutex;
use s3s::stream::{ByteStream, RemainingLength};
use s3s::{Body, StdError};
use tokio::time::{Instant, Sleep};

use crate::context::RequestContext;
use crate::limits::Permit;

/// Why a request's body broke off on the way in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BodyFault {
    /// Nothing came for too long.
    Stalled,
    /// The connection was lost or the framing was wrong.
    Broken,
}

impl fmt::Display for BodyFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Stalled => "the request body made no progress",
            Self::Broken => "the request body broke off",
        })
    }
}

impl std::error::Error for BodyFault {}

/// A request's body, counted, with a limit on how long it may stand still.
pub(crate) struct RequestBody {
    inner: Incoming,
    context: Arc<RequestContext>,
    idle_timeout: Duration,
    /// Made when the body first has to wait; most small bodies never do.
    idle: Option<Pin<Box<Sleep>>>,
    is_waiting: bool,
    has_ended: bool,
    unread: Unread,
}

/// Set when a request was answered before its body had been read: the connection must then close gently, or
/// the client gets a reset instead of the answer.
pub(crate) type Unread = Arc<AtomicBool>;

impl RequestBody {
    pub(crate) fn new(
        inner: Incoming,
        context: Arc<RequestContext>,
        idle_timeout: Duration,
        unread: Unread,
    ) -> Self {
        Self {
            inner,
            context,
            idle_timeout,
            idle: None,
            is_waiting: false,
            has_ended: false,
            unread,
        }
    }

    fn fail(&self, fault: BodyFault) -> Poll<Option<Result<Frame<Bytes>, BodyFault>>> {
        self.context.update(|notes| notes.body_fault = Some(fault));
        Poll::Ready(Some(Err(fault)))
    }

    fn poll_idle(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let deadline = Instant::now() + self.idle_timeout;
        let idle = self
            .idle
            .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
        if !self.is_waiting {
            self.is_waiting = true;
            idle.as_mut().reset(deadline);
        }
        idle.as_mut().poll(cx)
    }
}

impl HttpBody for RequestBody {
    type Data = Bytes;
    type Error = BodyFault;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyFault>>> {
        match Pin::new(&mut self.inner).poll_frame(cx) {
            Poll::Pending => {
                ready!(self.poll_idle(cx));
                self.fail(BodyFault::Stalled)
            }
            Poll::Ready(Some(Ok(frame))) => {
                self.is_waiting = false;
                self.context.count_in(frame.data_ref().map_or(0, Bytes::len));
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(_))) => self.fail(BodyFault::Broken),
            Poll::Ready(None) => {
                self.has_ended = true;
                Poll::Ready(None)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        if !self.has_ended && !self.inner.is_end_stream() {
            self.unread.store(true, Ordering::Relaxed);
        }
    }
}

/// The pieces of an object as an answer's body.
pub(crate) struct PieceBody<S> {
    /// The lock only makes the stream `Sync`; it is never taken.
    pieces: Mutex<S>,
    remaining_bytes: u64,
    context: Option<Arc<RequestContext>>,
    has_failed: bool,
}

impl<S> PieceBody<S> {
    /// `bytes` is how many the pieces must have together.
    pub(crate) fn new(pieces: S, bytes: u64, context: Option<Arc<RequestContext>>) -> Self {
        Self {
            pieces: Mutex::new(pieces),
            remaining_bytes: bytes,
            context,
            has_failed: false,
        }
    }

    fn fail(&mut self, error: Error) -> StdError {
        self.has_failed = true;
        let request_id = self.context.as_ref().map_or("-", |context| context.id.as_str());
        tracing::warn!(request_id, error = ?error, "read failed after the answer had begun; cutting the connection");
        error.into()
    }
}

impl<S: Stream<Item = forebay_core::Result<Piece>> + Unpin> Stream for PieceBody<S> {
    type Item = Result<Bytes, StdError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.has_failed {
            return Poll::Ready(None);
        }
        let next = ready!(Pin::new(self.pieces.get_mut()).poll_next(cx));
        let short = self.remaining_bytes;
        let piece = match next {
            Some(Ok(piece)) => piece,
            Some(Err(error)) => return Poll::Ready(Some(Err(self.fail(error)))),
            None if short == 0 => return Poll::Ready(None),
            None => {
                let error = Error::new(Kind::Internal, "pieces ended too early").with("missing_bytes", short);
                return Poll::Ready(Some(Err(self.fail(error))));
            }
        };
        let Some(rest) = short.checked_sub(piece.bytes.len() as u64) else {
            let error = Error::new(Kind::Internal, "pieces have more bytes than were asked for");
            return Poll::Ready(Some(Err(self.fail(error))));
        };
        self.remaining_bytes = rest;
        if let Some(context) = &self.context {
            context.count_tier(piece.tier, piece.bytes.len());
        }
        Poll::Ready(Some(Ok(piece.bytes)))
    }
}

impl<S: Stream<Item = forebay_core::Result<Piece>> + Unpin> ByteStream for PieceBody<S> {
    fn remaining_length(&self) -> RemainingLength {
        usize::try_from(self.remaining_bytes)
            .map_or_else(|_| RemainingLength::unknown(), RemainingLength::new_exact)
    }
}

/// An answer's body on its way to the socket.
pub(crate) struct ResponseBody {
    inner: Body,
    context: Arc<RequestContext>,
    _permit: Option<Permit>,
    status: StatusCode,
    bytes_out: u64,
    /// `None` if the length is not known before the end.
    bytes_expected: Option<u64>,
    has_ended: bool,
}

impl ResponseBody {
    /// `is_head`: the client gets no body, whatever `inner` has.
    pub(crate) fn new(
        inner: Body,
        context: Arc<RequestContext>,
        permit: Option<Permit>,
        status: StatusCode,
        is_head: bool,
    ) -> Self {
        let bytes_expected = if is_head {
            Some(0)
        } else {
            HttpBody::size_hint(&inner).exact()
        };
        Self {
            inner,
            context,
            _permit: permit,
            status,
            bytes_out: 0,
            bytes_expected,
            has_ended: false,
        }
    }
}

impl HttpBody for ResponseBody {
    type Data = Bytes;
    type Error = StdError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, StdError>>> {
        let frame = ready!(Pin::new(&mut self.inner).poll_frame(cx));
        match &frame {
            Some(Ok(frame)) => self.bytes_out += frame.data_ref().map_or(0, Bytes::len) as u64,
            Some(Err(_)) => {}
            None => self.has_ended = true,
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        HttpBody::size_hint(&self.inner)
    }
}

impl Drop for ResponseBody {
    fn drop(&mut self) {
        let is_complete = self.has_ended || self.bytes_expected == Some(self.bytes_out);
        self.context.end(self.status, self.bytes_out, is_complete);
    }
}

#[cfg(test)]
mod tests {
    use forebay_core::Tier;
    use forebay_engine::PieceStream;
    use futures::StreamExt;

    use super::*;

    fn pieces(parts: Vec<Result<&'static [u8], Error>>) -> PieceStream {
        let mut start = 0;
        let parts: Vec<_> = parts
            .into_iter()
            .map(|part| {
                part.map(|bytes| {
                    let piece = Piece {
                        start,
                        bytes: Bytes::from_static(bytes),
                        tier: Tier::Ram,
                        checksums: forebay_reservoir::BlockChecksums::new(),
                    };
                    start += bytes.len() as u64;
                    piece
                })
            })
            .collect();
        futures::stream::iter(parts).boxed()
    }

    async fn collect(body: PieceBody<PieceStream>) -> (Vec<u8>, bool) {
        let items: Vec<_> = body.collect().await;
        let failed = items.iter().any(Result::is_err);
        (
            items.into_iter().filter_map(Result::ok).flatten().collect(),
            failed,
        )
    }

    #[tokio::test]
    async fn pieces_pass_unchanged() {
        let body = PieceBody::new(pieces(vec![Ok(b"ab"), Ok(b"c")]), 3, None);
        assert_eq!(body.remaining_length().exact(), Some(3));
        assert_eq!(collect(body).await, (b"abc".to_vec(), false));
    }

    #[tokio::test]
    async fn a_short_read_is_an_error_not_an_end() {
        let body = PieceBody::new(pieces(vec![Ok(b"ab")]), 3, None);
        assert!(collect(body).await.1);
    }

    #[tokio::test]
    async fn a_failing_piece_is_an_error() {
        let failed = Err(Error::new(Kind::Unavailable, "lake is gone"));
        assert!(
            collect(PieceBody::new(pieces(vec![Ok(b"ab"), failed]), 3, None))
                .await
                .1
        );
    }

    #[tokio::test]
    async fn surplus_bytes_are_an_error() {
        assert!(
            collect(PieceBody::new(pieces(vec![Ok(b"abcd")]), 3, None))
                .await
                .1
        );
    }
}
