//! The socket and the S3 endpoint show the same: every command by both ways, and what they print compared.

mod support;

use forebay_client::{Client, ClientOptions, Headers, Name, PutOptions, PutSource};
use serde_json::Value;
use support::{Node, NodeRoute, forebay};

/// A node with objects that were written by both ways.
fn node() -> Node {
    let node = Node::start(&[]);
    node.ok(&["bucket", "create", "demo"]);
    for (name, bytes) in [("x.txt", &b"hello\n"[..]), ("a/y.json", b"{}"), ("a/empty", b"")] {
        let path = node.path("src").join(name);
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
        std::fs::write(path, bytes).expect("a file");
    }
    for (way, target) in [
        (NodeRoute::S3Endpoint, "forebay://demo/door"),
        (NodeRoute::Socket, "forebay://demo/sock"),
    ] {
        let ran = node.run_by(way, &["cp", "-r", "src", target]);
        assert_eq!(ran.code, 0, "{ran:?}");
    }
    node
}

#[test]
fn every_command_says_the_same_by_both_ways() {
    let node = node();
    for args in [
        &["ls", "forebay://"][..],
        &["--json", "ls", "forebay://"],
        &["ls", "forebay://demo"],
        &["ls", "-r", "forebay://demo"],
        &["--json", "ls", "-r", "forebay://demo"],
        &["ls", "forebay://demo/door/a/"],
        &["stat", "forebay://demo/sock/x.txt"],
        &["--json", "stat", "forebay://demo/door/a/y.json"],
        &["cat", "forebay://demo/door/x.txt", "forebay://demo/sock/a/y.json"],
        &["du", "forebay://demo/sock"],
        &["--json", "du", "forebay://demo"],
        &["rm", "-r", "--dry-run", "forebay://demo/sock"],
        &["cp", "--dry-run", "-r", "forebay://demo/sock", "down"],
        // What goes wrong, too.
        &["stat", "forebay://demo/none"],
        &["cat", "forebay://demo/none"],
        &["rm", "forebay://demo/none"],
        &["ls", "forebay://demo/none/"],
        &["cp", "forebay://demo/none", "down"],
        &["rm", "-r", "forebay://demo"],
    ] {
        let [door, socket] = NodeRoute::ALL.map(|way| node.run_by(way, args));
        assert_eq!(door.code, socket.code, "{args:?}: {door:?} {socket:?}");
        let lines = |text: &str| {
            let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
            lines.sort(); // Several objects are copied or removed at once.
            lines
        };
        assert_eq!(lines(&door.out), lines(&socket.out), "{args:?}");
        assert_eq!(door.err, socket.err, "{args:?}");
    }
}

/// All that is kept beside the bytes, whichever way they took.
#[test]
fn headers_and_metadata_pass_the_socket() {
    let node = node();
    let stat = |way, name: &str| -> Value {
        let ran = node.run_by(way, &["--json", "stat", name]);
        assert_eq!(ran.code, 0, "{ran:?}");
        let mut stat: Value = serde_json::from_str(&ran.out).expect("JSON");
        let fields = stat.as_object_mut().expect("an object");
        fields.retain(|name, _| !matches!(name.as_str(), "location" | "modified"));
        stat
    };
    let client = Client::connect(ClientOptions {
        address: Some(node.path("forebay.sock").display().to_string()),
        ..ClientOptions::default()
    });
    let options = PutOptions {
        headers: Headers {
            content_type: Some("text/csv".into()),
            content_encoding: Some("gzip".into()),
            content_language: Some("en".into()),
            content_disposition: Some("attachment".into()),
            cache_control: Some("no-store".into()),
        },
        metadata: vec![("run".into(), "7".into())],
        ..PutOptions::default()
    };
    let name = Name::parse("demo/full").expect("a name");
    let client = client.expect("a client");
    client
        .put(&name, PutSource::Slice(b"bytes"), options)
        .expect("written");
    let full = stat(NodeRoute::S3Endpoint, "forebay://demo/full");
    assert_eq!(
        full["headers"].as_object().map(serde_json::Map::len),
        Some(5),
        "{full}"
    );
    assert_eq!(full["metadata"]["run"], "7", "{full}");
    for (way, target) in [
        (NodeRoute::S3Endpoint, "forebay://demo/by-door"),
        (NodeRoute::Socket, "forebay://demo/by-sock"),
    ] {
        let ran = node.run_by(way, &["cp", "forebay://demo/full", target]);
        assert_eq!(ran.code, 0, "{ran:?}");
        for way in NodeRoute::ALL {
            assert_eq!(stat(way, target), full, "{target} {way:?}");
        }
    }
}

