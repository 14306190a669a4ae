//! Parquet: samples are rows, fields are columns.
//!
//! Values come as `forebay_dataset::parquet` hands them over: little endian numbers, bytes, lists in their
//! tagged form. A field that a sample lacks is null. Rows are held until a row group is full
//! ([`GROUP_BYTES`]) and written column by column; pages are small and have an index with statistics, so that
//! single rows are cheap to read and filters pass over what they do not need. Images do not shrink: columns
//! of plain bytes are stored as they are, all others with Zstandard. How long a shard will be is not known
//! before it is written.

use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use forebay_core::{Error, Kind, Result};
use parquet::basic::{Compression, ConvertedType, LogicalType, Repetition, Type as Physical, ZstdLevel};
use parquet::column::writer::ColumnWriter;
use parquet::data_type::{ByteArray, FixedLenByteArray};
use parquet::errors::ParquetError;
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterPropertiesPtr};
use parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter};
use parquet::schema::types::{ColumnPath, Type, TypePtr};

use super::{KEY_FIELD, Out, PackSample, SampleShape, ShardWriter, refused};
use crate::parquet::{Nested, ValueKind};

/// Bytes of values in a row group, about.
const GROUP_BYTES: usize = 16 << 20;
/// Rows of a row group.
const GROUP_ROWS: usize = 1 << 16;
const PAGE_BYTES: usize = 256 << 10;
/// Values between two looks at the size of a page.
const BATCH_VALUES: usize = 8;
/// Cost of a value besides its bytes, about.
const VALUE_BYTES: u64 = 6;

/// A column of a Parquet dataset.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ParquetColumn {
    /// Its name.
    pub name: String,
    /// Encoding of its values, as in `parquet:list[int64]`.
    pub encoding: String,
}

impl ParquetColumn {
    fn parse(&self) -> Result<(ValueKind, usize)> {
        let parsed = crate::parquet::parse_encoding(&self.encoding);
        let writable = parsed.filter(|(kind, _)| *kind != ValueKind::Unsupported);
        writable.ok_or_else(|| {
            let message = "values of the field cannot be written to Parquet; leave it out, or pack to tar";
            refused(message).with("field", &self.name)
        })
    }
}

/// About how long a row is.
pub(super) fn sample_bytes(columns: &[ParquetColumn], sample: &SampleShape<'_>) -> u64 {
    let fields = sample.fields.iter().map(|(_, bytes)| *bytes);
    let all = fields.fold(sample.key.len() as u64, u64::saturating_add);
    all.saturating_add(VALUE_BYTES * columns.len() as u64)
}

/// Writes one file.
pub(super) struct ParquetWriter {
    columns: Vec<ParquetColumn>,
    file: Option<SerializedFileWriter<Sink>>,
    sink: Sink,
    /// The rows of the open row group, column by column.
    rows: Vec<Vec<Option<Bytes>>>,
    held_bytes: usize,
}

/// Memory that a file is written to, and taken from.
#[derive(Clone, Default)]
struct Sink(Arc<Mutex<Vec<u8>>>);

impl Sink {
    fn take(&self) -> Vec<u8> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        held.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn failed(why: ParquetError) -> Error {
    Error::new(Kind::Internal, "the Parquet file cannot be written").caused_by(why)
}

impl ParquetWriter {
    pub(super) fn new(columns: Vec<ParquetColumn>) -> Self {
        Self {
            rows: vec![Vec::new(); columns.len()],
            columns,
            file: None,
            sink: Sink::default(),
            held_bytes: 0,
        }
    }

