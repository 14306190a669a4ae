//! Other formats than tar go the same way.
#![allow(clippy::unwrap_used, reason = "a failure here is the failure of a test")]

mod fixture;

use std::io::Write;

use fixture::{TestNode, member, number_of, rest, shard};
use forebay_core::Kind;
use forebay_dataset::order::{Shuffle, Window};
use forebay_dataset::tokens::{TokenType, TokenWindows};
use forebay_loader::{Dataset, DatasetOptions, LoaderOptions};

#[test]
fn tokens_are_cut_into_windows_and_another_cut_has_another_index() {
    let node = TestNode::start();
    let tokens: Vec<u8> = (0..1000_u16).flat_map(u16::to_le_bytes).collect();
    node.put("lake/tokens/0.bin", &tokens);
    for (length, samples) in [(100, 10), (250, 4)] {
        let windows = TokenWindows {
            length,
            stride: length,
            token: Some(TokenType::U16),
        };
        let options = DatasetOptions {
            tokens: Some(windows),
            ..DatasetOptions::default()
        };
        let dataset = Dataset::open(&node.client, &["lake/tokens/0.bin"], options, None).unwrap();
        assert_eq!(dataset.len(), samples);
        let sample = dataset.sample(1).unwrap();
        let bytes = usize::try_from(length).unwrap() * 2;
        assert_eq!(sample.fields[0][..], tokens[bytes..2 * bytes]);
    }
    assert_eq!(node.keys("tokens/.forebay/").len(), 2);
}

#[test]
fn tokens_that_are_cut_in_another_way_are_other_data_also_if_there_are_as_many() {
    let node = TestNode::start();
    let tokens: Vec<u8> = (0..40_u16).flat_map(u16::to_le_bytes).collect();
    node.put("lake/tokens/0.bin", &tokens);
    let open = |length| {
        let options = DatasetOptions {
            tokens: Some(TokenWindows {
                length,
                stride: 4,
                token: Some(TokenType::U16),
            }),
            ..DatasetOptions::default()
        };
        Dataset::open(&node.client, &["lake/tokens/0.bin"], options, None).unwrap()
    };
    let (four, three) = (open(4), open(3));
    assert_eq!(four.len(), three.len());
    assert_ne!(four.shape().fingerprint(), three.shape().fingerprint());
    assert_eq!(four.shape().fingerprint(), open(4).shape().fingerprint());
}

#[test]
fn lines_of_json_are_samples() {
    let node = TestNode::start();
    node.put("lake/text/a.jsonl", b"{\"a\":1}\n{\"a\":2}\n");
    node.put("lake/text/b.jsonl", b"{\"a\":3}\n");
    let dataset = node.open("lake/text/");
    let mut loader = dataset.loader(LoaderOptions::default()).unwrap();
    let mut lines = Vec::new();
    while let Some(batch) = loader.next_batch().unwrap() {
        lines.extend(
            batch
                .samples
                .iter()
                .map(|sample| String::from_utf8(sample.fields[0].to_vec()).unwrap()),
        );
    }
    assert_eq!(lines, ["{\"a\":1}", "{\"a\":2}", "{\"a\":3}"]);
}

#[test]
fn several_formats_in_one_folder_have_to_be_told_apart() {
    let node = TestNode::start();
    node.put("lake/both/a.jsonl", b"{}\n");
    node.put("lake/both/a.tar", &shard(0..3));
    let error = Dataset::open(&node.client, &["lake/both/"], DatasetOptions::default(), None).unwrap_err();
    assert_eq!(error.kind(), Kind::InvalidInput);
    let options = DatasetOptions {
        format: Some(forebay_dataset::shard::Format::Tar),
        ..DatasetOptions::default()
    };
    let dataset = Dataset::open(&node.client, &["lake/both/"], options, None).unwrap();
    assert_eq!(dataset.len(), 3);
}

