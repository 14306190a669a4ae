//! A shard that is compressed as a whole while it is written.
//!
//! The bytes of another writer pass through one gzip stream without name and date, so the same samples are the same bytes. What is ready goes on at once;
//! held are the windows of the compressor and [`READY_BYTES`].

use std::io::Write as _;

use flate2::Compression;
use flate2::write::GzEncoder;
use forebay_core::{Error, Kind, Result};

use super::{Out, PackSample, ShardWriter};

/// Compressed bytes that are handed on together.
const READY_BYTES: usize = 64 << 10;

/// Compresses what another writer writes.
pub(super) struct Gzip<W> {
    inner: W,
    stream: Option<GzEncoder<Vec<u8>>>,
}

impl<W: ShardWriter> Gzip<W> {
    pub(super) fn new(inner: W) -> Self {
        Self {
            inner,
            stream: Some(GzEncoder::new(Vec::new(), Compression::default())),
        }
    }

    /// Lets the other writer write, and hands on what is ready.
    fn through(&mut self, write: impl FnOnce(&mut W, Out<'_>) -> Result<()>, out: Out<'_>) -> Result<()> {
        let stream = self.stream.as_mut().ok_or_else(ended)?;
        write(&mut self.inner, &mut |bytes| {
            stream.write_all(bytes).map_err(failed)?;
            if stream.get_ref().len() >= READY_BYTES {
                out(stream.get_ref())?;
                stream.get_mut().clear();
            }
            Ok(())
        })
    }
}

impl<W: ShardWriter> ShardWriter for Gzip<W> {
    fn start(&mut self, out: Out<'_>) -> Result<()> {
        self.through(|inner, out| inner.start(out), out)
    }

    fn sample(&mut self, sample: &PackSample<'_>, out: Out<'_>) -> Result<()> {
        self.through(|inner, out| inner.sample(sample, out), out)
    }

    fn finish(&mut self, out: Out<'_>) -> Result<()> {
        self.through(|inner, out| inner.finish(out), out)?;
        let stream = self.stream.take().ok_or_else(ended)?;
        out(&stream.finish().map_err(failed)?)
    }
}

fn ended() -> Error {
    Error::new(Kind::Internal, "a shard was written to after its end")
}

fn failed(why: std::io::Error) -> Error {
    Error::new(Kind::Internal, "the shard cannot be compressed").caused_by(why)
}
