//! Rows that a filter lets through, with as little reading as the files allow.
//!
//! Row groups whose smallest and largest values (in the index) rule them out are not read; of the others,
//! pages whose bounds rule them out (where the writer left a page index) are not read; of what is left, only
//! the columns that the filter asks for. Files are looked at by several threads, which live as long as the
//! call. Memory: the pages of those columns of one row group per thread, and 8 bytes for each sample that is
//! let through.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use forebay_client::{Item, View};
use forebay_core::{Error, Kind, Result};
use forebay_dataset::filter::{Condition, Filter, Scalar};
use forebay_dataset::order::Subset;
use forebay_dataset::parquet::{PageTable, Slab, ValueKind, parse_encoding};

use super::tables::{Table, read_pages};
use super::{PageWanted, read, table};
use crate::dataset::{Access, Inner};
use crate::fetch::{Fetched, explain};

/// Pages that are asked for at once.
const PAGES_MAX: usize = 64;

/// The samples of a dataset for which a filter holds.
///
/// Errors: `InvalidInput` if it asks for a column that is not there, or compares it with what it does not
/// hold.
pub(crate) fn select(dataset: &Inner, filter: &Filter, threads: usize) -> Result<Subset> {
    let numbers = match dataset.access() {
        Access::Rows => by_rows(dataset, filter, threads)?,
        _ => by_index(dataset, filter)?,
    };
    Subset::from_sorted(numbers)
}

fn unknown(column: &str, known: &str) -> Error {
    let message = "the filter asks for a column that the dataset does not have";
    Error::new(Kind::InvalidInput, message)
        .with("column", column)
        .with("columns", known)
}

/// By the values that the index has, such as the labels of raw files.
fn by_index(dataset: &Inner, filter: &Filter) -> Result<Vec<u64>> {
    let columns = &dataset.index.head().meta().columns;
    if let Some(column) = filter
        .columns()
        .into_iter()
        .find(|column| !columns.contains_key(*column))
    {
        let known: Vec<&str> = columns.keys().map(String::as_str).collect();
        return Err(unknown(column, &known.join(" ")));
    }
    let kind = |column: &str| match columns.get(column).map(String::as_str) {
        Some("i64") => ValueKind::Int(8),
        Some("f64") => ValueKind::Float(8),
        Some("text") => ValueKind::Text,
        _ => ValueKind::Unsupported,
    };
    let filter = &filter.in_terms_of(kind)?;
    let mut found = Vec::new();
    for number in 0..dataset.index.len() {
        let mut failed = None;
        let holds = filter.holds(|column| match dataset.index.value(column, number) {
            Ok(value) => value.as_ref().and_then(Scalar::of_index),
            Err(error) => {
                failed = Some(error);
                None
            }
        });
        if let Some(error) = failed {
            return Err(error);
        }
        if holds {
            found.push(number);
        }
    }
    Ok(found)
}

