//! Pruning, comparing, exporting, and what a run looks like.
#![allow(clippy::unwrap_used, reason = "a failure here is the failure of a test")]

mod fixture;

use std::collections::BTreeSet;

use fixture::{Spec, StepSpec, TestNode, pattern};
use forebay_checkpoint::attempt_lease::AttemptLease;
use forebay_checkpoint::header::Header;
use forebay_checkpoint::manifest::StepRef;
use forebay_checkpoint::retention::Policy;
use forebay_checkpoint::{Dtype, Manifest, names};
use forebay_checkpoint_client::{Change, Compared, ExportOptions, Layout, PruneOptions, PruneSelection};
use forebay_core::{Clock as _, Kind, SystemClock};

const DAY_MS: u64 = 86_400_000;
/// Later than anything that a test writes.
const LATER_MS: u64 = 4_000_000_000_000;

fn options(keep_last: u32, keep_every: Option<u64>) -> PruneOptions {
    PruneOptions {
        selection: PruneSelection::ByPolicy(Policy {
            keep_last,
            keep_every,
        }),
        age_ms_min: DAY_MS,
        now_ms: LATER_MS,
        is_dry_run: false,
    }
}

fn weights(seeds: [u64; 3]) -> Vec<Spec> {
    let names = ["a", "b", "c"];
    let specs = names.iter().zip(seeds).zip(0..);
    specs
        .map(|((name, seed), file)| {
            let mut spec = Spec::whole(name, Dtype::F32, &[1000], seed);
            spec.parts[0].1 = file;
            spec
        })
        .collect()
}

/// Steps 1 to 4, each of which changes one tensor and reuses two.
fn chain(node: &TestNode) -> Vec<Manifest> {
    let seeds = [[1, 2, 3], [4, 2, 3], [4, 5, 3], [4, 5, 6]];
    let mut manifests: Vec<Manifest> = Vec::new();
    for (step, seeds) in (1..).zip(seeds) {
        let spec = StepSpec::new(step, weights(seeds));
        manifests.push(spec.write(node, manifests.last()));
    }
    manifests
}

#[test]
fn pruning_never_breaks_a_child() {
    let node = TestNode::start();
    chain(&node);
    let root = node.root();
    let dry = PruneOptions {
        is_dry_run: true,
        ..options(1, None)
    };
    let planned = root.prune(&dry).unwrap();
    assert_eq!(root.steps().unwrap().len(), 4, "nothing was done");
    let pruned = root.prune(&options(1, None)).unwrap();
    assert_eq!(planned, pruned);
    assert_eq!(pruned.kept, [4]);
    assert_eq!(pruned.commits.len(), 3);
    let step = root.step(4).unwrap();
    assert!(step.verify(1, &|_| {}).unwrap().is_ok());
    assert_eq!(*step.view("a").unwrap(), pattern(4, 4000)[..]);
    // Step 1 has nothing that is needed, of 2 the tensor a, of 3 the tensor b, and their tables.
    let left: BTreeSet<u64> = node
        .paths()
        .iter()
        .map(|path| path.split('/').nth(1).unwrap().parse().unwrap())
        .collect();
    assert_eq!(left, [2, 3, 4].into());
    assert!(root.prune(&options(1, None)).unwrap().files.is_empty());
}

#[test]
fn round_steps_and_the_newest_stay_and_superseded_generations_go() {
    let node = TestNode::start();
    for step in [100, 150, 200, 250] {
        StepSpec::new(step, weights([step, 2, 3])).write(&node, None);
    }
    let mut again = StepSpec::new(250, weights([9, 9, 9]));
    (again.generation, again.attempt) = (2, 99);
    again.write(&node, None);
    let pruned = node.root().prune(&options(1, Some(100))).unwrap();
    assert_eq!(pruned.kept, [100, 200, 250]);
    let gone = |step, generation| StepRef { step, generation };
    assert_eq!(pruned.commits, [gone(150, 1), gone(250, 1)]);
    assert_eq!(
        *node.root().step(250).unwrap().view("a").unwrap(),
        pattern(9, 4000)[..]
    );
}

