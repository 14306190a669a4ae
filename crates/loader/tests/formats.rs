//! Other formats than tar go the same way.

mod fixture;

use fixture::{TestNode, shard};
use forebay_core::Kind;
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
