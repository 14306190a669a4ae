//! `forebay dataset pack` on folders of this machine: what it compresses, what it refuses, and what becomes
//! of records and tokens.
#![allow(clippy::unwrap_used, reason = "tests, where a panic is the report")]

mod support;

use std::path::Path;
use std::process::Command;

use forebay_dataset::tfrecord::{Feature, decode_example};
use forebay_dataset::write::{PackFormat, PackSample, ParquetColumn, Records};
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
    assert!(refused.err.contains("tfrecord (gzip)"), "{refused:?}");
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

/// A shard of samples without keys, each with one field or none.
fn shard(format: &PackFormat, field: &str, values: &[Option<&[u8]>]) -> Vec<u8> {
    let mut shard = Vec::new();
    let mut out = |bytes: &[u8]| {
        shard.extend_from_slice(bytes);
        Ok(())
    };
    let mut writer = format.writer(Vec::new());
    writer.start(&mut out).unwrap();
    for value in values {
        let fields: Vec<_> = value.iter().map(|bytes| (field, *bytes)).collect();
        let sample = PackSample {
            key: b"",
            fields: &fields,
        };
        writer.sample(&sample, &mut out).unwrap();
    }
    writer.finish(&mut out).unwrap();
    shard
}

/// A Parquet file with one column.
fn rows(column: &str, encoding: &str, values: &[Option<&[u8]>]) -> Vec<u8> {
    let columns = vec![ParquetColumn {
        name: column.to_owned(),
        encoding: encoding.to_owned(),
    }];
    shard(&PackFormat::Parquet(columns), column, values)
}

#[test]
fn rows_without_any_value_are_refused_by_a_tar_and_kept_by_others() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let table = rows("text", "parquet:str", &[Some(b"a"), None, Some(b"b")]);
    put(dir, "raw/0.parquet", &table);
    refused(dir, "tar", &["--format", "tar"], "no values");
    refused(dir, "tar", &["--format", "tar"], "000000001");
    let torn = run(dir, &["dataset", "stat", "tar"]);
    assert!(torn.code == 1 && torn.err.contains("not whole"), "{torn:?}");
    for format in ["parquet", "tfrecord"] {
        let ran = pack(dir, format, &["--format", format]);
        assert_eq!(ran.code, 0, "{ran:?}");
        let stat = run(dir, &["--json", "dataset", "stat", format]);
        let stat: serde_json::Value = serde_json::from_str(&stat.out).unwrap();
        assert_eq!(stat["samples"], 3, "{format}");
    }
}

#[test]
fn a_pack_whose_shards_come_back_otherwise_than_written_never_looks_whole() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    put(dir, "raw/0.txt", b"zero");
    put(dir, "raw/1.txt", b"one");
    let options = ["--json", "dataset", "pack", "raw", "out", "--format", "tar"];
    let first: serde_json::Value = serde_json::from_str(&run(dir, &options).out).unwrap();
    // As a pack leaves it that ends before its commit; the record says that more was written than the lake
    // gives back.
    let out = dir.join("out");
    std::fs::remove_file(out.join("SHA256SUMS")).unwrap();
    let id = first["pack"].as_str().unwrap();
    let record = out.join(format!(".forebay-dataset/pack-{id}/shard-000000.tar.json"));
    let text = std::fs::read_to_string(&record).unwrap();
    std::fs::write(&record, text.replace(r#""samples":2"#, r#""samples":3"#)).unwrap();
    let marker = serde_json::json!({"id": id, "format": "tar", "shards": 1, "samples": 2});
    put(&out, ".forebay-dataset/packing", marker.to_string().as_bytes());
    for _ in 0..2 {
        let ran = run(dir, &options);
        assert!(ran.code == 1 && ran.err.contains("does not give back"), "{ran:?}");
        assert!(!out.join("SHA256SUMS").exists());
        let torn = run(dir, &["dataset", "stat", "out"]);
        assert!(torn.code == 1 && torn.err.contains("not whole"), "{torn:?}");
    }
}

#[test]
fn tokens_that_are_cut_in_another_way_are_another_pack() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let tokens: Vec<u8> = (0..40_u16).flat_map(u16::to_le_bytes).collect();
    put(dir, "raw/0.bin", &tokens);
    let ran = pack(dir, "out", &["--format", "mds", "--tokens", "4:4:uint16"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    let ran = pack(dir, "out", &["--format", "mds", "--tokens", "3:4:uint16"]);
    assert!(ran.code == 1 && ran.err.contains("not empty"), "{ran:?}");
}

/// The record of a shard that has one.
fn record(dir: &Path, folder: &str) -> Vec<u8> {
    let shard = std::fs::read(dir.join(folder).join("shard-000000.tfrecord")).unwrap();
    shard[12..shard.len() - 4].to_vec()
}

#[test]
fn only_records_of_a_tfrecord_stay_as_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let bare = shard(
        &PackFormat::TfRecord(Records::AsTheyAre),
        "record",
        &[Some(b"anything")],
    );
    put(dir, "bare/0.tfrecord", &bare);
    let number = 7_i64.to_le_bytes();
    put(
        dir,
        "rows/0.parquet",
        &rows("record", "parquet:int64", &[Some(&number)]),
    );
    put(dir, "files/0001.record", b"bytes");
    for source in ["bare", "rows", "files"] {
        let target = format!("{source}-out");
        let ran = run(dir, &["dataset", "pack", source, &target, "--format", "tfrecord"]);
        assert_eq!(ran.code, 0, "{ran:?}");
    }
    assert_eq!(record(dir, "bare-out"), b"anything");
    let found = record(dir, "rows-out");
    assert_eq!(decode_example(&found).unwrap()["record"], Feature::Ints(vec![7]));
    let found = record(dir, "files-out");
    let example = decode_example(&found).unwrap();
    assert_eq!(example["record"], Feature::Bytes(vec![b"bytes"]));
    assert_eq!(example["__key__"], Feature::Bytes(vec![b"0001"]));
}
