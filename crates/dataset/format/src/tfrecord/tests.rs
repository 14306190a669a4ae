use forebay_core::{Kind, crc32c};
use proptest::prelude::*;

use super::*;

fn record(payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u64).to_le_bytes();
    let crc = |bytes: &[u8]| masked(crc32c::crc32c(bytes)).to_le_bytes();
    [&length[..], &crc(&length), payload, &crc(payload)].concat()
}

type Found = Vec<(u64, u64, u32)>;

fn scan(file: &[u8], piece_bytes: usize, size: Option<u64>) -> Result<Found> {
    let mut scanner = TfRecordScanner::new(size);
    let mut found = Vec::new();
    let mut sink = |sample: &SampleRecord<'_>| {
        let field = sample.fields[0];
        found.push((field.offset, field.bytes, field.crc32c.unwrap()));
        Ok(())
    };
    for piece in file.chunks(piece_bytes) {
        scanner.push(piece, &mut sink)?;
    }
    scanner.finish(&mut sink)?;
    Ok(found)
}

/// `tf.io.TFRecordWriter` writes this for the payload `hello`; lengths and CRCs taken from a file of
/// tensorflow's.
#[test]
fn the_mask_is_tensorflows() {
    assert_eq!(masked(0), 0xa282_ead8);
    // RFC 3720: CRC32C of 32 zeros is 0x8a9136aa.
    assert_eq!(crc32c::crc32c(&[0; 32]), 0x8a91_36aa);
    assert_eq!(
        masked(0x8a91_36aa),
        0x8a91_36aa_u32.rotate_right(15).wrapping_add(0xa282_ead8)
    );
}

#[test]
fn records_are_found_with_their_checksums() {
    let file = [record(b"hello"), record(b""), record(&[7; 1000])].concat();
    let found = scan(&file, 100, Some(file.len() as u64)).unwrap();
    let crc = crc32c::crc32c;
    assert_eq!(
        found,
        [(12, 5, crc(b"hello")), (33, 0, 0), (49, 1000, crc(&[7; 1000]))]
    );
    assert!(scan(b"", 1, Some(0)).unwrap().is_empty());
}

#[test]
fn every_flipped_bit_is_noticed() {
    let file = [record(b"hello"), record(b"world")].concat();
    for at in 0..file.len() {
        let mut flipped = file.clone();
        flipped[at] ^= 1 << (at % 8);
        assert_eq!(
            scan(&flipped, 7, None).unwrap_err().kind(),
            Kind::Checksum,
            "{at}"
        );
    }
}

#[test]
fn a_file_that_stops_in_a_record_is_damaged() {
    let file = [record(b"hello"), record(b"world")].concat();
    for end in 1..file.len() {
        let cut = &file[..end];
        let result = (scan(cut, 5, None), scan(cut, 5, Some(end as u64)));
        if end == 21 {
            assert_eq!(result.0.unwrap().len(), 1);
            assert_eq!(result.1.unwrap().len(), 1);
            continue;
        }
        assert_eq!(result.0.unwrap_err().kind(), Kind::Corrupt, "{end}");
        assert_eq!(result.1.unwrap_err().kind(), Kind::Corrupt, "{end}");
    }
}

#[test]
fn a_length_past_the_end_is_refused_before_it_is_waited_for() {
    let length = u64::MAX.to_le_bytes();
    let crc = masked(crc32c::crc32c(&length)).to_le_bytes();
    let file = [&length[..], &crc].concat();
    for size in [None, Some(12)] {
        assert_eq!(scan(&file, 100, size).unwrap_err().kind(), Kind::Corrupt);
    }
}

#[test]
fn a_first_record_that_looks_compressed_is_plain() {
    // The length 0x8b1f has the bytes of gzip's magic.
    let file = record(&vec![0; 0x08_8b1f]);
    assert_eq!(&file[..3], b"\x1f\x8b\x08");
    assert!(is_plain(&file));
    assert!(!is_plain(b"\x1f\x8b\x08\0\0\0\0\0\0\0\0\0"));
    assert!(!is_plain(b""));
}

proptest! {
    #[test]
    fn pieces_of_any_size_find_the_same(payloads in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..60), 0..6), piece in 1_usize..80) {
        let file: Vec<u8> = payloads.iter().flat_map(|payload| record(payload)).collect();
        let whole = scan(&file, file.len().max(1), None).unwrap();
        prop_assert_eq!(whole.len(), payloads.len());
        prop_assert_eq!(scan(&file, piece, Some(file.len() as u64)).unwrap(), whole);
    }
}
