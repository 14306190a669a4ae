use super::*;

fn arena(budget_bytes: u64) -> Arc<Arena> {
    Arc::new(Arena::new(budget_bytes))
}

#[test]
fn segments_never_exceed_the_budget() {
    for budget_bytes in [0, 1000, 1 << 20, (10 << 20) + 5000, 600 << 20] {
        let arena = arena(budget_bytes);
        let _fault_in = FaultIn::start(Arc::clone(&arena)).unwrap();
        let mut extents = Vec::new();
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        loop {
            // Asked first: a segment that is ready by the time of the answer is not missed.
            let is_preparing = arena.is_preparing();
            match arena.allocate(TrustDomain::DEFAULT, 1 << 20) {
                Some(more) => extents.extend(more),
                None if is_preparing && std::time::Instant::now() < deadline => std::thread::yield_now(),
                None => break,
            }
            assert!(arena.held_and_used_bytes().0 <= budget_bytes);
        }
        let used = arena.held_and_used_bytes().1;
        assert!(
            budget_bytes < 1 << 20 || used + (2 << 20) >= budget_bytes,
            "{used} of {budget_bytes}"
        );
    }
}

#[test]
fn memory_is_ready_a_step_ahead_of_what_is_lent_and_no_more() {
    let arena = arena(600 << 20);
    let _fault_in = FaultIn::start(Arc::clone(&arena)).unwrap();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    let mut held: Vec<Extent> = Vec::new();
    for _ in 0..40 {
        held.extend(arena.allocate(TrustDomain::DEFAULT, 1 << 20).unwrap());
        let lent = held.len() << 20;
        let ahead = STEP_BYTES as usize;
        // One segment is enough for all of it.
        while held[0].segment().resident_bytes() < lent + ahead / 2 {
            assert!(std::time::Instant::now() < deadline, "nothing is made ready");
            std::thread::yield_now();
        }
        let ready = held[0].segment().resident_bytes();
        assert!(ready <= lent + ahead + (2 << 20), "{ready} for {lent}");
    }
}

#[test]
fn a_run_lies_together() {
    let arena = arena(64 << 20);
    let bytes = 2 * PAGE_BYTES + 12_345;
    let run = arena
        .allocate_run(TrustDomain::DEFAULT, bytes, RunShape::Whole)
        .unwrap();
    assert_eq!(
        run.iter().map(Extent::bytes).collect::<Vec<_>>(),
        [PAGE_BYTES, PAGE_BYTES, 12_345]
    );
    for pair in run.windows(2) {
        assert!(Arc::ptr_eq(pair[0].segment(), pair[1].segment()));
        assert_eq!(pair[0].offset() + PAGE_BYTES as usize, pair[1].offset());
    }
    assert_eq!(arena.held_and_used_bytes().1, bytes);
    drop(run);
    assert_eq!(arena.held_and_used_bytes().1, 0);
}

#[test]
fn scattered_holes_of_whole_blocks_are_used() {
    let arena = arena(4 << 20);
    let mut extents: Vec<Extent> = Vec::new();
    while let Some(more) = arena.allocate(TrustDomain::DEFAULT, BLOCK_BYTES) {
        extents.extend(more);
    }
    let mut number = 0;
    extents.retain(|_| {
        number += 1;
        number % 2 == 0
    });
    let scattered = arena.allocate(TrustDomain::DEFAULT, 1 << 20).unwrap();
    assert_eq!(scattered.len(), 16);
    assert_eq!(scattered.iter().map(Extent::bytes).sum::<u64>(), 1 << 20);
}

#[test]
fn a_failed_scattered_try_gives_everything_back() {
    let arena = arena(1 << 20);
    let first = arena.allocate(TrustDomain::DEFAULT, 512 << 10).unwrap();
    let used = arena.held_and_used_bytes().1;
    assert!(arena.allocate(TrustDomain::DEFAULT, 1 << 20).is_none());
    assert_eq!(arena.held_and_used_bytes().1, used);
    drop(first);
    assert!(arena.allocate(TrustDomain::DEFAULT, 1 << 20).is_some());
}

/// Mixed sizes, oldest first out, as eviction does it: how much of the memory is lost to holes and rounding.
#[test]
fn mixed_sizes_waste_little_under_churn() {
    let arena = arena(64 << 20);
    let mut random = fastrand::Rng::with_seed(7);
    let mut held: std::collections::VecDeque<Vec<Extent>> = std::collections::VecDeque::new();
    let mut worst_waste: f64 = 0.0;
    for round in 0..40_000 {
        // Sizes from 4 KiB to 1 MiB, each doubling equally likely.
        let exponent = 12.0 + 8.0 * random.f64();
        let bytes = exponent.exp2() as u64;
        loop {
            if let Some(extents) = arena.allocate(TrustDomain::DEFAULT, bytes) {
                held.push_back(extents);
                break;
            }
            let (held_bytes, used_bytes) = arena.held_and_used_bytes();
            if round > 10_000 {
                worst_waste = worst_waste.max(1.0 - (used_bytes + bytes) as f64 / held_bytes as f64);
            }
            // Two thirds oldest first, one third at random: reads keep some pages longer.
            let victim = if random.u8(..3) > 0 {
                0
            } else {
                random.usize(..held.len())
            };
            held.remove(victim);
        }
    }
    assert!(worst_waste <= 0.15, "{worst_waste}");
}
