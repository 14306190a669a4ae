//! Records of TFRecord as samples with fields: the features of a `tf.train.Example`.
//!
//! A record says itself what is in it, so which columns there are is learned from [`LOOKED_AT`] records that
//! lie evenly in the data. A feature with one value in each of them is a value, another one a list. A tar
//! takes whatever comes; MDS and Parquet, whose columns are fixed, refuse a record that is unlike those.
//! Records that are no `Example`, or a `SequenceExample`, stay one field.

use std::collections::BTreeMap;

use forebay_core::{Error, Kind, Result};
use forebay_dataset::parquet::{ValueKind, list_of, packed_list};
use forebay_dataset::shard::Format;
use forebay_dataset::tfrecord::{Feature, Features, decode_sequence_example};
use forebay_dataset::write::KEY_FIELD;
use forebay_loader::Dataset;

/// Records whose features are looked at before the pack is planned.
const LOOKED_AT: u64 = 1000;
/// Read at once.
const BATCH: usize = 64;

/// Values of a feature, and how many lists are around them.
pub(crate) type Column = (ValueKind, usize);

/// The columns of a dataset of records; `None` if they stay records.
pub(crate) fn columns(dataset: &Dataset) -> Result<Option<BTreeMap<String, Column>>> {
    let looked_at = dataset.len().min(LOOKED_AT);
    let number = |at: u64| (u128::from(at) * u128::from(dataset.len()) / u128::from(looked_at)) as u64;
    let numbers: Vec<u64> = (0..looked_at).map(number).collect();
    let mut columns: BTreeMap<String, Column> = BTreeMap::new();
    for batch in numbers.chunks(BATCH) {
        for sample in dataset.samples(batch)? {
            let sample = sample?;
            let Some(features) = sample.fields.first().and_then(|record| features(record)) else {
                return Ok(None);
            };
            for (name, feature) in &features {
                let Some((kind, lists)) = column(name, feature) else {
                    continue;
                };
                let known = columns.entry((*name).to_owned()).or_insert((kind, lists));
                if known.0 != kind {
                    return Err(unlike("a feature has values of several types", name));
                }
                known.1 = known.1.max(lists);
            }
        }
    }
    Ok((!columns.is_empty()).then_some(columns))
}

/// The features of a record; `None` if it is no `Example`.
pub(crate) fn features(record: &[u8]) -> Option<Features<'_>> {
    let example = decode_sequence_example(record).ok()?;
    (example.feature_lists.is_empty() && !example.context.is_empty()).then_some(example.context)
}

/// Returns what a feature is by itself; nothing, if it has no values of any type.
fn column(name: &str, feature: &Feature<'_>) -> Option<Column> {
    let (kind, values) = match feature {
        Feature::Empty => return None,
        Feature::Bytes(all) if name == KEY_FIELD => (ValueKind::Text, all.len()),
        Feature::Bytes(all) => (ValueKind::Bytes, all.len()),
        Feature::Floats(all) => (ValueKind::Float(4), all.len()),
        Feature::Ints(all) => (ValueKind::Int(8), all.len()),
    };
    Some((kind, usize::from(values != 1)))
}

/// A feature as a row of Parquet would have it, and which column it belongs to; `None` if it is empty.
///
/// Errors: `InvalidInput` if it does not fit into the column, and the format has fixed ones.
pub(crate) fn value(
    name: &str,
    feature: &Feature<'_>,
    known: Option<Column>,
    target: Format,
) -> Result<Option<(Column, Vec<u8>)>> {
    let Some((kind, own)) = column(name, feature) else {
        return Ok(None);
    };
    let lists = known.map_or(own, |(_, lists)| lists.max(own));
    if target != Format::Tar && known != Some((kind, lists)) {
        return Err(unlike("a feature is unlike those of the records before it", name));
    }
    let mut bytes = match feature {
        Feature::Bytes(all) if lists > 0 => return Ok(Some(((kind, lists), list_of(all)))),
        Feature::Bytes(all) => all.concat(),
        Feature::Floats(all) => all.iter().flat_map(|number| number.to_le_bytes()).collect(),
        Feature::Ints(all) => all.iter().flat_map(|number| number.to_le_bytes()).collect(),
        Feature::Empty => Vec::new(),
    };
    if lists > 0 {
        bytes = packed_list(&bytes);
    }
    Ok(Some(((kind, lists), bytes)))
}

fn unlike(what: &str, name: &str) -> Error {
    let message = format!(
        "{what}: another type or number of values, or one that none of them has; pack to tar, or write the records alike"
    );
    Error::new(Kind::InvalidInput, message).with("feature", name)
}
