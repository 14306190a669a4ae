//! Rows of Parquet as samples: which pages they lie in, one request for those that are not decoded yet, and
//! their values.
//!
//! A page of a column is decoded once into a slab (`forebay_dataset::parquet`), which is kept while it is
//! young ([`Rows`], up to `decoded_bytes_max` in this process); a sample points into slabs. So rows that come
//! in the order of the file, or mixed inside of a window that fits, cost one decoding a page, and a single
//! row costs one page of every column that is asked for.
//!
//! A fault of a page is the fault of its samples; that of a footer the fault of all samples of the file.

pub(crate) mod select;
pub(crate) mod tables;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use forebay_client::{Item, View};
use forebay_core::{Error, Kind, Result};
use forebay_dataset::parquet::{PageTable, Pieces, Slab, decode};

use crate::dataset::Inner;
use crate::fetch::{Fetched, explain, nanoseconds};
use crate::lru_cache::{LruCache, lock};
use crate::sample::{FieldBytes, Memory, SampleBytes};
use tables::{Chunk, Table, read_pages};

/// Footers that are kept, in bytes.
const FOOTER_BYTES_MAX: u64 = 64 << 20;

/// Shard, row group, column and page.
type PageKey = (u32, usize, usize, u32);

/// Caches for Parquet files.
#[derive(Default)]
pub(crate) struct Rows {
    tables: LruCache<u32, Arc<Table>>,
    slabs: LruCache<PageKey, Arc<Slab>>,
}

/// Location of a sample.
struct RowLocation {
    table: Result<Arc<Table>>,
    shard: u32,
    group: usize,
    row: u64,
    /// The columns that are wanted.
    leaves: Vec<usize>,
}

/// A page that is needed.
struct PageWanted {
    table: Arc<Table>,
    pages: Arc<PageTable>,
}

/// Reads these rows of a dataset; each has a result of its own.
pub(crate) fn fetch(dataset: &Inner, source: usize, numbers: &[u64]) -> Result<Fetched> {
    let started = Instant::now();
    let mut fetched = Fetched::default();
    let places: Vec<RowLocation> = numbers
        .iter()
        .map(|number| place(dataset, *number))
        .collect::<Result<_>>()?;
    let tables = page_tables(dataset, &places, &mut fetched)?;
    let slabs = slabs(dataset, &places, &tables, &mut fetched)?;
    for (number, place) in numbers.iter().zip(&places) {
        let sample = sample(dataset, source, *number, place, &tables, &slabs);
        fetched.samples.push(sample.map_err(|error| {
            let name = dataset
                .shard(place.shard)
                .map_or_else(|_| "?".into(), |shard| shard.name.clone());
            error.with("shard", name).with("sample", number)
        }));
    }
    fetched.check_ns = nanoseconds(started.elapsed()).saturating_sub(fetched.read_ns);
    Ok(fetched)
}

/// The footer of a shard.
pub(crate) fn table(dataset: &Inner, shard: u32) -> Result<Arc<Table>> {
    let rows = dataset.rows.get();
    let cell = rows.tables.cell(&shard);
    let mut slot = lock(&cell);
    if let Some(table) = &*slot {
        return Ok(Arc::clone(table));
    }
    let place = dataset.shard(shard)?;
    let read = Table::read(
        &dataset.client,
        &place.object,
        place.version.as_deref(),
        place.bytes(),
    );
    let table = Arc::new(read?);
    let bytes = table.file.memory_bytes() as u64;
    *slot = Some(Arc::clone(&table));
    rows.tables.filled(&shard, bytes, FOOTER_BYTES_MAX);
    Ok(table)
}

fn place(dataset: &Inner, number: u64) -> Result<RowLocation> {
    let sample = dataset.index.sample(number)?;
    let shard = sample.shard;
    let mut place = RowLocation {
        table: table(dataset, shard),
        shard,
        group: 0,
        row: 0,
        leaves: Vec::new(),
    };
    let found = match &place.table {
        Ok(table) => table
            .file
            .place_of(sample.number_in_shard)
            .and_then(|at| Ok((at, leaves(dataset, table)?))),
        Err(_) => return Ok(place),
    };
    match found {
        Ok(((group, row), leaves)) => {
            (place.group, place.row, place.leaves) = (group, row, leaves);
        }
        Err(error) => place.table = Err(error),
    }
    Ok(place)
}

