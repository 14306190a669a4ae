//! Computed objects and sources of whoever composes the node, through the engine.
#![allow(clippy::unwrap_used, reason = "a failure here is the failure of a test")]

mod fixture;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use async_trait::async_trait;
use bytes::Bytes;
use fixture::{Fixture, body_of, bucket, key};
use forebay_core::{ByteRange, Error, Kind, ObjectKey, Result, Tier, Version, crc32c};
use forebay_engine::{
    BucketLake, Conditions, Consistency, CopyRequest, Derived, DerivedStat, LakeSource, LakeSources,
    RangeRequest, Sources, WriteCondition, WriteRequest,
};
use forebay_lake::{ListOptions, ListPage, ListedObject, MemoryLake};
use forebay_reservoir::{ObjectVersion, Source, SourceBlock, SourceStream, Urgency};
use futures::{StreamExt, stream};

/// `squares/<n>`: an object of n bytes, each the square of its place.
#[derive(Debug, Default)]
struct Squares {
    fetched_bytes: AtomicU64,
}

const SQUARES: &str = "squares/";
const LARGEST: u64 = 3 << 20;

fn square_bytes(range: ByteRange) -> Bytes {
    let bytes: Vec<u8> = (range.start()..range.end())
        .map(|place| (place.wrapping_mul(place) >> 3) as u8)
        .collect();
    bytes.into()
}

fn square(key: &str) -> Option<DerivedStat> {
    let name = key.strip_prefix(SQUARES)?;
    let Some(bytes) = name.parse().ok().filter(|bytes| *bytes <= LARGEST) else {
        return Some(DerivedStat::Missing);
    };
    Some(DerivedStat::Object(ListedObject {
        key: ObjectKey::new(key).ok()?,
        bytes,
        version: Version::new("squares-1"),
        modified: SystemTime::UNIX_EPOCH,
    }))
}

#[async_trait]
impl Derived for Squares {
    async fn stat(&self, _: &BucketLake, key: &ObjectKey) -> Result<DerivedStat> {
        Ok(square(key.as_str()).unwrap_or(DerivedStat::NotMine))
    }

    async fn list(&self, _: &BucketLake, options: &ListOptions) -> Result<Option<ListPage>> {
        if !options.prefix.starts_with(SQUARES) {
            return Ok(None);
        }
        let mut page = ListPage::default();
        for number in 1..=3 {
            let key = format!("{SQUARES}{number}");
            if let Some(DerivedStat::Object(object)) = square(&key) {
                page.objects.push(object);
            }
        }
        Ok(Some(page))
    }

    fn has_version(&self, _: &ObjectKey, version: &Version) -> bool {
        version.as_str().starts_with("squares-")
    }

    async fn fetch(
        &self,
        _: &BucketLake,
        _: &ObjectVersion,
        range: ByteRange,
        _: &Urgency,
    ) -> Result<SourceStream> {
        self.fetched_bytes.fetch_add(range.len(), Ordering::Relaxed);
        let block = SourceBlock::from_lake(square_bytes(range));
        Ok(stream::iter([Ok(block)]).boxed())
    }

    async fn check_writable(&self, _: &BucketLake, key: &ObjectKey) -> Result<()> {
        match key.as_str().starts_with(SQUARES) {
            true => Err(Error::new(Kind::InvalidInput, "squares are computed").with("key", key)),
            false => Ok(()),
        }
    }
}

async fn with_squares() -> (Fixture, Arc<Squares>) {
    let squares = Arc::new(Squares::default());
    let derived = Arc::clone(&squares) as Arc<dyn Derived>;
    let lake = Arc::new(MemoryLake::new());
    let fixture = Fixture::composed(lake, Consistency::Always, Arc::new(LakeSources), vec![derived]).await;
    (fixture, squares)
}

#[tokio::test]
async fn a_computed_object_reads_like_any_other_and_is_computed_once() {
    let (fixture, squares) = with_squares().await;
    let name = format!("{SQUARES}{LARGEST}");
    let whole = square_bytes(ByteRange::whole(LARGEST).unwrap());
    let info = fixture.engine.head(&bucket(), &key(&name)).await.unwrap();
    assert_eq!((info.bytes, info.version), (LARGEST, Version::new("squares-1")));
    for _ in 0..3 {
        assert_eq!(fixture.get(&name).await, whole);
    }
    let range = RangeRequest::Bounded {
        first: 1_000_000,
        last: 1_000_009,
    };
    let conditions = Conditions::default();
    let part = fixture
        .engine
        .read(&bucket(), &key(&name), range, &conditions)
        .await;
    assert_eq!(body_of(part.unwrap()).await, whole.slice(1_000_000..1_000_010));
    assert_eq!(squares.fetched_bytes.load(Ordering::Relaxed), LARGEST);
    assert_eq!(fixture.lake_read_bytes(), 0);
}

