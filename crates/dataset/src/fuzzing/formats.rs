//! Entry points for the formats of shards, for the index and for the documents beside them.

use forebay_core::{Error, Kind, Result, crc32c};

use crate::index::{Field, Index, IndexBuilder, SampleRecord, ShardIndexBuilder, ShardIndexOptions};
use crate::mds::{MdsEncoding, MdsIndex, MdsScanner};
use crate::raw::Manifest;
use crate::scan::{Decompressor, ScanOptions, ShardScan, ShardScanner};
use crate::shard::{Codec, Format, ShardRecord};
use crate::tar::TarSamples;
use crate::tfrecord::{self, TfRecordScanner};
use crate::tokens::{TokenScanner, TokenType, TokenWindows};
use crate::{foreign, jsonl, parquet};

/// A found sample: key, then name, offset, bytes and CRC of each field.
type Found = (Option<Vec<u8>>, Vec<(String, u64, u64, Option<u32>)>);

/// The samples, if the shard comes in pieces of this size.
fn scan(mut scanner: impl ShardScanner, shard: &[u8], piece_bytes: usize) -> Result<Vec<Found>> {
    let mut found = Vec::new();
    let mut sink = |sample: &SampleRecord<'_>| {
        let own = |field: &Field<'_>| (field.name.to_owned(), field.offset, field.bytes, field.crc32c);
        found.push((
            sample.key.map(<[u8]>::to_vec),
            sample.fields.iter().map(own).collect(),
        ));
        Ok(())
    };
    for piece in shard.chunks(piece_bytes) {
        scanner.push(piece, &mut sink)?;
    }
    scanner.finish(&mut sink)?;
    Ok(found)
}

/// Pieces must not matter, and every field must lie in the shard and have the CRC that was found.
fn check_scan<S: ShardScanner>(shard: &[u8], scanner: impl Fn(Option<u64>) -> S) {
    let size = Some(shard.len() as u64);
    let whole = scan(scanner(size), shard, shard.len().max(1));
    let pieces = scan(scanner(size), shard, 100);
    match (&whole, &pieces) {
        (Ok(whole), Ok(pieces)) => assert_eq!(whole, pieces),
        // Of two faults either may be met first.
        _ => assert_eq!(whole.is_ok(), pieces.is_ok(), "{whole:?} {pieces:?}"),
    }
    let Ok(samples) = whole else { return };
    // What is right is right too when the size comes last, as it does for compressed shards.
    let unknown = scan(scanner(None), shard, 333).expect("the size is not needed for a whole shard");
    assert_eq!(unknown, samples);
    for (_, offset, bytes, crc) in samples.iter().flat_map(|(_, fields)| fields) {
        let place = usize::try_from(*offset).ok().zip(usize::try_from(*bytes).ok());
        let content = place.and_then(|(start, bytes)| shard.get(start..start.checked_add(bytes)?));
        let content = content.expect("a field lies in its shard");
        assert_eq!(*crc, Some(crc32c::crc32c(content)));
    }
}

/// The samples of a tar archive, as it is and with the checksums of its headers made right.
///
/// # Panics
/// If pieces matter, or a field lies outside of the archive or has a wrong CRC.
pub fn tar_samples(data: &[u8]) {
    check_scan(data, TarSamples::new);
    check_scan(&super::sealed_tar(data), TarSamples::new);
}

