//! A node that is killed at every labelled point of a save: a reader sees the old step or the new one, never
//! neither and never a mix; what was acknowledged as durable is there, and what was staged on disk is
//! finished by the next incarnation of the node.
#![allow(clippy::unwrap_used, reason = "a failure here is the failure of a test")]

mod fixture;

use std::time::Instant;

use fixture::pattern;
use fixture::process::{LONG, NodeProcess, POINTS, ROOT, all_points};
use forebay_checkpoint::{Dtype, TensorBox, names};
use forebay_checkpoint_client::Root;
use forebay_client::SavePhase;
use forebay_client::{Client, SaveOptions, StagedIn, TensorPart};
use forebay_core::{Kind, Result};

const TENSOR_BYTES: u64 = 1 << 20;
/// Pieces of a save: a file and an object.
const PIECES: u32 = 2;

/// The other process. Started by the tests below; alone it does nothing.
#[test]
#[ignore = "a process that other tests start and kill"]
fn node_process() {
    fixture::process::run_node();
}

/// Answers that the trainer heard.
#[derive(Debug, Default)]
struct Heard {
    id: Option<String>,
    is_staged: bool,
    is_durable: bool,
}

fn save(client: &Client, step: u64, staged: StagedIn, heard: &mut Heard) -> Result<()> {
    let options = SaveOptions {
        staged,
        deadline: LONG,
        ..SaveOptions::new(ROOT, step)
    };
    let save = client.begin_save(options)?;
    heard.id = Some(save.id().to_owned());
    let bytes = pattern(step, TENSOR_BYTES);
    let part = TensorPart {
        name: "w",
        dtype: Dtype::U8,
        global_shape: &[TENSOR_BYTES],
        at: TensorBox::whole(&[TENSOR_BYTES]),
        bytes: &bytes,
    };
    save.write(&[part], 1)?;
    save.object("rng", forebay_client::ObjectKind::Bytes, &step.to_le_bytes())?;
    let id = save.stage()?.id;
    heard.is_staged = true;
    heard.is_durable = client.wait_save(&id, LONG)?.phase == SavePhase::Durable;
    Ok(())
}

/// A step that is visible is whole, and is what was saved.
fn check(root: &Root, step: u64) {
    let found = root.step(step).unwrap();
    assert!(found.verify(1, &|_| {}).unwrap().is_ok());
    assert_eq!(found.whole_tensor("w", 1).unwrap(), pattern(step, TENSOR_BYTES));
    assert_eq!(found.object("rng", None).unwrap().1, step.to_le_bytes());
}

/// Saves a step, then another one during which the node dies, and looks at what the next incarnation has.
fn die_at(label: &str, staged: StagedIn) {
    let dir = tempfile::tempdir().unwrap();
    // The first save comes to the point as well.
    let hits = if label == "nvme-piece" { PIECES + 1 } else { 2 };
    let node = NodeProcess::start(dir.path(), Some(&format!("{label}:{hits}")));
    node.client.create_bucket("lake").unwrap();
    let mut first = Heard::default();
    save(&node.client, 1, staged, &mut first).unwrap();
    assert!(first.is_durable, "{label}");
    let mut second = Heard::default();
    let _ = save(&node.client, 2, staged, &mut second);
    node.died();

    let node = NodeProcess::start(dir.path(), None);
    let root = node.root();
    check(&root, 1);
    if let (true, StagedIn::Nvme, Some(id)) = (second.is_staged, staged, &second.id) {
        finished(&node, id);
    }
    let steps = root.steps().unwrap();
    assert!(
        !second.is_durable || steps.contains_key(&2),
        "{label}: {second:?}"
    );
    let is_kept = second.is_staged && staged == StagedIn::Nvme;
    assert!(!is_kept || steps.contains_key(&2), "{label}: {second:?}");
    if !steps.contains_key(&2) {
        // What was never acknowledged may be finished meanwhile; then this one loses.
        let _ = save(&node.client, 2, staged, &mut Heard::default());
    }
    check(&root, 2);
    node.kill();
}

/// Waits until the next incarnation has finished what the former had promised.
fn finished(node: &NodeProcess, id: &str) {
    let deadline = Instant::now() + LONG;
    loop {
        match node.client.wait_save(id, LONG) {
            Ok(state) => return assert_eq!(state.phase, SavePhase::Durable, "{state:?}"),
            // It has not looked yet.
            Err(error) => assert!(
                error.kind() == Kind::NotFound && Instant::now() < deadline,
                "{error}"
            ),
        }
        std::thread::yield_now();
    }
}

#[test]
fn a_node_that_dies_anywhere_leaves_the_old_step_or_the_new_one() {
    for label in POINTS {
        die_at(label, StagedIn::Ram);
    }
}

#[test]
fn what_was_staged_on_disk_is_finished_after_a_kill_at_any_point() {
    for label in all_points() {
        die_at(label, StagedIn::Nvme);
    }
}

#[test]
fn a_full_disk_fails_the_save_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let node = NodeProcess::start(dir.path(), None);
    node.client.create_bucket("lake").unwrap();
    let attempt = names::attempt(7);
    let folder = dir.path().join(format!("data/saves/{attempt}.0"));
    let options = SaveOptions {
        attempt: Some(attempt),
        staged: StagedIn::Nvme,
        deadline: LONG,
        ..SaveOptions::new(ROOT, 1)
    };
    let save = node.client.begin_save(options).unwrap();
    // Whatever is written to its first piece finds no space.
    std::os::unix::fs::symlink("/dev/full", folder.join("piece-00000")).unwrap();
    save.object("rng", forebay_client::ObjectKind::Bytes, b"state")
        .unwrap();
    let error = save.stage().unwrap_err();
    assert_eq!(error.kind(), Kind::NoSpace, "{error}");
    assert!(node.root().steps().unwrap().is_empty());
    let mut heard = Heard::default();
    self::save(&node.client, 1, StagedIn::Nvme, &mut heard).unwrap();
    check(&node.root(), 1);
    node.kill();
}

#[test]
fn a_damaged_staged_save_is_set_aside_and_never_becomes_a_step() {
    let dir = tempfile::tempdir().unwrap();
    // Before its record is in the lake: after it nothing on disk is needed.
    let node = NodeProcess::start(dir.path(), Some("before-record"));
    node.client.create_bucket("lake").unwrap();
    let mut heard = Heard::default();
    let _ = save(&node.client, 1, StagedIn::Nvme, &mut heard);
    node.died();
    let folder = dir.path().join(format!("data/saves/{}", heard.id.unwrap()));
    let piece = folder.join("piece-00000");
    let mut bytes = std::fs::read(&piece).unwrap();
    bytes[100] ^= 1;
    std::fs::write(&piece, bytes).unwrap();
    let node = NodeProcess::start(dir.path(), None);
    let aside = dir.path().join(format!("{}.damaged", folder.display()));
    let deadline = Instant::now() + LONG;
    while !aside.exists() {
        assert!(Instant::now() < deadline, "it is not set aside");
        std::thread::yield_now();
    }
    assert!(node.root().steps().unwrap().is_empty());
    node.kill();
}
