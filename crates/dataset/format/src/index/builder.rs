//! From samples to the bytes of an index: a [`ShardIndex`] per shard, joined by an [`IndexBuilder`].
//!
//! Shards are independent of each other and may be built in parallel, in any order, and taken from an older
//! index; only joining is in order. What is held is the index itself (tens of bytes a sample), never any
//! payload.

use std::collections::BTreeSet;

use forebay_core::{Error, Kind, Result, crc32c};

use super::bytes::{put_u32, put_u64};
use super::head::{
    FORMAT_VERSION, HEADER_BYTES, MAGIC, META_BYTES_MAX, Meta, NO_VERSION, PIECE_BYTES, SECTION_BYTES,
    SECTIONS, SHARD_BYTES,
};
use super::piece::PieceBuilder;
use super::{ColumnSpec, SampleRecord};
use crate::shard::{Layout, NAME_BYTES_MAX, ShardRecord};

/// Contents of the index of a shard besides locations.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ShardIndexOptions {
    /// Keeps keys, so that a sample can be found by its key.
    pub with_keys: bool,
    /// Columns of values; every sample brings one value for each.
    pub columns: Vec<ColumnSpec>,
}

/// The samples of one shard, packed; the unit of building and of rebuilding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardIndex {
    record: ShardRecord,
    /// Number of samples and bytes of each piece.
    pieces: Vec<(u32, Vec<u8>)>,
    fields: BTreeSet<String>,
    columns: Vec<ColumnSpec>,
}

impl ShardIndex {
    pub(super) fn from_pieces(
        record: ShardRecord,
        pieces: Vec<(u32, Vec<u8>)>,
        fields: BTreeSet<String>,
        columns: Vec<ColumnSpec>,
    ) -> Self {
        Self {
            record,
            pieces,
            fields,
            columns,
        }
    }

    /// The shard.
    #[must_use]
    pub fn record(&self) -> &ShardRecord {
        &self.record
    }

    /// Returns how many samples it has.
    #[must_use]
    pub fn samples(&self) -> u64 {
        self.pieces.iter().map(|(samples, _)| u64::from(*samples)).sum()
    }
}

/// Takes the samples of one shard in order.
#[derive(Debug)]
pub struct ShardIndexBuilder {
    options: ShardIndexOptions,
    open: PieceBuilder,
    pieces: Vec<(u32, Vec<u8>)>,
    fields: BTreeSet<String>,
}

impl ShardIndexBuilder {
    /// For a shard of which nothing is known yet.
    #[must_use]
    pub fn new(options: ShardIndexOptions) -> Self {
        Self {
            open: PieceBuilder::new(options.with_keys, &options.columns),
            options,
            pieces: Vec::new(),
            fields: BTreeSet::new(),
        }
    }

    /// Takes the next sample. Errors: `InvalidInput` if names are too long or values do not fit the columns.
    pub fn sample(&mut self, sample: &SampleRecord<'_>) -> Result<()> {
        self.open.add(sample)?;
        if self.open.is_full() {
            self.close();
        }
        Ok(())
    }

    /// Says which values the samples bring, if that is known only now. Errors: `Internal` after the first
    /// sample.
    pub(crate) fn set_columns(&mut self, columns: &[ColumnSpec]) -> Result<()> {
        if self.open.samples() > 0 || !self.pieces.is_empty() {
            let message = "columns of an index were changed after its first sample";
            return Err(Error::new(Kind::Internal, message));
        }
        self.options.columns = columns.to_vec();
        self.open = PieceBuilder::new(self.options.with_keys, columns);
        Ok(())
    }

    fn close(&mut self) {
        let next = PieceBuilder::new(self.options.with_keys, &self.options.columns);
        let full = std::mem::replace(&mut self.open, next);
        if full.samples() > 0 {
            self.fields.extend(full.names().iter().cloned());
            self.pieces.push((full.samples(), full.finish()));
        }
    }

