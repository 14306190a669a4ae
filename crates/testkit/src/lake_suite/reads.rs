//! Whole reads, ranges, pinned versions.

use bytes::Bytes;
use forebay_core::{ByteRange, Kind, Version};
use forebay_lake::{GetOptions, GetRange};

use super::{LakeFixture, kind_of};
use crate::{patterned, read_all};

/// More than two of the pieces that lakes read and write in.
const LARGE_BYTES: usize = (5 << 20) + 17;

fn bounded(start: u64, end: u64) -> GetRange {
    GetRange::Bounded(ByteRange::new(start, end).unwrap())
}

pub(super) async fn get_returns_what_was_put(fixture: LakeFixture) {
    let body = patterned(1000, 1);
    fixture.put("k", body.clone()).await;
    assert_eq!(fixture.read("k").await, body);
}

pub(super) async fn head_and_get_agree(fixture: LakeFixture) {
    let receipt = fixture.put("k", patterned(1000, 1)).await;
    let head = fixture.lake.head(&fixture.key("k")).await.unwrap();
    let get = fixture
        .lake
        .get(&fixture.key("k"), GetOptions::default())
        .await
        .unwrap();
    assert_eq!(head, get.meta, "head and get describe the same object");
    assert_eq!(
        (head.key, head.bytes, head.version),
        (fixture.key("k"), 1000, receipt.version)
    );
    assert_eq!((get.start, get.bytes), (0, 1000));
}

pub(super) async fn missing_object_is_not_found(fixture: LakeFixture) {
    fixture.put("k/below", "x").await;
    for name in ["absent", "k", "k/", "k/below/deeper", "k/bel"] {
        let key = fixture.key(name);
        assert_eq!(
            kind_of(fixture.lake.head(&key).await),
            Some(Kind::NotFound),
            "head of {name}"
        );
        let get = fixture.lake.get(&key, GetOptions::default()).await;
        assert_eq!(kind_of(get), Some(Kind::NotFound), "get of {name}");
    }
}

pub(super) async fn empty_object_reads_as_nothing(fixture: LakeFixture) {
    fixture.put("k", Bytes::new()).await;
    assert_eq!(fixture.lake.head(&fixture.key("k")).await.unwrap().bytes, 0);
    assert!(fixture.read("k").await.is_empty());
}

pub(super) async fn large_object_reads_whole(fixture: LakeFixture) {
    let body = patterned(LARGE_BYTES, 2);
    fixture.put("k", body.clone()).await;
    assert!(
        fixture.read("k").await == body,
        "a large object comes back byte for byte"
    );
}

pub(super) async fn range_in_the_middle_is_exact(fixture: LakeFixture) {
    let body = patterned(1000, 3);
    fixture.put("k", body.clone()).await;
    let options = GetOptions {
        range: Some(bounded(100, 300)),
        ..GetOptions::default()
    };
    let result = fixture.lake.get(&fixture.key("k"), options).await.unwrap();
    assert_eq!((result.start, result.bytes, result.meta.bytes), (100, 200, 1000));
    assert_eq!(read_all(result.body).await.unwrap(), body.slice(100..300));
}

pub(super) async fn range_end_is_cut_at_the_object_end(fixture: LakeFixture) {
    let body = patterned(1000, 4);
    fixture.put("k", body.clone()).await;
    assert_eq!(
        fixture.read_range("k", bounded(900, 5000)).await.unwrap(),
        body.slice(900..)
    );
}

pub(super) async fn range_past_end_is_out_of_range(fixture: LakeFixture) {
    fixture.put("k", patterned(1000, 5)).await;
    for range in [bounded(1000, 1001), bounded(5000, 6000), GetRange::From(1000)] {
        assert_eq!(
            kind_of(fixture.read_range("k", range).await),
            Some(Kind::OutOfRange),
            "{range:?}"
        );
    }
}

pub(super) async fn range_of_an_empty_object_is_out_of_range(fixture: LakeFixture) {
    fixture.put("k", Bytes::new()).await;
    assert_eq!(
        kind_of(fixture.read_range("k", bounded(0, 1)).await),
        Some(Kind::OutOfRange)
    );
}

pub(super) async fn range_from_an_offset(fixture: LakeFixture) {
    let body = patterned(1000, 6);
    fixture.put("k", body.clone()).await;
    assert_eq!(fixture.read_range("k", GetRange::From(0)).await.unwrap(), body);
    assert_eq!(
        fixture.read_range("k", GetRange::From(999)).await.unwrap(),
        body.slice(999..)
    );
}

pub(super) async fn range_of_the_last_bytes(fixture: LakeFixture) {
    let body = patterned(1000, 7);
    fixture.put("k", body.clone()).await;
    assert_eq!(
        fixture.read_range("k", GetRange::Last(1)).await.unwrap(),
        body.slice(999..)
    );
    assert_eq!(fixture.read_range("k", GetRange::Last(1000)).await.unwrap(), body);
    assert_eq!(
        fixture.read_range("k", GetRange::Last(5000)).await.unwrap(),
        body,
        "more than there is is all there is"
    );
}

pub(super) async fn range_across_a_large_object(fixture: LakeFixture) {
    let body = patterned(LARGE_BYTES, 8);
    fixture.put("k", body.clone()).await;
    let (start, end) = ((1 << 20) - 3, (4 << 20) + 5);
    let read = fixture
        .read_range("k", bounded(start as u64, end as u64))
        .await
        .unwrap();
    assert!(
        read == body.slice(start..end),
        "a range across pieces comes back byte for byte"
    );
}

pub(super) async fn matching_version_reads(fixture: LakeFixture) {
    let receipt = fixture.put("k", "body").await;
    let options = GetOptions {
        if_match: Some(receipt.version),
        ..GetOptions::default()
    };
    assert_eq!(fixture.try_read("k", options).await.unwrap(), "body");
}

pub(super) async fn other_version_is_changed(fixture: LakeFixture) {
    let old = fixture.put("k", "old").await.version;
    fixture.put("k", "new").await;
    for version in [old, Version::new("00000000000000000000000000000000")] {
        let options = GetOptions {
            if_match: Some(version),
            ..GetOptions::default()
        };
        assert_eq!(kind_of(fixture.try_read("k", options).await), Some(Kind::Changed));
    }
}

/// A read that has begun gives the old bytes or fails; it never goes on with the new ones.
pub(super) async fn replaced_object_is_never_mixed(fixture: LakeFixture) {
    let (old, new) = (patterned(LARGE_BYTES, 9), patterned(LARGE_BYTES, 10));
    fixture.put("k", old.clone()).await;
    let begun = fixture
        .lake
        .get(&fixture.key("k"), GetOptions::default())
        .await
        .unwrap();
    fixture.put("k", new.clone()).await;
    if let Ok(bytes) = read_all(begun.body).await {
        assert!(
            bytes == old,
            "a read that began on the old object must not give other bytes"
        );
    }
    assert!(
        fixture.read("k").await == new,
        "a read that begins after the write gives the new bytes"
    );
}
