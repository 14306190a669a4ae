//! Documents: round trip, damage, and what is refused.

use super::*;
use crate::names;

fn digest(byte: u8) -> String {
    format!("{byte:02x}").repeat(32)
}

fn part(offset: &[u64], shape: &[u64], first: u64) -> Part {
    let bytes = shape.iter().product::<u64>() * 4;
    Part {
        at: TensorBox {
            offset: offset.to_vec(),
            shape: shape.to_vec(),
        },
        bytes: Extent {
            file: 0,
            range: [4096 + first, 4096 + first + bytes],
            blake3: digest(1),
            table: 0,
            first_block: 0,
            encoding: None,
        },
        sha256: None,
    }
}

fn content() -> Content {
    let folder = |name: &str| names::attempt_file(7, &names::attempt(1), name);
    let tensor = Tensor {
        dtype: Dtype::F32,
        shape: vec![4, 8],
        parts: vec![part(&[0, 0], &[2, 8], 0), part(&[2, 0], &[2, 8], 64)],
    };
    Content {
        files: vec![DataFile {
            path: folder(&names::data_file(0, 0)),
            bytes: 4096 + 128,
            data_start: 4096,
            header_blake3: digest(2),
        }],
        tables: vec![TableFile {
            path: folder(&names::table_file(0)),
            bytes: 32,
            blake3: digest(3),
        }],
        tensors: BTreeMap::from([("w".to_owned(), tensor)]),
        ..Content::default()
    }
}

fn manifest() -> Manifest {
    Manifest::new(7, 1, &names::attempt(1), 1, content())
}

fn refusal(change: impl FnOnce(&mut Manifest)) -> String {
    let mut manifest = manifest();
    change(&mut manifest);
    manifest.encode().unwrap_err().to_string()
}

fn tensor(manifest: &mut Manifest) -> &mut Tensor {
    manifest.content.tensors.get_mut("w").unwrap()
}

#[test]
fn a_manifest_reads_back_as_it_was() {
    let mut manifest = manifest();
    let bytes = manifest.encode().unwrap();
    assert_eq!(Manifest::decode(&bytes).unwrap(), manifest);
    let mut record = Record::new(7, &names::attempt(1), 0, 1, content());
    let bytes = record.encode().unwrap();
    assert_eq!(Record::decode(&bytes).unwrap(), record);
    assert!(Manifest::decode(&bytes).is_err());
}

#[test]
fn readers_of_tensors_get_all_of_them_and_nothing_else() {
    let mut manifest = manifest();
    encode(&mut manifest);
    let object = Object {
        ranks: vec![0],
        kind: ObjectKind::Json,
        bytes: part(&[0], &[1], 0).bytes,
    };
    let content = &mut manifest.content;
    content.objects.insert("rng".to_owned(), vec![object]);
    content.tree = serde_json::json!({"model": ["w"]});
    content.metadata.insert("loss".to_owned(), 1.into());
    let bytes = manifest.encode().unwrap();
    assert_eq!(Manifest::decode(&bytes).unwrap(), manifest);
    let content = &mut manifest.content;
    content.objects.clear();
    content.tree = Value::Null;
    content.metadata.clear();
    assert_eq!(Manifest::decode_tensors(&bytes).unwrap(), manifest);
}

#[test]
fn every_damaged_or_missing_byte_of_a_manifest_is_noticed() {
    let bytes = manifest().encode().unwrap();
    for place in 0..bytes.len() {
        let mut bad = bytes.clone();
        bad[place] ^= 1;
        assert!(Manifest::decode(&bad).is_err(), "byte {place}");
        assert!(Manifest::decode(&bytes[..place]).is_err(), "cut at {place}");
    }
}

#[test]
fn a_hole_and_an_overlap_are_refused() {
    assert!(refusal(|m| drop(tensor(m).parts.pop())).contains("missing"));
    assert!(refusal(|m| tensor(m).parts[1].at.offset[0] = 1).contains("overlap"));
}

#[test]
fn places_outside_of_their_file_are_refused() {
    assert!(refusal(|m| m.content.files[0].bytes = 4097).contains("outside"));
    assert!(refusal(|m| tensor(m).parts[0].bytes.range = [0, 64]).contains("outside"));
    assert!(refusal(|m| tensor(m).parts[0].bytes.file = 1).contains("not listed"));
    assert!(refusal(|m| tensor(m).parts[0].bytes.table = 1).contains("not listed"));
    assert!(refusal(|m| m.content.files[0].path = "steps/7/../../secret".to_owned()).contains("path"));
    assert!(refusal(|m| tensor(m).dtype = Dtype::F64).contains("size"));
}

#[test]
fn another_version_says_to_update() {
    let mut manifest = manifest();
    manifest.version = 2;
    let bytes = manifest.encode().unwrap();
    let error = Manifest::decode(&bytes).unwrap_err();
    assert_eq!(error.kind(), forebay_core::Kind::Unsupported);
    assert!(error.to_string().contains("update forebay"));
}

