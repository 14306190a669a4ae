//! A writable mount, with the real kernel: the calls that programs make, and those that are refused.
#![allow(clippy::unwrap_used, reason = "a failure here is the failure of a test")]

mod fixture;

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::process::{Command, Stdio};

use fixture::{Mounted, errno, pattern, wait_until};
use forebay_mount::{Counter, Fsync};

const MIB: usize = 1 << 20;

fn writable() -> Option<Mounted> {
    fixture::mounted(|options| options.writable = true)
}

#[test]
fn a_file_that_is_written_is_an_object_when_it_is_closed() {
    let Some(mounted) = writable() else { return };
    let bytes = pattern(1, 9 * MIB + 1);
    let mut file = File::create(mounted.path("new/x.pt")).map_err(|why| why.raw_os_error());
    assert_eq!(file.as_ref().err(), Some(&Some(libc::ENOENT)), "no such folder");
    fs::create_dir(mounted.path("new")).unwrap();
    file = File::create(mounted.path("new/x.pt")).map_err(|why| why.raw_os_error());
    let mut file = file.unwrap();
    for piece in bytes.chunks(300_000) {
        file.write_all(piece).unwrap();
    }
    assert_eq!(mounted.object("new/x.pt"), None, "not before it is closed");
    drop(file);
    assert!(mounted.object("new/x.pt").unwrap() == bytes);
    assert!(fs::read(mounted.path("new/x.pt")).unwrap() == bytes);
    assert_eq!(mounted.names(""), ["new"]);
    fs::write(mounted.path("empty"), b"").unwrap();
    wait_until("an empty object", || mounted.object("empty") == Some(Vec::new()));
}

#[test]
fn a_rewritten_file_replaces_the_object_and_who_has_the_old_one_open_keeps_it() {
    let Some(mounted) = writable() else { return };
    mounted.put("x", b"old");
    let mut old = File::open(mounted.path("x")).unwrap();
    let mut file = File::create(mounted.path("x")).unwrap();
    file.write_all(b"the new one").unwrap();
    assert_eq!(mounted.object("x").unwrap(), b"old", "until it is closed");
    drop(file);
    assert_eq!(mounted.object("x").unwrap(), b"the new one");
    let mut text = String::new();
    old.read_to_string(&mut text).unwrap();
    assert_eq!(text, "old");
}

#[test]
fn a_file_is_announced_written_and_renamed_while_it_is_open_as_safetensors_does() {
    let Some(mounted) = writable() else { return };
    mounted.put("model.safetensors", b"old");
    let bytes = pattern(2, 2 * MIB);
    let temporary = mounted.path(".tmpAbC");
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&temporary)
        .unwrap();
    file.set_permissions(fs::Permissions::from_mode(0o600)).unwrap();
    file.set_len(bytes.len() as u64).unwrap();
    file.write_all(&bytes).unwrap();
    fs::rename(&temporary, mounted.path("model.safetensors")).unwrap();
    assert_eq!(
        mounted.object("model.safetensors").unwrap(),
        b"old",
        "until it is closed"
    );
    drop(file);
    assert!(mounted.object("model.safetensors").unwrap() == bytes);
    assert_eq!(mounted.names(""), ["model.safetensors"]);
    assert!(fs::read(mounted.path("model.safetensors")).unwrap() == bytes);
}

#[test]
fn a_closed_file_is_renamed_over_another() {
    let Some(mounted) = writable() else { return };
    mounted.put("x.pt", b"old");
    fs::write(mounted.path("x.tmp"), b"new").unwrap();
    fs::rename(mounted.path("x.tmp"), mounted.path("x.pt")).unwrap();
    assert_eq!(fs::read(mounted.path("x.pt")).unwrap(), b"new");
    assert_eq!(mounted.object("x.pt").unwrap(), b"new");
    assert_eq!(mounted.object("x.tmp"), None);
    assert_eq!(
        errno(fs::rename(mounted.path("gone"), mounted.path("y"))),
        libc::ENOENT
    );
}

