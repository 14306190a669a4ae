//! Whole reads, ranges, pinned versions.

use bytes::Bytes;
use forebay_core::{ByteRange, Kind, Version};
use forebay_lake::{GetOptions, GetRange};

use super::{Bench, kind_of};
use crate::{patterned, read_all};

/// More than two of the pieces that lakes read and write in.
const LARGE_BYTES: usize = (5 << 20) + 17;

fn bounded(start: u64, end: u64) -> GetRange {
    GetRange::Bounded(ByteRange::new(start, end).unwrap())
}

pub(super) async fn get_returns_what_was_put(bench: Bench) {
    let body = patterned(1000, 1);
    bench.put("k", body.clone()).await;
    assert_eq!(bench.read("k").await, body);
}

pub(super) async fn head_and_get_agree(bench: Bench) {
    let receipt = bench.put("k", patterned(1000, 1)).await;
    let head = bench.lake.head(&bench.key("k")).await.unwrap();
    let get = bench
        .lake
        .get(&bench.key("k"), GetOptions::default())
        .await
        .unwrap();
    assert_eq!(head, get.meta, "head and get describe the same object");
    assert_eq!(
        (head.key, head.bytes, head.version),
        (bench.key("k"), 1000, receipt.version)
    );
    assert_eq!((get.start, get.bytes), (0, 1000));
}

pub(super) async fn missing_object_is_not_found(bench: Bench) {
    bench.put("k/below", "x").await;
    for name in ["absent", "k", "k/", "k/below/deeper", "k/bel"] {
        let key = bench.key(name);
        assert_eq!(
            kind_of(bench.lake.head(&key).await),
            Some(Kind::NotFound),
            "head of {name}"
        );
        let get = bench.lake.get(&key, GetOptions::default()).await;
        assert_eq!(kind_of(get), Some(Kind::NotFound), "get of {name}");
    }
}

pub(super) async fn empty_object_reads_as_nothing(bench: Bench) {
    bench.put("k", Bytes::new()).await;
    assert_eq!(bench.lake.head(&bench.key("k")).await.unwrap().bytes, 0);
    assert!(bench.read("k").await.is_empty());
}

pub(super) async fn large_object_reads_whole(bench: Bench) {
    let body = patterned(LARGE_BYTES, 2);
    bench.put("k", body.clone()).await;
    assert!(
        bench.read("k").await == body,
        "a large object comes back byte for byte"
    );
}

pub(super) async fn range_in_the_middle_is_exact(bench: Bench) {
    let body = patterned(1000, 3);
    bench.put("k", body.clone()).await;
    let options = GetOptions {
        range: Some(bounded(100, 300)),
        ..GetOptions::default()
    };
    let result = bench.lake.get(&bench.key("k"), options).await.unwrap();
    assert_eq!((result.start, result.bytes, result.meta.bytes), (100, 200, 1000));
    assert_eq!(read_all(result.body).await.unwrap(), body.slice(100..300));
}

pub(super) async fn range_end_is_cut_at_the_object_end(bench: Bench) {
    let body = patterned(1000, 4);
    bench.put("k", body.clone()).await;
    assert_eq!(
        bench.read_range("k", bounded(900, 5000)).await.unwrap(),
        body.slice(900..)
    );
}

pub(super) async fn range_past_end_is_out_of_range(bench: Bench) {
    bench.put("k", patterned(1000, 5)).await;
    for range in [bounded(1000, 1001), bounded(5000, 6000), GetRange::From(1000)] {
        assert_eq!(
            kind_of(bench.read_range("k", range).await),
            Some(Kind::OutOfRange),
            "{range:?}"
        );
    }
}

pub(super) async fn range_of_an_empty_object_is_out_of_range(bench: Bench) {
    bench.put("k", Bytes::new()).await;
    assert_eq!(
        kind_of(bench.read_range("k", bounded(0, 1)).await),
        Some(Kind::OutOfRange)
    );
}

pub(super) async fn range_from_an_offset(bench: Bench) {
    let body = patterned(1000, 6);
    bench.put("k", body.clone()).await;
    assert_eq!(bench.read_range("k", GetRange::From(0)).await.unwrap(), body);
    assert_eq!(
        bench.read_range("k", GetRange::From(999)).await.unwrap(),
        body.slice(999..)
    );
}

pub(super) async fn range_of_the_last_bytes(bench: Bench) {
    let body = patterned(1000, 7);
    bench.put("k", body.clone()).await;
    assert_eq!(
        bench.read_range("k", GetRange::Last(1)).await.unwrap(),
        body.slice(999..)
    );
    assert_eq!(bench.read_range("k", GetRange::Last(1000)).await.unwrap(), body);
    assert_eq!(
        bench.read_range("k", GetRange::Last(5000)).await.unwrap(),
        body,
        "more than there is is all there is"
    );
}

pub(super) async fn range_across_a_large_object(bench: Bench) {
    let body = patterned(LARGE_BYTES, 8);
    bench.put("k", body.clone()).await;
    let (start, end) = ((1 << 20) - 3, (4 << 20) + 5);
    let read = bench
        .read_range("k", bounded(start as u64, end as u64))
        .await
        .unwrap();
    assert!(
        read == body.slice(start..end),
        "a range across pieces comes back byte for byte"
    );
}

pub(super) async fn matching_version_reads(bench: Bench) {
    let receipt = bench.put("k", "body").await;
    let options = GetOptions {
        if_match: Some(receipt.version),
        ..GetOptions::default()
    };
    assert_eq!(bench.try_read("k", options).await.unwrap(), "body");
}

pub(super) async fn other_version_is_changed(bench: Bench) {
    let old = bench.put("k", "old").await.version;
    bench.put("k", "new").await;
    for version in [old, Version::new("00000000000000000000000000000000")] {
        let options = GetOptions {
            if_match: Some(version),
            ..GetOptions::default()
        };
        assert_eq!(kind_of(bench.try_read("k", options).await), Some(Kind::Changed));
    }
}

/// A read that has begun gives the old bytes or fails; it never goes on with the new ones.
pub(super) async fn replaced_object_is_never_mixed(bench: Bench) {
    let (old, new) = (patterned(LARGE_BYTES, 9), patterned(LARGE_BYTES, 10));
    bench.put("k", old.clone()).await;
    let begun = bench
        .lake
        .get(&bench.key("k"), GetOptions::default())
        .await
        .unwrap();
    bench.put("k", new.clone()).await;
    if let Ok(bytes) = read_all(begun.body).await {
        assert!(
            bytes == old,
            "a read that began on the old object must not give other bytes"
        );
    }
    assert!(
        bench.read("k").await == new,
        "a read that begins after the write gives the new bytes"
    );
}
