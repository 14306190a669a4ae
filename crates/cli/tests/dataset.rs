//! `forebay dataset …` on folders of this machine, and through a running node.

#![allow(
    clippy::unwrap_used,
    clippy::too_many_lines,
    reason = "tests, where a panic is the report"
)]

mod support;

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use support::relay::Relay;
use support::{Node, Ran, forebay, run};

/// Bytes that differ from file to file.
fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    let word = |i: u64| (i + seed).wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes();
    (0..bytes.div_ceil(8) as u64).flat_map(word).take(bytes).collect()
}

/// A folder of raw files: pairs of `cls` and `jpg`.
fn raw(dir: &Path, samples: u64, bytes: usize) {
    for number in 0..samples {
        let folder = dir.join(format!("raw/{}", number % 3));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(
            folder.join(format!("{number:04}.jpg")),
            pattern(number, bytes + number as usize),
        )
        .unwrap();
        std::fs::write(folder.join(format!("{number:04}.cls")), (number % 7).to_string()).unwrap();
    }
}

fn ok(dir: &Path, args: &[&str]) -> String {
    let ran = run(dir, args);
    assert_eq!(ran.code, 0, "{args:?}: {ran:?}");
    ran.out
}

fn json(dir: &Path, args: &[&str]) -> serde_json::Value {
    let text = ok(dir, &[&["--json"], args].concat());
    serde_json::from_str(&text).unwrap()
}

/// All files of a folder but our own.
fn files(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let names = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| !name.starts_with('.')).collect();
    names.sort();
    names
        .into_iter()
        .map(|name| (name.clone(), std::fs::read(dir.join(&name)).unwrap()))
        .collect()
}

/// A field of a sample, as `cat` writes it.
fn cat(dir: &Path, dataset: &str, sample: &str, field: &str) -> Vec<u8> {
    let ran = forebay(dir, &["dataset", "cat", dataset, sample, "--field", field])
        .output()
        .unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    ran.stdout
}

#[test]
fn looking_at_a_folder_leaves_nothing_in_it() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    raw(dir, 3, 100);
    let entries = || std::fs::read_dir(dir.join("raw")).unwrap().count();
    let before = entries();
    for args in [
        &["stat", "raw"][..],
        &["head", "raw"],
        &["cat", "raw", "0"],
        &["pack", "raw", "out", "--format", "tar"],
    ] {
        ok(dir, &[&["dataset"], args].concat());
        assert_eq!(entries(), before, "{args:?}");
    }
    assert_eq!(
        run(dir, &["dataset", "verify", "raw"]).code,
        1,
        "there is no manifest"
    );
    assert_eq!(entries(), before);
}

#[test]
fn raw_files_become_a_tar_that_can_be_looked_into() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    raw(dir, 30, 20_000);
    let packed = json(
        dir,
        &[
            "dataset",
            "pack",
            "raw",
            "out",
            "--format",
            "tar",
            "--shard-size",
            "200KiB",
        ],
    );
    assert_eq!(
        (packed["samples"].as_u64(), packed["shards"].as_u64()),
        (Some(30), Some(4))
    );
    let facts = json(dir, &["dataset", "index", "out"]);
    assert_eq!(facts["samples"], 30);
    assert_eq!(facts["fields"], serde_json::json!(["cls", "jpg"]));
    assert_eq!(facts["index"], "stored");
    let stat = json(dir, &["dataset", "stat", "out/"]);
    assert_eq!(stat["formats"]["tar"], 4);
    assert_eq!(stat["field_sizes"]["jpg"]["bytes_max"], 20_029);
    let head = json(dir, &["dataset", "head", "out", "-n", "2"]);
    assert_eq!(head[0]["key"], "0/0000");
    assert_eq!(head[0]["fields"][0]["preview"], "\"0\"");
    assert_eq!(cat(dir, "out", "1/0004", "jpg"), pattern(4, 20_004));
    assert_eq!(cat(dir, "out", "0", "cls"), b"0");
    let several = run(dir, &["dataset", "cat", "out", "0"]);
    assert_eq!(several.code, 2, "{several:?}");
    assert!(several.err.contains("cls, jpg"), "{several:?}");
}

