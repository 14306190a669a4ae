//! Parquet: samples are rows, and what can be read on its own is a column chunk of a row group.
//!
//! Everything is known from the footer. The index keeps one run of samples per row group: its rows, the byte
//! range of each column chunk as a field, and, where the file has them, the smallest and largest value of a
//! column as the values `min(column)` and `max(column)`, so that a filter passes over row groups without
//! reading them. Column chunks have no CRC32C here: they are read as pages, which have checksums of their own
//! where the writer asked for them.
//!
//! Rows are read in three steps: the footer ([`ParquetFile`]), the pages of a column ([`PageTable`]), and
//! what a page decodes to ([`Slab`]).
//!
//! [`index_footer`] is for a reader that fetches the end of a file; [`ParquetScanner`] for one that has the
//! whole file streaming by. The footer is parsed by the `parquet` crate, whose numbers are compared with the
//! file before they are used. Petastorm's tables are ordinary Parquet; its pickled schema is never looked at.
//! Limits: footers up to [`FOOTER_BYTES_MAX`], no encryption.

mod bounds;
mod decode;
mod file;
mod limits;
mod nested;
mod pieces;
mod schema;
mod statistics;
mod text;
mod thrift;

use std::panic::{AssertUnwindSafe, catch_unwind};

use forebay_core::{Error, Kind, Result};
use parquet::errors::ParquetError;
use parquet::file::metadata::{ColumnChunkMetaData, RowGroupMetaData};

pub use bounds::PageBounds;
pub use decode::{Slab, decode};
pub use file::{PageTable, ParquetFile};
pub use limits::SLAB_BYTES_MAX;
pub use nested::{Nested, list_of, packed_list};
pub use pieces::Pieces;
pub use schema::{ENCODING_PREFIX, Leaf, ValueKind, parse_encoding};
pub(crate) use text::half;
pub use text::{Number, to_numbers, to_text};

use crate::index::{FIELDS_MAX, Field, SampleRecord, ShardIndex, ShardIndexBuilder, ShardIndexOptions};
use crate::scan::{SampleSink, ShardScanner};
use crate::shard::ShardRecord;

/// Bytes at the end of a file that say how long the footer is.
pub const TAIL_BYTES: usize = 8;
/// The longest footer that is read.
pub const FOOTER_BYTES_MAX: usize = 32 << 20;

/// Returns how many bytes the footer of a file has, its tail included, from its last eight bytes.
///
/// Errors: `InvalidInput` if this is not Parquet, `Unsupported` for an encrypted or very long footer.
pub fn footer_bytes(tail: &[u8]) -> Result<usize> {
    let (length, magic) = tail
        .last_chunk::<TAIL_BYTES>()
        .and_then(|tail| tail.split_first_chunk::<4>())
        .ok_or_else(not_parquet)?;
    match magic {
        b"PAR1" => {}
        b"PARE" => {
            let message = "the footer of the Parquet file is encrypted; write it without encryption";
            return Err(Error::new(Kind::Unsupported, message));
        }
        _ => return Err(not_parquet()),
    }
    let bytes = u32::from_le_bytes(*length) as usize + TAIL_BYTES;
    if bytes > FOOTER_BYTES_MAX {
        let message = "the footer of the Parquet file is too long; write fewer row groups or columns";
        let error = Error::new(Kind::Unsupported, message).with("bytes", bytes);
        return Err(error.with("bytes_max", FOOTER_BYTES_MAX));
    }
    Ok(bytes)
}

fn not_parquet() -> Error {
    let message = "this is not a Parquet file: it does not end with PAR1; it may not have been written whole";
    Error::new(Kind::InvalidInput, message)
}

fn damaged(what: &str) -> Error {
    Error::new(Kind::Corrupt, format!("the Parquet file {what}; write it again"))
}

/// The index of a file from its footer: the last [`footer_bytes`] of it, or more.
pub fn index_footer(end_of_file: &[u8], record: ShardRecord) -> Result<ShardIndex> {
    let file =
        ParquetFile::parse(end_of_file, record.bytes).map_err(|error| error.with("shard", &record.name))?;
    index_file(&file, record)
}

/// The index of a file whose footer was read.
pub fn index_file(file: &ParquetFile, record: ShardRecord) -> Result<ShardIndex> {
    let mut builder = ShardIndexBuilder::new(ShardIndexOptions::default());
    emit(file, &mut builder).map_err(|error| error.with("shard", &record.name))?;
    Ok(builder.finish(record))
}

