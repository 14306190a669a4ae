//! Steps whose parts are stored as differences from their parents: loaded, proved, exported, compared, pruned
//! like any other.
#![allow(clippy::unwrap_used, reason = "a failure here is the failure of a test")]

mod fixture;

use fixture::{Spec, StepSpec, TestNode, slice};
use forebay_checkpoint::header::Header;
use forebay_checkpoint::manifest::DEPTH_MAX;
use forebay_checkpoint::retention::Policy;
use forebay_checkpoint::{Dtype, Manifest, TensorBox};
use forebay_checkpoint_client::{
    Change, Compared, ExportOptions, Layout, PruneOptions, PruneSelection, Step, StepDetail, Want,
};
use forebay_core::{Kind, Result};

/// Later than anything that a test writes.
const LATER_MS: u64 = 4_000_000_000_000;
/// Of the largest tensor: more than three frames.
const LARGE_BYTES: u64 = (3 << 20) + 4000;

/// Cut by rows, by columns, more than a job, nothing, a scalar, pairs of numbers.
fn specs() -> Vec<Spec> {
    vec![
        Spec::whole("rows", Dtype::F32, &[64, 2000], 1).cut(0, 4),
        Spec::whole("columns", Dtype::BF16, &[300, 1000], 2).cut(1, 4),
        Spec::whole("large", Dtype::F32, &[LARGE_BYTES / 4], 3),
        Spec::whole("wide", Dtype::F64, &[40_000], 4),
        Spec::whole("pairs", Dtype::C64, &[300], 5),
        Spec::whole("bytes", Dtype::U8, &[777], 6),
        Spec::whole("none", Dtype::F32, &[0, 4], 7),
        Spec::whole("scalar", Dtype::F64, &[], 8),
    ]
}

/// The same a step later: the lowest byte of every element differs.
fn later(specs: &[Spec], step: u64) -> Vec<Spec> {
    let mut specs = specs.to_vec();
    for spec in &mut specs {
        let element_bytes = spec.dtype.bytes() as usize;
        for (number, element) in spec.bytes.chunks_mut(element_bytes).enumerate() {
            element[0] = element[0].wrapping_add((number as u64 % 3 + step % 5 + 1) as u8);
        }
    }
    specs
}

/// Steps 1 to `count`: the first plain, each other one the difference from the one before.
fn chain(node: &TestNode, count: u64) -> (Vec<Manifest>, Vec<Spec>) {
    let mut now = specs();
    let mut manifests = vec![StepSpec::new(1, now.clone()).write(node, None)];
    for step in 2..=count {
        let next = later(&now, step);
        let mut spec = StepSpec::new(step, next.clone());
        spec.bases = std::mem::replace(&mut now, next);
        manifests.push(spec.write(node, manifests.last()));
    }
    (manifests, now)
}

fn load(step: &Step, name: &str, at: &TensorBox, threads: usize) -> Result<(Vec<u8>, u64)> {
    let dtype = step.tensor(name)?.dtype;
    let mut target = vec![0xEE; (at.elements()? * dtype.bytes()) as usize];
    let want = Want {
        name,
        at: at.clone(),
        target: &mut target,
    };
    let loaded = step.load(&mut [want], threads)?;
    Ok((target, loaded.read_bytes))
}

fn boxed(offset: &[u64], shape: &[u64]) -> TensorBox {
    TensorBox {
        offset: offset.to_vec(),
        shape: shape.to_vec(),
    }
}

