//! `cargo xtask fuzz NAME`: one target of fuzz/ under libFuzzer, for a while.
//!
//! The code under test is safe Rust, so coverage is all that is needed and no sanitizer: any compiler will
//! do, and cargo-fuzz is not needed (its layout is kept, so that it works as well). New inputs go to
//! `target/fuzz/corpus`; one that fails goes to `fuzz/artifacts`. Copy it to `fuzz/corpus/NAME/` under a
//! telling name, and `cargo xtask test` plays it from then on.

use std::fs;

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::command;
use crate::workspace::Workspace;

/// Flags that cargo-fuzz passes for coverage.
const COVERAGE: [&str; 6] = [
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "--cfg=fuzzing",
];

/// An input that takes longer is a failure.
const INPUT_SECONDS_MAX: u32 = 10;

/// The target, and the time for it.
#[derive(Args)]
pub(crate) struct FuzzArgs {
    /// A file of fuzz/fuzz_targets/, without `.rs`.
    name: Option<String>,
    /// How long to look for something.
    #[arg(long, default_value_t = 60)]
    seconds: u32,
}

/// Builds and runs a target; `false` if it found something.
pub(crate) fn run(workspace: &Workspace, args: &FuzzArgs) -> Result<bool> {
    let fuzz = workspace.root.join("fuzz");
    let targets = targets(workspace)?;
    let Some(name) = args.name.as_ref().filter(|name| targets.contains(name)) else {
        bail!("name one of: {}", targets.join(", "));
    };
    let built = workspace.target.join("fuzz");
    let host = host()?;
    let mut cargo = command::cargo(&fuzz);
    cargo.args(["build", "--release", "--bin", name]);
    // With a target of its own, build scripts and macros stay without coverage.
    cargo.args(["--target", &host]);
    cargo
        .env("CARGO_TARGET_DIR", &built)
        .env("RUSTFLAGS", COVERAGE.join(" "));
    if !command::succeeds(&mut cargo)? {
        bail!("the fuzz target does not build; it needs a C++ compiler for libFuzzer");
    }
    let (found, failed) = (built.join("corpus").join(name), fuzz.join("artifacts").join(name));
    for folder in [&found, &failed] {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    let mut target = command::clean(built.join(&host).join("release").join(name));
    target
        .arg(format!("-max_total_time={}", args.seconds))
        .arg(format!("-timeout={INPUT_SECONDS_MAX}"))
        .arg(format!("-artifact_prefix={}/", failed.display()))
        .arg("-print_final_stats=1")
        .arg(&found)
        .arg(fuzz.join("corpus").join(name));
    command::succeeds(&mut target)
}

fn targets(workspace: &Workspace) -> Result<Vec<String>> {
    let folder = workspace.root.join("fuzz/fuzz_targets");
    let mut names = Vec::new();
    for entry in fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))? {
        let path = entry?.path();
        names.extend(path.file_stem().and_then(|stem| stem.to_str()).map(str::to_owned));
    }
    names.sort();
    Ok(names)
}

fn host() -> Result<String> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = command::output(command::clean(rustc).arg("-vV"))?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host
        .context("rustc does not say for which machine it is")?
        .to_owned())
}
