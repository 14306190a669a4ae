//! `forebay mount` as a process: started, stopped, killed.
#![allow(clippy::unwrap_used, reason = "a failure here is the failure of a test")]

mod support;

use std::path::PathBuf;
use std::process::{Child, Stdio};

use support::{forebay, run, wait_for};

/// A mount of a folder as a process of its own; unmounted and stopped when dropped.
struct Mounted {
    child: Child,
    dir: tempfile::TempDir,
}

impl Mounted {
    /// `None`, said, where nothing can be mounted.
    fn start(more: &[&str]) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("data/sub")).unwrap();
        std::fs::create_dir(dir.path().join("mnt")).unwrap();
        std::fs::write(dir.path().join("data/sub/x.txt"), "hello").unwrap();
        if let Err(why) = forebay_mount::probe() {
            println!("skipped: cannot mount here: {why}");
            return None;
        }
        let child = spawn(&dir, more);
        Some(Self { child, dir })
    }

    fn mnt(&self) -> PathBuf {
        self.dir.path().join("mnt")
    }

    fn read(&self) -> std::io::Result<String> {
        std::fs::read_to_string(self.mnt().join("sub/x.txt"))
    }

    fn wait_mounted(&self) {
        wait_for("the mount", || self.read().ok().filter(|text| text == "hello"));
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = forebay_mount::unmount(&self.mnt(), forebay_mount::Detach::Yes);
    }
}

fn spawn(dir: &tempfile::TempDir, more: &[&str]) -> Child {
    let mut args = vec!["mount", "data", "mnt"];
    args.extend(more);
    let mut command = forebay(dir.path(), &args);
    command
        .stdout(Stdio::null())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap()
}

#[test]
fn a_signal_unmounts_cleanly() {
    let Some(mut mounted) = Mounted::start(&["--explain"]) else {
        return;
    };
    mounted.wait_mounted();
    mounted.signal(rustix::process::Signal::TERM);
    assert!(mounted.child.wait().unwrap().success());
    assert_eq!(
        std::fs::read_dir(mounted.mnt()).unwrap().count(),
        0,
        "the plain folder"
    );
}

#[test]
fn a_killed_mount_is_enotconn_and_the_next_one_takes_its_place() {
    let Some(mut mounted) = Mounted::start(&[]) else {
        return;
    };
    mounted.wait_mounted();
    mounted.child.kill().unwrap();
    mounted.child.wait().unwrap();
    let dead = wait_for("the end", || mounted.read().err());
    assert_eq!(dead.raw_os_error(), Some(107), "ENOTCONN, not a hang: {dead}");
    mounted.child = spawn(&mounted.dir, &[]);
    mounted.wait_mounted();
}

#[test]
fn umount_ends_the_process_and_clears_a_dead_mount() {
    let Some(mut mounted) = Mounted::start(&[]) else {
        return;
    };
    mounted.wait_mounted();
    let busy = std::fs::File::open(mounted.mnt().join("sub/x.txt")).unwrap();
    let refused = run(mounted.dir.path(), &["umount", "mnt"]);
    assert_eq!(refused.code, 1);
    assert!(refused.err.contains("--lazy"), "{}", refused.err);
    drop(busy);
    wait_for("the close", || {
        (run(mounted.dir.path(), &["umount", "mnt"]).code == 0).then_some(())
    });
    assert!(mounted.child.wait().unwrap().success());
    let nothing = run(mounted.dir.path(), &["umount", "mnt"]);
    assert_eq!(nothing.code, 2);
    assert!(nothing.err.contains("nothing is mounted"), "{}", nothing.err);
}

#[test]
fn a_daemon_returns_when_it_is_mounted_and_says_what_was_wrong_if_not() {
    let Some(mounted) = Mounted::start(&[]) else {
        return;
    };
    mounted.wait_mounted();
    let dir = mounted.dir.path();
    std::fs::create_dir(dir.join("second")).unwrap();
    let (data, second) = (dir.join("data"), dir.join("second"));
    let (data, second) = (data.to_str().unwrap(), second.to_str().unwrap());
    let ran = run(dir, &["mount", data, second, "--daemon"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert_eq!(
        std::fs::read_to_string(dir.join("second/sub/x.txt")).unwrap(),
        "hello"
    );
    assert_eq!(run(dir, &["umount", "second"]).code, 0);
    let missing = dir.join("nowhere");
    let ran = run(dir, &["mount", data, missing.to_str().unwrap(), "--daemon"]);
    assert_eq!(ran.code, 1);
    assert!(ran.err.contains("there is no folder"), "{}", ran.err);
}
