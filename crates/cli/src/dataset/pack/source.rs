//! What is packed: samples of any dataset in the shape that a shard of another format takes.
//!
//! A unit is what stays together: a sample, or of raw files all files with one key (`dir/0001.jpg` and `dir/0001.cls`), by WebDataset's rule: the key is the path
//! up to the first dot of the base name, what follows is the field. A listing is sorted, so such files are neighbours but for rare names (`a`, `a-b`, `a.jpg`), which are
//! refused. Shapes come from the index
//! alone; bytes are read later, each unit once. Of rows of Parquet the index knows about how long they are; for MDS, whose offsets come first, they are read twice.
//! Memory: 8 bytes a unit of raw files, nothing of others.

use std::borrow::Cow;

use forebay_core::{Error, Kind, Result};
use forebay_dataset::shard::{Format, Layout};
use forebay_dataset::write::{KEY_FIELD, MdsColumn, PackFormat, ParquetColumn};
use forebay_loader::{Dataset, SampleBytes};

use super::convert::Converter;
use super::labels::LabelField;

/// A file without an ending is this field.
const PLAIN_FIELD: &str = "data";

/// A dataset that is packed.
pub(crate) struct Source {
    pub(crate) dataset: Dataset,
    /// Of raw files the first sample of each unit, and the end.
    groups: Option<Vec<u64>>,
    /// What labels of raw files become.
    pub(crate) labels: Option<LabelField>,
    target: Target,
    /// What becomes of the values, if it is rows of Parquet.
    rows: Option<Converter>,
}

/// A unit whose samples were read.
pub(crate) struct Unit<'a> {
    pub(crate) key: Vec<u8>,
    pub(crate) fields: Vec<(&'a str, Cow<'a, [u8]>)>,
}

/// What the format of the shards means for keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Target {
    /// Every sample needs one; numbers stand in.
    NeedsKeys,
    /// One is kept if there is one.
    KeepsKeys,
}

/// Key and fields of a unit, before its bytes are there.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct UnitShape {
    pub(crate) key: Vec<u8>,
    pub(crate) fields: Vec<(String, u64)>,
}

impl Source {
    /// Looks at the index. Errors: `Unsupported` if a column has a type that cannot be packed.
    pub(crate) fn new(dataset: Dataset, format: Format) -> Result<Self> {
        let first = dataset.index().head().shards().next().transpose()?;
        let is_rows = first.is_some_and(|shard| shard.record().format == Format::Parquet);
        let rows = is_rows.then(|| Converter::new(&dataset, format)).transpose()?;
        let target = if format == Format::Tar {
            Target::NeedsKeys
        } else {
            Target::KeepsKeys
        };
        let groups = is_raw(&dataset)?.then(|| groups(&dataset)).transpose()?;
        let labels = match groups {
            Some(_) => LabelField::new(&dataset, format)?,
            None => None,
        };
        Ok(Self {
            dataset,
            groups,
            labels,
            target,
            rows,
        })
    }

    /// Whether shapes are right to the byte.
    pub(crate) fn is_exact(&self) -> bool {
        self.rows.is_none()
    }

    /// Bytes of compressed shards, decompressed: what a jump back in the order may cost again.
    pub(crate) fn compressed_bytes(&self) -> Result<u64> {
        let mut bytes = 0_u64;
        for shard in self.dataset.index().head().shards() {
            let record = shard?.record();
            if record.is_compressed() {
                bytes = bytes.saturating_add(record.stream_bytes);
            }
        }
        Ok(bytes)
    }

    /// How many units there are.
    pub(crate) fn units(&self) -> u64 {
        match &self.groups {
            Some(groups) => groups.len().saturating_sub(1) as u64,
            None => self.dataset.len(),
        }
    }

    /// The samples of a unit.
    pub(crate) fn samples_of(&self, unit: u64) -> std::ops::Range<u64> {
        match &self.groups {
            Some(groups) => {
                let at = |unit: u64| groups.get(unit as usize).copied().unwrap_or_default();
                at(unit)..at(unit + 1)
            }
            None => unit..unit + 1,
        }
    }

