//! A piece: up to 65,536 consecutive samples of one shard, in columns, complete in itself.
//!
//! It carries the names of its fields and columns, so it can be copied from one index to another as it is,
//! and fetched alone from a lake. Opening it costs the check of its CRC and a look at each column's
//! description; numbers are read where they lie, when they are asked for, and a number that makes no sense is
//! an error then. `builder.rs` writes pieces.
//!
//! Three shapes share one layout. *Uniform*: all samples have the same fields, in the same order; each field
//! has columns of its own. *Ragged*: fields differ; one set of columns holds all fields one after the other,
//! another says where each sample's begin. *Runs* (Parquet): what is stored are runs of samples (row groups),
//! and a sample is a row of its run.

mod builder;

pub(super) use builder::PieceBuilder;

use forebay_core::{Error, Kind, Result};
use smallvec::SmallVec;

use super::bytes::Cursor;
use super::column::Column;
use super::{ColumnKind, ColumnSpec, Field, Value};

/// Samples of a piece, at most.
pub const PIECE_SAMPLES_MAX: u32 = 1 << 16;
/// Fields of a sample, at most.
pub const FIELDS_MAX: usize = 4096;

pub(super) const FLAG_UNIFORM: u16 = 1;
pub(super) const FLAG_CRC: u16 = 2;
pub(super) const FLAG_KEYS: u16 = 4;
pub(super) const FLAG_RUNS: u16 = 8;
/// Samples, fields of all samples, flags, names, columns of values, columns in all.
pub(super) const PIECE_HEADER_BYTES: usize = 4 + 4 + 2 + 2 + 2 + 2;

/// Layout of a piece: small, and good for as long as its bytes are there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PieceLayout {
    samples: u32,
    /// Stored samples: runs if there are runs.
    rows: u32,
    entries: u32,
    flags: u16,
    /// Byte ranges of names in the piece.
    names: Vec<(u32, u32)>,
    specs: Vec<ColumnSpec>,
    start: Column,
    /// Ends of runs, where there are runs.
    run_end: Option<Column>,
    /// Ragged: ends of samples among the entries, and the name of each entry.
    ragged: Option<(Column, Column)>,
    groups: Vec<Group>,
    keys: Option<(Column, Column)>,
    values: Vec<Values>,
}

/// Columns of one field (uniform), or of all (ragged).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Group {
    gap: Column,
    bytes: Column,
    crc: Option<Column>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Values {
    I64(Column),
    F64(Column),
    Text {
        number: Column,
        end: Column,
        heap: Column,
    },
}

impl PieceLayout {
    /// Looks at a piece whose CRC was found right.
    ///
    /// Errors: `Corrupt`, if columns lie outside of it or do not fit together.
    pub(super) fn open(piece: &[u8], samples: u32) -> Result<Self> {
        Self::parse(piece, samples).ok_or_else(damaged)
    }

    fn parse(piece: &[u8], samples: u32) -> Option<Self> {
        let mut cursor = Cursor::new(piece);
        let (count, entries, flags) = (cursor.u32()?, cursor.u32()?, cursor.u16()?);
        let (name_count, value_count, column_count) = (cursor.u16()?, cursor.u16()?, cursor.u16()?);
        if count != samples || usize::from(name_count) > FIELDS_MAX {
            return None;
        }
        let names_end = |cursor: &Cursor<'_>| piece.len() - cursor.remaining();
        let mut names = Vec::new();
        for _ in 0..name_count {
            let name = cursor.text()?;
            let end = names_end(&cursor);
            names.push((
                u32::try_from(end - name.len()).ok()?,
                u32::try_from(name.len()).ok()?,
            ));
        }
        let mut specs = Vec::new();
        for _ in 0..value_count {
            let kind = ColumnKind::of_code(cursor.u8()?)?;
            let name = cursor.text()?.to_owned();
            specs.push(ColumnSpec { name, kind });
        }
        let mut columns = Vec::new();
        for _ in 0..column_count {
            columns.push(Column::read(&mut cursor, piece.len())?);
        }
        Assembly {
            columns: columns.into_iter(),
            samples,
            entries,
            flags,
        }
        .layout(names, specs)
    }

