//! Rust tests by nextest (or cargo test where it is missing), then doc tests.

use std::process::Command;

use anyhow::Result;

use super::tally::Tally;
use super::{Stage, junit, libtest};
use crate::command;

pub(super) fn run(stage: &Stage<'_>, tally: &mut Tally) -> Result<()> {
    if command::exists("cargo-nextest") {
        nextest(stage, tally)?;
    } else {
        println!("cargo-nextest is not installed: running `cargo test`, without time limits for each test");
        cargo_test(stage, &["--all-targets", "--no-fail-fast"], "rust", tally)?;
    }
    cargo_test(stage, &["--doc"], "doc", tally)
}

fn nextest(stage: &Stage<'_>, tally: &mut Tally) -> Result<()> {
    // nextest keeps its reports below the root, wherever cargo builds.
    let report = stage.workspace.root.join("target/nextest/xtask/junit.xml");
    let _ = std::fs::remove_file(&report);
    let mut nextest = cargo(stage);
    nextest.args([
        "nextest",
        "run",
        "--workspace",
        "--locked",
        "--profile",
        "xtask",
        "--no-tests",
        "pass",
    ]);
    let ok = command::succeeds(nextest.args(stage.filter))?;
    if report.is_file() {
        junit::count(&report, "rust", tally)?;
    }
    if !ok && tally.is_good() {
        tally.fail("rust: cargo nextest (see above)");
    }
    if !ok && !report.is_file() {
        tally.fail("rust: the tests do not build (see above)");
    }
    Ok(())
}

fn cargo(stage: &Stage<'_>) -> Command {
    let mut cargo = command::cargo(&stage.workspace.root);
    stage.seaweed.export(&mut cargo);
    cargo
}

/// `cargo test` has no report; what it prints is read instead, and shown if something failed.
fn cargo_test(stage: &Stage<'_>, args: &[&str], suite: &str, tally: &mut Tally) -> Result<()> {
    let mut test = cargo(stage);
    test.args(["test", "--workspace", "--locked"])
        .args(args)
        .args(stage.filter)
        // Also what tests print that pass: one that could not run here says so.
        .args(["--", "--show-output"]);
    let output = test.output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let failed = libtest::count(&text, suite, tally);
    if !output.status.success() {
        println!("{text}\n{}", String::from_utf8_lossy(&output.stderr));
        if failed == 0 {
            tally.fail(format!("{suite} tests (see above)"));
        }
    }
    Ok(())
}
