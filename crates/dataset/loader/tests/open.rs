//! Opening: which shards, which index, how much is read.

mod fixture;

use std::sync::atomic::{AtomicU64, Ordering};

use fixture::{TestNode, content_at, member, number_of, payload, shard};
use forebay_client::Name;
use forebay_core::Kind;
use forebay_dataset::manifest::{Hasher, Manifest, SecretKey, sign};
use forebay_loader::{Dataset, DatasetOptions, IndexOrigin, Rebuild, Verify};

#[test]
fn every_sample_can_be_read_by_its_number() {
    let node = TestNode::start();
    node.shards("set", &[10, 0, 7, 3]);
    let dataset = node.open("forebay://lake/set/{00..03}.tar");
    assert_eq!(
        (dataset.len(), dataset.fields()),
        (20, &["bin".to_owned(), "cls".to_owned()][..])
    );
    for number in 0..20 {
        let sample = dataset.sample(number).unwrap();
        assert_eq!(number_of(&sample) as u64, number);
        assert_eq!(sample.number, number);
    }
    assert_eq!(&*dataset.sample(12).unwrap().shard, "lake/set/02.tar");
    assert_eq!(dataset.sample(20).unwrap_err().kind(), Kind::OutOfRange);
}

#[test]
fn a_field_without_bytes_is_there_and_empty() {
    let node = TestNode::start();
    let mut tar = Vec::new();
    member(&mut tar, "a.bin", b"");
    member(&mut tar, "a.cls", b"");
    member(&mut tar, "b.bin", b"x");
    tar.extend_from_slice(&[0; 1024]);
    node.put("lake/empty/0.tar", &tar);
    let dataset = node.open("lake/empty/0.tar");
    let sample = dataset.sample(0).unwrap();
    assert_eq!(sample.field("bin").unwrap().len(), 0);
    assert!(sample.field("bin").unwrap().memory().is_none());
    assert_eq!(&**dataset.sample(1).unwrap().field("bin").unwrap(), b"x");
}

#[test]
fn an_index_is_stored_once_and_reused() {
    let node = TestNode::start();
    node.shards("set", &[50, 50]);
    let first = node.open("lake/set/");
    assert_eq!(first.index_origin(), IndexOrigin::Built);
    assert_eq!(node.keys("set/.forebay/").len(), 1);
    let before = node.client.stats();
    let second = node.open("lake/set/{00..01}.tar");
    assert_eq!(second.index_origin(), IndexOrigin::Stored);
    let after = node.client.stats();
    let index_bytes = second.index().head().file_bytes();
    let read = |stats: &forebay_client::ClientStats| stats.ram_bytes + stats.nvme_bytes + stats.lake_bytes;
    assert_eq!(
        read(&after) - read(&before),
        index_bytes,
        "only the index was read"
    );
    assert_eq!(node.keys("set/.forebay/").len(), 1);
}

#[test]
fn only_the_shard_that_changed_is_read_again() {
    let node = TestNode::start();
    node.shards("set", &[40, 40, 40]);
    node.open("lake/set/");
    let other = shard(40..77);
    node.put("lake/set/01.tar", &other);
    let bytes = AtomicU64::new(0);
    let progress = |progress: forebay_loader::Progress| {
        assert_eq!(
            (progress.bytes_total, progress.shards_total),
            (other.len() as u64, 1)
        );
        bytes.fetch_max(progress.bytes_done, Ordering::Relaxed);
    };
    let dataset = Dataset::open(
        &node.client,
        &["lake/set/"],
        DatasetOptions::default(),
        Some(&progress),
    )
    .unwrap();
    assert_eq!(bytes.load(Ordering::Relaxed), other.len() as u64);
    assert_eq!((dataset.len(), dataset.index_origin()), (117, IndexOrigin::Built));
    assert_eq!(node.open("lake/set/").index_origin(), IndexOrigin::Stored);
}

#[test]
fn nothing_is_built_if_that_is_not_wanted() {
    let node = TestNode::start();
    node.shards("set", &[5]);
    let never = || DatasetOptions {
        rebuild: Rebuild::Never,
        ..DatasetOptions::default()
    };
    let error = Dataset::open(&node.client, &["lake/set/"], never(), None).unwrap_err();
    assert_eq!(error.kind(), Kind::NotFound);
    assert!(error.message().contains("forebay dataset index"), "{error}");
    node.open("lake/set/");
    Dataset::open(&node.client, &["lake/set/"], never(), None).unwrap();
    node.put("lake/set/00.tar", &shard(0..6));
    let error = Dataset::open(&node.client, &["lake/set/"], never(), None).unwrap_err();
    assert_eq!(error.kind(), Kind::Changed);
}

#[test]
fn a_damaged_index_is_built_again() {
    let node = TestNode::start();
    node.shards("set", &[5]);
    node.open("lake/set/");
    let key = node.keys("set/.forebay/").pop().unwrap();
    node.put(
        &format!("lake/{key}"),
        b"FBYDSIDX and then nothing that makes sense",
    );
    assert_eq!(node.open("lake/set/").index_origin(), IndexOrigin::Built);
    assert_eq!(node.open("lake/set/").index_origin(), IndexOrigin::Stored);
}

