//! Source of a pack: samples of any dataset in the shape that a shard of another format takes.
//!
//! A unit is what stays together: a sample, or of raw files all files with one key (`dir/0001.jpg` and
//! `dir/0001.cls`), by WebDataset's rule: the key is the path up to the first dot of the base name, what
//! follows is the field. A listing is sorted, so such files are neighbours but for rare names (`a`, `a-b`,
//! `a.jpg`), which are refused. Shapes come from the index alone; bytes are read later, each unit once. Of
//! rows of Parquet the index knows about how long they are; for MDS, whose offsets come first, they are read
//! twice. Of MDS that becomes tar or TFRecord, where numbers are written in another way, it also knows only
//! about. Memory: 8 bytes a unit of raw files, nothing of others.

use std::borrow::Cow;

use forebay_core::{Error, Kind, Result};
use forebay_dataset::shard::{Format, Layout};
use forebay_dataset::write::{KEY_FIELD, MdsColumn, PackFormat, ParquetColumn, Records};
use forebay_loader::{Dataset, SampleBytes};

use super::convert::{Converter, tar_field};
use super::labels::LabelField;
use super::options::SortBy;

/// A file without an ending is this field.
const PLAIN_FIELD: &str = "data";

/// A dataset that is packed.
pub(crate) struct Source {
    pub(crate) dataset: Dataset,
    /// Of raw files the first sample of each unit, and the end.
    groups: Option<Vec<u64>>,
    /// The field that labels of raw files become.
    pub(crate) labels: Option<LabelField>,
    keys: KeyRule,
    values: Values,
    /// Conversion of the values, if they do not stay as they are.
    converter: Option<Converter>,
}

/// A unit whose samples were read.
pub(crate) struct Unit<'a> {
    pub(crate) key: Vec<u8>,
    pub(crate) fields: Vec<(Cow<'a, str>, Cow<'a, [u8]>)>,
}

/// Treatment of keys by the format of the shards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KeyRule {
    /// Every sample needs one; numbers stand in.
    NeedsKeys,
    /// One is kept if there is one.
    KeepsKeys,
}

