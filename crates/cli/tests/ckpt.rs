//! `forebay ckpt …` on folders of this machine, and through a running node.

#![allow(clippy::unwrap_used, reason = "tests, where a panic is the report")]

mod support;

use std::path::{Path, PathBuf};

use forebay_checkpoint::safetensors::{self, Entry};
use forebay_checkpoint::{Dtype, TensorBox};
use forebay_client::{Client, ClientOptions, SaveOptions, TensorPart};
use support::{Node, Ran, forebay, run};

/// Floats that differ from tensor to tensor.
fn floats(seed: u32, count: u64) -> Vec<u8> {
    (0..count as u32)
        .flat_map(|i| ((i + 1) as f32 * 0.25 + seed as f32).to_le_bytes())
        .collect()
}

/// A tensor of floats for a file.
struct Spec {
    name: &'static str,
    at: TensorBox,
    bytes: Vec<u8>,
}

fn spec(name: &'static str, shape: &[u64], seed: u32) -> Spec {
    Spec {
        name,
        at: TensorBox::whole(shape),
        bytes: floats(seed, shape.iter().product()),
    }
}

/// A file of tensors.
fn write(path: &Path, tensors: &[Spec]) {
    let entries: Vec<Entry<'_>> = tensors
        .iter()
        .map(|tensor| Entry {
            name: tensor.name,
            dtype: Dtype::F32,
            at: &tensor.at,
            bytes: tensor.bytes.len() as u64,
        })
        .collect();
    let mut file = safetensors::header(&entries).unwrap();
    for tensor in tensors {
        file.extend_from_slice(&tensor.bytes);
    }
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, file).unwrap();
}

/// A folder as `save_pretrained` leaves it: two files, an index, and a file that the index does not name.
fn model(dir: &Path) {
    write(
        &dir.join("hf/model-00001-of-00002.safetensors"),
        &[spec("a.weight", &[300, 70], 1)],
    );
    write(
        &dir.join("hf/model-00002-of-00002.safetensors"),
        &[spec("b.weight", &[5], 2), spec("c", &[], 3)],
    );
    write(&dir.join("hf/other.safetensors"), &[spec("other", &[1], 9)]);
    let index = r#"{"metadata": {"total_size": 84024}, "weight_map": {
        "a.weight": "model-00001-of-00002.safetensors", "b.weight": "model-00002-of-00002.safetensors",
        "c": "model-00002-of-00002.safetensors"}}"#;
    std::fs::write(dir.join("hf/model.safetensors.index.json"), index).unwrap();
}

fn ckpt(dir: &Path, args: &[&str]) -> Ran {
    run(dir, &[&["ckpt"], args].concat())
}

fn ok(dir: &Path, args: &[&str]) -> String {
    let ran = ckpt(dir, args);
    assert_eq!(ran.code, 0, "{args:?}: {ran:?}");
    ran.out
}

fn json(dir: &Path, args: &[&str]) -> serde_json::Value {
    serde_json::from_str(&ok(dir, &[&["--json"], args].concat())).unwrap()
}

/// The first data file of a step, in the folder of its attempt.
fn data_file(run: &Path, step: u64) -> PathBuf {
    let folder = run.join(format!("steps/{step}"));
    let attempts = std::fs::read_dir(folder).unwrap().flatten();
    let attempt = attempts.map(|entry| entry.path()).find(|path| path.is_dir());
    attempt.unwrap().join("rank-00000-000.safetensors")
}