/// A TFRecord file, as it is and with its checksums made right; each payload is decoded, too.
///
/// # Panics
/// If pieces matter, or a record lies outside of the file or has a wrong CRC.
pub fn tfrecord(data: &[u8]) {
    check_scan(data, TfRecordScanner::new);
    let mut sealed = data.to_vec();
    let mut at = 0_usize;
    while let Some(length) = sealed.get(at..at + 8) {
        let crc = tfrecord::masked(crc32c::crc32c(length));
        let bytes = u64::from_le_bytes(length.try_into().expect("eight bytes"));
        let end = usize::try_from(bytes)
            .ok()
            .and_then(|bytes| (at + 12).checked_add(bytes));
        if let Some(stored) = sealed.get_mut(at + 8..at + 12) {
            stored.copy_from_slice(&crc.to_le_bytes());
        }
        let Some(payload) = end.and_then(|end| sealed.get(at + 12..end)) else {
            break;
        };
        let _ = tfrecord::decode_example(payload);
        let _ = tfrecord::decode_sequence_example(payload);
        let (crc, end) = (tfrecord::masked(crc32c::crc32c(payload)), at + 12 + payload.len());
        let Some(stored) = sealed.get_mut(end..end + 4) else {
            break;
        };
        stored.copy_from_slice(&crc.to_le_bytes());
        at = end + 4;
    }
    check_scan(&sealed, TfRecordScanner::new);
    let _ = tfrecord::decode_example(data);
    let _ = tfrecord::decode_sequence_example(data);
}

/// An MDS shard, and the bytes as a column in every encoding.
///
/// # Panics
/// If pieces matter, or a column lies outside of the shard or has a wrong CRC.
pub fn mds(data: &[u8]) {
    check_scan(data, MdsScanner::new);
    for name in [
        "str",
        "int",
        "int16",
        "float16",
        "str_int",
        "str_float",
        "pil",
        "jpeg_array",
        "list[pil]",
        "list[png]",
        "ndarray",
        "ndarray:int8",
        "ndarray:float32:2,3",
    ] {
        let _ = MdsEncoding::parse(name).expect("it is one").decode(data);
    }
}

/// Tokens with and without a header, and lines.
///
/// # Panics
/// If pieces matter, or a window or line lies outside of the file or has a wrong CRC.
pub fn tokens(data: &[u8]) {
    for (length, stride) in [(3, 3), (5, 2), (1, 7)] {
        let windows = |token| TokenWindows {
            length,
            stride,
            token,
        };
        check_scan(data, |_| {
            TokenScanner::npy(windows(None)).expect("windows are right")
        });
        check_scan(data, |_| {
            TokenScanner::bin(windows(Some(TokenType::U16))).expect("windows are right")
        });
    }
    check_scan(data, |_| jsonl::JsonlScanner::new());
}

/// An index, as it is and with all its checksums made right.
///
/// # Panics
/// If an index that opens cannot be taken apart and joined again.
pub fn dataset_index(data: &[u8]) {
    check_index(data);
    check_index(&sealed_index(data));
}

fn check_index(data: &[u8]) {
    let Ok(index) = Index::from_bytes(data.to_vec()) else {
        return;
    };
    for number in (0..index.len())
        .take(200)
        .chain([index.len().wrapping_sub(1), u64::MAX])
    {
        if let Ok(sample) = index.sample(number) {
            let _ = (sample.crc32c(), sample.span());
        }
        for column in index.head().meta().columns.keys() {
            let _ = index.value(column, number);
        }
    }
    let _ = index.find_key(b"key");
    let mut builder = IndexBuilder::new();
    for number in 0..index.shard_count() {
        let Ok(shard) = index.shard_index(number) else {
            return;
        };
        // Columns of one name may have different kinds in a hostile index.
        let Ok(()) = builder.add(shard) else { return };
    }
    let joined = builder.finish().expect("it was an index");
    let joined = Index::from_bytes(joined).expect("what was joined can be opened");
    assert_eq!(joined.len(), index.len());
}