    /// The index of the shard, now that all is known about it.
    #[must_use]
    pub fn finish(mut self, record: ShardRecord) -> ShardIndex {
        self.close();
        ShardIndex::from_pieces(record, self.pieces, self.fields, self.options.columns)
    }
}

/// Joins the shards of a dataset.
#[derive(Debug, Default)]
pub struct IndexBuilder {
    meta: Meta,
    shards: Vec<ShardIndex>,
    fields: BTreeSet<String>,
}

impl IndexBuilder {
    /// An index without shards.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Says how the bytes of a field are to be read.
    pub fn encoding(&mut self, field: impl Into<String>, encoding: impl Into<String>) {
        self.meta.encodings.insert(field.into(), encoding.into());
    }

    /// Keeps something that a format needs to be read again the same way.
    pub fn option(&mut self, name: impl Into<String>, value: impl Into<String>) {
        self.meta.options.insert(name.into(), value.into());
    }

    /// Takes the next shard.
    ///
    /// Errors: `InvalidInput` if its name is too long or a column of values has another kind than in the
    /// shards before.
    pub fn add(&mut self, shard: ShardIndex) -> Result<()> {
        let record = &shard.record;
        let longest = record
            .name
            .len()
            .max(record.version.as_ref().map_or(0, String::len));
        if longest > NAME_BYTES_MAX {
            let error = Error::new(Kind::InvalidInput, "the name or version of a shard is too long");
            return Err(error.with("bytes", longest).with("bytes_max", NAME_BYTES_MAX));
        }
        for column in &shard.columns {
            let kind = column.kind.as_str().to_owned();
            let known = self.meta.columns.entry(column.name.clone()).or_insert(kind);
            if known != column.kind.as_str() {
                let error = Error::new(
                    Kind::InvalidInput,
                    "a column has different kinds in different shards",
                );
                return Err(error.with("column", &column.name).with("shard", &record.name));
            }
        }
        self.fields.extend(shard.fields.iter().cloned());
        self.shards.push(shard);
        Ok(())
    }

    /// The bytes of the index. Errors: `InvalidInput` if there are more shards or pieces than fit,
    /// `Unsupported` if there are too many names.
    pub fn finish(mut self) -> Result<Vec<u8>> {
        self.meta.fields = self.fields.iter().cloned().collect();
        let meta = serde_json::to_vec(&self.meta).map_err(|why| too_large().caused_by(why))?;
        if meta.len() as u64 > META_BYTES_MAX {
            let message =
                "the samples of the dataset have too many different fields; is every field name unique?";
            let error = Error::new(Kind::Unsupported, message).with("fields", self.meta.fields.len());
            return Err(error.with("bytes_max", META_BYTES_MAX));
        }
        let (mut shards, mut pieces, mut names) = (Vec::new(), Vec::new(), Vec::new());
        let piece_count: usize = self.shards.iter().map(|shard| shard.pieces.len()).sum();
        let table_end = HEADER_BYTES + SECTIONS.len() * SECTION_BYTES;
        let names_bytes: usize = self.shards.iter().map(|shard| names_of(&shard.record)).sum();
        let head_bytes = table_end
            + meta.len()
            + self.shards.len() * SHARD_BYTES
            + piece_count * PIECE_BYTES
            + names_bytes;
        let (mut sample, mut offset, mut piece) = (0_u64, head_bytes as u64, 0_u32);
        for (number, shard) in (0_u32..).zip(&self.shards) {
            let count = u32::try_from(shard.pieces.len()).map_err(|_| too_large())?;
            let place = (sample, shard.samples(), piece, count);
            write_shard(&mut shards, &mut names, &shard.record, place)?;
            for (samples, bytes) in &shard.pieces {
                put_u64(&mut pieces, sample);
                put_u64(&mut pieces, offset);
                put_u32(&mut pieces, u32::try_from(bytes.len()).map_err(|_| too_large())?);
                put_u32(&mut pieces, *samples);
                put_u32(&mut pieces, number);
                put_u32(&mut pieces, crc32c::crc32c(bytes));
                sample += u64::from(*samples);
                offset += bytes.len() as u64;
            }
            piece = piece.checked_add(count).ok_or_else(too_large)?;
        }
        let shard_count = u32::try_from(self.shards.len()).map_err(|_| too_large())?;
        let mut out = header(
            &[&meta, &shards, &pieces, &names],
            [
                sample,
                shard_count.into(),
                piece.into(),
                head_bytes as u64,
                offset,
            ],
        );
        for section in [&meta, &shards, &pieces, &names] {
            out.extend_from_slice(section);
        }
        for shard in &self.shards {
            for (_, bytes) in &shard.pieces {
                out.extend_from_slice(bytes);
            }
        }
        Ok(out)
    }
}

