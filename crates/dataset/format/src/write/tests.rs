//! Tests: written shards are read again, by the scanners that read everybody's shards; sizes are what was
//! said; bytes do not change.

use sha2::{Digest as _, Sha256};

use super::*;
use crate::index::{Index, IndexBuilder};
use crate::manifest::Digest;
use crate::mds::MdsIndex;
use crate::scan::{ScanOptions, ShardScan};
use crate::shard::ShardRecord;
use crate::tfrecord::{Feature, decode_example};

type Owned = (Vec<u8>, Vec<(String, Vec<u8>)>);

fn samples() -> Vec<Owned> {
    let long = "d/".repeat(80) + "deep";
    let sample = |key: &str, jpg: usize, cls: &str| {
        let jpg = (0..jpg).map(|byte| byte as u8).collect();
        (key.into(), vec![("cls".into(), cls.into()), ("jpg".into(), jpg)])
    };
    vec![
        sample("a/0001", 1000, "7"),
        sample("a/0002", 0, ""),
        sample(&long, 512, "12"),
        sample("b", 200_000, "x"),
    ]
}

fn columns() -> Vec<MdsColumn> {
    ["__key__", "cls", "jpg"]
        .iter()
        .map(|name| MdsColumn::of_field(name))
        .collect()
}

fn write(format: &PackFormat, samples: &[Owned]) -> Vec<u8> {
    let sizes: Vec<u64> = samples.iter().map(|sample| size(format, sample)).collect();
    let expected = format.overhead_bytes(sizes.len() as u64) + sizes.iter().sum::<u64>();
    let (shard, _) = finished(format, sizes, samples);
    assert_eq!(shard.len() as u64, expected, "{format:?}");
    shard
}

/// A shard of these samples, and the writer that has finished it.
fn finished(format: &PackFormat, sizes: Vec<u64>, samples: &[Owned]) -> (Vec<u8>, Box<dyn ShardWriter>) {
    let mut shard = Vec::new();
    let mut out = |bytes: &[u8]| {
        shard.extend_from_slice(bytes);
        Ok(())
    };
    let mut writer = format.writer(sizes);
    writer.start(&mut out).unwrap();
    for (key, fields) in samples {
        let fields: Vec<(&str, &[u8])> = fields
            .iter()
            .map(|(name, bytes)| (name.as_str(), bytes.as_slice()))
            .collect();
        writer
            .sample(&PackSample { key, fields: &fields }, &mut out)
            .unwrap();
    }
    writer.finish(&mut out).unwrap();
    (shard, writer)
}

fn size(format: &PackFormat, (key, fields): &Owned) -> u64 {
    let fields: Vec<(&str, u64)> = fields
        .iter()
        .map(|(name, bytes)| (name.as_str(), bytes.len() as u64))
        .collect();
    format
        .sample_bytes(&SampleShape { key, fields: &fields })
        .unwrap()
}

fn scan(format: &PackFormat, shard: &[u8]) -> Index {
    let record = ShardRecord::new("shard", format.format(), shard.len() as u64);
    let mut scan = ShardScan::new(record, ScanOptions::new(format.format()));
    scan.push(shard).unwrap();
    let mut index = IndexBuilder::new();
    index.add(scan.finish().unwrap()).unwrap();
    Index::from_bytes(index.finish().unwrap()).unwrap()
}

fn bytes<'a>(shard: &'a [u8], field: &crate::index::Field<'_>) -> &'a [u8] {
    &shard[field.offset as usize..(field.offset + field.bytes) as usize]
}

#[test]
fn a_tar_gives_back_its_samples() {
    let shard = write(&PackFormat::Tar, &samples());
    let index = scan(&PackFormat::Tar, &shard);
    assert_eq!(index.len(), 4);
    for (number, (key, fields)) in (0..).zip(samples()) {
        let found = index.sample(number).unwrap();
        assert_eq!(found.key, Some(key.as_slice()));
        for (name, value) in fields {
            assert_eq!(bytes(&shard, found.field(&name).unwrap()), value);
        }
    }
}