/// The first part of the tensor as the difference from a part of an earlier step.
fn encode(manifest: &mut Manifest) -> &mut Extent {
    let file = |name: &str| DataFile {
        path: names::attempt_file(6, &names::attempt(9), name),
        bytes: 4096 + 64,
        data_start: 4096,
        header_blake3: digest(4),
    };
    manifest.content.files.push(file(&names::data_file(0, 0)));
    manifest.content.files.push(DataFile {
        data_start: 0,
        header_blake3: String::new(),
        ..file(&names::delta_file(0, 0))
    });
    let extent = &mut tensor(manifest).parts[0].bytes;
    let mut base = extent.clone();
    base.file = 1;
    (extent.file, extent.range) = (2, [100, 130]);
    extent.encoding = Some(Box::new(Encoding {
        kind: EncodingKind::XorGroupZstd,
        bytes: 64,
        element_bytes: 4,
        base,
    }));
    extent
}

fn refusal_of_encoded(change: impl FnOnce(&mut Extent)) -> String {
    refusal(|manifest| change(encode(manifest)))
}

fn encoding(extent: &mut Extent) -> &mut Encoding {
    extent.encoding.as_mut().unwrap()
}

#[test]
fn an_encoded_part_reads_back_with_its_base() {
    let mut manifest = manifest();
    assert_eq!(encode(&mut manifest).bytes(), 64);
    let bytes = manifest.encode().unwrap();
    assert!(String::from_utf8_lossy(&bytes).contains("\"kind\": \"xor-group-zstd\""));
    let read = Manifest::decode(&bytes).unwrap();
    assert_eq!(read, manifest);
    let extent = &read.content.tensors["w"].parts[0].bytes;
    assert_eq!(
        (extent.depth(), extent.stored_bytes(), extent.chain_bytes()),
        (1, 30, 94)
    );
    let moved = extent.mapped(&mut |file| file + 10, &mut |table| table + 20);
    let places: Vec<_> = moved.chain().map(|extent| (extent.file, extent.table)).collect();
    assert_eq!(places, [(12, 20), (11, 20)]);
}

#[test]
fn hostile_encodings_are_refused() {
    assert!(refusal_of_encoded(|e| e.range = [4100, 4165]).contains("outside"));
    assert!(refusal_of_encoded(|e| e.range = [0, 65]).contains("another size"));
    assert!(refusal_of_encoded(|e| e.range = [0, 0]).contains("another size"));
    assert!(refusal_of_encoded(|e| e.file = 0).contains("outside"));
    assert!(refusal_of_encoded(|e| (e.file, e.range) = (0, [4096, 4100])).contains("safetensors"));
    assert!(refusal_of_encoded(|e| encoding(e).bytes = 1 << 60).contains("another size"));
    assert!(refusal_of_encoded(|e| encoding(e).bytes = 60).contains("size"));
    assert!(refusal_of_encoded(|e| encoding(e).element_bytes = 3).contains("elements"));
    assert!(refusal_of_encoded(|e| encoding(e).element_bytes = 0).contains("elements"));
    assert!(refusal_of_encoded(|e| encoding(e).base.file = 9).contains("not listed"));
    assert!(refusal_of_encoded(|e| encoding(e).base.table = 9).contains("not listed"));
    assert!(refusal_of_encoded(|e| encoding(e).base.range = [4160, 4224]).contains("outside"));
    assert!(refusal_of_encoded(|e| encoding(e).base.range[1] -= 4).contains("than its base"));
    assert!(refusal_of_encoded(|e| encoding(e).base.blake3.clear()).contains("digest"));
    assert!(refusal_of_encoded(|e| encoding(e).kind = EncodingKind::Unknown).contains("update"));
    let longer = |extent: &mut Extent| {
        for _ in 0..DEPTH_MAX {
            let mut next = extent.clone();
            encoding(&mut next).base = extent.clone();
            *extent = next;
        }
    };
    assert!(refusal_of_encoded(longer).contains("more times"));
}

#[test]
fn an_encoding_of_tomorrow_says_to_update() {
    let mut manifest = manifest();
    encode(&mut manifest);
    let text = String::from_utf8(manifest.encode().unwrap()).unwrap();
    let text = text
        .replace("xor-group-zstd", "of-tomorrow")
        .replace(&manifest.digest, &"0".repeat(64));
    let digest = blake3::hash(text.as_bytes()).to_hex();
    let text = text.replace(&"0".repeat(64), digest.as_str());
    let error = Manifest::decode(text.as_bytes()).unwrap_err();
    assert_eq!(error.kind(), forebay_core::Kind::Unsupported, "{error}");
}

#[test]
fn an_object_is_never_encoded() {
    let with_object = |manifest: &mut Manifest| {
        let bytes = encode(manifest).clone();
        let object = Object {
            ranks: vec![0],
            kind: ObjectKind::Bytes,
            bytes,
        };
        manifest.content.objects.insert("rng".to_owned(), vec![object]);
    };
    assert!(refusal(with_object).contains("only parts of tensors"));
}
