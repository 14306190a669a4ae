//! Lists as bytes: what a row of a column with lists is handed over as.
//!
//! A row is its tag and what follows: [`PACKED`] and the elements side by side, for one list of values of one
//! width of which none is missing; or [`LIST`], the number of elements in 4 bytes, and each element with a
//! tag of its own: [`NULL`], [`VALUE`] with 4 bytes of length and the value, or again [`LIST`]. All numbers
//! are little endian. A row without a list is no bytes at all: the field is null.

use forebay_core::{Error, Kind, Result};

use super::schema::Leaf;

/// A value that is not there.
const NULL: u8 = 0;
const VALUE: u8 = 1;
const LIST: u8 = 2;
const PACKED: u8 = 3;
/// Deeper bytes are refused.
const DEPTH_MAX: usize = 16;

/// The levels and values of one row, from a column reader.
pub(super) struct Row<'a> {
    pub(super) def: &'a [i16],
    pub(super) rep: &'a [i16],
    /// The values that are there, one after the other, as ends in `bytes`.
    pub(super) values: &'a [(usize, usize)],
    pub(super) bytes: &'a [u8],
}

/// Writes a row; `false` if it is null.
pub(super) fn write(leaf: &Leaf, row: &Row<'_>, out: &mut Vec<u8>) -> bool {
    let Some((first, outer)) = row.def.first().zip(leaf.lists.first()) else {
        return false;
    };
    if *first < outer - 1 {
        return false;
    }
    let all_there = row.def.iter().all(|def| *def == leaf.max_def);
    if leaf.lists.len() == 1 && leaf.kind.width().is_some() && (all_there || *first < *outer) {
        out.push(PACKED);
        for (start, end) in row.values {
            out.extend_from_slice(&row.bytes[*start..*end]);
        }
        return true;
    }
    let mut values = row.values.iter();
    list(leaf, 0, row.def, row.rep, row.bytes, &mut values, out);
    true
}

/// Writes the list at this depth, whose levels these are.
fn list(
    leaf: &Leaf,
    depth: usize,
    def: &[i16],
    rep: &[i16],
    bytes: &[u8],
    values: &mut std::slice::Iter<'_, (usize, usize)>,
    out: &mut Vec<u8>,
) {
    let Some(level) = leaf.lists.get(depth) else {
        match values.next().filter(|_| def.first() == Some(&leaf.max_def)) {
            Some((start, end)) => {
                out.push(VALUE);
                let length = u32::try_from(end - start).unwrap_or(u32::MAX);
                out.extend_from_slice(&length.to_le_bytes());
                out.extend_from_slice(&bytes[*start..*end]);
            }
            None => out.push(NULL),
        }
        return;
    };
    let first = def.first().copied().unwrap_or_default();
    if first < level - 1 {
        return out.push(NULL);
    }
    out.push(LIST);
    let count_at = out.len();
    out.extend_from_slice(&[0; 4]);
    if first < *level {
        return;
    }
    // Elements of this list start where the repetition level is that of the list, or above it in the schema.
    let starts_here = |at: &usize| *at == 0 || rep[*at] <= depth as i16 + 1;
    let starts: Vec<usize> = (0..def.len()).filter(starts_here).collect();
    for (number, start) in starts.iter().enumerate() {
        let end = starts.get(number + 1).copied().unwrap_or(def.len());
        let is_value = depth + 1 == leaf.lists.len();
        if is_value && def[*start] != leaf.max_def {
            out.push(NULL);
        } else {
            list(
                leaf,
                depth + 1,
                &def[*start..end],
                &rep[*start..end],
                bytes,
                values,
                out,
            );
        }
    }
    let count = u32::try_from(starts.len()).unwrap_or(u32::MAX).to_le_bytes();
    out[count_at..count_at + 4].copy_from_slice(&count);
}

/// A row with a list of values of one width, which lie side by side.
#[must_use]
pub fn packed_list(values: &[u8]) -> Vec<u8> {
    [&[PACKED], values].concat()
}

/// A row with a list of values, none of which is missing.
#[must_use]
pub fn list_of(values: &[&[u8]]) -> Vec<u8> {
    let length = |length: usize| u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes();
    let mut out = vec![LIST];
    out.extend_from_slice(&length(values.len()));
    for value in values {
        out.push(VALUE);
        out.extend_from_slice(&length(value.len()));
        out.extend_from_slice(value);
    }
    out
}

/// A row with lists, read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Nested<'a> {
    /// Nothing.
    Null,
    /// One value.
    Value(&'a [u8]),
    /// A list.
    List(Vec<Nested<'a>>),
    /// A list of values of one width, side by side.
    Packed(&'a [u8]),
}

impl<'a> Nested<'a> {
    /// Reads a row that was written here. Errors: `Corrupt`.
    pub fn read(bytes: &'a [u8]) -> Result<Self> {
        if let Some((&PACKED, values)) = bytes.split_first() {
            return Ok(Self::Packed(values));
        }
        let mut rest = bytes;
        let found = one(&mut rest, 0).filter(|_| rest.is_empty());
        found.ok_or_else(|| Error::new(Kind::Corrupt, "a list of a row cannot be read"))
    }
}

fn one<'a>(rest: &mut &'a [u8], depth: usize) -> Option<Nested<'a>> {
    let (tag, mut more) = rest.split_first()?;
    let mut number = || {
        let (bytes, after) = more.split_first_chunk::<4>()?;
        more = after;
        Some(u32::from_le_bytes(*bytes) as usize)
    };
    match *tag {
        NULL => {
            *rest = more;
            Some(Nested::Null)
        }
        VALUE => {
            let length = number()?;
            let (value, after) = more.split_at_checked(length)?;
            *rest = after;
            Some(Nested::Value(value))
        }
        LIST if depth < DEPTH_MAX => {
            let count = number()?;
            *rest = more;
            let mut found = Vec::new();
            for _ in 0..count {
                found.push(one(rest, depth + 1)?);
            }
            Some(Nested::List(found))
        }
        _ => None,
    }
}
