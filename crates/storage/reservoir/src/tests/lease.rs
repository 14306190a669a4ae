//! Leases for clients on the host, seen through mappings of their own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_core::Kind;
use futures::future::join_all;

use super::mapping::Mapping;
use super::*;
use crate::segment::{ClientAccess, Segment};
use crate::{Leased, TrustDomain};

/// Maps what a lease names, as a client does, and puts it together.
fn client_bytes(reservoir: &Reservoir, leased: &Leased) -> Vec<u8> {
    let mut bytes = Vec::new();
    for part in leased.parts() {
        let (segment, segment_bytes, _) = reservoir
            .segment_fd(part.segment)
            .expect("a leased segment is there");
        let mapping = Mapping::new(&*segment, segment_bytes);
        bytes.extend_from_slice(&mapping[part.offset as usize..(part.offset + part.bytes) as usize]);
    }
    bytes
}

async fn lease(
    reservoir: &Arc<Reservoir>,
    source: &Arc<FakeSource>,
    object: &ObjectVersion,
    range: ByteRange,
) -> Leased {
    let leased = reservoir.lease(object, range, &shared(source)).await.unwrap();
    assert_eq!(leased.bytes(), range.len());
    leased
}

/// Every border inside the lease can be a border of a mapping.
fn has_mappable_borders(leased: &Leased) -> bool {
    let parts = leased.parts();
    let starts = parts.iter().skip(1).all(|part| part.offset.is_multiple_of(4096));
    let ends = parts
        .iter()
        .rev()
        .skip(1)
        .all(|part| (part.offset + part.bytes).is_multiple_of(4096));
    starts && ends
}

#[tokio::test]
async fn a_client_maps_what_was_leased() {
    let (reservoir, source) = (reservoir(64 * MIB).await, FakeSource::new());
    let object = object("a", "1", 5 * MIB + 12_345);
    for range in [
        whole(&object),
        range(0, 1),
        range(70_000, 70_001),
        range(MIB - 1, 3 * MIB + 7),
    ] {
        let leased = lease(&reservoir, &source, &object, range).await;
        assert!(client_bytes(&reservoir, &leased) == content(&object, range));
        assert_eq!(
            leased.parts().len(),
            1,
            "it was read whole first, so it lies together"
        );
    }
    assert_eq!(source.sent(), object.bytes);
    assert_eq!(reservoir.stats().lease_copied_bytes, 0);
}

#[tokio::test]
async fn a_cold_lease_says_where_its_bytes_came_from_and_a_warm_one_too() {
    let (reservoir, source) = (reservoir(64 * MIB).await, FakeSource::new());
    let object = object("a", "1", MIB);
    assert!(reservoir.try_lease(&object, range(0, 10)).is_none());
    let cold = lease(&reservoir, &source, &object, range(0, 70_000)).await;
    assert_eq!((cold.tiers().lake, cold.tiers().ram), (70_000, 0));
    let warm = reservoir.try_lease(&object, range(5, 100_000)).unwrap();
    assert_eq!((warm.tiers().lake, warm.tiers().ram), (0, 99_995));
    assert!(
        reservoir.try_lease(&object, range(5, 140_000)).is_none(),
        "a block is missing"
    );
    assert_eq!(warm.tiers().copied, 0);
}

#[tokio::test]
async fn a_range_past_the_end_is_never_leased() {
    let (reservoir, source) = (reservoir(16 * MIB).await, FakeSource::new());
    let object = object("a", "1", 100_000);
    lease(&reservoir, &source, &object, whole(&object)).await;
    assert!(reservoir.try_lease(&object, range(99_999, 100_001)).is_none());
    let refused = reservoir
        .lease(&object, range(0, 100_001), &shared(&source))
        .await;
    assert_eq!(refused.unwrap_err().kind(), Kind::OutOfRange);
}

