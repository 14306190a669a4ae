//! Packs, manifests and splits through a node in this process.
#![allow(clippy::unwrap_used, reason = "tests, where a panic is the report")]

use std::sync::Arc;
use std::sync::Mutex;

use forebay_client::{Client, ClientOptions, Name, PutOptions, PutSource};
use forebay_core::Kind;
use forebay_dataset::part::Members;
use forebay_dataset::shard::Format;
use forebay_dataset_pack::{
    Folder, Pack, PackOptions, PartShare, Progress, SplitOptions, SplitUnit, Stage, Work, check_manifest,
    split, verify, write_manifest,
};
use forebay_loader::{Dataset, DatasetOptions};
use forebay_node::{EmbeddedNode, EmbeddedOptions};

/// A node with the raw files `lake/raw/00.txt` … of 5000 bytes each.
struct TestNode {
    client: Client,
    _node: EmbeddedNode,
    _dir: tempfile::TempDir,
}

impl TestNode {
    fn start(files: u8) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let node = EmbeddedNode::start(EmbeddedOptions {
            ram_bytes: Some(64 << 20),
            data_dir: Some(dir.path().join("data")),
            ..EmbeddedOptions::default()
        })
        .unwrap();
        let client = Client::connect(ClientOptions {
            address: Some(node.socket().display().to_string()),
            ..ClientOptions::default()
        })
        .unwrap();
        client.create_bucket("lake").unwrap();
        let node = Self {
            client,
            _node: node,
            _dir: dir,
        };
        for number in 0..files {
            node.put(&format!("raw/{number:02}.txt"), &[number; 5000]);
        }
        node
    }

    fn put(&self, key: &str, bytes: &[u8]) {
        let name = Name::new("lake", key).unwrap();
        self.client
            .put(&name, PutSource::Slice(bytes), PutOptions::default())
            .unwrap();
    }

    fn raw(&self) -> Dataset {
        let names = ["forebay://lake/raw/"];
        Dataset::open(&self.client, &names, DatasetOptions::default(), None).unwrap()
    }

    fn folder(&self, prefix: &str) -> Folder {
        Folder::new(self.client.clone(), "lake", prefix)
    }

    fn pack(&self) -> Pack {
        let options = PackOptions {
            shard_bytes: 64 << 10,
            jobs: 1,
            ..PackOptions::new(Format::Tar)
        };
        Pack::plan(self.raw(), &options).unwrap()
    }
}

#[test]
fn a_pack_that_was_interrupted_goes_on_with_the_shards_that_are_missing() {
    let node = TestNode::start(40);
    let (pack, folder) = (node.pack(), node.folder("tar/"));
    let heard: Arc<Mutex<Vec<Progress>>> = Arc::default();
    let bytes_packed = Arc::clone(&heard);
    let after_first_shard = Work {
        interrupt: Some(Arc::new(move || {
            let heard = bytes_packed.lock().unwrap();
            heard
                .last()
                .is_some_and(|progress| progress.bytes_done > 64 << 10)
        })),
        on_progress: Some(&|progress| heard.lock().unwrap().push(progress)),
    };
    let interrupted = pack.write(&folder, &after_first_shard).unwrap_err();
    assert_eq!(interrupted.kind(), Kind::Cancelled, "{interrupted}");
    assert!(
        heard
            .lock()
            .unwrap()
            .iter()
            .all(|one| one.stage == Stage::Packing)
    );
    let torn = Dataset::open(
        &node.client,
        &["forebay://lake/tar/"],
        DatasetOptions::default(),
        None,
    );
    assert_eq!(torn.err().unwrap().kind(), Kind::NotFound);

    let report = pack.write(&folder, &Work::default()).unwrap();
    assert_eq!(report.samples, 40);
    assert!(
        (1..report.shards).contains(&report.shards_written),
        "{report:?}: some shards were there"
    );
    let again = pack.write(&folder, &Work::default()).unwrap();
    assert_eq!((again.shards_written, again.id), (0, report.id));
    assert!(verify(&folder, &[], 2, &Work::default()).unwrap().is_ok());
}

#[test]
fn a_folder_with_something_else_in_it_is_not_packed_into() {
    let node = TestNode::start(3);
    let refused = node.pack().write(&node.folder("raw/"), &Work::default());
    let refused = refused.unwrap_err();
    assert_eq!(refused.kind(), Kind::Conflict);
    assert!(refused.message().contains("not empty"), "{refused}");
}

#[test]
fn a_manifest_is_current_until_something_changes() {
    let node = TestNode::start(3);
    let (folder, work) = (node.folder("raw/"), Work::default());
    assert_eq!(
        check_manifest(&folder, 2, &work).unwrap_err().kind(),
        Kind::NotFound
    );
    assert!(write_manifest(&folder, None, 2, &work).unwrap().is_changed);
    assert!(!write_manifest(&folder, None, 2, &work).unwrap().is_changed);
    check_manifest(&folder, 2, &work).unwrap();
    node.put("raw/01.txt", b"other");
    node.put("raw/99.txt", b"new");
    assert_eq!(
        check_manifest(&folder, 2, &work).unwrap_err().kind(),
        Kind::Changed
    );
    let report = verify(&folder, &[], 2, &work).unwrap();
    assert!(!report.is_ok());
    assert_eq!((report.files.same, report.files.changed.len()), (2, 1));
    assert_eq!(report.files.extra, ["99.txt"]);
}

#[test]
fn parts_of_a_split_share_no_sample_and_are_the_same_every_time() {
    let node = TestNode::start(20);
    let dataset = node.raw();
    let options = SplitOptions {
        parts: PartShare::parse_list("train=0.7,val=0.2").unwrap(),
        seed: 7,
        unit: SplitUnit::Samples,
    };
    let parts = || {
        let mut parts = Vec::new();
        split(&dataset, &options, |_, list| {
            parts.push(list);
            Ok(())
        })
        .unwrap();
        parts
    };
    let first = parts();
    assert_eq!(first, parts());
    let mut all = Vec::new();
    for part in first {
        let Members::Samples(numbers) = part.members else {
            panic!("samples")
        };
        all.extend(numbers);
    }
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 18, "14 and 4, none twice");
}
