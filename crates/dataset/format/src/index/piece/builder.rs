//! Collects samples and writes them as one piece.
//!
//! Numbers are kept as they come and narrowed when the piece is closed, which is after [`PIECE_SAMPLES_MAX`]
//! samples or when fields or strings become many; memory is therefore bounded (some tens of megabytes)
//! however large the shard is.

use std::collections::HashMap;

use forebay_core::{Error, Kind, Result};

use super::{
    FIELDS_MAX, FLAG_CRC, FLAG_KEYS, FLAG_RUNS, FLAG_UNIFORM, PIECE_HEADER_BYTES, PIECE_SAMPLES_MAX,
};
use crate::index::bytes::{put_text, put_u16, put_u32};
use crate::index::column::Columns;
use crate::index::{ColumnKind, ColumnSpec, SampleRecord, Value};
use crate::shard::NAME_BYTES_MAX;

/// Fields of a piece after which it is closed.
const ENTRIES_MAX: usize = 1 << 20;
/// Bytes of keys and texts after which it is closed.
const HEAP_BYTES_MAX: usize = 16 << 20;
/// Samples of one run.
const RUN_SAMPLES_MAX: u32 = 1 << 31;
/// The longest key or text of a sample.
const TEXT_BYTES_MAX: usize = 1 << 16;

/// A piece that is being filled.
#[derive(Debug)]
pub(in crate::index) struct PieceBuilder {
    with_keys: bool,
    specs: Vec<ColumnSpec>,
    names: Vec<String>,
    numbers: HashMap<String, u16>,
    starts: Vec<u64>,
    /// Ends of runs; empty while every row is one sample.
    run_ends: Vec<u64>,
    samples: u64,
    ends: Vec<u64>,
    entry_names: Vec<u16>,
    gaps: Vec<u64>,
    bytes: Vec<u64>,
    crcs: Vec<u64>,
    has_all_crcs: bool,
    key_ends: Vec<u64>,
    key_heap: Vec<u8>,
    values: Vec<ValuesBuilder>,
    heap_bytes: usize,
}

#[derive(Debug, Default)]
struct ValuesBuilder {
    numbers: Vec<u64>,
    dictionary: HashMap<String, u64>,
    ends: Vec<u64>,
    heap: Vec<u8>,
}

impl PieceBuilder {
    pub(in crate::index) fn new(with_keys: bool, specs: &[ColumnSpec]) -> Self {
        Self {
            with_keys,
            specs: specs.to_vec(),
            names: Vec::new(),
            numbers: HashMap::new(),
            starts: Vec::new(),
            run_ends: Vec::new(),
            samples: 0,
            ends: Vec::new(),
            entry_names: Vec::new(),
            gaps: Vec::new(),
            bytes: Vec::new(),
            crcs: Vec::new(),
            has_all_crcs: true,
            key_ends: Vec::new(),
            key_heap: Vec::new(),
            values: specs.iter().map(|_| ValuesBuilder::default()).collect(),
            heap_bytes: 0,
        }
    }

    pub(in crate::index) fn names(&self) -> &[String] {
        &self.names
    }

    pub(in crate::index) fn samples(&self) -> u32 {
        u32::try_from(self.samples).expect("a piece is closed long before")
    }

    pub(in crate::index) fn is_full(&self) -> bool {
        self.samples >= u64::from(PIECE_SAMPLES_MAX)
            || self.gaps.len() >= ENTRIES_MAX
            || self.heap_bytes >= HEAP_BYTES_MAX
    }

    /// Takes the next sample. Errors: `InvalidInput` for names that are too long or values that do not fit
    /// the columns.
    pub(in crate::index) fn add(&mut self, sample: &SampleRecord<'_>) -> Result<()> {
        check(sample, &self.specs)?;
        let start = sample.fields.first().map_or(0, |field| field.offset);
        self.starts.push(start);
        let mut end = start;
        for field in sample.fields {
            let number = self.name(field.name)?;
            self.entry_names.push(number);
            self.gaps.push(field.offset.wrapping_sub(end));
            self.bytes.push(field.bytes);
            self.crcs.push(field.crc32c.map_or(0, u64::from));
            self.has_all_crcs &= field.crc32c.is_some();
            end = field.offset.wrapping_add(field.bytes);
        }
        self.ends.push(self.gaps.len() as u64);
        if self.with_keys {
            let key = sample.key.unwrap_or_default();
            self.key_heap.extend_from_slice(key);
            self.heap_bytes += key.len();
            self.key_ends.push(self.key_heap.len() as u64);
        }
        for (column, value) in self.values.iter_mut().zip(sample.values) {
            self.heap_bytes += column.add(value);
        }
        self.samples += u64::from(sample.repeat);
        self.run_ends.push(self.samples);
        Ok(())
    }

    fn name(&mut self, name: &str) -> Result<u16> {
        if let Some(number) = self.numbers.get(name) {
            return Ok(*number);
        }
        if self.names.len() >= FIELDS_MAX {
            let message = "samples of one shard have too many different fields; is every field name unique?";
            return Err(Error::new(Kind::Unsupported, message).with("fields_max", FIELDS_MAX));
        }
        let number = u16::try_from(self.names.len()).expect("names are few");
        self.names.push(name.to_owned());
        self.numbers.insert(name.to_owned(), number);
        Ok(number)
    }