/// Container of the values of a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Values {
    /// Fields with places of their own.
    Fields,
    /// Columns of Parquet.
    Rows,
    /// A record that holds all of them.
    Examples,
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
        let converter = match first.map(|shard| shard.record().format) {
            Some(Format::Parquet) => Some(Converter::of_rows(&dataset, format)?),
            Some(Format::Mds) => Converter::of_mds(&dataset, format),
            Some(Format::TfRecord) => Converter::of_examples(&dataset, format)?,
            _ => None,
        };
        let kind = match first.map(|shard| shard.record().format) {
            Some(Format::Parquet) => Values::Rows,
            Some(Format::TfRecord) if converter.is_some() => Values::Examples,
            _ => Values::Fields,
        };
        let keys = if format == Format::Tar {
            KeyRule::NeedsKeys
        } else {
            KeyRule::KeepsKeys
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
            keys,
            values: kind,
            converter,
        })
    }

    /// Returns whether shapes are right to the byte.
    pub(crate) fn is_exact(&self) -> bool {
        self.converter.is_none()
    }

    /// Returns whether it can be sorted by this without reading it.
    ///
    /// Errors: `Unsupported`, with advice.
    pub(crate) fn check_order(&self, by: SortBy) -> Result<()> {
        if self.values == Values::Rows {
            let message =
                "rows of Parquet cannot be sorted here; sort the table before, or pack to tar and sort that";
            return Err(Error::new(Kind::Unsupported, message));
        }
        if by == SortBy::Key && self.units() > 0 && self.dataset.index().key(0)?.is_none() {
            let message =
                "the samples have no keys to be sorted by; TFRecord, MDS, JSON lines and tokens have none";
            return Err(Error::new(Kind::Unsupported, message));
        }
        Ok(())
    }

    /// Returns whether every shard is TFRecord.
    fn has_records_only(&self) -> Result<bool> {
        for shard in self.dataset.index().head().shards() {
            if shard?.record().format != Format::TfRecord {
                return Ok(false);
            }
        }
        Ok(true)
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

    /// Returns how many units there are.
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

    /// Returns what a unit will look like.
    pub(crate) fn shape(&self, unit: u64) -> Result<UnitShape> {
        let mut shape = UnitShape::default();
        for number in self.samples_of(unit) {
            let sample = self.dataset.index().sample(number)?;
            let key = sample.key.unwrap_or_default();
            if self.groups.is_some() {
                let (key, field) = cut(key)?;
                shape.key = key.to_vec();
                shape.fields.push((field, sample.bytes()));
            } else {
                shape.key = key.to_vec();
                shape.fields.extend(self.fields(&sample)?);
            }
        }
        if let Some(labels) = &self.labels {
            labels.shape(&self.dataset, self.samples_of(unit), &mut shape)?;
        }
        if shape.key.is_empty() && self.keys == KeyRule::NeedsKeys {
            shape.key = format!("{unit:09}").into_bytes();
        }
        Ok(shape)
    }

    /// Name and size of each field; of rows and examples about.
    fn fields(&self, sample: &forebay_dataset::index::Sample<'_>) -> Result<Vec<(String, u64)>> {
        if let (Values::Examples, Some(converter)) = (self.values, &self.converter) {
            let names: Vec<&String> = converter.names().filter(|name| self.takes(name)).collect();
            let bytes = sample.bytes() / names.len().max(1) as u64;
            return Ok(names
                .into_iter()
                .map(|name| (self.renamed(name), bytes))
                .collect());
        }
        let beside = match self.values {
            Values::Rows => self.rows_beside(sample)?,
            Values::Fields | Values::Examples => 1,
        };
        let fields = sample.fields.iter().filter(|field| self.takes(field.name));
        Ok(fields
            .map(|field| (self.renamed(field.name), field.bytes / beside))
            .collect())
    }

    /// Returns what a column is called in the shards.
    fn renamed(&self, name: &str) -> String {
        match (&self.converter, self.keys) {
            (Some(_), KeyRule::NeedsKeys) => tar_field(name),
            _ => name.to_owned(),
        }
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
        if let Some(converter) = &self.converter {
            return self.converted(samples, shape, converter);
        }
        let bytes = samples.iter().flat_map(|sample| &sample.fields);
        let bytes = bytes.filter(|field| self.groups.is_some() || self.takes(field.name()));
        let label = match (&self.labels, samples.first()) {
            (Some(labels), Some(sample)) => Some(labels.bytes(&self.dataset, sample.number)?),
            _ => None,
        };
        let names = shape.fields.iter().map(|(name, _)| Cow::Borrowed(name.as_str()));
        let bytes = bytes.map(|field| Cow::Borrowed(&**field));
        let fields = names.zip(bytes.chain(label.map(Cow::Owned)));
        Ok(Unit {
            key: shape.key.clone(),
            fields: fields.collect(),
        })
    }

    /// A row or a sample of MDS: a column with the name of a key is the key of a tar.
    fn converted<'a>(
        &self,
        samples: &'a [SampleBytes],
        shape: &UnitShape,
        converter: &Converter,
    ) -> Result<Unit<'a>> {
        let mut unit = Unit {
            key: shape.key.clone(),
            fields: Vec::new(),
        };
        let mut take = |name: &'a str, bytes: Cow<'a, [u8]>| {
            if self.takes(name) {
                let name = match self.renamed(name) {
                    same if same == name => Cow::Borrowed(name),
                    other => Cow::Owned(other),
                };
                unit.fields.push((name, bytes));
            } else if !bytes.is_empty() {
                unit.key = bytes.into_owned();
            }
        };
        for field in samples.iter().flat_map(|sample| &sample.fields) {
            if self.values == Values::Examples {
                for (name, bytes) in converter.example(field)? {
                    take(name, Cow::Owned(bytes));
                }
            } else if !field.is_null() {
                take(field.name(), converter.field(field.name(), field)?);
            }
        }
        Ok(unit)
    }

    /// In a tar the key is the name; a field of that name would be a second one.
    fn takes(&self, field: &str) -> bool {
        field != KEY_FIELD || self.keys == KeyRule::KeepsKeys
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
            None if self.values == Values::Examples => {
                names.extend(self.converter.iter().flat_map(Converter::names).cloned());
            }
            None => names.extend_from_slice(self.dataset.fields()),
        }
        let has_keys = self.units() > 0 && !self.shape(0)?.key.is_empty();
        if has_keys && !names.iter().any(|name| name == KEY_FIELD) {
            names.push(KEY_FIELD.to_owned());
        }
        let encodings = &self.dataset.index().head().meta().encodings;
        let label = |name: &str| self.labels.as_ref().filter(|labels| labels.name() == name);
        let column = |name: String| match (&self.converter, encodings.get(&name), label(&name)) {
            (Some(converter), ..) => converter.mds_column(name),
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

    /// The columns of a Parquet dataset of all units: those of the source, or what MDS would make of its
    /// fields.
    pub(crate) fn parquet_columns(&self) -> Result<Vec<ParquetColumn>> {
        let encodings = &self.dataset.index().head().meta().encodings;
        let column = |column: MdsColumn| {
            let encoding = match (&self.converter, encodings.get(&column.name)) {
                (Some(converter), _) if self.values == Values::Examples => {
                    converter.parquet_encoding(&column.name)
                }
                (Some(_), Some(encoding)) => encoding.clone(),
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

/// Returns what values of an MDS column are in Parquet; what has no type there stays bytes.
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
        Format::TfRecord if source.has_records_only()? => Ok(PackFormat::TfRecord(Records::AsTheyAre)),
        Format::TfRecord => {
            let values = source.converter.as_ref().map(Converter::features);
            let labels = source.labels.as_ref().map(LabelField::features);
            let whole = values.or(labels).unwrap_or_default();
            Ok(PackFormat::TfRecord(Records::Examples(whole)))
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

/// Returns where each unit of raw files begins, and the end.
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
