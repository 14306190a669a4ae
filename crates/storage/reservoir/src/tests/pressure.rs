use std::sync::Arc;

use futures::StreamExt;
use futures::future::join_all;

use super::*;

#[tokio::test]
async fn leased_bytes_outlive_any_churn() {
    let ram_bytes = 16 * MIB;
    let (reservoir, source) = (reservoir(ram_bytes).await, FakeSource::new());
    let kept = object("kept", "1", 2 * MIB + 99);
    let held = pieces(&reservoir, &kept, whole(&kept), &source).await.unwrap();
    reservoir.forget(&kept.bucket, &kept.key);
    for number in 0..80 {
        let other = object(&format!("other-{number}"), "1", 2 * MIB);
        check(&reservoir, &other, whole(&other), &source).await;
        assert!(reservoir.stats().ram_held_bytes <= ram_bytes);
    }
    for piece in &held {
        let end = piece.start + piece.bytes.len() as u64;
        assert!(piece.bytes[..] == content(&kept, range(piece.start, end)));
    }
    assert!(reservoir.stats().evicted_ram_pages >= 140);
}

#[tokio::test]
async fn an_object_larger_than_ram_streams_through() {
    let (reservoir, source) = (reservoir(8 * MIB).await, FakeSource::new());
    let object = object("huge", "1", 80 * MIB + 1);
    check(&reservoir, &object, whole(&object), &source).await;
    assert_eq!(source.sent(), object.bytes);
    assert_eq!(reservoir.stats().bypassed_bytes, 0);
}

#[tokio::test]
async fn a_consumer_that_keeps_every_piece_is_served_past_the_cache() {
    let (reservoir, source) = (reservoir(8 * MIB).await, FakeSource::new());
    let object = object("huge", "1", 40 * MIB);
    let all = pieces(&reservoir, &object, whole(&object), &source)
        .await
        .unwrap();
    let mut position = 0;
    for piece in &all {
        let end = position + piece.bytes.len() as u64;
        assert!(piece.bytes[..] == content(&object, range(position, end)));
        position = end;
    }
    assert_eq!(position, object.bytes);
    let stats = reservoir.stats();
    assert!(stats.bypassed_bytes > 0 && stats.ram_held_bytes <= 8 * MIB);
}

