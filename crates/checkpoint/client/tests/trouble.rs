//! A lake that is down, and disks that are full: what is staged waits, what cannot be written is an error,
//! and no step is hurt.
#![allow(clippy::unwrap_used, reason = "a failure here is the failure of a test")]

mod fixture;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use fixture::process::{LONG, ROOT, node_here};
use fixture::{TestNode, pattern};
use forebay_checkpoint::{Dtype, TensorBox};
use forebay_checkpoint_client::Root;
use forebay_client::{Client, Save, SaveOptions, StagedIn, TensorPart};
use forebay_client::{SavePhase, SaveState};
use forebay_core::Kind;

const MIB: u64 = 1 << 20;

fn begin(client: &Client, step: u64, staged: StagedIn, deadline: Duration) -> Save {
    let options = SaveOptions {
        staged,
        deadline,
        ..SaveOptions::new(ROOT, step)
    };
    client.begin_save(options).unwrap()
}

/// Brings a tensor, in as many files as it takes.
fn bring(save: &Save, step: u64, bytes: u64) -> forebay_core::Result<()> {
    let bytes = pattern(step, bytes);
    let rows = bytes.len() as u64 / MIB;
    let shape = [rows, MIB];
    for row in 0..rows {
        let part = TensorPart {
            name: "w",
            dtype: Dtype::U8,
            global_shape: &shape,
            at: TensorBox {
                offset: vec![row, 0],
                shape: vec![1, MIB],
            },
            bytes: &bytes[(row * MIB) as usize..((row + 1) * MIB) as usize],
        };
        save.write(&[part], 1)?;
    }
    Ok(())
}

fn check(root: &Root, step: u64, bytes: u64) {
    let found = root.step(step).unwrap();
    assert!(found.verify(1, &|_| {}).unwrap().is_ok());
    assert_eq!(found.whole_tensor("w", 1).unwrap(), pattern(step, bytes));
}

fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + LONG;
    while !is_so() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::yield_now();
    }
}

#[test]
fn a_lake_that_is_down_is_absorbed_then_waited_for_and_everything_becomes_durable() {
    let node = TestNode::with("staging = '16MiB'");
    let client = &node.client;
    // Nothing can be written while this is no folder.
    let area = node.folder("data/lake/.forebay/folder/tmp");
    let away = node.folder("tmp-away");
    std::fs::rename(&area, &away).unwrap();
    std::fs::write(&area, b"").unwrap();
    // What fits is taken at once …
    let first = begin(client, 1, StagedIn::Ram, LONG);
    bring(&first, 1, 8 * MIB).unwrap();
    let first = first.stage().unwrap().id;
    // … what does not fit waits.
    let second = begin(client, 2, StagedIn::Ram, LONG);
    let id = second.id().to_owned();
    let brought = |id: &str| {
        client
            .saves(ROOT)
            .unwrap()
            .iter()
            .find(|save| save.id == id)
            .unwrap()
            .bytes
    };
    std::thread::scope(|scope| {
        let trainer = scope.spawn(|| {
            bring(&second, 2, 24 * MIB).unwrap();
            second.stage().unwrap();
        });
        eventually("the arena is full", || brought(&id) >= 4 * MIB);
        assert!(!trainer.is_finished());
        assert!(node.root().steps().unwrap().is_empty());
        std::fs::remove_file(&area).unwrap();
        std::fs::rename(&away, &area).unwrap();
        trainer.join().unwrap();
    });
    for id in [&first, &id] {
        let state = client.wait_save(id, LONG).unwrap();
        assert_eq!(state.phase, SavePhase::Durable, "{state:?}");
    }
    check(&node.root(), 1, 8 * MIB);
    check(&node.root(), 2, 24 * MIB);
}

/// A file system of a few MiB, gone when dropped.
struct SmallDisk(PathBuf);