fn read_footer(end_of_file: &[u8], file_bytes: u64, sink: &mut dyn SampleSink) -> Result<()> {
    emit(&ParquetFile::parse(end_of_file, file_bytes)?, sink)
}

/// Runs a part of the `parquet` crate that is known to panic on some hostile files; a panic is an error of
/// the file. What would end the process instead is refused before (`thrift.rs`).
fn guarded<T>(work: impl FnOnce() -> Result<T, ParquetError>) -> Result<T, ParquetError> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        Err(ParquetError::General(
            "the reader of the file has panicked".into(),
        ))
    })
}

fn emit(file: &ParquetFile, sink: &mut dyn SampleSink) -> Result<()> {
    let groups = file.footer.row_groups();
    let leaves = file.leaves();
    if leaves.len() > FIELDS_MAX || groups.iter().any(|group| group.num_columns() != leaves.len()) {
        return Err(damaged(
            "has too many columns, or other columns in some row groups",
        ));
    }
    let summary = statistics::Summary::of(file);
    sink.columns(summary.columns())?;
    for (number, group) in groups.iter().enumerate() {
        let rows = rows(group).map_err(|error| error.with("row_group", number))?;
        let fields: Vec<Field<'_>> = leaves
            .iter()
            .zip(group.columns())
            .map(|(leaf, chunk)| field(&leaf.name, chunk, file.data_end))
            .collect::<Result<_>>()
            .map_err(|error| error.with("row_group", number))?;
        if rows > 0 {
            sink.sample(&SampleRecord {
                key: None,
                fields: &fields,
                values: &summary.values(number),
                repeat: rows,
            })?;
        }
    }
    Ok(())
}

fn rows(group: &RowGroupMetaData) -> Result<u32> {
    let rows = u32::try_from(group.num_rows())
        .ok()
        .filter(|rows| *rows <= 1 << 31);
    rows.ok_or_else(|| damaged("has a row group with a wrong number of rows"))
}

/// Returns where a column chunk lies. The crate's own `byte_range` panics on what a hostile file may say.
fn field<'a>(name: &'a str, chunk: &ColumnChunkMetaData, data_end: u64) -> Result<Field<'a>> {
    if chunk.file_path().is_some_and(|path| !path.is_empty()) {
        let message = "the Parquet file keeps columns in other files; write it as one file";
        return Err(Error::new(Kind::Unsupported, message).with("column", name));
    }
    // Some writers say 0 for a dictionary that is not there.
    let start = match chunk.dictionary_page_offset() {
        Some(start) if start > 0 => start.min(chunk.data_page_offset()),
        _ => chunk.data_page_offset(),
    };
    let place = u64::try_from(start)
        .ok()
        .zip(u64::try_from(chunk.compressed_size()).ok());
    let place = place.filter(|(start, bytes)| start.checked_add(*bytes).is_some_and(|end| end <= data_end));
    let Some((offset, bytes)) = place else {
        return Err(damaged("has a column chunk outside of its data").with("column", name));
    };
    Ok(Field {
        name,
        offset,
        bytes,
        crc32c: None,
    })
}

/// Keeps the end of a file that streams by; the footer is read when all has come.
#[derive(Debug, Default)]
pub struct ParquetScanner {
    file_bytes: u64,
    tail: Vec<u8>,
}

impl ParquetScanner {
    /// At the start of a file.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

impl ShardScanner for ParquetScanner {
    fn push(&mut self, bytes: &[u8], _sink: &mut dyn SampleSink) -> Result<()> {
        if self.file_bytes < 4 {
            let so_far = usize::try_from(self.file_bytes).expect("less than four");
            if !bytes
                .iter()
                .zip(&b"PAR1"[so_far..])
                .all(|(one, other)| one == other)
            {
                return Err(not_parquet());
            }
        }
        self.file_bytes += bytes.len() as u64;
        let last = &bytes[bytes.len().saturating_sub(FOOTER_BYTES_MAX)..];
        // Moved rarely, so that every byte is moved once at most.
        if self.tail.len() + last.len() > 2 * FOOTER_BYTES_MAX {
            let kept = self.tail.len().saturating_sub(FOOTER_BYTES_MAX);
            self.tail.drain(..kept);
        }
        self.tail.extend_from_slice(last);
        Ok(())
    }

    fn finish(&mut self, sink: &mut dyn SampleSink) -> Result<()> {
        read_footer(&self.tail, self.file_bytes, sink)
    }
}

#[cfg(test)]
mod tests;
