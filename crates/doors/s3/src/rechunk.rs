//! Cuts the chunks of an aws-chunked body to a size that may be held in memory.
//!
//! `s3s` collects a whole chunk before it hands it on, and some SDKs (Rust, CRT) send their whole body as one
//! chunk, so a large PUT would be held in memory whole. An unsigned chunk is cut into small ones here, as its
//! bytes come in; a signed one cannot be cut, so one that is too large is refused. Only the framing changes,
//! never a byte of the body.

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use hyper::body::{Body as HttpBody, Frame};

use crate::body::BodyFault;

/// Unsigned chunks up to this pass as they are.
const UNSIGNED_CHUNK_BYTES_MAX: u64 = 1 << 20;

/// Signed chunks beyond this are refused; SDKs sign chunks of 64 KiB to 1 MiB.
const SIGNED_CHUNK_BYTES_MAX: u64 = 16 << 20;

/// The same limit as in `s3s`.
const LINE_BYTES_MAX: usize = 1024;

/// Why a body ends early.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ChunkFault {
    /// The body below broke off.
    Body(BodyFault),
    /// A signed chunk is larger than we hold.
    TooLarge,
    /// The head or the end of a chunk is malformed.
    Framing,
}

impl fmt::Display for ChunkFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Body(fault) => fault.fmt(f),
            Self::TooLarge => f.write_str("SignedChunkTooLarge"),
            Self::Framing => f.write_str("the framing of the chunks is wrong"),
        }
    }
}

impl std::error::Error for ChunkFault {}

/// Returns whether a request says that its body is aws-chunked.
pub(crate) fn is_chunked(headers: &HeaderMap) -> bool {
    headers
        .get("x-amz-content-sha256")
        .is_some_and(|payload| payload.as_bytes().starts_with(b"STREAMING-"))
}

/// An aws-chunked body whose chunks are small.
pub(crate) struct SmallChunks<B> {
    inner: B,
    framing: Framing,
    ready: VecDeque<Bytes>,
}

impl<B> SmallChunks<B> {
    pub(crate) fn new(inner: B) -> Self {
        Self {
            inner,
            framing: Framing::default(),
            ready: VecDeque::new(),
        }
    }
}

impl<B> HttpBody for SmallChunks<B>
where
    B: HttpBody<Data = Bytes, Error = BodyFault> + Unpin,
{
    type Data = Bytes;
    type Error = ChunkFault;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ChunkFault>>> {
        let this = &mut *self;
        loop {
            if let Some(bytes) = this.ready.pop_front() {
                return Poll::Ready(Some(Ok(Frame::data(bytes))));
            }
            let frame = match ready!(Pin::new(&mut this.inner).poll_frame(cx)) {
                Some(Ok(frame)) => frame,
                Some(Err(fault)) => return Poll::Ready(Some(Err(ChunkFault::Body(fault)))),
                None => return Poll::Ready(None),
            };
            if let Ok(bytes) = frame.into_data()
                && let Err(fault) = this.framing.take(bytes, &mut this.ready)
            {
                return Poll::Ready(Some(Err(fault)));
            }
        }
    }
}

/// Position of a body in its framing.
#[derive(Debug, Default)]
enum Framing {
    /// In the line before a chunk: its beginning.
    #[default]
    Start,
    Line(BytesMut),
    /// In a chunk of which so much is still to come.
    Chunk {
        bytes_left: u64,
        is_cut: bool,
    },
    /// In the line end after a chunk: how much of it has been seen.
    End {
        seen: usize,
        is_cut: bool,
    },
    /// Behind the last chunk.
    Trailers,
}

impl Framing {
    /// Takes bytes as they come and puts out what `s3s` shall see.
    fn take(&mut self, mut bytes: Bytes, out: &mut VecDeque<Bytes>) -> Result<(), ChunkFault> {
        while !bytes.is_empty() {
            *self = match std::mem::take(self) {
                Self::Start => Self::Line(BytesMut::new()),
                Self::Line(line) => take_line(line, &mut bytes, out)?,
                Self::Chunk { bytes_left, is_cut } => {
                    let here = usize::try_from(bytes_left).map_or(bytes.len(), |left| left.min(bytes.len()));
                    let piece = bytes.split_to(here);
                    if is_cut {
                        out.push_back(Bytes::from(format!("{here:x}\r\n")));
                    }
                    out.push_back(piece);
                    if is_cut {
                        out.push_back(Bytes::from_static(b"\r\n"));
                    }
                    match bytes_left - here as u64 {
                        0 => Self::End { seen: 0, is_cut },
                        bytes_left => Self::Chunk { bytes_left, is_cut },
                    }
                }
                Self::End { seen, is_cut } => {
                    let byte = bytes.split_to(1);
                    if byte[0] != b"\r\n"[seen] {
                        return Err(ChunkFault::Framing);
                    }
                    if !is_cut {
                        out.push_back(byte);
                    }
                    match seen {
                        0 => Self::End { seen: 1, is_cut },
                        _ => Self::Start,
                    }
                }
                Self::Trailers => {
                    out.push_back(std::mem::take(&mut bytes));
                    Self::Trailers
                }
            };
        }
        Ok(())
    }
}

