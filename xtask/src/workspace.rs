//! Layout of the workspace: the root, the target folder, and what `cargo metadata` says about every package.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::command;

/// The workspace that this xtask belongs to.
pub(crate) struct Workspace {
    /// The folder with the root `Cargo.toml`.
    pub(crate) root: PathBuf,
    /// The folder that cargo builds in; our tools live in `tools/` below it.
    pub(crate) target: PathBuf,
    /// All packages that cargo resolved.
    pub(crate) metadata: Metadata,
}

/// The part of `cargo metadata` that the checks read.
#[derive(Deserialize)]
pub(crate) struct Metadata {
    /// All packages, also those that only the lock file knows.
    pub(crate) packages: Vec<Package>,
    workspace_members: Vec<String>,
    target_directory: PathBuf,
}

/// One package.
#[derive(Deserialize)]
pub(crate) struct Package {
    id: String,
    /// Its name.
    pub(crate) name: String,
    /// Its version.
    pub(crate) version: String,
    /// Its SPDX expression.
    pub(crate) license: Option<String>,
    /// The registry it comes from; `None` for our own.
    pub(crate) source: Option<String>,
    /// Dependencies that its manifest names.
    pub(crate) dependencies: Vec<Dependency>,
}

/// One line of a manifest.
#[derive(Deserialize)]
pub(crate) struct Dependency {
    /// The package asked for.
    pub(crate) name: String,
    /// `dev`, `build`, or nothing for a normal one.
    pub(crate) kind: Option<String>,
    /// The version asked for.
    pub(crate) req: String,
}

impl Workspace {
    /// Reads `cargo metadata` of the workspace that this program was built from.
    pub(crate) fn find() -> Result<Self> {
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
        let root = manifest
            .parent()
            .context("xtask has no parent folder")?
            .to_path_buf();
        let text =
            command::output(command::cargo(&root).args(["metadata", "--format-version", "1", "--locked"]))?;
        let metadata: Metadata =
            serde_json::from_str(&text).context("cargo metadata printed something else")?;
        Ok(Self {
            target: metadata.target_directory.clone(),
            root,
            metadata,
        })
    }

    /// Packages that a build of any member on this platform compiles, tests included. Asked of `cargo tree`:
    /// the lock file and the graph in `cargo metadata` also name optional packages that no feature turns on.
    pub(crate) fn compiled(&self) -> Result<Vec<&Package>> {
        let mut tree = command::cargo(&self.root);
        tree.args(["tree", "--workspace", "--locked", "--prefix", "none"]);
        tree.args(["--edges", "normal,build,dev", "--format", "{p}"]);
        let text = command::output(&mut tree)?;
        let used: BTreeSet<(&str, &str)> = text.lines().filter_map(name_and_version).collect();
        let is_used = |package: &&Package| used.contains(&(package.name.as_str(), package.version.as_str()));
        Ok(self.metadata.packages.iter().filter(is_used).collect())
    }
}

impl Metadata {
    /// Our own packages.
    pub(crate) fn members(&self) -> impl Iterator<Item = &Package> {
        self.packages
            .iter()
            .filter(|package| self.workspace_members.contains(&package.id))
    }
}

/// `serde v1.0.0 (proc-macro)` → `serde`, `1.0.0`.
fn name_and_version(line: &str) -> Option<(&str, &str)> {
    let mut words = line.split(' ');
    Some((words.next()?, words.next()?.strip_prefix('v')?))
}