#[test]
fn a_step_that_stays_and_cannot_be_read_stops_the_pruning() {
    let node = TestNode::start();
    chain(&node);
    let path = "steps/4/manifest-1.json";
    let mut bytes = node.bytes(path);
    bytes[100] ^= 1;
    node.put(path, &bytes);
    let before = node.paths();
    let error = node.root().prune(&options(1, None)).unwrap_err();
    assert_eq!(error.kind(), Kind::Checksum, "{error}");
    assert_eq!(node.paths(), before);
    // Removing just that one is what the message says.
    let selection = PruneSelection::Steps([4].into());
    let pruned = node
        .root()
        .prune(&PruneOptions {
            selection,
            ..options(1, None)
        })
        .unwrap();
    assert_eq!(pruned.kept, [1, 2, 3]);
    for step in 1..=3 {
        assert!(
            node.root()
                .step(step)
                .unwrap()
                .verify(1, &|_| {})
                .unwrap()
                .is_ok()
        );
    }
}

#[test]
fn a_save_under_way_keeps_its_attempt_and_its_parent() {
    let node = TestNode::start();
    chain(&node);
    let attempt = names::attempt(77);
    let parent = Some(StepRef {
        step: 3,
        generation: 1,
    });
    let file = |name: &str| names::attempt_file(9, &attempt, name);
    let open = AttemptLease::new(9, &attempt, parent, LATER_MS - DAY_MS, LATER_MS + 1000);
    node.put(&file(names::OPEN), &open.encode().unwrap());
    node.put(&file("rank-00000-000.safetensors"), b"half");
    let pruned = node.root().prune(&options(1, None)).unwrap();
    assert_eq!(pruned.in_use.len(), 1);
    assert_eq!(pruned.kept, [3, 4]);
    assert!(node.paths().contains(&file("rank-00000-000.safetensors")));
    assert!(node.root().step(3).unwrap().verify(1, &|_| {}).unwrap().is_ok());
    // Its lease is over: both go.
    let later = PruneOptions {
        now_ms: LATER_MS + DAY_MS,
        ..options(1, None)
    };
    let pruned = node.root().prune(&later).unwrap();
    assert_eq!(pruned.kept, [4]);
    assert!(!node.paths().iter().any(|path| path.starts_with("steps/9/")));
}

#[test]
fn a_young_attempt_without_a_lease_stays() {
    let node = TestNode::start();
    chain(&node);
    node.put("steps/9/a-0000000000000009/rank-00000.json", b"{}");
    let now = SystemClock::new()
        .wall()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        .as_millis() as u64;
    let young = PruneOptions {
        now_ms: now,
        ..options(9, None)
    };
    assert!(node.root().prune(&young).unwrap().files.is_empty());
    let old = PruneOptions {
        now_ms: now + 2 * DAY_MS,
        ..options(9, None)
    };
    assert_eq!(node.root().prune(&old).unwrap().files.len(), 1);
}

#[test]
fn what_is_not_ours_is_never_removed() {
    let node = TestNode::start();
    chain(&node);
    node.put("steps/1/notes.txt", b"mine");
    node.put("other/file", b"mine");
    node.root().prune(&options(1, None)).unwrap();
    let paths = node.paths();
    assert!(paths.contains(&"steps/1/notes.txt".to_owned()));
    assert!(paths.contains(&"other/file".to_owned()));
}

#[test]
fn removing_a_step_that_is_not_there_removes_nothing() {
    let node = TestNode::start();
    chain(&node);
    let selection = PruneSelection::Steps([2, 8].into());
    let error = node
        .root()
        .prune(&PruneOptions {
            selection,
            ..options(1, None)
        })
        .unwrap_err();
    assert_eq!(error.kind(), Kind::NotFound);
    assert_eq!(node.root().steps().unwrap().len(), 4);
}