/// The columns of a file that are wanted, in its order.
fn leaves(dataset: &Inner, table: &Table) -> Result<Vec<usize>> {
    let mut found = Vec::new();
    for (number, leaf) in table.file.leaves().iter().enumerate() {
        if !dataset.is_wanted(&leaf.name) {
            continue;
        }
        let encodings = &dataset.index.head().meta().encodings;
        if encodings
            .get(&leaf.name)
            .is_some_and(|known| *known != leaf.encoding())
        {
            let message = "a column has another type in this shard than in the first one; write the shards alike, or leave the column out";
            return Err(Error::new(Kind::InvalidInput, message).with("column", &leaf.name));
        }
        found.push(number);
    }
    Ok(found)
}

type Tables = BTreeMap<(u32, Chunk), Result<Arc<PageTable>>>;
type Slabs = BTreeMap<PageKey, Result<Arc<Slab>>>;

/// The page tables of all column chunks that the samples need.
fn page_tables(dataset: &Inner, places: &[RowLocation], fetched: &mut Fetched) -> Result<Tables> {
    let mut wanted: BTreeMap<(u32, Chunk), Arc<Table>> = BTreeMap::new();
    for place in places {
        let Ok(table) = &place.table else { continue };
        for leaf in &place.leaves {
            wanted
                .entry((place.shard, (place.group, *leaf)))
                .or_insert_with(|| Arc::clone(table));
        }
    }
    let chunks: Vec<(Arc<Table>, Chunk)> = wanted
        .iter()
        .map(|((_, chunk), table)| (Arc::clone(table), *chunk))
        .collect();
    let asked = Instant::now();
    let found = read_pages(&dataset.client, &chunks, &mut fetched.sources)?;
    fetched.read_ns += nanoseconds(asked.elapsed());
    Ok(wanted.into_keys().zip(found).collect())
}

/// All pages that the samples need, decoded.
fn slabs(dataset: &Inner, places: &[RowLocation], tables: &Tables, fetched: &mut Fetched) -> Result<Slabs> {
    let mut wanted: BTreeMap<PageKey, PageWanted> = BTreeMap::new();
    for place in places {
        let Ok(table) = &place.table else { continue };
        for leaf in &place.leaves {
            let Some(Ok(pages)) = tables.get(&(place.shard, (place.group, *leaf))) else {
                continue;
            };
            if let Some(page) = pages.page_of(place.row) {
                let key = (place.shard, place.group, *leaf, page);
                wanted.entry(key).or_insert_with(|| PageWanted {
                    table: Arc::clone(table),
                    pages: Arc::clone(pages),
                });
            }
        }
    }
    let keys: Vec<PageKey> = wanted.keys().copied().collect();
    let rows = dataset.rows.get();
    // In ascending order, here and in every other thread: so nobody waits for somebody who waits for them.
    let cells = rows.slabs.cells(&keys);
    let mut slots: Vec<_> = cells.iter().map(lock).collect();
    let missing: Vec<usize> = (0..keys.len()).filter(|at| slots[*at].is_none()).collect();
    let mut found = Slabs::new();
    let read = read(
        dataset,
        missing.iter().map(|at| (keys[*at], &wanted[&keys[*at]])),
        fetched,
    )?;
    for (at, slab) in missing.iter().zip(read) {
        match slab {
            Ok(slab) => {
                let bytes = slab.memory_bytes() as u64;
                *slots[*at] = Some(Arc::new(slab));
                rows.slabs.filled(&keys[*at], bytes, dataset.decoded_bytes_max);
            }
            Err(error) => drop(found.insert(keys[*at], Err(error))),
        }
    }
    for (key, slot) in keys.iter().zip(&slots) {
        if let Some(slab) = &**slot {
            found.insert(*key, Ok(Arc::clone(slab)));
        }
    }
    Ok(found)
}