#[test]
fn a_sharded_folder_becomes_a_step_and_comes_out_as_it_went_in() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    model(dir);
    let imported = json(dir, &["import", "hf", "run@7", "--prefix", "model."]);
    assert_eq!(
        (imported["tensors"].as_u64(), imported["bytes"].as_u64()),
        (Some(3), Some(84_024))
    );
    let listed = json(dir, &["ls", "run"]);
    let step = &listed["steps"][0];
    assert_eq!(
        (step["step"].as_u64(), step["state"].as_str()),
        (Some(7), Some("durable"))
    );
    assert_eq!(step["bytes"], 84_024);
    let shown = json(dir, &["show", "run@7"]);
    assert_eq!(
        shown["tensors"]["model.a.weight"]["shape"],
        serde_json::json!([300, 70])
    );
    assert_eq!(shown["metadata"]["imported_from"], "hf");
    assert!(ok(dir, &["show", "run"]).contains("model.b.weight"));
    let verified = json(dir, &["verify", "run/steps/7"]);
    assert_eq!(
        (verified["ok"].as_bool(), verified["bytes"].as_u64()),
        (Some(true), Some(84_024))
    );
    assert_eq!(json(dir, &["verify", "run", "--quick"])["proved"], "structure");

    ok(
        dir,
        &[
            "export",
            "run@7",
            "out",
            "--format",
            "hf",
            "--prefix",
            "model.",
            "--file-size",
            "80KiB",
        ],
    );
    let index = std::fs::read_to_string(dir.join("out/model.safetensors.index.json")).unwrap();
    let index: serde_json::Value = serde_json::from_str(&index).unwrap();
    assert_eq!(
        index["weight_map"]["a.weight"],
        "model-00001-of-00002.safetensors"
    );
    for name in [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    ] {
        let (out, hf) = (dir.join("out").join(name), dir.join("hf").join(name));
        assert_eq!(std::fs::read(out).unwrap(), std::fs::read(hf).unwrap(), "{name}");
    }
    let full = ckpt(dir, &["export", "run@7", "out", "--format", "hf"]);
    assert_eq!((full.code, full.err.contains("--force")), (2, true), "{full:?}");
    ok(
        dir,
        &["export", "run@7", "one.safetensors", "--format", "safetensors"],
    );
    ok(dir, &["import", "one.safetensors", "run@8"]);
    assert_eq!(json(dir, &["diff", "run@7", "@8"])["same"], true);
}

#[test]
fn a_step_is_replaced_only_on_purpose() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    write(&dir.join("x.safetensors"), &[spec("x", &[4], 1)]);
    ok(dir, &["import", "x.safetensors", "run@1"]);
    let again = ckpt(dir, &["import", "x.safetensors", "run@1"]);
    assert_eq!(again.code, 1);
    assert!(again.err.contains("there already"), "{again:?}");
    let next = json(dir, &["import", "x.safetensors", "run@1", "--supersede"]);
    assert_eq!(next["generation"], 2);
    let missing = ckpt(dir, &["show", "run@3"]);
    assert_eq!(missing.code, 1);
    assert!(missing.err.contains("newest_steps: 1"), "{missing:?}");
    assert_eq!(
        ckpt(dir, &["import", "x.safetensors", "run"]).code,
        2,
        "no step was named"
    );
}

#[test]
fn diff_says_which_tensors_changed_and_by_how_much() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    write(
        &dir.join("a.safetensors"),
        &[
            spec("same", &[8], 1),
            spec("moved", &[4, 2], 2),
            spec("gone", &[1], 3),
        ],
    );
    let mut moved = spec("moved", &[4, 2], 2);
    moved.bytes[4..8].copy_from_slice(&2.0f32.to_le_bytes());
    write(
        &dir.join("b.safetensors"),
        &[spec("same", &[8], 1), moved, spec("new", &[1], 3)],
    );
    ok(dir, &["import", "a.safetensors", "run@1"]);
    ok(dir, &["import", "b.safetensors", "run@2"]);
    let diff = json(dir, &["diff", "run@1", "run@2"]);
    assert_eq!(diff["added"], serde_json::json!(["new"]));
    assert_eq!(diff["removed"], serde_json::json!(["gone"]));
    let changed = &diff["changed"][0];
    assert_eq!(changed["name"], "moved");
    assert_eq!(
        (changed["elements"].as_u64(), changed["changed_elements"].as_u64()),
        (Some(8), Some(1))
    );
    assert_eq!(changed["abs_max"], 0.5);
    assert!(ok(dir, &["diff", "run@1", "@2"]).contains("1 (12.50 %)"));
}

