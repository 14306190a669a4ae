//! Decodes pages of a column into rows: bytes that samples point into.
//!
//! A [`Slab`] is what one page decodes to (or a whole column chunk, where pages cannot be told apart): the
//! bytes of all its values, and where each row begins. Rows of one width need no table. Checksums of pages
//! are compared where the writer left them. Bound: [`SLAB_BYTES_MAX`]; beyond it the file is refused with
//! advice, before memory is taken for it (`pieces.rs`, `limits.rs`).

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use forebay_core::{Error, Kind, Result};
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::column::reader::{ColumnReader, ColumnReaderImpl, get_column_reader};
use parquet::data_type::DataType;
use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::page_index::offset_index::PageLocation;
use parquet::file::serialized_reader::SerializedPageReader;

use super::file::{PageTable, ParquetFile};
use super::limits::{self, SLAB_BYTES_MAX, StoredType, TOO_LARGE};
use super::nested::{self, Row};
use super::pieces::{Chunk, Pieces};
use super::schema::{Leaf, ValueKind};
use super::{damaged, guarded};

/// Rows that are decoded at once, and values of lists, if they are about equally long.
const STEP_ROWS: usize = 4096;
const STEP_VALUES: usize = 1 << 20;

/// Rows of one column, decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slab {
    /// Rows of the row group.
    rows: Range<u64>,
    bytes: Vec<u8>,
    /// End of each row; empty if all have `width`.
    ends: Vec<u32>,
    width: usize,
    /// Rows that are null, in order.
    nulls: Vec<u32>,
}

impl AsRef<[u8]> for Slab {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Slab {
    /// Returns where a row of the row group lies in the bytes: nowhere if it is null.
    ///
    /// Errors: `OutOfRange` if it is a row of another page.
    pub fn row(&self, row: u64) -> Result<Option<Range<usize>>> {
        let at = row.checked_sub(self.rows.start).filter(|_| row < self.rows.end);
        let at = at.and_then(|at| u32::try_from(at).ok()).ok_or_else(|| {
            Error::new(Kind::OutOfRange, "the page of the column has no such row").with("row", row)
        })?;
        if self.nulls.binary_search(&at).is_ok() {
            return Ok(None);
        }
        let at = at as usize;
        if self.ends.is_empty() {
            return Ok(Some(at * self.width..(at + 1) * self.width));
        }
        let start = at.checked_sub(1).map_or(0, |before| self.ends[before] as usize);
        Ok(Some(start..self.ends[at] as usize))
    }

    /// Returns how much memory it takes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.bytes.len() + 4 * (self.ends.len() + self.nulls.len()) + size_of::<Self>()
    }
}

/// Decodes a page; `pieces` has its ranges ([`PageTable::ranges`]).
///
/// Errors: `Corrupt`; `Unsupported` for a codec or type that is not read, or a page that is too large.
pub fn decode(
    file: &ParquetFile,
    (group, leaf): (usize, usize),
    table: &PageTable,
    page: u32,
    pieces: Pieces,
) -> Result<Slab> {
    let about = |error: Error| match file.leaves().get(leaf) {
        Some(leaf) => error.with("column", &leaf.name).with("row_group", group),
        None => error,
    };
    let Some(column) = file.leaves().get(leaf) else {
        return Err(damaged("has other columns in some row groups"));
    };
    if column.kind == ValueKind::Unsupported {
        let message = "the type of the column is not supported; choose others: columns=[…]";
        return Err(about(Error::new(Kind::Unsupported, message)));
    }
    file.check_codec(group, leaf).map_err(about)?;
    let pages = guarded(|| take_pages(file, (group, leaf), table, page, pieces));
    let pages = pages.map_err(|why| about(limits::refused(why)))?;
    let descriptor = file.chunk(group, leaf)?.column_descr_ptr();
    let stored = StoredType {
        physical: descriptor.physical_type(),
        length: usize::try_from(descriptor.type_length()).unwrap_or_default(),
        is_list: column.is_list(),
    };
    limits::check(pages.iter(), stored).map_err(about)?;
    let values = pages.iter().filter(|page| page.is_data_page());
    let values = values.map(|page| page.num_values() as usize).sum();
    let mut slab = SlabBuilder::new(column, table.rows(page), values);
    guarded(|| {
        let reader = get_column_reader(descriptor, Box::new(TakenPages(pages)));
        read(reader, column, &mut slab)
    })
    .map_err(limits::refused)
    .and_then(|()| slab.finish())
    .map_err(about)
}