#[test]
fn a_dataset_at_the_root_of_a_bucket_keeps_its_index_outside_of_the_nodes_own_folder() {
    let node = TestNode::start();
    node.put("lake/0.tar", &shard(0..3));
    node.open("lake/0.tar");
    assert_eq!(node.keys(".forebay-dataset/").len(), 1);
    assert_eq!(
        node.open("forebay://lake/").index_origin(),
        forebay_loader::IndexOrigin::Stored
    );
}

#[test]
fn a_folder_that_is_still_being_packed_is_not_there_yet() {
    let node = TestNode::start();
    node.put("lake/packed/shard-000000.tar", &shard(0..3));
    node.put("lake/packed/.forebay/packing", b"{}");
    let open = || Dataset::open(&node.client, &["lake/packed/"], DatasetOptions::default(), None);
    let error = open().unwrap_err();
    assert_eq!(error.kind(), Kind::NotFound);
    assert!(error.message().contains("packed"), "{error}");
    let marker = forebay_client::Name::parse("lake/packed/.forebay/packing").unwrap();
    node.client.delete(&marker).unwrap();
    node.put("lake/packed/SHA256SUMS", b"");
    assert_eq!(open().unwrap().len(), 3);
}

#[test]
fn a_manifest_is_no_sample_of_a_raw_folder() {
    let node = TestNode::start();
    node.put("lake/raw/a.txt", b"one");
    node.put("lake/raw/SHA256SUMS", b"");
    assert_eq!(node.open("lake/raw/").len(), 1);
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(bytes).unwrap();
    gzip.finish().unwrap()
}

#[test]
fn samples_of_compressed_shards_are_those_of_plain_ones_in_any_order() {
    let node = TestNode::start();
    // One of several chunks, one plain, one small.
    node.put("lake/zip/a.tar.gz", &gzip(&shard(0..4000)));
    node.put("lake/zip/b.tar", &shard(4000..4100));
    node.put("lake/zip/c.tar.gz", &gzip(&shard(4100..4200)));
    let options = DatasetOptions {
        decoded_bytes_max: 6 << 20,
        ..DatasetOptions::default()
    };
    let dataset = Dataset::open(&node.client, &["lake/zip/"], options, None).unwrap();
    for number in [4150, 3999, 7, 4000, 2000, 0] {
        let sample = dataset.sample(number).unwrap();
        assert_eq!(number_of(&sample) as u64, number);
    }
    let every: Vec<usize> = (0..4200).collect();
    let in_order = LoaderOptions {
        batch_size: 50,
        ..LoaderOptions::default()
    };
    let mut loader = dataset.loader(in_order.clone()).unwrap();
    assert_eq!(rest(&mut loader).concat(), every);
    let mixed = LoaderOptions {
        shuffle: Shuffle::Window(Window::bytes(2 << 20)),
        seed: 7,
        ..in_order.clone()
    };
    let mut loader = dataset.loader(mixed).unwrap();
    let mut found = rest(&mut loader).concat();
    assert_ne!(found, every);
    found.sort_unstable();
    assert_eq!(found, every);
    for shuffle in [Shuffle::Global, Shuffle::Window(Window::bytes(4 << 20))] {
        let too_much = LoaderOptions {
            shuffle,
            ..in_order.clone()
        };
        let error = dataset.loader(too_much).unwrap_err();
        assert_eq!(error.kind(), Kind::Unsupported);
        assert!(error.message().contains("pack"), "{error}");
    }
}

#[test]
fn a_sample_that_could_never_be_held_decompressed_is_refused_and_its_neighbours_come() {
    let node = TestNode::start();
    let mut tar = shard(0..1);
    tar.truncate(tar.len() - 1024);
    // Six chunks, where two may be kept.
    member(&mut tar, "000001.bin", &vec![0; 24 << 20]);
    tar.extend_from_slice(&shard(2..3));
    node.put("lake/zip/a.tar.gz", &gzip(&tar));
    let options = DatasetOptions {
        decoded_bytes_max: 8 << 20,
        ..DatasetOptions::default()
    };
    let dataset = Dataset::open(&node.client, &["lake/zip/"], options, None).unwrap();
    let samples = dataset.samples(&[0, 1, 2]).unwrap();
    assert_eq!(number_of(samples[0].as_ref().unwrap()), 0);
    assert_eq!(number_of(samples[2].as_ref().unwrap()), 2);
    let error = samples[1].as_ref().unwrap_err();
    assert_eq!(error.kind(), Kind::Unsupported);
    assert!(error.message().contains("held decompressed"), "{error}");
}