    /// Writes the rows that are held as a row group.
    fn group(&mut self, out: Out<'_>) -> Result<()> {
        let file = self.file.as_mut().ok_or_else(not_started)?;
        let mut group = file.next_row_group().map_err(failed)?;
        for (column, rows) in self.columns.iter().zip(&mut self.rows) {
            let mut writer = group.next_column().map_err(failed)?.ok_or_else(not_started)?;
            let rows = std::mem::take(rows);
            write_column(&mut writer, column, &rows).map_err(|error| error.with("field", &column.name))?;
            writer.close().map_err(failed)?;
        }
        group.close().map_err(failed)?;
        self.held_bytes = 0;
        out(&self.sink.take())
    }
}

fn not_started() -> Error {
    Error::new(Kind::Internal, "a Parquet file was not begun, or has ended")
}

impl ShardWriter for ParquetWriter {
    fn start(&mut self, _out: Out<'_>) -> Result<()> {
        let schema = schema(&self.columns)?;
        let properties = properties(&self.columns)?;
        let file = SerializedFileWriter::new(self.sink.clone(), schema, properties).map_err(failed)?;
        self.file = Some(file);
        Ok(())
    }

    fn sample(&mut self, sample: &PackSample<'_>, out: Out<'_>) -> Result<()> {
        for (column, rows) in self.columns.iter().zip(&mut self.rows) {
            let found = sample.fields.iter().find(|(name, _)| *name == column.name);
            let value = match found {
                Some((_, bytes)) => Some(*bytes),
                None if column.name == KEY_FIELD && !sample.key.is_empty() => Some(sample.key),
                None => None,
            };
            self.held_bytes += value.map_or(0, <[u8]>::len) + size_of::<Option<Bytes>>();
            rows.push(value.map(Bytes::copy_from_slice));
        }
        let rows = self.rows.first().map_or(0, Vec::len);
        if self.held_bytes >= GROUP_BYTES || rows >= GROUP_ROWS {
            self.group(out)?;
        }
        Ok(())
    }

