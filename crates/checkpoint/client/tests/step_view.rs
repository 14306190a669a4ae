//! The view of a step through the socket: what an export writes, without an export.
#![allow(clippy::unwrap_used, reason = "a failure here is the failure of a test")]

mod fixture;

use fixture::{BUCKET, Spec, StepSpec, TestNode};
use forebay_checkpoint::manifest::{
    Content, DataFile, Encoding, EncodingKind, Extent, Part, TableFile, Tensor,
};
use forebay_checkpoint::table::{BLOCK_BYTES, Table};
use forebay_checkpoint::{Dtype, Manifest, TensorBox, delta, names};
use forebay_checkpoint_client::{ExportOptions, Layout};
use forebay_client::{Entry, ItemRange, ListOptions, ListedObject, Name, PutOptions, PutSource};
use forebay_core::{Kind, Result, crc32c};

/// Tensors of every shape and cut.
fn tensors(seed: u64) -> Vec<Spec> {
    vec![
        Spec::whole("one", Dtype::F32, &[300, 70], seed),
        Spec::whole("rows", Dtype::BF16, &[1200, 64], seed + 1).cut(0, 4),
        Spec::whole("columns", Dtype::F32, &[1000, 96], seed + 2).cut(1, 3),
        Spec::whole("middle", Dtype::U8, &[7, 12, 5], seed + 3).cut(1, 4),
        Spec::whole("scalar", Dtype::F64, &[], seed + 4),
        Spec::whole("empty", Dtype::F32, &[0, 3], seed + 5),
    ]
}

fn name(path: &str) -> Name {
    Name::new(BUCKET, &format!("run/{path}")).unwrap()
}

fn list(node: &TestNode, prefix: &str, delimiter: Option<&str>) -> Vec<Entry> {
    let options = ListOptions {
        prefix: format!("run/{prefix}"),
        delimiter: delimiter.map(str::to_owned),
        ..ListOptions::default()
    };
    node.client
        .list(BUCKET, options)
        .unwrap()
        .map(Result::unwrap)
        .collect()
}

fn objects(node: &TestNode, prefix: &str) -> Vec<ListedObject> {
    let entries = list(node, prefix, Some("/")).into_iter();
    let objects = entries.filter_map(|entry| match entry {
        Entry::Object(object) => Some(object),
        Entry::Prefix(_) => None,
    });
    objects.collect()
}

fn get(node: &TestNode, path: &str, range: ItemRange) -> Result<Vec<u8>> {
    node.client
        .get(&name(path), range, None)
        .map(|view| view.to_vec())
}

/// Returns what an export of the step writes: names and bytes.
fn exported(node: &TestNode, step: u64) -> Vec<(String, Vec<u8>)> {
    let folder = node.folder(&format!("export-{step}"));
    let options = ExportOptions {
        layout: Layout::HuggingFace {
            file_bytes_max: forebay_checkpoint::whole::FILE_BYTES_MAX,
        },
        prefix: String::new(),
        threads: 1,
    };
    let step = node.root().step(step).unwrap();
    let exported = step.export(&folder, &options, &|_| {}).unwrap();
    let read = |path: &std::path::PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        (name, std::fs::read(path).unwrap())
    };
    exported.files.iter().map(read).collect()
}

