//! Spelling, by the `typos` wheel and `_typos.toml`.

use anyhow::Result;

use super::Finding;
use crate::command;
use crate::tools::Venv;
use crate::workspace::Workspace;

pub(super) fn check(workspace: &Workspace) -> Result<Finding> {
    let programs = Venv::ready(workspace, "programs")?;
    let mut typos = command::clean(programs.bin("typos"));
    let ok = command::succeeds(typos.current_dir(&workspace.root).args(["--format", "brief"]))?;
    let hint = "mend the words above, or teach _typos.toml a word that is right";
    Ok(Finding::from_lines(if ok {
        Vec::new()
    } else {
        vec![hint.to_owned()]
    }))
}
