//! `cargo xtask wheel`: the Python package as one file, by maturin.
//!
//! The wheel lands in `target/wheels/`. It is for Python 3.11 and newer (the stable ABI) on this platform.
//! Tests use one of the dev profile, which shares everything with the binary that they test anyway.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::command;
use crate::tools::Venv;
use crate::workspace::Workspace;

/// Arguments of `cargo xtask wheel`.
#[derive(Args)]
pub(crate) struct WheelArgs {
    /// Without optimisation: quick to build, slow to run.
    #[arg(long)]
    debug: bool,
}

/// Builds the wheel and says where it is.
pub(crate) fn run(workspace: &Workspace, args: &WheelArgs) -> Result<bool> {
    let profile = if args.debug { "dev" } else { "release" };
    println!("{}", build(workspace, profile)?.display());
    Ok(true)
}

/// Builds the wheel with this profile of cargo.
pub(crate) fn build(workspace: &Workspace, profile: &str) -> Result<PathBuf> {
    let venv = Venv::ready(workspace, "wheel")?;
    // A folder for each profile, emptied first: what is in it afterwards is what was built now.
    let folder = workspace.target.join("wheels").join(match profile {
        "release" => "",
        other => other,
    });
    remove_wheels(&folder)?;
    let mut maturin = command::clean(venv.bin("maturin"));
    maturin.current_dir(workspace.root.join("python"));
    maturin.args(["build", "--locked", "--quiet", "--profile", profile]);
    // The tag of this machine: that the wheel runs elsewhere is for whoever publishes it to prove.
    maturin.args(["--compatibility", "linux", "--interpreter"]);
    maturin.arg(venv.bin("python")).arg("--out").arg(&folder);
    if !command::succeeds(&mut maturin)? {
        bail!("the wheel does not build");
    }
    let built = wheels(&folder)?;
    built
        .into_iter()
        .next()
        .with_context(|| format!("maturin left no wheel in {}", folder.display()))
}

/// Installs a wheel into an environment, in place of the one that is there.
pub(crate) fn install(venv: &Venv, wheel: &Path) -> Result<()> {
    let mut pip = command::clean(venv.bin("python"));
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
    pip.args(["--no-deps", "--no-index", "--force-reinstall"])
        .arg(wheel);
    command::output(&mut pip).map(drop)
}

fn wheels(folder: &Path) -> Result<Vec<PathBuf>> {
    if !folder.is_dir() {
        return Ok(Vec::new());
    }
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "whl") {
            found.push(path);
        }
    }
    Ok(found)
}

fn remove_wheels(folder: &Path) -> Result<()> {
    for wheel in wheels(folder)? {
        fs::remove_file(&wheel).with_context(|| format!("cannot remove {}", wheel.display()))?;
    }
    Ok(())
}
