//! The Python package: ruff (style and format) and mypy (strict), both from PyPI.
//!
//! Checks that need the built module (the stub against the module, the examples) run with the tests.

use anyhow::Result;

use super::Finding;
use crate::command;
use crate::tools::Venv;
use crate::workspace::Workspace;

const TOOLS: [(&str, &[&str]); 3] = [
    (
        "ruff format",
        &["-m", "ruff", "format", "--check", "--quiet", "."],
    ),
    ("ruff check", &["-m", "ruff", "check", "--quiet", "."]),
    (
        "mypy",
        &["-m", "mypy", "--no-error-summary", "--cache-dir", "/dev/null"],
    ),
];

pub(super) fn check(workspace: &Workspace) -> Result<Finding> {
    let venv = match Venv::ready(workspace, "python-check") {
        Ok(venv) => venv,
        Err(reason) => return Ok(Finding::Skipped(format!("{reason:#}"))),
    };
    let mut lines = Vec::new();
    for (name, args) in TOOLS {
        let mut tool = command::clean(venv.bin("python"));
        tool.current_dir(workspace.root.join("python")).args(args);
        if !command::succeeds(tool.env("RUFF_NO_CACHE", "true"))? {
            lines.push(format!("{name} found something in python/, see above"));
        }
    }
    Ok(Finding::from_lines(lines))
}
