//! `forebay dataset verify`: compares every byte of the data with `SHA256SUMS`, and that with its signature.
//!
//! The signature is checked first: nothing of a manifest that nobody trusted has signed is looked at. Whatever differs is listed on standard output,
//! and the exit code is 1.

use std::path::Path;

use anyhow::{Context as _, anyhow};
use forebay_core::format_bytes;
use forebay_dataset::manifest::{Manifest, PublicKey, Report, SIGNATURE_FILE, SUMS_FILE, verify};
use serde::Serialize;

use super::Context;
use super::args::VerifyArgs;
use super::manifest::{Hashing, open};
use super::open::Purpose;
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
    let (opened, folder) = open(&args.folder, Purpose::Look, context)?;
    let hashing = Hashing {
        client: &opened.client,
        folder: &folder,
    };
    let Some((text, _)) = hashing.document(SUMS_FILE)? else {
        return Err(Exit::failure(anyhow!(
            "{} has no {SUMS_FILE}; write it: forebay dataset manifest {}",
            opened.shown,
            opened.shown
        )));
    };
    let signed_by = if keys.is_empty() {
        None
    } else {
        Some(signer(&hashing, &text, &keys)?)
    };
    let manifest = Manifest::parse(&text)?;
    let objects = hashing.objects()?;
    let bytes = objects.iter().map(|object| object.bytes).sum();
    let mut check = manifest.check();
    for (name, digest) in hashing.digests(&objects, args.folder.jobs, context)? {
        check.found(&name, digest);
    }
    tell(&check.finish(), bytes, signed_by, context)
}

fn read_key(path: &Path) -> Outcome<PublicKey> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(PublicKey::from_pem(&text).map_err(|error| error.with("file", path.display()))?)
}

fn signer(hashing: &Hashing<'_>, manifest: &[u8], keys: &[PublicKey]) -> Outcome<String> {
    let Some((signatures, _)) = hashing.document(SIGNATURE_FILE)? else {
        return Err(Exit::failure(anyhow!(
            "the manifest is not signed: there is no {SIGNATURE_FILE}; sign it: forebay dataset manifest URL --sign KEYFILE"
        )));
    };
    let signatures = String::from_utf8_lossy(&signatures);
    Ok(verify(manifest, &signatures, keys)?.to_string())
}

fn tell(report: &Report, bytes: u64, signed_by: Option<String>, context: &Context) -> Outcome {
    let output = context.output;
    let ok = report.changed.is_empty() && report.missing.is_empty() && report.extra.is_empty();
    for changed in &report.changed {
        output.say(format!("changed  {}", changed.name.escape_debug()));
    }
    for missing in &report.missing {
        output.say(format!("missing  {}", missing.escape_debug()));
    }
    for extra in &report.extra {
        output.say(format!("extra    {}", extra.escape_debug()));
    }
    let signed = signed_by
        .as_ref()
        .map_or_else(String::new, |key| format!(", signed by {key}"));
    output.data(&Verdicts {
        ok,
        same: report.same,
        bytes,
        changed: report
            .changed
            .iter()
            .map(|changed| changed.name.as_str())
            .collect(),
        missing: &report.missing,
        extra: &report.extra,
        signed_by,
    });
    if ok {
        output.say(format!(
            "{} files, {} as {SUMS_FILE} says{signed}",
            report.same,
            format_bytes(bytes)
        ));
        return Ok(());
    }
    Err(Exit::failure(anyhow!(
        "the data is not what {SUMS_FILE} says: {} changed, {} missing, {} extra, {} as they were",
        report.changed.len(),
        report.missing.len(),
        report.extra.len(),
        report.same
    )))
}
