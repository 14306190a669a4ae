//! Rows of Parquet, numbers of MDS and features of TFRecord in the words of another format.
//!
//! A tar gets text (digits, ISO dates, JSON for lists), TFRecord features with numbers where there are
//! numbers, MDS the encodings that it has; bytes and texts stay as they are everywhere. A null is a field
//! that the sample lacks.

use std::borrow::Cow;
use std::collections::BTreeMap;

use forebay_core::{Error, Kind, Result};
use forebay_dataset::parquet::{Nested, Number, ValueKind, parse_encoding, to_numbers, to_text};
use forebay_dataset::shard::Format;
use forebay_dataset::write::{FeatureList, KEY_FIELD, MdsColumn, feature};
use forebay_loader::Dataset;

use super::examples;

/// Types of the values, and the format that they are converted to.
pub(crate) struct Converter {
    /// Type of the values of a column, and how many lists are around them.
    columns: BTreeMap<String, (ValueKind, usize)>,
    target: Format,
}

impl Converter {
    /// For a dataset of MDS that becomes tar or TFRecord, if that changes anything: numbers, and in a tar
    /// keys that are a column. What has no other form (arrays, images) stays as it is.
    pub(crate) fn of_mds(dataset: &Dataset, target: Format) -> Option<Self> {
        if !matches!(target, Format::Tar | Format::TfRecord) {
            return None;
        }
        let encodings = &dataset.index().head().meta().encodings;
        let numbers = encodings.iter().filter_map(|(name, encoding)| {
            let kind = mds_number(encoding)?;
            Some((name.clone(), (kind, 0)))
        });
        let columns: BTreeMap<_, _> = numbers.collect();
        let is_renamed = |name: &String| name == KEY_FIELD || tar_field(name) != *name;
        let renames = target == Format::Tar && encodings.keys().any(is_renamed);
        (renames || !columns.is_empty()).then_some(Self { columns, target })
    }

    /// For a dataset of TFRecord that becomes something else, if its records are examples.
    pub(crate) fn of_examples(dataset: &Dataset, target: Format) -> Result<Option<Self>> {
        if target == Format::TfRecord {
            return Ok(None);
        }
        let columns = examples::columns(dataset)?;
        Ok(columns.map(|columns| Self { columns, target }))
    }

    /// For a dataset of rows. Errors: `Unsupported` if a column has a type that is not read.
    pub(crate) fn of_rows(dataset: &Dataset, target: Format) -> Result<Self> {
        let mut columns = BTreeMap::new();
        for (name, encoding) in &dataset.index().head().meta().encodings {
            let Some((kind, lists)) = parse_encoding(encoding) else {
                continue;
            };
            if kind == ValueKind::Unsupported {
                let message = "a column has a type that is not supported; write the source without it";
                return Err(Error::new(Kind::Unsupported, message).with("column", name));
            }
            columns.insert(name.clone(), (kind, lists));
        }
        Ok(Self { columns, target })
    }

    fn of(&self, name: &str) -> (ValueKind, usize) {
        self.columns.get(name).copied().unwrap_or((ValueKind::Bytes, 0))
    }

    /// The names of the columns.
    pub(crate) fn names(&self) -> impl Iterator<Item = &String> {
        self.columns.keys()
    }

    /// The fields of an example. Errors: `InvalidInput` if the format cannot have them.
    pub(crate) fn example<'a>(&self, record: &'a [u8]) -> Result<Vec<(&'a str, Vec<u8>)>> {
        let features = examples::features(record).ok_or_else(|| {
            let message = "a record is no tf.train.Example though others are; pack them apart";
            Error::new(Kind::InvalidInput, message)
        })?;
        let mut fields = Vec::with_capacity(features.len());
        for (name, feature) in &features {
            let known = self.columns.get(*name).copied();
            let Some(((kind, lists), bytes)) = examples::value(name, feature, known, self.target)? else {
                continue;
            };
            let bytes = self.convert(name, (kind, lists), &bytes)?.into_owned();
            fields.push((*name, bytes));
        }
        Ok(fields)
    }

    /// The bytes of a field in a shard of the target.
    pub(crate) fn field<'a>(&self, name: &str, bytes: &'a [u8]) -> Result<Cow<'a, [u8]>> {
        self.convert(name, self.of(name), bytes)
    }

    fn convert<'a>(
        &self,
        name: &str,
        (kind, lists): (ValueKind, usize),
        bytes: &'a [u8],
    ) -> Result<Cow<'a, [u8]>> {
        let stays = matches!(kind, ValueKind::Text | ValueKind::Bytes | ValueKind::Decimal(_)) && lists == 0;
        let text = || to_text(kind, lists > 0, bytes).map(|text| Cow::Owned(text.into_bytes()));
        let is_number = matches!(
            kind,
            ValueKind::Bool | ValueKind::Int(_) | ValueKind::Uint(_) | ValueKind::Float(_)
        );
        match self.target {
            _ if stays => Ok(Cow::Borrowed(bytes)),
            Format::Parquet => Ok(Cow::Borrowed(bytes)),
            Format::Mds if is_number && lists == 0 => Ok(Cow::Borrowed(bytes)),
            Format::TfRecord if is_feature(kind, lists) => {
                values(kind, lists, bytes).map(|list| Cow::Owned(feature(&list)))
            }
            _ => text(),
        }
        .map_err(|error| error.with("column", name))
    }

    /// Columns that become whole features of an `Example`.
    pub(crate) fn features(&self) -> Vec<String> {
        let found = self
            .columns
            .iter()
            .filter(|(_, (kind, lists))| is_feature(*kind, *lists));
        found.map(|(name, _)| name.clone()).collect()
    }

    /// Returns how a column is encoded in Parquet.
    pub(crate) fn parquet_encoding(&self, name: &str) -> String {
        let (kind, lists) = self.of(name);
        format!("parquet:{}{kind}{}", "list[".repeat(lists), "]".repeat(lists))
    }

    /// The column of an MDS dataset.
    pub(crate) fn mds_column(&self, name: String) -> MdsColumn {
        let encoding = match self.of(&name) {
            (_, 1..) => "json".to_owned(),
            (ValueKind::Bool, _) => "uint8".to_owned(),
            (kind @ (ValueKind::Int(_) | ValueKind::Uint(_) | ValueKind::Float(_)), _) => kind.to_string(),
            (ValueKind::Bytes, _) => "bytes".to_owned(),
            (ValueKind::Decimal(_), _) => "str_decimal".to_owned(),
            _ => "str".to_owned(),
        };
        MdsColumn { name, encoding }
    }
}

