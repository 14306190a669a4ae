//! One index for every format: for each sample its shard, the byte ranges of its fields and their CRC32C.
//!
//! Life cycle: every shard is scanned once (`scan.rs`), which gives a [`ShardIndex`]; an [`IndexBuilder`]
//! joins those of all shards into the bytes of an index, which lie beside the data; [`Index::from_bytes`]
//! opens them, mapped or in memory. When one shard was replaced, its `ShardIndex` is made anew and the others
//! are taken from the old index as they are ([`Index::shard_index`]).
//!
//! An index is a head (shards, and where the pieces are) and pieces of up to 65,536 samples each
//! (`piece.rs`). Opening reads the head only: its cost depends on the number of shards, not of samples. A
//! piece is checked against its CRC when a sample of it is asked for the first time. Nothing in an index is
//! trusted: what does not fit is `Corrupt` or `InvalidInput`, never a panic, and memory is never taken by
//! what a number claims. Format: docs/formats/dataset-index.md.

mod builder;
mod bytes;
mod column;
mod head;
mod piece;
mod record;

use std::sync::{Arc, OnceLock};

use forebay_core::{Error, Kind, Result};

pub use builder::{IndexBuilder, ShardIndex, ShardIndexBuilder, ShardIndexOptions};
pub use head::{FORMAT_VERSION, HEADER_BYTES, Head, Meta, PieceRecord, Shard};
pub use piece::{FIELDS_MAX, PIECE_SAMPLES_MAX, PieceLayout};
pub use record::{ColumnKind, ColumnSpec, Field, Sample, SampleRecord, Value};

/// Bytes that an index reads from: a vector, a mapped file, shared memory.
pub type SharedBytes = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// An index that can be asked. Clones of the parts are cheap; share it behind an `Arc`.
pub struct Index {
    head: Head,
    bytes: SharedBytes,
    /// Layout of each piece, filled when it was checked.
    layouts: Box<[OnceLock<Box<PieceLayout>>]>,
}

impl std::fmt::Debug for Index {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Index")
            .field("samples", &self.len())
            .field("shards", &self.shard_count())
            .finish_non_exhaustive()
    }
}

impl Index {
    /// Opens an index; reads its head and nothing else.
    ///
    /// Errors: `InvalidInput` if this is not an index, `Unsupported` for another version, `Corrupt` if it is
    /// damaged or cut.
    pub fn from_bytes(bytes: impl AsRef<[u8]> + Send + Sync + 'static) -> Result<Self> {
        let bytes: SharedBytes = Arc::new(bytes);
        let head = Head::parse(Arc::clone(&bytes))?;
        let found = (*bytes).as_ref().len() as u64;
        if found != head.file_bytes() {
            let message = "the dataset index is cut or has bytes behind its end; build it again: forebay dataset index URL";
            let error = Error::new(Kind::Corrupt, message);
            return Err(error.with("bytes", found).with("expected", head.file_bytes()));
        }
        let layouts = (0..head.piece_count()).map(|_| OnceLock::new()).collect();
        Ok(Self { head, bytes, layouts })
    }

    /// Shards, pieces and what the dataset is.
    #[must_use]
    pub fn head(&self) -> &Head {
        &self.head
    }

