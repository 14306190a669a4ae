//! The S3 lake against a real S3 server that is not ours.
//!
//! `FOREBAY_TEST_S3_ENDPOINT`, `FOREBAY_TEST_S3_KEY` and `FOREBAY_TEST_S3_SECRET` name a running server
//! (`cargo xtask test` starts SeaweedFS). Without them the tests print why they were skipped.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test may panic, also outside its test function"
)]

use std::sync::Arc;

use bytes::Bytes;
use forebay_core::{ByteRange, Kind, ObjectKey};
use forebay_lake::{
    AddressStyle, FetchPriority, GetOptions, Lake, ListOptions, OpenOptions, PutMode, PutOptions,
    ReadScheduler, SchedulerOptions, open, selftest,
};
use forebay_testkit::{LakeTraits, lake_suite, patterned, read_all};

/// Promises that SeaweedFS keeps; the rest is skipped by the suite.
const SEAWEED: LakeTraits = LakeTraits {
    marker_keys: false,
    plain_keys: false,
    any_part_size: false,
    ..LakeTraits::exact()
};

async fn server(test: &str) -> Option<Arc<dyn Lake>> {
    let Ok(endpoint) = std::env::var("FOREBAY_TEST_S3_ENDPOINT") else {
        println!("skipped: FOREBAY_TEST_S3_ENDPOINT is not set");
        return None;
    };
    let options = OpenOptions {
        endpoint: Some(endpoint),
        region: Some("us-east-1".into()),
        style: Some(AddressStyle::Path),
        access_key_id: std::env::var("FOREBAY_TEST_S3_KEY").ok(),
        secret_access_key: std::env::var("FOREBAY_TEST_S3_SECRET").ok(),
        session_token: None,
        ..OpenOptions::default()
    };
    let url = format!("s3://lake-tests/{test}-{:08x}", fastrand::u32(..));
    Some(open(&url, &options).await.unwrap())
}

