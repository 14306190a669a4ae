//! Entry points for fuzzing: each takes any bytes and panics if a promise about them does not hold.
//!
//! Not part of the API. `fuzz/` drives them with libFuzzer, `fuzzing/tests.rs` with the committed corpus
//! and with mutations of it. Each entry compares what the real code does with a plain second opinion.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::header::{HeaderMap, HeaderValue, RANGE};
use hyper::body::{Body as HttpBody, Frame};
use s3s::dto::Range;

use crate::body::BodyFault;
use crate::ignored_range::is_ignored;
use crate::ops::object_read::wanted_range;
use crate::rechunk::{ChunkFault, SmallChunks};

/// Most bytes of an unsigned chunk after `SmallChunks`.
const CHUNK_BYTES_MAX: usize = 1 << 20;

/// A `Range` header against an object: the first 8 bytes are its size, the rest is the header.
///
/// # Panics
/// If a range that is let through reaches out of the object, or is read in another way than the header says.
pub fn range_header(data: &[u8]) {
    let Some((size, header)) = data.split_first_chunk::<8>() else {
        return;
    };
    let object_bytes = u64::from_le_bytes(*size);
    let Ok(value) = HeaderValue::from_bytes(header) else {
        return;
    };
    let headers = HeaderMap::from_iter([(RANGE, value)]);
    let text = std::str::from_utf8(header).unwrap_or_default();
    if is_ignored(&headers) || text.is_empty() {
        // S3 ignores it; what it must not be is an ordinary range.
        assert!(plain_range(text).is_none(), "ignored: {text:?}");
        return;
    }
    let range = Range::parse(text).expect("a range that is not ignored can be parsed");
    let Ok(request) = wanted_range(Some(range), None) else {
        return;
    };
    let resolved = request.within(object_bytes).ok().flatten();
    let Some((first, last)) = plain_range(text) else {
        // Spelled in some unusual way; it must still lie inside.
        assert!(resolved.is_none_or(|range| range.end() <= object_bytes));
        return;
    };
    let expected = match (first, last) {
        (Some(first), last) => {
            first..last.map_or(object_bytes, |last| last.saturating_add(1).min(object_bytes))
        }
        (None, Some(suffix)) => object_bytes.saturating_sub(suffix)..object_bytes,
        (None, None) => 0..0,
    };
    let found = resolved.map_or(0..0, |range| range.start()..range.end());
    assert!(
        found == expected || (found.is_empty() && expected.is_empty()),
        "{text:?} of {object_bytes}: {found:?}, not {expected:?}"
    );
}

/// `bytes=A-B`, `bytes=A-` and `bytes=-B` with plain digits, read in the plainest way.
fn plain_range(text: &str) -> Option<(Option<u64>, Option<u64>)> {
    let (first, last) = text.strip_prefix("bytes=")?.split_once('-')?;
    let number = |digits: &str| match digits {
        "" => Some(None),
        _ if digits.len() > 18 || !digits.bytes().all(|byte| byte.is_ascii_digit()) => None,
        _ => digits.parse().ok().map(Some),
    };
    match (number(first)?, number(last)?) {
        (None, None) => None,
        (Some(first), Some(last)) if first > last => None,
        range => Some(range),
    }
}

/// An aws-chunked body: the first byte says in which pieces the rest comes in.
///
/// # Panics
/// If a byte of the body or of its trailers is lost, or a chunk comes out that is larger than we hold.
pub fn chunked_body(data: &[u8]) {
    let Some((step, body)) = data.split_first() else {
        return;
    };
    let whole = cut(body, body.len().max(1));
    let pieces = cut(body, usize::from(*step).max(1));
    assert_eq!(whole.as_ref().err(), pieces.as_ref().err());
    if let (Ok(whole), Ok(pieces)) = (&whole, &pieces) {
        let (expected, pieces) = (unframed(body), unframed(pieces));
        assert_eq!(unframed(whole).content(), expected.content());
        assert_eq!(pieces.content(), expected.content());
        assert!(pieces.unsigned_bytes_max <= CHUNK_BYTES_MAX);
    }
}

/// Lets a body pass in pieces of this size.
fn cut(body: &[u8], piece_bytes: usize) -> Result<Vec<u8>, ChunkFault> {
    let pieces = body.chunks(piece_bytes).map(Bytes::copy_from_slice).collect();
    let mut chunks = SmallChunks::new(Pieces(pieces));
    let mut context = Context::from_waker(Waker::noop());
    let mut out = Vec::new();
    loop {
        match Pin::new(&mut chunks).poll_frame(&mut context) {
            Poll::Ready(Some(Ok(frame))) => out.extend_from_slice(frame.data_ref().map_or(&[], |data| data)),
            Poll::Ready(Some(Err(fault))) => return Err(fault),
            Poll::Ready(None) => return Ok(out),
            Poll::Pending => unreachable!("a body in memory never waits"),
        }
    }
}

/// Content of the frames of a body.
#[derive(Default)]
struct Unframed {
    bytes: Vec<u8>,
    /// Bytes behind the last chunk.
    trailers: Vec<u8>,
    /// The largest chunk without a signature.
    unsigned_bytes_max: usize,
}

impl Unframed {
    fn content(&self) -> (&[u8], &[u8]) {
        (&self.bytes, &self.trailers)
    }
}

/// Takes a body apart that `SmallChunks` has let pass; it may be broken off anywhere.
fn unframed(mut body: &[u8]) -> Unframed {
    let mut found = Unframed::default();
    while let Some(end) = body.windows(2).position(|end| end == b"\r\n") {
        let mut line = body[..end].split(|byte| *byte == b';');
        let size = std::str::from_utf8(line.next().unwrap_or_default()).unwrap_or_default();
        let size = u64::from_str_radix(size, 16).expect("it passed");
        let is_signed = line.next().is_some();
        body = &body[end + 2..];
        if size == 0 {
            found.trailers = body.to_vec();
            break;
        }
        let here = usize::try_from(size).map_or(body.len(), |size| size.min(body.len()));
        found.bytes.extend_from_slice(&body[..here]);
        if !is_signed {
            found.unsigned_bytes_max = found.unsigned_bytes_max.max(here);
        }
        body = body[here..].strip_prefix(b"\r\n").unwrap_or_default();
    }
    found
}

/// A body that is all there.
struct Pieces(VecDeque<Bytes>);

impl HttpBody for Pieces {
    type Data = Bytes;
    type Error = BodyFault;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyFault>>> {
        Poll::Ready(self.0.pop_front().map(|bytes| Ok(Frame::data(bytes))))
    }
}

#[cfg(test)]
mod tests;
