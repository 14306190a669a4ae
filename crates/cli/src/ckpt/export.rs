//! `forebay ckpt export`: a step as ordinary files of this machine.

use std::path::Path;

use anyhow::anyhow;
use forebay_checkpoint_client::{ExportOptions, Exported, Layout, Step};
use forebay_core::format_bytes;
use serde::Serialize;

use super::args::{ExportArgs, ExportFormat};
use super::open;
use crate::blocking::Context;
use crate::exit::{Exit, Outcome};
use crate::output::counted;

#[derive(Serialize)]
struct Facts {
    step: u64,
    tensors: u64,
    objects: u64,
    bytes: u64,
    files: Vec<String>,
    /// State that is not a tensor and that the format has no place for.
    left_out_objects: u64,
}

pub(crate) fn run(args: &ExportArgs, context: &Context) -> Outcome {
    let layout = match args.format {
        ExportFormat::Safetensors => Layout::OneFile,
        ExportFormat::Hf => Layout::HuggingFace {
            file_bytes_max: args.file_size.0,
        },
        ExportFormat::Dcp => Layout::Dcp,
    };
    check_target(&args.target, layout, args.force)?;
    let (_run, step) = open::step(&args.step, args.work.node.node.as_deref(), context)?;
    let options = ExportOptions {
        layout,
        prefix: args.prefix.clone(),
        threads: usize::from(args.work.jobs),
    };
    let bar = context.output.bar(bytes(&step, &args.prefix));
    bar.set_message("exporting");
    let exported = step.export(&args.target, &options, &|bytes| bar.inc(bytes));
    bar.finish_and_clear();
    tell(&step, &exported?, context);
    Ok(())
}

/// Bytes that will be written, for the bar.
fn bytes(step: &Step, prefix: &str) -> u64 {
    let tensors = &step.manifest().content.tensors;
    let wanted = tensors.iter().filter(|(name, _)| name.starts_with(prefix));
    let parts = wanted.flat_map(|(_, tensor)| &tensor.parts);
    parts.map(|part| part.bytes.bytes()).sum()
}

/// Nothing of the user's is overwritten unless they say so.
fn check_target(target: &Path, layout: Layout, is_forced: bool) -> Outcome {
    if is_forced {
        return Ok(());
    }
    let is_taken = match layout {
        Layout::OneFile => target.exists(),
        Layout::HuggingFace { .. } | Layout::Dcp => {
            target.is_file() || std::fs::read_dir(target).is_ok_and(|mut entries| entries.next().is_some())
        }
    };
    if !is_taken {
        return Ok(());
    }
    Err(Exit::usage(anyhow!(
        "{} is there already and not empty; choose another path, or replace it with --force",
        target.display()
    )))
}

fn tell(step: &Step, exported: &Exported, context: &Context) {
    let manifest = step.manifest();
    let facts = Facts {
        step: manifest.step,
        tensors: exported.tensors,
        bytes: exported.bytes,
        files: exported
            .files
            .iter()
            .map(|file| file.display().to_string())
            .collect(),
        objects: exported.objects,
        left_out_objects: (manifest.content.objects.len() as u64).saturating_sub(exported.objects),
    };
    context.output.data(&facts);
    for file in &facts.files {
        context.output.say(file);
    }
    context.output.say(format!(
        "step {}: {}, {}, proved and written",
        facts.step,
        counted(facts.tensors, "tensor", "tensors"),
        format_bytes(facts.bytes)
    ));
    if facts.left_out_objects > 0 {
        context.output.say(counted(
            facts.left_out_objects,
            "object (state that is not a tensor) has no place in this format and is left out",
            "objects (state that is not a tensor) have no place in this format and are left out",
        ));
    }
}