#[test]
fn a_tfrecord_holds_examples_with_the_key_beside_the_fields() {
    let shard = write(&PackFormat::TfRecord(Records::default()), &samples());
    let index = scan(&PackFormat::TfRecord(Records::default()), &shard);
    for (number, (key, fields)) in (0..).zip(samples()) {
        let found = index.sample(number).unwrap();
        let example = decode_example(bytes(&shard, &found.fields[0])).unwrap();
        assert_eq!(example[KEY_FIELD], Feature::Bytes(vec![&key]));
        for (name, value) in &fields {
            assert_eq!(example[name.as_str()], Feature::Bytes(vec![value]));
        }
    }
}

/// A shard of all samples, and what it was before.
fn compressed(format: &PackFormat) -> (Vec<u8>, Option<RawShard>) {
    let sizes = samples().iter().map(|sample| size(format, sample)).collect();
    let (shard, mut writer) = finished(format, sizes, &samples());
    assert!(writer.finish(&mut |_| Ok(())).is_err());
    (shard, writer.raw())
}

#[test]
fn a_compressed_tfrecord_is_the_plain_one_in_gzip_and_the_same_every_time() {
    use std::io::Read as _;
    let plain = write(&PackFormat::TfRecord(Records::default()), &samples());
    let format = PackFormat::TfRecordGzip(Records::default());
    let (shard, _) = compressed(&format);
    assert_eq!(shard, compressed(&format).0);
    let mut found = Vec::new();
    flate2::read::GzDecoder::new(shard.as_slice())
        .read_to_end(&mut found)
        .unwrap();
    assert_eq!(found, plain);
    assert_eq!(scan(&format, &shard).len(), 4);
}

#[test]
fn records_that_were_records_stay_as_they_are() {
    let records: Vec<Owned> = vec![(vec![], vec![("record".into(), b"anything".to_vec())])];
    let format = PackFormat::TfRecord(Records::AsTheyAre);
    let shard = write(&format, &records);
    let index = scan(&format, &shard);
    assert_eq!(bytes(&shard, &index.sample(0).unwrap().fields[0]), b"anything");
    for (key, fields) in [
        (&b"0001"[..], &[("record", 1)][..]),
        (b"", &[]),
        (b"", &[("record", 1), ("cls", 1)]),
    ] {
        let error = format.sample_bytes(&SampleShape { key, fields }).unwrap_err();
        assert_eq!(error.kind(), Kind::InvalidInput);
    }
}

#[test]
fn a_field_that_is_called_record_is_a_feature_like_others() {
    let format = PackFormat::TfRecord(Records::Examples(vec!["number".into()]));
    let shard = write(
        &format,
        &[(b"0001".to_vec(), vec![("record".into(), b"x".to_vec())])],
    );
    let index = scan(&format, &shard);
    let example = decode_example(bytes(&shard, &index.sample(0).unwrap().fields[0])).unwrap();
    assert_eq!(example["record"], Feature::Bytes(vec![b"x"]));
    assert_eq!(example[KEY_FIELD], Feature::Bytes(vec![b"0001"]));
}

#[test]
fn an_mds_shard_gives_back_its_columns_and_its_index_is_read() {
    let format = PackFormat::Mds(columns());
    let shard = write(&format, &samples());
    let index = scan(&format, &shard);
    for (number, (key, fields)) in (0..).zip(samples()) {
        let found = index.sample(number).unwrap();
        assert_eq!(bytes(&shard, found.field(KEY_FIELD).unwrap()), key);
        for (name, value) in fields {
            assert_eq!(bytes(&shard, found.field(&name).unwrap()), value);
        }
    }
    let digest = Digest(Sha256::digest(&shard).into());
    let packed = PackedMds {
        name: "shard.00000.mds",
        bytes: shard.len() as u64,
        sha256: digest,
        samples: 4,
        raw: None,
    };
    let document = index_json(&format, [packed].into_iter());
    let read = MdsIndex::parse(document.as_bytes()).unwrap();
    assert_eq!(read.shards[0].raw_data.bytes, shard.len() as u64);
    assert_eq!(read.shards[0].samples, 4);
    assert!(read.shards[0].zip_data.is_none());
}