#[test]
fn the_longest_chain_gives_every_tensor_and_box() {
    let node = TestNode::start();
    let (manifests, specs) = chain(&node, 1 + DEPTH_MAX as u64);
    let step = node.root().step(1 + DEPTH_MAX as u64).unwrap();
    let large = &manifests.last().unwrap().content.tensors["large"].parts[0].bytes;
    assert_eq!(large.depth(), DEPTH_MAX);
    for spec in &specs {
        for threads in [1, 3] {
            let whole = TensorBox::whole(&spec.shape);
            let (bytes, read_bytes) = load(&step, &spec.name, &whole, threads).unwrap();
            assert_eq!(bytes, spec.bytes, "{}", spec.name);
            let parts = &step.tensor(&spec.name).unwrap().parts;
            let all: u64 = parts.iter().map(|part| part.bytes.chain_bytes()).sum();
            assert!(
                spec.name == "columns" || read_bytes == all,
                "{}: {read_bytes}",
                spec.name
            );
        }
    }
    let large = specs.iter().position(|spec| spec.name == "large").unwrap();
    let elements = LARGE_BYTES / 4;
    for (number, at) in [
        (0, boxed(&[10, 0], &[30, 2000])),
        (0, boxed(&[15, 1900], &[2, 100])),
        (1, boxed(&[0, 249], &[300, 2])),
        (1, boxed(&[299, 0], &[1, 1000])),
        (large, boxed(&[1], &[elements - 1])),
        (large, boxed(&[(1 << 18) - 1], &[2])),
        (large, boxed(&[elements - 1], &[1])),
    ] {
        let spec = &specs[number];
        let (bytes, _) = load(&step, &spec.name, &at, 2).unwrap();
        assert_eq!(bytes, slice(spec, &at), "{} {at:?}", spec.name);
    }
}

#[test]
fn a_view_of_a_difference_is_a_decoded_copy() {
    let node = TestNode::start();
    let (_, specs) = chain(&node, 2);
    let step = node.root().step(2).unwrap();
    let names: Vec<&str> = specs.iter().map(|spec| spec.name.as_str()).collect();
    for (view, spec) in step.views(&names, 2).unwrap().iter().zip(&specs) {
        assert!(!view.is_mapped(), "{}", spec.name);
        assert_eq!(view[..], spec.bytes[..], "{}", spec.name);
    }
    assert!(node.root().step(1).unwrap().view("large").unwrap().is_mapped());
}

#[test]
fn a_range_reads_the_frames_that_have_it_and_damage_elsewhere_does_not_matter() {
    let node = TestNode::start();
    let (manifests, specs) = chain(&node, 2);
    let extent = &manifests[1].content.tensors["large"].parts[0].bytes;
    let base = &extent.encoding.as_ref().unwrap().base;
    // The last frame of the difference and of the base.
    for (extent, byte) in [(extent, extent.range[1] - 1), (base, base.range[1] - 1)] {
        let path = &manifests[1].content.files[extent.file as usize].path;
        let mut bytes = node.bytes(path);
        bytes[byte as usize] ^= 1;
        node.put(path, &bytes);
    }
    let step = node.root().step(2).unwrap();
    let at = boxed(&[100], &[1000]);
    let (bytes, read_bytes) = load(&step, "large", &at, 1).unwrap();
    assert_eq!(bytes, slice(&specs[2], &at));
    assert!((1 << 20..2 << 20).contains(&read_bytes), "{read_bytes}");
    let error = load(&step, "large", &TensorBox::whole(&[LARGE_BYTES / 4]), 1).unwrap_err();
    assert_eq!(error.kind(), Kind::Checksum, "{error}");
}

