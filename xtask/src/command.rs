//! Running other programs: one place that decides what they inherit and how a failure reads.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// Certificate bundles of the surrounding machine; they mean nothing to a loopback endpoint, and some S3
/// clients (rclone among them) refuse to start when one is set.
const UNWANTED: [&str; 3] = ["AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"];

/// A command that does not inherit what confuses S3 clients: foreign credentials, profiles and bundles.
pub(crate) fn clean(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    for name in UNWANTED {
        command.env_remove(name);
    }
    for (name, _) in std::env::vars_os() {
        if name
            .to_str()
            .is_some_and(|name| name.starts_with("AWS_") || name.starts_with("FOREBAY_"))
        {
            command.env_remove(name);
        }
    }
    command
}

/// Cargo, in the workspace's root. The one that runs us, so that a `+toolchain` carries over.
pub(crate) fn cargo(root: &Path) -> Command {
    let mut command = clean(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root);
    command
}

/// Returns whether a program can be started at all.
pub(crate) fn exists(program: &str) -> bool {
    let found = |dir: &Path| dir.join(program).is_file();
    std::env::var_os("PATH").is_some_and(|path| std::env::split_paths(&path).any(|dir| found(&dir)))
}

/// Runs to the end with our own output; `false` if it failed.
pub(crate) fn succeeds(command: &mut Command) -> Result<bool> {
    let shown = shown(command);
    let status = command
        .stdin(Stdio::null())
        .status()
        .with_context(|| format!("cannot start `{shown}`"))?;
    Ok(status.success())
}

/// Runs to the end and returns what it printed; a failure is an error that carries its last lines.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let shown = shown(command);
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot start `{shown}`"))?;
    if !output.status.success() {
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        let tail = lines[lines.len().saturating_sub(20)..].join("\n");
        bail!("`{shown}` failed ({}):\n{tail}", output.status);
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ")
}