/// The field of a tar that a column becomes: WebDataset reads lower case, and a slash would end the key.
pub(crate) fn tar_field(name: &str) -> String {
    name.to_ascii_lowercase().replace('/', ".")
}

/// Returns what a number of MDS is.
fn mds_number(encoding: &str) -> Option<ValueKind> {
    Some(match encoding {
        "int" | "int64" => ValueKind::Int(8),
        "int32" => ValueKind::Int(4),
        "int16" => ValueKind::Int(2),
        "int8" => ValueKind::Int(1),
        "uint64" => ValueKind::Uint(8),
        "uint32" => ValueKind::Uint(4),
        "uint16" => ValueKind::Uint(2),
        "uint8" => ValueKind::Uint(1),
        "float64" => ValueKind::Float(8),
        "float32" => ValueKind::Float(4),
        "float16" => ValueKind::Float(2),
        _ => return None,
    })
}

/// Returns whether TensorFlow has a list of such values.
fn is_feature(kind: ValueKind, lists: usize) -> bool {
    let is_text = matches!(kind, ValueKind::Text | ValueKind::Bytes | ValueKind::Decimal(_));
    let is_time = matches!(
        kind,
        ValueKind::Date | ValueKind::TimestampMs | ValueKind::TimestampUs | ValueKind::TimestampNs
    );
    !is_time && (lists == 1 || lists == 0 && !is_text)
}

/// The values of a row as a feature has them.
fn values(kind: ValueKind, lists: usize, bytes: &[u8]) -> Result<FeatureList> {
    if matches!(kind, ValueKind::Text | ValueKind::Bytes | ValueKind::Decimal(_)) {
        let all = match Nested::read(bytes)? {
            Nested::List(all) => all,
            _ => Vec::new(),
        };
        let all = all.iter().map(|element| match element {
            Nested::Value(bytes) => Ok(bytes.to_vec()),
            _ => Err(null_inside()),
        });
        return all.collect::<Result<_>>().map(FeatureList::Bytes);
    }
    let all = to_numbers(kind, lists > 0, bytes)?;
    let all = all.into_iter().map(|number| number.ok_or_else(null_inside));
    if matches!(kind, ValueKind::Float(_)) {
        return all
            .map(|number| number.and_then(float))
            .collect::<Result<_>>()
            .map(FeatureList::Floats);
    }
    all.map(|number| number.and_then(int))
        .collect::<Result<_>>()
        .map(FeatureList::Ints)
}

/// As TensorFlow's `float_list` has it: rounded to 32 bits.
fn float(number: Number) -> Result<f32> {
    let wide = match number {
        Number::Int(number) => number as f64,
        Number::Uint(number) => number as f64,
        Number::Float(number) => number,
    };
    let narrow = wide as f32;
    if wide.is_finite() && narrow.is_infinite() {
        let message = "a number is too large for TensorFlow, whose numbers with a fraction have 32 bits; write the column as text, or pack to parquet, mds or tar";
        return Err(Error::new(Kind::InvalidInput, message).with("number", wide));
    }
    Ok(narrow)
}

/// As TensorFlow's `int64_list` has it.
fn int(number: Number) -> Result<i64> {
    match number {
        Number::Int(number) => Ok(number),
        Number::Uint(_) | Number::Float(_) => {
            let message = "a whole number is above 9223372036854775807, the largest that TensorFlow has; write the column as text, or pack to parquet, mds or tar";
            let error = Error::new(Kind::InvalidInput, message);
            Err(match number {
                Number::Uint(number) => error.with("number", number),
                _ => error,
            })
        }
    }
}

fn null_inside() -> Error {
    let message = "a list has a null in it, for which TensorFlow has no value; replace the nulls, or pack to parquet or tar";
    Error::new(Kind::InvalidInput, message)
}
