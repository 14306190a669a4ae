//! `forebay dataset pack` on folders of this machine: what it compresses, and what it refuses.
#![allow(clippy::unwrap_used, reason = "tests, where a panic is the report")]

mod support;

use std::path::Path;
use std::process::Command;

use support::{Ran, run};

fn put(dir: &Path, name: &str, bytes: &[u8]) {
    let path = dir.join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, bytes).unwrap();
}

fn pack(dir: &Path, to: &str, options: &[&str]) -> Ran {
    run(dir, &[&["dataset", "pack", "raw", to], options].concat())
}

#[test]
fn a_tfrecord_is_compressed_if_that_is_asked_for_and_is_read_again() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    for number in 0..20 {
        put(dir, &format!("raw/{number:02}.txt"), &[b'a' + number; 5000]);
    }
    let plain = pack(dir, "plain", &["--format", "tfrecord"]);
    assert_eq!(plain.code, 0, "{plain:?}");
    let options = ["--format", "tfrecord", "--compress", "gzip"];
    let packed = pack(dir, "packed", &options);
    assert_eq!(packed.code, 0, "{packed:?}");
    let shard = dir.join("packed/shard-000000.tfrecord.gz");
    let unpacked = Command::new("gzip").arg("-dc").arg(shard).output().unwrap();
    assert_eq!(
        unpacked.stdout,
        std::fs::read(dir.join("plain/shard-000000.tfrecord")).unwrap()
    );
    let stat = run(dir, &["--json", "dataset", "stat", "packed"]);
    let stat: serde_json::Value = serde_json::from_str(&stat.out).unwrap();
    assert_eq!(stat["samples"], 20);
    let again = run(dir, &["dataset", "pack", "packed", "tar", "--format", "tar"]);
    assert_eq!(again.code, 0, "{again:?}");
    let refused = pack(dir, "other", &["--format", "tar", "--compress", "gzip"]);
    assert_eq!(refused.code, 2, "{refused:?}");
    assert!(refused.err.contains("--format tfrecord"), "{refused:?}");
    let refused = pack(dir, "other", &["--format", "tfrecord", "--compress", "zstd"]);
    assert!(refused.code == 2 && refused.err.contains("gzip"), "{refused:?}");
}

#[test]
fn a_compressed_mds_pack_that_was_stopped_goes_on_with_the_shards_that_are_missing() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    for number in 0..40_u8 {
        put(dir, &format!("raw/{number:02}.txt"), &[b'a' + number % 20; 5000]);
    }
    let options = ["--format", "mds", "--compress", "zstd", "--shard-size", "64KiB"];
    let json = |ran: Ran| -> serde_json::Value {
        assert_eq!(ran.code, 0, "{ran:?}");
        serde_json::from_str(&ran.out).unwrap()
    };
    let packed = || {
        let args = [&["--json", "dataset", "pack", "raw", "out"][..], &options].concat();
        json(run(dir, &args))
    };
    let first = packed();
    let out = dir.join("out");
    let index = std::fs::read_to_string(out.join("index.json")).unwrap();
    let shard = std::fs::read(out.join("shard.00001.mds.zstd")).unwrap();
    // As a pack leaves it that ends before its second shard does.
    for name in ["SHA256SUMS", "index.json", "shard.00001.mds.zstd"] {
        std::fs::remove_file(out.join(name)).unwrap();
    }
    let marker =
        serde_json::json!({"id": first["pack"], "format": "mds", "shards": first["shards"], "samples": 40});
    put(&out, ".forebay-dataset/packing", marker.to_string().as_bytes());
    let torn = run(dir, &["dataset", "stat", "out"]);
    assert!(torn.code == 1 && torn.err.contains("not whole"), "{torn:?}");
    assert_eq!(packed()["shards_written"], 1);
    assert_eq!(std::fs::read_to_string(out.join("index.json")).unwrap(), index);
    assert_eq!(std::fs::read(out.join("shard.00001.mds.zstd")).unwrap(), shard);
    let stat = json(run(dir, &["--json", "dataset", "stat", "out"]));
    assert_eq!(stat["samples"], 40);
}

/// A pack that must be refused, and why.
fn refused(dir: &Path, to: &str, options: &[&str], why: &str) {
    let ran = pack(dir, to, options);
    assert_eq!(ran.code, 2, "{ran:?}");
    assert!(ran.err.contains(why), "{ran:?}");
    assert!(!dir.join(to).join("SHA256SUMS").exists(), "{to}");
}

#[test]
fn files_that_would_be_one_field_of_a_sample_are_refused_in_every_format() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    put(dir, "raw/a.jpg", b"small");
    put(dir, "raw/a.JPG", b"LARGE");
    for format in ["tar", "tfrecord", "mds", "parquet"] {
        refused(dir, format, &["--format", format], "a field twice");
    }
}

#[test]
fn files_of_a_sample_with_others_between_them_are_refused() {
    for names in [["img", "img-old.jpg", "img.jpg"], ["a.cls", "a.d/x.jpg", "a.jpg"]] {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        for name in names {
            put(dir, &format!("raw/{name}"), b"x");
        }
        refused(dir, "out", &["--format", "mds"], "would be two samples");
    }
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    for name in ["img", "img-old.jpg", "imgs/img.jpg", "imga.jpg"] {
        put(dir, &format!("raw/{name}"), b"x");
    }
    let ran = pack(dir, "out", &["--format", "tfrecord"]);
    assert_eq!(ran.code, 0, "{ran:?}");
}

#[test]
fn samples_with_one_key_that_would_follow_each_other_in_a_tar_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    for (folder, field) in [("one", "jpg"), ("two", "cls")] {
        put(dir, &format!("{folder}/0001.{field}"), field.as_bytes());
        let packed = run(
            dir,
            &[
                "dataset",
                "pack",
                folder,
                &format!("{folder}-tar"),
                "--format",
                "tar",
            ],
        );
        assert_eq!(packed.code, 0, "{packed:?}");
        let shard = std::fs::read(dir.join(format!("{folder}-tar/shard-000000.tar"))).unwrap();
        put(dir, &format!("both/{folder}.tar"), &shard);
    }
    let ran = run(dir, &["dataset", "pack", "both", "one-of-two", "--format", "tar"]);
    assert_eq!(ran.code, 2, "{ran:?}");
    assert!(ran.err.contains("two samples with one key"), "{ran:?}");
    let ran = run(
        dir,
        &["dataset", "pack", "both", "records", "--format", "tfrecord"],
    );
    assert_eq!(ran.code, 0, "{ran:?}");
}
