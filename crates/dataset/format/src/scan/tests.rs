use std::io::Write;

use forebay_core::crc32c;

use super::*;
use crate::index::{Index, IndexBuilder};
use crate::tokens::TokenType;

fn record(payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u64).to_le_bytes();
    let crc = |bytes: &[u8]| tfrecord::masked(crc32c::crc32c(bytes)).to_le_bytes();
    [&length[..], &crc(&length), payload, &crc(payload)].concat()
}

fn records() -> Vec<u8> {
    (0..50_u8)
        .flat_map(|number| record(&vec![number; usize::from(number) * 7]))
        .collect()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn zlib(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    zstd::encode_all(bytes, 1).unwrap()
}

fn bzip2(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn scan(format: Format, bytes: &[u8], piece_bytes: usize) -> Result<ShardIndex> {
    let mut options = ScanOptions::new(format);
    options.tokens = Some(TokenWindows {
        length: 4,
        stride: 4,
        token: Some(TokenType::U16),
    });
    let record = ShardRecord::new("x", format, bytes.len() as u64).with_version("v");
    let mut scan = ShardScan::new(record, options);
    for piece in bytes.chunks(piece_bytes) {
        scan.push(piece)?;
    }
    scan.finish()
}

fn open(shard: ShardIndex) -> Index {
    let mut builder = IndexBuilder::new();
    builder.add(shard).unwrap();
    Index::from_bytes(builder.finish().unwrap()).unwrap()
}

#[test]
fn a_compressed_shard_has_the_samples_of_the_plain_one() {
    let plain = records();
    let expected = open(scan(Format::TfRecord, &plain, 999).unwrap());
    assert_eq!(expected.len(), 50);
    for (codec, bytes) in [
        (Codec::Gzip, gzip(&plain)),
        (Codec::Gzip, [gzip(&plain[..500]), gzip(&plain[500..])].concat()),
        (Codec::Zlib, zlib(&plain)),
        (Codec::Zstd, zstd(&plain)),
        (Codec::Zstd, [zstd(&plain[..500]), zstd(&plain[500..])].concat()),
        (Codec::Bzip2, bzip2(&plain)),
    ] {
        for piece_bytes in [1, 13, bytes.len()] {
            let index = open(scan(Format::TfRecord, &bytes, piece_bytes).unwrap());
            assert_eq!(index.len(), 50);
            for number in 0..50 {
                assert_eq!(index.sample(number).unwrap(), expected.sample(number).unwrap());
            }
            let shard = index.shard(0).unwrap().record();
            assert_eq!(
                (shard.codec, shard.bytes, shard.stream_bytes),
                (codec, bytes.len() as u64, plain.len() as u64)
            );
            assert_eq!(shard.sha256, Some(Sha256::digest(&bytes).into()));
            assert!(shard.is_compressed());
        }
    }
}

#[test]
fn a_cut_or_damaged_stream_is_corrupt() {
    let plain = records();
    for bytes in [gzip(&plain), zlib(&plain), zstd(&plain), bzip2(&plain)] {
        for end in (1..bytes.len()).step_by(7) {
            assert!(scan(Format::TfRecord, &bytes[..end], 100).is_err(), "{end}");
        }
        let mut damaged = bytes.clone();
        // In the checksum behind the data, and not in the bits that fill bzip2's last byte.
        let at = damaged.len() - 3;
        damaged[at] ^= 0x40;
        if bytes[0] != 0x28 {
            // Zstandard's checksum is optional; the others' are not.
            assert_eq!(
                scan(Format::TfRecord, &damaged, 100).unwrap_err().kind(),
                Kind::Corrupt
            );
        }
    }
}

#[test]
fn a_shard_that_unpacks_to_much_is_scanned_in_little_memory() {
    let zeros = vec![b' '; 64 << 20];
    for bytes in [gzip(&zeros), zstd(&zeros), bzip2(&zeros)] {
        let shard = scan(Format::Jsonl, &bytes, 100).unwrap();
        assert_eq!((shard.samples(), shard.record().stream_bytes), (0, 64 << 20));
    }
}

#[test]
fn gzip_headers_with_names_and_zeros_behind_the_end_are_read() {
    let mut encoder = flate2::GzBuilder::new()
        .filename("a.tfrecord")
        .comment("c")
        .extra(vec![1, 2, 3])
        .write(Vec::new(), flate2::Compression::fast());
    encoder.write_all(&records()).unwrap();
    let mut bytes = encoder.finish().unwrap();
    bytes.extend([0; 100]);
    for piece_bytes in [1, bytes.len()] {
        assert_eq!(scan(Format::TfRecord, &bytes, piece_bytes).unwrap().samples(), 50);
    }
    bytes.push(1);
    assert_eq!(
        scan(Format::TfRecord, &bytes, 100).unwrap_err().kind(),
        Kind::Corrupt
    );
}

#[test]
fn fewer_bytes_than_the_shard_has_are_noticed() {
    let bytes = records();
    let record = ShardRecord::new("x", Format::TfRecord, bytes.len() as u64);
    let mut scan = ShardScan::new(record, ScanOptions::new(Format::TfRecord));
    scan.push(&bytes[..bytes.len() - 1]).unwrap();
    let error = scan.finish().unwrap_err();
    assert_eq!(error.kind(), Kind::Changed);
    assert!(error.to_string().contains("shard: x"), "{error}");
}

#[test]
fn empty_shards_have_no_samples() {
    for format in [Format::TfRecord, Format::Jsonl, Format::Bin] {
        let shard = scan(format, b"", 1).unwrap();
        assert_eq!(shard.samples(), 0, "{format:?}");
    }
    for format in [Format::Tar, Format::Mds, Format::Npy] {
        assert_eq!(
            scan(format, b"", 1).unwrap_err().kind(),
            Kind::Corrupt,
            "{format:?}"
        );
    }
}

#[test]
fn short_shards_are_scanned_although_their_codec_is_never_clear() {
    assert_eq!(scan(Format::Jsonl, b"1\n2", 1).unwrap().samples(), 2);
    assert_eq!(scan(Format::Bin, &[0; 11], 1).unwrap().samples(), 1);
}

#[test]
fn numbers_that_look_compressed_are_numbers() {
    let mut bytes = vec![0x1f, 0x8b, 8, 0];
    bytes.resize(64, 0);
    let shard = scan(Format::Bin, &bytes, 64).unwrap();
    assert_eq!((shard.samples(), shard.record().codec), (8, Codec::None));
}

#[test]
fn a_shard_that_does_not_unpack_to_the_promised_size_is_corrupt() {
    let plain = records();
    for bytes in [gzip(&plain), zstd(&plain), bzip2(&plain)] {
        for promised in [0, plain.len() - 1, plain.len(), plain.len() + 1] {
            let mut options = ScanOptions::new(Format::TfRecord);
            options.stream_bytes = Some(promised as u64);
            let record = ShardRecord::new("x", Format::TfRecord, bytes.len() as u64);
            let mut scan = ShardScan::new(record, options);
            let found = bytes.chunks(90).try_for_each(|piece| scan.push(piece));
            let found = found.and_then(|()| scan.finish()).map_err(|error| error.kind());
            let expected = if promised == plain.len() {
                Ok(50)
            } else {
                Err(Kind::Corrupt)
            };
            assert_eq!(found.map(|shard| shard.samples()), expected, "{promised}");
        }
    }
}
