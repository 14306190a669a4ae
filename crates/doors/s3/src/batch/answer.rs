//! The answer to a batch as bytes: frames and pieces, in order, small ones put together.
//!
//! Large pieces go to the socket as they lie in the cache; what is small (frames, short items) is copied into
//! buffers, so that a batch of thousands of short items is a few writes. A failure becomes a frame of its
//! item; the answer itself fails only if the client goes away.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use forebay_core::{ByteRange, Error, Kind, Result, Tier, TierBytes, crc32c};
use forebay_engine::{Piece, PieceStream};
use forebay_wire::batch::{BATCH_CHUNK_BYTES_MAX, BatchFrame, BatchItem};
use forebay_wire::{Failure, Item, encode};
use futures::stream::BoxStream;
use futures::{Stream, StreamExt, stream};
use hyper::body::{Body as HttpBody, Frame};
use s3s::Body;

use super::ahead::open_all;
use super::item::{Batch, Opened};

/// Pieces shorter than this are copied into a buffer.
const SMALL_BYTES: usize = 16 << 10;

/// A buffer is sent when it has so many bytes, or when nothing more is at hand.
const BUFFER_BYTES: usize = 64 << 10;

/// Context that a failure may show: what is about the request. The rest (which lake, which disk) stays in the
/// log.
const SHOWN_CONTEXT: [&str; 15] = [
    "bucket",
    "key",
    "version",
    "wanted",
    "member",
    "members",
    "first_member",
    "offset",
    "bytes",
    "bytes_max",
    "object_bytes",
    "archive_bytes",
    "member_bytes",
    "left_bytes",
    "timeout_ms",
];

/// Values in a failure are cut to this.
const SHOWN_VALUE_CHARS_MAX: usize = 1200;

/// The whole answer.
pub(super) fn body(batch: Arc<Batch>, items: Vec<Item>) -> Body {
    let count = u32::try_from(items.len()).unwrap_or(u32::MAX);
    let opened = open_all(Arc::clone(&batch), items);
    let frames = opened.flat_map(move |opened| stream::unfold(Sending::new(&batch, opened), Sending::next));
    let done = stream::once(async move { frame(&BatchFrame::Done { items: count }) });
    Body::http_body_unsync(Buffered {
        parts: frames.chain(done).boxed(),
        buffer: BytesMut::new(),
        large: None,
        has_ended: false,
    })
}

fn frame(frame: &BatchFrame) -> Bytes {
    let mut out = Vec::with_capacity(64);
    if let Err(error) = encode(frame, &mut out) {
        // Lengths are limited, so this cannot be; without the frame the client sees a broken answer.
        tracing::error!(?error, "a frame of a batch cannot be written");
        out.clear();
    }
    out.into()
}

/// One item on its way out.
struct Sending {
    batch: Arc<Batch>,
    ready: VecDeque<Bytes>,
    first: VecDeque<Piece>,
    rest: Option<PieceStream>,
    missing_bytes: u64,
    sources: TierBytes,
    is_over: bool,
    /// Keeps the item's share of the bytes ahead until it is sent.
    _share: Option<tokio::sync::OwnedSemaphorePermit>,
}

impl Sending {
    fn new(batch: &Arc<Batch>, opened: Result<Opened>) -> Self {
        let mut sending = Self {
            batch: Arc::clone(batch),
            ready: VecDeque::new(),
            first: VecDeque::new(),
            rest: None,
            missing_bytes: 0,
            sources: TierBytes::default(),
            is_over: false,
            _share: None,
        };
        match opened {
            Ok(opened) => sending.begin(opened),
            Err(error) => sending.end(&BatchFrame::Failed(sending.failure(&error))),
        }
        sending
    }

    fn begin(&mut self, opened: Opened) {
        self.missing_bytes = opened.range.map_or(0, ByteRange::len);
        self.ready.push_back(frame(&BatchFrame::Found(BatchItem {
            version: opened.info.version.as_str().to_owned(),
            object_bytes: opened.info.bytes,
            offset: opened.range.map_or(0, ByteRange::start),
            bytes: self.missing_bytes,
        })));
        self.first = opened.first;
        self.rest = opened.rest;
        self._share = opened._share;
    }

