//! `forebay ckpt verify`: whether a step is what its manifest says, byte for byte. Plain files are
//! `verify_file.rs`.

use anyhow::anyhow;
use forebay_checkpoint_client::{Finding, Verified};
use forebay_core::format_bytes;
use serde::Serialize;

use super::args::VerifyArgs;
use super::{open, verify_file};
use crate::blocking::Context;
use crate::exit::{Exit, Outcome};
use crate::output::counted;

#[derive(Serialize)]
struct Verdict<'a> {
    ok: bool,
    step: u64,
    generation: u32,
    /// `bytes` or `structure`.
    proved: &'static str,
    files: u64,
    tensors_and_objects: u64,
    bytes: u64,
    findings: Vec<Wrong<'a>>,
    /// True if more is wrong than is listed.
    has_more: bool,
}

#[derive(Serialize)]
pub(crate) struct Wrong<'a> {
    file: &'a str,
    name: Option<&'a str>,
    message: &'a str,
}

impl<'a> From<&'a Finding> for Wrong<'a> {
    fn from(finding: &'a Finding) -> Self {
        Self {
            file: &finding.file,
            name: finding.name.as_deref(),
            message: &finding.message,
        }
    }
}

pub(crate) fn run(args: &VerifyArgs, context: &Context) -> Outcome {
    if verify_file::is_file(&args.step) {
        return verify_file::run(args, context);
    }
    if args.renew {
        return Err(Exit::usage(anyhow!(
            "--renew is for plain files; a step has its digests in its manifest"
        )));
    }
    let (_run, step) = open::step(&args.step, args.work.node.node.as_deref(), context)?;
    let threads = usize::from(args.work.jobs);
    let verified = if args.quick {
        step.verify_quick(threads)?
    } else {
        let bar = context.output.bar(step.verify_bytes());
        bar.set_message("verifying");
        let verified = step.verify(threads, &|bytes| bar.inc(bytes));
        bar.finish_and_clear();
        verified?
    };
    let manifest = step.manifest();
    tell(
        &verified,
        (manifest.step, manifest.generation),
        args.quick,
        context,
    )
}

/// Findings, one line each.
pub(crate) fn list(findings: &[Finding], context: &Context) {
    for finding in findings {
        let name = finding.name.as_ref();
        let about = name.map_or_else(String::new, |name| format!("{}  ", name.escape_debug()));
        let line = format!("{}  {about}{}", finding.file, finding.message);
        context.output.say(line);
    }
}

fn tell(verified: &Verified, (step, generation): (u64, u32), is_quick: bool, context: &Context) -> Outcome {
    let output = context.output;
    output.data(&Verdict {
        ok: verified.is_ok(),
        step,
        generation,
        proved: if is_quick { "structure" } else { "bytes" },
        files: verified.files,
        tensors_and_objects: verified.proved,
        bytes: verified.bytes,
        findings: verified.findings.iter().map(Wrong::from).collect(),
        has_more: verified.has_more,
    });
    list(&verified.findings, context);
    if verified.is_ok() && is_quick {
        output.say(format!(
            "step {step}: {}; no data was read",
            counted(
                verified.files,
                "file is there with its size",
                "files are there with their sizes"
            )
        ));
        return Ok(());
    }
    if verified.is_ok() {
        output.say(format!(
            "step {step}: {} in {}, {}, every byte as it was saved",
            format_bytes(verified.bytes),
            counted(verified.files, "file", "files"),
            counted(verified.proved, "tensor or object", "tensors and objects")
        ));
        return Ok(());
    }
    let more = if verified.has_more { "more than " } else { "" };
    Err(Exit::failure(anyhow!(
        "step {step} is damaged: {more}{}; load another step",
        counted(verified.findings.len(), "finding", "findings")
    )))
}
