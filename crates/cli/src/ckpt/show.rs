//! `forebay ckpt show`: everything that the commit of a step says.

use std::collections::BTreeMap;

use forebay_checkpoint::manifest::{Alarm, ObjectKind, StepRef};
use forebay_checkpoint::{Dtype, Manifest, names};
use forebay_checkpoint_client::StepDetail;
use forebay_core::format_bytes;
use serde::Serialize;

use super::args::ShowArgs;
use super::ls::{duration, time};
use super::open;
use crate::blocking::Context;
use crate::exit::Outcome;
use crate::output::counted;

#[derive(Serialize)]
struct Everything<'a> {
    run: &'a str,
    step: u64,
    generation: u32,
    attempt: &'a str,
    parent: Option<StepRef>,
    created: String,
    save_ms: Option<u64>,
    writer: &'a str,
    world_size: u32,
    bytes: u64,
    reused_bytes: u64,
    reuse_ratio: f64,
    /// Of its bytes, those that it stores as differences, and what they take in its files.
    encoded_bytes: u64,
    encoded_stored_bytes: u64,
    encoded_ratio: Option<f64>,
    digest: &'a str,
    metadata: &'a serde_json::Map<String, serde_json::Value>,
    alarms: &'a [Alarm],
    tensors: BTreeMap<&'a str, TensorFacts<'a>>,
    objects: BTreeMap<&'a str, Vec<ObjectFacts<'a>>>,
    files: Vec<FileFacts<'a>>,
}

#[derive(Serialize)]
struct TensorFacts<'a> {
    dtype: Dtype,
    shape: &'a [u64],
    bytes: u64,
    parts: u64,
    /// Of its bytes, those that lie in files of other steps or attempts.
    reused_bytes: u64,
}

#[derive(Serialize)]
struct ObjectFacts<'a> {
    kind: ObjectKind,
    bytes: u64,
    ranks: &'a [u32],
}

#[derive(Serialize)]
struct FileFacts<'a> {
    path: &'a str,
    bytes: u64,
    is_reused: bool,
}

pub(crate) fn run(args: &ShowArgs, context: &Context) -> Outcome {
    let (run, step) = open::step(&args.step, args.node.node.as_deref(), context)?;
    let detail = run.root.detail(step.manifest())?;
    let all = everything(&run.shown, step.manifest(), &detail);
    if context.output.json {
        context.output.data(&all);
    } else {
        show(&all, context);
    }
    Ok(())
}

fn everything<'a>(run: &'a str, manifest: &'a Manifest, detail: &StepDetail) -> Everything<'a> {
    let content = &manifest.content;
    let own = names::attempt_file(manifest.step, &manifest.attempt, "");
    let is_reused = |path: &str| !path.starts_with(&own);
    let lies_elsewhere = |file: u32| {
        let file = content.files.get(file as usize);
        file.is_some_and(|file| is_reused(&file.path))
    };
    let tensors = content.tensors.iter().map(|(name, tensor)| {
        let extents = || tensor.parts.iter().map(|part| &part.bytes);
        let facts = TensorFacts {
            dtype: tensor.dtype,
            shape: &tensor.shape,
            bytes: extents().map(forebay_checkpoint::manifest::Extent::bytes).sum(),
            parts: tensor.parts.len() as u64,
            reused_bytes: extents()
                .filter(|extent| lies_elsewhere(extent.file))
                .map(forebay_checkpoint::manifest::Extent::bytes)
                .sum(),
        };
        (name.as_str(), facts)
    });
    let objects = content.objects.iter().map(|(name, objects)| {
        let facts = objects.iter().map(|object| ObjectFacts {
            kind: object.kind,
            bytes: object.bytes.bytes(),
            ranks: &object.ranks,
        });
        (name.as_str(), facts.collect())
    });
    let files = content.files.iter().map(|file| FileFacts {
        path: &file.path,
        bytes: file.bytes,
        is_reused: is_reused(&file.path),
    });
    Everything {
        run,
        step: manifest.step,
        generation: manifest.generation,
        attempt: &manifest.attempt,
        parent: manifest.parent,
        created: time(manifest.created_ms),
        save_ms: detail.save_ms,
        writer: &manifest.writer,
        world_size: manifest.world_size,
        bytes: detail.bytes,
        reused_bytes: detail.reused_bytes,
        reuse_ratio: detail.reuse_ratio(),
        encoded_bytes: detail.encoded_bytes,
        encoded_stored_bytes: detail.encoded_stored_bytes,
        encoded_ratio: detail.encoded_ratio(),
        digest: &manifest.digest,
        metadata: &content.metadata,
        alarms: &content.alarms,
        tensors: tensors.collect(),
        objects: objects.collect(),
        files: files.collect(),
    }
}

fn show(all: &Everything<'_>, context: &Context) {
    let output = context.output;
    output.say(format!(
        "step        {} (generation {})",
        all.step, all.generation
    ));
    let took = all.save_ms.map_or_else(String::new, |ms| {
        format!(", {} after the save began", duration(ms))
    });
    output.say(format!("committed   {}{took}", all.created));
    output.say(format!(
        "saved by    {}, {}, attempt {}",
        counted(all.world_size, "rank", "ranks"),
        all.writer,
        all.attempt
    ));
    if let Some(parent) = all.parent {
        output.say(format!(
            "parent      step {} (generation {})",
            parent.step, parent.generation
        ));
    }
    output.say(format!(
        "size        {}, of which {} ({:.1} %) lie in files of other saves",
        format_bytes(all.bytes),
        format_bytes(all.reused_bytes),
        all.reuse_ratio * 100.0
    ));
    if let Some(ratio) = all.encoded_ratio {
        output.say(format!(
            "differences {} stored as {} ({ratio:.1}x smaller)",
            format_bytes(all.encoded_bytes),
            format_bytes(all.encoded_stored_bytes),
        ));
    }
    for (name, value) in all.metadata {
        output.say(format!("metadata    {}: {value}", name.escape_debug()));
    }
    for alarm in all.alarms {
        output.say(format!(
            "alarm       {}: {}",
            alarm.name.escape_debug(),
            alarm.message
        ));
    }
    output.say("");
    output.table(
        ["TENSOR", "TYPE", "SHAPE", "SIZE", "PARTS", "REUSED"],
        all.tensors.iter().map(|(name, tensor)| {
            let reused = match tensor.reused_bytes {
                0 => String::new(),
                bytes if bytes == tensor.bytes => "all".into(),
                bytes => format_bytes(bytes),
            };
            [
                name.escape_debug().to_string(),
                tensor.dtype.to_string(),
                format!("{:?}", tensor.shape),
                format_bytes(tensor.bytes),
                tensor.parts.to_string(),
                reused,
            ]
        }),
    );
    if !all.objects.is_empty() {
        output.say("");
        show_objects(all, context);
    }
}

fn show_objects(all: &Everything<'_>, context: &Context) {
    let rows = all.objects.iter().flat_map(|(name, objects)| {
        objects.iter().map(move |object| {
            let kind = match object.kind {
                ObjectKind::Json => "json",
                ObjectKind::Bytes => "bytes",
                ObjectKind::Pickle => "pickle",
            };
            let ranks: Vec<String> = object.ranks.iter().map(u32::to_string).collect();
            [
                name.escape_debug().to_string(),
                kind.into(),
                format_bytes(object.bytes),
                ranks.join(","),
            ]
        })
    });
    context.output.table(["OBJECT", "KIND", "SIZE", "RANKS"], rows);
}
