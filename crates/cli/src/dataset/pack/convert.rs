//! Rows of Parquet in the words of another format.
//!
//! A tar gets text (digits, ISO dates, JSON for lists), TFRecord features with numbers where there are numbers, MDS the encodings that it has; bytes and texts stay
//! as they are everywhere. A null is a field that the sample lacks.

use std::borrow::Cow;
use std::collections::BTreeMap;

use forebay_core::{Error, Kind, Result};
use forebay_dataset::parquet::{Nested, ValueKind, parse_encoding, to_json, to_text};
use forebay_dataset::shard::Format;
use forebay_dataset::write::{FeatureList, MdsColumn, feature};
use forebay_loader::Dataset;

/// What values are and what becomes of them.
pub(crate) struct Converter {
    /// What the values of a column are, and how many lists are around them.
    columns: BTreeMap<String, (ValueKind, usize)>,
    target: Format,
}

impl Converter {
    /// For a dataset of rows. Errors: `Unsupported` if a column has a type that is not read.
    pub(crate) fn new(dataset: &Dataset, target: Format) -> Result<Self> {
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

    /// The bytes of a field in a shard of the target.
    pub(crate) fn field<'a>(&self, name: &str, bytes: &'a [u8]) -> Result<Cow<'a, [u8]>> {
        let (kind, lists) = self.of(name);
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

/// Whether TensorFlow has a list of such values.
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
    let found = to_json(kind, lists > 0, bytes)?;
    let all = match found {
        serde_json::Value::Array(all) => all,
        one => vec![one],
    };
    if all.iter().any(serde_json::Value::is_null) {
        return Err(null_inside());
    }
    if matches!(kind, ValueKind::Float(_)) {
        // What JSON has no number for was written in words.
        let number = |value: &serde_json::Value| {
            let words = || value.as_str().and_then(|text| text.parse().ok());
            value.as_f64().or_else(words).unwrap_or(f64::NAN) as f32
        };
        return Ok(FeatureList::Floats(all.iter().map(number).collect()));
    }
    let number = |value: &serde_json::Value| {
        let wide = value.as_u64().map(u64::cast_signed);
        value
            .as_i64()
            .or(wide)
            .or(value.as_bool().map(i64::from))
            .unwrap_or_default()
    };
    Ok(FeatureList::Ints(all.iter().map(number).collect()))
}

fn null_inside() -> Error {
    let message = "a list has a null in it, for which TensorFlow has no value; replace the nulls, or pack to parquet or tar";
    Error::new(Kind::InvalidInput, message)
}