fn key(name: &str) -> ObjectKey {
    ObjectKey::new(name).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_real_server_behaves_like_a_lake() {
    let Some(lake) = server("suite").await else { return };
    lake_suite(lake, SEAWEED).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_self_test_finds_all_promises_kept() {
    let Some(lake) = server("selftest").await else {
        return;
    };
    let report = selftest::probe(&*lake).await.unwrap();
    assert!(report.is_perfect(), "{report:?}");
    assert!(
        report.writable && report.conditional_create && report.conditional_update,
        "{report:?}"
    );
    let left = lake.list(ListOptions::default()).await.unwrap();
    assert_eq!(left.objects, [], "the self-test cleans up");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_body_is_written_in_parts_and_read_in_parts() {
    let Some(lake) = server("long").await else { return };
    let body = patterned((40 << 20) + 12_345, 7);
    let mut writer = lake
        .writer(&key("long"), PutOptions::default(), None)
        .await
        .unwrap();
    for start in (0..body.len()).step_by(3 << 20) {
        writer
            .write(body.slice(start..body.len().min(start + (3 << 20))))
            .await
            .unwrap();
    }
    assert!(
        !writer.takes_attributes_at_finish(),
        "more than one part fixes the attributes"
    );
    let receipt = writer.finish(PutOptions::default()).await.unwrap();
    let scheduler = ReadScheduler::new(Arc::clone(&lake), SchedulerOptions::default());
    let range = ByteRange::new(1, body.len() as u64 - 1).unwrap();
    let stream = scheduler
        .fetch(
            &key("long"),
            &receipt.version,
            body.len() as u64,
            range,
            FetchPriority::Demand,
        )
        .unwrap();
    assert!(read_all(stream).await.unwrap() == body.slice(1..body.len() - 1));
    assert!(scheduler.stats().requests >= 5, "{:?}", scheduler.stats());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn create_of_a_long_body_refuses_an_existing_object() {
    let Some(lake) = server("create").await else {
        return;
    };
    lake.put(&key("k"), Bytes::from_static(b"first"), PutOptions::default())
        .await
        .unwrap();
    let options = PutOptions {
        mode: PutMode::Create,
        ..PutOptions::default()
    };
    let mut writer = lake.writer(&key("k"), options.clone(), None).await.unwrap();
    writer.write(patterned(20 << 20, 8)).await.unwrap();
    assert_eq!(
        writer.finish(options).await.unwrap_err().kind(),
        Kind::AlreadyExists
    );
    let answer = lake.get(&key("k"), GetOptions::default()).await.unwrap();
    assert_eq!(read_all(answer.body).await.unwrap(), "first");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_object_replaced_during_a_read_is_changed_never_mixed() {
    let Some(lake) = server("replaced").await else {
        return;
    };
    let bytes = 24 << 20;
    let old = patterned(bytes, 1);
    let receipt = lake
        .put(&key("k"), old.clone(), PutOptions::default())
        .await
        .unwrap();
    let options = SchedulerOptions {
        parts_ahead_max: 1,
        part_bytes: 4 << 20,
        ..SchedulerOptions::default()
    };
    let scheduler = ReadScheduler::new(Arc::clone(&lake), options);
    let range = ByteRange::whole(bytes as u64).unwrap();
    let mut stream = scheduler
        .fetch(
            &key("k"),
            &receipt.version,
            bytes as u64,
            range,
            FetchPriority::Demand,
        )
        .unwrap();
    let mut read = 0;
    let error = loop {
        match futures::StreamExt::next(&mut stream).await {
            Some(Ok(chunk)) => {
                assert!(
                    chunk == old.slice(read..read + chunk.len()),
                    "bytes of another version"
                );
                if read == 0 {
                    lake.put(&key("k"), patterned(bytes, 2), PutOptions::default())
                        .await
                        .unwrap();
                }
                read += chunk.len();
            }
            Some(Err(error)) => break error,
            None => panic!("the read ended as if nothing had happened"),
        }
    };
    assert_eq!(error.kind(), Kind::Changed, "{error:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousands_of_keys_list_completely_and_in_order() {
    let Some(lake) = server("many").await else { return };
    let mut names: Vec<String> = (0..1_200).map(|n| format!("d/{n:04}")).collect();
    names.extend(
        (0..50)
            .map(|n| format!("d-{n}/x"))
            .chain((0..50).map(|n| format!("d.{n}"))),
    );
    let puts = names.iter().map(|name| {
        let lake = Arc::clone(&lake);
        async move {
            lake.put(&key(name), Bytes::from_static(b"x"), PutOptions::default())
                .await
                .unwrap()
        }
    });
    futures::StreamExt::collect::<Vec<_>>(futures::StreamExt::buffer_unordered(
        futures::stream::iter(puts),
        16,
    ))
    .await;
    names.sort();
    for limit in [0, 333] {
        let mut found = Vec::new();
        let mut options = ListOptions {
            limit,
            ..ListOptions::default()
        };
        loop {
            let page = lake.list(options.clone()).await.unwrap();
            found.extend(page.objects.into_iter().map(|object| object.key.to_string()));
            match page.next {
                Some(next) => options.start_after = Some(next),
                None => break,
            }
        }
        assert_eq!(found, names);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_keys_are_denied() {
    let Ok(endpoint) = std::env::var("FOREBAY_TEST_S3_ENDPOINT") else {
        println!("skipped: FOREBAY_TEST_S3_ENDPOINT is not set");
        return;
    };
    let options = OpenOptions {
        endpoint: Some(endpoint),
        access_key_id: std::env::var("FOREBAY_TEST_S3_KEY").ok(),
        secret_access_key: Some("not the secret".into()),
        ..OpenOptions::default()
    };
    let lake = open("s3://lake-tests", &options).await.unwrap();
    let error = lake.head(&key("k")).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Denied, "{error:?}");
    assert!(!format!("{error:?}").contains("not the secret"));
}
