//! End-to-end tests by pytest.
//!
//! `test_x.py` and `test_x_more.py` run in the environment of `requirements/x.txt` if there is such a file
//! (its client cannot share one with boto3), else in that of `clients.txt`; `python/` runs in that of
//! `python.txt`. The tests find the binary and SeaweedFS by environment variables; the wheel of our own
//! package is installed where it is tested.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::tally::Tally;
use super::{Stage, debian, junit};
use crate::command;
use crate::tools::Venv;
use crate::wheel;

/// Tools that only Debian packages: a program to look for, its packages, whether only the heavy tier needs
/// it.
const DEBIAN: [(&str, &[&str], bool); 2] = [
    ("s3cmd", &["s3cmd"], false),
    (
        "radosgw",
        &["ceph-mon", "ceph-osd", "radosgw", "ceph-common"],
        true,
    ),
];

/// Environments that get the wheel of our own package.
const WITH_WHEEL: [&str; 7] = [
    "python",
    "torch",
    OLDEST_TORCH,
    "loops",
    "mosaicml",
    "tensorflow",
    "orbax",
];

/// The oldest torch that is supported; tests of checkpoints find its interpreter by this variable.
const OLDEST_TORCH: &str = "torch-oldest";
const OLDEST_TORCH_VARIABLE: &str = "FOREBAY_TEST_TORCH_OLDEST";

/// Modules of the package that import torch.
const WITHOUT_EXAMPLES: [&str; 4] = [
    "_torch_data.py",
    "_sample_epochs.py",
    "dcp/*",
    "torch_checkpointing.py",
];

/// Guides whose examples run.
const GUIDES: [&str; 3] = ["python.md", "datasets.md", "checkpoints.md"];

/// Reads that test_pressure.py makes in the heavy tier.
const READS_HEAVY: &str = "1000000";

pub(super) fn run(stage: &Stage<'_>, binary: &Path, heavy: bool, tally: &mut Tally) -> Result<()> {
    for (program, packages, _) in DEBIAN
        .into_iter()
        .filter(|(_, _, only_heavy)| heavy || !only_heavy)
    {
        if !command::exists(program)
            && let Err(reason) = debian::install(packages)
        {
            println!("{program} is missing: {reason:#}");
        }
    }
    let folder = stage.workspace.root.join("tests/e2e");
    let package = folder.join("python");
    let mut alone = own_environment(stage, &folder)?;
    alone.extend(own_environment(stage, &folder.join("heavy"))?);
    let venv = Venv::ready(stage.workspace, "clients")?;
    let mut clients = pytest(stage, binary, &venv, "clients");
    clients.arg(&folder).arg("--ignore").arg(&package);
    if !heavy {
        clients.arg("--ignore").arg(folder.join("heavy"));
        alone.retain(|(_, file)| file.parent() == Some(&folder));
    }
    for (_, file) in &alone {
        clients.arg("--ignore").arg(file);
    }
    finish(stage, &mut clients, "clients", tally)?;
    for (name, file) in alone {
        match alone_tests(stage, binary, &name, &file) {
            Ok(mut tests) => finish(stage, &mut tests, &name, tally)?,
            Err(reason) => tally.fail(format!("e2e {name}: {reason:#}")),
        }
    }
    the_package(stage, binary, &package, heavy, tally)
}

/// The tests of a file with an environment of its own.
fn alone_tests(stage: &Stage<'_>, binary: &Path, name: &str, file: &Path) -> Result<Command> {
    let mut tests = pytest(stage, binary, &environment(stage, name)?, name);
    if file.ends_with("test_torch_dcp.py") {
        tests.env(
            OLDEST_TORCH_VARIABLE,
            environment(stage, OLDEST_TORCH)?.bin("python"),
        );
    }
    tests.arg(file);
    Ok(tests)
}