/// Reads and decodes pages, in one request.
fn read<'a>(
    dataset: &Inner,
    missing: impl Iterator<Item = (PageKey, &'a PageWanted)>,
    fetched: &mut Fetched,
) -> Result<Vec<Result<Slab>>> {
    let (mut items, mut parts): (Vec<Item>, Vec<_>) = (Vec::new(), Vec::new());
    for (key, wanted) in missing {
        let ranges: Vec<Range<u64>> = wanted.pages.ranges(key.3).collect();
        items.extend(ranges.iter().map(|range| wanted.table.item(range)));
        parts.push((key, wanted, ranges));
    }
    if items.is_empty() {
        return Ok(Vec::new());
    }
    let asked = Instant::now();
    let mut views = dataset.client.get_batch(items)?.into_iter();
    fetched.read_ns += nanoseconds(asked.elapsed());
    let mut found = Vec::with_capacity(parts.len());
    for ((_, group, leaf, page), wanted, ranges) in parts {
        let answers: Vec<Result<View>> = views.by_ref().take(ranges.len()).collect();
        let pieces = pieces(&ranges, answers, fetched);
        found.push(
            pieces.and_then(|pieces| decode(&wanted.table.file, (group, leaf), &wanted.pages, page, pieces)),
        );
    }
    Ok(found)
}

fn pieces(ranges: &[Range<u64>], answers: Vec<Result<View>>, fetched: &mut Fetched) -> Result<Pieces> {
    let mut pieces = Vec::with_capacity(ranges.len());
    for (range, view) in ranges.iter().zip(answers) {
        let view = view.map_err(|error| explain(&error))?;
        fetched.sources += view.sources();
        pieces.push((range.start, Bytes::from_owner(view)));
    }
    Ok(Pieces(pieces))
}

/// Puts a sample together.
fn sample(
    dataset: &Inner,
    source: usize,
    number: u64,
    place: &RowLocation,
    tables: &Tables,
    slabs: &Slabs,
) -> Result<SampleBytes> {
    let table = place.table.as_ref().map_err(Error::share)?;
    let missing = || {
        Error::new(
            Kind::Corrupt,
            "the column has no page with the row; write the file again",
        )
    };
    let mut fields = Vec::with_capacity(place.leaves.len());
    for leaf in &place.leaves {
        let pages = tables
            .get(&(place.shard, (place.group, *leaf)))
            .ok_or_else(missing)?;
        let pages = pages.as_ref().map_err(Error::share)?;
        let page = pages.page_of(place.row).ok_or_else(missing)?;
        let slab = slabs.get(&(place.shard, place.group, *leaf, page));
        let slab = slab.ok_or_else(missing)?.as_ref().map_err(Error::share)?;
        let name = dataset.field_name(&table.file.leaves()[*leaf].name);
        fields.push(match slab.row(place.row)? {
            Some(range) => FieldBytes::new(name, Some(Memory::Heap(Arc::clone(slab) as _)), range),
            None => FieldBytes::null(name),
        });
    }
    Ok(SampleBytes {
        source,
        number,
        shard: dataset.shard(place.shard)?.name.clone(),
        key: None,
        fields,
        sample_seed: None,
    })
}

/// Returns what to read ahead for these rows of a shard: the chunks of the columns that are wanted.
pub(crate) fn ahead(dataset: &Inner, shard: u32, rows: Range<u64>) -> Result<Vec<(u64, u64)>> {
    let table = table(dataset, shard)?;
    let leaves = leaves(dataset, &table)?;
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for group in 0..table.file.groups() {
        let of_group = table.file.group_rows(group);
        if of_group.start >= rows.end || of_group.end <= rows.start {
            continue;
        }
        for leaf in &leaves {
            let chunk = table.file.chunk_range(group, *leaf)?;
            match ranges.last_mut() {
                Some((_, end)) if *end == chunk.start => *end = chunk.end,
                _ => ranges.push((chunk.start, chunk.end)),
            }
        }
    }
    Ok(ranges)
}
