//! Damage of every kind in every file of a step: always an error that names what is hit.
#![allow(clippy::unwrap_used, reason = "a failure here is the failure of a test")]

mod fixture;

use fixture::{Spec, StepSpec, TestNode, pattern};
use forebay_checkpoint::{Dtype, Manifest, TensorBox};
use forebay_checkpoint_client::{Step, Want};
use forebay_core::{Error, Kind, Result};

const DAMAGES: [Damage; 5] = [
    Damage::ZeroHole,
    Damage::BitFlip,
    Damage::Truncation,
    Damage::Missing,
    Damage::Swapped,
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Damage {
    ZeroHole,
    BitFlip,
    Truncation,
    Missing,
    Swapped,
}

impl Damage {
    /// Does it to a file, around this byte; `other` is swapped with it.
    fn hit(self, node: &TestNode, path: &str, byte: usize, other: &str) {
        let mut bytes = node.bytes(path);
        match self {
            Self::ZeroHole => {
                let end = (byte + 4096).min(bytes.len());
                assert!(bytes[byte..end].iter().any(|byte| *byte != 0));
                bytes[byte..end].fill(0);
            }
            Self::BitFlip => bytes[byte] ^= 0x10,
            Self::Truncation => bytes.truncate(byte),
            Self::Missing => return node.delete(path),
            Self::Swapped => {
                node.put(path, &node.bytes(other));
                return node.put(other, &bytes);
            }
        }
        node.put(path, &bytes);
    }
}

/// A step of two data files, objects and a table.
fn write(node: &TestNode) -> Manifest {
    let tensors = vec![
        Spec::whole("rows", Dtype::F32, &[4, 30_000], 1).cut(0, 2),
        Spec::whole("bias", Dtype::BF16, &[100], 2),
        Spec::whole("columns", Dtype::F32, &[64, 500], 3).cut(1, 2),
    ];
    let mut spec = StepSpec::new(5, tensors);
    spec.objects = vec![
        ("rng".into(), pattern(4, 5000)),
        ("loader".into(), pattern(5, 6000)),
    ];
    spec.write(node, None)
}

/// Loads every tensor and object; the error says which.
fn load_all(step: &Step) -> Result<()> {
    for (name, tensor) in &step.manifest().content.tensors {
        let at = TensorBox::whole(&tensor.shape);
        let mut target = vec![0; (at.elements()? * tensor.dtype.bytes()) as usize];
        let want = Want {
            name,
            at,
            target: &mut target,
        };
        step.load(&mut [want], 2)?;
    }
    for name in step.manifest().content.objects.keys() {
        step.object(name, None)?;
    }
    Ok(())
}

fn told(error: &Error, damage: Damage, words: &[&str]) {
    assert!(
        matches!(error.kind(), Kind::Checksum | Kind::Corrupt),
        "{damage:?}: {error}"
    );
    let text = error.to_string();
    for word in words {
        assert!(text.contains(word), "{damage:?}: no {word} in: {text}");
    }
}

#[test]
fn damage_in_a_data_file_names_tensor_and_file() {
    let node = TestNode::start();
    for damage in DAMAGES {
        for number in [0, 1] {
            let manifest = write(&node);
            let step = node.root().step(5).unwrap();
            load_all(&step).unwrap();
            let file = &manifest.content.files[number];
            let part = &manifest.content.tensors["rows"].parts[number];
            let byte = part.bytes.range[0] as usize + 70_000;
            damage.hit(&node, &file.path, byte, &manifest.content.files[1 - number].path);
            let error = load_all(&step).unwrap_err();
            let hit = match damage {
                // Tensors are read in order of their names, and others may be hit first.
                Damage::Missing | Damage::Swapped | Damage::Truncation => "tensor: ",
                _ => "tensor: rows",
            };
            told(&error, damage, &[hit, "file: steps/5/", "bytes: "]);
            let verified = step.verify(2, &|_| {}).unwrap();
            let found = verified
                .findings
                .iter()
                .find(|finding| finding.file == file.path && finding.name.as_deref() == Some("rows"));
            assert!(found.is_some(), "{damage:?}: {:?}", verified.findings);
            let view = step.views(&["bias", "rows"], 2);
            assert!(view.is_err(), "{damage:?}");
        }
    }
}

#[test]
fn damage_in_objects_names_object_and_file() {
    let node = TestNode::start();
    for damage in DAMAGES {
        let manifest = write(&node);
        let file = &manifest.content.files[2];
        damage.hit(&node, &file.path, 6000, &manifest.content.files[0].path);
        let step = node.root().step(5).unwrap();
        let error = step
            .object("rng", None)
            .and_then(|_| step.object("loader", None))
            .unwrap_err();
        told(&error, damage, &[&file.path]);
        assert!(
            error.to_string().contains("rng") || error.to_string().contains("loader"),
            "{error}"
        );
        assert!(!step.verify(1, &|_| {}).unwrap().is_ok(), "{damage:?}");
    }
}

#[test]
fn damage_in_a_table_names_it() {
    let node = TestNode::start();
    for damage in DAMAGES {
        let manifest = write(&node);
        let table = &manifest.content.tables[0].path;
        damage.hit(&node, table, 30, &manifest.content.files[2].path);
        let step = node.root().step(5).unwrap();
        let error = load_all(&step).unwrap_err();
        told(&error, damage, &[table]);
        let verified = step.verify(1, &|_| {}).unwrap();
        assert!(
            verified.findings.iter().any(|finding| finding.file == *table),
            "{damage:?}"
        );
    }
}

#[test]
fn a_damaged_manifest_is_named_and_never_believed() {
    let node = TestNode::start();
    for damage in DAMAGES {
        let manifest = write(&node);
        StepSpec::new(6, vec![Spec::whole("w", Dtype::F32, &[9], 1)]).write(&node, None);
        let path = "steps/5/manifest-1.json";
        let byte = node.bytes(path).len() / 2;
        damage.hit(&node, path, byte, "steps/6/manifest-1.json");
        let error = node.root().step(5).unwrap_err();
        match damage {
            Damage::Missing => assert_eq!(error.kind(), Kind::NotFound, "no manifest, no step"),
            _ => told(&error, damage, &[path]),
        }
        assert_eq!(manifest.step, 5);
    }
}

#[test]
fn a_damaged_header_is_found_by_verify_and_does_not_matter_to_a_load() {
    let node = TestNode::start();
    let manifest = write(&node);
    let file = &manifest.content.files[0];
    Damage::BitFlip.hit(&node, &file.path, 20, "");
    let step = node.root().step(5).unwrap();
    load_all(&step).unwrap();
    let verified = step.verify(1, &|_| {}).unwrap();
    assert_eq!(verified.findings.len(), 1, "{:?}", verified.findings);
    assert_eq!(verified.findings[0].file, file.path);
}

#[test]
fn damage_outside_of_what_is_wanted_does_not_matter() {
    let node = TestNode::start();
    let large = Spec::whole("large", Dtype::F32, &[1024, 1024], 1);
    let manifest = StepSpec::new(5, vec![large.clone()]).write(&node, None);
    let file = &manifest.content.files[0];
    let middle = file.data_start as usize + (2 << 20);
    for damage in [Damage::BitFlip, Damage::ZeroHole, Damage::Truncation] {
        StepSpec::new(5, vec![large.clone()]).write(&node, None);
        damage.hit(&node, &file.path, middle, "");
        let step = node.root().step(5).unwrap();
        let rows = |first: u64, count: u64| {
            let mut target = vec![0; (count * 4096) as usize];
            let at = TensorBox {
                offset: vec![first, 0],
                shape: vec![count, 1024],
            };
            let want = Want {
                name: "large",
                at,
                target: &mut target,
            };
            step.load(&mut [want], 2).map(|_| target)
        };
        assert_eq!(rows(0, 512).unwrap(), large.bytes[..2 << 20], "{damage:?}");
        assert!(rows(0, 513).is_err(), "{damage:?}");
        if damage != Damage::Truncation {
            assert_eq!(rows(528, 496).unwrap(), large.bytes[528 * 4096..], "{damage:?}");
        }
    }
}

#[test]
fn a_quick_look_finds_what_is_missing_or_has_another_size() {
    let node = TestNode::start();
    let manifest = write(&node);
    let step = node.root().step(5).unwrap();
    let quick = step.verify_quick(2).unwrap();
    assert!(quick.is_ok());
    assert_eq!(quick.files, 4);
    Damage::Truncation.hit(&node, &manifest.content.files[0].path, 5000, "");
    node.delete(&manifest.content.tables[0].path);
    let quick = step.verify_quick(2).unwrap();
    let hit: Vec<&str> = quick
        .findings
        .iter()
        .map(|finding| finding.file.as_str())
        .collect();
    assert_eq!(
        hit,
        [&manifest.content.files[0].path, &manifest.content.tables[0].path]
    );
}

#[test]
fn verify_counts_every_byte_and_tells_progress() {
    let node = TestNode::start();
    write(&node);
    let step = node.root().step(5).unwrap();
    let told = std::sync::atomic::AtomicU64::new(0);
    let progress = |bytes| {
        told.fetch_add(bytes, std::sync::atomic::Ordering::Relaxed);
    };
    let verified = step.verify(3, &progress).unwrap();
    assert!(verified.is_ok(), "{:?}", verified.findings);
    let bytes = 4 * 30_000 * 4 + 200 + 64 * 500 * 4 + 11_000;
    assert_eq!((verified.bytes, verified.proved), (bytes, 2 + 1 + 2 + 2));
    assert_eq!(told.into_inner(), bytes);
    assert_eq!(step.verify_bytes(), bytes);
}