#[tokio::test]
async fn scattered_parts_have_borders_that_can_be_mapped() {
    let (reservoir, source) = (reservoir(16 * MIB).await, FakeSource::new());
    let object = object("a", "1", 3 * MIB + 777);
    // Blocks come in one by one, in an order that scatters them.
    for block in (0..48).rev().step_by(2).chain((0..48).step_by(2)) {
        lease(
            &reservoir,
            &source,
            &object,
            range(block * 64 * KIB, block * 64 * KIB + 10),
        )
        .await;
    }
    let wanted = range(12_345, object.bytes);
    let leased = lease(&reservoir, &source, &object, wanted).await;
    assert!(leased.parts().len() > 10 && has_mappable_borders(&leased));
    assert!(client_bytes(&reservoir, &leased) == content(&object, wanted));
}

#[tokio::test]
async fn a_lease_holds_under_pressure_and_its_memory_comes_back() {
    let ram_bytes = 16 * MIB;
    let (reservoir, source) = (reservoir(ram_bytes).await, FakeSource::new());
    let kept = object("kept", "1", 3 * MIB + 99);
    let leased = lease(&reservoir, &source, &kept, whole(&kept)).await;
    reservoir.forget(&kept.bucket, &kept.key);
    for number in 0..60 {
        let other = object(&format!("other-{number}"), "1", 2 * MIB);
        check(&reservoir, &other, whole(&other), &source).await;
        assert!(reservoir.stats().ram_held_bytes <= ram_bytes);
    }
    assert!(client_bytes(&reservoir, &leased) == content(&kept, whole(&kept)));
    assert!(reservoir.stats().leased_bytes >= kept.bytes);
    drop(leased);
    assert_eq!(
        (reservoir.stats().leased_bytes, reservoir.stats().leased_pages),
        (0, 0)
    );
}

#[tokio::test]
async fn leased_pages_are_no_candidates_for_eviction_and_count_as_read() {
    let (reservoir, source) = (reservoir(16 * MIB).await, FakeSource::new());
    let kept = object("kept", "1", 2 * MIB);
    let leased = lease(&reservoir, &source, &kept, whole(&kept)).await;
    while reservoir.ram.evict_one().is_some() {}
    assert_eq!(reservoir.resident(&kept).ram_bytes, kept.bytes);
    drop(leased);
    for _ in 0..3 {
        drop(reservoir.try_lease(&kept, whole(&kept)).unwrap());
    }
    let scan = object("scan", "1", 100 * MIB);
    check(&reservoir, &scan, whole(&scan), &source).await;
    assert_eq!(
        reservoir.resident(&kept).ram_bytes,
        kept.bytes,
        "a scan leaves what was leased often"
    );
}

#[tokio::test]
async fn without_memory_the_bytes_are_copied_and_the_copy_goes_with_the_lease() {
    let (reservoir, source) = (reservoir(4 * MIB).await, FakeSource::new());
    let object = object("large", "1", 9 * MIB + 5);
    let leased = lease(&reservoir, &source, &object, whole(&object)).await;
    assert!(client_bytes(&reservoir, &leased) == content(&object, whole(&object)));
    assert_eq!((leased.parts().len(), leased.tiers().copied), (1, object.bytes));
    let stats = reservoir.stats();
    assert_eq!((stats.lease_copied_bytes, stats.leased_bytes), (object.bytes, 0));
    assert!(stats.copies_held_bytes >= object.bytes && stats.ram_held_bytes <= 4 * MIB);
    let segment = leased.parts()[0].segment;
    drop(leased);
    assert!(reservoir.segment_fd(segment).is_none());
    assert_eq!(reservoir.stats().copies_held_bytes, 0);
}

#[tokio::test]
async fn copies_are_capped() {
    let (reservoir, source) = (reservoir(0).await, FakeSource::new());
    let (large, small) = (object("large", "1", 257 * MIB), object("small", "1", 200 * MIB));
    let refused = reservoir
        .lease_copy(&large, whole(&large), &shared(&source))
        .await;
    assert_eq!(refused.unwrap_err().kind(), Kind::NoSpace);
    let held = lease(&reservoir, &source, &small, range(0, 200 * MIB)).await;
    let refused = reservoir
        .lease_copy(&small, range(0, 60 * MIB), &shared(&source))
        .await;
    assert_eq!(refused.unwrap_err().kind(), Kind::Busy);
    drop(held);
    assert_eq!(reservoir.stats().copies_held_bytes, 0);
}