#[test]
fn a_compressed_mds_shard_says_how_long_it_is_and_its_index_describes_both() {
    let format = PackFormat::MdsZstd(columns(), 7);
    let (shard, raw) = compressed(&format);
    assert_eq!(compressed(&format).0, shard);
    let raw = raw.unwrap();
    // Python's `zstd.decompress` wants the length in the head of the frame.
    assert_eq!(
        zstd::zstd_safe::get_frame_content_size(&shard).unwrap(),
        Some(raw.bytes)
    );
    let plain = zstd::decode_all(shard.as_slice()).unwrap();
    assert_eq!(raw.bytes, plain.len() as u64);
    assert_eq!(raw.sha256, Digest(Sha256::digest(&plain).into()));
    let packed = PackedMds {
        name: &format.shard_name(0),
        bytes: shard.len() as u64,
        sha256: Digest(Sha256::digest(&shard).into()),
        samples: 4,
        raw: Some(raw),
    };
    let document = index_json(&format, [packed].into_iter());
    let read = MdsIndex::parse(document.as_bytes()).unwrap();
    let about = &read.shards[0];
    assert_eq!(about.raw_data.name, "shard.00000.mds");
    assert_eq!(about.raw_data.hashes["sha256"], raw.sha256.to_string());
    assert_eq!(about.stored().name, "shard.00000.mds.zstd");
    assert_eq!(about.stored().hashes["sha256"], packed.sha256.to_string());
    let found = scan(&PackFormat::Mds(columns()), &plain);
    assert_eq!(
        bytes(&plain, found.sample(3).unwrap().field("cls").unwrap()),
        b"x"
    );
}

#[test]
fn what_a_format_cannot_hold_is_refused_before_it_is_written() {
    let tar = |key: &[u8], field: &str| {
        PackFormat::Tar.sample_bytes(&SampleShape {
            key,
            fields: &[(field, 1)],
        })
    };
    for (key, field) in [
        (&b"a.b"[..], "x"),
        (b"a/", "x"),
        (b"", "x"),
        (b"a", ""),
        (b"a", "b/c"),
        (b"a", "JPG"),
    ] {
        assert_eq!(
            tar(key, field).unwrap_err().kind(),
            Kind::InvalidInput,
            "{key:?} {field}"
        );
    }
    tar(b"a.b/c", "tar.gz").unwrap();
    let lacking = SampleShape {
        key: b"a",
        fields: &[("cls", 1)],
    };
    let error = PackFormat::Mds(columns()).sample_bytes(&lacking).unwrap_err();
    assert!(error.to_string().contains("jpg"), "{error}");
}

#[test]
fn a_sample_without_fields_is_refused_where_nothing_of_it_would_be_there() {
    let nothing = SampleShape {
        key: b"0001",
        fields: &[],
    };
    let error = PackFormat::Tar.sample_bytes(&nothing).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("no values") && text.contains("0001"), "{text}");
    let error = PackFormat::Mds(columns()).sample_bytes(&nothing).unwrap_err();
    assert_eq!(error.kind(), Kind::InvalidInput);
    // A record of its own.
    let format = PackFormat::TfRecord(Records::default());
    let shard = write(&format, &[(Vec::new(), Vec::new()), (b"a".to_vec(), Vec::new())]);
    assert_eq!(scan(&format, &shard).len(), 2);
}

#[test]
fn members_above_eight_gib_are_announced_with_their_pax_header() {
    let large = SampleShape {
        key: b"a",
        fields: &[("bin", 9 << 30)],
    };
    assert_eq!(PackFormat::Tar.sample_bytes(&large).unwrap(), (9 << 30) + 3 * 512);
}

/// A list in the form in which rows are handed over.
fn list(elements: &[Vec<u8>]) -> Vec<u8> {
    let count = u32::try_from(elements.len()).unwrap().to_le_bytes();
    [&[2][..], &count, &elements.concat()].concat()
}

fn value(bytes: &[u8]) -> Vec<u8> {
    let length = u32::try_from(bytes.len()).unwrap().to_le_bytes();
    [&[1][..], &length, bytes].concat()
}

