//! Entry points for the formats of shards, for the index and for the documents beside them.

use std::ops::Range;

use bytes::Bytes;
use forebay_core::{Error, Kind, Result, crc32c};

use crate::index::{Field, Index, IndexBuilder, SampleRecord, ShardIndexBuilder, ShardIndexOptions};
use crate::mds::{MdsEncoding, MdsIndex, MdsScanner};
use crate::order::OrderState;
use crate::parquet::ParquetFile;
use crate::raw::Manifest;
use crate::scan::{Decompressor, ScanOptions, ShardScan, ShardScanner};
use crate::shard::{Codec, Format, ShardRecord};
use crate::tar::TarSamples;
use crate::tfrecord::{self, TfRecordScanner};
use crate::tokens::{TokenScanner, TokenType, TokenWindows};
use crate::{foreign, jsonl, manifest, parquet};

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

/// An MDS shard, as it is and with its offsets and sizes made right, and the bytes as a column in every
/// encoding.
///
/// # Panics
/// If pieces matter, or a column lies outside of the shard or has a wrong CRC.
pub fn mds(data: &[u8]) {
    check_scan(data, MdsScanner::new);
    if let Some(sealed) = sealed_mds(data) {
        check_scan(&sealed, MdsScanner::new);
    }
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

/// The document of a shard with what lies behind it, cut into a few samples whose sizes fit.
fn sealed_mds(data: &[u8]) -> Option<Vec<u8>> {
    let start = data.iter().position(|byte| *byte == b'{')?;
    let end = start + data[start..].iter().position(|byte| *byte == b'}')? + 1;
    let (config, rest) = (&data[start..end], &data[end..]);
    let document: serde_json::Value = serde_json::from_slice(config).ok()?;
    let sizes: Vec<usize> = document["column_sizes"]
        .as_array()?
        .iter()
        .map(|size| {
            size.as_u64()
                .and_then(|size| usize::try_from(size).ok())
                .unwrap_or(0)
        })
        .collect();
    let variable = sizes.iter().filter(|size| **size == 0).count();
    let fixed = sizes
        .iter()
        .try_fold(0_usize, |sum, size| sum.checked_add(*size))?;
    let samples = usize::from(data.first()? % 4) + 1;
    let mut bodies = Vec::new();
    for piece in rest.chunks((rest.len() / samples).max(1)).take(samples) {
        let content = piece
            .get(4 * variable..)
            .filter(|content| content.len() >= fixed)?;
        let mut left = if variable == 0 { 0 } else { content.len() - fixed };
        let mut body = Vec::new();
        for column in 0..variable {
            // All but the last column take some of what is left, as the bytes say.
            let some = usize::from(piece[4 * column]) % (left + 1);
            let size = if column + 1 == variable { left } else { some };
            left -= size;
            body.extend(u32::try_from(size).ok()?.to_le_bytes());
        }
        body.extend(&content[..if variable == 0 { fixed } else { content.len() }]);
        bodies.push(body);
    }
    let mut shard = u32::try_from(bodies.len()).ok()?.to_le_bytes().to_vec();
    let mut offset = u32::try_from(4 * (bodies.len() + 2) + config.len()).ok()?;
    shard.extend(offset.to_le_bytes());
    for body in &bodies {
        offset = offset.checked_add(u32::try_from(body.len()).ok()?)?;
        shard.extend(offset.to_le_bytes());
    }
    shard.extend(config);
    shard.extend(bodies.concat());
    Some(shard)
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
            let _ = (sample.crc32c(), sample.span(), sample.bytes());
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
    if let Some((start, length)) = section(&bytes, 2).filter(|(start, _)| *start < bytes.len()) {
        for row in (0..length / 32).take(1000).map(|row| start + row * 32) {
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

/// The documents that lie beside data: wids, DALI, `index.json`, manifests of labels, `SHA256SUMS` and its
/// signatures, states of loaders.
///
/// # Panics
/// If a name leads out of the folder, or a manifest or state that was read is another one when it is written
/// and read again.
pub fn dataset_documents(data: &[u8]) {
    let mut builder = ShardIndexBuilder::new(ShardIndexOptions::default());
    let _ = foreign::wids(data);
    let _ = foreign::dali_tar(data, &mut builder);
    let _ = foreign::dali_tfrecord(data, &mut builder);
    if let Ok(index) = MdsIndex::parse(data) {
        for shard in &index.shards {
            let record = shard.record().expect("it was checked");
            assert!(stays_inside(&record.name));
        }
    }
    let text = String::from_utf8_lossy(data);
    let _ = Manifest::csv(&text);
    let _ = Manifest::jsonl(&text);
    if let Ok(sums) = manifest::Manifest::parse(data) {
        assert!(sums.entries().all(|(name, _)| stays_inside(name)));
        let written = sums.to_text();
        assert_eq!(manifest::Manifest::parse(written.as_bytes()).ok(), Some(sums));
    }
    let key = manifest::SecretKey::from_seed(&[7; 32]);
    assert!(manifest::verify(b"other bytes", &text, &[key.public()]).is_err());
    let _ = manifest::PublicKey::from_pem(&text);
    let _ = manifest::SecretKey::from_pem(&text);
    if let Ok(state) = OrderState::from_json(&text) {
        assert_eq!(OrderState::from_json(&state.to_json()).ok(), Some(state));
    }
}

fn stays_inside(name: &str) -> bool {
    !name.starts_with('/') && name.split('/').all(|part| part != "..")
}

/// A Parquet file by its footer; then some of its pages, found in both ways.
///
/// # Panics
/// If a scan of the file says something else than its footer, or a row lies outside of its page.
pub fn parquet_footer(data: &[u8]) {
    if let Ok(file) = ParquetFile::parse(data, data.len() as u64) {
        for group in 0..file.groups().min(3) {
            for leaf in 0..file.leaves().len().min(8) {
                parquet_pages(&file, group, leaf, data);
            }
        }
    }
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

fn parquet_pages(file: &ParquetFile, group: usize, leaf: usize, data: &[u8]) {
    const ROWS_MAX: u64 = 4096;
    let part = |range: Range<u64>| {
        let range = usize::try_from(range.start).ok()?..usize::try_from(range.end).ok()?;
        data.get(range).map(Bytes::copy_from_slice)
    };
    let bytes_of = |range: Result<Option<Range<u64>>>| range.ok().flatten().and_then(part);
    if let Some(index) = bytes_of(file.page_bounds_range(group, leaf)) {
        let _ = file.page_bounds(group, leaf, &index);
    }
    let by_index = bytes_of(file.page_index_range(group, leaf));
    let by_index = by_index.and_then(|index| file.pages_of_index(group, leaf, &index).ok());
    let chunk = bytes_of(file.chunk_range(group, leaf).map(Some));
    let by_headers = chunk.and_then(|chunk| file.pages_of_chunk(group, leaf, chunk).ok());
    for table in [by_index, by_headers].into_iter().flatten() {
        for page in 0..u32::try_from(table.len()).unwrap_or_default().min(3) {
            let rows = table.rows(page);
            let pieces = table.ranges(page).map(|range| Some((range.start, part(range)?)));
            let Some(pieces) = pieces.collect::<Option<Vec<_>>>() else {
                continue;
            };
            if rows.end - rows.start > ROWS_MAX {
                continue;
            }
            let Ok(slab) = parquet::decode(file, (group, leaf), &table, page, parquet::Pieces(pieces)) else {
                continue;
            };
            for row in rows {
                let place = slab.row(row).expect("a row of the page");
                let bytes = place.map(|place| &slab.as_ref()[place]);
                let leaf = &file.leaves()[leaf];
                let _ = bytes.map(|bytes| parquet::to_text(leaf.kind, leaf.is_list(), bytes));
            }
        }
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
