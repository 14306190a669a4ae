use std::sync::atomic::Ordering;

use forebay_core::{Error, Kind};
use futures::StreamExt;
use futures::future::join_all;

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_reader_that_goes_away_does_not_take_the_bytes_from_others() {
    let (reservoir, source) = (reservoir(64 * MIB).await, FakeSource::new());
    let object = object("a", "1", 5 * MIB);
    source.close_gate();
    let mut first = reservoir.read(&object, whole(&object), &shared(&source));
    assert!(futures::poll!(first.next()).is_pending());
    eventually("the first reader's request", || source.request_count() == 1).await;
    let second = {
        let (reservoir, source, object) = (Arc::clone(&reservoir), Arc::clone(&source), object.clone());
        tokio::spawn(async move { check(&reservoir, &object, whole(&object), &source).await })
    };
    drop(first);
    source.open_gate();
    second.await.unwrap();
    assert_eq!(source.sent(), object.bytes);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_lasting_failure_reaches_every_reader_after_two_tries() {
    let (reservoir, source) = (
        reservoir(64 * MIB).await,
        FakeSource::failing(u32::MAX, Kind::Unavailable),
    );
    let object = object("a", "1", MIB);
    let readers = (0..16).map(|_| {
        let (reservoir, source, object) = (Arc::clone(&reservoir), Arc::clone(&source), object.clone());
        tokio::spawn(async move { pieces(&reservoir, &object, whole(&object), &source).await })
    });
    for result in join_all(readers).await {
        assert_eq!(result.unwrap().unwrap_err().kind(), Kind::Unavailable);
    }
    source.failures.store(0, Ordering::SeqCst);
    check(&reservoir, &object, whole(&object), &source).await;
}

#[tokio::test]
async fn a_failure_that_passes_is_tried_again() {
    let (reservoir, source) = (reservoir(64 * MIB).await, FakeSource::failing(1, Kind::Throttled));
    let object = object("a", "1", MIB);
    check(&reservoir, &object, whole(&object), &source).await;
    assert_eq!(source.request_count(), 2);
}

#[tokio::test]
async fn a_changed_object_is_an_error_at_once() {
    let (reservoir, source) = (reservoir(64 * MIB).await, FakeSource::failing(1, Kind::Changed));
    let object = object("a", "1", MIB);
    let error = pieces(&reservoir, &object, whole(&object), &source)
        .await
        .unwrap_err();
    assert_eq!((error.kind(), source.request_count()), (Kind::Changed, 1));
}

#[tokio::test]
async fn a_short_body_is_an_error_and_what_came_stays() {
    let (reservoir, source) = (reservoir(64 * MIB).await, FakeSource::new());
    let object = object("a", "1", MIB);
    source.body_bytes_max.store(300 * KIB, Ordering::SeqCst);
    let error = pieces(&reservoir, &object, whole(&object), &source)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable);
    source.body_bytes_max.store(u64::MAX, Ordering::SeqCst);
    check(&reservoir, &object, whole(&object), &source).await;
}

#[tokio::test]
async fn a_short_body_never_yields_more_than_was_sent() {
    let (reservoir, source) = (reservoir(64 * MIB).await, FakeSource::new());
    let object = object("a", "1", MIB);
    source.body_bytes_max.store(100_000, Ordering::SeqCst);
    let mut stream = reservoir.read(&object, whole(&object), &shared(&source));
    let (mut served, mut error): (u64, Option<Error>) = (0, None);
    while let Some(piece) = stream.next().await {
        match piece {
            Ok(piece) => {
                assert!(
                    piece.bytes[..] == content(&object, range(served, served + piece.bytes.len() as u64))
                );
                served += piece.bytes.len() as u64;
            }
            Err(why) => error = Some(why),
        }
    }
    assert!(error.is_some());
    assert!(served < MIB);
}

#[tokio::test]
async fn a_source_that_panics_is_an_error() {
    let (reservoir, source) = (reservoir(64 * MIB).await, FakeSource::new());
    source.panics.store(true, Ordering::SeqCst);
    let object = object("a", "1", MIB);
    let error = pieces(&reservoir, &object, whole(&object), &source)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), Kind::Internal);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shutdown_ends_readers_that_wait() {
    let (reservoir, source) = (reservoir(64 * MIB).await, FakeSource::new());
    let object = object("a", "1", MIB);
    source.close_gate();
    let reader = {
        let (reservoir, source, object) = (Arc::clone(&reservoir), Arc::clone(&source), object.clone());
        tokio::spawn(async move { pieces(&reservoir, &object, whole(&object), &source).await })
    };
    eventually("the request", || source.request_count() == 1).await;
    reservoir.shutdown(Duration::from_secs(1)).await;
    assert_eq!(reader.await.unwrap().unwrap_err().kind(), Kind::Cancelled);
}

#[tokio::test]
async fn a_long_read_outlives_a_failure_now_and_then() {
    let (reservoir, source) = (reservoir(8 * MIB).await, FakeSource::new());
    let object = object("a", "1", 12 * MIB);
    let mut stream = reservoir.read(&object, whole(&object), &shared(&source));
    let (mut served, mut failures) = (0, 0);
    while let Some(piece) = stream.next().await {
        served += piece.unwrap().bytes.len() as u64;
        if served / (2 * MIB) > failures {
            failures = served / (2 * MIB);
            source.failures.store(1, Ordering::SeqCst);
        }
    }
    assert_eq!(served, object.bytes);
    assert!(source.request_count() >= 12 + 3, "some of them failed");
}