#[tokio::test]
async fn a_copy_of_warm_bytes_leaves_the_cache_alone() {
    let (reservoir, source) = (reservoir(16 * MIB).await, FakeSource::new());
    let object = object("a", "1", 3 * MIB);
    check(&reservoir, &object, whole(&object), &source).await;
    let copied = reservoir
        .lease_copy(&object, range(5, 2 * MIB), &shared(&source))
        .await
        .unwrap();
    assert!(client_bytes(&reservoir, &copied) == content(&object, range(5, 2 * MIB)));
    assert_eq!(
        (copied.tiers().ram, copied.tiers().copied),
        (2 * MIB - 5, 2 * MIB - 5)
    );
    assert_eq!((source.sent(), reservoir.stats().leased_pages), (object.bytes, 0));
}

#[tokio::test]
async fn an_object_of_many_segments_is_leased_in_whole_segments() {
    let (reservoir, source) = (reservoir(2048 * MIB).await, FakeSource::new());
    let object = object("large", "1", 256 * MIB);
    let leased = lease(&reservoir, &source, &object, whole(&object)).await;
    let parts: Vec<_> = leased
        .parts()
        .iter()
        .map(|part| (part.offset, part.bytes))
        .collect();
    assert_eq!(parts, [(0, 64 * MIB); 4]);
    for (number, part) in (0..).zip(leased.parts()) {
        let (segment, bytes, _) = reservoir.segment_fd(part.segment).unwrap();
        let mapping = Mapping::new(&*segment, bytes);
        for start in (0..64 * MIB).step_by(MIB as usize) {
            let at = number * 64 * MIB + start;
            let seen = &mapping[start as usize..(start + MIB) as usize];
            assert!(seen == content(&object, range(at, at + MIB)), "at {at}");
        }
    }
}

#[tokio::test]
async fn a_large_object_starts_at_a_huge_page() {
    let (reservoir, source) = (reservoir(256 * MIB).await, FakeSource::new());
    for (key, bytes) in [("a", 100_000), ("b", 5 * MIB), ("c", 30_000), ("d", 2 * MIB)] {
        let object = object(key, "1", bytes);
        let leased = lease(&reservoir, &source, &object, whole(&object)).await;
        assert_eq!(leased.parts().len(), 1);
        assert!(bytes < 2 * MIB || leased.parts()[0].offset.is_multiple_of(2 * MIB));
    }
}

#[tokio::test]
async fn a_client_maps_huge_pages_where_the_node_got_them() {
    const SEGMENTS: usize = 3;
    let probe = Segment::create(SEGMENTS * (16 << 20), ClientAccess::Read).unwrap();
    let huge_bytes = probe.fault_in(0..probe.bytes());
    let mapping = Mapping::new(&probe, probe.bytes() as u64);
    assert!(
        mapping.huge_bytes() >= huge_bytes as u64,
        "as many as the node got"
    );
    if huge_bytes < probe.bytes() {
        println!("skipped: the kernel has no huge pages for shared memory, or too few in a row");
        return;
    }
    // On a busy machine a fill may outrun the thread that prepares memory.
    for _ in 0..5 {
        if has_huge_segments(SEGMENTS).await {
            return;
        }
    }
    let again = Segment::create(SEGMENTS * (16 << 20), ClientAccess::Read).unwrap();
    let huge_bytes = again.fault_in(0..again.bytes());
    assert!(
        huge_bytes < again.bytes(),
        "huge pages are there and were not used"
    );
    println!("skipped: the kernel ran out of huge pages");
}