#[test]
fn rows_of_parquet_are_read_as_they_were_written() {
    use crate::parquet::{ParquetFile, Pieces, decode};
    let column = |name: &str, encoding: &str| ParquetColumn {
        name: name.into(),
        encoding: encoding.into(),
    };
    let columns = vec![
        column("__key__", "parquet:str"),
        column("grid", "parquet:list[list[int32]]"),
        column("n", "parquet:int16"),
        column("raw", "parquet:bytes"),
    ];
    let number = |number: i32| value(&number.to_le_bytes());
    let grids = [
        list(&[list(&[number(1), number(-2)]), vec![0], list(&[])]),
        list(&[]),
        list(&[list(&[vec![0], number(7)])]),
    ];
    let samples: Vec<Owned> = (0..50_usize)
        .map(|row| {
            let mut fields = vec![("raw".into(), vec![row as u8; row * 40])];
            if row % 4 != 3 {
                fields.push(("grid".into(), grids[row % 3].clone()));
                fields.push(("n".into(), (row as i16 - 20).to_le_bytes().to_vec()));
            }
            (format!("key-{row}").into_bytes(), fields)
        })
        .collect();
    let mut bytes = Vec::new();
    let mut out = |piece: &[u8]| {
        bytes.extend_from_slice(piece);
        Ok(())
    };
    let format = PackFormat::Parquet(columns.clone());
    let mut writer = format.writer(Vec::new());
    writer.start(&mut out).unwrap();
    for (key, fields) in &samples {
        let fields: Vec<(&str, &[u8])> = fields
            .iter()
            .map(|(name, bytes)| (name.as_str(), bytes.as_slice()))
            .collect();
        writer
            .sample(&PackSample { key, fields: &fields }, &mut out)
            .unwrap();
    }
    writer.finish(&mut out).unwrap();
    let file = ParquetFile::parse(&bytes, bytes.len() as u64).unwrap();
    for (leaf, column) in columns.iter().enumerate() {
        assert_eq!(file.leaves()[leaf].encoding(), column.encoding);
        let range = file.page_index_range(0, leaf).unwrap().unwrap();
        let index = &bytes[range.start as usize..range.end as usize];
        let pages = file.pages_of_index(0, leaf, index).unwrap();
        for (row, (key, fields)) in samples.iter().enumerate() {
            let page = pages.page_of(row as u64).unwrap();
            let whole = Pieces(vec![(0, bytes::Bytes::copy_from_slice(&bytes))]);
            let slab = decode(&file, (0, leaf), &pages, page, whole).unwrap();
            let found = slab
                .row(row as u64)
                .unwrap()
                .map(|range| slab.as_ref()[range].to_vec());
            let expected = match column.name.as_str() {
                KEY_FIELD => Some(key.clone()),
                name => fields
                    .iter()
                    .find(|(field, _)| field == name)
                    .map(|(_, bytes)| bytes.clone()),
            };
            assert_eq!(found, expected, "{} {row}", column.name);
        }
    }
}

#[test]
fn a_feature_is_what_an_example_has() {
    let fields = vec![
        ("ints".to_owned(), feature(&FeatureList::Ints(vec![-1, 0, 300]))),
        (
            "floats".to_owned(),
            feature(&FeatureList::Floats(vec![0.5, -2.0])),
        ),
        (
            "texts".to_owned(),
            feature(&FeatureList::Bytes(vec![b"a".to_vec(), Vec::new()])),
        ),
    ];
    let whole = fields.iter().map(|(name, _)| name.clone()).collect();
    let format = PackFormat::TfRecord(Records::Examples(whole));
    let shard = write(&format, &[(Vec::new(), fields)]);
    let record = &shard[12..shard.len() - 4];
    let found = decode_example(record).unwrap();
    assert_eq!(found["ints"], Feature::Ints(vec![-1, 0, 300]));
    assert_eq!(found["floats"], Feature::Floats(vec![0.5, -2.0]));
    assert_eq!(found["texts"], Feature::Bytes(vec![&b"a"[..], b""]));
}