#[test]
fn a_compressed_shard_that_was_replaced_or_damaged_is_an_error_of_its_samples() {
    let node = TestNode::start();
    node.put("lake/zip/a.tar.gz", &gzip(&shard(0..50)));
    node.put("lake/zip/b.tar.gz", &gzip(&shard(50..100)));
    let dataset = node.open("lake/zip/");
    node.put("lake/zip/a.tar.gz", &gzip(&shard(100..150)));
    let error = dataset.sample(3).unwrap_err();
    assert_eq!(error.kind(), Kind::Changed);
    assert_eq!(number_of(&dataset.sample(60).unwrap()), 60);
    let mut cut = gzip(&shard(0..50));
    cut.truncate(cut.len() / 2);
    node.put("lake/zip/a.tar.gz", &cut);
    let open = Dataset::open(&node.client, &["lake/zip/"], DatasetOptions::default(), None);
    assert_eq!(open.unwrap_err().kind(), Kind::Corrupt);
}

/// An MDS shard of samples with one column `x` of any length.
fn mds_shard(samples: &[&[u8]]) -> Vec<u8> {
    let config = br#"{"column_encodings":["bytes"],"column_names":["x"],"column_sizes":[null],"compression":null,"format":"mds","hashes":[],"size_limit":67108864}"#;
    let head = 4 + 4 * (samples.len() + 1) + config.len();
    let mut ends = vec![head];
    for sample in samples {
        ends.push(ends[ends.len() - 1] + 4 + sample.len());
    }
    let mut bytes = u32::try_from(samples.len()).unwrap().to_le_bytes().to_vec();
    for end in ends {
        bytes.extend_from_slice(&u32::try_from(end).unwrap().to_le_bytes());
    }
    bytes.extend_from_slice(config);
    for sample in samples {
        bytes.extend_from_slice(&u32::try_from(sample.len()).unwrap().to_le_bytes());
        bytes.extend_from_slice(sample);
    }
    bytes
}

#[test]
fn an_mds_folder_is_known_by_its_document() {
    let node = TestNode::start();
    let bytes = mds_shard(&[b"one", b"", b"three"]);
    node.put("lake/mds/shard.00000.mds", &bytes);
    node.put("lake/mds/notes.jsonl", b"no shard");
    let index = |size: usize| {
        format!(
            r#"{{"version":2,"shards":[{{"column_encodings":["bytes"],"column_names":["x"],"column_sizes":[null],"compression":null,"format":"mds","hashes":[],
            "raw_data":{{"basename":"shard.00000.mds","bytes":{size},"hashes":{{}}}},"samples":3,"size_limit":67108864,"version":2,"zip_data":null}}]}}"#
        )
    };
    node.put("lake/mds/index.json", index(bytes.len()).as_bytes());
    let dataset = node.open("lake/mds/");
    assert_eq!(dataset.index().head().meta().encodings["x"], "bytes");
    for (number, expected) in [&b"one"[..], b"", b"three"].into_iter().enumerate() {
        let sample = dataset.sample(number as u64).unwrap();
        assert_eq!(&sample.field("x").unwrap()[..], expected);
    }
    node.put("lake/mds/index.json", index(bytes.len() + 1).as_bytes());
    let error = Dataset::open(&node.client, &["lake/mds/"], DatasetOptions::default(), None).unwrap_err();
    assert_eq!(error.kind(), Kind::Corrupt);
}
