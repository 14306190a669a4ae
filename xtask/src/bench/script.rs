//! A measuring script of bench/: the Python that runs it, the node that it asks, and the figures that it
//! says.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use super::goals::{Figure, figures};
use super::node::BenchNode;
use crate::command;
use crate::tools::Venv;
use crate::workspace::Workspace;

/// `bench/<name>.py` and the interpreter of an environment that holds what it needs and the release wheel.
pub(super) struct Script {
    python: PathBuf,
    folder: PathBuf,
    name: &'static str,
}

impl Script {
    /// Builds the wheel and installs it in the environment of `tests/e2e/requirements/<environment>.txt`.
    pub(super) fn ready(workspace: &Workspace, name: &'static str, environment: &str) -> Result<Self> {
        let wheel = crate::wheel::build(workspace, "release")?;
        let venv = Venv::ready(workspace, environment)?;
        crate::wheel::install(&venv, &wheel)?;
        Ok(Self {
            python: venv.bin("python"),
            folder: workspace.root.join("bench"),
            name,
        })
    }

    /// Another script beside it, in the same environment.
    pub(super) fn beside(&self, name: &str) -> Command {
        let mut python = command::clean(&self.python);
        python.arg(self.folder.join(format!("{name}.py")));
        python
    }

    /// The figures of a group, measured in so many rounds with this node; `more` are arguments of this script
    /// alone.
    pub(super) fn measure<S: AsRef<OsStr>>(
        &self,
        group: &str,
        node: &BenchNode,
        rounds: usize,
        more: impl IntoIterator<Item = S>,
    ) -> Result<Vec<Figure>> {
        let mut script = self.beside(self.name);
        script.arg(group).arg("--socket").arg(&node.socket);
        script.args(["--node-pid", &node.pid().to_string()]);
        script.args(["--rounds", &rounds.to_string()]);
        figures(script.args(more))
    }
}

/// Returns what the scripts that ask the node for its metrics and keep files want to know.
pub(super) fn admin_and_data(node: &BenchNode, data: &Path) -> [OsString; 4] {
    let admin = format!("http://{}", node.admin);
    ["--admin".into(), admin.into(), "--data".into(), data.into()]
}
