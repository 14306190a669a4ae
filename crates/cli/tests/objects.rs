//! Objects through a running node: what people type and what they get.

mod support;

use std::path::Path;

use support::{Node, NodeRoute, run};

/// Bytes that no two offsets share.
fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes.div_ceil(8))
        .flat_map(|i| (i as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes())
        .take(bytes)
        .collect()
}

fn write(path: &Path, bytes: &[u8]) {
    std::fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
    std::fs::write(path, bytes).expect("a file");
    // Long ago, so that a copy made now is later than the file by whole seconds.
    age(path, 60);
}

fn age(path: &Path, seconds: u64) {
    let file = std::fs::File::options().append(true).open(path).expect("a file");
    let written = file.metadata().and_then(|meta| meta.modified()).expect("a date");
    file.set_modified(written - std::time::Duration::from_secs(seconds))
        .expect("a new date");
}

fn node_with_data(way: NodeRoute) -> Node {
    let node = Node::start(&[]).by(way);
    node.ok(&["bucket", "create", "demo"]);
    write(&node.path("src/x"), b"hello\n");
    write(&node.path("src/a/y"), &pattern(3_000_000));
    write(&node.path("src/a/empty"), b"");
    node
}

#[test]
fn a_folder_goes_up_and_comes_back_the_same() {
    for way in NodeRoute::ALL {
        let node = node_with_data(way);
        let up = node.ok(&["cp", "--recursive", "src", "forebay://demo/p"]);
        assert!(up.contains("copied 3, already there 0, failed 0"), "{up}");
        let again = node.ok(&["cp", "--recursive", "src", "forebay://demo/p"]);
        assert!(again.contains("copied 0, already there 3"), "{again}");
        node.ok(&["cp", "--recursive", "forebay://demo/p", "back"]);
        for name in ["x", "a/y", "a/empty"] {
            let (there, back) = (node.path("src").join(name), node.path("back").join(name));
            assert_eq!(
                std::fs::read(there).unwrap(),
                std::fs::read(back).unwrap(),
                "{name}"
            );
        }
        let again = node.ok(&["cp", "--recursive", "forebay://demo/p/", "back"]);
        assert!(again.contains("copied 0, already there 3"), "{again}");
        let left: Vec<_> = std::fs::read_dir(node.path("back"))
            .unwrap()
            .flatten()
            .map(|e| e.file_name())
            .collect();
        assert_eq!(left.len(), 2, "no temporary files: {left:?}");
    }
}

/// It said "already there" whenever the target was no older than the source.
#[test]
fn other_bytes_of_the_same_size_are_copied_again() {
    for way in NodeRoute::ALL {
        let node = node_with_data(way);
        node.ok(&["cp", "src/x", "forebay://demo/x"]);
        // In the same second as the copy.
        std::fs::write(node.path("src/x"), b"HELLO\n").unwrap();
        node.ok(&["cp", "src/x", "forebay://demo/x"]);
        assert_eq!(node.ok(&["cat", "forebay://demo/x"]), "HELLO\n");
        // A newer file of other bytes is not what the object is.
        node.ok(&["cp", "forebay://demo/x", "down"]);
        std::fs::write(node.path("down"), b"mine!\n").unwrap();
        node.ok(&["cp", "forebay://demo/x", "down"]);
        assert_eq!(std::fs::read(node.path("down")).unwrap(), b"HELLO\n");
        // Two objects of one size.
        node.ok(&["cp", "--force", "forebay://demo/x", "forebay://demo/copy"]);
        std::fs::write(node.path("src/x"), b"other\n").unwrap();
        node.ok(&["cp", "src/x", "forebay://demo/x"]);
        node.ok(&["cp", "forebay://demo/x", "forebay://demo/copy"]);
        assert_eq!(node.ok(&["cat", "forebay://demo/copy"]), "other\n");
    }
}