    /// Returns how many samples there are.
    #[must_use]
    pub fn samples(&self) -> u32 {
        self.samples
    }

    /// The columns of values.
    #[must_use]
    pub fn columns(&self) -> &[ColumnSpec] {
        &self.specs
    }

    /// The names of fields.
    pub(super) fn names<'a>(&'a self, piece: &'a [u8]) -> impl Iterator<Item = &'a str> {
        (0..self.names.len()).filter_map(|number| self.name(piece, number))
    }

    fn name<'a>(&self, piece: &'a [u8], number: usize) -> Option<&'a str> {
        let (offset, length) = *self.names.get(number)?;
        let bytes = piece.get(offset as usize..offset as usize + length as usize)?;
        std::str::from_utf8(bytes).ok()
    }

    /// Returns which stored row a sample is in, and which sample of that row it is.
    fn row(&self, piece: &[u8], at: u32) -> Option<(u32, u64)> {
        let Some(run_end) = self.run_end else {
            return (at < self.samples).then_some((at, 0));
        };
        let (mut low, mut high) = (0, self.rows);
        while low < high {
            let middle = low + (high - low) / 2;
            if run_end.get(piece, middle)? <= u64::from(at) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        let start = low
            .checked_sub(1)
            .map_or(Some(0), |before| run_end.get(piece, before))?;
        (low < self.rows).then_some((low, u64::from(at).checked_sub(start)?))
    }

    /// The fields of sample `at` of the piece and its row in its run (0 where there are no runs).
    pub(super) fn fields<'a>(&self, piece: &'a [u8], at: u32) -> Result<(Fields<'a>, u64)> {
        self.read_fields(piece, at).ok_or_else(damaged)
    }

    fn read_fields<'a>(&self, piece: &'a [u8], at: u32) -> Option<(Fields<'a>, u64)> {
        let (row, in_run) = self.row(piece, at)?;
        let mut fields = Fields::new();
        let mut end = self.start.get(piece, row)?;
        let mut add = |group: &Group, entry: u32, name: usize| {
            let offset = end.wrapping_add(group.gap.get(piece, entry)?);
            let bytes = group.bytes.get(piece, entry)?;
            end = offset.checked_add(bytes)?;
            let crc32c = match group.crc {
                Some(column) => Some(u32::try_from(column.get(piece, entry)?).ok()?),
                None => None,
            };
            fields.push(Field {
                name: self.name(piece, name)?,
                offset,
                bytes,
                crc32c,
            });
            Some(())
        };
        match &self.ragged {
            None => {
                for (name, group) in self.groups.iter().enumerate() {
                    add(group, row, name)?;
                }
            }
            Some((ends, names)) => {
                let from = row
                    .checked_sub(1)
                    .map_or(Some(0), |before| ends.get(piece, before))?;
                let to = ends.get(piece, row)?;
                if to > u64::from(self.entries) || to.saturating_sub(from) > FIELDS_MAX as u64 {
                    return None;
                }
                for entry in u32::try_from(from).ok()?..u32::try_from(to).ok()? {
                    let name = usize::try_from(names.get(piece, entry)?).ok()?;
                    add(self.groups.first()?, entry, name)?;
                }
            }
        }
        Some((fields, in_run))
    }

    /// The key of sample `at`; `None` if keys were not kept.
    pub(super) fn key<'a>(&self, piece: &'a [u8], at: u32) -> Result<Option<&'a [u8]>> {
        let Some((end, heap)) = &self.keys else {
            return Ok(None);
        };
        slice_at(piece, at, end, heap).map(Some).ok_or_else(damaged)
    }

    /// The value of column `column` for sample `at`.
    pub(super) fn value<'a>(&self, piece: &'a [u8], column: usize, at: u32) -> Result<Value<'a>> {
        let read = || {
            let (row, _) = self.row(piece, at)?;
            Some(match self.values.get(column)? {
                Values::I64(column) => Value::I64((column.get(piece, row)? ^ (1 << 63)).cast_signed()),
                Values::F64(column) => Value::F64(f64::from_bits(column.get(piece, row)?)),
                Values::Text { number, end, heap } => {
                    let number = u32::try_from(number.get(piece, row)?).ok()?;
                    Value::Text(std::str::from_utf8(slice_at(piece, number, end, heap)?).ok()?)
                }
            })
        };
        read().ok_or_else(damaged)
    }
}