#[test]
fn a_file_that_falls_short_of_its_announced_size_is_not_uploaded() {
    let Some(mounted) = writable() else { return };
    mounted.put("x", b"old");
    let mut file = File::create(mounted.path("x")).unwrap();
    file.set_len(1000).unwrap();
    file.write_all(b"too short").unwrap();
    assert_eq!(errno(file.sync_all()), libc::EIO);
    drop(file);
    wait_until("the close", || mounted.mount().handles() == 0);
    assert_eq!(mounted.object("x").unwrap(), b"old");
}

#[test]
fn what_is_appended_is_seen_by_a_reader_before_the_close_as_tensorboard_needs() {
    let Some(mounted) = writable() else { return };
    let mut writer = OpenOptions::new()
        .append(true)
        .create(true)
        .open(mounted.path("events"))
        .unwrap();
    writer.write_all(b"one ").unwrap();
    let mut reader = File::open(mounted.path("events")).unwrap();
    let mut seen = String::new();
    reader.read_to_string(&mut seen).unwrap();
    writer.write_all(b"two ").unwrap();
    reader.read_to_string(&mut seen).unwrap();
    assert_eq!(seen, "one two ");
    assert_eq!(mounted.object("events"), None);
    writer.sync_all().unwrap();
    assert_eq!(
        mounted.object("events").unwrap(),
        b"one two ",
        "fsync is in the lake"
    );
    writer.write_all(b"three").unwrap();
    drop(writer);
    assert_eq!(mounted.object("events").unwrap(), b"one two three");
    // And once more, behind what the lake has.
    wait_until("the close", || mounted.mount().handles() == 1);
    let mut again = OpenOptions::new()
        .append(true)
        .open(mounted.path("events"))
        .unwrap();
    again.write_all(b" four").unwrap();
    drop(again);
    assert_eq!(mounted.object("events").unwrap(), b"one two three four");
}

#[test]
fn bytes_out_of_order_are_refused_and_nothing_of_the_file_is_uploaded() {
    let Some(mounted) = writable() else { return };
    mounted.put("db", b"old database");
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(mounted.path("db"))
        .unwrap();
    assert_eq!(errno(file.write_all_at(b"new", 0)), libc::EOPNOTSUPP);
    assert_eq!(
        errno(file.seek(SeekFrom::End(0)).and_then(|_| file.write_all(b"more"))),
        libc::EIO
    );
    assert_eq!(errno(file.sync_all()), libc::EIO);
    drop(file);
    wait_until("the close", || mounted.mount().handles() == 0);
    assert_eq!(mounted.object("db").unwrap(), b"old database");
    let file = OpenOptions::new().write(true).open(mounted.path("db")).unwrap();
    assert_eq!(errno(file.set_len(3)), libc::EOPNOTSUPP);
    assert_eq!(mounted.mount().counters().get(Counter::Refusals), 2);
}

#[test]
fn sqlite_is_refused_with_an_error_and_leaves_no_damage() {
    let Some(mounted) = writable() else { return };
    let script = "import sqlite3, sys\nc = sqlite3.connect(sys.argv[1])\nc.execute('create table t (x)')\nc.commit()\n";
    let ran = Command::new("python3")
        .args(["-c", script])
        .arg(mounted.path("x.db"))
        .output();
    let Ok(ran) = ran else {
        println!("skipped: no python3");
        return;
    };
    assert!(!ran.status.success());
    let said = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert!(said.contains("OperationalError"), "{said}");
    assert!(mounted.mount().counters().get(Counter::Refusals) > 0);
    wait_until("the close", || mounted.mount().handles() == 0);
    assert!(mounted.object("x.db").is_none_or(|bytes| bytes.is_empty()));
}

