//! The engine over a memory lake: what edges may rely on.

mod fixture;

use bytes::Bytes;
use fixture::{Fixture, body_of, bucket, key};
use forebay_core::{ItemRange, Kind, PAGE_BYTES};
use forebay_engine::{
    ChecksumKind, Conditions, Consistency, CopyRequest, Finish, LeaseMemory, LeaseRequest, ObjectChecksum,
    RangeRequest, ReadAnswer, Tag, WriteCondition, WriteRequest,
};
use forebay_lake::{Lake, ListOptions, Operation, PutOptions};

#[tokio::test]
async fn a_written_object_is_visible_at_once_and_costs_the_lake_nothing() {
    let fixture = Fixture::new(Consistency::Immutable).await;
    let body = fixture.random_bytes(3 * PAGE_BYTES as usize + 17);
    fixture.put("a/b", body.clone()).await;
    let before = fixture.lake_read_bytes();
    assert_eq!(fixture.get("a/b").await, body);
    assert_eq!(fixture.lake_read_bytes(), before, "the write filled the cache");
}

#[tokio::test]
async fn an_object_put_into_the_lake_by_others_is_read_once() {
    let fixture = Fixture::new(Consistency::Immutable).await;
    let body = fixture.random_bytes(2 * PAGE_BYTES as usize);
    fixture.put_in_lake("x", body.clone()).await;
    for _ in 0..3 {
        assert_eq!(fixture.get("x").await, body);
    }
    assert_eq!(fixture.lake_read_bytes(), body.len() as u64);
}

#[tokio::test]
async fn a_replaced_object_is_noticed_and_never_mixed() {
    let fixture = Fixture::new(Consistency::Always).await;
    let old = fixture.random_bytes(2 * PAGE_BYTES as usize);
    let new = fixture.random_bytes(2 * PAGE_BYTES as usize);
    fixture.put_in_lake("x", old.clone()).await;
    assert_eq!(fixture.get("x").await, old);
    fixture.put_in_lake("x", new.clone()).await;
    assert_eq!(fixture.get("x").await, new);
}

#[tokio::test]
async fn an_object_replaced_behind_cached_metadata_restarts_the_read() {
    let fixture = Fixture::new(Consistency::Immutable).await;
    fixture.put_in_lake("x", fixture.random_bytes(100)).await;
    fixture.engine.head(&bucket(), &key("x")).await.unwrap();
    let new = fixture.random_bytes(100);
    fixture.put_in_lake("x", new.clone()).await;
    assert_eq!(
        fixture.get("x").await,
        new,
        "the old version is gone, so the read starts again with the new one"
    );
}

#[tokio::test]
async fn bytes_of_a_version_that_a_listing_named_cost_no_other_question() {
    let fixture = Fixture::new(Consistency::Immutable).await;
    let old = fixture.random_bytes(PAGE_BYTES as usize);
    fixture.put_in_lake("x", old.clone()).await;
    let page = fixture
        .engine
        .list(&bucket(), ListOptions::default())
        .await
        .unwrap();
    let version = page.objects[0].version.clone();
    let name = key("x");
    let bucket = bucket();
    let request = LeaseRequest {
        bucket: &bucket,
        key: &name,
        range: &ItemRange::Whole,
        version: Some(&version),
    };
    let requests = || fixture.lake.counters().snapshot().requests_of(Operation::Head);
    let before = requests();
    let lease = |request| fixture.engine.lease(request, |_| Ok(LeaseMemory::Shared));
    let leased = lease(request).await.unwrap();
    assert_eq!(leased.info.version, version);
    assert_eq!(fixture.lake_read_bytes(), old.len() as u64);
    assert!(fixture.engine.try_lease(request).is_some());
    assert_eq!(requests(), before);
    // Who takes any version asks.
    lease(LeaseRequest {
        version: None,
        ..request
    })
    .await
    .unwrap();
    assert_eq!(requests(), before + 1);
}

#[tokio::test]
async fn a_version_that_a_listing_named_and_that_is_gone_is_an_error() {
    let fixture = Fixture::new(Consistency::Immutable).await;
    fixture.put_in_lake("x", fixture.random_bytes(100)).await;
    let page = fixture
        .engine
        .list(&bucket(), ListOptions::default())
        .await
        .unwrap();
    fixture.put_in_lake("x", fixture.random_bytes(100)).await;
    let (bucket, name) = (bucket(), key("x"));
    let request = LeaseRequest {
        bucket: &bucket,
        key: &name,
        range: &ItemRange::Whole,
        version: Some(&page.objects[0].version),
    };
    let leased = fixture.engine.lease(request, |_| Ok(LeaseMemory::Shared)).await;
    assert_eq!(leased.unwrap_err().kind(), Kind::Changed);
}

