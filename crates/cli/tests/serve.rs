//! `forebay serve`: what keeps it from starting, and how it stops.

mod support;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;

use support::{Node, Ran, forebay, run, wait_for};

fn refused(ran: &Ran, expected: &str) {
    assert_eq!(ran.code, 2, "{ran:?}");
    assert!(ran.err.contains(expected), "{ran:?}");
    let lines: Vec<_> = ran.err.lines().filter(|line| line.starts_with("error")).collect();
    assert_eq!(lines.len(), 1, "one line: {ran:?}");
}

#[test]
fn a_taken_port_is_one_line_and_exit_code_2() {
    let dir = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = taken.local_addr().unwrap().to_string();
    let ran = run(dir.path(), &["serve", "--s3", &addr, "--admin", "127.0.0.1:0"]);
    refused(&ran, "is taken by another program");
}

#[test]
fn wrong_settings_are_one_line_and_exit_code_2() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("forebay.toml"), "ram = '1GiB'\nlaek = 's3://x'\n").unwrap();
    std::fs::write(dir.path().join("file"), "").unwrap();
    for (args, expected) in [
        (&["serve", "--config", "forebay.toml"][..], "unknown field `laek`"),
        (&["serve", "--config", "missing.toml"], "missing.toml"),
        (&["serve", "--lake", "ftp://x"], "s3://bucket"),
        (&["serve", "--lake", "no-such-folder"], "is not there"),
        (&["serve", "--data", "file/below"], "cannot make the folder"),
        (&["serve", "--s3", "nowhere"], "not an address"),
        (&["serve", "--ram", "lots"], "'lots' is not a size"),
        (&["serve", "--log", "a=b=c"], "not a log filter"),
        (&["serve", "--lake", "s3://me:hunter2@box"], "holds credentials"),
    ] {
        let ran = run(dir.path(), args);
        refused(&ran, expected);
        assert!(!ran.err.contains("hunter2"), "{ran:?}");
    }
}

#[test]
fn a_wrong_variable_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let ran: Ran = forebay(dir.path(), &["serve"])
        .env("FOREBAY_NVME", "lots")
        .output()
        .unwrap()
        .into();
    refused(&ran, "FOREBAY_NVME");
}

#[test]
fn mistyped_commands_get_a_suggestion() {
    let dir = tempfile::tempdir().unwrap();
    let ran = run(dir.path(), &["serv"]);
    assert_eq!(ran.code, 2);
    assert!(ran.err.contains("serve"), "{ran:?}");
}

#[test]
fn a_term_signal_stops_cleanly_and_the_keys_are_private() {
    let node = Node::start(&[]);
    let mode = std::fs::metadata(node.path("data/keys.toml"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    let keys = std::fs::read_to_string(node.path("data/keys.toml")).unwrap();
    let (code, log) = node.stop();
    assert_eq!(code, Some(0), "{log}");
    assert!(log.contains("stopped"), "{log}");
    for line in keys
        .lines()
        .filter_map(|line| line.split('"').nth(1))
        .filter(|secret| secret.len() == 40)
    {
        assert!(!log.contains(line), "a secret is in the log");
    }
}

/// A node with a reader that takes nothing of a large object, so that its request never ends.
fn node_with_a_stuck_reader(deadline: &str) -> (Node, TcpStream) {
    let dir = tempfile::tempdir().expect("the set-up works");
    std::fs::write(
        dir.path().join("f.toml"),
        "[[bucket]]\nname = 'open'\npublic_read = true\n",
    )
    .expect("the set-up works");
    std::fs::create_dir_all(dir.path().join("data/lake/open")).expect("the set-up works");
    std::fs::write(dir.path().join("data/lake/open/big"), vec![7; 48 << 20]).expect("the set-up works");
    let node = Node::start_in(dir, &["--config", "f.toml", "--shutdown", deadline]);
    let mut stream = TcpStream::connect(node.s3.trim_start_matches("http://")).expect("the set-up works");
    stream
        .write_all(b"GET /open/big HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
        .expect("the set-up works");
    let mut head = [0; 12];
    stream.read_exact(&mut head).expect("the set-up works");
    assert_eq!(&head, b"HTTP/1.1 200");
    (node, stream)
}

#[test]
fn a_request_that_does_not_end_is_cut_at_the_deadline() {
    let (node, _stream) = node_with_a_stuck_reader("300ms");
    let (code, log) = node.stop();
    assert_eq!(code, Some(0), "{log}");
    assert!(log.contains("stopped"), "{log}");
}

#[test]
fn a_second_signal_stops_at_once() {
    let (node, _stream) = node_with_a_stuck_reader("50s");
    node.signal("TERM");
    wait_for("the node to begin to stop", || {
        node.log().contains("stopping").then_some(())
    });
    let (code, log) = node.stop();
    assert_eq!(code, Some(130), "{log}");
}

#[test]
fn config_show_prints_what_holds_without_secrets() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(
        dir.path().join("f.toml"),
        "nvme = '0'\n[[key]]\nid = 'reader'\nsecret = 'hunter2hunter2'\n",
    )
    .unwrap();
    let ran = run(
        dir.path(),
        &["config", "show", "--config", "f.toml", "--ram", "128MiB"],
    );
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(
        ran.out.contains("ram = \"128MiB\"") && ran.out.contains("reader"),
        "{ran:?}"
    );
    assert!(!ran.out.contains("hunter2"), "{ran:?}");
    let ran = run(dir.path(), &["--json", "config", "show", "--config", "f.toml"]);
    let shown: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(shown["key"][0]["secret"], "(hidden)");
}

#[test]
fn the_doctor_finds_nothing_wrong_with_a_fresh_folder() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("lake")).unwrap();
    let ran = run(
        dir.path(),
        &["--json", "doctor", "--lake", "lake", "--ram", "64MiB"],
    );
    assert_eq!(ran.code, 0, "{ran:?}");
    let findings: Vec<serde_json::Value> = ran
        .out
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let fine = |check: &str| {
        findings
            .iter()
            .any(|f| f["check"] == check && f["grade"] == "fine")
    };
    for check in [
        "memfd",
        "lake is writable",
        "conditional create",
        "conditional update",
        "conditional delete",
    ] {
        assert!(fine(check), "{check}: {findings:?}");
    }
    assert_eq!(
        std::fs::read_dir(dir.path()).unwrap().count(),
        1,
        "the doctor leaves nothing behind"
    );
}

#[test]
fn the_reference_pages_are_current() {
    let pages = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference");
    let ran = run(std::path::Path::new("."), &["docs", pages, "--check"]);
    assert_eq!(ran.code, 0, "{ran:?}");
}
