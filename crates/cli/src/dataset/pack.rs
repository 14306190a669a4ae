//! `forebay dataset pack`: writes a dataset anew, as shards of another format, size or order
//! (`forebay-dataset-pack`).

use anyhow::anyhow;
use forebay_core::format_bytes;
use forebay_dataset_pack::{Pack, PackOptions, PackReport};
use forebay_loader::DatasetOptions;

use super::Context;
use super::args::PackArgs;
use super::open::{self, Access, Opened, labels};
use crate::exit::{Exit, Outcome};

pub(crate) fn run(args: &PackArgs, context: &Context) -> Outcome {
    if open::is_inside(&args.target, &args.source) {
        return Err(Exit::usage(anyhow!(
            "{} lies in {}, so the new shards would become part of what is packed; choose a folder beside it",
            args.target,
            args.source
        )));
    }
    let node = args.node.node.as_deref();
    let from = Opened::open(&args.source, node, Access::Read, context)?;
    let options = DatasetOptions {
        format: args.source_format,
        tokens: args.tokens.clone(),
        build_threads: usize::from(args.jobs),
        labels: labels(args.labels.as_deref())?,
        ..DatasetOptions::default()
    };
    let pack = Pack::plan(from.dataset(options, context)?, &pack_options(args))?;
    if args.labels.is_some() && !pack.has_label_field() {
        return Err(Exit::usage(anyhow!(
            "--labels is for folders of raw files; the samples of {} have their labels in them",
            args.source
        )));
    }
    // Opened now: it makes the folder, and a pack that is refused leaves none.
    let to = Opened::open(&args.target, node, Access::Create, context)?;
    let folder = to.folder()?;
    let report = context.with_progress(|work| pack.write(&folder, work))?;
    tell(folder.shown(), &report, context);
    Ok(())
}

fn pack_options(args: &PackArgs) -> PackOptions {
    PackOptions {
        format: args.format,
        compress: args.compress,
        shard_bytes: args.shard_size.0,
        shuffle: args.shuffle,
        sort_by: args.sort_by.map(Into::into),
        jobs: usize::from(args.jobs),
    }
}

/// Says what is there now: how many of the shards are new, and the bytes of all.
fn tell(shown: &str, report: &PackReport, context: &Context) {
    let PackReport {
        samples,
        shards,
        shards_written,
        bytes,
        ..
    } = *report;
    let format = report.format.as_str();
    context.output.data(&serde_json::json!({
        "dataset": shown, "format": format, "samples": samples, "shards": shards, "bytes": bytes,
        "shards_written": shards_written, "pack": report.id,
    }));
    let before = match shards - shards_written {
        0 => String::new(),
        1 => " (1 was there already)".to_owned(),
        before => format!(" ({before} were there already)"),
    };
    let plural = |count: u64| if count == 1 { "" } else { "s" };
    context.output.say(format!(
        "packed {samples} sample{} into {shards} {format} shard{}{before}, {}: {shown}",
        plural(samples),
        plural(shards),
        format_bytes(bytes)
    ));
}
