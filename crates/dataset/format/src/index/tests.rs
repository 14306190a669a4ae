use forebay_core::{Kind, crc32c};
use proptest::prelude::*;

use super::*;
use crate::shard::{Format, ShardRecord};

/// A sample with everything owned, as a model.
#[derive(Debug, Clone, PartialEq)]
struct Model {
    key: Vec<u8>,
    fields: Vec<(String, u64, u64, u32)>,
    label: String,
    score: f64,
    size: i64,
}

fn specs() -> Vec<ColumnSpec> {
    vec![
        ColumnSpec::new("label", ColumnKind::Text),
        ColumnSpec::new("score", ColumnKind::F64),
        ColumnSpec::new("size", ColumnKind::I64),
    ]
}

fn shard_index(record: ShardRecord, samples: &[Model]) -> ShardIndex {
    let mut builder = ShardIndexBuilder::new(ShardIndexOptions {
        with_keys: true,
        columns: specs(),
    });
    for sample in samples {
        let fields: Vec<Field<'_>> = sample
            .fields
            .iter()
            .map(|(name, offset, bytes, crc)| Field {
                name,
                offset: *offset,
                bytes: *bytes,
                crc32c: Some(*crc),
            })
            .collect();
        let values = [
            Value::Text(&sample.label),
            Value::F64(sample.score),
            Value::I64(sample.size),
        ];
        let record = SampleRecord {
            values: &values,
            ..SampleRecord::new(Some(&sample.key), &fields)
        };
        builder.sample(&record).unwrap();
    }
    builder.finish(record)
}

fn read(index: &Index, number: u64) -> Model {
    let sample = index.sample(number).unwrap();
    let text = |value| match value {
        Some(Value::Text(text)) => text.to_owned(),
        other => panic!("{other:?}"),
    };
    Model {
        key: sample.key.unwrap().to_vec(),
        fields: sample
            .fields
            .iter()
            .map(|field| {
                (
                    field.name.to_owned(),
                    field.offset,
                    field.bytes,
                    field.crc32c.unwrap(),
                )
            })
            .collect(),
        label: text(index.value("label", number).unwrap()),
        score: match index.value("score", number).unwrap() {
            Some(Value::F64(score)) => score,
            other => panic!("{other:?}"),
        },
        size: match index.value("size", number).unwrap() {
            Some(Value::I64(size)) => size,
            other => panic!("{other:?}"),
        },
    }
}

fn record(name: &str) -> ShardRecord {
    ShardRecord::new(name, Format::Tar, 1 << 40).with_version(format!("etag of {name}"))
}

fn join(shards: impl IntoIterator<Item = ShardIndex>) -> Vec<u8> {
    let mut builder = IndexBuilder::new();
    for shard in shards {
        builder.add(shard).unwrap();
    }
    builder.finish().unwrap()
}

/// Samples of a tar shard with an image, a label and a document each.
fn plain(count: u64) -> Vec<Model> {
    let mut offset = 512;
    let mut place = |bytes: u64| {
        let start = offset;
        offset = (start + bytes).next_multiple_of(512) + 512;
        (start, bytes)
    };
    (0..count)
        .map(|number| {
            let field = |name: &str, (start, bytes): (u64, u64)| {
                (
                    name.to_owned(),
                    start,
                    bytes,
                    (number as u32).wrapping_mul(2_654_435_761),
                )
            };
            let image = 10_000 + number * 7919 % 100_000;
            Model {
                key: format!("{number:09}").into_bytes(),
                fields: vec![
                    field("jpg", place(image)),
                    field("cls", place(1)),
                    field("json", place(200 + number % 50)),
                ],
                label: format!("class {}", number % 10),
                score: number as f64 / 3.0,
                size: -(number as i64),
            }
        })
        .collect()
}

