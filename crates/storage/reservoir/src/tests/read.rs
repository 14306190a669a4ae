use std::sync::Arc;

use forebay_core::{BLOCK_BYTES, Kind, Tier};
use futures::StreamExt;
use futures::future::join_all;

use super::*;
use crate::Priority;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn sixty_four_readers_of_a_cold_object_cost_its_bytes_once() {
    let (reservoir, source) = (reservoir(128 * MIB).await, FakeSource::new());
    let object = object("big", "1", 40 * MIB + 12_345);
    let readers = (0..64).map(|_| {
        let (reservoir, source, object) = (Arc::clone(&reservoir), Arc::clone(&source), object.clone());
        tokio::spawn(async move { check(&reservoir, &object, whole(&object), &source).await })
    });
    for reader in join_all(readers).await {
        reader.unwrap();
    }
    assert_eq!(source.sent(), object.bytes);
    let stats = reservoir.stats();
    assert_eq!(stats.fetched_demand_bytes, object.bytes);
    assert_eq!(
        stats.served_lake_bytes + stats.served_ram_bytes,
        64 * object.bytes
    );
}

#[tokio::test]
async fn random_reads_fetch_only_the_blocks_they_touch() {
    let (reservoir, source) = (reservoir(64 * MIB).await, FakeSource::new());
    let object = object("cold", "1", 1024 * MIB);
    check(&reservoir, &object, range(500 * MIB + 7, 501 * MIB + 7), &source).await;
    assert!(source.sent() <= MIB + BLOCK_BYTES, "{}", source.sent());
    let before = source.sent();
    check(
        &reservoir,
        &object,
        range(100 * MIB + 30_000, 100 * MIB + 82_000),
        &source,
    )
    .await;
    assert!(source.sent() - before <= 2 * BLOCK_BYTES);
    assert!(
        reservoir.stats().ram_used_bytes <= MIB + 3 * BLOCK_BYTES,
        "memory for the fetched blocks only"
    );
}

#[tokio::test]
async fn the_second_read_comes_from_ram_without_a_copy() {
    let (reservoir, source) = (reservoir(64 * MIB).await, FakeSource::new());
    let object = object("a", "1", 3 * MIB + 5);
    let cold = pieces(&reservoir, &object, whole(&object), &source)
        .await
        .unwrap();
    assert!(cold.iter().all(|piece| piece.tier == Tier::Lake));
    let first = pieces(&reservoir, &object, whole(&object), &source)
        .await
        .unwrap();
    let second = pieces(&reservoir, &object, whole(&object), &source)
        .await
        .unwrap();
    assert_eq!(first.len(), 13, "a page is four pieces, the short one a piece");
    assert!(first.iter().all(|piece| piece.bytes.len() <= 256 << 10));
    for (first, second) in first.iter().zip(&second) {
        assert_eq!(first.tier, Tier::Ram);
        assert_eq!(first.bytes.as_ptr(), second.bytes.as_ptr());
    }
    assert_eq!(reservoir.stats().leased_pages, 4);
    drop((cold, first, second));
    assert_eq!(reservoir.stats().leased_pages, 0);
    assert_eq!(source.sent(), object.bytes);
}

#[tokio::test]
async fn an_object_read_whole_lies_in_one_run() {
    let (reservoir, source) = (reservoir(64 * MIB).await, FakeSource::new());
    // Holes first, so that a run is not what comes by itself.
    for number in 0..20 {
        let small = object(&format!("small-{number}"), "1", 300 * KIB);
        check(&reservoir, &small, whole(&small), &source).await;
    }
    for number in (0..20).step_by(2) {
        reservoir.forget(&bucket(), &object(&format!("small-{number}"), "1", 1).key);
    }
    let object = object("flat", "1", 5 * MIB + 17);
    check(&reservoir, &object, whole(&object), &source).await;
    let pieces = pieces(&reservoir, &object, whole(&object), &source)
        .await
        .unwrap();
    for pair in pieces.windows(2) {
        assert_eq!(pair[0].bytes.as_ptr_range().end, pair[1].bytes.as_ptr());
    }
    assert_eq!(
        reservoir.counters.reserved_bytes.get(),
        0,
        "the reservation ends with the last reader"
    );
}

