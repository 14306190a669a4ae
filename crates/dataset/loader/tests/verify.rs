//! Data that has to be what its manifests say: raw files, several folders, several buckets.
#![allow(clippy::unwrap_used, reason = "a failure here is the failure of a test")]

mod fixture;

use fixture::{TestNode, payload, shard};
use forebay_client::Name;
use forebay_core::Kind;
use forebay_dataset::manifest::{Digest, Hasher, Manifest, SecretKey, sign};
use forebay_loader::{Dataset, DatasetOptions, Verify};

fn digest(bytes: &[u8]) -> Digest {
    let mut hasher = Hasher::new();
    hasher.push(bytes);
    hasher.finish()
}

fn key(seed: u8) -> SecretKey {
    SecretKey::from_seed(&[seed; 32])
}

fn by(seed: u8) -> Verify {
    Verify::Signed(vec![key(seed).public()])
}

/// Writes the manifest of these files into a folder, signed.
fn vouch(node: &TestNode, folder: &str, files: &[(&str, &[u8])], signer: &SecretKey) {
    let sums = files
        .iter()
        .map(|(name, bytes)| ((*name).to_owned(), digest(bytes)));
    let text = Manifest::new(sums).unwrap().to_text();
    node.put(&format!("{folder}SHA256SUMS"), text.as_bytes());
    node.put(
        &format!("{folder}SHA256SUMS.sig"),
        sign(text.as_bytes(), signer).as_bytes(),
    );
}

fn open(node: &TestNode, names: &[&str], verify: &Verify) -> Result<Dataset, Kind> {
    let options = DatasetOptions {
        verify: verify.clone(),
        ..DatasetOptions::default()
    };
    Dataset::open(&node.client, names, options, None).map_err(|error| error.kind())
}

/// Returns how many samples there are, or why not.
fn samples(node: &TestNode, names: &[&str], verify: &Verify) -> Result<u64, Kind> {
    open(node, names, verify).map(|dataset| dataset.len())
}

/// More files than are read in one stretch, one that is read in several, and an empty one.
fn raw_files() -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<_> = (0..300)
        .map(|number| (format!("cats/{number:03}.jpg"), payload(number)))
        .collect();
    files.push(("dogs/empty.jpg".into(), Vec::new()));
    files.push(("dogs/large.jpg".into(), payload(3).repeat(4_000)));
    files
}

fn put_raw(node: &TestNode) -> Vec<(String, Vec<u8>)> {
    let files = raw_files();
    for (name, bytes) in &files {
        node.put(&format!("lake/raw/{name}"), bytes);
    }
    let listed: Vec<_> = files
        .iter()
        .map(|(name, bytes)| (name.as_str(), bytes.as_slice()))
        .collect();
    vouch(node, "lake/raw/", &listed, &key(1));
    files
}

#[test]
fn raw_files_that_are_changed_added_removed_or_not_signed_are_refused() {
    let node = TestNode::start();
    let files = put_raw(&node);
    assert!(files[301].1.len() > 8 << 20, "read in ranges");
    let names = ["lake/raw/"];
    for verify in [Verify::Manifest, by(1)] {
        assert_eq!(samples(&node, &names, &verify), Ok(302));
    }
    assert_eq!(samples(&node, &names, &by(2)), Err(Kind::Denied));
    for name in ["cats/007.jpg", "dogs/large.jpg", "dogs/empty.jpg"] {
        let place = format!("lake/raw/{name}");
        let (_, good) = files.iter().find(|(file, _)| file == name).unwrap();
        node.put(&place, &[good.as_slice(), b"!"].concat());
        assert_eq!(samples(&node, &names, &by(1)), Err(Kind::Checksum), "{name}");
        node.put(&place, good);
    }
    node.put("lake/raw/dogs/poison.jpg", b"poison");
    assert_eq!(samples(&node, &names, &by(1)), Err(Kind::Changed), "one too many");
    for name in ["lake/raw/dogs/poison.jpg", "lake/raw/cats/000.jpg"] {
        node.client.delete(&Name::parse(name).unwrap()).unwrap();
    }
    assert_eq!(samples(&node, &names, &by(1)), Err(Kind::NotFound), "one too few");
}