/// The Python package: its wheel, installed as a user would, its tests, and the examples of its
/// documentation.
fn the_package(
    stage: &Stage<'_>,
    binary: &Path,
    folder: &Path,
    heavy: bool,
    tally: &mut Tally,
) -> Result<()> {
    let name = "python";
    let venv = match environment(stage, name) {
        Ok(venv) => venv,
        Err(reason) => {
            tally.fail(format!("e2e {name}: {reason:#}"));
            return Ok(());
        }
    };
    let mut tests = pytest(stage, binary, &venv, name);
    tests.arg(folder);
    if heavy {
        tests.env("FOREBAY_TEST_READS", READS_HEAVY);
    }
    finish(stage, &mut tests, name, tally)?;
    let mut examples = pytest(stage, binary, &venv, "python-examples");
    // From elsewhere: the installed package is tested, not the folder in the tree.
    examples
        .current_dir(folder)
        .args(["--doctest-modules", "--pyargs", "forebay", "--doctest-glob=*.md"])
        // Import torch, which has an environment of its own; they have no examples.
        .args(WITHOUT_EXAMPLES.map(|glob| format!("--ignore-glob=/*/forebay/{glob}")));
    for guide in GUIDES {
        examples.arg(stage.workspace.root.join("docs/guides").join(guide));
    }
    finish(stage, &mut examples, "python-examples", tally)
}

/// The environment of this name, with the wheel of the dev profile if our package is tested there.
fn environment(stage: &Stage<'_>, name: &str) -> Result<Venv> {
    let venv = Venv::ready(stage.workspace, name)?;
    if WITH_WHEEL.contains(&name) {
        wheel::install(&venv, &wheel::build(stage.workspace, "dev")?)?;
    }
    Ok(venv)
}

/// Test files with an environment of their own: name of the environment, file.
fn own_environment(stage: &Stage<'_>, folder: &Path) -> Result<Vec<(String, PathBuf)>> {
    let requirements = stage.workspace.root.join("tests/e2e/requirements");
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))? {
        let path = entry?.path();
        let stem = path
            .file_stem()
            .and_then(|stem| stem.to_str())
            .and_then(|stem| stem.strip_prefix("test_"));
        let names = stem
            .into_iter()
            .flat_map(|stem| [Some(stem), stem.split_once('_').map(|(first, _)| first)]);
        let is_listed = |name: &&str| requirements.join(format!("{name}.txt")).is_file();
        let name = names.flatten().find(is_listed).map(str::to_owned);
        if let Some(name) = name {
            found.push((name, path));
        }
    }
    found.sort();
    Ok(found)
}

fn report(stage: &Stage<'_>, name: &str) -> PathBuf {
    stage.workspace.target.join("e2e").join(format!("{name}.xml"))
}

fn pytest(stage: &Stage<'_>, binary: &Path, venv: &Venv, name: &str) -> Command {
    let mut pytest = command::clean(venv.bin("python"));
    pytest.current_dir(&stage.workspace.root).args([
        "-m",
        "pytest",
        "-q",
        "--tb=short",
        "-p",
        "no:cacheprovider",
    ]);
    pytest.arg(format!("--junitxml={}", report(stage, name).display()));
    if let Some(filter) = stage.filter {
        pytest.args(["-k", filter]);
    }
    stage.seaweed.export(&mut pytest);
    pytest
        .env("FOREBAY_TEST_BINARY", binary)
        .env("PATH", path(&[venv, &stage.programs]));
    pytest.env("PYTHONDONTWRITEBYTECODE", "1");
    pytest
}

fn path(venvs: &[&Venv]) -> OsString {
    let rest = std::env::var_os("PATH").unwrap_or_default();
    let all = venvs
        .iter()
        .map(|venv| venv.bin_dir())
        .chain(std::env::split_paths(&rest));
    std::env::join_paths(all).unwrap_or(rest)
}

fn finish(stage: &Stage<'_>, pytest: &mut Command, name: &str, tally: &mut Tally) -> Result<()> {
    const NOTHING_COLLECTED: i32 = 5;
    println!("\npytest: {name}");
    let report = report(stage, name);
    let _ = fs::remove_file(&report);
    let status = pytest.status().context("cannot start pytest")?;
    if report.is_file() {
        junit::count(&report, "e2e", tally)?;
    }
    let counted = status.success() || status.code() == Some(1) || status.code() == Some(NOTHING_COLLECTED);
    if !counted {
        tally.fail(format!("e2e {name}: pytest ended with {status}"));
    }
    Ok(())
}
