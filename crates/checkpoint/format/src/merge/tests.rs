//! Merging: what goes in comes out, once; what does not fit together is refused by name.

use serde_json::json;

use super::*;
use crate::manifest::{Alarm, AlarmKind, DataFile, ObjectKind, Part, TableFile};
use crate::{Dtype, Manifest, names};

const STEP: u64 = 40;
const WORLD: u32 = 2;

fn name() -> String {
    names::attempt(7)
}

fn attempt(name: &str) -> Attempt<'_> {
    Attempt {
        step: STEP,
        name,
        world_size: WORLD,
    }
}

/// A rank that has rows `2 * rank..2 * rank + 2` of `w`, the replica `b`, and an object.
fn record(rank: u32) -> Record {
    let path = |name: &str| names::attempt_file(STEP, &self::name(), name);
    let file = DataFile {
        path: path(&names::data_file(rank, 0)),
        bytes: 4096 + 12,
        data_start: 4096,
        header_blake3: digest(0),
    };
    let objects = DataFile {
        path: path(&names::objects_file(rank)),
        bytes: 3,
        data_start: 0,
        header_blake3: String::new(),
    };
    let table = TableFile {
        path: path(&names::table_file(rank)),
        bytes: 36,
        blake3: digest(1),
    };
    let mut content = Content {
        files: vec![file, objects],
        tables: vec![table],
        tree: Tree::from(&json!({ "model": { format!("of{rank}"): rank }, "step": STEP + u64::from(rank) })),
        ..Content::default()
    };
    content.metadata.insert("loss".into(), json!(f64::from(rank)));
    let rows = tensor(
        vec![4, 2],
        vec![u64::from(rank) * 2, 0],
        vec![2, 2],
        [4096, 4104],
        10 + rank,
    );
    content.tensors.insert("w".into(), rows);
    let replica = tensor(vec![4], vec![0], vec![4], [4104, 4108], 20);
    content.tensors.insert("b".into(), replica);
    let object = Object {
        ranks: vec![rank],
        kind: ObjectKind::Json,
        bytes: extent(1, [0, 3], 30),
    };
    content.objects.insert("lr".into(), vec![object]);
    Record::new(STEP, &name(), rank, WORLD, content)
}

fn tensor(shape: Vec<u64>, offset: Vec<u64>, part: Vec<u64>, range: [u64; 2], seed: u32) -> Tensor {
    let dtype = if shape.len() == 1 { Dtype::U8 } else { Dtype::BF16 };
    let at = TensorBox { offset, shape: part };
    Tensor {
        dtype,
        shape,
        parts: vec![Part {
            at,
            bytes: extent(0, range, seed),
            sha256: None,
        }],
    }
}

fn extent(file: u32, range: [u64; 2], seed: u32) -> Extent {
    Extent {
        file,
        range,
        blake3: digest(seed),
        table: 0,
        first_block: 0,
        encoding: None,
    }
}

fn digest(seed: u32) -> String {
    format!("{seed:064x}")
}

#[test]
fn records_in_any_order_become_one_manifest() {
    let merged = merge(attempt(&name()), vec![record(1), record(0)]).unwrap();
    assert_eq!(
        merged,
        merge(attempt(&name()), vec![record(0), record(1)]).unwrap()
    );
    assert_eq!(merged.files.len(), 4);
    assert_eq!(merged.tables.len(), 2);
    let rows = &merged.tensors["w"].parts;
    assert_eq!(
        rows[1].bytes.file, 2,
        "the first file of rank 1 comes after both of rank 0"
    );
    assert_eq!(rows[1].bytes.table, 1);
    assert_eq!(merged.metadata["loss"], json!(0.0), "that of rank 0 counts");
    assert_eq!(
        merged.tree.value().unwrap(),
        json!({ "model": { "of0": 0, "of1": 1 }, "step": STEP })
    );
    let mut manifest = Manifest::new(STEP, 1, &name(), WORLD, merged);
    assert!(Manifest::decode(&manifest.encode().unwrap()).is_ok());
}

#[test]
fn what_ranks_have_alike_is_named_once() {
    let merged = merge(attempt(&name()), vec![record(0), record(1)]).unwrap();
    assert_eq!(merged.tensors["b"].parts.len(), 1);
    assert_eq!(merged.objects["lr"].len(), 1);
    assert_eq!(merged.objects["lr"][0].ranks, [0, 1]);
    let mut other = record(1);
    other.content.objects.get_mut("lr").unwrap()[0].bytes.blake3 = digest(31);
    let merged = merge(attempt(&name()), vec![record(0), other]).unwrap();
    assert_eq!(merged.objects["lr"].len(), 2, "other bytes are another object");
}

#[test]
fn replicas_that_differ_are_refused_by_name() {
    let mut other = record(1);
    other.content.tensors.get_mut("b").unwrap().parts[0].bytes.blake3 = digest(21);
    let error = merge(attempt(&name()), vec![record(0), other]).unwrap_err();
    assert_eq!(error.kind(), Kind::InvalidInput);
    let text = error.to_string();
    assert!(text.contains("tensor: b") && text.contains("rank: 1"), "{text}");
    let mut other = record(1);
    other.content.tensors.get_mut("b").unwrap().dtype = Dtype::I8;
    assert!(merge(attempt(&name()), vec![record(0), other]).is_err());
}

#[test]
fn a_missing_rank_is_named() {
    let error = merge(attempt(&name()), vec![record(0)]).unwrap_err();
    assert_eq!(error.kind(), Kind::Timeout);
    assert!(error.to_string().contains("ranks: 1"), "{error}");
    assert_eq!(missing_ranks(5, &[1, 3].into()), "0, 2, 4");
    assert!(missing_ranks(100, &BTreeSet::new()).ends_with("31 and 68 more"));
}

#[test]
fn a_rank_twice_or_of_another_attempt_is_refused() {
    assert!(merge(attempt(&name()), vec![record(0), record(1), record(1)]).is_err());
    let mut foreign = record(1);
    foreign.step += 1;
    assert_eq!(
        merge(attempt(&name()), vec![record(0), foreign])
            .unwrap_err()
            .kind(),
        Kind::Conflict
    );
    let mut larger = record(1);
    larger.rank = 2;
    assert!(merge(attempt(&name()), vec![record(0), larger]).is_err());
}

#[test]
fn alarms_of_all_ranks_are_kept() {
    let alarm = Alarm {
        kind: AlarmKind::NotFinite,
        name: "w".into(),
        message: "3 of 4".into(),
    };
    let mut other = record(1);
    other.content.alarms.push(alarm.clone());
    let merged = merge(attempt(&name()), vec![record(0), other]).unwrap();
    assert_eq!(merged.alarms, [alarm]);
}
