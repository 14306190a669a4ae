//! Crate direction: which of our crates may use which (DESIGN §3), read from the manifests.
//!
//! One way only: core ← lake, reservoir, dataset, checkpoint ← engine ← s3 ← node ← cli ← python; the client stands beside them, on core, and
//! the loader on client, dataset and decode, steps on client and checkpoint. The reservoir knows nothing of lakes (it
//! fills through its own `Source`), testkit serves tests alone, xtask uses nothing of ours.

use anyhow::Result;

use super::Finding;
use crate::workspace::{Metadata, Workspace};

/// Each crate and what it may use. A new crate gets a line here when it starts.
const ALLOWED: [(&str, &[&str]); 17] = [
    ("forebay-core", &[]),
    ("forebay-sigv4", &[]),
    ("forebay-lake", &["forebay-core", "forebay-sigv4"]),
    ("forebay-reservoir", &["forebay-core"]),
    (
        "forebay-client",
        &["forebay-core", "forebay-sigv4", "forebay-checkpoint"],
    ),
    ("forebay-dataset", &["forebay-core"]),
    ("forebay-decode", &["forebay-core"]),
    ("forebay-checkpoint", &["forebay-core"]),
    (
        "forebay-steps",
        &["forebay-core", "forebay-client", "forebay-checkpoint"],
    ),
    (
        "forebay-loader",
        &[
            "forebay-core",
            "forebay-client",
            "forebay-dataset",
            "forebay-decode",
        ],
    ),
    (
        "forebay-engine",
        &[
            "forebay-core",
            "forebay-checkpoint",
            "forebay-lake",
            "forebay-reservoir",
        ],
    ),
    (
        "forebay-s3",
        &[
            "forebay-core",
            "forebay-lake",
            "forebay-reservoir",
            "forebay-engine",
            "forebay-dataset",
        ],
    ),
    (
        "forebay-node",
        &[
            "forebay-core",
            "forebay-checkpoint",
            "forebay-lake",
            "forebay-reservoir",
            "forebay-engine",
            "forebay-dataset",
            "forebay-s3",
        ],
    ),
    (
        "forebay-cli",
        &[
            "forebay-core",
            "forebay-lake",
            "forebay-reservoir",
            "forebay-engine",
            "forebay-client",
            "forebay-dataset",
            "forebay-loader",
            "forebay-checkpoint",
            "forebay-steps",
            "forebay-s3",
            "forebay-node",
        ],
    ),
    (
        "forebay-python",
        &[
            "forebay-core",
            "forebay-client",
            "forebay-dataset",
            "forebay-decode",
            "forebay-loader",
            "forebay-checkpoint",
            "forebay-steps",
            "forebay-node",
            "forebay-cli",
        ],
    ),
    ("forebay-testkit", &["forebay-core", "forebay-lake"]),
    ("xtask", &[]),
];

const TESTKIT: &str = "forebay-testkit";
/// A node is tested through its client, too.
const CLIENT: &str = "forebay-client";
/// What reads through a node is tested with a real one.
const THROUGH_A_NODE: [&str; 2] = ["forebay-loader", "forebay-steps"];
const NODE: &str = "forebay-node";

pub(super) fn check(workspace: &Workspace) -> Result<Finding> {
    Ok(Finding::from_lines(violations(&workspace.metadata)))
}

fn violations(metadata: &Metadata) -> Vec<String> {
    let ours: Vec<&str> = metadata.members().map(|package| package.name.as_str()).collect();
    let mut lines = Vec::new();
    for package in metadata.members() {
        let Some((_, allowed)) = ALLOWED.iter().find(|(name, _)| *name == package.name) else {
            lines.push(format!(
                "{} has no line in xtask/src/check/direction.rs: say what it may use",
                package.name
            ));
            continue;
        };
        for dependency in package
            .dependencies
            .iter()
            .filter(|dependency| ours.contains(&dependency.name.as_str()))
        {
            let dev = dependency.kind.as_deref() == Some("dev");
            if let Some(fault) = fault(&package.name, &dependency.name, allowed, dev) {
                lines.push(fault);
            }
        }
    }
    lines
}

fn fault(from: &str, to: &str, allowed: &[&str], dev: bool) -> Option<String> {
    let for_tests = to == TESTKIT || to == CLIENT || (THROUGH_A_NODE.contains(&from) && to == NODE);
    if allowed.contains(&to) || (dev && for_tests && from != "xtask") {
        return None;
    }
    if to == TESTKIT {
        return Some(format!(
            "{from} uses {to} outside of tests; make it a dev-dependency"
        ));
    }
    Some(format!(
        "{from} must not use {to}: crates depend one way (DESIGN §3)"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reservoir_must_not_use_the_lake() {
        let (_, allowed) = ALLOWED[3];
        assert!(fault("forebay-reservoir", "forebay-lake", allowed, false).is_some());
        assert!(fault("forebay-reservoir", "forebay-core", allowed, false).is_none());
    }

    #[test]
    fn a_node_is_for_tests_of_what_reads_through_it() {
        for from in THROUGH_A_NODE {
            assert!(fault(from, NODE, &["forebay-core"], true).is_none(), "{from}");
            assert!(fault(from, NODE, &["forebay-core"], false).is_some(), "{from}");
        }
        assert!(fault("forebay-dataset", NODE, &["forebay-core"], true).is_some());
    }

    #[test]
    fn testkit_is_for_tests_only() {
        assert!(fault("forebay-lake", TESTKIT, &["forebay-core"], false).is_some());
        assert!(fault("forebay-lake", TESTKIT, &["forebay-core"], true).is_none());
    }
}
