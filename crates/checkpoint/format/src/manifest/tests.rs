//! Documents: round trip, damage, and what is refused.

use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::check::{Weights, check_cover};
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
    content.tree = Tree::from(&serde_json::json!({"model": ["w"]}));
    content.metadata.insert("loss".to_owned(), 1.into());
    let bytes = manifest.encode().unwrap();
    assert_eq!(Manifest::decode(&bytes).unwrap(), manifest);
    let content = &mut manifest.content;
    content.objects.clear();
    content.tree = Tree::default();
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

fn tensor_of(shape: &[u64], boxes: &[TensorBox]) -> Tensor {
    let part = |at: &TensorBox| part(&at.offset, &at.shape, 0);
    Tensor {
        dtype: Dtype::F32,
        shape: shape.to_vec(),
        parts: boxes.iter().map(part).collect(),
    }
}

/// Cuts a box in two, again and again, each time along the dimension and at the place that a number says.
fn cut(whole: TensorBox, cuts: &[(usize, u64)]) -> Vec<TensorBox> {
    let mut boxes = vec![whole];
    for (dimension, place) in cuts {
        let number = *place as usize % boxes.len();
        let dimension = dimension % boxes[number].shape.len();
        let length = boxes[number].shape[dimension];
        if length < 2 {
            continue;
        }
        let first = 1 + place % (length - 1);
        let mut rest = boxes[number].clone();
        rest.offset[dimension] += first;
        rest.shape[dimension] -= first;
        boxes[number].shape[dimension] = first;
        boxes.push(rest);
    }
    boxes
}

/// Returns how often each element is covered, element by element.
fn is_covered_once(shape: &[u64], boxes: &[TensorBox]) -> bool {
    let has = |at: &TensorBox, place: &[u64]| {
        let mut dimensions = at.offset.iter().zip(&at.shape).zip(place);
        dimensions.all(|((first, length), place)| (*first..first + length).contains(place))
    };
    let elements = shape.iter().product::<u64>();
    (0..elements).all(|element| {
        let mut rest = element;
        let mut place: Vec<u64> = shape
            .iter()
            .rev()
            .map(|length| {
                let here = rest % length;
                rest /= length;
                here
            })
            .collect();
        place.reverse();
        boxes.iter().filter(|at| has(at, &place)).count() == 1
    })
}

proptest! {
    #[test]
    fn parts_cover_a_tensor_if_every_element_is_in_one_of_them(
        shape in prop::collection::vec(1u64..7, 1..4),
        cuts in prop::collection::vec((0usize..4, 0u64..1000), 0..12),
        damage in 0usize..4,
        which in 0usize..100,
        order in any::<u64>(),
    ) {
        let mut boxes = cut(TensorBox::whole(&shape), &cuts);
        let number = which % boxes.len();
        match damage {
            0 => {}
            1 => drop(boxes.remove(number)),
            2 => boxes.push(boxes[number].clone()),
            // One place aside, where there is one: a hole and an overlap, and as many elements as before.
            _ => {
                let dimension = which % shape.len();
                let at = &mut boxes[number];
                if at.offset[dimension] > 0 {
                    at.offset[dimension] -= 1;
                }
            }
        }
        let turn = order as usize % boxes.len().max(1);
        boxes.rotate_left(turn);
        let found = check_cover(&tensor_of(&shape, &boxes), &Weights::new("any")).is_ok();
        prop_assert_eq!(found, is_covered_once(&shape, &boxes), "{:?} {:?}", shape, boxes);
    }
}

#[test]
fn parts_are_compared_quickly_whichever_dimension_is_cut() {
    let count = 100_000;
    for dimension in [0, 1] {
        let mut shape = vec![2, 2];
        shape[dimension] = count;
        let one = |place: u64| {
            let mut at = TensorBox::whole(&shape);
            at.offset[dimension] = place;
            at.shape[dimension] = 1;
            at
        };
        let boxes: Vec<TensorBox> = (0..count).map(one).collect();
        let began = Instant::now();
        check_cover(&tensor_of(&shape, &boxes), &Weights::new("any")).unwrap();
        // Each with each would take minutes.
        assert!(began.elapsed() < Duration::from_secs(15), "along {dimension}");
    }
}

#[test]
fn parts_that_meet_in_every_dimension_are_not_compared_one_by_one() {
    // Rows on the left, columns on the right: along either dimension half of them meet. In pairs these would
    // be 10^10.
    let half = 100_000;
    let at = |offset: [u64; 2], shape: [u64; 2]| TensorBox {
        offset: offset.to_vec(),
        shape: shape.to_vec(),
    };
    let rows = (0..half).map(|row| at([row, 0], [1, half]));
    let columns = (0..half).map(|column| at([0, half + column], [half, 1]));
    let mut boxes: Vec<TensorBox> = rows.chain(columns).collect();
    let shape = [half, 2 * half];
    let weights = Weights::new("any");
    check_cover(&tensor_of(&shape, &boxes), &weights).unwrap();
    boxes[7].offset[0] = 8;
    assert!(check_cover(&tensor_of(&shape, &boxes), &weights).is_err());
}