/// The dictionary, if there is one, and the page; or all pages.
fn take_pages(
    file: &ParquetFile,
    (group, leaf): (usize, usize),
    table: &PageTable,
    page: u32,
    pieces: Pieces,
) -> ParquetResult<VecDeque<Page>> {
    let wrong = |why: Error| ParquetError::General(why.to_string());
    let meta = file.page_meta(group, leaf).map_err(wrong)?;
    let rows = table.rows(page);
    let total = usize::try_from(rows.end - rows.start).unwrap_or(usize::MAX);
    if table.is_whole {
        let chunk = Arc::new(Chunk::new(pieces, meta.compression()));
        return SerializedPageReader::new(chunk, &meta, total, None)?.collect();
    }
    for range in table.ranges(page) {
        pieces.unpacked_bytes(range.start, meta.compression())?;
    }
    let pieces = Arc::new(pieces);
    let mut taken = VecDeque::new();
    let has_dictionary = table.dictionary.is_some();
    // The reader takes what lies before the first page that it is told of for the dictionary: the first one
    // of the chunk is named, and not read.
    let first = match &table.dictionary {
        Some(dictionary) => dictionary.end,
        None => file.chunk_range(group, leaf).map_err(wrong)?.start,
    };
    let mut locations = vec![location(first..first)];
    locations.extend(table.ranges(page).skip(usize::from(has_dictionary)).map(location));
    let mut reader = SerializedPageReader::new(pieces, &meta, total, Some(locations))?;
    if has_dictionary {
        taken.extend(reader.get_next_page()?);
    }
    reader.skip_next_page()?;
    taken.extend(reader.get_next_page()?);
    Ok(taken)
}

fn location(range: Range<u64>) -> PageLocation {
    PageLocation {
        offset: i64::try_from(range.start).unwrap_or(i64::MAX),
        compressed_page_size: i32::try_from(range.end - range.start).unwrap_or(i32::MAX),
        first_row_index: 0,
    }
}

/// Pages that were read already.
struct TakenPages(VecDeque<Page>);

impl Iterator for TakenPages {
    type Item = ParquetResult<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.pop_front().map(Ok)
    }
}

impl PageReader for TakenPages {
    fn get_next_page(&mut self) -> ParquetResult<Option<Page>> {
        Ok(self.0.pop_front())
    }

    fn peek_next_page(&mut self) -> ParquetResult<Option<PageMetadata>> {
        Ok(self.0.front().map(|page| PageMetadata {
            num_rows: None,
            num_levels: page.is_data_page().then(|| page.num_values() as usize),
            is_dict: page.is_dictionary_page(),
        }))
    }

    fn skip_next_page(&mut self) -> ParquetResult<()> {
        self.0.pop_front();
        Ok(())
    }
}

/// Reads all rows with the reader of their type.
fn read(reader: ColumnReader, leaf: &Leaf, slab: &mut SlabBuilder<'_>) -> ParquetResult<()> {
    let width = leaf.kind.width().unwrap_or_default();
    match reader {
        ColumnReader::BoolColumnReader(reader) => each(reader, slab, |value, out| out.push(u8::from(*value))),
        ColumnReader::Int32ColumnReader(reader) => each(reader, slab, |value, out| match leaf.kind {
            ValueKind::Decimal(scale) => digits(i128::from(*value), scale, out),
            _ => out.extend_from_slice(&value.to_le_bytes()[..width.min(4)]),
        }),
        ColumnReader::Int64ColumnReader(reader) => each(reader, slab, |value, out| match leaf.kind {
            ValueKind::Decimal(scale) => digits(i128::from(*value), scale, out),
            _ => out.extend_from_slice(&value.to_le_bytes()),
        }),
        ColumnReader::Int96ColumnReader(reader) => each(reader, slab, |value, out| {
            out.extend_from_slice(&value.to_nanos().to_le_bytes());
        }),
        ColumnReader::FloatColumnReader(reader) => each(reader, slab, |value, out| {
            out.extend_from_slice(&value.to_le_bytes());
        }),
        ColumnReader::DoubleColumnReader(reader) => each(reader, slab, |value, out| {
            out.extend_from_slice(&value.to_le_bytes());
        }),
        ColumnReader::ByteArrayColumnReader(reader) => {
            each(reader, slab, |value, out| raw(leaf.kind, value.as_ref(), out))
        }
        ColumnReader::FixedLenByteArrayColumnReader(reader) => {
            each(reader, slab, |value, out| raw(leaf.kind, value.as_ref(), out))
        }
    }
}

/// Bytes as they are; of a decimal its digits.
fn raw(kind: ValueKind, bytes: &[u8], out: &mut Vec<u8>) {
    let ValueKind::Decimal(scale) = kind else {
        return out.extend_from_slice(bytes);
    };
    // Big endian, with a sign; a number with more bytes than fit has no more digits than we take.
    let start = bytes.len().saturating_sub(16);
    let fill = if bytes.first().is_some_and(|first| first & 0x80 != 0) {
        0xff
    } else {
        0
    };
    let mut wide = [fill; 16];
    wide[16 - (bytes.len() - start)..].copy_from_slice(&bytes[start..]);
    digits(i128::from_be_bytes(wide), scale, out);
}

fn digits(number: i128, scale: u8, out: &mut Vec<u8>) {
    let scale = usize::from(scale);
    let magnitude = format!("{:0>width$}", number.unsigned_abs(), width = scale + 1);
    let (whole, behind) = magnitude.split_at(magnitude.len() - scale);
    let sign = if number < 0 { "-" } else { "" };
    let point = if scale == 0 { "" } else { "." };
    out.extend_from_slice(format!("{sign}{whole}{point}{behind}").as_bytes());
}

