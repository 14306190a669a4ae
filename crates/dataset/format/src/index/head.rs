//! The head of an index: what the dataset is, its shards, and where the pieces lie.
//!
//! Everything before the pieces. It can be parsed without them, so a loader far away fetches
//! [`HEADER_BYTES`], then the head, then only the pieces that it needs. Parsing checks the CRC of every
//! section and that shards and pieces follow each other without a gap; then tables are read where they lie.

use std::collections::BTreeMap;
use std::ops::Range;

use forebay_core::{Error, Kind, Result, crc32c};
use serde::{Deserialize, Serialize};

use super::bytes::Cursor;
use super::piece::{PieceLayout, damaged};
use super::{Field, SharedBytes};
use crate::shard::{Codec, Format, Layout, ShardRecord};

/// The version of the format that this code writes and reads.
pub const FORMAT_VERSION: u32 = 1;
/// Bytes of the header, which says how long the head is.
pub const HEADER_BYTES: usize = 64;
pub(super) const MAGIC: &[u8; 8] = b"FBYDSIDX";
pub(super) const SECTION_BYTES: usize = 32;
pub(super) const SHARD_BYTES: usize = 96;
pub(super) const PIECE_BYTES: usize = 32;
/// The document about the dataset is not longer.
pub(super) const META_BYTES_MAX: u64 = 16 << 20;
/// A version that is not there has this length.
pub(super) const NO_VERSION: u32 = u32::MAX;
/// Sections in the order in which they lie there; the pieces are the last.
pub(super) const SECTIONS: [u32; 5] = [1, 2, 3, 4, 5];

/// Facts about the dataset as a whole.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meta {
    /// Every field name that occurs, sorted.
    #[serde(default)]
    pub fields: Vec<String>,
    /// Columns of values and what they hold (`i64`, `f64`, `text`).
    #[serde(default)]
    pub columns: BTreeMap<String, String>,
    /// Encodings of fields, where the format says so: MDS encodings, the type of tokens.
    #[serde(default)]
    pub encodings: BTreeMap<String, String>,
    /// Whatever else a format needs to be read again the same way: window length, stride …
    #[serde(default)]
    pub options: BTreeMap<String, String>,
}

/// Location of a piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PieceRecord {
    /// Number of its first sample.
    pub first_sample: u64,
    /// Its start in the index.
    pub offset: u64,
    /// Its size.
    pub bytes: u32,
    /// Its samples.
    pub samples: u32,
    /// The shard that they are in.
    pub shard: u32,
    /// CRC32C of its bytes.
    pub crc32c: u32,
}

impl PieceRecord {
    fn read(bytes: &[u8]) -> Option<Self> {
        let mut cursor = Cursor::new(bytes);
        Some(Self {
            first_sample: cursor.u64()?,
            offset: cursor.u64()?,
            bytes: cursor.u32()?,
            samples: cursor.u32()?,
            shard: cursor.u32()?,
            crc32c: cursor.u32()?,
        })
    }

    /// Its bytes in those of a whole index.
    pub(super) fn slice<'a>(&self, index: &'a [u8]) -> Result<&'a [u8]> {
        let range = usize::try_from(self.offset).ok();
        let range = range.and_then(|start| Some(start..start.checked_add(self.bytes as usize)?));
        range.and_then(|range| index.get(range)).ok_or_else(damaged)
    }

    /// Checks the bytes of the piece and says how to read them. Errors: `Corrupt`.
    pub fn open(&self, piece: &[u8]) -> Result<PieceLayout> {
        if piece.len() != self.bytes as usize || crc32c::crc32c(piece) != self.crc32c {
            return Err(damaged().with("first_sample", self.first_sample));
        }
        PieceLayout::open(piece, self.samples).map_err(|error| error.with("first_sample", self.first_sample))
    }
}

/// A parsed head.
pub struct Head {
    bytes: SharedBytes,
    meta: Meta,
    samples: u64,
    file_bytes: u64,
    shards: Range<usize>,
    pieces: Range<usize>,
    names: Range<usize>,
}

