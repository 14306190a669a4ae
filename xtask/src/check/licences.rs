//! Licences, banned crates and sources, of what is compiled, by `deny.toml`.
//!
//! The file has cargo-deny's shape, and cargo-deny can read it. We do not run it: building it takes longer
//! than the rest of the check, and its advisory database cannot be reached from CI.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context, Result};
use serde::Deserialize;

use super::{Finding, spdx};
use crate::workspace::{Metadata, Package, Workspace};

const CRATE_INDEX: &str = "registry+https://github.com/rust-lang/crates.io-index";

#[derive(Deserialize)]
struct Policy {
    licenses: Licences,
    bans: Bans,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Licences {
    allow: Vec<String>,
    #[serde(default)]
    exceptions: Vec<Exception>,
}

#[derive(Deserialize)]
struct Exception {
    #[serde(rename = "crate")]
    name: String,
    allow: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Bans {
    deny: Vec<Ban>,
}

#[derive(Deserialize)]
struct Ban {
    #[serde(rename = "crate")]
    name: String,
    reason: String,
}

pub(super) fn check(workspace: &Workspace) -> Result<Finding> {
    let path = workspace.root.join("deny.toml");
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let policy: Policy =
        toml::from_str(&text).with_context(|| format!("cannot understand {}", path.display()))?;
    Ok(Finding::from_lines(violations(
        &policy,
        &workspace.metadata,
        &workspace.compiled()?,
    )))
}

fn violations(policy: &Policy, metadata: &Metadata, compiled: &[&Package]) -> Vec<String> {
    let exceptions: BTreeMap<&str, &[String]> = policy
        .licenses
        .exceptions
        .iter()
        .map(|one| (one.name.as_str(), one.allow.as_slice()))
        .collect();
    let mut lines = Vec::new();
    for package in compiled {
        let extra = exceptions.get(package.name.as_str()).copied().unwrap_or_default();
        lines.extend(licence_fault(package, &policy.licenses.allow, extra));
        lines.extend(
            policy
                .bans
                .deny
                .iter()
                .filter(|ban| ban.name == package.name)
                .map(|ban| {
                    format!(
                        "{} is banned: {} (`cargo tree -i {0}` shows who wants it)",
                        ban.name, ban.reason
                    )
                }),
        );
        if let Some(source) = package.source.as_deref().filter(|source| *source != CRATE_INDEX) {
            lines.push(format!(
                "{} {} comes from {source}; only the crate index is allowed",
                package.name, package.version
            ));
        }
    }
    for package in metadata.members() {
        let starred = package
            .dependencies
            .iter()
            .filter(|dependency| dependency.req == "*" && !is_ours(metadata, &dependency.name));
        lines.extend(
            starred.map(|dependency| format!("{} asks for any version of {}", package.name, dependency.name)),
        );
    }
    lines
}

fn is_ours(metadata: &Metadata, name: &str) -> bool {
    metadata.members().any(|package| package.name == name)
}

fn licence_fault(package: &Package, allow: &[String], extra: &[String]) -> Option<String> {
    let Some(expression) = package.license.as_deref() else {
        return Some(format!("{} {} names no licence", package.name, package.version));
    };
    let allowed = |name: &str| allow.iter().chain(extra).any(|one| one == name);
    (!spdx::satisfied(expression, &allowed)).then(|| {
        format!(
            "{} {} is under {expression}, which deny.toml does not allow",
            package.name, package.version
        )
    })
}
