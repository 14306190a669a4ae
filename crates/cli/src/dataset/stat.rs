//! `forebay dataset stat`: what the index says, field by field and by format.

use std::collections::BTreeMap;

use forebay_core::{Result, format_bytes};
use forebay_dataset::shard::Format;
use forebay_loader::Dataset;
use serde::Serialize;

use super::args::StatArgs;
use super::index::{self, DatasetFacts};
use super::{Context, open};
use crate::exit::Outcome;

/// Samples that are looked at; of more, so many at equal distances.
const SAMPLES_LOOKED_AT_MAX: u64 = 1_000_000;

#[derive(Serialize, Clone, Copy)]
struct FieldFacts {
    /// Samples that have it, of those that were looked at.
    samples: u64,
    bytes_mean: f64,
    /// Not known of rows of Parquet.
    bytes_min: Option<u64>,
    bytes_max: Option<u64>,
}

#[derive(Serialize)]
struct DatasetStat {
    #[serde(flatten)]
    facts: DatasetFacts,
    /// Shards by format and compression.
    formats: BTreeMap<String, u64>,
    samples_looked_at: u64,
    field_sizes: BTreeMap<String, FieldFacts>,
    encodings: BTreeMap<String, String>,
    columns: BTreeMap<String, String>,
}

pub(crate) fn run(args: &StatArgs, context: &Context) -> Outcome {
    let (opened, dataset) = open::dataset(&args.source, context)?;
    let (samples_looked_at, field_sizes) = field_sizes(&dataset)?;
    let meta = dataset.index().head().meta();
    let all = DatasetStat {
        facts: index::facts(&opened.shown, &dataset)?,
        formats: formats(&dataset)?,
        samples_looked_at,
        field_sizes,
        encodings: meta.encodings.clone(),
        columns: meta.columns.clone(),
    };
    if context.output.json {
        context.output.data(&all);
    } else {
        show(&all, context);
    }
    Ok(())
}

fn formats(dataset: &Dataset) -> Result<BTreeMap<String, u64>> {
    let mut formats = BTreeMap::new();
    for shard in dataset.index().head().shards() {
        let record = shard?.record();
        let name = match record.codec.as_str() {
            "none" => record.format.as_str().to_owned(),
            codec => format!("{}.{codec}", record.format.as_str()),
        };
        *formats.entry(name).or_default() += 1;
    }
    Ok(formats)
}

/// Sizes of fields; of rows of Parquet those of their column chunks, shared by all rows.
fn field_sizes(dataset: &Dataset) -> Result<(u64, BTreeMap<String, FieldFacts>)> {
    let first = dataset.index().head().shards().next().transpose()?;
    if first.is_some_and(|shard| shard.record().format == Format::Parquet) {
        return column_sizes(dataset);
    }
    let looked_at = dataset.len().min(SAMPLES_LOOKED_AT_MAX);
    let mut sizes: BTreeMap<String, (FieldFacts, u128)> = BTreeMap::new();
    for place in 0..looked_at {
        let number = u128::from(dataset.len()) * u128::from(place) / u128::from(looked_at);
        let sample = dataset.index().sample(number as u64)?;
        for field in &sample.fields {
            let none = FieldFacts {
                samples: 0,
                bytes_mean: 0.0,
                bytes_min: None,
                bytes_max: None,
            };
            if !sizes.contains_key(field.name) {
                sizes.insert(field.name.to_owned(), (none, 0));
            }
            if let Some((facts, sum)) = sizes.get_mut(field.name) {
                facts.samples += 1;
                facts.bytes_min = Some(facts.bytes_min.map_or(field.bytes, |min| min.min(field.bytes)));
                facts.bytes_max = facts.bytes_max.max(Some(field.bytes));
                *sum += u128::from(field.bytes);
            }
        }
    }
    let mean = |(name, (mut facts, sum)): (String, (FieldFacts, u128))| {
        facts.bytes_mean = sum as f64 / facts.samples.max(1) as f64;
        (name, facts)
    };
    Ok((looked_at, sizes.into_iter().map(mean).collect()))
}

fn column_sizes(dataset: &Dataset) -> Result<(u64, BTreeMap<String, FieldFacts>)> {
    let mut sums: BTreeMap<String, u64> = BTreeMap::new();
    let mut group = None;
    let looked_at = dataset.len().min(SAMPLES_LOOKED_AT_MAX);
    for place in 0..looked_at {
        let number = u128::from(dataset.len()) * u128::from(place) / u128::from(looked_at);
        let sample = dataset.index().sample(number as u64)?;
        let place = (sample.shard, sample.fields.first().map(|field| field.offset));
        if group.replace(place) == Some(place) {
            continue;
        }
        for field in &sample.fields {
            *sums.entry(field.name.to_owned()).or_default() += field.bytes;
        }
    }
    let facts = |(name, bytes)| {
        let facts = FieldFacts {
            samples: dataset.len(),
            bytes_mean: bytes as f64 / dataset.len().max(1) as f64,
            bytes_min: None,
            bytes_max: None,
        };
        (name, facts)
    };
    Ok((looked_at, sums.into_iter().map(facts).collect()))
}

fn show(all: &DatasetStat, context: &Context) {
    let output = context.output;
    index::show(&all.facts, context);
    let formats = all
        .formats
        .iter()
        .map(|(name, shards)| format!("{name} ({shards})"));
    output.say(format!("formats   {}", formats.collect::<Vec<_>>().join(" ")));
    if all.samples_looked_at < all.facts.samples {
        output.say(format!(
            "sizes     of {} samples at equal distances",
            all.samples_looked_at
        ));
    }
    output.say("");
    let rows = all.field_sizes.iter().map(|(name, facts)| {
        let encoding = all.encodings.get(name).cloned().unwrap_or_default();
        let size = |bytes: u64| format_bytes(bytes);
        [
            name.clone(),
            facts.samples.to_string(),
            size(facts.bytes_mean.round() as u64),
            facts.bytes_min.map_or_else(|| "-".to_owned(), size),
            facts.bytes_max.map_or_else(|| "-".to_owned(), size),
            encoding,
        ]
    });
    output.table(["FIELD", "SAMPLES", "MEAN", "MIN", "MAX", "ENCODING"], rows);
}