#[test]
fn an_upload_has_the_content_type_of_its_name() {
    for way in NodeRoute::ALL {
        let node = node_with_data(way);
        write(&node.path("page.html"), b"<p>");
        node.ok(&["cp", "page.html", "forebay://demo/"]);
        node.ok(&["cp", "forebay://demo/page.html", "forebay://demo/again"]);
        for name in ["page.html", "again"] {
            let stat = node.ok(&["stat", &format!("forebay://demo/{name}")]);
            assert!(stat.contains("content-type: text/html"), "{name}: {stat}");
        }
    }
}

#[test]
fn a_large_object_comes_down_in_parts() {
    for way in NodeRoute::ALL {
        let node = node_with_data(way);
        let bytes = pattern((65 << 20) + 17);
        write(&node.path("big"), &bytes);
        node.ok(&["cp", "big", "forebay://demo/"]);
        node.ok(&["cp", "forebay://demo/big", "down"]);
        assert!(std::fs::read(node.path("down")).unwrap() == bytes);
    }
}

#[test]
fn objects_are_listed_shown_added_up_and_printed() {
    for way in NodeRoute::ALL {
        let node = node_with_data(way);
        node.ok(&["cp", "-r", "src", "forebay://demo/p"]);
        assert_eq!(node.ok(&["ls", "forebay://"]).trim(), "forebay://demo/");
        let level = node.ok(&["--json", "ls", "forebay://demo/p/"]);
        let lines: Vec<serde_json::Value> = level
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        let names: Vec<_> = lines
            .iter()
            .map(|line| line["location"].as_str().unwrap())
            .collect();
        assert_eq!(names, ["forebay://demo/p/a/", "forebay://demo/p/x"]);
        assert_eq!(lines[1]["bytes"], 6);
        assert_eq!(node.ok(&["ls", "-r", "forebay://demo"]).lines().count(), 3);
        assert_eq!(node.ok(&["cat", "forebay://demo/p/x", "src/x"]), "hello\nhello\n");
        let stat: serde_json::Value =
            serde_json::from_str(&node.ok(&["--json", "stat", "forebay://demo/p/x"])).unwrap();
        assert_eq!(
            (&stat["bytes"], &stat["etag"]),
            (&6.into(), &"b1946ac92492d2347c6235b4d2611184".into())
        );
        let du: serde_json::Value =
            serde_json::from_str(&node.ok(&["--json", "du", "forebay://demo/p"])).unwrap();
        assert_eq!((&du["objects"], &du["bytes"]), (&3.into(), &3_000_006.into()));
    }
}

#[test]
fn removing_many_needs_a_yes() {
    for way in NodeRoute::ALL {
        let node = node_with_data(way);
        node.ok(&["cp", "-r", "src", "forebay://demo/p"]);
        let refused = node.run(&["rm", "-r", "forebay://demo/p"]);
        assert_eq!(refused.code, 2);
        assert!(refused.err.contains("--yes"), "{refused:?}");
        let dry = node.ok(&["rm", "-r", "--dry-run", "forebay://demo/p"]);
        assert_eq!(
            dry.lines()
                .filter(|line| line.starts_with("would remove"))
                .count(),
            3,
            "{dry}"
        );
        assert_eq!(node.ok(&["ls", "-r", "forebay://demo"]).lines().count(), 3);
        node.ok(&["rm", "forebay://demo/p/x"]);
        assert_eq!(node.run(&["rm", "forebay://demo/p/x"]).code, 1);
        node.ok(&["rm", "-r", "--yes", "forebay://demo/p"]);
        assert_eq!(node.ok(&["ls", "-r", "forebay://demo"]), "");
    }
}

#[test]
fn a_dry_copy_changes_nothing() {
    for way in NodeRoute::ALL {
        let node = node_with_data(way);
        let dry = node.ok(&["cp", "-r", "--dry-run", "src", "forebay://demo/p"]);
        assert!(dry.contains("would copy 3"), "{dry}");
        assert_eq!(node.ok(&["ls", "-r", "forebay://demo"]), "");
    }
}