#[test]
fn two_builders_end_with_one_index_that_fits() {
    let node = TestNode::start();
    node.shards("set", &[30, 30, 30, 30]);
    let datasets: Vec<Dataset> = std::thread::scope(|scope| {
        let open = || scope.spawn(|| node.open("lake/set/"));
        let threads: Vec<_> = (0..4).map(|_| open()).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(datasets.iter().all(|dataset| dataset.len() == 120));
    let built = datasets
        .iter()
        .filter(|dataset| dataset.index_origin() == IndexOrigin::Built)
        .count();
    assert_eq!(built, 1, "one wins, the others take its index");
    assert!(
        datasets
            .iter()
            .all(|dataset| dataset.index_origin() != IndexOrigin::InMemory)
    );
    assert_eq!(node.keys("set/.forebay/").len(), 1);
}

#[test]
fn missing_shards_are_named() {
    let node = TestNode::start();
    node.shards("set", &[1, 1]);
    for name in ["lake/set/{00..07}.tar", "lake/set/{00..99}.tar"] {
        let error = Dataset::open(&node.client, &[name], DatasetOptions::default(), None).unwrap_err();
        assert_eq!(error.kind(), Kind::NotFound);
        assert!(
            error.to_string().contains("lake/set/02.tar lake/set/03.tar"),
            "{error}"
        );
        assert!(!error.to_string().contains("07.tar"), "{error}");
    }
    let error = Dataset::open(&node.client, &["lake/none/"], DatasetOptions::default(), None).unwrap_err();
    assert_eq!(error.kind(), Kind::NotFound);
}

#[test]
fn many_shards_are_found_by_listing_and_not_one_by_one() {
    let node = TestNode::start();
    node.shards("many", &[1; 30]);
    node.open("lake/many/{00..29}.tar");
    let before = node.client.stats().requests;
    let dataset = node.open("lake/many/{00..29}.tar");
    assert_eq!(dataset.len(), 30);
    assert!(
        node.client.stats().requests - before <= 3,
        "{}",
        node.client.stats().requests - before
    );
}

#[test]
fn raw_files_are_samples_with_their_keys() {
    let node = TestNode::start();
    for number in 0..12 {
        node.put(
            &format!(
                "lake/raw/{}/{number:02}.jpg",
                if number % 2 == 0 { "cat" } else { "dog" }
            ),
            &payload(number + 1),
        );
    }
    node.put("lake/raw/.hidden/x.jpg", b"no sample");
    let options = DatasetOptions {
        labels: forebay_dataset::raw::Labels::Folder,
        ..DatasetOptions::default()
    };
    let dataset = Dataset::open(&node.client, &["forebay://lake/raw/"], options, None).unwrap();
    assert_eq!(
        (dataset.len(), dataset.index_origin()),
        (12, IndexOrigin::InMemory)
    );
    let sample = dataset.sample(6).unwrap();
    assert_eq!(sample.key.as_deref(), Some(&b"dog/01.jpg"[..]));
    assert_eq!(sample.field("data").unwrap()[..], payload(2)[..]);
}

#[test]
fn only_the_wanted_fields_are_read() {
    let node = TestNode::start();
    node.shards("set", &[30]);
    let options = DatasetOptions {
        fields: vec!["cls".into()],
        ..DatasetOptions::default()
    };
    let dataset = Dataset::open(&node.client, &["lake/set/"], options, None).unwrap();
    let sample = dataset.sample(29).unwrap();
    assert_eq!((sample.fields.len(), sample.bytes()), (1, 2));
    let options = DatasetOptions {
        fields: vec!["png".into()],
        ..DatasetOptions::default()
    };
    let error = Dataset::open(&node.client, &["lake/set/"], options, None).unwrap_err();
    assert!(error.to_string().contains("bin cls"), "{error}");
}

#[test]
fn a_damaged_byte_is_told_with_shard_key_and_offset() {
    let node = TestNode::start();
    node.shards("set", &[10, 10]);
    node.open("lake/set/");
    let mut damaged = shard(10..20);
    let at = content_at(&damaged, "000013.bin");
    damaged[at + 2] ^= 1;
    node.damage("set", &[10, 10], 1, &damaged);
    let dataset = node.open("lake/set/");
    assert_eq!(dataset.index_origin(), IndexOrigin::Stored);
    let error = dataset.sample(13).unwrap_err();
    assert_eq!(error.kind(), Kind::Corrupt);
    for part in [
        "lake/set/01.tar",
        "000013",
        "field: bin",
        &format!("offset: {at}"),
    ] {
        assert!(error.to_string().contains(part), "{part}: {error}");
    }
    number_of(&dataset.sample(12).unwrap());
    number_of(&dataset.sample(14).unwrap());
}

#[test]
fn where_an_index_cannot_be_stored_it_stays_in_memory() {
    let node = TestNode::start();
    node.shards("set", &[10]);
    // A folder lake cannot have a folder where an object lies.
    node.put("lake/set/.forebay", b"in the way");
    for _ in 0..2 {
        let dataset = node.open("lake/set/");
        assert_eq!(
            (dataset.len(), dataset.index_origin()),
            (10, IndexOrigin::InMemory)
        );
        number_of(&dataset.sample(9).unwrap());
    }
}

/// The kind of the error that a verified opening ends with, or the number of samples.
fn verified(node: &TestNode, name: &str, verify: &Verify) -> Result<u64, Kind> {
    let options = DatasetOptions {
        verify: verify.clone(),
        ..DatasetOptions::default()
    };
    let dataset = Dataset::open(&node.client, &[name], options, None).map_err(|error| error.kind())?;
    assert_eq!(dataset.index_origin(), IndexOrigin::InMemory);
    Ok(dataset.len())
}

#[test]
fn data_that_is_changed_added_removed_or_not_signed_is_refused_when_it_is_verified() {
    let node = TestNode::start();
    let sizes = [5, 4];
    node.shards("set", &sizes);
    let (key, other) = (SecretKey::from_seed(&[1; 32]), SecretKey::from_seed(&[2; 32]));
    let by = |key: &SecretKey| Verify::Signed(vec![key.public()]);
    let folder = |verify: &Verify| verified(&node, "lake/set/", verify);
    assert_eq!(folder(&Verify::Manifest), Err(Kind::NotFound), "no manifest");
    let digest = |bytes: &[u8]| {
        let mut hasher = Hasher::new();
        hasher.push(bytes);
        hasher.finish()
    };
    let sums = [
        ("00.tar".to_owned(), digest(&shard(0..5))),
        ("01.tar".to_owned(), digest(&shard(5..9))),
        ("README.md".to_owned(), digest(b"")),
    ];
    let sums = Manifest::new(sums).unwrap().to_text();
    node.put("lake/set/SHA256SUMS", sums.as_bytes());
    assert_eq!(folder(&Verify::Manifest), Ok(9));
    assert_eq!(folder(&by(&key)), Err(Kind::NotFound), "no signature");
    node.put("lake/set/SHA256SUMS.sig", sign(sums.as_bytes(), &key).as_bytes());
    assert_eq!(folder(&by(&key)), Ok(9));
    assert_eq!(folder(&by(&other)), Err(Kind::Denied));
    // One byte, with an index beside it that says that nothing has changed.
    node.open("lake/set/");
    let mut poisoned = shard(5..9);
    poisoned[content_at(&shard(5..9), "000006.bin")] ^= 1;
    node.damage("set", &sizes, 1, &poisoned);
    assert_eq!(node.open("lake/set/").len(), 9);
    for verify in [Verify::Manifest, by(&key)] {
        assert_eq!(folder(&verify), Err(Kind::Checksum));
    }
    assert_eq!(
        verified(&node, "lake/set/{00..00}.tar", &by(&key)),
        Ok(5),
        "a part"
    );
    // A manifest that fits the poison is not the one that was signed.
    let fitting = sums.replace(&digest(&shard(5..9)).to_string(), &digest(&poisoned).to_string());
    node.put("lake/set/SHA256SUMS", fitting.as_bytes());
    assert_eq!(folder(&Verify::Manifest), Ok(9));
    assert_eq!(folder(&by(&key)), Err(Kind::Checksum));
    node.put("lake/set/SHA256SUMS", sums.as_bytes());
    node.put("lake/set/01.tar", &shard(5..9));
    node.put("lake/set/02.tar", &shard(9..10));
    assert_eq!(folder(&by(&key)), Err(Kind::Changed), "one too many");
    for name in ["lake/set/01.tar", "lake/set/02.tar"] {
        node.client.delete(&Name::parse(name).unwrap()).unwrap();
    }
    assert_eq!(folder(&by(&key)), Err(Kind::NotFound), "one too few");
}

#[test]
fn a_damaged_shard_is_left_out_by_name_where_that_was_asked_for() {
    let node = TestNode::start();
    node.shards("set", &[10, 10, 10]);
    let mut bytes = shard(10..20);
    // A hole where the header of a member was.
    let at = content_at(&bytes, "000015.bin") - 512;
    bytes[at..at + 512].fill(0);
    node.put("lake/set/01.tar", &bytes);
    let open = |skip_damaged| {
        let options = DatasetOptions {
            skip_damaged,
            ..DatasetOptions::default()
        };
        Dataset::open(&node.client, &["lake/set/"], options, None)
    };
    assert_eq!(open(false).unwrap_err().kind(), Kind::Corrupt);
    for _ in 0..2 {
        let dataset = open(true).unwrap();
        assert_eq!(dataset.len(), 20);
        // Whoever does not ask for it must not find an index that hides it.
        assert_eq!(dataset.index_origin(), IndexOrigin::InMemory);
        let [damaged] = dataset.damaged_shards() else {
            panic!("{:?}", dataset.damaged_shards())
        };
        assert_eq!(damaged.shard, "lake/set/01.tar");
        assert!(damaged.reason.contains("offset"), "{}", damaged.reason);
    }
    assert_eq!(open(false).unwrap_err().kind(), Kind::Corrupt);
}