#[tokio::test]
async fn a_missing_computed_object_is_not_found_and_other_keys_are_the_lakes() {
    let (fixture, _squares) = with_squares().await;
    fixture
        .put_in_lake("squares/no number", Bytes::from_static(b"hidden"))
        .await;
    let missing = fixture.engine.head(&bucket(), &key("squares/no number")).await;
    assert_eq!(missing.unwrap_err().kind(), Kind::NotFound);
    fixture.put("plain", Bytes::from_static(b"plain")).await;
    assert_eq!(&fixture.get("plain").await[..], b"plain");
}

#[tokio::test]
async fn a_prefix_of_computed_objects_is_listed_by_who_computes_them() {
    let (fixture, _squares) = with_squares().await;
    fixture.put("plain", Bytes::from_static(b"plain")).await;
    let list = |prefix: &str| {
        let options = ListOptions {
            prefix: prefix.into(),
            ..ListOptions::default()
        };
        let engine = Arc::clone(&fixture.engine);
        async move {
            let page = engine.list(&bucket(), options).await.unwrap();
            let keys = page.objects.iter().map(|object| object.key.to_string());
            keys.collect::<Vec<_>>()
        }
    };
    assert_eq!(list("squares/").await, ["squares/1", "squares/2", "squares/3"]);
    assert_eq!(list("").await, ["plain"]);
}

#[tokio::test]
async fn a_place_of_computed_objects_cannot_be_written_and_can_be_copied_from() {
    let (fixture, _squares) = with_squares().await;
    let engine = &fixture.engine;
    let written = engine
        .write(&bucket(), &key("squares/9"), WriteRequest::default())
        .await;
    assert_eq!(written.err().map(|error| error.kind()), Some(Kind::InvalidInput));
    let removed = engine.delete(&bucket(), &key("squares/9")).await;
    assert_eq!(removed.unwrap_err().kind(), Kind::InvalidInput);
    let tagged = engine.set_tags(&bucket(), &key("squares/9"), Vec::new()).await;
    assert_eq!(tagged.unwrap_err().kind(), Kind::InvalidInput);
    let copy = CopyRequest {
        source: (bucket(), key("squares/1000")),
        target: (bucket(), key("copy")),
        attributes: None,
        tags: None,
        conditions: Conditions::default(),
        target_condition: WriteCondition::None,
    };
    assert_eq!(engine.copy(copy).await.unwrap().bytes, 1000);
    let expected = square_bytes(ByteRange::whole(1000).unwrap());
    assert_eq!(fixture.get("copy").await, expected);
}

/// Peers that send the lake's bytes with checksums that are wrong, in front of the lake.
#[derive(Debug, Default)]
struct BadPeers {
    opened: AtomicU64,
    asked: Arc<AtomicU64>,
}

#[derive(Debug)]
struct BadPeer {
    lake: LakeSource,
    asked: Arc<AtomicU64>,
}

impl Sources for BadPeers {
    fn source_of(&self, bucket: &BucketLake) -> Arc<dyn Source> {
        self.opened.fetch_add(1, Ordering::Relaxed);
        Arc::new(BadPeer {
            lake: LakeSource::new(bucket),
            asked: Arc::clone(&self.asked),
        })
    }
}

#[async_trait]
impl Source for BadPeer {
    async fn fetch(&self, _: &ObjectVersion, range: ByteRange, _: &Urgency) -> Result<SourceStream> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let bytes = square_bytes(range);
        let block = SourceBlock {
            crc32c: Some(!crc32c::crc32c(&bytes)),
            bytes,
            tier: Tier::Peer,
        };
        Ok(stream::iter([Ok(block)]).boxed())
    }

    fn fallback(&self) -> Option<Arc<dyn Source>> {
        Some(Arc::new(self.lake.clone()))
    }
}

#[tokio::test]
async fn a_bucket_has_one_source_and_damaged_bytes_of_it_never_reach_a_reader() {
    let peers = Arc::new(BadPeers::default());
    let sources = Arc::clone(&peers) as Arc<dyn Sources>;
    let lake = Arc::new(MemoryLake::new());
    let fixture = Fixture::composed(lake, Consistency::Always, sources, Vec::new()).await;
    let opened = peers.opened.load(Ordering::Relaxed);
    for name in ["x", "y"] {
        let body = fixture.random_bytes(300_000);
        fixture.put_in_lake(name, body.clone()).await;
        assert_eq!(fixture.get(name).await, body);
    }
    assert_eq!(peers.opened.load(Ordering::Relaxed), opened);
    assert_eq!(peers.asked.load(Ordering::Relaxed), 2);
    let stats = fixture.engine.reservoir().stats();
    assert_eq!((stats.corrupt_source_blocks, stats.fill_fallbacks), (2, 2));
    assert_eq!((stats.served_peer_bytes, stats.served_lake_bytes), (0, 600_000));
}