#[test]
fn a_view_has_the_names_and_bytes_of_an_export() {
    let node = TestNode::start();
    let first = StepSpec::new(1, tensors(1)).write(&node, None);
    // The second step changes one tensor and reuses the others.
    let mut next = tensors(1);
    next[2] = Spec::whole("columns", Dtype::F32, &[1000, 96], 99).cut(1, 3);
    StepSpec::new(2, next).write(&node, Some(&first));
    for step in [1, 2] {
        let folder = format!("steps/{step}/whole/");
        let shown = objects(&node, &folder);
        let wanted = exported(&node, step);
        assert_eq!(shown.len(), wanted.len());
        for (object, (file, bytes)) in shown.iter().zip(&wanted) {
            let path = format!("{folder}{file}");
            assert_eq!(
                (object.key.as_str(), object.bytes),
                (format!("run/{path}").as_str(), bytes.len() as u64)
            );
            let stat = node.client.stat(&name(&path)).unwrap();
            assert_eq!(
                (stat.version.as_str(), stat.bytes),
                (object.version.as_str(), object.bytes)
            );
            assert!(
                get(&node, &path, ItemRange::Whole).unwrap() == *bytes,
                "{path} differs from its export"
            );
            let total = bytes.len() as u64;
            for number in 0..200u64 {
                let offset = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) % total;
                let length = (1 + number * 977).min(total - offset);
                let range = ItemRange::Range { offset, length };
                let end = (offset + length) as usize;
                assert!(
                    get(&node, &path, range).unwrap() == bytes[offset as usize..end],
                    "{offset} {length}"
                );
            }
        }
    }
}

#[test]
fn a_view_is_seen_only_by_who_names_it() {
    let node = TestNode::start();
    StepSpec::new(1, tensors(1)).write(&node, None);
    assert_eq!(objects(&node, "steps/1/whole/").len(), 1);
    assert!(objects(&node, "steps/1/whole/x").is_empty());
    assert!(node.paths().iter().all(|path| !path.contains("whole")));
    let level = list(&node, "steps/1/", Some("/"));
    assert!(
        level
            .iter()
            .all(|entry| !matches!(entry, Entry::Prefix(prefix) if prefix.contains("whole")))
    );
    let missing = get(&node, "steps/1/whole/other.safetensors", ItemRange::Whole);
    assert_eq!(missing.unwrap_err().kind(), Kind::NotFound);
    assert_eq!(
        get(&node, "steps/2/whole/model.safetensors", ItemRange::Whole)
            .unwrap_err()
            .kind(),
        Kind::NotFound
    );
}

#[test]
fn a_view_cannot_be_changed_and_a_folder_of_that_name_without_a_step_can() {
    let node = TestNode::start();
    StepSpec::new(1, tensors(1)).write(&node, None);
    let put = |path: &str| {
        let source = PutSource::Slice(b"mine");
        node.client.put(&name(path), source, PutOptions::default())
    };
    for path in ["steps/1/whole/model.safetensors", "steps/1/whole/new"] {
        assert_eq!(put(path).unwrap_err().kind(), Kind::InvalidInput, "{path}");
        let error = node.client.delete(&name(path)).unwrap_err();
        assert!(error.to_string().contains("view of a committed step"), "{error}");
    }
    put("steps/7/whole/notes").unwrap();
    assert_eq!(
        get(&node, "steps/7/whole/notes", ItemRange::Whole).unwrap(),
        b"mine"
    );
    assert_eq!(objects(&node, "steps/7/whole/").len(), 1);
    node.client.delete(&name("steps/7/whole/notes")).unwrap();
}

#[test]
fn a_superseded_step_has_another_view() {
    let node = TestNode::start();
    let spec = StepSpec::new(1, tensors(1));
    spec.write(&node, None);
    let path = "steps/1/whole/model.safetensors";
    let before = node.client.stat(&name(path)).unwrap();
    let mut other = StepSpec::new(1, tensors(2));
    other.generation = 2;
    other.attempt = 77;
    other.write(&node, None);
    let after = node.client.stat(&name(path)).unwrap();
    assert_ne!(before.version, after.version);
    let pinned = node
        .client
        .get(&name(path), ItemRange::Whole, Some(&before.version));
    assert_eq!(pinned.unwrap_err().kind(), Kind::Changed);
    assert!(get(&node, path, ItemRange::Whole).unwrap() == exported(&node, 1)[0].1);
}

#[test]
fn a_step_that_was_removed_and_saved_again_has_another_view() {
    let node = TestNode::start();
    StepSpec::new(1, tensors(1)).write(&node, None);
    let path = "steps/1/whole/model.safetensors";
    let before = node.client.stat(&name(path)).unwrap();
    node.delete(&names::manifest(1, 1));
    let mut again = StepSpec::new(1, tensors(2));
    again.attempt = 77;
    again.write(&node, None);
    let after = node.client.stat(&name(path)).unwrap();
    assert_ne!(before.version, after.version);
    assert!(get(&node, path, ItemRange::Whole).unwrap() == exported(&node, 1)[0].1);
}

