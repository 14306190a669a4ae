//! `forebay dataset manifest`: writes `SHA256SUMS` beside the data (`forebay-dataset-pack`).

use std::path::Path;

use anyhow::Context as _;
use forebay_core::format_bytes;
use forebay_dataset::manifest::{SUMS_FILE, SecretKey};
use forebay_dataset_pack::{Folder, check_manifest, write_manifest};

use super::Context;
use super::args::{FolderArgs, ManifestArgs};
use super::open::{Access, Opened};
use crate::exit::Outcome;

pub(crate) fn run(args: &ManifestArgs, context: &Context) -> Outcome {
    let key = args.sign.as_deref().map(read_key).transpose()?;
    let (_opened, folder) = open(&args.folder, Access::Write, context)?;
    let jobs = usize::from(args.folder.jobs);
    if args.check_only {
        context.with_progress(|work| check_manifest(&folder, jobs, work))?;
        return Ok(());
    }
    let report = context.with_progress(|work| write_manifest(&folder, key.as_ref(), jobs, work))?;
    let signed_by = report.signed_by.map(|key| key.to_string());
    context.output.data(&serde_json::json!({
        "manifest": SUMS_FILE, "files": report.files, "bytes": report.bytes, "changed": report.is_changed,
        "signed_by": signed_by,
    }));
    let what = if report.is_changed {
        "written"
    } else {
        "is current"
    };
    let signed = signed_by.map_or_else(String::new, |key| format!(", signed by {key}"));
    context.output.say(format!(
        "{SUMS_FILE} {what}: {} files, {}{signed}",
        report.files,
        format_bytes(report.bytes)
    ));
    Ok(())
}

/// The folder that was typed.
pub(crate) fn open(args: &FolderArgs, access: Access, context: &Context) -> Outcome<(Opened, Folder)> {
    let opened = Opened::open(&args.url, args.node.node.as_deref(), access, context)?;
    let folder = opened.folder()?;
    Ok((opened, folder))
}

fn read_key(path: &Path) -> Outcome<SecretKey> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(SecretKey::from_pem(&text).map_err(|error| error.with("file", path.display()))?)
}