#[tokio::test]
async fn neighbouring_misses_are_one_request() {
    let (reservoir, source) = (reservoir(128 * MIB).await, FakeSource::new());
    let object = object("a", "1", 10 * MIB);
    check(&reservoir, &object, whole(&object), &source).await;
    assert_eq!(source.request_count(), 1);
    let gaps = super::object("b", "1", 3 * MIB);
    check(&reservoir, &gaps, range(MIB + 5, MIB + 6), &source).await;
    check(&reservoir, &gaps, whole(&gaps), &source).await;
    assert_eq!(
        source.request_count(),
        1 + 1 + 2,
        "what is there is not fetched again"
    );
    assert_eq!(source.sent(), object.bytes + gaps.bytes);
}

#[tokio::test]
async fn a_range_past_the_end_is_out_of_range() {
    let (reservoir, source) = (reservoir(16 * MIB).await, FakeSource::new());
    let object = object("a", "1", 10);
    let error = pieces(&reservoir, &object, range(5, 11), &source)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), Kind::OutOfRange);
    assert_eq!(source.request_count(), 0);
}

#[tokio::test]
async fn two_versions_never_mix() {
    let (reservoir, source) = (reservoir(64 * MIB).await, FakeSource::new());
    let (old, new) = (object("a", "1", 2 * MIB), object("a", "2", 2 * MIB));
    check(&reservoir, &old, range(0, MIB), &source).await;
    check(&reservoir, &new, whole(&new), &source).await;
    check(&reservoir, &old, whole(&old), &source).await;
    assert_eq!(source.sent(), 4 * MIB);
    reservoir.forget_others(&new);
    assert_eq!(reservoir.resident(&old).ram_bytes, 0);
    assert_eq!(reservoir.resident(&new).ram_bytes, 2 * MIB);
}

#[tokio::test]
async fn sequential_readers_get_read_ahead_and_random_ones_do_not() {
    let options = ReservoirOptions {
        read_ahead_bytes_max: 8 * MIB,
        ..options(128 * MIB)
    };
    let (reservoir, source) = (Reservoir::open(options).await.unwrap(), FakeSource::new());
    let object = object("a", "1", 32 * MIB);
    for number in [7, 20, 3, 15, 28] {
        check(
            &reservoir,
            &object,
            range(number * MIB, number * MIB + 1000),
            &source,
        )
        .await;
    }
    assert_eq!(source.asked(Priority::ReadAhead), 0);
    let sequential = super::object("b", "1", 32 * MIB);
    for number in 0..32 {
        check(
            &reservoir,
            &sequential,
            range(number * MIB, (number + 1) * MIB),
            &source,
        )
        .await;
    }
    let demand = source.asked(Priority::Demand) - 5 * BLOCK_BYTES;
    assert!(demand <= 4 * MIB, "{demand} bytes had to be waited for");
    assert_eq!(
        demand + source.asked(Priority::ReadAhead),
        sequential.bytes,
        "nothing is fetched twice"
    );
}

#[tokio::test]
async fn an_unread_stream_fetches_nothing() {
    let (reservoir, source) = (reservoir(16 * MIB).await, FakeSource::new());
    let object = object("a", "1", MIB);
    drop(reservoir.read(&object, whole(&object), &shared(&source)));
    assert_eq!(source.request_count(), 0);
    assert_eq!(reservoir.stats().ram_pages, 0);
}

#[tokio::test]
async fn a_reader_that_joins_read_ahead_makes_it_demand() {
    let options = ReservoirOptions {
        read_ahead_bytes_max: 8 * MIB,
        ..options(64 * MIB)
    };
    let (reservoir, source) = (Reservoir::open(options).await.unwrap(), FakeSource::new());
    let object = object("a", "1", 32 * MIB);
    for start in [0, MIB] {
        check(&reservoir, &object, range(start, start + MIB), &source).await;
    }
    source.close_gate();
    let mut third = reservoir.read(&object, range(2 * MIB, 3 * MIB), &shared(&source));
    assert!(futures::poll!(third.next()).is_pending());
    eventually("read-ahead is under way", || source.request_count() == 4).await;
    let ahead = source.urgencies.lock()[3].clone();
    assert_eq!(source.requests.lock()[3].1, Priority::ReadAhead);
    assert_eq!(ahead.now(), Priority::ReadAhead);
    let mut next = reservoir.read(&object, range(3 * MIB, 3 * MIB + 5), &shared(&source));
    assert!(futures::poll!(next.next()).is_pending());
    assert_eq!(ahead.now(), Priority::Demand, "somebody waits for it now");
    assert_eq!(source.request_count(), 4, "and it is not fetched twice");
    source.open_gate();
    assert!(next.next().await.unwrap().is_ok());
}