/// Exit code and standard error of a command with these variables, by no way that the test has chosen.
fn run_with(node: &Node, args: &[&str], variables: &[(&str, &str)]) -> (Option<i32>, String) {
    let mut command = forebay(node.dir.path(), args);
    command
        .envs(variables.iter().copied())
        .env("FOREBAY_DATA", "data");
    let output = command.output().expect("the binary runs");
    let err = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code(), err)
}

#[test]
fn a_named_way_is_taken_and_a_typed_one_counts_first() {
    let node = node();
    let socket = node.path("forebay.sock");
    let dead = node.path("dead.sock");
    let run = |args: &[&str], variables: &[(&str, &str)]| run_with(&node, args, variables);
    let (socket, dead) = (socket.to_str().expect("UTF-8"), dead.to_str().expect("UTF-8"));
    let ls = ["ls", "forebay://demo/"];
    assert_eq!(
        run(&ls, &[("FOREBAY_NODE", socket), ("FOREBAY_S3", "127.0.0.1:1")]).0,
        Some(0)
    );
    let (code, error) = run(&ls, &[("FOREBAY_NODE", dead), ("FOREBAY_S3", &node.s3)]);
    assert_eq!(code, Some(1), "{error}");
    assert!(
        error.contains("forebay serve") && error.contains("dead.sock"),
        "{error}"
    );
    assert_eq!(
        run(
            &["ls", "forebay://demo/", "--endpoint", &node.s3],
            &[("FOREBAY_NODE", dead)]
        )
        .0,
        Some(0)
    );
    assert_eq!(
        run(
            &["ls", "forebay://demo/", "--node", socket],
            &[("FOREBAY_NODE", dead)]
        )
        .0,
        Some(0)
    );
    let address = format!("http://{}", node.s3.trim_start_matches("http://"));
    assert_eq!(run(&ls, &[("FOREBAY_NODE", &address)]).0, Some(0));
    let (code, _) = run(
        &["ls", "forebay://demo/", "--node", socket, "--endpoint", &node.s3],
        &[],
    );
    assert_eq!(code, Some(2));
}

#[test]
fn buckets_are_made_and_listed_at_the_node_that_is_named() {
    let node = node();
    let run = |args: &[&str], variables: &[(&str, &str)]| run_with(&node, args, variables);
    let socket = node.path("forebay.sock");
    let socket = socket.to_str().expect("UTF-8");
    let address = format!("http://{}", node.s3.trim_start_matches("http://"));
    let dead = ("FOREBAY_ADMIN", "127.0.0.1:1");
    for (bucket, typed, variables) in [
        ("by-socket", &[][..], &[("FOREBAY_NODE", socket)][..]),
        ("by-address", &[], &[("FOREBAY_NODE", &address)]),
        ("by-door", &[], &[("FOREBAY_S3", &node.s3)]),
        ("by-admin", &[], &[("FOREBAY_ADMIN", &node.admin)]),
        ("typed-node", &["--node", socket], &[dead]),
        ("typed-door", &["--endpoint", &node.s3], &[dead]),
    ] {
        let create = [&["bucket", "create", bucket], typed].concat();
        let (code, err) = run(&create, variables);
        assert_eq!(code, Some(0), "{bucket}: {err}");
        let (code, err) = run(&create, variables);
        assert_eq!(code, Some(1), "{bucket}: {err}");
        assert!(err.contains("exists already"), "{bucket}: {err}");
        let (code, err) = run(&[&["bucket", "ls"], typed].concat(), variables);
        assert_eq!(code, Some(0), "{bucket}: {err}");
        assert!(
            node.ok(&["bucket", "ls"])
                .contains(&format!("forebay://{bucket}/\n"))
        );
    }
    let (code, err) = run(&["bucket", "create", "nowhere"], &[dead]);
    assert_eq!(code, Some(1), "{err}");
}