/// Fields of one sample: mostly few.
pub(super) type Fields<'a> = SmallVec<[Field<'a>; 4]>;

fn slice_at<'a>(piece: &'a [u8], at: u32, end: &Column, heap: &Column) -> Option<&'a [u8]> {
    let from = at
        .checked_sub(1)
        .map_or(Some(0), |before| end.get(piece, before))?;
    let (from, to) = (
        usize::try_from(from).ok()?,
        usize::try_from(end.get(piece, at)?).ok()?,
    );
    heap.heap(piece)?.get(from..to)
}

/// Puts columns together in the order in which the builder wrote them, and compares their lengths.
struct Assembly {
    columns: std::vec::IntoIter<Column>,
    samples: u32,
    entries: u32,
    flags: u16,
}

impl Assembly {
    fn layout(mut self, names: Vec<(u32, u32)>, specs: Vec<ColumnSpec>) -> Option<PieceLayout> {
        let known = FLAG_UNIFORM | FLAG_CRC | FLAG_KEYS | FLAG_RUNS;
        if self.flags & !known != 0 {
            return None;
        }
        let start = self.columns.next()?;
        let rows = start.count;
        let run_end = match self.has(FLAG_RUNS) {
            true => Some(self.column(rows)?),
            false if rows == self.samples => None,
            false => return None,
        };
        let (mut ragged, mut groups) = (None, Vec::new());
        if self.has(FLAG_UNIFORM) {
            let entries = u64::from(rows) * names.len() as u64;
            if entries != u64::from(self.entries) {
                return None;
            }
            for _ in 0..names.len() {
                groups.push(self.group(rows)?);
            }
        } else {
            ragged = Some((self.column(rows)?, self.column(self.entries)?));
            groups.push(self.group(self.entries)?);
        }
        let keys = match self.has(FLAG_KEYS) {
            true => Some((self.column(self.samples)?, self.columns.next()?)),
            false => None,
        };
        let mut values = Vec::new();
        for spec in &specs {
            values.push(self.values(spec.kind, rows)?);
        }
        self.columns.next().is_none().then_some(PieceLayout {
            samples: self.samples,
            rows,
            entries: self.entries,
            flags: self.flags,
            names,
            specs,
            start,
            run_end,
            ragged,
            groups,
            keys,
            values,
        })
    }

    fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    fn column(&mut self, count: u32) -> Option<Column> {
        self.columns.next().filter(|column| column.count == count)
    }

    fn group(&mut self, count: u32) -> Option<Group> {
        Some(Group {
            gap: self.column(count)?,
            bytes: self.column(count)?,
            crc: match self.has(FLAG_CRC) {
                true => Some(self.column(count)?),
                false => None,
            },
        })
    }

    fn values(&mut self, kind: ColumnKind, rows: u32) -> Option<Values> {
        Some(match kind {
            ColumnKind::I64 => Values::I64(self.column(rows)?),
            ColumnKind::F64 => Values::F64(self.column(rows)?),
            ColumnKind::Text => Values::Text {
                number: self.column(rows)?,
                end: self.columns.next()?,
                heap: self.columns.next()?,
            },
        })
    }
}

pub(super) fn damaged() -> Error {
    let message = "the dataset index is damaged; build it again: forebay dataset index URL";
    Error::new(Kind::Corrupt, message)
}