/// Header and table of sections; the numbers are samples, shards, pieces, bytes of the head and of all.
fn header(sections: &[&[u8]; 4], numbers: [u64; 5]) -> Vec<u8> {
    let [samples, shards, pieces, head_bytes, file_bytes] = numbers;
    let mut table = Vec::new();
    let mut offset = (HEADER_BYTES + SECTIONS.len() * SECTION_BYTES) as u64;
    for (position, kind) in SECTIONS.into_iter().enumerate() {
        let section = sections.get(position);
        let bytes = section.map_or(file_bytes - head_bytes, |section| section.len() as u64);
        put_u32(&mut table, kind);
        put_u32(&mut table, section.map_or(0, |section| crc32c::crc32c(section)));
        put_u64(&mut table, offset);
        put_u64(&mut table, bytes);
        put_u64(&mut table, 0);
        offset += bytes;
    }
    let mut out = MAGIC.to_vec();
    put_u32(&mut out, FORMAT_VERSION);
    put_u32(&mut out, u32::try_from(SECTIONS.len()).expect("sections are few"));
    put_u64(&mut out, samples);
    put_u32(&mut out, u32::try_from(shards).expect("it was one"));
    put_u32(&mut out, u32::try_from(pieces).expect("it was one"));
    put_u64(&mut out, head_bytes);
    put_u64(&mut out, file_bytes);
    put_u64(&mut out, 0);
    put_u32(&mut out, crc32c::crc32c(&table));
    let crc = crc32c::crc32c(&out);
    put_u32(&mut out, crc);
    out.extend_from_slice(&table);
    out
}

fn names_of(record: &ShardRecord) -> usize {
    record.name.len() + record.version.as_ref().map_or(0, String::len)
}

/// The place is first sample, samples, first piece, pieces.
fn write_shard(
    out: &mut Vec<u8>,
    names: &mut Vec<u8>,
    record: &ShardRecord,
    place: (u64, u64, u32, u32),
) -> Result<()> {
    put_u64(out, record.bytes);
    put_u64(out, record.stream_bytes);
    put_u64(out, place.0);
    put_u64(out, place.1);
    put_u32(out, place.2);
    put_u32(out, place.3);
    for text in [Some(&record.name), record.version.as_ref()] {
        put_u32(out, u32::try_from(names.len()).map_err(|_| too_large())?);
        let bytes = text.map_or(Ok(NO_VERSION), |text| u32::try_from(text.len()));
        put_u32(out, bytes.map_err(|_| too_large())?);
        names.extend_from_slice(text.map_or(&[], |text| text.as_bytes()));
    }
    out.push(record.format.code());
    out.push(record.codec.code());
    out.push(match record.layout {
        Layout::OneObject => 0,
        Layout::ObjectPerSample => 1,
    });
    out.push(u8::from(record.sha256.is_some()));
    put_u32(out, 0);
    out.extend_from_slice(&record.sha256.unwrap_or_default());
    Ok(())
}

fn too_large() -> Error {
    let message = "the dataset has more shards than one index can hold; split it into several datasets";
    Error::new(Kind::InvalidInput, message)
}