#[tokio::test]
async fn missing_objects_and_missing_buckets_are_told_apart() {
    let fixture = Fixture::new(Consistency::Immutable).await;
    let missing_key = fixture.engine.head(&bucket(), &key("no")).await.unwrap_err();
    assert_eq!(missing_key.kind(), Kind::NotFound);
    assert!(missing_key.context().any(|(name, _)| name == "key"));
    let other = forebay_core::BucketName::new("other-bucket").unwrap();
    let missing_bucket = fixture.engine.head(&other, &key("no")).await.unwrap_err();
    assert_eq!(missing_bucket.kind(), Kind::NotFound);
    assert!(missing_bucket.context().all(|(name, _)| name != "key"));
}

#[tokio::test]
async fn empty_objects_have_no_bytes() {
    let fixture = Fixture::new(Consistency::Immutable).await;
    fixture.put("empty", Bytes::new()).await;
    assert_eq!(fixture.get("empty").await, Bytes::new());
}

#[tokio::test]
async fn create_only_writes_have_one_winner() {
    let fixture = Fixture::new(Consistency::Immutable).await;
    let request = WriteRequest {
        condition: WriteCondition::Absent,
        ..WriteRequest::default()
    };
    let mut first = fixture
        .engine
        .write(&bucket(), &key("k"), request.clone())
        .await
        .unwrap();
    let mut second = fixture
        .engine
        .write(&bucket(), &key("k"), request.clone())
        .await
        .unwrap();
    first.push(Bytes::from_static(b"first")).await.unwrap();
    second.push(Bytes::from_static(b"second")).await.unwrap();
    second.finish(Finish::default()).await.unwrap();
    let lost = first.finish(Finish::default()).await.unwrap_err();
    assert_eq!(lost.kind(), Kind::PreconditionFailed);
    assert_eq!(fixture.get("k").await, Bytes::from_static(b"second"));
    let late = fixture
        .engine
        .write(&bucket(), &key("k"), request)
        .await
        .err()
        .expect("it exists");
    assert_eq!(late.kind(), Kind::PreconditionFailed);
}

#[tokio::test]
async fn a_body_of_another_length_leaves_the_old_object() {
    let fixture = Fixture::new(Consistency::Immutable).await;
    fixture.put("k", Bytes::from_static(b"old")).await;
    let request = WriteRequest {
        bytes: Some(10),
        ..WriteRequest::default()
    };
    let mut short = fixture
        .engine
        .write(&bucket(), &key("k"), request.clone())
        .await
        .unwrap();
    short.push(Bytes::from_static(b"short")).await.unwrap();
    assert_eq!(
        short.finish(Finish::default()).await.unwrap_err().kind(),
        Kind::InvalidInput
    );
    let mut long = fixture.engine.write(&bucket(), &key("k"), request).await.unwrap();
    assert_eq!(
        long.push(Bytes::from_static(b"much too long"))
            .await
            .unwrap_err()
            .kind(),
        Kind::InvalidInput
    );
    drop(long);
    assert_eq!(fixture.get("k").await, Bytes::from_static(b"old"));
}

#[tokio::test]
async fn checksums_and_metadata_come_back_without_our_own_entries() {
    let fixture = Fixture::new(Consistency::Always).await;
    let checksum = ObjectChecksum {
        algorithm: "CRC32".into(),
        value: "NhCmhg==".into(),
        kind: ChecksumKind::FullObject,
    };
    let mut request = WriteRequest {
        checksums: vec![checksum.clone()],
        ..WriteRequest::default()
    };
    request.attributes.content_type = Some("text/plain".into());
    request.attributes.user.insert("owner".into(), "me".into());
    let mut write = fixture.engine.write(&bucket(), &key("k"), request).await.unwrap();
    write.push(Bytes::from_static(b"hello")).await.unwrap();
    write
        .finish(Finish {
            checksums: vec![checksum.clone()],
        })
        .await
        .unwrap();
    let info = fixture.engine.head(&bucket(), &key("k")).await.unwrap();
    assert_eq!(info.checksums, [checksum]);
    assert_eq!(info.attributes.content_type.as_deref(), Some("text/plain"));
    assert_eq!(info.attributes.user.keys().collect::<Vec<_>>(), ["owner"]);
}