#[test]
fn damage_anywhere_in_a_chain_is_told_with_tensor_and_file() {
    let node = TestNode::start();
    let (manifests, _) = chain(&node, 3);
    let content = &manifests[2].content;
    let whole = TensorBox::whole(&[LARGE_BYTES / 4]);
    for extent in content.tensors["large"].parts[0].bytes.chain() {
        let path = &content.files[extent.file as usize].path;
        let good = node.bytes(path);
        let middle = (extent.range[0] + extent.stored_bytes() / 2) as usize;
        let mut flipped = good.clone();
        flipped[middle] ^= 4;
        for (bad, what) in [(&flipped[..], "flipped"), (&good[..middle], "cut off")] {
            node.put(path, bad);
            let step = node.root().step(3).unwrap();
            let error = load(&step, "large", &whole, 2).unwrap_err();
            assert!(
                matches!(error.kind(), Kind::Checksum | Kind::Corrupt),
                "{what}: {error}"
            );
            let text = error.to_string();
            assert!(
                text.contains(path.as_str()) && text.contains("large"),
                "{what}: {text}"
            );
            assert!(step.view("large").is_err(), "{what}");
            let verified = step.verify(2, &|_| {}).unwrap();
            let found = verified.findings.iter().any(|finding| {
                finding.name.as_deref() == Some("large") && finding.message.contains(path.as_str())
            });
            assert!(found, "{what}: {:?}", verified.findings);
        }
        node.put(path, &good);
    }
    for table in &content.tables {
        let good = node.bytes(&table.path);
        let mut bad = good.clone();
        *bad.last_mut().unwrap() ^= 1;
        node.put(&table.path, &bad);
        let step = node.root().step(3).unwrap();
        let error = load(&step, "large", &whole, 2).unwrap_err();
        assert!(error.to_string().contains(table.path.as_str()), "{error}");
        let verified = step.verify(2, &|_| {}).unwrap();
        assert!(!verified.is_ok());
        node.put(&table.path, &good);
    }
    let verified = node.root().step(3).unwrap().verify(2, &|_| {}).unwrap();
    assert!(verified.is_ok(), "{:?}", verified.findings);
}

#[test]
fn pruning_keeps_what_a_difference_is_made_from() {
    let node = TestNode::start();
    let (_, specs) = chain(&node, 4);
    let options = PruneOptions {
        selection: PruneSelection::ByPolicy(Policy {
            keep_last: 1,
            keep_every: None,
        }),
        age_ms_min: 0,
        now_ms: LATER_MS,
        is_dry_run: false,
    };
    let pruned = node.root().prune(&options).unwrap();
    assert_eq!(pruned.kept, [4]);
    let step = node.root().step(4).unwrap();
    assert!(step.verify(2, &|_| {}).unwrap().is_ok());
    for spec in &specs {
        assert_eq!(*step.view(&spec.name).unwrap(), spec.bytes[..], "{}", spec.name);
    }
}

#[test]
fn an_export_and_a_comparison_see_what_comes_out() {
    let node = TestNode::start();
    let (_, specs) = chain(&node, 3);
    let root = node.root();
    let step = root.step(3).unwrap();
    let path = node.folder("one.safetensors");
    let options = ExportOptions {
        layout: Layout::OneFile,
        prefix: String::new(),
        threads: 2,
    };
    step.export(&path, &options, &|_| {}).unwrap();
    let file = std::fs::read(&path).unwrap();
    let header = Header::decode(&file, file.len() as u64).unwrap();
    for spec in &specs {
        let [first, end] = header.tensors[&spec.name].range;
        assert_eq!(
            file[first as usize..end as usize],
            spec.bytes[..],
            "{}",
            spec.name
        );
    }
    let compared = Compared::of(&root.step(2).unwrap(), &step, 2, &|_| {}).unwrap();
    assert_eq!((compared.changed.len(), compared.same), (7, 1), "all but none");
    let bytes = compared
        .changed
        .iter()
        .find(|changed| changed.name == "bytes")
        .unwrap();
    let Change::Values(difference) = &bytes.change else {
        panic!("{bytes:?}")
    };
    assert_eq!((difference.elements, difference.changed), (777, 777));
}

#[test]
fn details_tell_how_much_differences_save() {
    let node = TestNode::start();
    let (manifests, specs) = chain(&node, 2);
    let all: usize = specs.iter().map(|spec| spec.bytes.len()).sum();
    let detail = StepDetail::of(&manifests[1]);
    assert_eq!((detail.bytes, detail.reused_bytes), (all as u64, 0));
    assert_eq!(detail.encoded_bytes, all as u64);
    assert!(detail.encoded_ratio().unwrap() > 2.0, "{detail:?}");
    assert_eq!(StepDetail::of(&manifests[0]).encoded_ratio(), None);
}