#[tokio::test]
async fn without_any_ram_reads_still_work() {
    let (reservoir, source) = (reservoir(0).await, FakeSource::new());
    let object = object("a", "1", 3 * MIB);
    check(&reservoir, &object, whole(&object), &source).await;
    check(&reservoir, &object, range(5, 10), &source).await;
    assert_eq!(source.sent(), object.bytes + 5);
    assert_eq!(reservoir.stats().ram_held_bytes, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_slow_readers_of_different_objects_all_end() {
    let (reservoir, source) = (reservoir(8 * MIB).await, FakeSource::new());
    let mut streams = Vec::new();
    for number in 0..24 {
        let object = object(&format!("slow-{number}"), "1", 6 * MIB);
        streams.push((
            reservoir.read(&object, whole(&object), &shared(&source)),
            object,
            0,
        ));
    }
    // All of them are under way at once, each holding what it holds, one piece at a time.
    while !streams.is_empty() {
        let mut going_on = Vec::new();
        for (mut stream, object, position) in streams {
            let Some(piece) = stream.next().await else {
                assert_eq!(position, object.bytes);
                continue;
            };
            let piece = piece.unwrap();
            let end = position + piece.bytes.len() as u64;
            assert!(piece.bytes[..] == content(&object, range(position, end)));
            going_on.push((stream, object, end));
        }
        streams = going_on;
    }
    assert!(reservoir.stats().ram_held_bytes <= 8 * MIB);
}

#[tokio::test]
async fn hot_pages_survive_a_scan() {
    let (reservoir, source) = (reservoir(32 * MIB).await, FakeSource::new());
    let hot = object("hot", "1", 4 * MIB);
    for _ in 0..4 {
        check(&reservoir, &hot, whole(&hot), &source).await;
    }
    let scan = object("scan", "1", 200 * MIB);
    check(&reservoir, &scan, whole(&scan), &source).await;
    let kept = reservoir.resident(&hot).ram_bytes;
    assert!(kept >= 3 * MIB, "{kept} bytes of the hot object are left");
}

#[tokio::test]
async fn small_and_large_objects_share_ram_with_little_waste() {
    let (reservoir, source) = (reservoir(32 * MIB).await, FakeSource::new());
    let mut random = fastrand::Rng::with_seed(11);
    for number in 0..1500 {
        let bytes = (12.0 + 8.0 * random.f64()).exp2() as u64;
        let object = object(&format!("mixed-{number}"), "1", bytes);
        check(&reservoir, &object, whole(&object), &source).await;
    }
    let stats = reservoir.stats();
    assert!(stats.evicted_ram_pages > 0);
    assert!(
        stats.ram_used_bytes as f64 >= 0.85 * (32 * MIB) as f64,
        "{} bytes used",
        stats.ram_used_bytes
    );
}

#[tokio::test]
async fn nothing_is_left_behind_when_everything_is_forgotten() {
    let (reservoir, source) = (reservoir(16 * MIB).await, FakeSource::new());
    for number in 0..40 {
        let object = object(&format!("object-{number}"), "1", 700 * KIB);
        check(&reservoir, &object, whole(&object), &source).await;
    }
    reservoir.evict(&bucket(), "");
    let stats = reservoir.stats();
    assert_eq!(
        (stats.ram_used_bytes, stats.ram_pages, stats.leased_pages),
        (0, 0, 0)
    );
    assert!((0..crate::index::SHARDS).all(|shard| reservoir.ram.index.entries(shard).is_empty()));
}

#[tokio::test]
async fn readers_that_stand_still_leave_room_for_others() {
    let (reservoir, source) = (reservoir(64 * MIB).await, FakeSource::new());
    let mut standing = Vec::new();
    for number in 0..12 {
        let object = object(&format!("slow-{number}"), "1", 100 * MIB);
        let mut stream = reservoir.read(&object, whole(&object), &shared(&source));
        standing.push((stream.next().await.unwrap().unwrap(), stream));
    }
    let hot = object("hot", "1", 100 * KIB);
    for _ in 0..3 {
        check(&reservoir, &hot, whole(&hot), &source).await;
    }
    assert_eq!(reservoir.stats().bypassed_bytes, 0);
    assert!(reservoir.resident(&hot).ram_bytes == hot.bytes);
    drop(standing);
    assert_eq!(reservoir.counters.window_bytes.get(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn readers_that_find_no_memory_together_are_all_served() {
    let (reservoir, source) = (reservoir(4 * MIB).await, FakeSource::new());
    let leased = object("leased", "1", 4 * MIB);
    let _all_memory = pieces(&reservoir, &leased, whole(&leased), &source)
        .await
        .unwrap();
    let cold = object("cold", "1", MIB);
    let readers = (0..64).map(|_| {
        let (reservoir, source, object) = (Arc::clone(&reservoir), Arc::clone(&source), cold.clone());
        tokio::spawn(async move { check(&reservoir, &object, whole(&object), &source).await })
    });
    let mut readers = std::pin::pin!(join_all(readers));
    // Memory seems to come back all the time, so that all of them try again and get in each other's way.
    let results = loop {
        tokio::select! {
            results = &mut readers => break results,
            () = tokio::time::sleep(Duration::from_millis(1)) => reservoir.ram.arena.space_freed.notify_waiters(),
        }
    };
    for result in results {
        result.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn sixty_four_readers_past_the_cache_cost_the_lake_its_bytes_once() {
    let (reservoir, source) = (reservoir(4 * MIB).await, FakeSource::new());
    let leased = object("leased", "1", 4 * MIB);
    let all_memory = pieces(&reservoir, &leased, whole(&leased), &source)
        .await
        .unwrap();
    source.close_gate();
    let cold = object("cold", "1", 3 * MIB + 5);
    let readers: Vec<_> = (0..64)
        .map(|_| {
            let (reservoir, source, object) = (Arc::clone(&reservoir), Arc::clone(&source), cold.clone());
            tokio::spawn(async move { check(&reservoir, &object, whole(&object), &source).await })
        })
        .collect();
    eventually("all of them wait for the same bytes", || {
        reservoir.shared_fetches.subscribers() == 64
    })
    .await;
    source.open_gate();
    for reader in readers {
        reader.await.unwrap();
    }
    assert_eq!(source.sent(), leased.bytes + cold.bytes);
    assert_eq!(reservoir.stats().bypassed_bytes, 64 * cold.bytes);
    assert_eq!(reservoir.shared_fetches.subscribers(), 0);
    drop(all_memory);
}

#[tokio::test]
async fn a_reader_that_stands_still_past_the_cache_delays_nobody() {
    let (reservoir, source) = (reservoir(0).await, FakeSource::new());
    let object = object("a", "1", 12 * MIB);
    let mut slow = reservoir.read(&object, whole(&object), &shared(&source));
    let first = slow.next().await.unwrap().unwrap();
    check(&reservoir, &object, whole(&object), &source).await;
    // What it needs next was let go meanwhile, so it is fetched again.
    let mut position = first.bytes.len() as u64;
    while let Some(piece) = slow.next().await {
        let piece = piece.unwrap();
        let end = position + piece.bytes.len() as u64;
        assert!(piece.start == position && piece.bytes[..] == content(&object, range(position, end)));
        position = end;
    }
    assert_eq!(position, object.bytes);
    assert!(source.sent() < 2 * object.bytes, "{}", source.sent());
}

#[tokio::test]
async fn a_fetch_past_the_cache_that_fails_is_tried_once_more() {
    let (reservoir, source) = (
        reservoir(0).await,
        FakeSource::failing(1, forebay_core::Kind::Unavailable),
    );
    let object = object("a", "1", MIB);
    check(&reservoir, &object, whole(&object), &source).await;
    source.failures.store(2, std::sync::atomic::Ordering::SeqCst);
    let failed = pieces(&reservoir, &object, whole(&object), &source).await;
    assert_eq!(failed.unwrap_err().kind(), forebay_core::Kind::Unavailable);
    assert_eq!(reservoir.shared_fetches.subscribers(), 0);
}