    fn finish(&mut self, out: Out<'_>) -> Result<()> {
        if self.rows.first().is_some_and(|rows| !rows.is_empty()) {
            self.group(out)?;
        }
        self.file
            .take()
            .ok_or_else(not_started)?
            .close()
            .map_err(failed)?;
        out(&self.sink.take())
    }
}

fn properties(columns: &[ParquetColumn]) -> Result<WriterPropertiesPtr> {
    let zstd = Compression::ZSTD(ZstdLevel::try_new(3).map_err(failed)?);
    let mut properties = WriterProperties::builder()
        .set_created_by("forebay".into())
        .set_compression(zstd)
        .set_dictionary_enabled(false)
        .set_statistics_enabled(EnabledStatistics::Page)
        .set_data_page_size_limit(PAGE_BYTES)
        .set_write_batch_size(BATCH_VALUES);
    for column in columns {
        if column.parse()? == (ValueKind::Bytes, 0) {
            let path = ColumnPath::from(column.name.clone());
            properties = properties
                .set_column_compression(path.clone(), Compression::UNCOMPRESSED)
                .set_column_statistics_enabled(path, EnabledStatistics::None);
        }
    }
    Ok(Arc::new(properties.build()))
}

fn schema(columns: &[ParquetColumn]) -> Result<TypePtr> {
    let fields = columns.iter().map(|column| {
        let (kind, lists) = column.parse()?;
        field(&column.name, kind, lists).map_err(failed)
    });
    let fields = fields.collect::<Result<_>>()?;
    let schema = Type::group_type_builder("schema").with_fields(fields).build();
    schema.map(Arc::new).map_err(failed)
}

/// An optional column, or a list of them.
fn field(name: &str, kind: ValueKind, lists: usize) -> Result<TypePtr, ParquetError> {
    if lists == 0 {
        return leaf(name, kind).map(Arc::new);
    }
    let element = field("element", kind, lists - 1)?;
    let list = Type::group_type_builder("list")
        .with_repetition(Repetition::REPEATED)
        .with_fields(vec![element])
        .build()?;
    let outer = Type::group_type_builder(name)
        .with_repetition(Repetition::OPTIONAL)
        .with_converted_type(ConvertedType::LIST)
        .with_logical_type(Some(LogicalType::List))
        .with_fields(vec![Arc::new(list)])
        .build()?;
    Ok(Arc::new(outer))
}

fn leaf(name: &str, kind: ValueKind) -> Result<Type, ParquetError> {
    use parquet::basic::TimeUnit;
    let integer =
        |width: u8, is_signed| LogicalType::integer(8 * i8::try_from(width).unwrap_or_default(), is_signed);
    let time = |unit| LogicalType::timestamp(false, unit);
    let (physical, logical) = match kind {
        ValueKind::Bool => (Physical::BOOLEAN, None),
        ValueKind::Int(8) => (Physical::INT64, None),
        ValueKind::Int(4) => (Physical::INT32, None),
        ValueKind::Int(width) => (Physical::INT32, Some(integer(width, true))),
        ValueKind::Uint(8) => (Physical::INT64, Some(integer(8, false))),
        ValueKind::Uint(width) => (Physical::INT32, Some(integer(width, false))),
        ValueKind::Float(2) => (Physical::FIXED_LEN_BYTE_ARRAY, Some(LogicalType::Float16)),
        ValueKind::Float(4) => (Physical::FLOAT, None),
        ValueKind::Float(_) => (Physical::DOUBLE, None),
        ValueKind::Date => (Physical::INT32, Some(LogicalType::Date)),
        ValueKind::TimestampMs => (Physical::INT64, Some(time(TimeUnit::MILLIS))),
        ValueKind::TimestampUs => (Physical::INT64, Some(time(TimeUnit::MICROS))),
        ValueKind::TimestampNs => (Physical::INT64, Some(time(TimeUnit::NANOS))),
        // Decimals come as digits and stay so.
        ValueKind::Text | ValueKind::Decimal(_) => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
        ValueKind::Bytes | ValueKind::Unsupported => (Physical::BYTE_ARRAY, None),
    };
    let builder = Type::primitive_type_builder(name, physical)
        .with_repetition(Repetition::OPTIONAL)
        .with_logical_type(logical);
    let builder = match kind {
        ValueKind::Float(2) => builder.with_length(2),
        _ => builder,
    };
    builder.build()
}

/// Levels and values of all rows of a column.
struct Levels<'a> {
    def: Vec<i16>,
    rep: Vec<i16>,
    values: Vec<&'a [u8]>,
    kind: ValueKind,
    max_def: i16,
}

impl<'a> Levels<'a> {
    fn value(&mut self, rep: i16, bytes: &'a [u8]) {
        self.def.push(self.max_def);
        self.rep.push(rep);
        self.values.push(bytes);
    }

    fn nothing(&mut self, rep: i16, def: i16) {
        self.def.push(def);
        self.rep.push(rep);
    }

    /// A list, or an element of one: at so many lists deep, with the level that it begins at.
    fn nested(&mut self, list: &Nested<'a>, depth: i16, rep: i16) {
        match list {
            Nested::Null => self.nothing(rep, 2 * depth),
            Nested::Value(bytes) => self.value(rep, bytes),
            Nested::Packed(bytes) => {
                let width = self.kind.width().unwrap_or(1).max(1);
                if bytes.is_empty() {
                    self.nothing(rep, 2 * depth + 1);
                }
                for (at, one) in bytes.chunks(width).enumerate() {
                    self.value(if at == 0 { rep } else { depth + 1 }, one);
                }
            }
            Nested::List(elements) => {
                if elements.is_empty() {
                    self.nothing(rep, 2 * depth + 1);
                }
                for (at, element) in elements.iter().enumerate() {
                    self.nested(element, depth + 1, if at == 0 { rep } else { depth + 1 });
                }
            }
        }
    }
}

