//! A column has one type in a dataset: what a mended index and several folders must not mix, and filters on
//! it.
#![allow(clippy::unwrap_used, reason = "a failure here is the failure of a test")]

mod fixture;

use fixture::TestNode;
use forebay_core::Kind;
use forebay_dataset::filter::{Condition, Filter, Operator, Scalar};
use forebay_dataset::write::{
    MdsColumn, PackFormat, PackSample, PackedMds, ParquetColumn, SampleShape, index_json,
};
use forebay_loader::{Dataset, DatasetOptions, Rebuild};

/// A shard of one sample with these fields.
fn shard(format: &PackFormat, fields: &[(&str, &[u8])]) -> Vec<u8> {
    let sizes: Vec<(&str, u64)> = fields
        .iter()
        .map(|(name, bytes)| (*name, bytes.len() as u64))
        .collect();
    let shape = SampleShape {
        key: b"",
        fields: &sizes,
    };
    let mut shard = Vec::new();
    let mut out = |bytes: &[u8]| {
        shard.extend_from_slice(bytes);
        Ok(())
    };
    let mut writer = format.writer(vec![format.sample_bytes(&shape).unwrap()]);
    writer.start(&mut out).unwrap();
    writer.sample(&PackSample { key: b"", fields }, &mut out).unwrap();
    writer.finish(&mut out).unwrap();
    shard
}

/// A Parquet file of one row: name, type and value of each column.
fn row(columns: &[(&str, &str, &[u8])]) -> Vec<u8> {
    let column = |(name, encoding, _): &(&str, &str, &[u8])| ParquetColumn {
        name: (*name).to_owned(),
        encoding: (*encoding).to_owned(),
    };
    let format = PackFormat::Parquet(columns.iter().map(column).collect());
    let fields: Vec<(&str, &[u8])> = columns.iter().map(|(name, _, bytes)| (*name, *bytes)).collect();
    shard(&format, &fields)
}

fn open(node: &TestNode, names: &[&str], rebuild: Rebuild) -> forebay_core::Result<Dataset> {
    let options = DatasetOptions {
        rebuild,
        ..DatasetOptions::default()
    };
    Dataset::open(&node.client, names, options, None)
}

#[test]
fn a_replaced_shard_with_another_type_is_refused_as_when_all_are_indexed() {
    let node = TestNode::start();
    let time = 1_700_000_000_000_i64.to_le_bytes();
    for number in 0..2 {
        node.put(
            &format!("lake/rows/{number}.parquet"),
            &row(&[("ts", "parquet:timestamp[us]", &time)]),
        );
    }
    node.open("lake/rows/");
    node.put(
        "lake/rows/1.parquet",
        &row(&[("ts", "parquet:timestamp[ms]", &time)]),
    );
    for rebuild in [Rebuild::Changed, Rebuild::Always] {
        let error = open(&node, &["lake/rows/"], rebuild).unwrap_err();
        assert_eq!(error.kind(), Kind::InvalidInput);
        assert!(error.message().contains("different types"), "{error}");
    }
}

#[test]
fn a_column_that_only_the_replaced_shard_has_may_get_another_type() {
    let node = TestNode::start();
    let number = 7_i64.to_le_bytes();
    let with = |encoding: &str| row(&[("a", "parquet:int64", &number), ("b", encoding, &number)]);
    node.put("lake/rows/0.parquet", &row(&[("a", "parquet:int64", &number)]));
    node.put("lake/rows/1.parquet", &with("parquet:int64"));
    node.open("lake/rows/");
    node.put("lake/rows/1.parquet", &with("parquet:float64"));
    let dataset = node.open("lake/rows/");
    assert_eq!(dataset.index().head().meta().encodings["b"], "parquet:float64");
    assert_eq!(dataset.len(), 2);
}

/// An MDS shard with one number of this encoding.
fn mds(encoding: &str) -> (PackFormat, Vec<u8>) {
    let column = MdsColumn {
        name: "x".into(),
        encoding: encoding.into(),
    };
    let format = PackFormat::Mds(vec![column]);
    let bytes = shard(&format, &[("x", &1_i32.to_le_bytes())]);
    (format, bytes)
}

/// The `index.json` of a shard.
fn document(format: &PackFormat, name: &str, bytes: &[u8]) -> String {
    let mut hasher = forebay_dataset::manifest::Hasher::new();
    hasher.push(bytes);
    let packed = PackedMds {
        name,
        bytes: bytes.len() as u64,
        sha256: hasher.finish(),
        samples: 1,
        raw: None,
    };
    index_json(format, [packed].into_iter())
}

#[test]
fn mds_shards_whose_encodings_differ_are_refused() {
    let node = TestNode::start();
    let mut documents = Vec::new();
    for (number, encoding) in ["int32", "float32"].into_iter().enumerate() {
        let (format, bytes) = mds(encoding);
        let name = format!("shard.{number:05}.mds");
        let one = document(&format, &name, &bytes);
        node.put(&format!("lake/{encoding}/{name}"), &bytes);
        node.put(&format!("lake/{encoding}/index.json"), one.as_bytes());
        node.put(&format!("lake/both/{name}"), &bytes);
        documents.push(one);
    }
    // One document that lists the shards of both.
    let (start, second) = (r#""shards":["#, &documents[1]);
    let shards = second.split_once(start).unwrap().1.rsplit_once("]").unwrap().0;
    let both = documents[0].replacen(start, &format!("{start}{shards},"), 1);
    node.put("lake/both/index.json", both.as_bytes());
    assert_eq!(node.open("lake/int32/").len(), 1);
    for names in [&["lake/int32/", "lake/float32/"][..], &["lake/both/"]] {
        let error = open(&node, names, Rebuild::Changed).unwrap_err();
        assert_eq!(error.kind(), Kind::InvalidInput, "{error}");
        assert!(error.message().contains("different ways"), "{error}");
    }
}

#[test]
fn a_filter_finds_numbers_of_16_bits() {
    let node = TestNode::start();
    for (number, bits) in [0x3800_u16, 0x3c00].into_iter().enumerate() {
        node.put(
            &format!("lake/half/{number}.parquet"),
            &row(&[("x", "parquet:float16", &bits.to_le_bytes())]),
        );
    }
    let condition = Condition {
        column: "x".into(),
        operator: Operator::Greater,
        values: vec![Scalar::Float(0.6)],
    };
    let options = DatasetOptions {
        filter: Some(Filter::new(vec![vec![condition]]).unwrap()),
        ..DatasetOptions::default()
    };
    let dataset = Dataset::open(&node.client, &["lake/half/"], options, None).unwrap();
    let found = dataset.subset().unwrap();
    assert_eq!((found.samples(), found.sample(0)), (1, Some(1)));
}
