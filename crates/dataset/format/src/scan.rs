//! One pass over a shard: bytes go in, in order; samples, their places and their checksums come out.
//!
//! [`ShardScan`] is what a caller drives: it hashes what is stored, decompresses what is compressed, lets the
//! [`ShardScanner`] of the format find the samples, and collects them into a [`ShardIndex`]. Life cycle:
//! `new`, `push` until all bytes have come, `finish`. Payloads are never held, only looked at as they pass;
//! so an index is a by-product of the first read, and a scan costs little more than its CRC32C. Any piece
//! size gives the same result.

mod accumulator;
mod codec;

use forebay_core::{Error, Kind, Result};
use sha2::{Digest, Sha256};

pub(crate) use accumulator::{Accumulator, StreamingCrc};
pub use codec::Decompressor;

use crate::index::{ColumnSpec, SampleRecord, ShardIndex, ShardIndexBuilder, ShardIndexOptions};
use crate::jsonl::JsonlScanner;
use crate::mds::MdsScanner;
use crate::parquet::ParquetScanner;
use crate::shard::{Codec, Format, ShardRecord};
use crate::tar::TarSamples;
use crate::tfrecord::{self, TfRecordScanner};
use crate::tokens::{TokenScanner, TokenWindows};

/// Takes the samples that a scanner finds, in order.
pub trait SampleSink {
    /// Takes the next one.
    fn sample(&mut self, sample: &SampleRecord<'_>) -> Result<()>;

    /// Says, before the first sample, which values every sample brings; none if it is not called.
    fn columns(&mut self, _columns: &[ColumnSpec]) -> Result<()> {
        Ok(())
    }
}

impl SampleSink for ShardIndexBuilder {
    fn sample(&mut self, sample: &SampleRecord<'_>) -> Result<()> {
        Self::sample(self, sample)
    }

    fn columns(&mut self, columns: &[ColumnSpec]) -> Result<()> {
        self.set_columns(columns)
    }
}

impl<F: FnMut(&SampleRecord<'_>) -> Result<()>> SampleSink for F {
    fn sample(&mut self, sample: &SampleRecord<'_>) -> Result<()> {
        self(sample)
    }
}

/// Finds the samples of one format while the bytes of a shard come in, in any pieces.
pub trait ShardScanner: Send {
    /// Takes the next bytes of the shard, decompressed.
    fn push(&mut self, bytes: &[u8], sink: &mut dyn SampleSink) -> Result<()>;

    /// All bytes have come. Errors: `Corrupt` if the shard stops in the middle of something.
    fn finish(&mut self, sink: &mut dyn SampleSink) -> Result<()>;
}

/// Options of a scan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScanOptions {
    /// The format.
    pub format: Format,
    /// Its codec; `None`: look at its first bytes.
    pub codec: Option<Codec>,
    /// Bytes that a compressed shard has to unpack to, where a document says so; what has more or fewer is
    /// refused.
    pub stream_bytes: Option<u64>,
    /// Keeps keys of samples.
    pub with_keys: bool,
    /// Computes the SHA-256 of the shard.
    pub with_sha256: bool,
    /// Windows of tokens; needed for `npy` and `bin`.
    pub tokens: Option<TokenWindows>,
}

impl ScanOptions {
    /// Keys and SHA-256 on, compression by the first bytes.
    #[must_use]
    pub fn new(format: Format) -> Self {
        Self {
            format,
            codec: None,
            stream_bytes: None,
            with_keys: true,
            with_sha256: true,
            tokens: None,
        }
    }
}

/// As many first bytes as it takes to tell how a shard is compressed.
const SNIFF_BYTES: usize = tfrecord::HEADER_BYTES;

/// A scan of one shard.
pub struct ShardScan {
    options: ScanOptions,
    record: ShardRecord,
    hasher: Option<Sha256>,
    received_bytes: u64,
    /// First bytes, until there are enough to tell the codec.
    first: Vec<u8>,
    open: Option<OpenScan>,
    builder: ShardIndexBuilder,
}