fn by_rows(dataset: &Inner, filter: &Filter, threads: usize) -> Result<Vec<u64>> {
    let encodings = &dataset.index.head().meta().encodings;
    for column in filter.columns() {
        let known = || encodings.keys().map(String::as_str).collect::<Vec<_>>().join(" ");
        let (_, lists) = encodings
            .get(column)
            .and_then(|encoding| parse_encoding(encoding))
            .ok_or_else(|| unknown(column, &known()))?;
        if lists > 0 {
            let message = "a filter cannot ask for a column of lists";
            return Err(Error::new(Kind::InvalidInput, message).with("column", column));
        }
    }
    let kind = |column: &str| {
        let encoding = encodings
            .get(column)
            .and_then(|encoding| parse_encoding(encoding));
        encoding.map_or(ValueKind::Unsupported, |(kind, _)| kind)
    };
    let filter = &filter.in_terms_of(kind)?;
    let shards = dataset.index.shard_count();
    let next = AtomicU32::new(0);
    let found: Mutex<Result<BTreeMap<u32, Vec<u64>>>> = Mutex::new(Ok(BTreeMap::new()));
    let work = || {
        loop {
            let shard = next.fetch_add(1, Ordering::Relaxed);
            if shard >= shards {
                return;
            }
            let rows = of_shard(dataset, shard, filter);
            let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
            match (rows, found.as_mut()) {
                (Ok(rows), Ok(all)) => drop(all.insert(shard, rows)),
                (Err(error), Ok(_)) => {
                    *found = Err(error);
                    next.store(shards, Ordering::Relaxed);
                }
                (_, Err(_)) => return,
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.clamp(1, shards.max(1) as usize) {
            scope.spawn(work);
        }
        work();
    });
    let found = found.into_inner().unwrap_or_else(PoisonError::into_inner)?;
    Ok(found.into_values().flatten().collect())
}

/// The samples of one file.
fn of_shard(dataset: &Inner, shard: u32, filter: &Filter) -> Result<Vec<u64>> {
    let about = |error: Error| match dataset.shard(shard) {
        Ok(place) => error.with("shard", &place.name),
        Err(_) => error,
    };
    let first_sample = dataset.index.shard(shard)?.first_sample();
    let table = table(dataset, shard).map_err(about)?;
    let mut found = Vec::new();
    for group in 0..table.file().groups() {
        let rows = table.file().group_rows(group);
        if rows.is_empty() || !may_hold(dataset, filter, first_sample + rows.start)? {
            continue;
        }
        let matches = Group::new(dataset, &table, (shard, group), filter).and_then(|group| group.rows());
        let first = first_sample + rows.start;
        found.extend(matches.map_err(about)?.into_iter().map(|row| first + row));
    }
    Ok(found)
}

/// Returns whether the bounds that the index has of a row group leave something.
fn may_hold(dataset: &Inner, filter: &Filter, sample: u64) -> Result<bool> {
    let bound = |which: &str, column: &str| -> Result<Option<Scalar>> {
        let value = dataset.index.value(&format!("{which}({column})"), sample)?;
        Ok(value.as_ref().and_then(Scalar::of_index))
    };
    for group in filter.groups() {
        let mut possible = true;
        for condition in group {
            let bounds = bound("min", &condition.column)?.zip(bound("max", &condition.column)?);
            possible &= bounds.is_none_or(|(low, high)| condition.may_hold(&low, &high));
        }
        if possible {
            return Ok(true);
        }
    }
    Ok(false)
}

/// A row group that has to be looked at.
struct Group<'a> {
    dataset: &'a Inner,
    table: &'a Arc<Table>,
    place: (u32, usize),
    filter: &'a Filter,
    /// The columns of the filter: which of the file, and their pages.
    columns: BTreeMap<&'a str, (usize, Arc<PageTable>)>,
}

impl<'a> Group<'a> {
    fn new(
        dataset: &'a Inner,
        table: &'a Arc<Table>,
        place: (u32, usize),
        filter: &'a Filter,
    ) -> Result<Self> {
        let leaves = table.file().leaves();
        let mut chunks = Vec::new();
        let mut names = Vec::new();
        for column in filter.columns() {
            let leaf = leaves.iter().position(|leaf| leaf.name == column);
            // A file without the column has nothing but nulls there.
            if let Some(leaf) = leaf {
                names.push((column, leaf));
                chunks.push((Arc::clone(table), (place.1, leaf)));
            }
        }
        let mut fetched = Fetched::default();
        let pages = read_pages(&dataset.client, &chunks, &mut fetched.sources)?;
        let mut columns = BTreeMap::new();
        for ((column, leaf), pages) in names.into_iter().zip(pages) {
            columns.insert(column, (leaf, pages?));
        }
        Ok(Self {
            dataset,
            table,
            place,
            filter,
            columns,
        })
    }

    /// Rows of the group for which the filter holds.
    fn rows(&self) -> Result<Vec<u64>> {
        let possible = self.possible()?;
        let mut found = Vec::new();
        if possible.is_empty() {
            return Ok(found);
        }
        let mut slabs = BTreeMap::new();
        for (column, (leaf, pages)) in &self.columns {
            slabs.insert(*column, self.slabs(*leaf, pages, &possible)?);
        }
        let leaves = self.table.file().leaves();
        for row in possible.into_iter().flatten() {
            let value = |column: &str| {
                let (leaf, pages) = self.columns.get(column)?;
                let slab: &Slab = slabs.get(column)?.get(&pages.page_of(row)?)?;
                let range = slab.row(row).ok()??;
                Scalar::of_row(leaves[*leaf].kind, slab.as_ref().get(range)?)
            };
            if self.filter.holds(value) {
                found.push(row);
            }
        }
        Ok(found)
    }