#[test]
fn a_manifest_under_the_name_of_another_step_has_no_view() {
    let node = TestNode::start();
    let mut manifest = StepSpec::new(1, tensors(1)).write(&node, None);
    node.put(&names::manifest(2, 1), &manifest.encode().unwrap());
    let error = get(&node, "steps/2/whole/model.safetensors", ItemRange::Whole).unwrap_err();
    assert_eq!(error.kind(), Kind::Corrupt, "{error}");
}

#[test]
fn side_tables_that_could_not_be_held_give_no_view() {
    let node = TestNode::start();
    let mut manifest = large(&node);
    manifest.content.tables[0].bytes = 65 << 20;
    node.put(&names::manifest(3, 1), &manifest.encode().unwrap());
    let path = "steps/3/whole/model-00001-of-00002.safetensors";
    let error = get(&node, path, ItemRange::Whole).unwrap_err();
    assert_eq!(error.kind(), Kind::Unsupported, "{error}");
}

#[test]
fn damage_is_found_by_who_reads_a_view() {
    let node = TestNode::start();
    let manifest = StepSpec::new(1, tensors(1)).write(&node, None);
    let part = &manifest.content.tensors["columns"].parts[1].bytes;
    let file = &manifest.content.files[part.file as usize].path;
    let mut bytes = node.bytes(file);
    bytes[part.range[0] as usize + 5] ^= 0x10;
    node.put(file, &bytes);
    let node = node.restart();
    let path = "steps/1/whole/model.safetensors";
    let error = get(&node, path, ItemRange::Whole).unwrap_err();
    assert_eq!(error.kind(), Kind::Checksum, "{error}");
    assert!(error.to_string().contains("columns"), "{error}");
    node.delete(file);
    let node = node.restart();
    assert_eq!(
        get(&node, path, ItemRange::Whole).unwrap_err().kind(),
        Kind::Corrupt
    );
}

/// Step 2 with its one tensor as the difference from step 1; returns its bytes.
fn differential(node: &TestNode) -> Vec<u8> {
    let before = Spec::whole("w", Dtype::F32, &[700, 1000], 1);
    let parent = StepSpec::new(1, vec![before.clone()]).write(node, None);
    let mut after = before.bytes.clone();
    for element in after.chunks_mut(4).step_by(3) {
        element[0] ^= 0x11;
    }
    let attempt = names::attempt(2);
    let path = |name: &str| names::attempt_file(2, &attempt, name);
    let (mut stored, mut frames) = (Vec::new(), Vec::new());
    let mut encoder = delta::Encoder::new().unwrap();
    let size = delta::FRAME_BYTES as usize;
    for (bytes, base) in after.chunks(size).zip(before.bytes.chunks(size)) {
        frames.push(encoder.frame(bytes, base, 4, &mut stored).unwrap());
    }
    let crcs: Vec<u32> = after.chunks(BLOCK_BYTES as usize).map(crc32c::crc32c).collect();
    let mut table = Table::default();
    let first_block = table.add_encoded(&crcs, &frames);
    let mut manifest = parent.clone();
    let content = &mut manifest.content;
    let encoding = Encoding {
        kind: EncodingKind::XorGroupZstd,
        bytes: after.len() as u64,
        element_bytes: 4,
        base: content.tensors["w"].parts[0].bytes.clone(),
    };
    content.tensors.get_mut("w").unwrap().parts[0].bytes = Extent {
        file: content.files.len() as u32,
        range: [0, stored.len() as u64],
        blake3: blake3::hash(&after).to_hex().to_string(),
        table: content.tables.len() as u32,
        first_block,
        encoding: Some(Box::new(encoding)),
    };
    content.files.push(DataFile {
        path: path("rank-00000-000.delta"),
        bytes: stored.len() as u64,
        data_start: 0,
        header_blake3: String::new(),
    });
    let table = table.encode();
    content.tables.push(TableFile {
        path: path(&names::table_file(0)),
        bytes: table.len() as u64,
        blake3: blake3::hash(&table).to_hex().to_string(),
    });
    node.put(&path("rank-00000-000.delta"), &stored);
    node.put(&path(&names::table_file(0)), &table);
    let mut manifest = Manifest::new(2, 1, &attempt, 1, manifest.content);
    node.put(&names::manifest(2, 1), &manifest.encode().unwrap());
    after
}

