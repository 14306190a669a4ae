//! `forebay ckpt import`: safetensors files as a step of a run.
//!
//! A folder with `model.safetensors.index.json` is taken by what that names; any other by all of its
//! `.safetensors` files.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::anyhow;
use forebay_checkpoint_client::{ImportOptions, Imported, PlainFile};
use forebay_client::{Entry, ItemRange, ListOptions, Name};
use forebay_core::{Clock as _, Error, Kind, SystemClock, format_bytes};
use serde::Serialize;
use serde_json::json;

use super::args::ImportArgs;
use super::open::{ConnectedUrl, Run};
use crate::blocking::Context;
use crate::embedded::Access;
use crate::exit::{Exit, Outcome};
use crate::objects::location::Location;
use crate::output::counted;

const ENDING: &str = ".safetensors";
const INDEX: &str = "model.safetensors.index.json";
/// The largest index that is read.
const INDEX_BYTES_MAX: u64 = 256 << 20;
/// Files of one import.
const FILES_MAX: usize = 100_000;

#[derive(Serialize)]
struct Facts {
    step: u64,
    generation: u32,
    tensors: u64,
    bytes: u64,
    files: u64,
}

/// Index of a folder, as far as it matters here.
#[derive(serde::Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

pub(crate) fn run(args: &ImportArgs, context: &Context) -> Outcome {
    let Some(step) = args.step.step else {
        return Err(Exit::usage(anyhow!(
            "{} names no step; write RUN@STEP",
            args.step.typed
        )));
    };
    let node = args.work.node.node.as_deref();
    let (_place, sources) = sources(&args.source, node, context)?;
    let run = Run::open(&args.step.run, node, Access::Create, context)?;
    let metadata = json!({ "imported_from": args.source });
    let now = SystemClock::new()
        .wall()
        .duration_since(std::time::SystemTime::UNIX_EPOCH);
    let options = ImportOptions {
        step,
        supersede: args.supersede,
        prefix: args.prefix.clone(),
        metadata: metadata.as_object().cloned().unwrap_or_default(),
        threads: usize::from(args.work.jobs),
        random: fastrand::u64(..),
        now_ms: now.map_or(0, |now| u64::try_from(now.as_millis()).unwrap_or(u64::MAX)),
    };
    let bar = context.output.bar(sources.iter().map(PlainFile::bytes).sum());
    bar.set_message("importing");
    let imported = run.root.import(&sources, &options, &|bytes| bar.inc(bytes));
    bar.finish_and_clear();
    tell(&imported?, context);
    Ok(())
}

fn tell(imported: &Imported, context: &Context) {
    let facts = Facts {
        step: imported.step,
        generation: imported.generation,
        tensors: imported.tensors,
        bytes: imported.bytes,
        files: imported.files,
    };
    context.output.data(&facts);
    context.output.say(format!(
        "step {} (generation {}): {}, {} in {}",
        facts.step,
        facts.generation,
        counted(facts.tensors, "tensor", "tensors"),
        format_bytes(facts.bytes),
        counted(facts.files, "file", "files")
    ));
}

/// The files behind a name, and what has to live as long as they are read.
fn sources(
    text: &str,
    node: Option<&str>,
    context: &Context,
) -> Outcome<(Option<ConnectedUrl>, Vec<PlainFile>)> {
    if let Location::Local(path) = text.parse::<Location>()? {
        return Ok((None, local(&path)?));
    }
    let at = ConnectedUrl::open(text, node, Access::Read, context)?;
    let files = of_node(&at)?;
    Ok((Some(at), files))
}

fn local(path: &Path) -> Outcome<Vec<PlainFile>> {
    if !path.is_dir() {
        return Ok(vec![PlainFile::here(path)?]);
    }
    let failed = |why: std::io::Error| Exit::failure(anyhow!("{}: {why}", path.display()));
    let mut names = BTreeSet::new();
    for entry in std::fs::read_dir(path).map_err(failed)? {
        names.extend(entry.map_err(failed)?.file_name().into_string());
    }
    let index = match names.contains(INDEX) {
        true => {
            let file = PlainFile::here(&path.join(INDEX))?;
            Some(file.read(0..file.bytes().min(INDEX_BYTES_MAX))?)
        }
        false => None,
    };
    let chosen = chosen(&names, index, &path.display().to_string())?;
    let open = |name: String| PlainFile::here(&path.join(name));
    Ok(chosen.into_iter().map(open).collect::<Result<_, _>>()?)
}

fn of_node(at: &ConnectedUrl) -> Outcome<Vec<PlainFile>> {
    let plain = at.url.strip_prefix("forebay://").unwrap_or(&at.url);
    let (bucket, key) = plain.split_once('/').unwrap_or((plain, ""));
    let open = |key: &str| PlainFile::of_node(at.client.clone(), Name::new(bucket, key)?);
    if key.ends_with(ENDING) {
        return Ok(vec![open(key)?]);
    }
    let folder = match key.trim_end_matches('/') {
        "" => String::new(),
        key => format!("{key}/"),
    };
    let options = ListOptions {
        prefix: folder.clone(),
        delimiter: Some("/".into()),
        ..ListOptions::default()
    };
    let mut names = BTreeSet::new();
    for entry in at.client.list(bucket, options)? {
        if let Entry::Object(object) = entry? {
            names.extend(object.key.strip_prefix(&folder).map(str::to_owned));
        }
        if names.len() > FILES_MAX {
            return Err(Exit::usage(anyhow!("{} has more than {FILES_MAX} files", at.url)));
        }
    }
    let index = match names.contains(INDEX) {
        true => {
            let name = Name::new(bucket, &format!("{folder}{INDEX}"))?;
            let view = at.client.get(&name, ItemRange::Whole, None)?;
            Some(view.to_vec())
        }
        false => None,
    };
    let chosen = chosen(&names, index, &at.url)?;
    let open = |name: String| open(&format!("{folder}{name}"));
    Ok(chosen.into_iter().map(open).collect::<Result<_, _>>()?)
}

/// The files of a folder that count.
fn chosen(names: &BTreeSet<String>, index: Option<Vec<u8>>, shown: &str) -> Outcome<BTreeSet<String>> {
    let is_tensors = |name: &String| name.ends_with(ENDING) && !name.contains('/');
    let chosen: BTreeSet<String> = match index {
        None => names.iter().filter(|name| is_tensors(name)).cloned().collect(),
        Some(bytes) => {
            let index: Index = serde_json::from_slice(&bytes).map_err(|why| {
                Error::new(Kind::Corrupt, "the index of the folder cannot be read")
                    .with("file", format!("{shown}/{INDEX}"))
                    .caused_by(why)
            })?;
            index.weight_map.into_values().collect()
        }
    };
    if let Some(missing) = chosen.iter().find(|name| !names.contains(*name)) {
        return Err(Exit::failure(anyhow!(
            "{shown} is not whole: {INDEX} names {missing}, which is not there"
        )));
    }
    if chosen.is_empty() {
        return Err(Exit::usage(anyhow!("{shown} has no {ENDING} files")));
    }
    Ok(chosen)
}
