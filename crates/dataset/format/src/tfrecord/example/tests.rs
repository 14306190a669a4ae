use proptest::prelude::*;

use super::*;

fn varint(mut number: u64) -> Vec<u8> {
    let mut out = Vec::new();
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
    out
}

fn field(number: u64, inner: &[u8]) -> Vec<u8> {
    [
        varint(number << 3 | 2),
        varint(inner.len() as u64),
        inner.to_vec(),
    ]
    .concat()
}

fn entry(key: &str, value: &[u8]) -> Vec<u8> {
    field(1, &[field(1, key.as_bytes()), field(2, value)].concat())
}

fn ints_packed(numbers: &[i64]) -> Vec<u8> {
    let packed: Vec<u8> = numbers
        .iter()
        .flat_map(|number| varint(number.cast_unsigned()))
        .collect();
    field(3, &field(1, &packed))
}

fn ints_unpacked(numbers: &[i64]) -> Vec<u8> {
    let each = numbers
        .iter()
        .flat_map(|number| [varint(1 << 3), varint(number.cast_unsigned())].concat());
    field(3, &each.collect::<Vec<u8>>())
}

fn floats_packed(numbers: &[f32]) -> Vec<u8> {
    field(
        2,
        &field(
            1,
            &numbers
                .iter()
                .flat_map(|number| number.to_le_bytes())
                .collect::<Vec<u8>>(),
        ),
    )
}

fn floats_unpacked(numbers: &[f32]) -> Vec<u8> {
    let each = numbers
        .iter()
        .flat_map(|number| [vec![1 << 3 | 5], number.to_le_bytes().to_vec()].concat());
    field(2, &each.collect::<Vec<u8>>())
}

/// Serialised `tf.train.Example` with `{"label": [7], "name": [b"ab"]}`, written out by hand from the
/// wire format.
const GOLDEN: &[u8] =
    b"\x0a\x1f\x0a\x0e\x0a\x05label\x12\x05\x1a\x03\x0a\x01\x07\x0a\x0d\x0a\x04name\x12\x05\x0a\x03\x0a\x01a";

#[test]
fn an_example_written_by_hand_is_read() {
    let features = decode_example(GOLDEN).unwrap();
    assert_eq!(features["label"], Feature::Ints(vec![7]));
    assert_eq!(features["name"], Feature::Bytes(vec![b"a"]));
}

#[test]
fn packed_and_unpacked_lists_are_the_same() {
    let ints = [0, 1, -1, i64::MIN, i64::MAX];
    for encoded in [ints_packed(&ints), ints_unpacked(&ints)] {
        let example = field(1, &entry("x", &encoded));
        assert_eq!(
            decode_example(&example).unwrap()["x"],
            Feature::Ints(ints.to_vec())
        );
    }
    let floats = [0.0, -1.5, f32::INFINITY];
    for encoded in [floats_packed(&floats), floats_unpacked(&floats)] {
        let example = field(1, &entry("x", &encoded));
        assert_eq!(
            decode_example(&example).unwrap()["x"],
            Feature::Floats(floats.to_vec())
        );
    }
}

#[test]
fn the_order_of_a_map_entry_and_unknown_fields_do_not_matter() {
    let swapped = field(
        1,
        &[field(2, &ints_packed(&[5])), field(9, b"??"), field(1, b"x")].concat(),
    );
    let unknown = [varint(7 << 3), varint(1), varint(8 << 3 | 1), vec![0; 8]].concat();
    let example = [unknown, field(1, &swapped)].concat();
    assert_eq!(decode_example(&example).unwrap()["x"], Feature::Ints(vec![5]));
}

#[test]
fn the_last_of_a_repeated_key_and_of_several_kinds_counts() {
    let twice = [entry("x", &ints_packed(&[1])), entry("x", &ints_packed(&[2]))].concat();
    assert_eq!(
        decode_example(&field(1, &twice)).unwrap()["x"],
        Feature::Ints(vec![2])
    );
    let kinds = [ints_packed(&[1]), floats_packed(&[2.0])].concat();
    let example = field(1, &entry("x", &kinds));
    assert_eq!(decode_example(&example).unwrap()["x"], Feature::Floats(vec![2.0]));
    let goes_on = [ints_packed(&[1]), ints_unpacked(&[2])].concat();
    let example = field(1, &entry("x", &goes_on));
    assert_eq!(decode_example(&example).unwrap()["x"], Feature::Ints(vec![1, 2]));
}

#[test]
fn a_sequence_has_context_and_steps() {
    let steps = [field(1, &ints_packed(&[1])), field(1, &ints_packed(&[2, 3]))].concat();
    let example = [
        field(1, &entry("n", &ints_packed(&[2]))),
        field(2, &entry("ids", &steps)),
    ]
    .concat();
    let example = decode_sequence_example(&example).unwrap();
    assert_eq!(example.context["n"], Feature::Ints(vec![2]));
    assert_eq!(
        example.feature_lists["ids"],
        [Feature::Ints(vec![1]), Feature::Ints(vec![2, 3])]
    );
}

#[test]
fn damage_is_an_error() {
    for end in 1..GOLDEN.len() {
        assert_eq!(
            decode_example(&GOLDEN[..end]).unwrap_err().kind(),
            Kind::Corrupt,
            "{end}"
        );
    }
    for bad in [
        &b"\x0b"[..],
        b"\x00\x00",
        b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        b"\x0a\xff\xff\xff\xff\x0f",
    ] {
        assert!(decode_example(bad).is_err(), "{bad:?}");
    }
    assert!(decode_example(b"").unwrap().is_empty());
}

proptest! {
    #[test]
    fn garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = decode_example(&bytes);
        let _ = decode_sequence_example(&bytes);
    }
}
