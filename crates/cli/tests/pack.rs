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
}