/// Goes on with the line before a chunk, `size[;chunk-signature=…]`.
fn take_line(
    mut line: BytesMut,
    bytes: &mut Bytes,
    out: &mut VecDeque<Bytes>,
) -> Result<Framing, ChunkFault> {
    let end = bytes.iter().position(|byte| *byte == b'\n');
    line.extend_from_slice(&bytes.split_to(end.map_or(bytes.len(), |at| at + 1)));
    if line.len() > LINE_BYTES_MAX {
        return Err(ChunkFault::Framing);
    }
    if end.is_none() {
        return Ok(Framing::Line(line));
    }
    let text = line.strip_suffix(b"\r\n").ok_or(ChunkFault::Framing)?;
    let is_signed = text.contains(&b';');
    let size = text.split(|byte| *byte == b';').next().unwrap_or_default();
    let bytes_left = chunk_bytes(size).ok_or(ChunkFault::Framing)?;
    if is_signed && bytes_left > SIGNED_CHUNK_BYTES_MAX {
        return Err(ChunkFault::TooLarge);
    }
    let is_cut = !is_signed && bytes_left > UNSIGNED_CHUNK_BYTES_MAX;
    if !is_cut {
        out.push_back(line.freeze());
    }
    if bytes_left == 0 {
        return Ok(Framing::Trailers);
    }
    Ok(Framing::Chunk { bytes_left, is_cut })
}

fn chunk_bytes(hex: &[u8]) -> Option<u64> {
    if hex.is_empty() || !hex.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    u64::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Feeds a body in pieces of this size and returns what comes out.
    fn fed(body: &[u8], piece_bytes: usize) -> Result<Vec<Bytes>, ChunkFault> {
        let (mut framing, mut out) = (Framing::default(), VecDeque::new());
        for piece in body.chunks(piece_bytes) {
            framing.take(Bytes::copy_from_slice(piece), &mut out)?;
        }
        Ok(out.into())
    }

    /// The bytes in the chunks, and the largest chunk.
    fn unframed(mut body: &[u8]) -> (Vec<u8>, usize, Vec<u8>) {
        let (mut bytes, mut largest) = (Vec::new(), 0);
        loop {
            let end = body.iter().position(|byte| *byte == b'\n').unwrap();
            let line = std::str::from_utf8(&body[..end - 1]).unwrap();
            let size = usize::from_str_radix(line.split(';').next().unwrap(), 16).unwrap();
            body = &body[end + 1..];
            if size == 0 {
                return (bytes, largest, body.to_vec());
            }
            bytes.extend_from_slice(&body[..size]);
            assert_eq!(&body[size..size + 2], b"\r\n");
            body = &body[size + 2..];
            largest = largest.max(size);
        }
    }

    #[test]
    fn a_large_unsigned_chunk_is_cut_and_keeps_its_bytes_and_trailers() {
        let bytes: Vec<u8> = (0..3_000_000u32).map(|n| (n % 251) as u8).collect();
        let mut body = format!("{:x}\r\n", bytes.len()).into_bytes();
        body.extend_from_slice(&bytes);
        body.extend_from_slice(b"\r\n3\r\nabc\r\n0\r\nx-amz-checksum-crc32:AAAAAA==\r\n\r\n");
        let out = fed(&body, 100_001).unwrap().concat();
        let (found, largest, trailers) = unframed(&out);
        assert_eq!(found, [bytes.as_slice(), b"abc"].concat());
        assert!(largest <= 100_001);
        assert_eq!(trailers, b"x-amz-checksum-crc32:AAAAAA==\r\n\r\n");
    }

    #[test]
    fn a_large_signed_chunk_is_refused_at_its_head() {
        let signature = "0".repeat(64);
        let head = format!("{:x};chunk-signature={signature}\r\n", SIGNED_CHUNK_BYTES_MAX + 1);
        assert_eq!(fed(head.as_bytes(), 7), Err(ChunkFault::TooLarge));
        let head = format!("{SIGNED_CHUNK_BYTES_MAX:x};chunk-signature={signature}\r\n");
        assert_eq!(fed(head.as_bytes(), 7).unwrap().concat(), head.as_bytes());
    }

    #[test]
    fn wrong_framing_is_an_error() {
        for body in [
            "\r\n",
            "x\r\n",
            "+3\r\nabc\r\n",
            "3\nabc\r\n",
            "3\r\nabcd\r\n",
            "ffffffffffffffffff\r\n",
            &"1".repeat(2000),
        ] {
            assert_eq!(fed(body.as_bytes(), 5), Err(ChunkFault::Framing), "{body}");
        }
    }

    proptest! {
        #[test]
        fn small_chunks_pass_byte_for_byte(chunks in prop::collection::vec(1usize..40, 0..9), piece in 1usize..50) {
            let mut body = Vec::new();
            for size in chunks {
                body.extend_from_slice(format!("{size:X}\r\n{}\r\n", "z".repeat(size)).as_bytes());
            }
            body.extend_from_slice(b"0\r\na:b\r\n\r\n");
            prop_assert_eq!(fed(&body, piece).unwrap().concat(), body);
        }

        #[test]
        fn any_bytes_are_answered(body in prop::collection::vec(any::<u8>(), 0..200), piece in 1usize..50) {
            let _ = fed(&body, piece);
        }
    }
}
