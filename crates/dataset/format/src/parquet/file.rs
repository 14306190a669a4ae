//! A Parquet file whose footer was read: its columns, its row groups, and where their pages lie.
//!
//! Life cycle: [`ParquetFile::parse`] takes the end of the file; [`ParquetFile::pages`] makes the table of
//! pages of a column chunk, from the page index where the writer left one, else from the headers of the
//! pages, for which the whole chunk must be at hand. A column with lists whose pages do not say how many rows
//! they have is one large page. Everything is compared with the size of the file before it is used.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{Buf, Bytes};
use forebay_core::{Error, Kind, Result};
use parquet::basic::Compression;
use parquet::column::page::PageReader;
use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData, ParquetMetaDataReader};
use parquet::file::page_index::index_reader::decode_offset_index;
use parquet::file::page_index::offset_index::PageLocation;
use parquet::file::reader::{ChunkReader, Length};
use parquet::file::serialized_reader::SerializedPageReader;

use super::limits::unsupported;
use super::schema::{self, Leaf};
use super::{TAIL_BYTES, damaged, footer_bytes, guarded, thrift};

/// Pages of one column chunk, at most.
const PAGES_MAX: usize = 1 << 20;

/// A footer, checked.
pub struct ParquetFile {
    pub(super) footer: ParquetMetaData,
    leaves: Vec<Leaf>,
    /// The first row of each row group, and at the end of all.
    first_rows: Vec<u64>,
    pub(super) data_end: u64,
}

/// Locations of the pages of a column chunk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageTable {
    /// The dictionary, if it has one.
    pub(super) dictionary: Option<Range<u64>>,
    /// Location of each page, and its rows of the row group.
    pub(super) pages: Vec<(Range<u64>, Range<u64>)>,
    /// Marks that the only entry is the whole chunk.
    pub(super) is_whole: bool,
}

impl PageTable {
    /// Returns which page has this row of the row group.
    #[must_use]
    pub fn page_of(&self, row: u64) -> Option<u32> {
        let after = self.pages.partition_point(|(_, rows)| rows.start <= row);
        let page = after.checked_sub(1)?;
        let (_, rows) = self.pages.get(page)?;
        rows.contains(&row).then(|| u32::try_from(page).ok())?
    }

    /// The bytes of the file that a page needs: the dictionary, and the page itself.
    pub fn ranges(&self, page: u32) -> impl Iterator<Item = Range<u64>> + '_ {
        let page = self.pages.get(page as usize).map(|(bytes, _)| bytes.clone());
        self.dictionary.clone().into_iter().chain(page)
    }

    /// The rows of a page.
    #[must_use]
    pub fn rows(&self, page: u32) -> Range<u64> {
        self.pages
            .get(page as usize)
            .map_or(0..0, |(_, rows)| rows.clone())
    }

    /// Returns how many pages there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pages.len()
    }

    /// Returns whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }
}

impl ParquetFile {
    /// Reads the footer: the last [`footer_bytes`] of a file of so many bytes, or more.
    pub fn parse(end_of_file: &[u8], file_bytes: u64) -> Result<Self> {
        let footer_bytes = footer_bytes(end_of_file)?;
        let start = end_of_file.len().checked_sub(footer_bytes);
        let start = start.ok_or_else(|| damaged("is shorter than its footer"))?;
        let footer = &end_of_file[start..end_of_file.len() - TAIL_BYTES];
        if !thrift::footer_fits(footer) {
            return Err(damaged(
                "has a footer that cannot be read, or too many columns or groups in groups",
            ));
        }
        let footer = guarded(|| ParquetMetaDataReader::decode_metadata(footer))
            .map_err(|why| damaged("has a footer that cannot be read").caused_by(why))?;
        let data_end = file_bytes.checked_sub(footer_bytes as u64);
        let data_end = data_end.ok_or_else(|| damaged("is shorter than its footer"))?;
        let mut first_rows = vec![0_u64];
        for group in footer.row_groups() {
            let last = first_rows.last().copied().unwrap_or_default();
            first_rows.push(last + u64::from(super::rows(group)?));
        }
        let leaves = schema::leaves(footer.file_metadata().schema_descr());
        Ok(Self {
            footer,
            leaves,
            first_rows,
            data_end,
        })
    }

    /// Its columns, in order.
    #[must_use]
    pub fn leaves(&self) -> &[Leaf] {
        &self.leaves
    }

