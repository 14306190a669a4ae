//! The values that go into an index and come out of it.

use forebay_core::{ByteRange, crc32c};
use smallvec::SmallVec;

/// One field of a sample and where it lies in its shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field<'a> {
    /// Its name: the ending of a tar member, the column of an MDS shard …
    pub name: &'a str,
    /// First byte, in the decompressed stream if the shard is compressed.
    pub offset: u64,
    /// Number of bytes; may be none.
    pub bytes: u64,
    /// CRC32C of those bytes; `None` if they were never read (places taken from somebody else's index, column
    /// chunks).
    pub crc32c: Option<u32>,
}

impl Field<'_> {
    /// The place as a range; `None` if it has no bytes.
    #[must_use]
    pub fn range(&self) -> Option<ByteRange> {
        ByteRange::new(self.offset, self.offset.saturating_add(self.bytes)).ok()
    }
}

/// A sample as the index has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sample<'a> {
    /// Number of its shard.
    pub shard: u32,
    /// Its number in the shard.
    pub number_in_shard: u64,
    /// Its row in the run (Parquet: row group) that `fields` describe; 0 in other formats.
    pub row_in_run: u64,
    /// Its key, if keys were kept.
    pub key: Option<&'a [u8]>,
    /// Its fields, in the order of the shard.
    pub fields: SmallVec<[Field<'a>; 4]>,
}

impl<'a> Sample<'a> {
    /// The field of this name.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&Field<'a>> {
        self.fields.iter().find(|field| field.name == name)
    }

    /// All bytes of all fields together.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        // Fields of an index that somebody made up may lie over each other.
        self.fields
            .iter()
            .fold(0, |bytes, field| field.bytes.saturating_add(bytes))
    }

    /// From the first byte of its first field to the last byte of its last: one read gets the whole sample.
    #[must_use]
    pub fn span(&self) -> Option<ByteRange> {
        let start = self.fields.iter().map(|field| field.offset).min()?;
        let ends = self
            .fields
            .iter()
            .map(|field| field.offset.saturating_add(field.bytes));
        ByteRange::new(start, ends.max()?).ok()
    }

    /// CRC32C of the fields' bytes one after the other, if all are known.
    #[must_use]
    pub fn crc32c(&self) -> Option<u32> {
        self.fields.iter().try_fold(0, |crc, field| {
            let bytes = usize::try_from(field.bytes).ok()?;
            Some(crc32c::crc32c_combine(crc, field.crc32c?, bytes))
        })
    }
}

/// Kind of a column of values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ColumnKind {
    /// Whole numbers.
    I64,
    /// Numbers.
    F64,
    /// Strings; each different one is stored once per piece.
    Text,
}

impl ColumnKind {
    /// The name that documents have.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::I64 => "i64",
            Self::F64 => "f64",
            Self::Text => "text",
        }
    }

    pub(super) const fn code(self) -> u8 {
        match self {
            Self::I64 => 1,
            Self::F64 => 2,
            Self::Text => 3,
        }
    }

    pub(super) fn of_code(code: u8) -> Option<Self> {
        [Self::I64, Self::F64, Self::Text]
            .into_iter()
            .find(|kind| kind.code() == code)
    }
}

/// A named column of values: labels, sizes, scores; for filters and sorting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ColumnSpec {
    /// Its name.
    pub name: String,
    /// Kind of its values.
    pub kind: ColumnKind,
}

impl ColumnSpec {
    /// A column of this name.
    #[must_use]
    pub fn new(name: impl Into<String>, kind: ColumnKind) -> Self {
        Self {
            name: name.into(),
            kind,
        }
    }
}

/// A value of a column.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Value<'a> {
    /// A whole number.
    I64(i64),
    /// A number.
    F64(f64),
    /// A string.
    Text(&'a str),
}

impl Value<'_> {
    /// The kind of column it belongs to.
    #[must_use]
    pub const fn kind(&self) -> ColumnKind {
        match self {
            Self::I64(_) => ColumnKind::I64,
            Self::F64(_) => ColumnKind::F64,
            Self::Text(_) => ColumnKind::Text,
        }
    }
}

/// A sample that goes into an index.
#[derive(Debug, Clone, Copy)]
pub struct SampleRecord<'a> {
    /// Its key, if it has one.
    pub key: Option<&'a [u8]>,
    /// Its fields, in the order of the shard.
    pub fields: &'a [Field<'a>],
    /// Its values, one for each column of the index.
    pub values: &'a [Value<'a>],
    /// Samples that share these fields: 1, except for the row groups of Parquet.
    pub repeat: u32,
}

impl<'a> SampleRecord<'a> {
    /// A sample without values.
    #[must_use]
    pub fn new(key: Option<&'a [u8]>, fields: &'a [Field<'a>]) -> Self {
        Self {
            key,
            fields,
            values: &[],
            repeat: 1,
        }
    }
}
