//! Decompression of whole shards as they stream by.
//!
//! Output leaves in small pieces of one fixed buffer, so a shard that unpacks to a thousand times its size
//! costs time, not memory. Trailing checksums of the codec are checked, and a stream that just stops is an
//! error. `deflate.rs` is gzip and zlib; Zstandard's decoder does its own framing, with windows of up to 128
//! MiB. The others are what MDS shards may be compressed with besides.

mod brotli;
mod bzip2;
mod deflate;
mod snappy;

use forebay_core::{Error, Kind, Result};
use zstd::stream::raw::{Decoder as RawZstd, InBuffer, Operation, OutBuffer};

use self::bzip2::Bzip2;
use crate::shard::Codec;
use brotli::Brotli;
use deflate::Deflate;
use snappy::Snappy;

const OUT_BYTES: usize = 128 << 10;

/// Takes plain bytes.
type Each<'a> = dyn FnMut(&[u8]) -> Result<()> + 'a;

/// Takes compressed bytes and hands on plain ones.
pub struct Decompressor {
    kind: Inner,
    stream_bytes: u64,
    out: Box<[u8]>,
}

enum Inner {
    Brotli(Brotli),
    Bzip2(Bzip2),
    Deflate(Deflate),
    Snappy(Snappy),
    Zstd {
        decoder: RawZstd<'static>,
        /// Marks that the last frame is complete.
        is_between_frames: bool,
    },
}

impl Decompressor {
    /// For this codec; `None` if there is nothing to decompress.
    pub fn new(codec: Codec) -> Result<Option<Self>> {
        let kind = match codec {
            Codec::None => return Ok(None),
            Codec::Gzip => Inner::Deflate(Deflate::gzip()),
            Codec::Zlib => Inner::Deflate(Deflate::zlib()),
            Codec::Zstd => Inner::Zstd {
                decoder: RawZstd::new().map_err(damaged)?,
                is_between_frames: true,
            },
            Codec::Bzip2 => Inner::Bzip2(Bzip2::default()),
            Codec::Brotli => Inner::Brotli(Brotli::new()),
            Codec::Snappy => Inner::Snappy(Snappy::new()),
        };
        Ok(Some(Self {
            kind,
            stream_bytes: 0,
            out: vec![0; OUT_BYTES].into_boxed_slice(),
        }))
    }

    /// Plain bytes handed on so far.
    #[must_use]
    pub fn stream_bytes(&self) -> u64 {
        self.stream_bytes
    }

    /// Takes the next compressed bytes. Errors: `Corrupt`, and whatever `each` says.
    pub fn push(&mut self, bytes: &[u8], each: &mut Each<'_>) -> Result<()> {
        let total = &mut self.stream_bytes;
        let mut hand_on = |plain: &[u8]| {
            *total += plain.len() as u64;
            if plain.is_empty() { Ok(()) } else { each(plain) }
        };
        match &mut self.kind {
            Inner::Brotli(decoder) => decoder.push(bytes, &mut self.out, &mut hand_on),
            Inner::Bzip2(decoder) => decoder.push(bytes, &mut self.out, &mut hand_on),
            Inner::Deflate(decoder) => decoder.push(bytes, &mut self.out, &mut hand_on),
            Inner::Snappy(decoder) => decoder.push(bytes, &mut hand_on),
            Inner::Zstd {
                decoder,
                is_between_frames,
            } => {
                let mut input = InBuffer::around(bytes);
                loop {
                    let before = input.pos();
                    let mut output = OutBuffer::around(&mut self.out[..]);
                    let hint = decoder.run(&mut input, &mut output).map_err(damaged)?;
                    let written = output.pos();
                    // Without any progress the answer is about a frame that has not begun.
                    if written > 0 || input.pos() > before {
                        *is_between_frames = hint == 0;
                    }
                    hand_on(&self.out[..written])?;
                    if input.pos() == bytes.len() && written < self.out.len() {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// All compressed bytes have come. Errors: `Corrupt` if the stream is cut.
    pub fn finish(&mut self) -> Result<()> {
        let is_whole = match &self.kind {
            Inner::Brotli(decoder) => decoder.is_whole(),
            Inner::Bzip2(decoder) => decoder.is_whole(),
            Inner::Deflate(decoder) => decoder.is_whole(),
            Inner::Snappy(decoder) => decoder.is_whole(),
            Inner::Zstd {
                is_between_frames, ..
            } => *is_between_frames,
        };
        if is_whole {
            return Ok(());
        }
        Err(damaged("the stream stops in the middle"))
    }
}

fn damaged(why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    let message = "the compressed shard cannot be decompressed; it is damaged or was not uploaded whole";
    Error::new(Kind::Corrupt, message).caused_by(why)
}

#[cfg(test)]
mod tests;
