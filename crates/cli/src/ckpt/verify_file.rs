//! `forebay ckpt verify FILE`: plain files, whose digests are kept beside them and compared later
//! (docs/formats/file-digests.md).
//!
//! A file of this machine is read and its digests written as they are, without a node; any other goes through
//! one.

use std::path::{Path, PathBuf};

use anyhow::anyhow;
use forebay_checkpoint_client::{
    DIGESTS_BYTES_MAX, Finding, PlainDigests, PlainFile, PlainKind, write_whole,
};
use forebay_client::{ItemRange, Name, PutOptions, PutSource};
use forebay_core::{Error, Kind, Result, format_bytes};
use serde::Serialize;

use super::args::VerifyArgs;
use super::name::StepName;
use super::open::ConnectedUrl;
use super::verify::{Wrong, list};
use crate::blocking::Context;
use crate::embedded::Access;
use crate::exit::{Exit, Outcome};
use crate::objects::location::Location;
use crate::output::counted;

/// Endings of files that are no runs.
const ENDINGS: [&str; 5] = [".safetensors", ".pt", ".pth", ".bin", ".ckpt"];
/// Behind the name of a file: its digests.
const BESIDE: &str = ".digests.json";

#[derive(Serialize)]
struct Verdict<'a> {
    ok: bool,
    file: &'a str,
    kind: PlainKind,
    /// `structure`, `kept` (digests were kept now) or `bytes` (compared with those that were).
    proved: &'static str,
    entries: u64,
    bytes: u64,
    findings: Vec<Wrong<'a>>,
}

/// Returns whether a name means a plain file.
pub(crate) fn is_file(name: &StepName) -> bool {
    let has_ending = |ending: &&str| name.run.ends_with(*ending);
    name.step.is_none() && ENDINGS.iter().any(has_ending) && !Path::new(&name.run).is_dir()
}

pub(crate) fn run(args: &VerifyArgs, context: &Context) -> Outcome {
    let node = args.work.node.node.as_deref();
    let plain = Plain::open(&args.step.run, node, args.quick, context)?;
    let file = plain.file()?;
    if args.quick {
        let (kind, entries) = file.structure()?;
        let verdict = verdict(&file, kind, "structure", entries, &[]);
        return tell(&verdict, &[], context);
    }
    let bar = context.output.bar(file.bytes());
    bar.set_message("verifying");
    let done = file.digests(usize::from(args.work.jobs), &|bytes| bar.inc(bytes));
    bar.finish_and_clear();
    let (digests, mut findings) = done?;
    let kept = if args.renew { None } else { plain.kept()? };
    let proved = match &kept {
        Some(kept) => {
            findings.extend(kept.compare(&digests, file.shown()));
            "bytes"
        }
        // What does not match its own checksum is nothing to compare with later.
        None if findings.is_empty() => {
            plain.keep(&digests.encode()?)?;
            "kept"
        }
        None => "structure",
    };
    let entries = digests.entries.len() as u64;
    tell(
        &verdict(&file, digests.kind, proved, entries, &findings),
        &findings,
        context,
    )
}

fn verdict<'a>(
    file: &'a PlainFile,
    kind: PlainKind,
    proved: &'static str,
    entries: u64,
    findings: &'a [Finding],
) -> Verdict<'a> {
    Verdict {
        ok: findings.is_empty(),
        file: file.shown(),
        kind,
        proved,
        entries,
        bytes: file.bytes(),
        findings: findings.iter().map(Wrong::from).collect(),
    }
}

fn tell(verdict: &Verdict<'_>, findings: &[Finding], context: &Context) -> Outcome {
    context.output.data(verdict);
    list(findings, context);
    let (file, entries) = (verdict.file, counted(verdict.entries, "entry", "entries"));
    if !verdict.ok {
        return Err(Exit::failure(anyhow!(
            "{file} is damaged: {}",
            counted(findings.len(), "finding", "findings")
        )));
    }
    let bytes = format_bytes(verdict.bytes);
    context.output.say(match verdict.proved {
        "structure" => format!("{file}: {bytes}, {entries}, well formed; no data was read"),
        "kept" => format!(
            "{file}: {bytes}, {entries} hashed; their digests are kept in {file}{BESIDE} and compared next time"
        ),
        _ => format!("{file}: {bytes}, {entries}, every byte as it was when its digests were kept"),
    });
    Ok(())
}

/// Source of a plain file and its digests.
enum Plain {
    Here(PathBuf),
    Node {
        at: Box<ConnectedUrl>,
        name: Name,
        beside: Name,
    },
}

impl Plain {
    fn open(text: &str, node: Option<&str>, is_quick: bool, context: &Context) -> Outcome<Self> {
        if let Location::Local(path) = text.parse::<Location>()? {
            return Ok(Self::Here(path));
        }
        let access = if is_quick { Access::Read } else { Access::Write };
        let at = Box::new(ConnectedUrl::open(text, node, access, context)?);
        let name = Name::parse(at.url.strip_prefix("forebay://").unwrap_or(&at.url))?;
        let beside = Name::parse(&format!("{name}{BESIDE}"))?;
        Ok(Self::Node { at, name, beside })
    }

    fn file(&self) -> Result<PlainFile> {
        match self {
            Self::Here(path) => PlainFile::here(path),
            Self::Node { at, name, .. } => PlainFile::of_node(at.client.clone(), name.clone()),
        }
    }

    /// The digests that were kept, if any were.
    fn kept(&self) -> Result<Option<PlainDigests>> {
        let read = match self {
            Self::Here(path) => PlainFile::here(&beside(path))
                .and_then(|file| file.read(0..file.bytes().min(DIGESTS_BYTES_MAX))),
            Self::Node { at, beside, .. } => {
                let view = at.client.get(beside, ItemRange::Whole, None);
                view.map(|view| view.to_vec())
            }
        };
        match read {
            Ok(bytes) => PlainDigests::decode(&bytes).map(Some),
            Err(error) if error.kind() == Kind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn keep(&self, bytes: &[u8]) -> Result<()> {
        match self {
            Self::Here(path) => write_whole(&beside(path), bytes),
            Self::Node { at, beside, .. } => {
                let put = at
                    .client
                    .put(beside, PutSource::Slice(bytes), PutOptions::default());
                put.map(|_| ()).map_err(|error| {
                    Error::new(error.kind(), "the digests could not be kept").caused_by(error)
                })
            }
        }
    }
}

fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(BESIDE);
    PathBuf::from(name)
}