#[test]
fn the_same_pack_gives_the_same_bytes_and_other_seeds_other_orders() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    raw(dir, 40, 3000);
    let pack = |target: &str, more: &[&str]| {
        ok(
            dir,
            &[
                &[
                    "dataset",
                    "pack",
                    "raw",
                    target,
                    "--format",
                    "tar",
                    "--shard-size",
                    "40KiB",
                ],
                more,
            ]
            .concat(),
        );
        files(&dir.join(target))
    };
    let plain = pack("a", &["--jobs", "1"]);
    assert_eq!(plain, pack("b", &["--jobs", "8"]));
    let mixed = pack("c", &["--shuffle", "7"]);
    assert_eq!(mixed, pack("d", &["--shuffle", "7", "--jobs", "2"]));
    assert_ne!(mixed, pack("e", &["--shuffle", "8"]));
    assert_ne!(mixed, plain);
    let keys = |target: &str| {
        let head = json(dir, &["dataset", "head", target, "-n", "1000"]);
        head.as_array()
            .unwrap()
            .iter()
            .map(|sample| sample["key"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    let mut sorted = keys("c");
    sorted.sort();
    assert_eq!(sorted, keys("a"));
    ok(
        dir,
        &["dataset", "pack", "c", "f", "--format", "tar", "--sort-by", "key"],
    );
    assert_eq!(keys("f"), sorted);
}

#[test]
fn every_format_keeps_the_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    raw(dir, 12, 5000);
    ok(dir, &["dataset", "pack", "raw", "tar", "--format", "tar"]);
    ok(
        dir,
        &[
            "dataset",
            "pack",
            "tar",
            "mds",
            "--format",
            "mds",
            "--shard-size",
            "20KiB",
        ],
    );
    assert!(dir.join("mds/index.json").is_file());
    assert_eq!(cat(dir, "mds", "11", "jpg"), pattern(11, 5011));
    let stat = json(dir, &["dataset", "stat", "mds"]);
    assert_eq!(stat["encodings"]["jpg"], "jpeg");
    ok(
        dir,
        &["dataset", "pack", "mds", "records", "--format", "tfrecord"],
    );
    assert_eq!(json(dir, &["dataset", "stat", "records"])["samples"], 12);
    ok(dir, &["dataset", "pack", "mds", "rows", "--format", "parquet"]);
    // Samples follow the folders: 0, 3, 6, 9, 1, 4, 7, 10 …
    assert_eq!(cat(dir, "rows", "7", "jpg"), pattern(10, 5010));
}

fn pack(dir: &Path, to: &str, format: &str, labels: &str) -> Ran {
    run(
        dir,
        &[
            "dataset", "pack", "photos", to, "--format", format, "--labels", labels,
        ],
    )
}

#[test]
fn labels_of_raw_files_become_a_field_in_every_format() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    for (name, text) in [
        ("photos/cat/0.jpg", "meow"),
        ("photos/cat/0.txt", "a cat"),
        ("photos/dog/1.jpg", "woof"),
        ("numbers.csv", "path,label\ncat/0.jpg,3\ndog/1.jpg,-5\n"),
        (
            "words.jsonl",
            "{\"path\": \"cat/0.jpg\", \"label\": \"tabby\"}\n{\"path\": \"cat/0.txt\", \"label\": \"tom\"}\n",
        ),
    ] {
        std::fs::create_dir_all(dir.join(name).parent().unwrap()).unwrap();
        std::fs::write(dir.join(name), text).unwrap();
    }
    let packed = |to: &str, format: &str, labels: &str| {
        let ran = pack(dir, to, format, labels);
        assert_eq!(ran.code, 0, "{ran:?}");
        json(dir, &["dataset", "stat", to])
    };
    // Names of folders are text.
    let stat = packed("tar", "tar", "folder");
    assert_eq!(stat["fields"], serde_json::json!(["jpg", "label", "txt"]));
    assert_eq!(cat(dir, "tar", "cat/0", "label"), b"cat");
    assert_eq!(cat(dir, "tar", "1", "label"), b"dog");
    let stat = packed("rows", "parquet", "folder");
    assert_eq!(stat["encodings"]["label"], "parquet:str");
    assert_eq!(cat(dir, "rows", "1", "label"), b"dog");
    // Whole numbers are numbers; files that the list does not have are no part of it.
    let stat = packed("numbers-tar", "tar", "numbers.csv");
    assert_eq!(stat["fields"], serde_json::json!(["cls", "jpg"]));
    assert_eq!(cat(dir, "numbers-tar", "dog/1", "cls"), b"-5");
    for (format, encoding) in [("mds", "int"), ("parquet", "parquet:int64")] {
        let to = format!("numbers-{format}");
        assert_eq!(packed(&to, format, "numbers.csv")["encodings"]["cls"], encoding);
        assert_eq!(cat(dir, &to, "1", "cls"), (-5_i64).to_le_bytes());
    }
    packed("numbers-records", "tfrecord", "numbers.csv");
    let example = cat(dir, "numbers-records", "0", "record");
    let feature = b"\x0a\x03cls\x12\x05\x1a\x03\x0a\x01\x03";
    assert!(
        example.windows(feature.len()).any(|part| part == feature),
        "{example:?}"
    );
    // Other labels are another pack, and a sample has one label.
    std::fs::write(dir.join("numbers.csv"), "cat/0.jpg,3\ndog/1.jpg,6\n").unwrap();
    let other = pack(dir, "numbers-tar", "tar", "numbers.csv");
    assert_eq!(other.code, 1, "{other:?}");
    let two = pack(dir, "two", "tar", "words.jsonl");
    assert!(two.code == 2 && two.err.contains("different labels"), "{two:?}");
    let shards = run(
        dir,
        &[
            "dataset", "pack", "tar", "again", "--format", "mds", "--labels", "folder",
        ],
    );
    assert_eq!(shards.code, 2, "{shards:?}");
}