    /// Ranges of rows that the bounds of pages leave.
    fn possible(&self) -> Result<Vec<Range<u64>>> {
        let rows = self.table.file().group_rows(self.place.1);
        let all = 0..rows.end - rows.start;
        let bounds = self.bounds()?;
        let mut union: Vec<Range<u64>> = Vec::new();
        for group in self.filter.groups() {
            let mut left = vec![all.clone()];
            for condition in group {
                left = both(&left, &self.ranges(condition, &bounds, &all));
            }
            union.extend(left);
        }
        union.sort_unstable_by_key(|range| range.start);
        let mut joined: Vec<Range<u64>> = Vec::new();
        for range in union {
            match joined.last_mut() {
                Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
                _ => joined.push(range),
            }
        }
        Ok(joined)
    }

    /// Rows of the pages whose bounds leave something to a condition.
    fn ranges(&self, condition: &Condition, bounds: &Bounds<'_>, all: &Range<u64>) -> Vec<Range<u64>> {
        let column = condition.column.as_str();
        let Some((_, pages)) = self.columns.get(column) else {
            return Vec::new();
        };
        let Some(bounds) = bounds.get(column).filter(|bounds| bounds.len() == pages.len()) else {
            return vec![all.clone()];
        };
        let leaves_some = |bounds: &Option<(Scalar, Scalar)>| match bounds {
            Some((low, high)) => condition.may_hold(low, high),
            None => true,
        };
        let pages = bounds
            .iter()
            .zip(0_u32..)
            .map(|(bounds, page)| (bounds, pages.rows(page)));
        pages
            .filter(|(bounds, _)| leaves_some(bounds))
            .map(|(_, rows)| rows)
            .collect()
    }

    /// Bounds of pages, where the writer left them, in one request.
    fn bounds(&self) -> Result<Bounds<'a>> {
        let file = self.table.file();
        let (mut items, mut asked): (Vec<Item>, Vec<_>) = (Vec::new(), Vec::new());
        for (column, (leaf, pages)) in &self.columns {
            if let Some(range) = file
                .page_bounds_range(self.place.1, *leaf)?
                .filter(|_| pages.len() > 1)
            {
                items.push(self.table.item(&range));
                asked.push((*column, *leaf));
            }
        }
        if items.is_empty() {
            return Ok(Bounds::new());
        }
        let views: Vec<Result<View>> = self.dataset.client.get_batch(items)?;
        let mut found = Bounds::new();
        for ((column, leaf), view) in asked.into_iter().zip(views) {
            let view = view.map_err(|error| explain(&error))?;
            found.insert(column, file.page_bounds(self.place.1, leaf, &view)?);
        }
        Ok(found)
    }

    /// The pages of a column that have rows of these ranges, decoded.
    fn slabs(&self, leaf: usize, pages: &Arc<PageTable>, rows: &[Range<u64>]) -> Result<BTreeMap<u32, Slab>> {
        let wanted = PageWanted {
            table: Arc::clone(self.table),
            pages: Arc::clone(pages),
        };
        let is_needed = |page: &u32| {
            let of_page = pages.rows(*page);
            rows.iter()
                .any(|rows| rows.start < of_page.end && of_page.start < rows.end)
        };
        let count = u32::try_from(pages.len()).unwrap_or(u32::MAX);
        let needed: Vec<u32> = (0..count).filter(is_needed).collect();
        let (shard, group) = self.place;
        let mut found = BTreeMap::new();
        for some in needed.chunks(PAGES_MAX) {
            let keys = some.iter().map(|page| ((shard, group, leaf, *page), &wanted));
            let slabs = read(self.dataset, keys, &mut Fetched::default())?;
            for (page, slab) in some.iter().zip(slabs) {
                found.insert(*page, slab?);
            }
        }
        Ok(found)
    }
}

/// Of every page of a column the smallest and largest value, if they are known.
type Bounds<'a> = BTreeMap<&'a str, Vec<Option<(Scalar, Scalar)>>>;

/// Returns what lies in both, each of which is in order.
fn both(one: &[Range<u64>], other: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut found = Vec::new();
    let (mut a, mut b) = (0, 0);
    while let (Some(first), Some(second)) = (one.get(a), other.get(b)) {
        let range = first.start.max(second.start)..first.end.min(second.end);
        if !range.is_empty() {
            found.push(range);
        }
        if first.end <= second.end {
            a += 1;
        } else {
            b += 1;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_is_the_intersection() {
        let one = [0..10, 20..30, 40..41];
        let other = [5..25, 29..45];
        assert_eq!(both(&one, &other), [5..10, 20..25, 29..30, 40..41]);
        assert!(both(&one, &[]).is_empty());
    }
}
