//! Objects that change under their readers, and the requests that metadata costs.
#![allow(clippy::unwrap_used, reason = "a failure here is the failure of a test")]

mod fixture;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fixture::{Fixture, body_of, bucket, key};
use forebay_core::{Error, Kind, Version};
use forebay_engine::{Conditions, Consistency, ObjectInfo, RangeRequest};
use forebay_lake::{Fault, Faulty, MemoryLake, Operation};
use forebay_testkit::until;

const SOON: Duration = Duration::from_secs(20);
const A_MINUTE: Consistency = Consistency::RevalidateAfter(Duration::from_secs(60));

async fn stalling(consistency: Consistency) -> (Fixture, Faulty) {
    let lake = Faulty::new(Arc::new(MemoryLake::new()), 1);
    let fixture = Fixture::over(Arc::new(lake.clone()), consistency, true).await;
    (fixture, lake)
}

fn heads(fixture: &Fixture) -> u64 {
    fixture.lake.counters().snapshot().requests_of(Operation::Head)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn sixty_four_cold_readers_of_an_object_cost_one_head() {
    let (fixture, lake) = stalling(A_MINUTE).await;
    let body = fixture.random_bytes(100_000);
    fixture.put_in_lake("x", body.clone()).await;
    let before = heads(&fixture);
    lake.script(Operation::Head, Fault::Stall);
    let readers: Vec<_> = (0..64)
        .map(|_| {
            let engine = Arc::clone(&fixture.engine);
            tokio::spawn(async move {
                let (name, conditions) = (key("x"), Conditions::default());
                let range = RangeRequest::Whole;
                let read = engine.read(&bucket(), &name, range, &conditions).await;
                body_of(read.unwrap()).await
            })
        })
        .collect();
    until("the first has asked", || lake.stalled() == 1).await;
    tokio::time::sleep(Duration::from_millis(20)).await; // Most of the others come now.
    lake.release();
    for reader in readers {
        assert_eq!(tokio::time::timeout(SOON, reader).await.unwrap().unwrap(), body);
    }
    assert_eq!(heads(&fixture) - before, 1);
    assert_eq!(fixture.lake_read_bytes(), body.len() as u64);
}

#[tokio::test]
async fn a_reader_after_a_delete_does_not_wait_for_a_head_from_before_it() {
    let (fixture, lake) = stalling(A_MINUTE).await;
    fixture.put_in_lake("x", fixture.random_bytes(100)).await;
    lake.script(Operation::Head, Fault::Stall);
    let engine = Arc::clone(&fixture.engine);
    let early = tokio::spawn(async move { engine.head(&bucket(), &key("x")).await });
    until("it has asked", || lake.stalled() == 1).await;
    fixture.engine.delete(&bucket(), &key("x")).await.unwrap();
    let late = tokio::time::timeout(SOON, fixture.engine.head(&bucket(), &key("x"))).await;
    let late = late.unwrap();
    assert_eq!(late.unwrap_err().kind(), Kind::NotFound);
    assert!(!early.is_finished());
    lake.release();
    early.await.unwrap().unwrap_err();
}

#[tokio::test]
async fn a_first_reader_that_is_cancelled_leaves_its_head_to_the_others() {
    let (fixture, lake) = stalling(A_MINUTE).await;
    fixture.put_in_lake("x", fixture.random_bytes(100)).await;
    let before = heads(&fixture);
    lake.script(Operation::Head, Fault::Stall);
    let ask = || {
        let engine = Arc::clone(&fixture.engine);
        tokio::spawn(async move { engine.head(&bucket(), &key("x")).await })
    };
    let first = ask();
    until("it has asked", || lake.stalled() == 1).await;
    let second = ask();
    tokio::task::yield_now().await;
    first.abort();
    assert!(first.await.unwrap_err().is_cancelled());
    lake.release();
    let found = tokio::time::timeout(SOON, second).await.unwrap().unwrap();
    assert_eq!(found.unwrap().bytes, 100);
    assert_eq!(heads(&fixture) - before, 1);
}

/// Runs work that finds the version gone so many times.
async fn gone(fixture: &Fixture, times: usize, kind: Kind) -> (Result<Arc<ObjectInfo>, Error>, usize) {
    let runs = AtomicUsize::new(0);
    let seen = &runs;
    let worked = fixture
        .engine
        .with_version(&bucket(), &key("x"), None, |info| async move {
            match seen.fetch_add(1, Ordering::Relaxed) {
                run if run < times => Err(Error::new(kind, "gone")),
                _ => Ok(info),
            }
        })
        .await;
    (worked, runs.into_inner())
}

#[tokio::test]
async fn work_on_a_version_that_is_gone_starts_again_with_the_next() {
    let fixture = Fixture::new(Consistency::Immutable).await;
    fixture.put_in_lake("x", fixture.random_bytes(100)).await;
    let old = fixture.engine.head(&bucket(), &key("x")).await.unwrap();
    fixture.put_in_lake("x", fixture.random_bytes(200)).await;
    for kind in [Kind::Changed, Kind::NotFound] {
        let (worked, runs) = gone(&fixture, 1, kind).await;
        assert_ne!(worked.unwrap().version, old.version);
        assert_eq!(runs, 2);
    }
}

#[tokio::test]
async fn an_object_that_changes_too_fast_ends_with_one_error() {
    let fixture = Fixture::new(Consistency::Immutable).await;
    fixture.put_in_lake("x", fixture.random_bytes(100)).await;
    let (worked, runs) = gone(&fixture, 1000, Kind::Changed).await;
    let error = worked.unwrap_err();
    assert_eq!(error.kind(), Kind::Changed);
    assert!(
        error.to_string().contains("replaced faster than it can be read"),
        "{error}"
    );
    assert_eq!(runs, 3);
}

#[tokio::test]
async fn other_errors_end_the_work_at_once() {
    let fixture = Fixture::new(Consistency::Immutable).await;
    fixture.put_in_lake("x", fixture.random_bytes(100)).await;
    let (worked, runs) = gone(&fixture, 1000, Kind::OutOfRange).await;
    assert_eq!(worked.unwrap_err().kind(), Kind::OutOfRange);
    assert_eq!(runs, 1);
}

#[tokio::test]
async fn an_object_that_was_deleted_under_the_work_is_not_found() {
    let fixture = Fixture::new(Consistency::Immutable).await;
    fixture.put_in_lake("x", fixture.random_bytes(100)).await;
    fixture.engine.head(&bucket(), &key("x")).await.unwrap();
    let lake: &dyn forebay_lake::Lake = &*fixture.lake;
    lake.delete(&key("bucket/x")).await.unwrap();
    let (worked, runs) = gone(&fixture, 1, Kind::NotFound).await;
    assert_eq!(worked.unwrap_err().kind(), Kind::NotFound);
    assert_eq!(runs, 1);
}

#[tokio::test]
async fn a_wanted_version_is_worked_on_or_refused_after_the_lake_was_asked() {
    let fixture = Fixture::new(Consistency::Immutable).await;
    fixture.put_in_lake("x", fixture.random_bytes(100)).await;
    let old = fixture.engine.head(&bucket(), &key("x")).await.unwrap();
    fixture.put_in_lake("x", fixture.random_bytes(200)).await;
    let engine = &fixture.engine;
    let work = |wanted: Version| async move {
        let work = |info: Arc<ObjectInfo>| async move { Ok(info.version.clone()) };
        engine
            .with_version(&bucket(), &key("x"), Some(&wanted), work)
            .await
    };
    // The metadata is cached, so the old version is believed until somebody finds it gone.
    assert_eq!(work(old.version.clone()).await.unwrap(), old.version);
    let new = engine.head_now(&bucket(), &key("x")).await.unwrap();
    assert_eq!(work(new.version.clone()).await.unwrap(), new.version);
    let refused = work(old.version.clone()).await.unwrap_err();
    assert_eq!(refused.kind(), Kind::Changed);
    assert!(
        refused.to_string().contains("has another version now"),
        "{refused}"
    );
}

#[tokio::test]
async fn thirty_readers_that_find_a_version_gone_cost_one_head() {
    let (fixture, lake) = stalling(Consistency::Immutable).await;
    fixture.put_in_lake("x", fixture.random_bytes(100)).await;
    fixture.engine.head(&bucket(), &key("x")).await.unwrap();
    let new = fixture.random_bytes(100);
    fixture.put_in_lake("x", new.clone()).await;
    let before = heads(&fixture);
    lake.script(Operation::Head, Fault::Stall);
    let readers = futures::future::join_all((0..30).map(|_| fixture.get("x")));
    let release = async {
        until("the first has asked", || lake.stalled() == 1).await;
        tokio::task::yield_now().await;
        lake.release();
    };
    let (read, ()) = tokio::join!(readers, release);
    assert!(read.iter().all(|body| *body == new));
    assert_eq!(heads(&fixture) - before, 1);
}