    /// What a unit will look like.
    pub(crate) fn shape(&self, unit: u64) -> Result<UnitShape> {
        let mut shape = UnitShape::default();
        for number in self.samples_of(unit) {
            let sample = self.dataset.index().sample(number)?;
            let key = sample.key.unwrap_or_default();
            if self.groups.is_some() {
                let (key, field) = cut(key)?;
                shape.key = key.to_vec();
                shape.fields.push((field, sample.bytes()));
            } else if self.rows.is_some() {
                let rows = self.rows_beside(&sample)?;
                let fields = sample.fields.iter().filter(|field| self.takes(field.name));
                shape
                    .fields
                    .extend(fields.map(|field| (field.name.to_owned(), field.bytes / rows)));
            } else {
                shape.key = key.to_vec();
                let fields = sample.fields.iter().filter(|field| self.takes(field.name));
                shape
                    .fields
                    .extend(fields.map(|field| (field.name.to_owned(), field.bytes)));
            }
        }
        if let Some(labels) = &self.labels {
            labels.shape(&self.dataset, self.samples_of(unit), &mut shape)?;
        }
        if shape.key.is_empty() && self.target == Target::NeedsKeys {
            shape.key = format!("{unit:09}").into_bytes();
        }
        Ok(shape)
    }

    /// About how many rows share the chunks of a row.
    fn rows_beside(&self, sample: &forebay_dataset::index::Sample<'_>) -> Result<u64> {
        let shard = self.dataset.index().shard(sample.shard)?;
        let bytes: u64 = sample.fields.iter().map(|field| field.bytes).sum();
        let rows = u128::from(shard.samples()) * u128::from(bytes) / u128::from(shard.record().bytes.max(1));
        Ok(u64::try_from(rows).unwrap_or(u64::MAX).max(1))
    }

    /// Key and fields of a unit whose samples were read.
    pub(crate) fn unit<'a>(&self, samples: &'a [SampleBytes], shape: &'a UnitShape) -> Result<Unit<'a>> {
        if let Some(rows) = &self.rows {
            return self.row(samples, shape, rows);
        }
        let bytes = samples.iter().flat_map(|sample| &sample.fields);
        let bytes = bytes.filter(|field| self.groups.is_some() || self.takes(field.name()));
        let label = match (&self.labels, samples.first()) {
            (Some(labels), Some(sample)) => Some(labels.bytes(&self.dataset, sample.number)?),
            _ => None,
        };
        let names = shape.fields.iter().map(|(name, _)| name.as_str());
        let bytes = bytes.map(|field| Cow::Borrowed(&**field));
        let fields = names.zip(bytes.chain(label.map(Cow::Owned)));
        Ok(Unit {
            key: shape.key.clone(),
            fields: fields.collect(),
        })
    }

    /// A row: a column with the name of a key is the key of a tar.
    fn row<'a>(&self, samples: &'a [SampleBytes], shape: &UnitShape, rows: &Converter) -> Result<Unit<'a>> {
        let mut unit = Unit {
            key: shape.key.clone(),
            fields: Vec::new(),
        };
        for field in samples.iter().flat_map(|sample| &sample.fields) {
            if field.is_null() {
                continue;
            }
            if self.takes(field.name()) {
                let name: &'a str = field.name();
                unit.fields.push((name, rows.field(name, field)?));
            } else if !field.is_empty() {
                unit.key = rows.field(field.name(), field)?.into_owned();
            }
        }
        Ok(unit)
    }

    /// In a tar the key is the name; a field of that name would be a second one.
    fn takes(&self, field: &str) -> bool {
        field != KEY_FIELD || self.target == Target::KeepsKeys
    }

    /// The columns of an MDS dataset of all units, sorted as the library has them.
    pub(crate) fn columns(&self) -> Result<Vec<MdsColumn>> {
        let mut names: Vec<String> = Vec::new();
        match self.groups {
            Some(_) => {
                for unit in 0..self.units() {
                    for (field, _) in self.shape(unit)?.fields {
                        if !names.contains(&field) {
                            names.push(field);
                        }
                    }
                }
            }
            None => names.extend_from_slice(self.dataset.fields()),
        }
        let has_keys = self.units() > 0 && !self.shape(0)?.key.is_empty();
        if has_keys && !names.iter().any(|name| name == KEY_FIELD) {
            names.push(KEY_FIELD.to_owned());
        }
        let encodings = &self.dataset.index().head().meta().encodings;
        let label = |name: &str| self.labels.as_ref().filter(|labels| labels.name() == name);
        let column = |name: String| match (&self.rows, encodings.get(&name), label(&name)) {
            (Some(rows), ..) => rows.mds_column(name),
            (None, Some(encoding), _) => MdsColumn {
                name,
                encoding: encoding.clone(),
            },
            (None, None, Some(labels)) => labels.mds_column(),
            (None, None, None) => MdsColumn::of_field(&name),
        };
        let mut columns: Vec<MdsColumn> = names.into_iter().map(column).collect();
        columns.sort();
        Ok(columns)
    }

    /// The columns of a Parquet dataset of all units: those of the source, or what MDS would make of its fields.
    pub(crate) fn parquet_columns(&self) -> Result<Vec<ParquetColumn>> {
        let encodings = &self.dataset.index().head().meta().encodings;
        let column = |column: MdsColumn| {
            let encoding = match encodings.get(&column.name) {
                Some(encoding) if self.rows.is_some() => encoding.clone(),
                _ => parquet_encoding(&column.encoding).to_owned(),
            };
            ParquetColumn {
                name: column.name,
                encoding,
            }
        };
        Ok(self.columns()?.into_iter().map(column).collect())
    }
}