    /// Returns how many row groups it has.
    #[must_use]
    pub fn groups(&self) -> usize {
        self.first_rows.len() - 1
    }

    /// The rows of a row group.
    #[must_use]
    pub fn group_rows(&self, group: usize) -> Range<u64> {
        match self.first_rows.get(group..group + 2) {
            Some([first, end]) => *first..*end,
            _ => 0..0,
        }
    }

    /// The row group of a row, and which of its rows it is.
    pub fn place_of(&self, row: u64) -> Result<(usize, u64)> {
        let after = self.first_rows.partition_point(|first| *first <= row);
        let group = after.checked_sub(1).filter(|group| *group < self.groups());
        let group = group
            .ok_or_else(|| Error::new(Kind::OutOfRange, "the Parquet file has no such row").with("row", row));
        group.map(|group| (group, row - self.first_rows[group]))
    }

    /// About how much memory it takes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.footer.memory_size()
    }

    pub(super) fn chunk(&self, group: usize, leaf: usize) -> Result<&ColumnChunkMetaData> {
        let group = self.footer.row_groups().get(group);
        let chunk = group.and_then(|group| group.columns().get(leaf));
        chunk.ok_or_else(|| damaged("has other columns in some row groups"))
    }

    /// Errors: `Unsupported` if a column chunk is compressed in a way that is not read; its reader would call
    /// that damage.
    pub(super) fn check_codec(&self, group: usize, leaf: usize) -> Result<()> {
        match self.chunk(group, leaf)?.compression() {
            Compression::BROTLI(_) | Compression::LZO => Err(unsupported()),
            _ => Ok(()),
        }
    }

    /// Returns where a column chunk lies.
    pub fn chunk_range(&self, group: usize, leaf: usize) -> Result<Range<u64>> {
        let field = super::field("", self.chunk(group, leaf)?, self.data_end)?;
        Ok(field.offset..field.offset + field.bytes)
    }

    /// Returns where the page index of a column chunk lies, if there is one.
    pub fn page_index_range(&self, group: usize, leaf: usize) -> Result<Option<Range<u64>>> {
        let range = self.chunk(group, leaf)?.offset_index_offset();
        let length = self.chunk(group, leaf)?.offset_index_length();
        let range = range.zip(length).and_then(|(offset, length)| {
            let (offset, length) = (u64::try_from(offset).ok()?, u64::try_from(length).ok()?);
            Some(offset..offset.checked_add(length)?)
        });
        Ok(range.filter(|range| !range.is_empty() && range.end <= self.data_end))
    }

    /// The pages of a column chunk, from its page index.
    pub fn pages_of_index(&self, group: usize, leaf: usize, index: &[u8]) -> Result<PageTable> {
        let chunk = self.chunk_range(group, leaf)?;
        let wrong = || damaged("has a page index that does not fit");
        if !thrift::fits(index) {
            return Err(wrong());
        }
        let found = guarded(|| decode_offset_index(index)).map_err(|why| wrong().caused_by(why))?;
        let rows = self.group_rows(group);
        let rows = rows.end - rows.start;
        let locations = found.page_locations();
        let mut pages = Vec::with_capacity(locations.len());
        for (at, page) in locations.iter().enumerate() {
            let bytes = place(page).filter(|bytes| bytes.start >= chunk.start && bytes.end <= chunk.end);
            let first = u64::try_from(page.first_row_index).map_err(|_| wrong())?;
            let end = locations
                .get(at + 1)
                .map_or(Some(rows), |next| u64::try_from(next.first_row_index).ok());
            let end = end.filter(|end| first < *end && *end <= rows).ok_or_else(wrong)?;
            pages.push((bytes.ok_or_else(wrong)?, first..end));
        }
        let first = pages.first().map_or(chunk.end, |(bytes, _)| bytes.start);
        if pages.is_empty() || pages[0].1.start != 0 || pages.len() > PAGES_MAX {
            return Err(wrong());
        }
        Ok(PageTable {
            dictionary: (first > chunk.start).then_some(chunk.start..first),
            pages,
            is_whole: false,
        })
    }

    /// The pages of a column chunk, from their headers. `chunk` is all of it.
    pub fn pages_of_chunk(&self, group: usize, leaf: usize, chunk: Bytes) -> Result<PageTable> {
        let range = self.chunk_range(group, leaf)?;
        let rows = self.group_rows(group);
        let rows = rows.end - rows.start;
        let whole = PageTable {
            dictionary: None,
            pages: vec![(range.clone(), 0..rows)],
            is_whole: true,
        };
        if self.leaves.get(leaf).is_none_or(Leaf::is_list) || rows == 0 {
            return Ok(whole);
        }
        self.check_codec(group, leaf)?;
        let walked = Arc::new(Walked {
            start: range.start,
            bytes: chunk,
            last: AtomicU64::new(range.start),
        });
        let meta = self.page_meta(group, leaf)?;
        let headers = guarded(|| headers(&walked, &meta, rows))
            .map_err(|why| damaged("has a page that cannot be read").caused_by(why))?;
        let mut table = PageTable {
            dictionary: None,
            pages: Vec::new(),
            is_whole: false,
        };
        let mut row = 0;
        for (at, (start, page_rows)) in headers.iter().enumerate() {
            let end = headers.get(at + 1).map_or(range.end, |(next, _)| *next);
            match page_rows {
                None if at == 0 => table.dictionary = Some(*start..end),
                Some(count) if *count > 0 => {
                    table.pages.push((*start..end, row..row + count));
                    row += count;
                }
                _ => {}
            }
        }
        if row != rows {
            return Err(damaged("has a column with more or fewer rows than its row group"));
        }
        Ok(table)
    }

    /// The description of a chunk, without what makes the reader of pages stumble.
    pub(super) fn page_meta(&self, group: usize, leaf: usize) -> Result<ColumnChunkMetaData> {
        let chunk = self.chunk(group, leaf)?;
        // Some writers say 0 for a dictionary that is not there.
        if chunk.dictionary_page_offset().is_none_or(|offset| offset > 0) {
            return Ok(chunk.clone());
        }
        let builder = chunk.clone().into_builder().set_dictionary_page_offset(None);
        builder
            .build()
            .map_err(|why| damaged("has a column chunk that cannot be read").caused_by(why))
    }
}