struct OpenScan {
    codec: Codec,
    decompressor: Option<Decompressor>,
    /// Bytes that it has decompressed, if that is known.
    stream_bytes: Option<u64>,
    scanner: Box<dyn ShardScanner>,
}

impl ShardScan {
    /// For the shard of this name, size and version.
    #[must_use]
    pub fn new(record: ShardRecord, options: ScanOptions) -> Self {
        let keep = ShardIndexOptions {
            with_keys: options.with_keys && matches!(options.format, Format::Tar),
            columns: Vec::new(),
        };
        Self {
            hasher: options.with_sha256.then(Sha256::new),
            record,
            received_bytes: 0,
            first: Vec::new(),
            open: None,
            builder: ShardIndexBuilder::new(keep),
            options,
        }
    }

    /// Takes the next bytes as they lie in the lake.
    pub fn push(&mut self, bytes: &[u8]) -> Result<()> {
        self.received_bytes += bytes.len() as u64;
        if let Some(hasher) = &mut self.hasher {
            hasher.update(bytes);
        }
        let result = match &mut self.open {
            Some(open) => open.push(bytes, &mut self.builder),
            None => self.begin(bytes),
        };
        result.map_err(|error| error.with("shard", &self.record.name))
    }

    /// Collects first bytes until the codec is clear, then passes them on.
    fn begin(&mut self, bytes: &[u8]) -> Result<()> {
        let missing = SNIFF_BYTES.saturating_sub(self.first.len()).min(bytes.len());
        let (head, rest) = bytes.split_at(missing);
        self.first.extend_from_slice(head);
        if self.first.len() < SNIFF_BYTES {
            return Ok(());
        }
        self.open()?.push(rest)
    }

    fn open(&mut self) -> Result<OpenedScan<'_>> {
        let codec = self
            .options
            .codec
            .unwrap_or_else(|| sniff(self.options.format, &self.first));
        let stream_bytes = match codec {
            Codec::None => Some(self.record.bytes),
            _ => self.options.stream_bytes,
        };
        let open = self.open.insert(OpenScan {
            codec,
            decompressor: Decompressor::new(codec)?,
            stream_bytes,
            scanner: scanner(&self.options, codec, stream_bytes)?,
        });
        open.push(&std::mem::take(&mut self.first), &mut self.builder)?;
        Ok(OpenedScan {
            open,
            builder: &mut self.builder,
        })
    }

    /// The index of the shard.
    ///
    /// Errors: `Changed` if more or fewer bytes came than the shard has; `Corrupt` if it stops in the middle
    /// of something.
    pub fn finish(mut self) -> Result<ShardIndex> {
        if self.received_bytes != self.record.bytes {
            let message = "not as many bytes came as the shard has; read it again";
            let error = Error::new(Kind::Changed, message).with("shard", &self.record.name);
            let error = error.with("bytes", self.record.bytes);
            return Err(error.with("received_bytes", self.received_bytes));
        }
        let name = self.record.name.clone();
        let (codec, stream_bytes) = self.end().map_err(|error| error.with("shard", name))?;
        let mut record = self.record;
        record.codec = codec;
        record.stream_bytes = stream_bytes;
        record.sha256 = self.hasher.map(|hasher| hasher.finalize().into());
        Ok(self.builder.finish(record))
    }

    fn end(&mut self) -> Result<(Codec, u64)> {
        if self.open.is_none() {
            self.open()?;
        }
        let open = self.open.as_mut().expect("it was opened just now");
        let mut stream_bytes = self.record.bytes;
        if let Some(decompressor) = &mut open.decompressor {
            decompressor.finish()?;
            stream_bytes = decompressor.stream_bytes();
            if open.stream_bytes.is_some_and(|expected| expected != stream_bytes) {
                return Err(other_length(open.stream_bytes));
            }
        }
        open.scanner.finish(&mut self.builder)?;
        Ok((open.codec, stream_bytes))
    }
}

