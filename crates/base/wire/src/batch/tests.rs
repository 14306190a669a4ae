//! An answer comes back however it is cut; a wrong one is noticed.

use proptest::prelude::*;

use super::*;
use crate::encode;

fn failure(message: &str) -> Failure {
    Failure::from(&Error::new(Kind::NotFound, message).with("key", "a"))
}

fn item(bytes: u64) -> BatchItem {
    BatchItem {
        version: "v1".into(),
        object_bytes: 100,
        offset: 7,
        bytes,
    }
}

fn put(out: &mut Vec<u8>, frame: &BatchFrame) {
    encode(frame, out).unwrap();
}

fn put_chunk(out: &mut Vec<u8>, bytes: &[u8]) {
    let chunk = BatchFrame::Chunk {
        bytes: u32::try_from(bytes.len()).unwrap(),
        crc32c: crc32c::crc32c(bytes),
    };
    put(out, &chunk);
    out.extend_from_slice(bytes);
}

/// Three items: whole in two chunks, failed, broken off; then an empty one.
fn answer() -> Vec<u8> {
    let mut out = Vec::new();
    put(&mut out, &BatchFrame::Found(item(5)));
    put_chunk(&mut out, b"abc");
    put_chunk(&mut out, b"de");
    put(&mut out, &BatchFrame::End(TierBytes::default()));
    put(&mut out, &BatchFrame::Failed(failure("there is no such object")));
    put(&mut out, &BatchFrame::Found(item(9)));
    put_chunk(&mut out, b"xyz");
    put(&mut out, &BatchFrame::Broken(failure("the lake is gone")));
    put(&mut out, &BatchFrame::Found(item(0)));
    put(&mut out, &BatchFrame::End(TierBytes::default()));
    put(&mut out, &BatchFrame::Done { items: 4 });
    out
}

/// Returns what an answer says, with the bytes of an item joined.
fn read(pieces: &[&[u8]], items: usize) -> Result<(Vec<String>, bool)> {
    let mut decoder = BatchDecoder::new(items);
    let mut said = Vec::new();
    let mut bytes = Vec::new();
    for piece in pieces {
        let mut input = *piece;
        while let Some(event) = decoder.next(&mut input)? {
            match event {
                BatchEvent::Found(item) => {
                    bytes.clear();
                    said.push(format!("found {}", item.bytes));
                }
                BatchEvent::Bytes(more) => bytes.extend_from_slice(more),
                BatchEvent::End(_) => said.push(format!("end {}", String::from_utf8_lossy(&bytes))),
                BatchEvent::Failed(failure) => said.push(format!("failed {}", failure.message)),
                BatchEvent::Done => said.push("done".into()),
            }
        }
        assert!(input.is_empty());
    }
    Ok((said, decoder.is_done()))
}

const SAID: [&str; 8] = [
    "found 5",
    "end abcde",
    "failed there is no such object",
    "found 9",
    "failed the lake is gone",
    "found 0",
    "end ",
    "done",
];

#[test]
fn an_answer_cut_in_single_bytes_says_the_same() {
    let answer = answer();
    let bytes: Vec<&[u8]> = answer.chunks(1).collect();
    assert_eq!(read(&bytes, 4).unwrap().0, SAID);
    assert_eq!(
        read(&[&answer], 4).unwrap(),
        (SAID.map(String::from).to_vec(), true)
    );
}

#[test]
fn an_answer_that_ends_early_is_not_done() {
    let answer = answer();
    for end in 0..answer.len() {
        let (_, done) = read(&[&answer[..end]], 4).unwrap();
        assert!(!done, "{end}");
    }
}

#[test]
fn a_flipped_bit_never_passes() {
    let answer = answer();
    for bit in 0..answer.len() * 8 {
        let mut bad = answer.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        let whole = read(&[&bad], 4).is_ok_and(|(_, done)| done);
        assert!(!whole, "bit {bit}");
    }
}

#[test]
fn another_number_of_items_is_an_error() {
    assert_eq!(read(&[&answer()], 3).unwrap_err().kind(), Kind::Corrupt);
    assert_eq!(read(&[&answer()], 5).unwrap_err().kind(), Kind::Corrupt);
}

#[test]
fn an_item_without_all_its_bytes_cannot_end() {
    let mut out = Vec::new();
    put(&mut out, &BatchFrame::Found(item(5)));
    put_chunk(&mut out, b"abc");
    put(&mut out, &BatchFrame::End(TierBytes::default()));
    assert_eq!(read(&[&out], 1).unwrap_err().kind(), Kind::Corrupt);
    let mut out = Vec::new();
    put(&mut out, &BatchFrame::Found(item(2)));
    put_chunk(&mut out, b"abc");
    assert_eq!(read(&[&out], 1).unwrap_err().kind(), Kind::Corrupt);
}

#[test]
fn golden_bytes_of_an_answer() {
    let mut out = Vec::new();
    put(
        &mut out,
        &BatchFrame::Chunk {
            bytes: 300,
            crc32c: 1,
        },
    );
    assert_eq!(out[8..12], [4, 0, 0, 0]);
    assert_eq!(out[HEADER_BYTES..], [2, 0xac, 2, 1]);
    out.clear();
    put(&mut out, &BatchFrame::Done { items: 4 });
    assert_eq!(out[HEADER_BYTES..], [5, 4]);
}

proptest! {
    #[test]
    fn garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..400), cut in 0_usize..400) {
        let cut = cut.min(bytes.len());
        let _ = read(&[&bytes[..cut]], 4);
        let mut mixed = answer();
        let at = cut.min(mixed.len());
        mixed.splice(at..at, bytes);
        let _ = read(&[&mixed], 4);
    }
}
