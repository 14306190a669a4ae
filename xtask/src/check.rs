//! `cargo xtask check`: what must hold for every commit.
//!
//! Every step runs even if one before it failed, so that one run shows everything there is to mend. A step
//! returns its findings as lines; none means that it holds. A step that cannot run says so and is counted.

mod direction;
mod file_size;
mod licences;
mod python;
mod reference;
mod semantics;
mod spdx;
mod spelling;

use std::time::Instant;

use anyhow::Result;
use clap::Args;

use crate::command;
use crate::workspace::Workspace;

/// Arguments of `cargo xtask check`.
#[derive(Args)]
pub(crate) struct CheckArgs {
    /// Only the steps whose name contains this.
    filter: Option<String>,
}

/// Result of a step.
pub(crate) enum Finding {
    /// All is well.
    Holds,
    /// These lines need work.
    Broken(Vec<String>),
    /// Could not be checked, and why.
    Skipped(String),
}

impl Finding {
    /// `Holds` if there is nothing to say.
    pub(crate) fn from_lines(lines: Vec<String>) -> Self {
        if lines.is_empty() {
            Self::Holds
        } else {
            Self::Broken(lines)
        }
    }
}

type Step = (&'static str, fn(&Workspace) -> Result<Finding>);

const STEPS: [Step; 9] = [
    ("direction", direction::check),
    ("licences", licences::check),
    ("file-size", file_size::check),
    ("semantics", semantics::check),
    ("spelling", spelling::check),
    ("python", python::check),
    ("format", format),
    ("clippy", clippy),
    ("reference", reference::check),
];

/// Runs the steps; `false` if one of them found something.
pub(crate) fn run(workspace: &Workspace, args: &CheckArgs) -> Result<bool> {
    let wanted = |name: &str| args.filter.as_deref().is_none_or(|filter| name.contains(filter));
    let mut broken: Vec<&str> = Vec::new();
    let mut skipped: Vec<String> = Vec::new();
    for (name, step) in STEPS.into_iter().filter(|(name, _)| wanted(name)) {
        let start = Instant::now();
        let finding = step(workspace)?;
        let seconds = start.elapsed().as_secs_f32();
        match finding {
            Finding::Holds => println!("check {name}: ok ({seconds:.1} s)"),
            Finding::Skipped(reason) => {
                println!("check {name}: skipped: {reason}");
                skipped.push(format!("{name} ({reason})"));
            }
            Finding::Broken(lines) => {
                println!("check {name}: FAILED ({seconds:.1} s)");
                for line in lines {
                    println!("  {line}");
                }
                broken.push(name);
            }
        }
    }
    if !skipped.is_empty() {
        println!("check: skipped {}", skipped.join(", "));
    }
    match broken.as_slice() {
        [] if skipped.is_empty() => println!("check: everything holds"),
        [] => println!("check: everything else holds"),
        names => println!("check: failed: {}", names.join(", ")),
    }
    Ok(broken.is_empty())
}

fn format(workspace: &Workspace) -> Result<Finding> {
    let ok = command::succeeds(command::cargo(&workspace.root).args(["fmt", "--all", "--check"]))?;
    Ok(Finding::from_lines(if ok {
        Vec::new()
    } else {
        vec!["run `cargo fmt --all`".to_owned()]
    }))
}

fn clippy(workspace: &Workspace) -> Result<Finding> {
    let mut clippy = command::cargo(&workspace.root);
    clippy.args([
        "clippy",
        "--workspace",
        "--all-targets",
        "--locked",
        "--quiet",
        "--",
        "-D",
        "warnings",
    ]);
    let ok = command::succeeds(&mut clippy)?;
    Ok(Finding::from_lines(if ok {
        Vec::new()
    } else {
        vec!["see the compiler's output above".to_owned()]
    }))
}