#[test]
fn an_index_of_dalis_is_borrowed_when_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    raw(dir, 2, 100);
    ok(dir, &["dataset", "pack", "raw", "out", "--format", "tar"]);
    std::fs::remove_dir_all(dir.join("out/.forebay")).unwrap();
    // Of the second sample only, so that it can be told from an index of our own: header, cls, header, jpg
    // come before it.
    let at = 4 * 512;
    std::fs::write(
        dir.join("out/shard-000000.idx"),
        format!("v1.2 1\ncls {} 1 1/0001.cls", at + 512),
    )
    .unwrap();
    let shard = "out/shard-000000.tar";
    let borrowed = json(dir, &["dataset", "index", shard, "--borrow-index"]);
    assert_eq!(
        (&borrowed["samples"], &borrowed["index"]),
        (&1.into(), &"in memory".into())
    );
    assert_eq!(
        json(dir, &["dataset", "head", shard, "--borrow-index"])[0]["key"],
        "1/0001"
    );
    assert_eq!(json(dir, &["dataset", "index", shard])["samples"], 2);
}

#[test]
fn a_folder_with_something_in_it_is_not_packed_into() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    raw(dir, 3, 100);
    std::fs::create_dir_all(dir.join("full")).unwrap();
    std::fs::write(dir.join("full/mine"), b"precious").unwrap();
    let refused = run(dir, &["dataset", "pack", "raw", "full", "--format", "tar"]);
    assert_eq!(refused.code, 1, "{refused:?}");
    assert!(refused.err.contains("not empty"), "{refused:?}");
    assert_eq!(files(&dir.join("full")).len(), 1);
}

#[test]
fn a_killed_pack_is_not_readable_and_goes_on() {
    let node = Node::start(&[]);
    node.ok(&["bucket", "create", "demo"]);
    let dir = node.dir.path();
    raw(dir, 200, 60_000);
    let relay = Relay::start(&node.s3);
    let (key, secret) = first_key(&node);
    let through = |endpoint: &str, args: &[&str]| {
        let mut command = forebay(dir, &[&["--json", "dataset"], args].concat());
        command
            .env("FOREBAY_NODE", endpoint)
            .env("FOREBAY_ACCESS_KEY_ID", &key)
            .env("FOREBAY_SECRET_ACCESS_KEY", &secret);
        command
    };
    let direct = |args: &[&str]| Ran::from(through(&node.s3, args).output().unwrap());
    let out = "forebay://demo/out";
    let pack = |name, more: &[&'static str]| [&["pack", "raw", name, "--format", "tar"], more].concat();
    let small = ["--shard-size", "1MiB", "--jobs", "2"];

    // 12 MB in shards of 1 MiB, two at once: half of it is more than two shards, and never all.
    let endpoint = format!("http://{}", relay.address);
    let mut command = through(&endpoint, &pack(out, &small));
    relay.cut_off_command(&node, command.stdout(Stdio::null()), 6 << 20);
    let folder = node.path("data/lake/demo/out");
    let records = std::fs::read_dir(folder.join(".forebay")).unwrap().flatten();
    let packs = records.filter(|entry| entry.path().is_dir());
    let before: usize = packs
        .map(|pack| std::fs::read_dir(pack.path()).unwrap().count())
        .sum();
    assert!(before >= 2 && !folder.join("SHA256SUMS").exists());
    let torn = direct(&["index", out]);
    assert_eq!(torn.code, 1, "{torn:?}");
    assert!(torn.err.contains("not whole"), "{torn:?}");
    let other = direct(&pack(out, &["--shuffle", "1"]));
    assert!(other.err.contains("unfinished"), "{other:?}");
    let shards = |ran: Ran| -> (u64, u64) {
        assert_eq!(ran.code, 0, "{ran:?}");
        let found: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
        let count = |name: &str| found[name].as_u64().unwrap();
        (count("shards_written"), count("shards"))
    };
    let (written, all) = shards(direct(&pack(out, &small)));
    assert_eq!(written + before as u64, all);
    assert_eq!(shards(direct(&pack(out, &small))), (0, all));
    shards(direct(&pack("forebay://demo/fresh", &small)));
    assert_eq!(files(&folder), files(&node.path("data/lake/demo/fresh")));
    assert_eq!(direct(&["verify", out]).code, 0);
}

/// The first key of a node: access key id and secret.
fn first_key(node: &Node) -> (String, String) {
    let text = std::fs::read_to_string(node.path("data/keys.toml")).unwrap();
    let value = |name: &str| {
        let line = text.lines().find(|line| line.trim().starts_with(name)).unwrap();
        line.split('"').nth(1).unwrap().to_owned()
    };
    (value("access_key"), value("secret"))
}

#[test]
fn a_manifest_is_checked_by_coreutils_and_finds_what_changed() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    raw(dir, 6, 1000);
    std::fs::write(dir.join("raw/odd \\ name"), b"x").unwrap();
    let missing = run(dir, &["dataset", "manifest", "raw", "--check-only"]);
    assert_eq!(missing.code, 1);
    ok(dir, &["dataset", "manifest", "raw"]);
    ok(dir, &["dataset", "manifest", "raw", "--check-only"]);
    let coreutils = Command::new("sha256sum")
        .args(["--strict", "-c", "SHA256SUMS"])
        .current_dir(dir.join("raw"))
        .output();
    assert!(coreutils.unwrap().status.success());
    let good = json(dir, &["dataset", "verify", "raw"]);
    assert_eq!(
        (good["ok"].as_bool(), good["same"].as_u64()),
        (Some(true), Some(13))
    );
    std::fs::write(dir.join("raw/0/0000.jpg"), pattern(99, 1000)).unwrap();
    std::fs::remove_file(dir.join("raw/1/0001.cls")).unwrap();
    std::fs::write(dir.join("raw/new"), b"slipped in").unwrap();
    let Ran { code, out, .. } = run(dir, &["dataset", "verify", "raw"]);
    assert_eq!(code, 1);
    assert_eq!(out, "changed  0/0000.jpg\nmissing  1/0001.cls\nextra    new\n");
}