#[test]
fn mistakes_have_clear_words_and_codes() {
    for way in NodeRoute::ALL {
        let node = node_with_data(way);
        for (args, code, expected) in [
            (&["cp", "src", "forebay://demo/"][..], 2, "--recursive"),
            (&["cp", "missing", "forebay://demo/"], 1, "missing"),
            (
                &["cat", "forebay://demo/none"],
                1,
                "forebay://demo/none is not there",
            ),
            (&["ls", "forebay://demo/none/"], 1, "nothing is there"),
            (&["ls", "forebay://absent-bucket/"], 1, "bucket"),
            (&["ls", "ftp://x"], 2, "forebay://bucket/key"),
            (&["cat", "forebay://demo"], 2, "names no object"),
            (&["cache", "warm", "absent-bucket"], 1, "no such bucket"),
            (&["jobs", "show", "nope"], 1, "no such job"),
        ] {
            let ran = node.run(args);
            assert_eq!(ran.code, code, "{args:?}: {ran:?}");
            assert!(ran.err.contains(expected), "{args:?}: {ran:?}");
        }
        let elsewhere = tempfile::tempdir().unwrap();
        let ran = run(
            elsewhere.path(),
            &["ls", "forebay://demo/", "--endpoint", &node.s3],
        );
        assert_eq!(ran.code, 2);
        assert!(ran.err.contains("FOREBAY_ACCESS_KEY_ID"), "{ran:?}");
        let ran = node.run(&["ls", "forebay://demo/", "--endpoint", "http://[::1]:1"]);
        assert_eq!(ran.code, 1);
        assert!(ran.err.contains("no node at http://[::1]:1"), "{ran:?}");
        let ran = run(elsewhere.path(), &["status", "--admin", "127.0.0.1:1"]);
        assert_eq!(ran.code, 1);
        assert!(ran.err.contains("forebay serve"), "{ran:?}");
    }
}

#[test]
fn a_warm_job_fills_the_cache_and_evict_empties_it() {
    let node = node_with_data(NodeRoute::S3Endpoint);
    // Put past the node, as another tool would, so that nothing of it is cached.
    write(&node.path("data/lake/demo/w/one"), &pattern(200_000));
    write(&node.path("data/lake/demo/w/two"), &pattern(100_000));
    let warm = node.ok(&["--json", "cache", "warm", "demo/w/", "--wait"]);
    let job: serde_json::Value = serde_json::from_str(&warm).unwrap();
    assert_eq!(
        (&job["state"], &job["objects_done"], &job["bytes_done"]),
        (&"done".into(), &2.into(), &300_000.into())
    );
    let status =
        |node: &Node| -> serde_json::Value { serde_json::from_str(&node.ok(&["--json", "status"])).unwrap() };
    let warmed = status(&node);
    assert!(
        warmed["ram"]["used_bytes"].as_u64().unwrap() >= 300_000,
        "{warmed}"
    );
    assert_eq!(warmed["ready"], true);
    let read_before = warmed["lakes"][0]["read_bytes"].clone();
    node.ok(&["cat", "forebay://demo/w/one"]);
    assert_eq!(
        status(&node)["lakes"][0]["read_bytes"],
        read_before,
        "a warm read costs the lake nothing"
    );
    // Somebody else on the host, who cannot read the key file.
    let stranger = tempfile::tempdir().unwrap();
    for args in [
        &["cache", "evict", "forebay://demo/w/", "--admin", &node.admin][..],
        &["jobs", "stop", "1", "--admin", &node.admin],
    ] {
        let ran = run(stranger.path(), args);
        assert_eq!(ran.code, 1, "{ran:?}");
        assert!(ran.err.contains("FOREBAY_ADMIN_TOKEN"), "{ran:?}");
    }
    assert_eq!(
        node.ok(&["--json", "jobs"]).lines().count(),
        1,
        "nothing was begun"
    );
    node.ok(&["cache", "evict", "forebay://demo/w/", "--wait"]);
    assert_eq!(status(&node)["ram"]["used_bytes"], 0);
    assert_eq!(node.ok(&["--json", "jobs"]).lines().count(), 2);
}