impl std::fmt::Debug for Head {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Head")
            .field("samples", &self.samples)
            .field("shards", &self.shard_count())
            .finish_non_exhaustive()
    }
}

impl Head {
    /// Returns how many bytes from the start of an index its head takes, from its first [`HEADER_BYTES`].
    pub fn bytes_needed(header: &[u8]) -> Result<u64> {
        parse::header(header).map(|header| header.head_bytes)
    }

    /// Parses the head; what comes behind it may be there or not.
    ///
    /// Errors: `InvalidInput` if this is not an index, `Unsupported` for another version, `Corrupt` if it is
    /// damaged or cut.
    pub fn parse(bytes: SharedBytes) -> Result<Self> {
        let all = (*bytes).as_ref();
        let header = parse::header(all)?;
        let sections = parse::sections(all, &header)?;
        let [meta, shards, pieces, names] = sections;
        let meta = serde_json::from_slice(&all[meta]).map_err(|why| damaged().caused_by(why))?;
        let head = Self {
            meta,
            samples: header.samples,
            file_bytes: header.file_bytes,
            shards,
            pieces,
            names,
            bytes,
        };
        head.check(&header)?;
        Ok(head)
    }

    fn check(&self, header: &parse::Header) -> Result<()> {
        let counts = (header.shards, header.pieces);
        if (self.shard_count(), self.piece_count()) != counts {
            return Err(damaged());
        }
        let (mut sample, mut offset, mut piece) = (0_u64, header.head_bytes, 0);
        for number in 0..counts.0 {
            let shard = self.shard(number)?;
            if shard.first_sample != sample || shard.first_piece != piece {
                return Err(damaged().with("shard", number));
            }
            for next in shard.pieces() {
                let record = self.piece(next)?;
                let fits = record.shard == number
                    && record.first_sample == sample
                    && record.offset == offset
                    && record.samples > 0;
                if !fits {
                    return Err(damaged().with("piece", next));
                }
                sample = sample.saturating_add(record.samples.into());
                offset = offset.saturating_add(record.bytes.into());
            }
            piece = shard.pieces().end;
            if sample != shard.first_sample.saturating_add(shard.samples) {
                return Err(damaged().with("shard", number));
            }
        }
        if (sample, offset, piece) != (self.samples, self.file_bytes, counts.1) {
            return Err(damaged());
        }
        Ok(())
    }

    fn all(&self) -> &[u8] {
        (*self.bytes).as_ref()
    }

    fn row(&self, table: &Range<usize>, row_bytes: usize, number: u32) -> Option<&[u8]> {
        let rows = self.all().get(table.clone())?;
        rows.get(number as usize * row_bytes..)?.get(..row_bytes)
    }

    /// Returns what the dataset is.
    #[must_use]
    pub fn meta(&self) -> &Meta {
        &self.meta
    }

    /// Returns how many samples there are.
    #[must_use]
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// Bytes of the whole index.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    /// Returns how many shards there are.
    #[must_use]
    pub fn shard_count(&self) -> u32 {
        u32::try_from(self.shards.len() / SHARD_BYTES).unwrap_or(u32::MAX)
    }

    /// Returns how many pieces there are.
    #[must_use]
    pub fn piece_count(&self) -> u32 {
        u32::try_from(self.pieces.len() / PIECE_BYTES).unwrap_or(u32::MAX)
    }