fn each<T: DataType>(
    mut reader: ColumnReaderImpl<T>,
    slab: &mut SlabBuilder<'_>,
    put: impl Fn(&T::T, &mut Vec<u8>),
) -> ParquetResult<()> {
    let (mut def, mut rep, mut values) = (Vec::new(), Vec::new(), Vec::new());
    loop {
        def.clear();
        rep.clear();
        values.clear();
        // At the end one more is asked for, which must not be there.
        let step = slab.step_rows.min(slab.missing()).max(1);
        let (records, _, levels) = reader.read_records(step, Some(&mut def), Some(&mut rep), &mut values)?;
        match (records, slab.is_full()) {
            (0, true) => return Ok(()),
            (0, false) => return Err(ParquetError::EOF("fewer rows than the row group has".into())),
            (_, true) => return Err(ParquetError::General("more rows than the row group has".into())),
            (_, false) => {}
        }
        if slab.leaf.is_list() {
            slab.add_lists(&def[..levels], &rep[..levels], &values, &put)?;
        } else {
            slab.add_flat(records, &def, &values, &put)?;
        }
    }
}

/// A slab that is being filled.
struct SlabBuilder<'a> {
    leaf: &'a Leaf,
    slab: Slab,
    done: u64,
    /// Rows that are decoded at once.
    step_rows: usize,
}

impl<'a> SlabBuilder<'a> {
    /// For rows that have so many values together.
    fn new(leaf: &'a Leaf, rows: Range<u64>, values: usize) -> Self {
        let width = leaf.kind.width().filter(|_| !leaf.is_list());
        let all = usize::try_from(rows.end - rows.start).unwrap_or(usize::MAX);
        let values_per_row = values.div_ceil(all.max(1)).max(1);
        Self {
            leaf,
            slab: Slab {
                rows,
                bytes: Vec::new(),
                ends: Vec::new(),
                width: width.unwrap_or_default(),
                nulls: Vec::new(),
            },
            done: 0,
            step_rows: (STEP_VALUES / values_per_row).clamp(1, STEP_ROWS),
        }
    }

    fn missing(&self) -> usize {
        let all = self.slab.rows.end - self.slab.rows.start;
        usize::try_from(all - self.done).unwrap_or(usize::MAX)
    }

    fn is_full(&self) -> bool {
        self.missing() == 0
    }

    /// Ends a row, whose bytes were added.
    fn end_row(&mut self, is_null: bool) -> ParquetResult<()> {
        if is_null {
            self.slab.nulls.push(u32::try_from(self.done).unwrap_or(u32::MAX));
        }
        self.done += 1;
        if self.slab.width == 0 {
            self.slab
                .ends
                .push(u32::try_from(self.slab.bytes.len()).unwrap_or(u32::MAX));
        } else {
            self.slab.bytes.resize(self.done as usize * self.slab.width, 0);
        }
        if self.slab.bytes.len() > SLAB_BYTES_MAX {
            return Err(ParquetError::General(TOO_LARGE.into()));
        }
        Ok(())
    }

    fn add_flat<V>(
        &mut self,
        records: usize,
        def: &[i16],
        values: &[V],
        put: &impl Fn(&V, &mut Vec<u8>),
    ) -> ParquetResult<()> {
        let mut values = values.iter();
        for at in 0..records {
            let is_there = def.get(at).is_none_or(|def| *def == self.leaf.max_def);
            let value = if is_there { values.next() } else { None };
            if let Some(value) = value {
                put(value, &mut self.slab.bytes);
            }
            self.end_row(value.is_none())?;
        }
        Ok(())
    }

    fn add_lists<V>(
        &mut self,
        def: &[i16],
        rep: &[i16],
        values: &[V],
        put: &impl Fn(&V, &mut Vec<u8>),
    ) -> ParquetResult<()> {
        let (mut bytes, mut places) = (Vec::new(), Vec::with_capacity(values.len()));
        for value in values {
            let start = bytes.len();
            put(value, &mut bytes);
            places.push((start, bytes.len()));
            if bytes.len() > SLAB_BYTES_MAX {
                return Err(ParquetError::General(TOO_LARGE.into()));
            }
        }
        let (mut start, mut value) = (0, 0);
        while start < def.len() {
            let end = rep[start + 1..].iter().position(|rep| *rep == 0);
            let end = end.map_or(def.len(), |more| start + 1 + more);
            let there = def[start..end]
                .iter()
                .filter(|def| **def == self.leaf.max_def)
                .count();
            let row = Row {
                def: &def[start..end],
                rep: &rep[start..end],
                values: &places[value..value + there],
                bytes: &bytes,
            };
            let is_there = nested::write(self.leaf, &row, &mut self.slab.bytes);
            self.end_row(!is_there)?;
            (start, value) = (end, value + there);
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Slab> {
        if !self.is_full() {
            return Err(damaged("has a column with fewer rows than its row group"));
        }
        self.slab.bytes.shrink_to_fit();
        Ok(self.slab)
    }
}

#[cfg(test)]
mod tests;