#[test]
fn a_signature_is_needed_and_must_fit() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    raw(dir, 2, 100);
    ok(dir, &["dataset", "keygen", "key"]);
    ok(dir, &["dataset", "keygen", "other"]);
    assert_eq!(run(dir, &["dataset", "keygen", "key"]).code, 1);
    ok(dir, &["dataset", "manifest", "raw"]);
    let verify = |key: &str| run(dir, &["dataset", "verify", "raw", "--public-key", key]);
    assert!(verify("key.pub").err.contains("not signed"));
    ok(dir, &["dataset", "manifest", "raw", "--sign", "key"]);
    assert_eq!(verify("key.pub").code, 0);
    assert_eq!(verify("other.pub").code, 1);
    let mut sums = std::fs::OpenOptions::new()
        .append(true)
        .open(dir.join("raw/SHA256SUMS"))
        .unwrap();
    sums.write_all(b"# more\n").unwrap();
    assert_eq!(verify("key.pub").code, 1);
    assert_eq!(
        run(dir, &["dataset", "verify", "raw", "--require-signature"]).code,
        2
    );
}

#[test]
fn a_split_divides_all_samples_and_is_the_same_again() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    raw(dir, 50, 10);
    ok(
        dir,
        &[
            "dataset",
            "pack",
            "raw",
            "tar",
            "--format",
            "tar",
            "--shard-size",
            "10KiB",
        ],
    );
    let split = |out: &str, seed: &str| {
        ok(
            dir,
            &[
                "dataset",
                "split",
                "tar",
                "--parts",
                "train=0.8,val=0.2",
                "--seed",
                seed,
                "--out",
                out,
            ],
        );
        let read = |name: &str| std::fs::read_to_string(dir.join(out).join(name)).unwrap();
        (read("train.txt"), read("val.txt"))
    };
    let (train, val) = split("a", "1");
    let numbers = |text: &str| {
        text.lines()
            .filter(|line| !line.starts_with('#'))
            .map(|line| line.parse::<u64>().unwrap())
            .collect::<Vec<_>>()
    };
    assert_eq!((numbers(&train).len(), numbers(&val).len()), (40, 10));
    let mut all = [numbers(&train), numbers(&val)].concat();
    all.sort_unstable();
    assert_eq!(all, (0..50).collect::<Vec<_>>());
    assert_eq!(split("b", "1"), (train.clone(), val));
    assert_ne!(split("c", "2").0, train);
}
