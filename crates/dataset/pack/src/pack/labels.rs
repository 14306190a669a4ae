//! Labels of raw files, which lie in no file, as a field of the samples.
//!
//! Whole numbers, if all labels are some, become the field `cls`, which WebDataset's decoders read as a
//! number; anything else the field `label`, as text. In a tar both are text, elsewhere numbers have the type
//! of numbers.

use forebay_core::{Error, Kind, Result};
use forebay_dataset::index::Value;
use forebay_dataset::order::Fingerprint;
use forebay_dataset::raw::LABEL_COLUMN;
use forebay_dataset::shard::Format;
use forebay_dataset::write::{FeatureList, MdsColumn, feature};
use forebay_loader::Dataset;

use super::source::UnitShape;

/// The field that labels become.
pub(crate) struct LabelField {
    format: Format,
    is_number: bool,
    /// Of all labels: other labels are another pack.
    pub(crate) digest: Fingerprint,
}

impl LabelField {
    /// Looks at all labels; `None` if the dataset has none.
    pub(crate) fn new(dataset: &Dataset, format: Format) -> Result<Option<Self>> {
        if dataset.is_empty() || label(dataset, 0)?.is_none() {
            return Ok(None);
        }
        let mut is_number = true;
        let mut digest = Fingerprint::of([]);
        for number in 0..dataset.len() {
            let label = label(dataset, number)?.unwrap_or_default();
            is_number &= as_number(label).is_some();
            digest = Fingerprint::of([(digest.to_string().as_str(), label, number)]);
        }
        Ok(Some(Self {
            format,
            is_number,
            digest,
        }))
    }

    pub(crate) fn name(&self) -> &'static str {
        if self.is_number { "cls" } else { "label" }
    }

    /// Adds the field to the shape of a unit of these samples. Errors: `InvalidInput` if they have several
    /// labels, or the field is there already.
    pub(crate) fn shape(
        &self,
        dataset: &Dataset,
        samples: std::ops::Range<u64>,
        shape: &mut UnitShape,
    ) -> Result<()> {
        let wrong = |message: &str| {
            let key = String::from_utf8_lossy(&shape.key).into_owned();
            Err(Error::new(Kind::InvalidInput, message).with("key", key))
        };
        let first = label(dataset, samples.start)?;
        for number in samples.clone() {
            if label(dataset, number)? != first {
                return wrong("the files of a sample have different labels; give them one, or other names");
            }
        }
        if shape.fields.iter().any(|(name, _)| name == self.name()) {
            let message =
                "a sample has a file for its label already; pack without labels, or take these files away";
            return wrong(message);
        }
        let bytes = self.bytes(dataset, samples.start)?.len() as u64;
        shape.fields.push((self.name().to_owned(), bytes));
        Ok(())
    }

    /// The label of a sample in the words of the format.
    pub(crate) fn bytes(&self, dataset: &Dataset, number: u64) -> Result<Vec<u8>> {
        let label = label(dataset, number)?.unwrap_or_default();
        Ok(match (as_number(label).filter(|_| self.is_number), self.format) {
            (Some(number), Format::Mds | Format::Parquet) => number.to_le_bytes().to_vec(),
            (Some(number), Format::TfRecord) => feature(&FeatureList::Ints(vec![number])),
            _ => label.as_bytes().to_vec(),
        })
    }

    /// Features of an `Example` that come whole.
    pub(crate) fn features(&self) -> Vec<String> {
        self.is_number
            .then(|| self.name().to_owned())
            .into_iter()
            .collect()
    }

    pub(crate) fn mds_column(&self) -> MdsColumn {
        MdsColumn {
            name: self.name().to_owned(),
            encoding: if self.is_number { "int" } else { "str" }.to_owned(),
        }
    }
}

fn label(dataset: &Dataset, number: u64) -> Result<Option<&str>> {
    Ok(match dataset.index().value(LABEL_COLUMN, number)? {
        Some(Value::Text(label)) => Some(label),
        _ => None,
    })
}

/// The number that a label writes in the one usual way; `007` is text.
fn as_number(label: &str) -> Option<i64> {
    let number: i64 = label.parse().ok()?;
    (number.to_string() == label).then_some(number)
}