#[test]
fn samples_of_several_shards_and_pieces_come_back() {
    let shards = [plain(70_000), plain(0), plain(1), plain(300)];
    let names = ["a.tar", "b/empty.tar", "c.tar", "d.tar"];
    let built = names
        .iter()
        .zip(&shards)
        .map(|(name, samples)| shard_index(record(name), samples));
    let index = Index::from_bytes(join(built)).unwrap();
    index.check().unwrap();
    assert_eq!((index.len(), index.shard_count()), (70_301, 4));
    assert_eq!(index.head().piece_count(), 4);
    assert_eq!(index.head().meta().fields, ["cls", "jpg", "json"]);
    let all: Vec<&Model> = shards.iter().flatten().collect();
    for number in (0..all.len())
        .step_by(997)
        .chain([65_535, 65_536, 69_999, 70_000, 70_300])
    {
        assert_eq!(&read(&index, number as u64), all[number], "{number}");
    }
    let sample = index.sample(70_001).unwrap();
    assert_eq!((sample.shard, sample.number_in_shard), (3, 0));
    let shard = index.shard(1).unwrap();
    assert_eq!((shard.samples(), shard.first_sample()), (0, 70_000));
    assert_eq!(shard.record(), record("b/empty.tar"));
    assert_eq!(index.find_key(b"000000299").unwrap(), 299);
    assert_eq!(index.find_key(b"x").unwrap_err().kind(), Kind::NotFound);
    assert_eq!(index.sample(70_301).unwrap_err().kind(), Kind::OutOfRange);
    assert_eq!(index.shard(4).unwrap_err().kind(), Kind::OutOfRange);
}

#[test]
fn three_fields_take_at_most_forty_bytes_a_sample() {
    let samples = plain(65_536);
    let mut builder = ShardIndexBuilder::new(ShardIndexOptions::default());
    let mut widest = ShardIndexBuilder::new(ShardIndexOptions::default());
    for (number, sample) in (0_u64..).zip(&samples) {
        let mut fields: Vec<Field<'_>> = Vec::new();
        for (name, offset, bytes, crc) in &sample.fields {
            fields.push(Field {
                name,
                offset: *offset,
                bytes: *bytes,
                crc32c: Some(*crc),
            });
        }
        builder.sample(&SampleRecord::new(None, &fields)).unwrap();
        // The worst that a shard below 1 TiB with fields below 4 GiB can have: every number needs its whole
        // width.
        let wide = number % 2;
        for (place, field) in (0..).zip(&mut fields) {
            field.offset = wide * ((1 << 40) - (1 << 39) / (place + 1) - 1);
            field.bytes = wide * u64::from(u32::MAX >> (2 - place));
        }
        widest.sample(&SampleRecord::new(None, &fields)).unwrap();
    }
    let per_sample = |shard: ShardIndex| join([shard]).len() as f64 / samples.len() as f64;
    let (usual, worst) = (
        per_sample(builder.finish(record("a"))),
        per_sample(widest.finish(record("a"))),
    );
    assert!(usual <= 26.1, "{usual}");
    assert!((35.0..=40.0).contains(&worst), "{worst}");
}

#[test]
fn equal_samples_in_equal_distances_take_no_bytes_but_their_checksums() {
    let mut builder = ShardIndexBuilder::new(ShardIndexOptions::default());
    for number in 0..65_536_u64 {
        let field = Field {
            name: "tokens",
            offset: 128 + number * 4096,
            bytes: 4096,
            crc32c: Some((number as u32).wrapping_mul(2_654_435_761)),
        };
        builder.sample(&SampleRecord::new(None, &[field])).unwrap();
    }
    let bytes = join([builder.finish(record("a"))]).len();
    assert!(bytes < 65_536 * 4 + 1000, "{bytes}");
}

#[test]
fn a_replaced_shard_is_joined_with_the_old_ones() {
    let parts = [plain(10), plain(20), plain(30)];
    let built = parts
        .iter()
        .zip(["a", "b", "c"])
        .map(|(samples, name)| shard_index(record(name), samples));
    let old = Index::from_bytes(join(built)).unwrap();
    let renewed = shard_index(record("b2"), &plain(5));
    let whole = join([
        old.shard_index(0).unwrap(),
        renewed.clone(),
        old.shard_index(2).unwrap(),
    ]);
    let built = [
        shard_index(record("a"), &parts[0]),
        renewed,
        shard_index(record("c"), &parts[2]),
    ];
    assert_eq!(whole, join(built));
}

