//! Crate direction: which of our crates may use which (DESIGN §3), read from the manifests.
//!
//! One way only: core ← wire; core ← lake, reservoir, dataset, checkpoint ← engine ← s3, ipc ← checkpoint-node ←
//! admin ← node ← cli ← python. A door (s3, ipc, admin) knows no node: a capability registers its family of
//! messages with ipc, and admin sees the node through a trait of its own.
//! The client stands beside them, on core and wire; the loader stands on client, dataset and decode, dataset-pack on the loader,
//! checkpoint-client on client and checkpoint, transfer on client and lake, mount on client.
//! The reservoir knows nothing of lakes (it fills through its own `Source`), testkit serves tests alone,
//! xtask uses nothing of ours. An edge that is allowed but not used is a fault as well: the table says what
//! is, not what could be.

use anyhow::Result;

use super::Finding;
use crate::workspace::{Metadata, Workspace};

/// Each crate and what it may use. A new crate gets a line here when it starts.
const ALLOWED: &[(&str, &[&str])] = &[
    ("forebay-core", &[]),
    ("forebay-sigv4", &[]),
    ("forebay-net", &["forebay-core"]),
    ("forebay-lake", &["forebay-core", "forebay-net", "forebay-sigv4"]),
    ("forebay-reservoir", &["forebay-core"]),
    ("forebay-wire", &["forebay-core"]),
    (
        "forebay-client",
        &[
            "forebay-core",
            "forebay-net",
            "forebay-sigv4",
            "forebay-wire",
            "forebay-checkpoint",
        ],
    ),
    ("forebay-dataset", &["forebay-core"]),
    ("forebay-decode", &["forebay-core"]),
    ("forebay-checkpoint", &["forebay-core"]),
    (
        "forebay-checkpoint-client",
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
        "forebay-dataset-pack",
        &[
            "forebay-core",
            "forebay-client",
            "forebay-dataset",
            "forebay-loader",
        ],
    ),
    (
        "forebay-transfer",
        &["forebay-core", "forebay-client", "forebay-lake"],
    ),
    (
        "forebay-engine",
        &["forebay-core", "forebay-lake", "forebay-reservoir"],
    ),
    (
        "forebay-cluster",
        &["forebay-core", "forebay-net", "forebay-reservoir"],
    ),
    (
        "forebay-s3",
        &["forebay-core", "forebay-net", "forebay-wire", "forebay-engine"],
    ),
    (
        "forebay-ipc",
        &[
            "forebay-core",
            "forebay-wire",
            "forebay-lake",
            "forebay-reservoir",
            "forebay-engine",
            "forebay-dataset",
        ],
    ),
    (
        "forebay-checkpoint-node",
        &[
            "forebay-core",
            "forebay-wire",
            "forebay-ipc",
            "forebay-checkpoint",
            "forebay-lake",
            "forebay-reservoir",
            "forebay-engine",
        ],
    ),
    (
        "forebay-admin",
        &[
            "forebay-core",
            "forebay-net",
            "forebay-wire",
            "forebay-ipc",
            "forebay-checkpoint-node",
            "forebay-lake",
            "forebay-reservoir",
            "forebay-engine",
        ],
    ),
    (
        "forebay-node",
        &[
            "forebay-admin",
            "forebay-core",
            "forebay-net",
            "forebay-ipc",
            "forebay-checkpoint-node",
            "forebay-cluster",
            "forebay-lake",
            "forebay-reservoir",
            "forebay-engine",
            "forebay-s3",
        ],
    ),
    ("forebay-mount", &["forebay-core", "forebay-client"]),
    (
        "forebay-cli",
        &[
            "forebay-admin",
            "forebay-core",
            "forebay-net",
            "forebay-lake",
            "forebay-client",
            "forebay-dataset",
            "forebay-dataset-pack",
            "forebay-loader",
            "forebay-mount",
            "forebay-checkpoint",
            "forebay-checkpoint-client",
            "forebay-transfer",
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
            "forebay-checkpoint-client",
            "forebay-node",
            "forebay-cli",
        ],
    ),
    ("forebay-testkit", &["forebay-core", "forebay-lake"]),
    ("xtask", &[]),
];

const TESTKIT: &str = "forebay-testkit";
/// Crates that the tests of another one need: what reads through a node is tested with a real one, and a node
/// through its client.
const FOR_TESTS: [(&str, &str); 8] = [
    ("forebay-mount", "forebay-node"),
    ("forebay-loader", "forebay-node"),
    ("forebay-dataset-pack", "forebay-node"),
    ("forebay-checkpoint-client", "forebay-node"),
    ("forebay-s3", "forebay-lake"),
    ("forebay-s3", "forebay-reservoir"),
    ("forebay-node", "forebay-client"),
    ("forebay-node", "forebay-wire"),
];

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
        let used = |dev: bool| -> Vec<&str> {
            let of_kind = package
                .dependencies
                .iter()
                .filter(|dependency| (dependency.kind.as_deref() == Some("dev")) == dev);
            of_kind.map(|dependency| dependency.name.as_str()).collect()
        };
        lines.extend(unused(&package.name, allowed, &used(false)));
        for (_, to) in FOR_TESTS.iter().filter(|(from, _)| *from == package.name) {
            lines.extend(unused(&package.name, &[to], &used(true)));
        }
    }
    for (name, _) in ALLOWED.iter().filter(|(name, _)| !ours.contains(name)) {
        lines.push(format!(
            "{name} is no crate of ours: take its line out of xtask/src/check/direction.rs"
        ));
    }
    lines
}

/// Allowed edges that nobody uses.
fn unused(from: &str, allowed: &[&str], used: &[&str]) -> Vec<String> {
    let spare = allowed.iter().filter(|to| !used.contains(to));
    spare
        .map(|to| {
            format!("{from} may use {to} but does not: take the edge out of xtask/src/check/direction.rs")
        })
        .collect()
}

fn fault(from: &str, to: &str, allowed: &[&str], dev: bool) -> Option<String> {
    let for_tests = to == TESTKIT || FOR_TESTS.contains(&(from, to));
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
        let (_, allowed) = ALLOWED[4];
        assert!(fault("forebay-reservoir", "forebay-lake", allowed, false).is_some());
        assert!(fault("forebay-reservoir", "forebay-core", allowed, false).is_none());
    }

    #[test]
    fn a_node_is_for_tests_of_what_reads_through_it() {
        for (from, to) in FOR_TESTS {
            assert!(fault(from, to, &["forebay-core"], true).is_none(), "{from}");
            assert!(fault(from, to, &["forebay-core"], false).is_some(), "{from}");
        }
        assert!(fault("forebay-dataset", "forebay-node", &["forebay-core"], true).is_some());
    }

    #[test]
    fn an_edge_that_nobody_uses_is_a_fault() {
        assert_eq!(unused("a", &["b", "c"], &["c", "d"]).len(), 1);
        assert!(unused("a", &["b"], &["b"]).is_empty());
    }

    #[test]
    fn testkit_is_for_tests_only() {
        assert!(fault("forebay-lake", TESTKIT, &["forebay-core"], false).is_some());
        assert!(fault("forebay-lake", TESTKIT, &["forebay-core"], true).is_none());
    }
}