#[test]
fn damage_is_found_and_named() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    write(
        &dir.join("x.safetensors"),
        &[spec("left", &[9000], 1), spec("right", &[9000], 2)],
    );
    ok(dir, &["import", "x.safetensors", "run@1"]);
    let file = data_file(&dir.join("run"), 1);
    let good = std::fs::read(&file).unwrap();
    let mut bad = good.clone();
    let last = bad.len() - 1;
    bad[last] ^= 1;
    std::fs::write(&file, &bad).unwrap();
    let found = ckpt(dir, &["--json", "verify", "run"]);
    assert_eq!(found.code, 1, "{found:?}");
    let found: serde_json::Value = serde_json::from_str(&found.out).unwrap();
    assert_eq!(found["findings"].as_array().unwrap().len(), 1);
    assert_eq!(found["findings"][0]["name"], "right");
    assert!(
        ckpt(
            dir,
            &["export", "run", "out.safetensors", "--format", "safetensors"]
        )
        .err
        .contains("right")
    );
    assert!(!dir.join("out.safetensors").exists());
    assert_eq!(
        ckpt(dir, &["verify", "run", "--quick"]).code,
        0,
        "the size is right"
    );
    std::fs::write(&file, &good[..last]).unwrap();
    let cut = ckpt(dir, &["verify", "run", "--quick"]);
    assert_eq!(cut.code, 1);
    assert!(cut.out.contains("another size"), "{cut:?}");
}

#[test]
fn nothing_is_removed_without_yes() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    write(&dir.join("x.safetensors"), &[spec("x", &[4], 1)]);
    for step in 1..=5 {
        ok(dir, &["import", "x.safetensors", &format!("run@{step}")]);
    }
    let steps = || {
        let listed = json(dir, &["ls", "run"]);
        let steps = listed["steps"].as_array().unwrap().iter();
        steps
            .map(|step| step["step"].as_u64().unwrap())
            .collect::<Vec<_>>()
    };
    let asked = ckpt(dir, &["prune", "run", "--keep-last", "1", "--keep-every", "2"]);
    assert_eq!((asked.code, asked.err.contains("--yes")), (2, true), "{asked:?}");
    assert!(asked.out.contains("would remove step 3"), "{asked:?}");
    ok(dir, &["prune", "run", "--keep-last", "1", "--dry-run"]);
    assert_eq!(steps(), [1, 2, 3, 4, 5]);
    let pruned = json(
        dir,
        &["prune", "run", "--keep-last", "1", "--keep-every", "2", "--yes"],
    );
    assert_eq!(pruned["removed"], serde_json::json!([1, 3]));
    assert_eq!(steps(), [2, 4, 5]);
    assert!(!dir.join("run/steps/3").exists());
    ok(dir, &["rm", "run@2", "@4", "--yes"]);
    assert_eq!(steps(), [5]);
    assert_eq!(ckpt(dir, &["rm", "run", "--yes"]).code, 2, "a run is not a step");
    assert_eq!(ckpt(dir, &["rm", "run@2", "--yes"]).code, 1, "it is gone");
    ok(dir, &["verify", "run@5"]);
}

#[test]
fn looking_at_a_folder_leaves_nothing_in_it() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    std::fs::create_dir(dir.join("empty")).unwrap();
    assert_eq!(ok(dir, &["ls", "empty"]), "no steps\n");
    assert_eq!(ckpt(dir, &["show", "empty"]).code, 1);
    assert_eq!(ckpt(dir, &["ls", "nowhere"]).code, 1);
    assert_eq!(std::fs::read_dir(dir.join("empty")).unwrap().count(), 0);
}