#[test]
fn folders_are_made_and_removed_and_a_removed_file_stays_readable_where_it_is_open() {
    let Some(mounted) = writable() else { return };
    fs::create_dir_all(mounted.path("a/b")).unwrap();
    assert_eq!(errno(fs::create_dir(mounted.path("a"))), libc::EEXIST);
    fs::write(mounted.path("a/b/x"), b"hello").unwrap();
    assert_eq!(mounted.names("a/b"), ["x"]);
    assert_eq!(errno(fs::remove_dir(mounted.path("a/b"))), libc::ENOTEMPTY);
    wait_until("the close", || mounted.mount().handles() == 0);
    let mut open = File::open(mounted.path("a/b/x")).unwrap();
    fs::remove_file(mounted.path("a/b/x")).unwrap();
    assert_eq!(mounted.object("a/b/x"), None);
    let mut text = String::new();
    open.read_to_string(&mut text).unwrap();
    assert_eq!(text, "hello");
    assert_eq!(errno(File::open(mounted.path("a/b/x"))), libc::ENOENT);
    fs::remove_dir_all(mounted.path("a")).unwrap();
    assert!(mounted.names("").is_empty());
}

#[test]
fn what_a_lake_cannot_keep_is_refused_with_its_own_number() {
    let Some(mounted) = writable() else { return };
    mounted.put("folder/x", b"x");
    let x = mounted.path("folder/x");
    assert_eq!(
        errno(std::os::unix::fs::symlink("x", mounted.path("l"))),
        libc::EPERM
    );
    assert_eq!(errno(fs::hard_link(&x, mounted.path("h"))), libc::EPERM);
    assert_eq!(
        errno(fs::rename(mounted.path("folder"), mounted.path("other"))),
        libc::EXDEV
    );
    assert_eq!(
        errno(fs::set_permissions(&x, fs::Permissions::from_mode(0o700))),
        libc::EPERM
    );
    fs::set_permissions(&x, fs::Permissions::from_mode(0o644)).unwrap();
    assert!(mounted.mount().counters().get(Counter::Refusals) >= 4);
    assert_eq!(mounted.object("folder/x").unwrap(), b"x");
}

#[test]
fn a_shell_and_its_children_that_share_a_descriptor_upload_it_once_and_whole() {
    let Some(mounted) = writable() else { return };
    mounted.put("out", b"old");
    let script = format!(
        "(echo one; /bin/echo two; /bin/true; echo three) > {}",
        mounted.path("out").display()
    );
    assert!(
        Command::new("sh")
            .args(["-c", &script])
            .status()
            .unwrap()
            .success()
    );
    wait_until("the close", || mounted.mount().handles() == 0);
    assert_eq!(mounted.object("out").unwrap(), b"one\ntwo\nthree\n");
    assert_eq!(mounted.mount().counters().get(Counter::Uploads), 1);
}

#[test]
fn a_close_reports_that_the_upload_failed_and_fsync_staged_does_not_wait_for_it() {
    let Some(mut mounted) = fixture::mounted(|options| {
        options.writable = true;
        options.fsync = Fsync::Staged;
    }) else {
        return;
    };
    // Rust's own files do not tell what a close says.
    let script = "import os, sys\nf = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)\nos.write(f, b'bytes')\nprint('written', flush=True)\n\
                  sys.stdin.readline()\nos.fsync(f)\ntry:\n    os.close(f)\nexcept OSError as why:\n    print(why.errno)\n";
    let mut command = Command::new("python3");
    command.args(["-c", script]).arg(mounted.path("x"));
    let Ok(mut child) = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn() else {
        println!("skipped: no python3");
        return;
    };
    let mut said = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    assert_eq!(line, "written\n");
    drop(mounted.node.take());
    child.stdin.take().unwrap().write_all(b"go\n").unwrap();
    line.clear();
    said.read_line(&mut line).unwrap();
    child.wait().unwrap();
    assert!(
        [libc::EIO, libc::ETIMEDOUT].contains(&line.trim().parse().unwrap()),
        "{line}"
    );
    assert!(mounted.mount().counters().get(Counter::UploadErrors) > 0);
}