fn place(page: &PageLocation) -> Option<Range<u64>> {
    let (offset, length) = (
        u64::try_from(page.offset).ok()?,
        u64::try_from(page.compressed_page_size).ok()?,
    );
    Some(offset..offset.checked_add(length)?)
}

/// Returns where every page starts, and how many rows it has; of a dictionary `None`.
fn headers(
    walked: &Arc<Walked>,
    meta: &ColumnChunkMetaData,
    rows: u64,
) -> parquet::errors::Result<Vec<(u64, Option<u64>)>> {
    let total = usize::try_from(rows).unwrap_or(usize::MAX);
    let mut reader = SerializedPageReader::new(Arc::clone(walked), meta, total, None)?;
    let mut found = Vec::new();
    while let Some(page) = reader.peek_next_page()? {
        if found.len() >= PAGES_MAX {
            return Err(parquet::errors::ParquetError::General("too many pages".into()));
        }
        let rows = page.num_rows.or(page.num_levels).map(|rows| rows as u64);
        found.push((
            walked.last.load(Ordering::Relaxed),
            rows.filter(|_| !page.is_dict),
        ));
        reader.skip_next_page()?;
    }
    Ok(found)
}

/// A column chunk that remembers where it was read last: where a page starts.
struct Walked {
    start: u64,
    bytes: Bytes,
    last: AtomicU64,
}

impl Length for Walked {
    fn len(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }
}

impl ChunkReader for Walked {
    type T = bytes::buf::Reader<Bytes>;

    fn get_read(&self, start: u64) -> parquet::errors::Result<Self::T> {
        self.last.store(start, Ordering::Relaxed);
        let length = usize::try_from(self.len().saturating_sub(start)).unwrap_or_default();
        let bytes = self.get_bytes(start, length)?;
        if thrift::page_sizes(&bytes).is_none() {
            return Err(thrift::no_header());
        }
        Ok(bytes.reader())
    }

    fn get_bytes(&self, start: u64, length: usize) -> parquet::errors::Result<Bytes> {
        part(&self.bytes, self.start, start, length)
    }
}

/// Bytes of a piece of the file that starts at `first`.
pub(super) fn part(piece: &Bytes, first: u64, start: u64, length: usize) -> parquet::errors::Result<Bytes> {
    let from = start
        .checked_sub(first)
        .and_then(|from| usize::try_from(from).ok());
    let range = from.and_then(|from| Some(from..from.checked_add(length)?));
    match range.filter(|range| range.end <= piece.len()) {
        Some(range) => Ok(piece.slice(range)),
        None => Err(parquet::errors::ParquetError::EOF(
            "bytes outside of what was read".into(),
        )),
    }
}
