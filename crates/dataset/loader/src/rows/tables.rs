//! Footers and page tables of Parquet files, read when they are needed and kept.
//!
//! A footer is asked for with the last [`TAIL_FIRST_BYTES`] of its file, and once more if it is longer. Page
//! tables of all columns that a request needs are asked for at once: the page index where there is one, else
//! the whole column chunk, whose pages say where they begin.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use forebay_client::{Client, Item, ItemRange, ObjectName, TierBytes};
use forebay_core::{Error, Kind, Result};
use forebay_dataset::parquet::{PageTable, ParquetFile, TAIL_BYTES, footer_bytes};

use crate::fetch::explain;

/// Most footers are shorter.
const TAIL_FIRST_BYTES: u64 = 64 << 10;

/// A column chunk: row group and column.
pub(super) type Chunk = (usize, usize);

/// A file whose footer was read.
pub(crate) struct Table {
    pub(super) file: ParquetFile,
    object: ObjectName,
    version: Option<String>,
    pages: Mutex<HashMap<Chunk, Arc<PageTable>>>,
}

impl Table {
    /// Reads the footer of a file of so many bytes.
    pub(crate) fn read(
        client: &Client,
        object: &ObjectName,
        version: Option<&str>,
        bytes: u64,
    ) -> Result<Self> {
        let last = |count: u64| {
            let mut views = client.get_batch(vec![Item {
                object: object.clone(),
                range: ItemRange::Last(count),
                version: version.map(str::to_owned),
            }])?;
            let missing = || Error::new(Kind::Internal, "a request for a footer without an answer");
            views.pop().ok_or_else(missing)?.map_err(|error| explain(&error))
        };
        if bytes < TAIL_BYTES as u64 {
            let message = "the Parquet file is too short to be one; upload it again";
            return Err(Error::new(Kind::Corrupt, message).with("bytes", bytes));
        }
        let mut end = last(TAIL_FIRST_BYTES.min(bytes))?;
        let needed = footer_bytes(&end)? as u64;
        if needed > bytes {
            let message = "the Parquet file is shorter than its footer; upload it again";
            return Err(Error::new(Kind::Corrupt, message).with("bytes", bytes));
        }
        if needed > end.len() as u64 {
            end = last(needed)?;
        }
        Ok(Self {
            file: ParquetFile::parse(&end, bytes)?,
            object: object.clone(),
            version: version.map(str::to_owned),
            pages: Mutex::default(),
        })
    }

    /// The footer.
    pub(crate) fn file(&self) -> &ParquetFile {
        &self.file
    }

    pub(super) fn item(&self, range: &std::ops::Range<u64>) -> Item {
        Item {
            object: self.object.clone(),
            range: ItemRange::Range {
                offset: range.start,
                length: range.end - range.start,
            },
            version: self.version.clone(),
        }
    }

    /// The page table of a chunk, if it was read before.
    pub(super) fn known(&self, chunk: Chunk) -> Option<Arc<PageTable>> {
        let pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        pages.get(&chunk).cloned()
    }

    /// Returns what to read for the page table of a chunk, and whether it is the page index.
    fn wanted(&self, (group, leaf): Chunk) -> Result<(Item, bool)> {
        match self.file.page_index_range(group, leaf)? {
            Some(range) => Ok((self.item(&range), true)),
            None => Ok((self.item(&self.file.chunk_range(group, leaf)?), false)),
        }
    }

    fn keep(&self, chunk: Chunk, table: PageTable) -> Arc<PageTable> {
        let table = Arc::new(table);
        let mut pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        pages.insert(chunk, Arc::clone(&table));
        table
    }
}

/// Reads the page tables of these chunks that are not known yet, in one request.
pub(super) fn read_pages(
    client: &Client,
    chunks: &[(Arc<Table>, Chunk)],
    sources: &mut TierBytes,
) -> Result<Vec<Result<Arc<PageTable>>>> {
    let mut found: Vec<Option<Result<Arc<PageTable>>>> = Vec::with_capacity(chunks.len());
    let (mut items, mut asked) = (Vec::new(), Vec::new());
    for (at, (table, chunk)) in chunks.iter().enumerate() {
        let known = table.known(*chunk).map(Ok);
        found.push(known);
        if found[at].is_none() {
            match table.wanted(*chunk) {
                Ok((item, is_index)) => {
                    items.push(item);
                    asked.push((at, is_index));
                }
                Err(error) => found[at] = Some(Err(error)),
            }
        }
    }
    let views = if items.is_empty() {
        Vec::new()
    } else {
        client.get_batch(items)?
    };
    for ((at, is_index), view) in asked.into_iter().zip(views) {
        let (table, (group, leaf)) = &chunks[at];
        let read = view.map_err(|error| explain(&error)).and_then(|view| {
            *sources += view.sources();
            let pages = if is_index {
                table.file.pages_of_index(*group, *leaf, &view)
            } else {
                table.file.pages_of_chunk(*group, *leaf, Bytes::from_owner(view))
            };
            Ok(table.keep((*group, *leaf), pages?))
        });
        found[at] = Some(read);
    }
    let missing = || Error::new(Kind::Internal, "a request for pages without an answer");
    Ok(found
        .into_iter()
        .map(|one| one.unwrap_or_else(|| Err(missing())))
        .collect())
}