/// A scan that knows its codec.
struct OpenedScan<'a> {
    open: &'a mut OpenScan,
    builder: &'a mut ShardIndexBuilder,
}

impl OpenedScan<'_> {
    fn push(self, bytes: &[u8]) -> Result<()> {
        self.open.push(bytes, self.builder)
    }
}

impl OpenScan {
    fn push(&mut self, bytes: &[u8], builder: &mut ShardIndexBuilder) -> Result<()> {
        match &mut self.decompressor {
            None => self.scanner.push(bytes, builder),
            Some(decompressor) => {
                let (scanner, expected) = (&mut self.scanner, self.stream_bytes);
                let mut left = expected.map(|bytes| bytes.saturating_sub(decompressor.stream_bytes()));
                decompressor.push(bytes, &mut |bytes| {
                    if let Some(left) = &mut left {
                        *left = left
                            .checked_sub(bytes.len() as u64)
                            .ok_or_else(|| other_length(expected))?;
                    }
                    scanner.push(bytes, builder)
                })
            }
        }
    }
}

fn other_length(expected: Option<u64>) -> Error {
    let message = "the shard does not unpack to as many bytes as its index.json says; upload both again";
    Error::new(Kind::Corrupt, message).with("expected", expected.unwrap_or_default())
}

/// Returns how a shard is compressed, by its first bytes. What could be plain data of its format is plain.
#[must_use]
pub fn sniff(format: Format, first: &[u8]) -> Codec {
    let is_plain = match format {
        Format::TfRecord => tfrecord::is_plain(first),
        // Any bytes are numbers, and Parquet and numpy have magics of their own.
        Format::Bin | Format::Parquet | Format::Raw => true,
        _ => false,
    };
    // zlib's two header bytes are a multiple of 31 and say "deflate".
    let is_zlib = |bytes: [u8; 2]| bytes[0] & 0x0f == 8 && u16::from_be_bytes(bytes).is_multiple_of(31);
    match first {
        _ if is_plain => Codec::None,
        [0x1f, 0x8b, 8, ..] => Codec::Gzip,
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Codec::Zstd,
        [
            b'B',
            b'Z',
            b'h',
            b'1'..=b'9',
            0x31,
            0x41,
            0x59,
            0x26,
            0x53,
            0x59,
            ..,
        ] => Codec::Bzip2,
        [one, two, ..] if format == Format::TfRecord && is_zlib([*one, *two]) => Codec::Zlib,
        _ => Codec::None,
    }
}

fn scanner(options: &ScanOptions, codec: Codec, stream_bytes: Option<u64>) -> Result<Box<dyn ShardScanner>> {
    let is_packed = codec != Codec::None;
    let windows = || {
        options.tokens.clone().ok_or_else(|| {
            let message = "say how tokens are cut: the length of a sample, and for .bin the type of a token; or that the format is raw, if each file is a sample";
            Error::new(Kind::InvalidInput, message)
        })
    };
    Ok(match options.format {
        Format::Tar => Box::new(TarSamples::new(stream_bytes)),
        Format::TfRecord => Box::new(TfRecordScanner::new(stream_bytes)),
        Format::Mds if is_packed => Box::new(MdsScanner::packed(stream_bytes)),
        Format::Mds => Box::new(MdsScanner::new(stream_bytes)),
        Format::Npy => Box::new(TokenScanner::npy(windows()?)?),
        Format::Bin => Box::new(TokenScanner::bin(windows()?)?),
        Format::Jsonl => Box::new(JsonlScanner::new()),
        Format::Parquet => Box::new(ParquetScanner::new()),
        Format::Raw => {
            let message = "raw files are collected by a RawBuilder, not scanned as a shard";
            return Err(Error::new(Kind::InvalidInput, message));
        }
    })
}

#[cfg(test)]
mod tests;
