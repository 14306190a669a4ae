//! Tools that tests need and Rust does not bring: Python virtual environments under `target/tools/`.
//!
//! Every file in tests/e2e/requirements/ is one environment, named after the file and a hash of its text, so
//! a changed list makes a new one and an unchanged one costs nothing. An environment counts only when its
//! marker file is there: one that was interrupted half way is made again. Two comments in a list are orders:
//! `# no-deps` takes the list as complete, `# run FILE` runs a script in the finished environment.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::command;
use crate::workspace::Workspace;

/// A virtual environment with everything of one requirements file.
pub(crate) struct Venv {
    /// Its folder.
    pub(crate) dir: PathBuf,
}

impl Venv {
    /// The environment of `tests/e2e/requirements/<name>.txt`, made if it is not there.
    pub(crate) fn ready(workspace: &Workspace, name: &str) -> Result<Self> {
        let list = workspace
            .root
            .join("tests/e2e/requirements")
            .join(format!("{name}.txt"));
        let text = fs::read_to_string(&list).with_context(|| format!("cannot read {}", list.display()))?;
        let mut hasher = DefaultHasher::new();
        text.hash(&mut hasher);
        let dir = workspace
            .target
            .join("tools")
            .join(format!("{name}-{:012x}", hasher.finish() >> 16));
        let venv = Self { dir };
        let marker = venv.dir.join("complete");
        if marker.is_file() {
            return Ok(venv);
        }
        eprintln!("xtask: setting up {} for {name}", venv.dir.display());
        if venv.dir.exists() {
            fs::remove_dir_all(&venv.dir).with_context(|| format!("cannot remove {}", venv.dir.display()))?;
        }
        make(&venv.dir)?;
        // `python -m pip`: the `pip` script has its interpreter's path in a first line of limited length.
        let mut pip = command::clean(venv.bin("python"));
        pip.args([
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--requirement",
        ])
        .arg(&list);
        if text.lines().any(|line| line.trim() == "# no-deps") {
            pip.arg("--no-deps");
        }
        keep_registry_certificates(&mut pip);
        command::output(&mut pip)
            .with_context(|| format!("cannot install {} (is PyPI reachable?)", list.display()))?;
        for script in text.lines().filter_map(|line| line.strip_prefix("# run ")) {
            let mut python = command::clean(venv.bin("python"));
            command::output(python.arg(workspace.root.join(script.trim())))?;
        }
        fs::write(&marker, text).with_context(|| format!("cannot write {}", marker.display()))?;
        Ok(venv)
    }

    /// A program of this environment.
    pub(crate) fn bin(&self, program: &str) -> PathBuf {
        self.dir.join("bin").join(program)
    }

    /// The folder with its programs, for PATH.
    pub(crate) fn bin_dir(&self) -> PathBuf {
        self.dir.join("bin")
    }
}

/// pip talks to a registry, not to loopback: it needs the machine's own bundle if there is one.
fn keep_registry_certificates(pip: &mut Command) {
    if let Some(bundle) = std::env::var_os("REQUESTS_CA_BUNDLE") {
        pip.env("REQUESTS_CA_BUNDLE", bundle);
    }
}

fn make(dir: &Path) -> Result<()> {
    let python = std::env::var_os("FOREBAY_PYTHON").unwrap_or_else(|| "python3".into());
    let make = || command::output(command::clean(&python).args(["-m", "venv"]).arg(dir));
    let Err(first) = make() else { return Ok(()) };
    // Debian splits ensurepip off; with root it can be fetched, without it the user has to.
    if crate::test::debian::install(&["python3-venv"]).is_ok() && make().is_ok() {
        return Ok(());
    }
    bail!(
        "cannot make a Python environment: {first:#}\n\
         Python 3.11 or newer with venv is needed: `apt-get install python3-venv` on Debian, or name another \
         interpreter with FOREBAY_PYTHON=/path/to/python3"
    )
}