#[tokio::test]
async fn tags_belong_to_one_writing_of_an_object() {
    let fixture = Fixture::new(Consistency::Immutable).await;
    let tags = vec![Tag {
        key: "team".into(),
        value: "vision".into(),
    }];
    fixture.put("k", Bytes::from_static(b"one")).await;
    fixture
        .engine
        .set_tags(&bucket(), &key("k"), tags.clone())
        .await
        .unwrap();
    assert_eq!(fixture.engine.tags(&bucket(), &key("k")).await.unwrap(), tags);
    assert_eq!(
        fixture.engine.head(&bucket(), &key("k")).await.unwrap().tag_count,
        1
    );
    fixture.put("k", Bytes::from_static(b"two")).await;
    assert_eq!(fixture.engine.tags(&bucket(), &key("k")).await.unwrap(), vec![]);
    assert_eq!(
        fixture.engine.head(&bucket(), &key("k")).await.unwrap().tag_count,
        0
    );
}

#[tokio::test]
async fn copies_keep_bytes_metadata_and_tags() {
    let fixture = Fixture::new(Consistency::Immutable).await;
    let tags = vec![Tag {
        key: "a".into(),
        value: "b".into(),
    }];
    let mut request = WriteRequest {
        tags: tags.clone(),
        ..WriteRequest::default()
    };
    request.attributes.user.insert("owner".into(), "me".into());
    let mut write = fixture
        .engine
        .write(&bucket(), &key("from"), request)
        .await
        .unwrap();
    write.push(Bytes::from_static(b"bytes")).await.unwrap();
    write.finish(Finish::default()).await.unwrap();
    for (target, condition) in [
        ("in-lake", WriteCondition::None),
        ("through", WriteCondition::Absent),
    ] {
        let copy = CopyRequest {
            source: (bucket(), key("from")),
            target: (bucket(), key(target)),
            attributes: None,
            tags: None,
            conditions: Conditions::default(),
            target_condition: condition,
        };
        fixture.engine.copy(copy).await.unwrap();
        assert_eq!(fixture.get(target).await, Bytes::from_static(b"bytes"));
        let info = fixture.engine.head(&bucket(), &key(target)).await.unwrap();
        assert_eq!(
            info.attributes.user.get("owner").map(String::as_str),
            Some("me"),
            "{target}"
        );
        assert_eq!(
            fixture.engine.tags(&bucket(), &key(target)).await.unwrap(),
            tags,
            "{target}"
        );
    }
}

#[tokio::test]
async fn conditions_are_decided_before_bytes_flow() {
    let fixture = Fixture::new(Consistency::Immutable).await;
    fixture.put("k", Bytes::from_static(b"bytes")).await;
    let version = fixture
        .engine
        .head(&bucket(), &key("k"))
        .await
        .unwrap()
        .version
        .to_string();
    let same = Conditions {
        if_none_match: Some(vec![version]),
        ..Conditions::default()
    };
    let answer = fixture
        .engine
        .read(&bucket(), &key("k"), RangeRequest::Whole, &same)
        .await
        .unwrap();
    assert!(matches!(answer, ReadAnswer::NotModified(_)));
    let other = Conditions {
        if_match: Some(vec!["other".into()]),
        ..Conditions::default()
    };
    let error = fixture
        .engine
        .read(&bucket(), &key("k"), RangeRequest::Whole, &other)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), Kind::PreconditionFailed);
}

