//! Trust domains: their pages never meet in a segment, and all of them get memory.

use std::collections::HashMap;
use std::sync::Arc;

use super::*;
use crate::{SegmentId, TrustDomain};

fn in_domain(domain: u32, key: &str, bytes: u64) -> ObjectVersion {
    ObjectVersion {
        domain: TrustDomain(domain),
        ..object(&format!("{domain}/{key}"), "1", bytes)
    }
}

#[tokio::test]
async fn domains_never_share_a_segment_and_every_segment_says_whose_it_is() {
    let (reservoir, source) = (reservoir(24 * MIB).await, FakeSource::new());
    let mut random = fastrand::Rng::with_seed(5);
    let mut owners: HashMap<SegmentId, TrustDomain> = HashMap::new();
    let mut held = std::collections::VecDeque::new();
    for step in 0..600 {
        let domain = random.u32(..3);
        let bytes = (12.0 + 10.0 * random.f64()).exp2() as u64;
        let object = in_domain(domain, &format!("{}", random.u64(..200)), bytes);
        if random.u32(..8) == 0 {
            let mut fill = reservoir.begin_fill_in(object.domain, random.bool().then_some(bytes));
            fill.push(&content(&object, whole(&object)).into()).await;
            fill.commit(&object);
        }
        let leased = reservoir
            .lease(&object, whole(&object), &shared(&source))
            .await
            .unwrap();
        for segment in leased.segments() {
            let owner = reservoir.segment_fd(segment).unwrap().2;
            assert_eq!(owner, object.domain, "step {step}");
            assert_eq!(*owners.entry(segment).or_insert(owner), owner, "step {step}");
        }
        held.push_back(leased);
        if held.len() > 4 {
            held.pop_front();
        }
        assert!(reservoir.stats().ram_held_bytes <= 24 * MIB);
    }
    assert!(
        owners.len() > 10,
        "segments moved between domains: {}",
        owners.len()
    );
}

#[tokio::test]
async fn a_domain_that_comes_late_gets_memory() {
    let (reservoir, source) = (reservoir(32 * MIB).await, FakeSource::new());
    for number in 0..40 {
        let object = in_domain(0, &number.to_string(), MIB);
        check(&reservoir, &object, whole(&object), &source).await;
    }
    let late: Vec<_> = (0..12)
        .map(|number| in_domain(1, &number.to_string(), MIB))
        .collect();
    for object in &late {
        check(&reservoir, object, whole(object), &source).await;
    }
    let kept: u64 = late
        .iter()
        .map(|object| reservoir.resident(object).ram_bytes)
        .sum();
    assert!(kept >= 10 * MIB, "{kept}");
    assert_eq!(reservoir.stats().bypassed_bytes, 0);
    let first: u64 = (0..40)
        .map(|number| {
            reservoir
                .resident(&in_domain(0, &number.to_string(), MIB))
                .ram_bytes
        })
        .sum();
    assert!(first >= 12 * MIB, "the first domain keeps its share: {first}");
}

#[tokio::test]
async fn a_domain_that_sleeps_gives_its_memory_up_little_by_little() {
    let (reservoir, source) = (reservoir(32 * MIB).await, FakeSource::new());
    for number in 0..30 {
        let object = in_domain(0, &number.to_string(), MIB);
        check(&reservoir, &object, whole(&object), &source).await;
    }
    for number in 0..200 {
        let object = in_domain(1, &number.to_string(), MIB);
        check(&reservoir, &object, whole(&object), &source).await;
    }
    let used: u64 = (0..200)
        .map(|number| {
            reservoir
                .resident(&in_domain(1, &number.to_string(), MIB))
                .ram_bytes
        })
        .sum();
    assert!(used >= 24 * MIB, "{used}");
}

#[tokio::test]
async fn when_a_domain_leases_everything_another_is_still_served() {
    let (reservoir, source) = (reservoir(8 * MIB).await, FakeSource::new());
    let mut held = Vec::new();
    for number in 0..8 {
        let object = in_domain(0, &number.to_string(), MIB);
        held.push(
            reservoir
                .lease(&object, whole(&object), &shared(&source))
                .await
                .unwrap(),
        );
    }
    let other = in_domain(1, "other", 3 * MIB);
    let leased = reservoir
        .lease(&other, whole(&other), &shared(&source))
        .await
        .unwrap();
    let (_, _, domain) = reservoir.segment_fd(leased.parts()[0].segment).unwrap();
    assert_eq!((leased.tiers().copied, domain), (other.bytes, TrustDomain(1)));
}

#[tokio::test]
async fn a_write_that_began_in_another_domain_is_not_cached() {
    let reservoir = reservoir(16 * MIB).await;
    let object = in_domain(1, "a", 100_000);
    for (domain, kept) in [(TrustDomain::DEFAULT, 0), (object.domain, object.bytes)] {
        let mut fill = reservoir.begin_fill_in(domain, Some(object.bytes));
        fill.push(&content(&object, whole(&object)).into()).await;
        fill.commit(&object);
        assert_eq!(reservoir.resident(&object).ram_bytes, kept);
    }
}

#[tokio::test]
async fn with_nvme_below_every_domain_is_demoted_and_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let options = ReservoirOptions {
        nvme_bytes: 256 * MIB,
        nvme_dir: dir.path().into(),
        ..options(16 * MIB)
    };
    let (reservoir, source) = (Reservoir::open(options).await.unwrap(), FakeSource::new());
    let objects: Vec<_> = (0..40)
        .map(|number| in_domain(number % 2, &number.to_string(), MIB))
        .collect();
    for _ in 0..3 {
        for object in &objects {
            let leased = reservoir
                .lease(object, whole(object), &shared(&source))
                .await
                .unwrap();
            for segment in leased.segments() {
                assert_eq!(reservoir.segment_fd(segment).unwrap().2, object.domain);
            }
        }
    }
    let stats = reservoir.stats();
    assert!(stats.served_nvme_bytes > 0, "{stats:?}");
    let _ = Arc::clone(&reservoir);
    reservoir.shutdown(Duration::from_secs(10)).await;
}
