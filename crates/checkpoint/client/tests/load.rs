//! Loading: whole tensors, boxes, views, objects; which steps there are.
#![allow(clippy::unwrap_used, reason = "a failure here is the failure of a test")]

mod fixture;

use fixture::{Spec, StepSpec, TestNode, pattern, slice};
use forebay_checkpoint::{Dtype, TensorBox};
use forebay_checkpoint_client::{Step, Want};
use forebay_core::Kind;

fn boxed(offset: &[u64], shape: &[u64]) -> TensorBox {
    TensorBox {
        offset: offset.to_vec(),
        shape: shape.to_vec(),
    }
}

/// Many small tensors, one that is cut by rows, one by columns, one that is larger than a job, nothing, a
/// scalar.
fn specs() -> Vec<Spec> {
    let mut specs: Vec<Spec> = (0..40)
        .map(|number| Spec::whole(&format!("small.{number}"), Dtype::BF16, &[number * 7 + 1], number))
        .collect();
    specs.push(Spec::whole("rows", Dtype::F32, &[64, 1000], 100).cut(0, 4));
    specs.push(Spec::whole("columns", Dtype::F32, &[300, 1000], 101).cut(1, 4));
    specs.push(Spec::whole("large", Dtype::U8, &[9 << 20], 102));
    specs.push(Spec::whole("none", Dtype::F32, &[0, 4], 103));
    specs.push(Spec::whole("scalar", Dtype::F64, &[], 104));
    specs
}

fn load(step: &Step, spec: &Spec, at: &TensorBox, threads: usize) -> (Vec<u8>, u64) {
    let bytes = at.elements().unwrap() * spec.dtype.bytes();
    let mut target = vec![0xEE; bytes as usize];
    let want = Want {
        name: &spec.name,
        at: at.clone(),
        target: &mut target,
    };
    let loaded = step.load(&mut [want], threads).unwrap();
    assert_eq!(loaded.bytes, bytes);
    (target, loaded.read_bytes)
}

#[test]
fn everything_at_once_comes_back_and_each_byte_is_read_once() {
    let node = TestNode::start();
    let specs = specs();
    StepSpec::new(7, specs.clone()).write(&node, None);
    let step = node.root().step(7).unwrap();
    for threads in [1, 3] {
        let mut targets: Vec<Vec<u8>> = specs.iter().map(|spec| vec![0xEE; spec.bytes.len()]).collect();
        let mut wants: Vec<Want<'_>> = specs
            .iter()
            .zip(&mut targets)
            .map(|(spec, target)| Want {
                name: &spec.name,
                at: TensorBox::whole(&spec.shape),
                target,
            })
            .collect();
        let loaded = step.load(&mut wants, threads).unwrap();
        let bytes: usize = specs.iter().map(|spec| spec.bytes.len()).sum();
        assert_eq!((loaded.bytes, loaded.read_bytes), (bytes as u64, bytes as u64));
        for (spec, target) in specs.iter().zip(&targets) {
            assert_eq!(*target, spec.bytes, "{}", spec.name);
        }
    }
}

#[test]
fn boxes_across_parts_are_what_a_slice_gives() {
    let node = TestNode::start();
    let specs = specs();
    StepSpec::new(7, specs.clone()).write(&node, None);
    let step = node.root().step(7).unwrap();
    for (name, at) in [
        ("rows", boxed(&[10, 0], &[30, 1000])),
        ("rows", boxed(&[15, 900], &[2, 100])),
        ("columns", boxed(&[0, 249], &[300, 2])),
        ("columns", boxed(&[299, 0], &[1, 1000])),
        ("columns", boxed(&[3, 100], &[100, 800])),
        ("large", boxed(&[100_000], &[5 << 20])),
        ("none", boxed(&[0, 1], &[0, 2])),
        ("scalar", boxed(&[], &[])),
    ] {
        let spec = specs.iter().find(|spec| spec.name == name).unwrap();
        assert_eq!(load(&step, spec, &at, 2).0, slice(spec, &at), "{name} {at:?}");
    }
    let large = specs.iter().find(|spec| spec.name == "large").unwrap();
    let (_, read) = load(&step, large, &boxed(&[1 << 20], &[10]), 1);
    assert_eq!(read, 64 << 10, "one block proves ten bytes");
}

#[test]
fn what_does_not_fit_is_refused_with_the_name_of_the_tensor() {
    let node = TestNode::start();
    StepSpec::new(7, specs()).write(&node, None);
    let step = node.root().step(7).unwrap();
    let refused = |name: &str, at: TensorBox, bytes: usize| {
        let mut target = vec![0; bytes];
        let want = Want {
            name,
            at,
            target: &mut target,
        };
        let error = step.load(&mut [want], 1).unwrap_err();
        assert!(error.to_string().contains(name), "{error}");
        error.kind()
    };
    assert_eq!(refused("absent", boxed(&[], &[]), 0), Kind::NotFound);
    assert_eq!(
        refused("rows", boxed(&[0, 0], &[1, 1000]), 3999),
        Kind::InvalidInput
    );
    assert_eq!(
        refused("rows", boxed(&[64, 0], &[1, 1000]), 4000),
        Kind::InvalidInput
    );
    assert_eq!(refused("rows", boxed(&[0], &[1]), 4), Kind::InvalidInput);
}