#[test]
fn runs_of_samples_share_their_fields() {
    let mut builder = ShardIndexBuilder::new(ShardIndexOptions {
        with_keys: false,
        columns: vec![ColumnSpec::new("max", ColumnKind::I64)],
    });
    for (rows, offset) in [(100_000_u32, 4_u64), (1, 900), (50, 2000)] {
        let field = Field {
            name: "x",
            offset,
            bytes: 7,
            crc32c: None,
        };
        let values = [Value::I64(rows.into())];
        let run = SampleRecord {
            values: &values,
            repeat: rows,
            ..SampleRecord::new(None, std::slice::from_ref(&field))
        };
        builder.sample(&run).unwrap();
    }
    let index = Index::from_bytes(join([builder.finish(record("a.parquet"))])).unwrap();
    assert_eq!(index.len(), 100_051);
    for (number, row, offset) in [
        (0, 0, 4),
        (99_999, 99_999, 4),
        (100_000, 0, 900),
        (100_050, 49, 2000),
    ] {
        let sample = index.sample(number).unwrap();
        assert_eq!(
            (sample.row_in_run, sample.fields[0].offset),
            (row, offset),
            "{number}"
        );
        assert_eq!(sample.crc32c(), None);
    }
    assert_eq!(index.value("max", 100_000).unwrap(), Some(Value::I64(1)));
}

#[test]
fn the_checksum_of_a_sample_is_that_of_its_fields_one_after_the_other() {
    let field = |name, content: &[u8]| Field {
        name,
        offset: 0,
        bytes: content.len() as u64,
        crc32c: Some(crc32c::crc32c(content)),
    };
    let sample = Sample {
        shard: 0,
        number_in_shard: 0,
        row_in_run: 0,
        key: None,
        fields: [field("a", b"hello "), field("b", b""), field("c", b"world")]
            .into_iter()
            .collect(),
    };
    assert_eq!(sample.crc32c(), Some(crc32c::crc32c(b"hello world")));
}

#[test]
fn an_index_of_another_version_or_of_something_else_is_refused_with_advice() {
    let mut bytes = join([shard_index(record("a"), &plain(3))]);
    let error = Index::from_bytes(b"PAR1".to_vec()).unwrap_err();
    assert_eq!(error.kind(), Kind::InvalidInput);
    bytes[8] = 2;
    let error = Index::from_bytes(bytes).unwrap_err();
    assert_eq!(error.kind(), Kind::Unsupported);
    assert!(error.message().contains("forebay dataset index"), "{error}");
}

#[test]
fn every_flipped_bit_and_every_cut_is_noticed() {
    let bytes = join([
        shard_index(record("a"), &plain(3)),
        shard_index(record("b"), &plain(2)),
    ]);
    let check = |bytes: Vec<u8>| Index::from_bytes(bytes).and_then(|index| index.check());
    check(bytes.clone()).unwrap();
    for at in 0..bytes.len() {
        let mut flipped = bytes.clone();
        flipped[at] ^= 1 << (at % 8);
        assert!(check(flipped).is_err(), "{at}");
        assert!(check(bytes[..at].to_vec()).is_err(), "{at}");
    }
    assert!(check([bytes, vec![0]].concat()).is_err());
}

#[test]
fn a_sample_outside_of_its_shard_is_damage() {
    let mut small = record("a");
    small.stream_bytes = 600;
    let index = Index::from_bytes(join([shard_index(small, &plain(1))])).unwrap();
    assert_eq!(index.sample(0).unwrap_err().kind(), Kind::Corrupt);
}

