//! File sizes: past 500 lines a source file hides a seam.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::Finding;
use crate::workspace::Workspace;

const LINES_MAX: usize = 500;

/// Files that may be longer, each with its reason.
const LISTED: [(&str, &str); 0] = [];

pub(super) fn check(workspace: &Workspace) -> Result<Finding> {
    let mut files = Vec::new();
    for folder in ["crates", "python", "xtask/src", "tests/e2e"] {
        collect(&workspace.root.join(folder), &mut files)?;
    }
    let mut lines = Vec::new();
    for file in files {
        let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        let name = file
            .strip_prefix(&workspace.root)
            .unwrap_or(&file)
            .display()
            .to_string();
        let count = text.lines().count();
        if count > LINES_MAX && !LISTED.iter().any(|(listed, _)| *listed == name) {
            lines.push(format!(
                "{name} has {count} lines, more than {LINES_MAX}: look for the seam"
            ));
        }
    }
    Ok(Finding::from_lines(lines))
}

/// All Rust and Python files below `dir`.
pub(super) fn collect(dir: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    if !dir.is_dir() {
        return Ok(());
    }
    for entry in fs::read_dir(dir).with_context(|| format!("cannot list {}", dir.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else if path
            .extension()
            .is_some_and(|extension| extension == "rs" || extension == "py")
        {
            files.push(path);
        }
    }
    files.sort();
    Ok(())
}