    /// Returns whether all rows have the same fields in the same order: those of the first, which are then
    /// `names`.
    fn is_uniform(&self) -> bool {
        let width = self.names.len();
        let mut start = 0;
        self.ends.iter().all(|end| {
            let fields = &self.entry_names[start..*end as usize];
            start = *end as usize;
            fields.len() == width && fields.iter().zip(0_u16..).all(|(name, number)| *name == number)
        })
    }

    /// The piece of all that was added.
    pub(in crate::index) fn finish(self) -> Vec<u8> {
        let is_uniform = self.is_uniform();
        let has_runs = self.samples != self.starts.len() as u64;
        // A run has no key; see `check`.
        let with_keys = self.with_keys && !has_runs;
        let mut flags = 0;
        for (flag, is_set) in [
            (FLAG_UNIFORM, is_uniform),
            (FLAG_CRC, self.has_all_crcs),
            (FLAG_KEYS, with_keys),
            (FLAG_RUNS, has_runs),
        ] {
            flags |= if is_set { flag } else { 0 };
        }
        let mut columns = Columns::default();
        columns.push(&self.starts);
        if has_runs {
            columns.push(&self.run_ends);
        }
        self.push_fields(&mut columns, is_uniform);
        if with_keys {
            columns.push(&self.key_ends);
            columns.push_heap(&self.key_heap);
        }
        for (spec, values) in self.specs.iter().zip(&self.values) {
            columns.push(&values.numbers);
            if spec.kind == ColumnKind::Text {
                columns.push(&values.ends);
                columns.push_heap(&values.heap);
            }
        }
        self.write(flags, &columns)
    }

    fn push_fields(&self, columns: &mut Columns, is_uniform: bool) {
        let numbers = [&self.gaps, &self.bytes, &self.crcs];
        let numbers = &numbers[..if self.has_all_crcs { 3 } else { 2 }];
        if is_uniform {
            let width = self.names.len();
            for field in 0..width {
                for all in numbers {
                    let own: Vec<u64> = all.iter().skip(field).step_by(width).copied().collect();
                    columns.push(&own);
                }
            }
            return;
        }
        let names: Vec<u64> = self.entry_names.iter().map(|name| u64::from(*name)).collect();
        columns.push(&self.ends);
        columns.push(&names);
        for all in numbers {
            columns.push(all);
        }
    }

    fn write(&self, flags: u16, columns: &Columns) -> Vec<u8> {
        let mut out = Vec::with_capacity(PIECE_HEADER_BYTES);
        put_u32(&mut out, self.samples());
        put_u32(
            &mut out,
            u32::try_from(self.gaps.len()).expect("a piece is closed long before"),
        );
        put_u16(&mut out, flags);
        for count in [self.names.len(), self.specs.len(), columns.len()] {
            put_u16(&mut out, u16::try_from(count).expect("names and columns are few"));
        }
        for name in &self.names {
            put_text(&mut out, name);
        }
        for spec in &self.specs {
            out.push(spec.kind.code());
            put_text(&mut out, &spec.name);
        }
        columns.write(&mut out);
        out
    }
}

impl ValuesBuilder {
    /// Takes a value of the right kind; the answer is how many bytes of text it added.
    fn add(&mut self, value: &Value<'_>) -> usize {
        let mut added = 0;
        let number = match value {
            Value::I64(value) => value.cast_unsigned() ^ (1 << 63),
            Value::F64(value) => value.to_bits(),
            Value::Text(text) => match self.dictionary.get(*text) {
                Some(number) => *number,
                None => {
                    let number = self.ends.len() as u64;
                    self.dictionary.insert((*text).to_owned(), number);
                    self.heap.extend_from_slice(text.as_bytes());
                    self.ends.push(self.heap.len() as u64);
                    added = text.len();
                    number
                }
            },
        };
        self.numbers.push(number);
        added
    }
}

fn check(sample: &SampleRecord<'_>, specs: &[ColumnSpec]) -> Result<()> {
    let invalid = |message: &str| Err(Error::new(Kind::InvalidInput, message));
    if sample.repeat == 0 || sample.repeat > RUN_SAMPLES_MAX || (sample.repeat > 1 && sample.key.is_some()) {
        return invalid("a run of samples is empty or too long, or has a key");
    }
    if sample.fields.len() > FIELDS_MAX {
        return invalid("a sample has more fields than an index can hold");
    }
    if let Some(field) = sample
        .fields
        .iter()
        .find(|field| field.name.len() > NAME_BYTES_MAX)
    {
        return invalid("a field name is too long").map_err(|error| error.with("bytes", field.name.len()));
    }
    let fits = specs.len() == sample.values.len()
        && specs
            .iter()
            .zip(sample.values)
            .all(|(spec, value)| spec.kind == value.kind());
    if !fits {
        return invalid("the values of a sample do not fit the columns of the index");
    }
    let texts = sample.values.iter().map(|value| match value {
        Value::Text(text) => text.len(),
        _ => 0,
    });
    let longest = texts.chain(sample.key.map(<[u8]>::len)).max().unwrap_or(0);
    if longest > TEXT_BYTES_MAX {
        return invalid("a key or text of a sample is too long")
            .map_err(|error| error.with("bytes", longest));
    }
    Ok(())
}
