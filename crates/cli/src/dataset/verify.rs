//! `forebay dataset verify`: compares every byte of the data with `SHA256SUMS`, and that with its signature
//! (`forebay-dataset-pack`).
//!
//! Whatever differs is listed on standard output, and the exit code is 1.

use std::path::Path;

use anyhow::{Context as _, anyhow};
use forebay_core::format_bytes;
use forebay_dataset::manifest::{PublicKey, SUMS_FILE};
use forebay_dataset_pack::{VerifyReport, verify};
use serde::Serialize;

use super::Context;
use super::args::VerifyArgs;
use super::manifest::open;
use super::open::Access;
use crate::exit::{Exit, Outcome};

#[derive(Serialize)]
struct Verdicts<'a> {
    ok: bool,
    same: u64,
    bytes: u64,
    changed: Vec<&'a str>,
    missing: &'a [String],
    extra: &'a [String],
    signed_by: Option<String>,
}

pub(crate) fn run(args: &VerifyArgs, context: &Context) -> Outcome {
    let keys: Vec<PublicKey> = args
        .public_key
        .iter()
        .map(|path| read_key(path))
        .collect::<Outcome<_>>()?;
    let (_opened, folder) = open(&args.folder, Access::Read, context)?;
    let jobs = usize::from(args.folder.jobs);
    let report = context.with_progress(|work| verify(&folder, &keys, jobs, work))?;
    tell(&report, context)
}

fn read_key(path: &Path) -> Outcome<PublicKey> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(PublicKey::from_pem(&text).map_err(|error| error.with("file", path.display()))?)
}

fn tell(report: &VerifyReport, context: &Context) -> Outcome {
    let output = context.output;
    let files = &report.files;
    for changed in &files.changed {
        output.say(format!("changed  {}", changed.name.escape_debug()));
    }
    for missing in &files.missing {
        output.say(format!("missing  {}", missing.escape_debug()));
    }
    for extra in &files.extra {
        output.say(format!("extra    {}", extra.escape_debug()));
    }
    let signed_by = report.signed_by.map(|key| key.to_string());
    let signed = signed_by
        .as_ref()
        .map_or_else(String::new, |key| format!(", signed by {key}"));
    let changed = files.changed.iter().map(|changed| changed.name.as_str());
    output.data(&Verdicts {
        ok: report.is_ok(),
        same: files.same,
        bytes: report.bytes,
        changed: changed.collect(),
        missing: &files.missing,
        extra: &files.extra,
        signed_by,
    });
    if report.is_ok() {
        output.say(format!(
            "{} files, {} as {SUMS_FILE} says{signed}",
            files.same,
            format_bytes(report.bytes)
        ));
        return Ok(());
    }
    Err(Exit::failure(anyhow!(
        "the data is not what {SUMS_FILE} says: {} changed, {} missing, {} extra, {} as they were",
        files.changed.len(),
        files.missing.len(),
        files.extra.len(),
        files.same
    )))
}
