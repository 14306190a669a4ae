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