#[test]
fn the_head_is_enough_to_find_a_piece() {
    let bytes = join([
        shard_index(record("a"), &plain(3)),
        shard_index(record("b"), &plain(2)),
    ]);
    let needed = usize::try_from(Head::bytes_needed(&bytes[..HEADER_BYTES]).unwrap()).unwrap();
    let head = Head::parse(Arc::new(bytes[..needed].to_vec())).unwrap();
    let piece = head.piece(head.piece_of(4).unwrap()).unwrap();
    let range =
        usize::try_from(piece.offset).unwrap()..usize::try_from(piece.offset).unwrap() + piece.bytes as usize;
    let layout = piece.open(&bytes[range]).unwrap();
    assert_eq!((piece.first_sample, layout.samples()), (3, 2));
    assert!(Head::parse(Arc::new(bytes[..needed - 1].to_vec())).is_err());
}

#[test]
fn columns_of_one_name_have_one_kind() {
    let other = ShardIndexOptions {
        with_keys: false,
        columns: vec![ColumnSpec::new("label", ColumnKind::I64)],
    };
    let mut builder = IndexBuilder::new();
    builder.add(shard_index(record("a"), &plain(1))).unwrap();
    let error = builder
        .add(ShardIndexBuilder::new(other).finish(record("b")))
        .unwrap_err();
    assert_eq!(error.kind(), Kind::InvalidInput);
}

fn any_sample() -> impl Strategy<Value = Model> {
    let field = ("[a-d]{0,3}", 0..1_u64 << 39, 0..1_u64 << 33, any::<u32>());
    let fields = proptest::collection::vec(field, 0..5);
    (any::<[u8; 3]>(), fields, "[a-z]{0,2}", -1e9..1e9, any::<i64>()).prop_map(
        |(key, fields, label, score, size)| Model {
            key: key.to_vec(),
            fields,
            label,
            score,
            size,
        },
    )
}

proptest! {
    #[test]
    fn any_samples_come_back(shards in proptest::collection::vec(proptest::collection::vec(any_sample(), 0..20), 0..4)) {
        let built = shards.iter().map(|samples| shard_index(record("a"), samples));
        let index = Index::from_bytes(join(built)).unwrap();
        let all: Vec<&Model> = shards.iter().flatten().collect();
        prop_assert_eq!(index.len(), all.len() as u64);
        for (number, model) in (0..).zip(all) {
            prop_assert_eq!(&read(&index, number), model);
        }
    }
}

#[test]
fn fields_that_lie_over_each_other_do_not_overflow() {
    let field = |name| Field {
        name,
        offset: 0,
        bytes: u64::MAX - 1,
        crc32c: None,
    };
    let mut builder = ShardIndexBuilder::new(ShardIndexOptions::default());
    builder
        .sample(&SampleRecord::new(None, &[field("a"), field("b")]))
        .unwrap();
    let mut record = ShardRecord::new("x", Format::Tar, u64::MAX);
    record.stream_bytes = u64::MAX;
    let mut index = IndexBuilder::new();
    index.add(builder.finish(record)).unwrap();
    let index = Index::from_bytes(index.finish().unwrap()).unwrap();
    assert_eq!(index.sample(0).unwrap().bytes(), u64::MAX);
}

#[test]
fn an_index_that_could_not_be_opened_is_not_written() {
    let mut index = IndexBuilder::new();
    // Five shards, each with as many and as long names as one may have.
    for shard in 0..5 {
        let mut builder = ShardIndexBuilder::new(ShardIndexOptions::default());
        for number in 0..1100 {
            let name = format!("{shard}-{number}-{}", "n".repeat(4000));
            let field = Field {
                name: &name,
                offset: 0,
                bytes: 0,
                crc32c: Some(0),
            };
            builder.sample(&SampleRecord::new(None, &[field])).unwrap();
        }
        index
            .add(builder.finish(ShardRecord::new("x", Format::Tar, 0)))
            .unwrap();
    }
    assert_eq!(index.finish().unwrap_err().kind(), Kind::Unsupported);
}