    /// Returns how many samples there are.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.head.samples()
    }

    /// Returns whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns how many shards there are.
    #[must_use]
    pub fn shard_count(&self) -> u32 {
        self.head.shard_count()
    }

    /// A shard, by its number.
    pub fn shard(&self, number: u32) -> Result<Shard<'_>> {
        self.head.shard(number)
    }

    /// Returns where sample `number` lies: one search among the pieces, then constant time.
    ///
    /// Errors: `OutOfRange`; `Corrupt` if its piece is damaged or the sample would lie outside of its shard.
    pub fn sample(&self, number: u64) -> Result<Sample<'_>> {
        let (record, layout, piece) = self.piece_of(number)?;
        let at = at(&record, number);
        let (fields, row) = layout.fields(piece, at)?;
        let bounds = self.head.bounds(record.shard)?;
        bounds
            .check_inside(&fields)
            .map_err(|error| match self.head.shard(record.shard) {
                Ok(shard) => error.with("shard", shard.name()),
                Err(_) => error,
            })?;
        Ok(Sample {
            shard: record.shard,
            number_in_shard: number - bounds.first_sample,
            row_in_run: row,
            key: layout.key(piece, at)?,
            fields,
        })
    }

    /// The key of sample `number`; `None` if the index has no keys.
    pub fn key(&self, number: u64) -> Result<Option<&[u8]>> {
        let (record, layout, piece) = self.piece_of(number)?;
        layout.key(piece, at(&record, number))
    }

    /// The first sample with this key. Looks at all keys: meant for people, not for loaders.
    ///
    /// Errors: `NotFound`; `Unsupported` if the index has no keys.
    pub fn find_key(&self, key: &[u8]) -> Result<u64> {
        for number in 0..self.head.piece_count() {
            let record = self.head.piece(number)?;
            let (layout, piece) = self.piece(number)?;
            for sample in 0..record.samples {
                let Some(found) = layout.key(piece, sample)? else {
                    let message =
                        "the dataset index has no keys; give the number of the sample, or index with keys";
                    return Err(Error::new(Kind::Unsupported, message));
                };
                if found == key {
                    return Ok(record.first_sample + u64::from(sample));
                }
            }
        }
        let message = "the dataset has no sample with this key";
        Err(Error::new(Kind::NotFound, message).with("key", String::from_utf8_lossy(key)))
    }

    /// The value of a named column for sample `number`; `None` if its shard has no such column.
    pub fn value(&self, column: &str, number: u64) -> Result<Option<Value<'_>>> {
        let (record, layout, piece) = self.piece_of(number)?;
        let found = layout.columns().iter().position(|spec| spec.name == column);
        found
            .map(|place| layout.value(piece, place, at(&record, number)))
            .transpose()
    }

    /// Returns what was built from one shard, to be joined into another index as it is.
    pub fn shard_index(&self, number: u32) -> Result<ShardIndex> {
        let shard = self.head.shard(number)?;
        let mut pieces = Vec::new();
        let mut names = std::collections::BTreeSet::new();
        let mut columns = Vec::new();
        for piece in shard.pieces() {
            let record = self.head.piece(piece)?;
            let (layout, bytes) = self.piece(piece)?;
            names.extend(layout.names(bytes).map(str::to_owned));
            columns = layout.columns().to_vec();
            pieces.push((record.samples, bytes.to_vec()));
        }
        Ok(ShardIndex::from_pieces(shard.record(), pieces, names, columns))
    }

    /// Checks every piece: what [`Index::sample`] does piece by piece, for all of them.
    pub fn check(&self) -> Result<()> {
        (0..self.head.piece_count()).try_for_each(|number| self.piece(number).map(|_| ()))
    }

    fn piece_of(&self, sample: u64) -> Result<(PieceRecord, &PieceLayout, &[u8])> {
        let number = self.head.piece_of(sample)?;
        let record = self.head.piece(number)?;
        let (layout, piece) = self.open(number, &record)?;
        Ok((record, layout, piece))
    }

    /// A piece, checked the first time.
    fn piece(&self, number: u32) -> Result<(&PieceLayout, &[u8])> {
        self.open(number, &self.head.piece(number)?)
    }

    fn open(&self, number: u32, record: &PieceRecord) -> Result<(&PieceLayout, &[u8])> {
        let bytes = record.slice((*self.bytes).as_ref())?;
        let slot = self.layouts.get(number as usize).ok_or_else(piece::damaged)?;
        if let Some(layout) = slot.get() {
            return Ok((layout, bytes));
        }
        let layout = record.open(bytes)?;
        Ok((slot.get_or_init(|| Box::new(layout)), bytes))
    }
}

/// Returns which sample of its piece this is.
fn at(record: &PieceRecord, sample: u64) -> u32 {
    u32::try_from(sample - record.first_sample).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod golden;
#[cfg(test)]
mod tests;