#[test]
fn a_view_is_mapped_where_a_tensor_lies_in_one_part() {
    let node = TestNode::start();
    let specs = specs();
    StepSpec::new(7, specs.clone()).write(&node, None);
    let step = node.root().step(7).unwrap();
    let names: Vec<&str> = specs.iter().map(|spec| spec.name.as_str()).collect();
    for (spec, view) in specs.iter().zip(step.views(&names, 2).unwrap()) {
        assert_eq!(*view, *spec.bytes, "{}", spec.name);
        assert_eq!((view.dtype, &view.shape), (spec.dtype, &spec.shape));
        let is_one = spec.parts.len() == 1 && !spec.bytes.is_empty();
        assert_eq!(view.is_mapped(), is_one, "{}", spec.name);
    }
}

#[test]
fn objects_come_back_and_belong_to_ranks() {
    let node = TestNode::start();
    let mut spec = StepSpec::new(7, specs());
    spec.objects = vec![
        ("rng".into(), pattern(3, 5000)),
        ("epoch".into(), b"12".to_vec()),
        ("empty".into(), Vec::new()),
    ];
    spec.write(&node, None);
    let step = node.root().step(7).unwrap();
    assert_eq!(step.object("rng", Some(0)).unwrap().1, pattern(3, 5000));
    assert_eq!(step.object("epoch", None).unwrap().1, b"12");
    assert!(step.object("empty", None).unwrap().1.is_empty());
    assert_eq!(step.object("rng", Some(1)).unwrap_err().kind(), Kind::NotFound);
    assert_eq!(step.object("absent", None).unwrap_err().kind(), Kind::NotFound);
}

#[test]
fn only_committed_steps_are_there_and_the_highest_generation_holds() {
    let node = TestNode::start();
    let root = node.root();
    assert_eq!(root.latest().unwrap(), None);
    assert_eq!(root.step(5).unwrap_err().kind(), Kind::NotFound);
    let one = |seed| vec![Spec::whole("w", Dtype::F32, &[10], seed)];
    StepSpec::new(9, one(1)).write(&node, None);
    StepSpec::new(10, one(2)).write(&node, None);
    let mut again = StepSpec::new(10, one(3));
    (again.generation, again.attempt) = (2, 77);
    again.write(&node, None);
    // An attempt that nobody committed, and things that are not ours.
    node.put("steps/11/a-0000000000000001/open.json", b"{}");
    node.put("steps/notes/readme.txt", b"hello");
    node.put("steps/12/manifest-1.json.tmp", b"{}");
    assert_eq!(
        root.steps().unwrap().into_iter().collect::<Vec<_>>(),
        [(9, 1), (10, 2)]
    );
    assert_eq!(root.latest().unwrap(), Some(10));
    assert_eq!(*root.step(10).unwrap().view("w").unwrap(), pattern(3, 40)[..]);
    let error = root.step(11).unwrap_err();
    assert!(error.to_string().contains("newest_steps: 10, 9"), "{error}");
}

#[test]
fn a_differential_step_reads_through_its_parent() {
    let node = TestNode::start();
    let mut specs = specs();
    let parent = StepSpec::new(1, specs.clone()).write(&node, None);
    specs[3].bytes = pattern(999, specs[3].bytes.len() as u64);
    let child = StepSpec::new(2, specs.clone()).write(&node, Some(&parent));
    assert_eq!(child.parent.unwrap().step, 1);
    let step = node.root().step(2).unwrap();
    for spec in &specs {
        let (bytes, _) = load(&step, spec, &TensorBox::whole(&spec.shape), 2);
        assert_eq!(bytes, spec.bytes, "{}", spec.name);
    }
}

#[test]
fn a_step_that_was_pruned_meanwhile_is_told_as_gone() {
    let node = TestNode::start();
    let specs = specs();
    let manifest = StepSpec::new(1, specs.clone()).write(&node, None);
    StepSpec::new(2, specs).write(&node, None);
    let step = node.root().step(1).unwrap();
    node.delete("steps/1/manifest-1.json");
    for file in &manifest.content.files {
        node.delete(&file.path);
    }
    node.delete(&manifest.content.tables[0].path);
    let error = step.view("large").unwrap_err();
    assert_eq!(error.kind(), Kind::NotFound, "{error}");
    assert!(error.to_string().contains("newest_steps: 2"), "{error}");
}
