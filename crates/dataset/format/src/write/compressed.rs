//! A shard that is compressed as a whole while it is written.
//!
//! The bytes of another writer pass through one stream of gzip (without name and date) or Zstandard (with the
//! length of what is in it, which some readers want), so the same samples are the same bytes. What is ready
//! goes on at once; held are the windows of the compressor and [`READY_BYTES`]. On their way in the bytes are
//! counted and hashed, because an `index.json` describes both the shard and its compressed file.

use std::io::{self, Write};

use flate2::Compression;
use flate2::write::GzEncoder;
use forebay_core::{Error, Kind, Result};
use zstd::stream::write::Encoder;

use super::{Out, PackSample, RawShard, ShardWriter};
use crate::manifest::Hasher;

/// Compressed bytes that are handed on together.
const READY_BYTES: usize = 64 << 10;

/// A compressor that keeps what is ready in a vector.
pub(super) trait Stream: Write {
    /// Returns what is ready.
    fn ready(&mut self) -> &mut Vec<u8>;

    /// Ends the stream; what was still held.
    fn end(self) -> io::Result<Vec<u8>>;
}

impl Stream for GzEncoder<Vec<u8>> {
    fn ready(&mut self) -> &mut Vec<u8> {
        self.get_mut()
    }

    fn end(self) -> io::Result<Vec<u8>> {
        self.finish()
    }
}

impl Stream for Encoder<'static, Vec<u8>> {
    fn ready(&mut self) -> &mut Vec<u8> {
        self.get_mut()
    }

    fn end(self) -> io::Result<Vec<u8>> {
        self.finish()
    }
}

/// Compresses what another writer writes.
pub(super) struct Compressed<W, S> {
    inner: W,
    /// Opens the stream, at the first byte.
    begin: Box<dyn Fn() -> io::Result<S> + Send>,
    state: StreamState<S>,
    hasher: Hasher,
    bytes: u64,
}

enum StreamState<S> {
    New,
    Open(S),
    Ended(RawShard),
}

/// The other writer's shard in gzip.
pub(super) fn gzip<W: ShardWriter>(inner: W) -> Compressed<W, GzEncoder<Vec<u8>>> {
    let begin = || Ok(GzEncoder::new(Vec::new(), Compression::default()));
    Compressed::new(inner, Box::new(begin))
}

/// The other writer's shard, which has so many bytes, in Zstandard.
pub(super) fn zstd<W: ShardWriter>(
    inner: W,
    level: i32,
    bytes: u64,
) -> Compressed<W, Encoder<'static, Vec<u8>>> {
    let begin = move || {
        let mut stream = Encoder::new(Vec::new(), level)?;
        stream.set_pledged_src_size(Some(bytes))?;
        Ok(stream)
    };
    Compressed::new(inner, Box::new(begin))
}

impl<W: ShardWriter, S: Stream> Compressed<W, S> {
    fn new(inner: W, begin: Box<dyn Fn() -> io::Result<S> + Send>) -> Self {
        Self {
            inner,
            begin,
            state: StreamState::New,
            hasher: Hasher::new(),
            bytes: 0,
        }
    }

    /// Lets the other writer write, and hands on what is ready.
    fn through(&mut self, write: impl FnOnce(&mut W, Out<'_>) -> Result<()>, out: Out<'_>) -> Result<()> {
        if matches!(self.state, StreamState::New) {
            self.state = StreamState::Open((self.begin)().map_err(failed)?);
        }
        let StreamState::Open(stream) = &mut self.state else {
            return Err(ended());
        };
        write(&mut self.inner, &mut |bytes| {
            self.hasher.push(bytes);
            self.bytes += bytes.len() as u64;
            stream.write_all(bytes).map_err(failed)?;
            if stream.ready().len() >= READY_BYTES {
                out(stream.ready())?;
                stream.ready().clear();
            }
            Ok(())
        })
    }
}

impl<W: ShardWriter, S: Stream> ShardWriter for Compressed<W, S> {
    fn start(&mut self, out: Out<'_>) -> Result<()> {
        self.through(|inner, out| inner.start(out), out)
    }

    fn sample(&mut self, sample: &PackSample<'_>, out: Out<'_>) -> Result<()> {
        self.through(|inner, out| inner.sample(sample, out), out)
    }

    fn finish(&mut self, out: Out<'_>) -> Result<()> {
        self.through(|inner, out| inner.finish(out), out)?;
        let raw = RawShard {
            bytes: self.bytes,
            sha256: std::mem::take(&mut self.hasher).finish(),
        };
        let StreamState::Open(stream) = std::mem::replace(&mut self.state, StreamState::Ended(raw)) else {
            return Err(ended());
        };
        out(&stream.end().map_err(failed)?)
    }

    fn raw(&self) -> Option<RawShard> {
        match self.state {
            StreamState::Ended(raw) => Some(raw),
            StreamState::New | StreamState::Open(_) => None,
        }
    }
}

fn ended() -> Error {
    Error::new(Kind::Internal, "a shard was written to after its end")
}

fn failed(why: io::Error) -> Error {
    Error::new(Kind::Internal, "the shard cannot be compressed").caused_by(why)
}