#[test]
fn a_comparison_says_what_changed_and_by_how_much() {
    let node = TestNode::start();
    let floats = |values: &[f32]| {
        values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect::<Vec<u8>>()
    };
    let mut first = weights([1, 2, 3]);
    first[0].bytes = floats(&[1.0; 1000]);
    first.push(Spec::whole("gone", Dtype::F32, &[3], 1));
    first.push(Spec::whole("form", Dtype::F32, &[4], 1));
    // The same values in other parts.
    first.push(Spec::whole("cut", Dtype::F32, &[100, 10], 5).cut(0, 2));
    let mut second = weights([1, 2, 3]);
    let mut values = [1.0; 1000];
    (values[3], values[700]) = (1.5, 0.75);
    second[0].bytes = floats(&values);
    second.push(Spec::whole("new", Dtype::F32, &[3], 1));
    second.push(Spec::whole("form", Dtype::F32, &[2, 2], 1));
    second.push(Spec::whole("cut", Dtype::F32, &[100, 10], 5).cut(1, 2));
    let mut one = StepSpec::new(1, first);
    one.objects = vec![("rng".into(), b"1".to_vec()), ("same".into(), b"2".to_vec())];
    one.write(&node, None);
    let mut two = StepSpec::new(2, second);
    two.objects = vec![("rng".into(), b"3".to_vec()), ("same".into(), b"2".to_vec())];
    two.write(&node, None);
    let root = node.root();
    let (one, two) = (root.step(1).unwrap(), root.step(2).unwrap());
    let compared = Compared::of(&one, &two, 2, &|_| {}).unwrap();
    assert_eq!(
        (&compared.added[..], &compared.removed[..]),
        (&["new".to_owned()][..], &["gone".to_owned()][..])
    );
    assert_eq!(compared.objects, ["rng"]);
    assert_eq!(compared.same, 3, "b, c and cut");
    let names: Vec<&str> = compared
        .changed
        .iter()
        .map(|changed| changed.name.as_str())
        .collect();
    assert_eq!(names, ["a", "form"]);
    let Change::Values(difference) = &compared.changed[0].change else {
        panic!("{compared:?}")
    };
    assert_eq!(
        (difference.elements, difference.changed, difference.abs_max),
        (1000, 2, 0.5)
    );
    assert!(Compared::of(&one, &one, 1, &|_| {}).unwrap().is_same());
}

#[test]
fn an_export_has_whole_tensors_and_an_index_that_names_their_files() {
    let node = TestNode::start();
    let mut specs = weights([1, 2, 3]);
    specs.push(Spec::whole("model.rows", Dtype::BF16, &[40, 30], 7).cut(1, 3));
    specs.push(Spec::whole("model.empty", Dtype::I64, &[0], 8));
    let parent = StepSpec::new(1, specs.clone()).write(&node, None);
    specs[0].bytes = pattern(99, 4000);
    StepSpec::new(2, specs.clone()).write(&node, Some(&parent));
    let step = node.root().step(2).unwrap();
    let folder = node.folder("out");
    let options = ExportOptions {
        layout: Layout::HuggingFace { file_bytes_max: 5000 },
        prefix: String::new(),
        threads: 2,
    };
    let exported = step.export(&folder, &options, &|_| {}).unwrap();
    assert_eq!((exported.tensors, exported.bytes), (5, 12_000 + 2400));
    let index = std::fs::read_to_string(folder.join("model.safetensors.index.json")).unwrap();
    let index: serde_json::Value = serde_json::from_str(&index).unwrap();
    assert_eq!(index["metadata"]["total_size"], 14_400);
    for spec in &specs {
        let file = std::fs::read(folder.join(index["weight_map"][&spec.name].as_str().unwrap())).unwrap();
        let header = Header::decode(&file, file.len() as u64).unwrap();
        let entry = &header.tensors[&spec.name];
        assert_eq!((entry.dtype, &entry.shape), (spec.dtype, &spec.shape));
        assert_eq!(
            file[entry.range[0] as usize..entry.range[1] as usize],
            spec.bytes[..]
        );
    }
    let one = ExportOptions {
        layout: Layout::OneFile,
        prefix: "model.".into(),
        threads: 1,
    };
    let path = node.folder("one.safetensors");
    assert_eq!(step.export(&path, &one, &|_| {}).unwrap().tensors, 2);
    let file = std::fs::read(&path).unwrap();
    let header = Header::decode(&file, file.len() as u64).unwrap();
    assert_eq!(header.tensors.keys().collect::<Vec<_>>(), ["empty", "rows"]);
}