impl SmallDisk {
    /// `None`, with the reason printed, where mounting is not allowed.
    fn mount(place: PathBuf, mib: u64) -> Option<Self> {
        std::fs::create_dir_all(&place).unwrap();
        let size = format!("size={mib}m,mode=700");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &size, "tmpfs"])
            .arg(&place)
            .output();
        match mounted {
            Ok(output) if output.status.success() => Some(Self(place)),
            Ok(output) => {
                println!(
                    "skipped: no small disk: {}",
                    String::from_utf8_lossy(&output.stderr)
                );
                None
            }
            Err(why) => {
                println!("skipped: no small disk: {why}");
                None
            }
        }
    }

    fn grow(&self, mib: u64) {
        let size = format!("remount,size={mib}m");
        let done = Command::new("mount").args(["-o", &size]).arg(&self.0).status();
        assert!(done.unwrap().success());
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Also if something in it is still open.
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// A node with step 1 in its lake.
fn with_a_step(folder: &Path, lake: &Path) -> (forebay_node::EmbeddedNode, Client, Root) {
    let (node, client) = node_here(folder, lake);
    client.create_bucket("lake").unwrap();
    let save = begin(&client, 1, StagedIn::Ram, LONG);
    bring(&save, 1, MIB).unwrap();
    let id = save.stage().unwrap().id;
    assert_eq!(client.wait_save(&id, LONG).unwrap().phase, SavePhase::Durable);
    let root = Root::open(client.clone(), ROOT).unwrap();
    (node, client, root)
}

#[test]
fn a_full_lake_fails_the_save_by_its_deadline_and_latest_does_not_move() {
    let dir = tempfile::tempdir().unwrap();
    let Some(disk) = SmallDisk::mount(dir.path().join("lake"), 8) else {
        return;
    };
    let (_node, client, root) = with_a_step(dir.path(), &disk.0);
    let save = begin(&client, 2, StagedIn::Ram, Duration::from_secs(3));
    let id = save.id().to_owned();
    // The arena is larger than what the disk takes, so this is handed over before it fails.
    bring(&save, 2, 12 * MIB).unwrap();
    save.stage().unwrap();
    let state = client.wait_save(&id, LONG).unwrap();
    assert_eq!(state.phase, SavePhase::Failed);
    let trouble = format!("{:?}", state.last_error.unwrap()).to_lowercase();
    assert!(trouble.contains("space"), "{trouble}");
    assert_eq!(root.steps().unwrap().keys().copied().collect::<Vec<_>>(), [1]);
    check(&root, 1, MIB);
    disk.grow(64);
    let save = begin(&client, 2, StagedIn::Ram, LONG);
    bring(&save, 2, 12 * MIB).unwrap();
    let id = save.stage().unwrap().id;
    assert_eq!(client.wait_save(&id, LONG).unwrap().phase, SavePhase::Durable);
    check(&root, 2, 12 * MIB);
}

#[test]
fn a_trainer_waits_for_room_on_the_disk_of_the_node_and_loses_nothing() {
    let node = TestNode::with("staging = '16MiB'\nlimits.save_disk = '8MiB'");
    let client = &node.client;
    // Nothing can be written while this is no folder.
    let area = node.folder("data/lake/.forebay/folder/tmp");
    let away = node.folder("tmp-away");
    std::fs::rename(&area, &away).unwrap();
    std::fs::write(&area, b"").unwrap();
    let first = begin(client, 1, StagedIn::Nvme, LONG);
    bring(&first, 1, 6 * MIB).unwrap();
    let first = first.stage().unwrap().id;
    let hasty = begin(client, 2, StagedIn::Nvme, Duration::from_secs(1));
    let error = bring(&hasty, 2, 4 * MIB).unwrap_err();
    assert_eq!(error.kind(), Kind::Busy, "{error}");
    drop(hasty);
    let second = begin(client, 2, StagedIn::Nvme, LONG);
    std::thread::scope(|scope| {
        let trainer = scope.spawn(|| {
            bring(&second, 2, 4 * MIB).unwrap();
            second.stage().unwrap().id
        });
        let waits = |state: &SaveState| {
            let trouble = state.last_error.as_ref();
            trouble.is_some_and(|trouble| trouble.message.contains("limits.save_disk"))
        };
        eventually("the trainer waits", || {
            let saves = client.saves(ROOT).unwrap();
            saves.last().is_some_and(waits)
        });
        std::fs::remove_file(&area).unwrap();
        std::fs::rename(&away, &area).unwrap();
        for id in [first, trainer.join().unwrap()] {
            let state = client.wait_save(&id, LONG).unwrap();
            assert_eq!(state.phase, SavePhase::Durable, "{state:?}");
        }
    });
    check(&node.root(), 1, 6 * MIB);
    check(&node.root(), 2, 4 * MIB);
}

#[test]
fn a_full_staging_folder_fails_the_save_at_once_and_latest_does_not_move() {
    let dir = tempfile::tempdir().unwrap();
    let Some(disk) = SmallDisk::mount(dir.path().join("data/saves"), 4) else {
        return;
    };
    let lake = dir.path().join("lake");
    std::fs::create_dir(&lake).unwrap();
    let (_node, client, root) = with_a_step(dir.path(), &lake);
    let save = begin(&client, 2, StagedIn::Nvme, LONG);
    let error = bring(&save, 2, 8 * MIB)
        .and_then(|()| save.stage().map(drop))
        .unwrap_err();
    assert_eq!(error.kind(), Kind::NoSpace, "{error}");
    assert_eq!(root.steps().unwrap().keys().copied().collect::<Vec<_>>(), [1]);
    disk.grow(64);
    let save = begin(&client, 2, StagedIn::Nvme, LONG);
    bring(&save, 2, 8 * MIB).unwrap();
    let id = save.stage().unwrap().id;
    assert_eq!(client.wait_save(&id, LONG).unwrap().phase, SavePhase::Durable);
    check(&root, 2, 8 * MIB);
}
