//! Shards behind a counted lake: what is found, and what it cost.

use bytes::Bytes;
use forebay_core::SystemClock;
use forebay_lake::{Counted, Lake, MemoryLake, PutOptions};

use super::*;
use crate::test_engine::engine_over;

struct Fixture {
    engine: Arc<Engine>,
    lake: Arc<Counted>,
    members: Members,
    _folder: tempfile::TempDir,
}

fn bucket() -> BucketName {
    BucketName::new("bucket").unwrap()
}

fn key() -> ObjectKey {
    ObjectKey::new("shard.tar").unwrap()
}

impl Fixture {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let lake = Arc::new(Counted::new(Arc::new(MemoryLake::new())));
        let clock = Arc::new(SystemClock::new());
        let engine = engine_over(lake.clone(), folder.path(), &bucket(), clock).await;
        Self {
            engine,
            lake,
            members: Members::new(),
            _folder: folder,
        }
    }

    async fn put(&self, shard: Vec<u8>) {
        let key = ObjectKey::new("bucket/shard.tar").unwrap();
        let put = self.lake.put(&key, Bytes::from(shard), PutOptions::default());
        put.await.unwrap();
    }

    async fn locate(&self, name: &str) -> Result<(Arc<ObjectInfo>, Option<ByteRange>)> {
        self.locate_in(None, name).await
    }

    async fn locate_in(
        &self,
        wanted: Option<&Version>,
        name: &str,
    ) -> Result<(Arc<ObjectInfo>, Option<ByteRange>)> {
        let (members, engine, bucket, key) = (&self.members, &self.engine, bucket(), key());
        let found = engine.with_version(&bucket, &key, wanted, |object| async move {
            let range = members.range_in_version(engine, &object, name).await?;
            Ok(range.map(|range| (object, range)))
        });
        found.await?
    }

    fn lake_bytes(&self) -> u64 {
        self.lake.counters().snapshot().read_bytes
    }
}

fn header(name: &str, bytes: usize) -> [u8; 512] {
    let mut block = [0; 512];
    block[..name.len()].copy_from_slice(name.as_bytes());
    block[124..136].copy_from_slice(format!("{bytes:011o}\0").as_bytes());
    block[156] = b'0';
    block[257..265].copy_from_slice(b"ustar\x0000");
    block[148..156].fill(b' ');
    let sum: u64 = block.iter().map(|byte| u64::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    block
}

fn shard<'a>(members: impl IntoIterator<Item = (&'a str, Vec<u8>)>) -> Vec<u8> {
    let mut shard = Vec::new();
    for (name, content) in members {
        shard.extend_from_slice(&header(name, content.len()));
        shard.extend_from_slice(&content);
        shard.resize(shard.len().next_multiple_of(512), 0);
    }
    shard.resize(shard.len() + 1024, 0);
    shard
}

#[tokio::test]
async fn a_member_is_found_where_it_lies() {
    let fixture = Fixture::new().await;
    fixture
        .put(shard([
            ("a.jpg", vec![1; 700]),
            ("empty", vec![]),
            ("b.jpg", vec![2; 5]),
        ]))
        .await;
    let (object, range) = fixture.locate("b.jpg").await.unwrap();
    assert_eq!(range, ByteRange::new(2560, 2565).ok());
    assert_eq!(fixture.locate("empty").await.unwrap().1, None);
    assert_eq!(
        fixture.members.known_range(&object, "b.jpg").unwrap().unwrap(),
        range
    );
}

#[tokio::test]
async fn a_missing_member_is_not_found_and_the_error_helps() {
    let fixture = Fixture::new().await;
    fixture.put(shard([("train/0001.jpg", vec![1; 700])])).await;
    let error = fixture.locate("0001.jpg").await.unwrap_err();
    assert_eq!(error.kind(), Kind::NotFound);
    for part in ["0001.jpg", "shard.tar", "first_member: train/0001.jpg"] {
        assert!(error.to_string().contains(part), "{error}");
    }
}

#[tokio::test]
async fn large_members_are_hopped_over() {
    let fixture = Fixture::new().await;
    let large = || vec![7; 8 << 20];
    let names = ["a", "b", "c", "d"];
    let members = names.map(|name| (name, large())).into_iter();
    fixture.put(shard(members.chain([("last", vec![9; 10])]))).await;
    assert!(fixture.locate("last").await.unwrap().1.is_some());
    // Five headers, a block of the cache for each, and what the scheduler adds around them.
    assert!(fixture.lake_bytes() <= 2 << 20, "{}", fixture.lake_bytes());
}

#[tokio::test]
async fn many_who_ask_at_once_cost_one_scan() {
    let fixture = Fixture::new().await;
    let names: Vec<String> = (0..3000).map(|number| format!("{number:05}.jpg")).collect();
    let bytes = shard(names.iter().map(|name| (name.as_str(), vec![1; 900])));
    let shard_bytes = bytes.len() as u64;
    fixture.put(bytes).await;
    let looks = names.iter().step_by(50).map(|name| fixture.locate(name));
    for found in futures::future::join_all(looks).await {
        assert!(found.unwrap().1.is_some());
    }
    assert!(fixture.lake_bytes() <= shard_bytes, "{}", fixture.lake_bytes());
}

#[tokio::test]
async fn a_replaced_shard_has_another_index() {
    let fixture = Fixture::new().await;
    fixture.put(shard([("a", vec![1; 10])])).await;
    let (old, _) = fixture.locate("a").await.unwrap();
    fixture.put(shard([("b", vec![2; 20]), ("a", vec![3; 30])])).await;
    let (new, range) = fixture.locate("a").await.unwrap();
    assert_ne!(old.version, new.version);
    assert_eq!(range.unwrap().len(), 30);
    let pinned = fixture.locate_in(Some(&old.version), "a").await;
    assert_eq!(pinned.unwrap_err().kind(), Kind::Changed);
}

#[tokio::test]
async fn what_is_no_archive_is_looked_at_once() {
    let fixture = Fixture::new().await;
    fixture.put(vec![0x41; 300_000]).await;
    for _ in 0..3 {
        assert_eq!(fixture.locate("a").await.unwrap_err().kind(), Kind::InvalidInput);
    }
    assert!(fixture.lake_bytes() <= 300_000, "{}", fixture.lake_bytes());
    let mut cut = shard([("a", vec![1; 5000])]);
    cut.truncate(3000);
    fixture.put(cut).await;
    assert_eq!(fixture.locate("a").await.unwrap_err().kind(), Kind::Corrupt);
}

#[tokio::test]
async fn a_shard_that_is_not_there_is_not_found() {
    let fixture = Fixture::new().await;
    assert_eq!(fixture.locate("a").await.unwrap_err().kind(), Kind::NotFound);
}