#[test]
fn an_export_of_a_damaged_step_leaves_no_file() {
    let node = TestNode::start();
    let manifest = StepSpec::new(1, weights([1, 2, 3])).write(&node, None);
    let path = &manifest.content.files[1].path;
    let mut bytes = node.bytes(path);
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    node.put(path, &bytes);
    let step = node.root().step(1).unwrap();
    let options = ExportOptions {
        layout: Layout::HuggingFace {
            file_bytes_max: 1 << 30,
        },
        prefix: String::new(),
        threads: 1,
    };
    let error = step.export(&node.folder("out"), &options, &|_| {}).unwrap_err();
    assert_eq!(error.kind(), Kind::Checksum);
    assert_eq!(std::fs::read_dir(node.folder("out")).unwrap().count(), 0);
}

#[test]
fn an_export_that_fails_over_an_older_one_leaves_no_mixture_that_looks_whole() {
    let node = TestNode::start();
    StepSpec::new(1, weights([1, 2, 3])).write(&node, None);
    let second = StepSpec::new(2, weights([4, 5, 6])).write(&node, None);
    let path = &second.content.files[1].path;
    let mut bytes = node.bytes(path);
    *bytes.last_mut().unwrap() ^= 1;
    node.put(path, &bytes);
    let split = Layout::HuggingFace { file_bytes_max: 5000 };
    let cases = [
        (split, vec!["config.json", "model-00001-of-00003.safetensors"]),
        (Layout::Dcp, vec!["config.json"]),
    ];
    for (layout, left) in cases {
        let folder = node.folder(&format!("{layout:?}"));
        let options = ExportOptions {
            layout,
            prefix: String::new(),
            threads: 1,
        };
        let export = |step| node.root().step(step).unwrap().export(&folder, &options, &|_| {});
        export(1).unwrap();
        std::fs::write(folder.join("config.json"), "{}").unwrap();
        assert_eq!(export(2).unwrap_err().kind(), Kind::Checksum);
        let names = std::fs::read_dir(&folder).unwrap();
        let names: BTreeSet<_> = names
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        assert_eq!(names.iter().collect::<Vec<_>>(), left, "{layout:?}");
        export(1).unwrap();
    }
}

#[test]
fn details_tell_sizes_reuse_and_how_long_a_save_took() {
    let node = TestNode::start();
    let manifests = chain(&node);
    let open = AttemptLease::new(
        2,
        &manifests[1].attempt,
        None,
        manifests[1].created_ms - 1234,
        LATER_MS,
    );
    node.put(
        &names::attempt_file(2, &manifests[1].attempt, names::OPEN),
        &open.encode().unwrap(),
    );
    let details = node.root().steps_detail().unwrap();
    assert_eq!(details.len(), 4);
    assert_eq!(
        (details[0].bytes, details[0].reused_bytes, details[0].tensors),
        (12_000, 0, 3)
    );
    assert_eq!((details[1].bytes, details[1].reused_bytes), (12_000, 8000));
    assert!((details[1].reuse_ratio() - 2.0 / 3.0).abs() < 1e-9);
    assert_eq!((details[1].save_ms, details[2].save_ms), (Some(1234), None));
}