fn write_column(
    writer: &mut SerializedColumnWriter<'_>,
    column: &ParquetColumn,
    rows: &[Option<Bytes>],
) -> Result<()> {
    let (kind, lists) = column.parse()?;
    let depth = i16::try_from(lists).unwrap_or(i16::MAX / 4);
    let mut levels = Levels {
        def: Vec::with_capacity(rows.len()),
        rep: Vec::new(),
        values: Vec::with_capacity(rows.len()),
        kind,
        max_def: 2 * depth + 1,
    };
    for row in rows {
        match row {
            None => levels.nothing(0, 0),
            Some(bytes) if lists == 0 => levels.value(0, bytes),
            Some(bytes) => levels.nested(&Nested::read(bytes)?, 0, 0),
        }
    }
    if matches!(kind, ValueKind::Text | ValueKind::Decimal(_))
        && let Some(wrong) = levels
            .values
            .iter()
            .find(|value| std::str::from_utf8(value).is_err())
    {
        let message = "a field with text is not UTF-8, which Parquet needs; correct it, or pack to tar";
        return Err(refused(message).with("bytes", wrong.len()));
    }
    if let Some(width) = kind.width()
        && levels.values.iter().any(|value| value.len() != width)
    {
        return Err(refused(
            "a value does not have the size of its type; index the source again",
        ));
    }
    let rep = (lists > 0).then_some(levels.rep.as_slice());
    put(writer.untyped(), kind, &levels.values, &levels.def, rep).map_err(failed)
}

fn put(
    writer: &mut ColumnWriter<'_>,
    kind: ValueKind,
    values: &[&[u8]],
    def: &[i16],
    rep: Option<&[i16]>,
) -> Result<(), ParquetError> {
    /// The low bytes of a number, widened as its sign says.
    fn wide<const N: usize>(bytes: &[u8], is_signed: bool) -> [u8; N] {
        let negative = is_signed && bytes.last().is_some_and(|last| last & 0x80 != 0);
        let mut all = [if negative { 0xff } else { 0 }; N];
        let length = bytes.len().min(N);
        all[..length].copy_from_slice(&bytes[..length]);
        all
    }
    let is_signed = !matches!(kind, ValueKind::Uint(_));
    let each = values.iter();
    let def = Some(def);
    match writer {
        ColumnWriter::BoolColumnWriter(writer) => {
            let values: Vec<bool> = each
                .map(|value| value.first().is_some_and(|one| *one != 0))
                .collect();
            writer.write_batch(&values, def, rep)?;
        }
        ColumnWriter::Int32ColumnWriter(writer) => {
            let values: Vec<i32> = each
                .map(|value| i32::from_le_bytes(wide(value, is_signed)))
                .collect();
            writer.write_batch(&values, def, rep)?;
        }
        ColumnWriter::Int64ColumnWriter(writer) => {
            let values: Vec<i64> = each
                .map(|value| i64::from_le_bytes(wide(value, is_signed)))
                .collect();
            writer.write_batch(&values, def, rep)?;
        }
        ColumnWriter::FloatColumnWriter(writer) => {
            let values: Vec<f32> = each.map(|value| f32::from_le_bytes(wide(value, false))).collect();
            writer.write_batch(&values, def, rep)?;
        }
        ColumnWriter::DoubleColumnWriter(writer) => {
            let values: Vec<f64> = each.map(|value| f64::from_le_bytes(wide(value, false))).collect();
            writer.write_batch(&values, def, rep)?;
        }
        ColumnWriter::ByteArrayColumnWriter(writer) => {
            let values: Vec<ByteArray> = each.map(|value| ByteArray::from(value.to_vec())).collect();
            writer.write_batch(&values, def, rep)?;
        }
        ColumnWriter::FixedLenByteArrayColumnWriter(writer) => {
            let values = each.map(|value| FixedLenByteArray::from(value.to_vec()));
            writer.write_batch(&values.collect::<Vec<_>>(), def, rep)?;
        }
        ColumnWriter::Int96ColumnWriter(_) => {
            return Err(ParquetError::NYI("times of 96 bits".into()));
        }
    }
    Ok(())
}