    /// The next bytes of the item; `None` when all have gone.
    async fn next(mut self) -> Option<(Bytes, Self)> {
        loop {
            if let Some(bytes) = self.ready.pop_front() {
                return Some((bytes, self));
            }
            if self.is_over {
                return None;
            }
            if self.missing_bytes == 0 {
                self.end(&BatchFrame::End(self.sources));
                continue;
            }
            let sent = self.next_piece().await.and_then(|piece| self.add(piece));
            if let Err(error) = sent {
                self.end(&BatchFrame::Broken(self.failure(&error)));
            }
        }
    }

    async fn next_piece(&mut self) -> Result<Piece> {
        if let Some(piece) = self.first.pop_front() {
            return Ok(piece);
        }
        let next = match &mut self.rest {
            Some(rest) => self.batch.next_piece(rest).await,
            None => None,
        };
        next.unwrap_or_else(|| {
            Err(Error::new(
                Kind::Internal,
                "the pieces of an item ended too early",
            ))
        })
    }

    fn add(&mut self, piece: Piece) -> Result<()> {
        let piece_bytes = piece.bytes.len() as u64;
        self.missing_bytes = self.missing_bytes.checked_sub(piece_bytes).ok_or_else(|| {
            let message = "the pieces of an item have more bytes than were asked for";
            Error::new(Kind::Internal, message)
        })?;
        self.batch.context.count_tier(piece.tier, piece.bytes.len());
        match piece.tier {
            Tier::Ram => self.sources.ram += piece_bytes,
            Tier::Nvme => self.sources.nvme += piece_bytes,
            Tier::Peer => self.sources.peer += piece_bytes,
            Tier::Lake => self.sources.lake += piece_bytes,
        }
        let mut bytes = piece.bytes;
        while !bytes.is_empty() {
            let chunk = bytes.split_to(bytes.len().min(BATCH_CHUNK_BYTES_MAX));
            self.ready.push_back(frame(&BatchFrame::Chunk {
                bytes: u32::try_from(chunk.len()).expect("a chunk is shorter than 4 GiB"),
                crc32c: crc32c::crc32c(&chunk),
            }));
            self.ready.push_back(chunk);
        }
        Ok(())
    }

    fn end(&mut self, last: &BatchFrame) {
        self.ready.push_back(frame(last));
        self.is_over = true;
        self.first.clear();
        self.rest = None;
    }

    /// The error as the client sees it; logged here if it is not the client's.
    fn failure(&self, error: &Error) -> Failure {
        let is_ours = matches!(
            error.kind(),
            Kind::Internal | Kind::Io | Kind::Checksum | Kind::NoSpace | Kind::Unavailable
        );
        if is_ours {
            tracing::warn!(
                request_id = self.batch.context.id,
                ?error,
                "an item of a batch failed"
            );
        }
        let cut = |text: &str| text.chars().take(SHOWN_VALUE_CHARS_MAX).collect::<String>();
        let shown = error
            .context()
            .filter(|(name, _)| SHOWN_CONTEXT.contains(name))
            .take(SHOWN_CONTEXT.len());
        Failure {
            kind: error.kind().as_str().into(),
            message: cut(error.message()),
            context: shown.map(|(name, value)| (name.into(), cut(value))).collect(),
        }
    }
}

/// Puts small parts together.
struct Buffered {
    parts: BoxStream<'static, Bytes>,
    buffer: BytesMut,
    /// Goes out after the buffer.
    large: Option<Bytes>,
    has_ended: bool,
}

impl Buffered {
    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if let Some(large) = self.large.take() {
            return Poll::Ready(Some(large));
        }
        while !self.has_ended && self.buffer.len() < BUFFER_BYTES {
            match Pin::new(&mut self.parts).poll_next(cx) {
                Poll::Ready(Some(part)) if part.len() < SMALL_BYTES => self.buffer.extend_from_slice(&part),
                Poll::Ready(Some(part)) if self.buffer.is_empty() => return Poll::Ready(Some(part)),
                Poll::Ready(Some(part)) => {
                    self.large = Some(part);
                    break;
                }
                Poll::Ready(None) => self.has_ended = true,
                Poll::Pending if self.buffer.is_empty() => return Poll::Pending,
                Poll::Pending => break,
            }
        }
        let full = self.buffer.split().freeze();
        Poll::Ready((!full.is_empty()).then_some(full))
    }
}

impl HttpBody for Buffered {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.poll_part(cx)
            .map(|part| part.map(|part| Ok(Frame::data(part))))
    }
}