/// Makes every CRC right that can be reached.
fn sealed_index(data: &[u8]) -> Vec<u8> {
    let mut bytes = data.to_vec();
    let number = |bytes: &[u8], at: usize| -> Option<usize> {
        usize::try_from(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?)).ok()
    };
    let put = |bytes: &mut [u8], at: usize, crc: u32| {
        if let Some(place) = bytes.get_mut(at..at + 4) {
            place.copy_from_slice(&crc.to_le_bytes());
        }
    };
    let part = |bytes: &[u8], start: usize, length: usize| -> Option<u32> {
        bytes.get(start..start.checked_add(length)?).map(crc32c::crc32c)
    };
    // The rows of pieces are the third section: where they lie, and how long they are, stands in the table.
    let section = |bytes: &[u8], which: usize| {
        Some((
            number(bytes, 64 + 32 * which + 8)?,
            number(bytes, 64 + 32 * which + 16)?,
        ))
    };
    if let Some((start, length)) = section(&bytes, 2) {
        for row in (0..length / 32)
            .take(1000)
            .map(|row| start.saturating_add(row * 32))
        {
            let piece = || {
                let length = u32::from_le_bytes(bytes.get(row + 16..row + 20)?.try_into().ok()?);
                part(&bytes, number(&bytes, row + 8)?, length as usize)
            };
            if let Some(crc) = piece() {
                put(&mut bytes, row + 28, crc);
            }
        }
    }
    for which in 0..4 {
        let crc = section(&bytes, which).and_then(|(start, length)| part(&bytes, start, length));
        if let Some(crc) = crc {
            put(&mut bytes, 64 + 32 * which + 4, crc);
        }
    }
    if let Some(crc) = part(&bytes, 64, 160) {
        put(&mut bytes, 56, crc);
    }
    if let Some(crc) = part(&bytes, 0, 60) {
        put(&mut bytes, 60, crc);
    }
    bytes
}

/// The documents that lie beside data: wids, DALI, `index.json`, manifests of labels.
pub fn dataset_documents(data: &[u8]) {
    let mut builder = ShardIndexBuilder::new(ShardIndexOptions::default());
    let _ = foreign::wids(data);
    let _ = foreign::dali_tar(data, &mut builder);
    let _ = foreign::dali_tfrecord(data, &mut builder);
    if let Ok(index) = MdsIndex::parse(data) {
        for shard in &index.shards {
            let record = shard.record().expect("it was checked");
            assert!(!record.name.starts_with('/') && !record.name.contains(".."));
        }
    }
    let text = String::from_utf8_lossy(data);
    let _ = Manifest::csv(&text);
    let _ = Manifest::jsonl(&text);
}

/// A Parquet file by its footer.
///
/// # Panics
/// If a scan of the file says something else than its footer.
pub fn parquet_footer(data: &[u8]) {
    let record = ShardRecord::new("x", Format::Parquet, data.len() as u64);
    let by_footer = parquet::index_footer(data, record.clone());
    let mut options = ScanOptions::new(Format::Parquet);
    options.with_sha256 = false;
    let mut scan = ShardScan::new(record, options);
    let pushed = data.chunks(777).try_for_each(|piece| scan.push(piece));
    let Ok(()) = pushed else { return };
    match (scan.finish(), by_footer) {
        (Ok(one), Ok(other)) => assert_eq!(one, other),
        (one, other) => assert_eq!(one.is_ok(), other.is_ok()),
    }
}

/// A compressed stream of each kind.
///
/// # Panics
/// If pieces matter.
pub fn shard_codec(data: &[u8]) {
    for codec in Codec::ALL.into_iter().filter(|codec| *codec != Codec::None) {
        let (whole, pieces) = (unpack(codec, data, data.len().max(1)), unpack(codec, data, 3));
        match (&whole, &pieces) {
            (Ok(whole), Ok(pieces)) => assert_eq!(whole, pieces),
            _ => assert_eq!(whole.is_ok(), pieces.is_ok(), "{whole:?} {pieces:?}"),
        }
    }
}

/// The first bytes of a stream, and how many there are.
fn unpack(codec: Codec, data: &[u8], piece_bytes: usize) -> Result<(Vec<u8>, u64)> {
    const PLAIN_BYTES_MAX: usize = 4 << 20;
    let mut decompressor = Decompressor::new(codec)?.expect("it is one");
    let mut plain = Vec::new();
    for piece in data.chunks(piece_bytes) {
        decompressor.push(piece, &mut |bytes| {
            plain.extend_from_slice(bytes);
            if plain.len() > PLAIN_BYTES_MAX {
                return Err(Error::new(Kind::Unsupported, "enough"));
            }
            Ok(())
        })?;
    }
    decompressor.finish()?;
    let total = decompressor.stream_bytes();
    Ok((plain, total))
}
