//! Bodies: what comes in is counted and must keep moving; what goes out is counted and is whole or cut.
//!
//! [`RequestBody`] wraps hyper's body before `s3s` sees it: bytes count as held when they are here
//! (`limits.rs`), wait if there is no room, and have to come at a minimum pace (`forebay_net::Pace`).
//! [`PieceBody`] turns the engine's pieces into an answer without copying; if a piece fails, the body ends
//! with an error and hyper cuts the connection, so that a client can never take a short body for a whole one.
//! [`ResponseBody`] is what hyper sends: it ends the request's context, and with it its permit, when it is
//! dropped.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use forebay_core::{Error, Kind};
use forebay_engine::Piece;
use forebay_net::{Activity, Pace, PaceLimits};
use futures::Stream;
use http::StatusCode;
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use parking_lot::Mutex;
use s3s::stream::{ByteStream, RemainingLength};
use s3s::{Body, StdError};
use tokio::time::{Instant, Sleep};

use crate::context::RequestContext;

/// Why a request's body broke off on the way in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BodyFault {
    /// It came too slowly or not at all.
    Stalled,
    /// It is longer than the operation takes.
    TooLong,
    /// There was no room for it for too long.
    NoRoom,
    /// The connection was lost or the framing was wrong.
    Broken,
}

impl fmt::Display for BodyFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Stalled => "the request body came too slowly",
            Self::TooLong => "the request body is longer than this operation takes",
            Self::NoRoom => "too much is in flight; try again in a second",
            Self::Broken => "the request body broke off",
        })
    }
}

impl std::error::Error for BodyFault {}

/// The longest wait for room, and the time between two looks for it.
const ROOM_WAIT_MAX: Duration = Duration::from_secs(20);
const ROOM_LOOK_PERIOD: Duration = Duration::from_millis(20);

/// A request's body: counted, admitted as it comes, with a minimum pace.
pub(crate) struct RequestBody {
    inner: Incoming,
    context: Arc<RequestContext>,
    pace: Pace,
    /// Bytes that have come and find no room.
    held_back: Option<HeldBack>,
    has_ended: bool,
    activity: Arc<Activity>,
}

struct HeldBack {
    frame: Frame<Bytes>,
    until: Instant,
    look: Pin<Box<Sleep>>,
}

type Polled = Poll<Option<Result<Frame<Bytes>, BodyFault>>>;

impl RequestBody {
    pub(crate) fn new(
        inner: Incoming,
        context: Arc<RequestContext>,
        pace: PaceLimits,
        activity: Arc<Activity>,
    ) -> Self {
        Self {
            inner,
            context,
            pace: Pace::new(pace),
            held_back: None,
            has_ended: false,
            activity,
        }
    }

    fn fail(&self, fault: BodyFault) -> Polled {
        self.context.update(|notes| notes.body_fault = Some(fault));
        Poll::Ready(Some(Err(fault)))
    }

    /// Hands bytes on, or keeps them until there is room.
    fn take(&mut self, frame: Frame<Bytes>, cx: &mut Context<'_>) -> Polled {
        let bytes = frame.data_ref().map_or(0, Bytes::len);
        match self.context.receive(bytes) {
            Ok(true) => Poll::Ready(Some(Ok(frame))),
            Ok(false) => {
                self.held_back = Some(HeldBack {
                    frame,
                    until: Instant::now() + ROOM_WAIT_MAX,
                    look: Box::pin(tokio::time::sleep(ROOM_LOOK_PERIOD)),
                });
                self.poll_room(cx)
            }
            Err(fault) => self.fail(fault),
        }
    }

    /// Looks for room again and again.
    fn poll_room(&mut self, cx: &mut Context<'_>) -> Polled {
        while let Some(held_back) = &mut self.held_back {
            ready!(held_back.look.as_mut().poll(cx));
            let bytes = held_back.frame.data_ref().map_or(0, Bytes::len);
            let now = Instant::now();
            match self.context.receive(bytes) {
                Ok(true) => return Poll::Ready(self.held_back.take().map(|held_back| Ok(held_back.frame))),
                Ok(false) if now < held_back.until => held_back.look.as_mut().reset(now + ROOM_LOOK_PERIOD),
                Ok(false) => return self.fail(BodyFault::NoRoom),
                Err(fault) => return self.fail(fault),
            }
        }
        Poll::Pending
    }
}

impl HttpBody for RequestBody {
    type Data = Bytes;
    type Error = BodyFault;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Polled {
        if self.held_back.is_some() {
            return self.poll_room(cx);
        }
        match Pin::new(&mut self.inner).poll_frame(cx) {
            Poll::Pending => {
                let is_over = self.pace.poll_wait(cx).is_ready();
                if self.pace.is_slow() {
                    self.context.break_promise();
                }
                if is_over {
                    return self.fail(BodyFault::Stalled);
                }
                Poll::Pending
            }
            Poll::Ready(Some(Ok(frame))) => {
                self.pace.moved(frame.data_ref().map_or(0, Bytes::len));
                self.take(frame, cx)
            }
            Poll::Ready(Some(Err(_))) => self.fail(BodyFault::Broken),
            Poll::Ready(None) => {
                self.has_ended = true;
                Poll::Ready(None)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.held_back.is_none() && self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let held_back = self
            .held_back
            .as_ref()
            .and_then(|held_back| held_back.frame.data_ref());
        let (mut hint, bytes) = (self.inner.size_hint(), held_back.map_or(0, Bytes::len) as u64);
        if bytes > 0 {
            // The upper bound first: it may never lie below the lower one.
            if let Some(upper) = hint.upper() {
                hint.set_upper(upper + bytes);
            }
            hint.set_lower(hint.lower() + bytes);
        }
        hint
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        if !self.has_ended && !self.inner.is_end_stream() {
            self.activity.leave_unread();
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
    activity: Arc<Activity>,
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
        activity: Arc<Activity>,
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
            activity,
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
        self.activity.end_answer();
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
