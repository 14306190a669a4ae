//! Wids indexes that name what is none of their business.
#![allow(clippy::unwrap_used, reason = "a failure here is the failure of a test")]

mod fixture;

use fixture::{TestNode, shard};
use forebay_core::Kind;
use forebay_loader::{Dataset, DatasetOptions};

/// Opens the dataset of an index in `lake/set/` that names this shard.
fn samples(node: &TestNode, url: &str, shards_outside: bool) -> Result<u64, Kind> {
    let url = url.replace('\\', "\\\\");
    let index = format!(r#"{{"wids_version": 1, "shardlist": [{{"url": "{url}", "nsamples": 3}}]}}"#);
    node.put("lake/set/wids.json", index.as_bytes());
    let options = DatasetOptions {
        shards_outside,
        store: false,
        ..DatasetOptions::default()
    };
    let opened = Dataset::open(&node.client, &["lake/set/wids.json"], options, None);
    opened.map(|dataset| dataset.len()).map_err(|error| error.kind())
}

#[test]
fn a_wids_index_names_only_what_lies_in_its_folder() {
    let node = TestNode::start();
    for key in [
        "lake/set/0.tar",
        "lake/set/deep/0.tar",
        "lake/secret/0.tar",
        "lake/settle/0.tar",
    ] {
        node.put(key, &shard(0..3));
    }
    for inside in [
        "0.tar",
        "deep/0.tar",
        "forebay://lake/set/0.tar",
        "forebay://lake/set/deep/0.tar",
    ] {
        assert_eq!(samples(&node, inside, false), Ok(3), "{inside}");
    }
    for outside in [
        "../secret/0.tar",
        "deep/../../secret/0.tar",
        "/lake/secret/0.tar",
        "./0.tar",
        "deep//0.tar",
        "..\\secret\\0.tar",
        "",
        "forebay://lake/secret/0.tar",
        "forebay://lake/settle/0.tar",
        "forebay://lake/set/../secret/0.tar",
        "forebay://lake/set/",
    ] {
        assert_eq!(
            samples(&node, outside, false),
            Err(Kind::InvalidInput),
            "{outside}"
        );
    }
    assert_eq!(
        samples(&node, "https://example.com/0.tar", false),
        Err(Kind::Unsupported)
    );
}

#[test]
fn whoever_allows_it_gets_shards_of_other_folders_but_never_by_dots() {
    let node = TestNode::start();
    node.put("lake/secret/0.tar", &shard(0..3));
    assert_eq!(samples(&node, "forebay://lake/secret/0.tar", true), Ok(3));
    for odd in [
        "../secret/0.tar",
        "forebay://lake/set/../secret/0.tar",
        "forebay:///lake/secret/0.tar",
    ] {
        assert_eq!(samples(&node, odd, true), Err(Kind::InvalidInput), "{odd}");
    }
}