/// Fills segments through a new reservoir, and returns whether a client maps all of them by huge pages. The
/// first was needed before it could be prepared, a later one was ready: both end up huge.
async fn has_huge_segments(segments: usize) -> bool {
    let (reservoir, source) = (reservoir(64 * MIB).await, FakeSource::new());
    for number in 0..segments {
        let object = object(&format!("object-{number}"), "1", 14 * MIB);
        let leased = lease(&reservoir, &source, &object, whole(&object)).await;
        let (segment, bytes, _) = reservoir.segment_fd(leased.parts()[0].segment).unwrap();
        let deadline = tokio::time::Instant::now() + Duration::from_secs(2);
        // A mapping keeps the small pages that it has: each look needs a new one.
        while Mapping::new(&*segment, bytes).huge_bytes() < bytes {
            if tokio::time::Instant::now() > deadline {
                return false;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        assert!(client_bytes(&reservoir, &leased) == content(&object, whole(&object)));
    }
    true
}

#[tokio::test]
async fn an_object_that_is_forgotten_while_it_is_leased_is_leased_all_the_same() {
    let (reservoir, source) = (reservoir(64 * MIB).await, FakeSource::new());
    let object = object("a", "1", 3 * MIB);
    source.close_gate();
    let leasing = tokio::spawn({
        let (reservoir, source, object) = (Arc::clone(&reservoir), Arc::clone(&source), object.clone());
        async move { lease(&reservoir, &source, &object, whole(&object)).await }
    });
    eventually("the fetch", || source.request_count() > 0).await;
    reservoir.forget(&object.bucket, &object.key);
    source.open_gate();
    let leased = leasing.await.unwrap();
    assert!(client_bytes(&reservoir, &leased) == content(&object, whole(&object)));
}

#[tokio::test]
async fn what_was_abandoned_is_never_written_again_and_the_budget_goes_on() {
    let ram_bytes = 16 * MIB;
    let (reservoir, source) = (reservoir(ram_bytes).await, FakeSource::new());
    let (kept, neighbour) = (object("kept", "1", 2 * MIB), object("neighbour", "1", 100_000));
    let leased = lease(&reservoir, &source, &kept, whole(&kept)).await;
    check(&reservoir, &neighbour, whole(&neighbour), &source).await;
    let part = leased.parts()[0];
    let (segment, segment_bytes, _) = reservoir.segment_fd(part.segment).unwrap();
    let mapping = Mapping::new(&*segment, segment_bytes);
    drop(segment);
    let before = mapping.to_vec();
    reservoir.abandon(&leased);
    assert!(
        reservoir.segment_fd(part.segment).is_some(),
        "whoever holds a part of it can still map it"
    );
    drop(leased); // The node forgets it; only the client's mapping is left.
    assert_eq!(reservoir.resident(&kept).ram_bytes, 0);
    assert_eq!(
        reservoir.resident(&neighbour).ram_bytes,
        0,
        "it lay in the same segment"
    );
    // The thread that gives it huge pages may hold it a moment longer.
    eventually("its segment is gone", || {
        reservoir.segment_fd(part.segment).is_none()
    })
    .await;
    for number in 0..40 {
        let other = object(&format!("other-{number}"), "1", 2 * MIB);
        check(&reservoir, &other, whole(&other), &source).await;
    }
    assert!(mapping[..] == before[..]);
    let stats = reservoir.stats();
    assert_eq!(
        (stats.abandoned_segments, stats.abandoned_bytes),
        (1, segment_bytes)
    );
    assert!(stats.ram_held_bytes <= ram_bytes && stats.ram_held_bytes > ram_bytes / 2);
    assert_eq!(stats.bypassed_bytes, 0);
    reservoir.evict(&bucket(), "");
    assert_eq!(reservoir.stats().ram_used_bytes, 0);
}

/// A client that reads through its mapping while everything is evicted and abandoned around it.
async fn hold_and_look(
    reservoir: Arc<Reservoir>,
    source: Arc<FakeSource>,
    seed: u64,
    stop: Arc<AtomicBool>,
) -> u64 {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut looked = 0;
    while !stop.load(Ordering::Relaxed) {
        let object = object(
            &format!("object-{}", random.u64(..24)),
            "1",
            300 * KIB + 100 * KIB * random.u64(..30),
        );
        let start = random.u64(..object.bytes);
        let wanted = range(start, random.u64(start + 1..=object.bytes));
        let leased = lease(&reservoir, &source, &object, wanted).await;
        let (segment, bytes, _) = reservoir.segment_fd(leased.parts()[0].segment).unwrap();
        let mapping = Mapping::new(&*segment, bytes);
        drop(segment);
        for _ in 0..random.u32(1..4) {
            tokio::task::yield_now().await;
            let part = leased.parts()[0];
            let seen = &mapping[part.offset as usize..(part.offset + part.bytes) as usize];
            assert!(
                seen == &content(&object, wanted)[..seen.len()],
                "{object:?} {wanted}"
            );
            looked += 1;
        }
        if random.u32(..50) == 0 {
            reservoir.abandon(&leased);
        }
    }
    looked
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_client_ever_sees_a_byte_change_under_its_lease() {
    let (reservoir, source) = (reservoir(12 * MIB).await, FakeSource::new());
    let stop = Arc::new(AtomicBool::new(false));
    let clients = (0..8).map(|seed| {
        tokio::spawn(hold_and_look(
            Arc::clone(&reservoir),
            Arc::clone(&source),
            seed,
            Arc::clone(&stop),
        ))
    });
    let clients = join_all(clients.collect::<Vec<_>>());
    for number in 0..60 {
        let other = object(&format!("scan-{number}"), "1", MIB + number * 7);
        check(&reservoir, &other, whole(&other), &source).await;
    }
    stop.store(true, Ordering::Relaxed);
    let looked: u64 = clients.await.into_iter().map(Result::unwrap).sum();
    assert!(looked > 100, "{looked}");
    let stats = reservoir.stats();
    assert_eq!(
        (stats.leased_pages, stats.leased_bytes, stats.copies_held_bytes),
        (0, 0, 0)
    );
    eventually("all memory to go", || {
        while reservoir.ram.evict_one().is_some() {}
        reservoir.stats().ram_used_bytes == 0
    })
    .await;
}

#[tokio::test]
async fn the_scrub_finds_a_flipped_bit_in_a_leased_page() {
    let options = ReservoirOptions {
        scrub_period: Duration::from_millis(64),
        ..options(16 * MIB)
    };
    let (reservoir, source) = (Reservoir::open(options).await.unwrap(), FakeSource::new());
    let object = object("a", "1", MIB);
    let leased = lease(&reservoir, &source, &object, whole(&object)).await;
    assert!(reservoir.debug_corrupt_ram(&object, 5000));
    eventually("the scrub", || reservoir.stats().corrupt_ram_blocks == 1).await;
    let again = lease(&reservoir, &source, &object, whole(&object)).await;
    assert!(client_bytes(&reservoir, &again) == content(&object, whole(&object)));
    assert_ne!(again.parts()[0], leased.parts()[0]);
}

#[tokio::test]
async fn a_client_can_neither_write_to_a_segment_nor_change_its_size() {
    let (reservoir, source) = (reservoir(16 * MIB).await, FakeSource::new());
    let object = object("a", "1", MIB);
    let leased = lease(&reservoir, &source, &object, whole(&object)).await;
    let copied = reservoir
        .lease_copy(&object, whole(&object), &shared(&source))
        .await
        .unwrap();
    for segment in leased.segments().chain(copied.segments()) {
        let (segment, bytes, domain) = reservoir.segment_fd(segment).unwrap();
        assert_eq!(domain, TrustDomain::DEFAULT);
        assert!(Mapping::is_refused_for_writing(&*segment, bytes));
        assert!(rustix::fs::ftruncate(&*segment, 0).is_err());
        assert!(rustix::io::pwrite(&*segment, b"x", 0).is_err());
        let hole = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        assert!(rustix::fs::fallocate(&*segment, hole, 0, 4096).is_err());
    }
}