#[test]
fn a_raw_file_that_is_replaced_after_it_was_verified_is_refused() {
    let node = TestNode::start();
    let files = put_raw(&node);
    let dataset = open(&node, &["lake/raw/"], &by(1)).unwrap();
    for number in [5, 301] {
        let (name, good) = &files[number];
        let sample = dataset.sample(number as u64).unwrap();
        assert_eq!(&sample.fields[0][..], &good[..], "{name}");
        let mut poison = good.clone();
        poison[17] ^= 1;
        node.put(&format!("lake/raw/{name}"), &poison);
        let refused = dataset.sample(number as u64).map(|_| ()).unwrap_err();
        assert_eq!(refused.kind(), Kind::Changed, "{refused}");
    }
    assert_eq!(&dataset.sample(6).unwrap().fields[0][..], &files[6].1[..]);
}

#[test]
fn every_bucket_and_folder_needs_a_manifest_that_is_trusted() {
    let node = TestNode::start();
    node.client.create_bucket("more").unwrap();
    let shards = [shard(0..5), shard(5..9), shard(9..12)];
    let places = ["lake/a/00.tar", "lake/b/00.tar", "more/set/00.tar"];
    for (place, bytes) in places.iter().zip(&shards) {
        node.put(place, bytes);
    }
    for names in [places, ["lake/a/", "lake/b/", "more/set/"]] {
        vouch(&node, "lake/a/", &[("00.tar", &shards[0])], &key(1));
        vouch(&node, "lake/b/", &[("00.tar", &shards[1])], &key(1));
        assert_eq!(samples(&node, &names, &by(1)), Err(Kind::NotFound));
        vouch(&node, "more/set/", &[("00.tar", &shards[2])], &key(1));
        assert_eq!(samples(&node, &names, &by(1)), Ok(12));
        vouch(&node, "lake/b/", &[("00.tar", &shards[1])], &key(2));
        assert_eq!(samples(&node, &names, &Verify::Manifest), Ok(12));
        assert_eq!(samples(&node, &names, &by(1)), Err(Kind::Denied));
        vouch(&node, "lake/b/", &[("00.tar", &shards[2])], &key(1));
        assert_eq!(samples(&node, &names, &by(1)), Err(Kind::Checksum));
        for name in ["more/set/SHA256SUMS", "more/set/SHA256SUMS.sig"] {
            node.client.delete(&Name::parse(name).unwrap()).unwrap();
        }
    }
}

#[test]
fn folders_of_a_bucket_may_share_a_manifest_which_may_name_more() {
    let node = TestNode::start();
    let shards = [shard(0..5), shard(5..9), shard(9..12)];
    let files = [
        ("train/deep/00.tar", shards[0].as_slice()),
        ("val/00.tar", &shards[1]),
        ("test/00.tar", &shards[2]),
    ];
    for (name, bytes) in &files[..2] {
        node.put(&format!("lake/set/{name}"), bytes);
    }
    vouch(&node, "lake/set/", &files, &key(1));
    let names = ["lake/set/train/", "lake/set/val/"];
    assert_eq!(samples(&node, &names, &by(1)), Ok(9));
    assert_eq!(
        samples(&node, &["lake/set/"], &by(1)),
        Err(Kind::NotFound),
        "no test/"
    );
    node.put("lake/set/train/deep/01.tar", &shards[2]);
    assert_eq!(samples(&node, &names, &by(1)), Err(Kind::Changed));
    // The folder that was named has the manifest, wherever in it the shards lie.
    let deep = [("deep/00.tar", shards[0].as_slice()), ("deep/01.tar", &shards[2])];
    vouch(&node, "lake/set/train/", &deep, &key(1));
    assert_eq!(samples(&node, &["lake/set/train/"], &by(1)), Ok(8));
}

#[test]
fn a_document_that_lists_shards_is_verified_too() {
    let node = TestNode::start();
    let shards = [shard(0..5), shard(5..9)];
    let list = |names: &[(&str, usize)]| {
        let shards: Vec<String> = names
            .iter()
            .map(|(url, samples)| format!(r#"{{"url": "{url}", "nsamples": {samples}}}"#))
            .collect();
        format!(r#"{{"wids_version": 1, "shardlist": [{}]}}"#, shards.join(","))
    };
    let both = list(&[("00.tar", 5), ("01.tar", 4)]);
    let files = [
        ("00.tar", shards[0].as_slice()),
        ("01.tar", &shards[1]),
        ("wids.json", both.as_bytes()),
    ];
    for (name, bytes) in &files {
        node.put(&format!("lake/set/{name}"), bytes);
    }
    vouch(&node, "lake/set/", &files, &key(1));
    let names = ["lake/set/wids.json"];
    assert_eq!(samples(&node, &names, &by(1)), Ok(9));
    node.put("lake/set/wids.json", list(&[("00.tar", 5)]).as_bytes());
    assert_eq!(samples(&node, &names, &by(1)), Err(Kind::Checksum));
}
