//! `forebay dataset head`: the first samples, with sizes and the first bytes of their fields.

use forebay_core::{Result, format_bytes};
use forebay_dataset::index::Value;
use forebay_dataset::raw::LABEL_COLUMN;
use forebay_loader::{Dataset, SampleBytes};
use serde::Serialize;

use super::args::HeadArgs;
use super::preview::Previews;
use super::{Context, open};
use crate::exit::Outcome;

/// Samples that are read at once.
const BATCH: u64 = 64;

#[derive(Serialize)]
struct SampleRow {
    number: u64,
    key: Option<String>,
    shard: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    label: Option<String>,
    fields: Vec<FieldRow>,
}

#[derive(Serialize)]
struct FieldRow {
    name: String,
    bytes: u64,
    preview: String,
}

pub(crate) fn run(args: &HeadArgs, context: &Context) -> Outcome {
    let (_opened, dataset) = open::dataset(&args.source, context)?;
    let samples = args.samples.min(dataset.len());
    let previews = Previews::of(&dataset, args.source.tokens.as_ref());
    let mut lines = Vec::new();
    for first in (0..samples).step_by(BATCH as usize) {
        let numbers: Vec<u64> = (first..samples.min(first + BATCH)).collect();
        for sample in dataset.samples(&numbers)? {
            lines.push(line(&dataset, &previews, &sample?)?);
        }
    }
    context.output.data(&lines);
    for line in &lines {
        let key = line.key.as_deref().unwrap_or_default().escape_debug();
        let label = line
            .label
            .as_ref()
            .map(|label| format!("  {}", label.escape_debug()));
        let label = label.unwrap_or_default();
        context.output.say(format!("{} {key}{label}", line.number));
        for field in &line.fields {
            let name = field.name.escape_debug();
            context.output.say(format!(
                "  {name}  {}  {}",
                format_bytes(field.bytes),
                field.preview
            ));
        }
    }
    Ok(())
}

fn line(dataset: &Dataset, previews: &Previews, sample: &SampleBytes) -> Result<SampleRow> {
    let label = match dataset.index().value(LABEL_COLUMN, sample.number)? {
        Some(Value::Text(label)) => Some(label.to_owned()),
        _ => None,
    };
    let fields = sample.fields.iter().map(|field| FieldRow {
        name: field.name().to_string(),
        bytes: field.len() as u64,
        preview: previews.show(field),
    });
    Ok(SampleRow {
        number: sample.number,
        key: sample
            .key
            .as_deref()
            .map(|key| String::from_utf8_lossy(key).into_owned()),
        shard: sample.shard.to_string(),
        label,
        fields: fields.collect(),
    })
}

/// Returns which sample somebody means: a number without zeros in front, or a key.
pub(crate) fn number_of(dataset: &Dataset, text: &str, is_key: bool) -> Result<u64> {
    let is_plain = text == "0" || !text.starts_with('0');
    match text.parse() {
        Ok(number) if is_plain && !is_key => Ok(number),
        _ => dataset.index().find_key(text.as_bytes()),
    }
}