#[test]
fn a_view_undoes_differences() {
    let node = TestNode::start();
    let bytes = differential(&node);
    let path = "steps/2/whole/model.safetensors";
    let whole = get(&node, path, ItemRange::Whole).unwrap();
    assert!(whole.ends_with(&bytes), "the tensor is not what was saved");
    let offset = (whole.len() - bytes.len()) as u64 + 1_500_001;
    let some = ItemRange::Range { offset, length: 99 };
    assert_eq!(get(&node, path, some).unwrap(), bytes[1_500_001..1_500_100]);
    let file = names::attempt_file(2, &names::attempt(2), "rank-00000-000.delta");
    let mut stored = node.bytes(&file);
    *stored.last_mut().unwrap() ^= 1;
    node.put(&file, &stored);
    let node = node.restart();
    assert_eq!(
        get(&node, path, ItemRange::Whole).unwrap_err().kind(),
        Kind::Checksum
    );
}

/// A commit of tensors that nobody wrote: listings and the index need no data.
fn large(node: &TestNode) -> Manifest {
    let attempt = names::attempt(9);
    let path = |name: &str| names::attempt_file(3, &attempt, name);
    let mut content = Content::default();
    content.tables.push(TableFile {
        path: path("rank-00000.crc"),
        bytes: 24,
        blake3: "0".repeat(64),
    });
    for (number, tensor) in ["a", "b"].into_iter().enumerate() {
        let elements = 4_000_000_000;
        content.files.push(DataFile {
            path: path(&names::data_file(0, number as u32)),
            bytes: 4096 + elements,
            data_start: 4096,
            header_blake3: "0".repeat(64),
        });
        let bytes = Extent {
            file: number as u32,
            range: [4096, 4096 + elements],
            blake3: "0".repeat(64),
            table: 0,
            first_block: 0,
            encoding: None,
        };
        let part = Part {
            at: TensorBox::whole(&[elements]),
            bytes,
            sha256: None,
        };
        let tensor_of = Tensor {
            dtype: Dtype::U8,
            shape: vec![elements],
            parts: vec![part],
        };
        content.tensors.insert(tensor.to_owned(), tensor_of);
    }
    let mut manifest = Manifest::new(3, 1, &attempt, 1, content);
    node.put(&names::manifest(3, 1), &manifest.encode().unwrap());
    manifest
}

#[test]
fn a_large_step_has_several_files_and_their_index() {
    let node = TestNode::start();
    large(&node);
    let shown = objects(&node, "steps/3/whole/");
    let names: Vec<&str> = shown
        .iter()
        .filter_map(|object| object.key.rsplit('/').next())
        .collect();
    let files = [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    ];
    assert_eq!(names, [files[0], files[1], "model.safetensors.index.json"]);
    let index = get(
        &node,
        "steps/3/whole/model.safetensors.index.json",
        ItemRange::Whole,
    )
    .unwrap();
    let index: serde_json::Value = serde_json::from_slice(&index).unwrap();
    assert_eq!(
        index["weight_map"],
        serde_json::json!({"a": files[0], "b": files[1]})
    );
    // Nobody wrote the data.
    let some = ItemRange::Range {
        offset: 1 << 30,
        length: 1,
    };
    let unread = get(&node, &format!("steps/3/whole/{}", files[1]), some);
    assert_eq!(unread.unwrap_err().kind(), Kind::Corrupt);
    assert_eq!(objects(&node, "steps/3/whole/model-0000").len(), 2);
}