    /// A shard, by its number. Errors: `OutOfRange`.
    pub fn shard(&self, number: u32) -> Result<Shard<'_>> {
        let Some(row) = self.row(&self.shards, SHARD_BYTES, number) else {
            let error = Error::new(Kind::OutOfRange, "the dataset has no such shard");
            return Err(error.with("shard", number).with("shards", self.shard_count()));
        };
        let names = self.all().get(self.names.clone()).unwrap_or_default();
        parse::shard(row, names).ok_or_else(|| damaged().with("shard", number))
    }

    /// Returns what of a shard every sample is compared with; cheaper than all of it.
    pub(super) fn bounds(&self, number: u32) -> Result<Bounds> {
        let row = self.row(&self.shards, SHARD_BYTES, number);
        row.and_then(parse::bounds)
            .ok_or_else(|| damaged().with("shard", number))
    }

    /// All shards in order.
    pub fn shards(&self) -> impl Iterator<Item = Result<Shard<'_>>> {
        (0..self.shard_count()).map(|number| self.shard(number))
    }

    /// A piece, by its number. Errors: `OutOfRange`.
    pub fn piece(&self, number: u32) -> Result<PieceRecord> {
        let row = self.row(&self.pieces, PIECE_BYTES, number);
        row.and_then(PieceRecord::read).ok_or_else(|| {
            Error::new(Kind::OutOfRange, "the dataset index has no such piece").with("piece", number)
        })
    }

    /// The number of the piece that holds a sample. Errors: `OutOfRange`.
    pub fn piece_of(&self, sample: u64) -> Result<u32> {
        if sample >= self.samples {
            let error = Error::new(Kind::OutOfRange, "the dataset has no such sample");
            return Err(error.with("sample", sample).with("samples", self.samples));
        }
        let (mut low, mut high) = (0, self.piece_count());
        while low < high {
            let middle = low + (high - low) / 2;
            if self.piece(middle)?.first_sample <= sample {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low.checked_sub(1).ok_or_else(damaged)
    }
}

/// A shard of an index; names are read where they lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shard<'a> {
    name: &'a str,
    version: Option<&'a str>,
    bytes: u64,
    stream_bytes: u64,
    first_sample: u64,
    samples: u64,
    first_piece: u32,
    pieces: u32,
    format: Format,
    codec: Codec,
    layout: Layout,
    sha256: Option<&'a [u8; 32]>,
}

impl<'a> Shard<'a> {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &'a str {
        self.name
    }

    /// The version that was indexed, if it was known.
    #[must_use]
    pub fn version(&self) -> Option<&'a str> {
        self.version
    }

    /// Bytes of the object as it is stored.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes after decompression.
    #[must_use]
    pub fn stream_bytes(&self) -> u64 {
        self.stream_bytes
    }

    /// Returns how samples are packed.
    #[must_use]
    pub fn format(&self) -> Format {
        self.format
    }

    /// Returns how the object is compressed.
    #[must_use]
    pub fn codec(&self) -> Codec {
        self.codec
    }

    /// Returns what its name stands for.
    #[must_use]
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// SHA-256 of the object as it is stored, if it was computed.
    #[must_use]
    pub fn sha256(&self) -> Option<&'a [u8; 32]> {
        self.sha256
    }

    /// Number of its first sample in the dataset.
    #[must_use]
    pub fn first_sample(&self) -> u64 {
        self.first_sample
    }

    /// Returns how many samples it has.
    #[must_use]
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// Numbers of its pieces.
    #[must_use]
    pub fn pieces(&self) -> Range<u32> {
        self.first_piece..self.first_piece.saturating_add(self.pieces)
    }

    /// Everything that is known of it, as a value of its own.
    #[must_use]
    pub fn record(&self) -> ShardRecord {
        ShardRecord {
            name: self.name.to_owned(),
            bytes: self.bytes,
            version: self.version.map(str::to_owned),
            sha256: self.sha256.copied(),
            format: self.format,
            codec: self.codec,
            stream_bytes: self.stream_bytes,
            layout: self.layout,
        }
    }

    /// Returns whether what is in the lake now is what was indexed; see [`ShardRecord::check`].
    pub fn check(&self, bytes: u64, version: Option<&str>) -> Result<()> {
        self.record().check(bytes, version)
    }
}

/// First sample of a shard, and the end of its samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Bounds {
    stream_bytes: u64,
    pub(super) first_sample: u64,
}

impl Bounds {
    /// Every field must end inside of the shard.
    pub(super) fn check_inside(&self, fields: &[Field<'_>]) -> Result<()> {
        let end = |field: &Field<'_>| field.offset.checked_add(field.bytes);
        let is_inside = |field| end(field).is_some_and(|end| end <= self.stream_bytes);
        match fields.iter().all(is_inside) {
            true => Ok(()),
            false => Err(damaged()),
        }
    }
}

mod parse;