#[test]
fn both_ways_to_a_node_say_the_same() {
    let node = Node::start(&[]);
    node.ok(&["bucket", "create", "lake"]);
    let dir = node.dir.path();
    model(dir);
    let by_http = |args: &[&str]| -> String {
        let text = std::fs::read_to_string(node.path("data/keys.toml")).unwrap();
        let value = |name: &str| {
            let line = text.lines().find(|line| line.trim().starts_with(name)).unwrap();
            line.split('"').nth(1).unwrap().to_owned()
        };
        let ran = forebay(dir, &[&["--json", "ckpt"], args].concat())
            .env("FOREBAY_NODE", &node.s3)
            .env("FOREBAY_ACCESS_KEY_ID", value("access_key"))
            .env("FOREBAY_SECRET_ACCESS_KEY", value("secret"))
            .output()
            .unwrap();
        let ran = Ran::from(ran);
        assert_eq!(ran.code, 0, "{args:?}: {ran:?}");
        ran.out
    };
    by_http(&["import", "hf", "forebay://lake/run@1"]);
    for args in [
        &["ls", "forebay://lake/run"][..],
        &["show", "forebay://lake/run@1"],
        &["verify", "forebay://lake/run@1"],
        &["wait", "forebay://lake/run@1"],
    ] {
        assert_eq!(by_http(args), ok(dir, &[&["--json"], args].concat()), "{args:?}");
    }
    assert_eq!(
        ckpt(dir, &["wait", "forebay://lake/run@2"]).code,
        1,
        "nobody saves it"
    );
}

#[test]
fn a_plain_file_is_compared_with_the_digests_that_were_kept() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let path = dir.join("x.safetensors");
    write(&path, &[spec("left", &[9000], 1), spec("right", &[9000], 2)]);
    assert_eq!(json(dir, &["verify", "x.safetensors"])["proved"], "kept");
    let again = json(dir, &["verify", "x.safetensors"]);
    assert_eq!(
        (again["proved"].as_str(), again["entries"].as_u64()),
        (Some("bytes"), Some(3))
    );
    let mut bytes = std::fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let found = ckpt(dir, &["verify", "x.safetensors"]);
    assert_eq!(found.code, 1);
    assert!(
        found.out.contains("right") && !found.out.contains("left"),
        "{found:?}"
    );
    assert_eq!(ckpt(dir, &["verify", "x.safetensors", "--quick"]).code, 0);
    ok(dir, &["verify", "x.safetensors", "--renew"]);
    ok(dir, &["verify", "x.safetensors"]);
    bytes.pop();
    std::fs::write(&path, &bytes).unwrap();
    assert_eq!(
        ckpt(dir, &["verify", "x.safetensors", "--quick"]).code,
        1,
        "it is cut off"
    );
}

#[test]
fn saves_on_their_way_are_listed_and_waited_for() {
    let node = Node::start(&[]);
    node.ok(&["bucket", "create", "lake"]);
    let dir = node.dir.path();
    let client = Client::connect(ClientOptions {
        address: Some(dir.join("forebay.sock").display().to_string()),
        ..ClientOptions::default()
    })
    .unwrap();
    let run = "forebay://lake/run";
    let weight = spec("weight", &[64, 64], 1);
    let part = || TensorPart {
        name: weight.name,
        dtype: Dtype::F32,
        global_shape: &[64, 64],
        at: weight.at.clone(),
        bytes: &weight.bytes,
    };
    let state = |step: u64| {
        let listed = json(dir, &["ls", run]);
        let steps = listed["steps"].as_array().unwrap().clone();
        let found = steps.into_iter().find(|row| row["step"] == step).unwrap();
        found["state"].as_str().unwrap().to_owned()
    };
    let save = client.begin_save(SaveOptions::new(run, 5)).unwrap();
    save.write(&[part()], 1).unwrap();
    assert_eq!(state(5), "open");
    let staged = save.stage().unwrap();
    let waited = json(dir, &["wait", &format!("{run}@5")]);
    assert_eq!(waited["durable"], serde_json::json!([5]), "{:?}", staged.state);
    assert_eq!(state(5), "durable");
    ok(dir, &["verify", &format!("{run}@5")]);
    let save = client.begin_save(SaveOptions::new(run, 6)).unwrap();
    save.write(&[part()], 1).unwrap();
    save.abort().unwrap();
    assert_eq!(
        ckpt(dir, &["show", &format!("{run}@6")]).code,
        1,
        "nothing of it is visible"
    );
}