#[tokio::test]
async fn our_own_documents_are_neither_listed_nor_touched() {
    let fixture = Fixture::new(Consistency::Immutable).await;
    for name in ["a", "z", ".forebax", ".forebaz/x"] {
        fixture.put(name, Bytes::from_static(b"x")).await;
    }
    fixture
        .engine
        .set_tags(
            &bucket(),
            &key("a"),
            vec![Tag {
                key: "k".into(),
                value: "v".into(),
            }],
        )
        .await
        .unwrap();
    for limit in [0, 1, 2, 3, 100] {
        assert_eq!(
            fixture.list_all(limit, None).await,
            [".forebax", ".forebaz/x", "a", "z"],
            "limit {limit}"
        );
    }
    assert_eq!(
        fixture.list_all(1, Some("/")).await,
        [".forebax", ".forebaz/", "a", "z"]
    );
    let reserved = key(".forebay/bucket.json");
    assert_eq!(
        fixture
            .engine
            .head(&bucket(), &reserved)
            .await
            .unwrap_err()
            .kind(),
        Kind::NotFound
    );
    assert_eq!(
        fixture
            .engine
            .delete(&bucket(), &reserved)
            .await
            .unwrap_err()
            .kind(),
        Kind::InvalidInput
    );
    let write = fixture
        .engine
        .write(&bucket(), &reserved, WriteRequest::default())
        .await;
    assert_eq!(write.err().expect("reserved").kind(), Kind::InvalidInput);
}

#[tokio::test]
async fn buckets_are_made_listed_and_removed_only_when_empty() {
    let fixture = Fixture::new(Consistency::Immutable).await;
    let engine = &fixture.engine;
    assert_eq!(
        engine.create_bucket(&bucket()).await.unwrap_err().kind(),
        Kind::AlreadyExists
    );
    fixture.put("k", Bytes::from_static(b"x")).await;
    assert_eq!(
        engine.delete_bucket(&bucket()).await.unwrap_err().kind(),
        Kind::Conflict
    );
    engine.delete(&bucket(), &key("k")).await.unwrap();
    engine.delete_bucket(&bucket()).await.unwrap();
    assert!(engine.list_buckets().await.unwrap().is_empty());
    assert_eq!(
        engine.head_bucket(&bucket()).await.unwrap_err().kind(),
        Kind::NotFound
    );
    let listing = engine.list(&bucket(), ListOptions::default()).await;
    assert_eq!(
        listing.unwrap_err().kind(),
        Kind::NotFound,
        "a missing bucket has no empty listing"
    );
}

#[tokio::test]
async fn a_deleted_object_is_gone_at_once() {
    let fixture = Fixture::new(Consistency::Immutable).await;
    fixture.put("k", Bytes::from_static(b"x")).await;
    fixture.engine.delete(&bucket(), &key("k")).await.unwrap();
    assert_eq!(
        fixture
            .engine
            .head(&bucket(), &key("k"))
            .await
            .unwrap_err()
            .kind(),
        Kind::NotFound
    );
    fixture
        .lake
        .put(&key("bucket/k"), Bytes::from_static(b"y"), PutOptions::default())
        .await
        .unwrap();
    assert_eq!(fixture.get("k").await, Bytes::from_static(b"y"));
}

#[tokio::test]
async fn ranges_give_exactly_their_bytes() {
    let fixture = Fixture::new(Consistency::Immutable).await;
    let body = fixture.random_bytes(2 * PAGE_BYTES as usize + 1000);
    fixture.put_in_lake("x", body.clone()).await;
    let ranges = [
        (0usize, 1usize),
        (PAGE_BYTES as usize - 1, 2),
        (70_000, 52_000),
        (body.len() - 1, 1),
    ];
    for (start, len) in ranges {
        let range = RangeRequest::Bounded {
            first: start as u64,
            last: (start + len - 1) as u64,
        };
        let answer = fixture
            .engine
            .read(&bucket(), &key("x"), range, &Conditions::default())
            .await
            .unwrap();
        assert_eq!(body_of(answer).await, body.slice(start..start + len));
    }
}

#[tokio::test]
async fn a_read_that_finds_another_version_midway_makes_the_next_one_ask() {
    let fixture = Fixture::new(Consistency::Immutable).await;
    let (old, new) = (fixture.random_bytes(40 << 20), fixture.random_bytes(40 << 20));
    fixture.put_in_lake("x", old).await;
    let answer = fixture
        .engine
        .read(&bucket(), &key("x"), RangeRequest::Whole, &Conditions::default())
        .await
        .unwrap();
    let ReadAnswer::Object(mut read) = answer else {
        panic!("expected an object")
    };
    fixture.put_in_lake("x", new.clone()).await;
    let mut failure = None;
    while let Some(piece) = futures::StreamExt::next(&mut read.pieces).await {
        failure = piece.err();
    }
    assert_eq!(failure.expect("the old version is gone").kind(), Kind::Changed);
    assert_eq!(fixture.get("x").await, new);
}
