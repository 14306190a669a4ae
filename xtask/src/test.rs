//! `cargo xtask test`: everything that runs, with one line of totals at the end.
//!
//! Order: tools (virtual environments, SeaweedFS as a real S3 server), Rust tests, doc tests, then pytest
//! drives the binary with real clients. Nothing needs root. What can only come from Debian packages is
//! installed when we may; else its tests are skipped with the reason, which is printed and counted. A failure
//! never stops the rest, so one run shows all there is. `--all` adds tests/e2e/heavy: clients that are large
//! to install.

pub(crate) mod debian;
mod junit;
mod libtest;
mod python;
mod rust;
mod tally;

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Args;

use crate::command;
use crate::seaweed::Seaweed;
use crate::tools::Venv;
use crate::workspace::Workspace;

use tally::Tally;

/// Arguments of `cargo xtask test`.
#[derive(Args)]
pub(crate) struct TestArgs {
    /// Also the heavy clients of tests/e2e/heavy.
    #[arg(long)]
    all: bool,
    /// Only Rust tests and doc tests.
    #[arg(long, conflicts_with = "python")]
    rust: bool,
    /// Only the end-to-end tests.
    #[arg(long)]
    python: bool,
    /// Only tests whose name contains this.
    filter: Option<String>,
}

/// Context that the runners share.
pub(crate) struct Stage<'a> {
    workspace: &'a Workspace,
    filter: Option<&'a str>,
    programs: Venv,
    seaweed: Seaweed,
}

/// Runs the tests; `false` if one failed.
pub(crate) fn run(workspace: &Workspace, args: &TestArgs) -> Result<bool> {
    let programs = Venv::ready(workspace, "programs")?;
    let seaweed = Seaweed::start(&programs.bin("weed"), &workspace.target)?;
    let stage = Stage {
        workspace,
        filter: args.filter.as_deref(),
        programs,
        seaweed,
    };
    let mut tally = Tally::default();
    if !args.python {
        rust::run(&stage, &mut tally)?;
    }
    if !args.rust {
        let binary = build(workspace)?;
        python::run(&stage, &binary, args.all, &mut tally)?;
    }
    tally.print();
    Ok(tally.is_good())
}

/// Builds the binary with the features of the whole workspace, so that nothing is compiled twice.
fn build(workspace: &Workspace) -> Result<PathBuf> {
    if !command::succeeds(command::cargo(&workspace.root).args([
        "build",
        "--workspace",
        "--bins",
        "--locked",
        "--quiet",
    ]))? {
        bail!("the binary does not build");
    }
    Ok(workspace.target.join("debug/forebay"))
}
