//! Generated reference pages: `forebay docs --check docs/reference` must find them current.

use anyhow::Result;

use super::Finding;
use crate::command;
use crate::workspace::Workspace;

pub(super) fn check(workspace: &Workspace) -> Result<Finding> {
    let mut build = command::cargo(&workspace.root);
    if !command::succeeds(build.args(["build", "--package", "forebay-cli", "--locked", "--quiet"]))? {
        return Ok(Finding::Broken(vec!["the binary does not build".to_owned()]));
    }
    let binary = workspace.target.join("debug/forebay");
    if command::output(command::clean(&binary).args(["docs", "--help"])).is_err() {
        return Ok(Finding::Skipped(
            "this binary has no `docs` command yet".to_owned(),
        ));
    }
    let mut docs = command::clean(&binary);
    let ok =
        command::succeeds(
            docs.current_dir(&workspace.root)
                .args(["docs", "--check", "docs/reference"]),
        )?;
    let hint = "run `cargo run -- docs docs/reference` and commit what changed";
    Ok(Finding::from_lines(if ok {
        Vec::new()
    } else {
        vec![hint.to_owned()]
    }))
}
