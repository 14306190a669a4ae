//! `forebay dataset index`: builds or refreshes the stored index, and says what is in it and how well it
//! would be mixed.

use std::sync::Arc;

use anyhow::anyhow;
use forebay_core::{Result, format_bytes};
use forebay_dataset::order::{OrderOptions, Plan, Shuffle, Window};
use forebay_loader::{Dataset, DatasetOptions, IndexOrigin, Rebuild, WINDOW_BYTES_DEFAULT};
use serde::Serialize;

use super::Context;
use super::args::IndexArgs;
use super::open::{Access, Opened, options};
use crate::exit::{Exit, Outcome};

/// Places at which the mixing is measured; enough for two digits.
const PAIRS_MAX: u64 = 10_000;
/// Of fewer samples the median says nothing.
const MIXING_SAMPLES_MIN: u64 = 100;

#[derive(Serialize)]
pub(crate) struct DatasetFacts {
    pub(crate) dataset: String,
    pub(crate) samples: u64,
    pub(crate) fields: Vec<String>,
    pub(crate) shards: u64,
    pub(crate) bytes: u64,
    pub(crate) index_bytes: u64,
    pub(crate) index_bytes_per_sample: f64,
    /// `stored`, `built` or `in memory`.
    pub(crate) index: &'static str,
    /// Median distance of neighbours as a part of what perfect shuffling gives.
    pub(crate) mixing_window: f64,
    pub(crate) mixing_global: f64,
}

pub(crate) fn run(args: &IndexArgs, context: &Context) -> Outcome {
    let node = args.source.node.node.as_deref();
    let opened = Opened::open(&args.source.url, node, Access::Write, context)?;
    let options = DatasetOptions {
        rebuild: if args.force {
            Rebuild::Always
        } else {
            Rebuild::Changed
        },
        with_sha256: args.sha256,
        ..options(&args.source)?
    };
    let dataset = opened.dataset(options, context)?;
    let facts = facts(&opened.shown, &dataset)?;
    show(&facts, context);
    let is_raw = dataset
        .index()
        .head()
        .shards()
        .flatten()
        .any(|shard| shard.record().layout == forebay_dataset::shard::Layout::ObjectPerSample);
    let is_borrowed = args.source.borrow_index;
    if dataset.index_origin() == IndexOrigin::InMemory && !is_raw && !is_borrowed {
        return Err(Exit::failure(anyhow!(
            "the index could not be stored beside the data; is the lake writable?"
        )));
    }
    Ok(())
}

/// Returns what is to be said of a dataset.
pub(crate) fn facts(shown: &str, dataset: &Dataset) -> Result<DatasetFacts> {
    let head = dataset.index().head();
    let bytes = head
        .shards()
        .map(|shard| Ok(shard?.record().bytes))
        .sum::<Result<u64>>()?;
    Ok(DatasetFacts {
        dataset: shown.to_owned(),
        samples: dataset.len(),
        fields: dataset.fields().to_vec(),
        shards: u64::from(head.shard_count()),
        bytes,
        index_bytes: head.file_bytes(),
        index_bytes_per_sample: head.file_bytes() as f64 / dataset.len().max(1) as f64,
        index: match dataset.index_origin() {
            IndexOrigin::Stored => "stored",
            IndexOrigin::Built => "built",
            IndexOrigin::InMemory => "in memory",
        },
        mixing_window: mixing(dataset, Shuffle::Window(Window::bytes(WINDOW_BYTES_DEFAULT)))?,
        mixing_global: mixing(dataset, Shuffle::Global)?,
    })
}

fn mixing(dataset: &Dataset, shuffle: Shuffle) -> Result<f64> {
    let options = OrderOptions {
        shuffle,
        ..OrderOptions::default()
    };
    let plan = Plan::new(Arc::clone(dataset.shape()), options)?;
    Ok(plan.epoch(0).quality(PAIRS_MAX).ratio())
}

pub(crate) fn show(facts: &DatasetFacts, context: &Context) {
    let output = context.output;
    output.data(facts);
    output.say(format!("dataset   {}", facts.dataset));
    output.say(format!("samples   {}", facts.samples));
    output.say(format!("fields    {}", facts.fields.join(" ")));
    output.say(format!(
        "shards    {}, {}",
        facts.shards,
        format_bytes(facts.bytes)
    ));
    output.say(format!(
        "index     {}, {}, {:.1} bytes per sample",
        facts.index,
        format_bytes(facts.index_bytes),
        facts.index_bytes_per_sample
    ));
    if facts.samples < MIXING_SAMPLES_MIN {
        return;
    }
    output.say(format!(
        "mixing    {:.2} with shuffle=window ({}), {:.2} with shuffle=global; 1 is perfect",
        facts.mixing_window,
        format_bytes(WINDOW_BYTES_DEFAULT),
        facts.mixing_global
    ));
}
