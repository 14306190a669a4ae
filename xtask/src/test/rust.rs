//! Rust tests by nextest (or cargo test where it is missing), then doc tests.

use std::process::Command;

use anyhow::Result;

use super::tally::Tally;
use super::{Stage, junit};
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

/// `cargo test` has no report; its result lines are read instead, while everything is shown.
fn cargo_test(stage: &Stage<'_>, args: &[&str], suite: &str, tally: &mut Tally) -> Result<()> {
    let mut test = cargo(stage);
    test.args(["test", "--workspace", "--locked", "--quiet"])
        .args(args)
        .args(stage.filter);
    let output = test.output()?;
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    for line in text.lines().filter(|line| line.starts_with("test result: ")) {
        tally.pass(counted(line, "passed"));
        for _ in 0..counted(line, "ignored") {
            tally.skip(
                format!("{suite} test"),
                "#[ignore] or a doc example that must not run",
            );
        }
    }
    let failed: Vec<&str> = text
        .lines()
        .filter(|line| line.starts_with("    ") && line.contains("::"))
        .collect();
    if !output.status.success() {
        println!("{text}");
        if failed.is_empty() {
            tally.fail(format!("{suite} tests (see above)"));
        }
        for name in failed {
            tally.fail(format!("{suite} {}", name.trim()));
        }
    }
    Ok(())
}

/// The number before a word in `test result: ok. 3 passed; 0 failed; …`.
fn counted(line: &str, word: &str) -> usize {
    let words: Vec<&str> = line
        .split([' ', ';', '.'])
        .filter(|word| !word.is_empty())
        .collect();
    let at = words.iter().position(|found| *found == word);
    at.and_then(|at| words.get(at.checked_sub(1)?))
        .and_then(|count| count.parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::counted;

    #[test]
    fn counts_are_read_from_the_result_line() {
        let line =
            "test result: ok. 12 passed; 0 failed; 3 ignored; 0 measured; 0 filtered out; finished in 0.1s";
        assert_eq!(
            (
                counted(line, "passed"),
                counted(line, "ignored"),
                counted(line, "missing")
            ),
            (12, 3, 0)
        );
    }
}