/// What values of an MDS column are in Parquet; what has no type there stays bytes.
fn parquet_encoding(mds: &str) -> &'static str {
    match mds {
        "str" | "json" | "str_int" | "str_float" | "str_decimal" => "parquet:str",
        "int" | "int64" => "parquet:int64",
        "int8" => "parquet:int8",
        "int16" => "parquet:int16",
        "int32" => "parquet:int32",
        "uint8" => "parquet:uint8",
        "uint16" => "parquet:uint16",
        "uint32" => "parquet:uint32",
        "uint64" => "parquet:uint64",
        "float16" => "parquet:float16",
        "float32" => "parquet:float32",
        "float64" => "parquet:float64",
        _ => "parquet:bytes",
    }
}

/// The shards that were asked for.
pub(crate) fn pack_format(source: &Source, format: Format) -> Result<PackFormat> {
    match format {
        Format::Tar => Ok(PackFormat::Tar),
        Format::TfRecord => {
            let rows = source.rows.as_ref().map(Converter::features);
            let labels = source.labels.as_ref().map(LabelField::features);
            Ok(PackFormat::TfRecord(rows.or(labels).unwrap_or_default()))
        }
        Format::Mds => source.columns().map(PackFormat::Mds),
        Format::Parquet => source.parquet_columns().map(PackFormat::Parquet),
        other => {
            let message = "shards are packed as tar, tfrecord, mds or parquet";
            Err(Error::new(Kind::InvalidInput, message).with("format", other.as_str()))
        }
    }
}

fn is_raw(dataset: &Dataset) -> Result<bool> {
    let first = dataset.index().head().shards().next().transpose()?;
    Ok(first.is_some_and(|shard| shard.record().layout == Layout::ObjectPerSample))
}

/// Where each unit of raw files begins, and the end.
///
/// Errors: `InvalidInput` if other names lie between the files of a unit.
fn groups(dataset: &Dataset) -> Result<Vec<u64>> {
    let mut starts = Vec::new();
    let mut shard = None;
    // Keys that may come again, the last one on top: in a sorted listing those that the name begins with.
    let mut open: Vec<Vec<u8>> = Vec::new();
    for number in 0..dataset.len() {
        let sample = dataset.index().sample(number)?;
        let name = sample.key.unwrap_or_default();
        if shard.replace(sample.shard) != Some(sample.shard) {
            open.clear();
        }
        let key = cut(name)?.0;
        if open.last().is_some_and(|last| last == key) {
            continue;
        }
        open.retain(|before| name.starts_with(before));
        if open.iter().any(|before| before == key) {
            let message = "between files of one sample other names are sorted, so they would be two samples; rename the file, or put it elsewhere";
            return Err(Error::new(Kind::InvalidInput, message).with("file", String::from_utf8_lossy(name)));
        }
        starts.push(number);
        open.push(key.to_vec());
    }
    starts.push(dataset.len());
    Ok(starts)
}

/// Key and field of the name of a file.
fn cut(name: &[u8]) -> Result<(&[u8], String)> {
    let base = name
        .iter()
        .rposition(|byte| *byte == b'/')
        .map_or(0, |slash| slash + 1);
    let dot = name[base..]
        .iter()
        .position(|byte| *byte == b'.')
        .map(|dot| base + dot);
    let Some(dot) = dot.filter(|dot| *dot + 1 < name.len()) else {
        return Ok((name.strip_suffix(b".").unwrap_or(name), PLAIN_FIELD.to_owned()));
    };
    let field = std::str::from_utf8(&name[dot + 1..]).map_err(|_| {
        let message = "the ending of a file is not UTF-8, so it cannot be the name of a field; rename it";
        Error::new(Kind::InvalidInput, message).with("file", String::from_utf8_lossy(name))
    })?;
    Ok((&name[..dot], field.to_ascii_lowercase()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_cut_at_the_first_dot_of_the_base_name() {
        for (name, key, field) in [
            ("cat/0001.jpg", "cat/0001", "jpg"),
            ("v1.0/0001.seg.PNG", "v1.0/0001", "seg.png"),
            ("README", "README", "data"),
            ("odd.", "odd", "data"),
        ] {
            assert_eq!(
                cut(name.as_bytes()).unwrap(),
                (key.as_bytes(), field.to_owned()),
                "{name}"
            );
        }
        assert!(cut(b"a.\xff").is_err());
    }
}
