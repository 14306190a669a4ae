//! An index byte by byte: what is written today must be what is read in ten years.

use super::*;
use crate::shard::{Format, ShardRecord};

fn build() -> Vec<u8> {
    let options = ShardIndexOptions {
        with_keys: true,
        columns: vec![ColumnSpec::new("label", ColumnKind::Text)],
    };
    let mut shard = ShardIndexBuilder::new(options);
    let field = |name, offset, bytes, crc| Field {
        name,
        offset,
        bytes,
        crc32c: Some(crc),
    };
    for (key, first, second, label) in [
        (
            "0",
            field("jpg", 512, 700, 0x1122_3344),
            field("cls", 2048, 1, 0x5566_7788),
            "cat",
        ),
        (
            "1",
            field("jpg", 3072, 90, 0x99aa_bbcc),
            field("cls", 4096, 1, 0x5566_7788),
            "dog",
        ),
    ] {
        let (fields, values) = ([first, second], [Value::Text(label)]);
        let sample = SampleRecord {
            values: &values,
            ..SampleRecord::new(Some(key.as_bytes()), &fields)
        };
        shard.sample(&sample).unwrap();
    }
    let mut record = ShardRecord::new("a.tar", Format::Tar, 10_240).with_version("v1");
    record.sha256 = Some([7; 32]);
    let mut builder = IndexBuilder::new();
    builder.encoding("jpg", "jpeg");
    builder.add(shard.finish(record)).unwrap();
    builder.finish().unwrap()
}

const GOLDEN: &str = "
    4642594453494458010000000500000002000000000000000100000001000000
    c2010000000000006c030000000000000000000000000000fcebfa27c5f18121
    01000000a163fbe0e0000000000000005b000000000000000000000000000000
    0200000044b55c723b0100000000000060000000000000000000000000000000
    030000007b20cffc9b0100000000000020000000000000000000000000000000
    0400000047a1f0f7bb0100000000000007000000000000000000000000000000
    0500000000000000c201000000000000aa010000000000000000000000000000
    7b226669656c6473223a5b22636c73222c226a7067225d2c22636f6c756d6e73
    223a7b226c6162656c223a2274657874227d2c22656e636f64696e6773223a7b
    226a7067223a226a706567227d2c226f7074696f6e73223a7b7d7d0028000000
    0000000028000000000000000000000000000002000000000000000000000001
    0000000000000005000000050000000200000001000001000000000707070707
    0707070707070707070707070707070707070707070707070707070000000000
    000000c201000000000000aa010000020000000000000001219a53612e746172
    763102000000040000000700020001000c0003006a70670300636c730305006c
    6162656c0000000002000000a2010000000000000002000000000000000a0000
    000000000000000002000000a201000000000000000000000000000000000000
    000000000000000002000000a201000000000000bc020000000000009efdffff
    ffffffff0000000002000000a201000000000000443322110000000088888888
    000000000000000002000000a201000000000000440300000000000062000000
    000000000000000002000000a201000000000000010000000000000000000000
    000000000000000002000000a201000000000000887766550000000000000000
    000000000000000002000000a201000000000000010000000000000001000000
    000000000100000002000000a201000000000000000000000000000000000000
    000000000000000002000000a401000000000000000000000000000001000000
    000000000000000002000000a401000000000000030000000000000003000000
    000000000100000006000000a401000000000000000000000000000000000000
    000000003031636174646f67";

#[test]
fn an_index_is_written_byte_by_byte_as_the_page_says() {
    let shown: Vec<String> = build().chunks(32).map(hex::encode).collect();
    let golden: Vec<&str> = GOLDEN.split_ascii_whitespace().collect();
    assert_eq!(shown, golden);
}

#[test]
fn an_index_of_the_first_version_is_read() {
    let bytes = hex::decode(GOLDEN.split_ascii_whitespace().collect::<String>()).unwrap();
    let index = Index::from_bytes(bytes).unwrap();
    index.check().unwrap();
    let sample = index.sample(1).unwrap();
    assert_eq!((sample.key, sample.number_in_shard), (Some(b"1".as_slice()), 1));
    let field = sample.field("jpg").unwrap();
    assert_eq!(
        (field.offset, field.bytes, field.crc32c),
        (3072, 90, Some(0x99aa_bbcc))
    );
    assert_eq!(sample.field("cls").unwrap().offset, 4096);
    assert_eq!(index.value("label", 0).unwrap(), Some(Value::Text("cat")));
    assert_eq!(index.head().meta().encodings["jpg"], "jpeg");
    let shard = index.shard(0).unwrap().record();
    assert_eq!(
        (shard.name.as_str(), shard.version.as_deref()),
        ("a.tar", Some("v1"))
    );
    assert_eq!((shard.bytes, shard.sha256), (10_240, Some([7; 32])));
}
