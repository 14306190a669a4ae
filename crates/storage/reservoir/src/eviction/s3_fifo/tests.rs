use std::collections::BTreeMap;

use forebay_core::PageIndex;
use proptest::prelude::*;

use super::*;
use crate::ObjectId;

fn page(number: u32) -> PageKey {
    PageKey {
        object: ObjectId([7; 16]),
        page: PageIndex(number),
    }
}

fn evict_any(policy: &mut S3Fifo) -> Option<PageKey> {
    policy.victim(&mut |_| true)
}

#[test]
fn pages_read_once_leave_in_the_order_in_which_they_came() {
    let mut policy = S3Fifo::new();
    for number in 0..5 {
        policy.insert(page(number), 4096);
    }
    for number in 0..5 {
        assert_eq!(evict_any(&mut policy), Some(page(number)));
    }
    assert_eq!(evict_any(&mut policy), None);
}

#[test]
fn a_scan_does_not_push_out_hot_pages() {
    let mut policy = S3Fifo::new();
    for number in 0..100 {
        policy.insert(page(number), 1);
        policy.touch(&page(number));
        policy.touch(&page(number));
    }
    let mut gone = Vec::new();
    for number in 1000..11_000 {
        gone.extend(evict_any(&mut policy));
        policy.insert(page(number), 1);
    }
    let hot_gone = gone.iter().filter(|key| key.page.0 < 100).count();
    assert!(
        hot_gone <= 20,
        "{hot_gone} of 100 hot pages were evicted by a scan"
    );
}

#[test]
fn a_page_that_comes_back_soon_outlives_newcomers() {
    let mut policy = S3Fifo::new();
    for number in 0..50 {
        policy.insert(page(number), 1);
    }
    assert_eq!(evict_any(&mut policy), Some(page(0)));
    policy.insert(page(0), 1);
    for _ in 1..50 {
        assert_ne!(evict_any(&mut policy), Some(page(0)));
    }
    assert_eq!(evict_any(&mut policy), Some(page(0)));
}

#[test]
fn refused_pages_in_one_queue_do_not_hide_the_other() {
    let mut policy = S3Fifo::new();
    for number in 0..10 {
        policy.insert(page(number), 1 << 20);
    }
    policy.touch(&page(9));
    policy.touch(&page(9));
    assert_eq!(policy.victim(&mut |key| *key == page(9)), Some(page(9)));
    assert_eq!(policy.victim(&mut |_| false), None);
    assert_eq!(evict_any(&mut policy), Some(page(0)));
}

#[test]
fn memory_stays_bounded_when_pages_come_and_are_removed() {
    let mut policy = S3Fifo::new();
    for number in 0..100_000 {
        policy.insert(page(number), 1);
        policy.remove(&page(number));
    }
    assert!(policy.small.slots.len() <= SWEEP_LEN_MIN + 1);
    for number in 0..100_000 {
        policy.insert(page(number), 1);
        evict_any(&mut policy);
    }
    assert!(policy.ghost_order.len() <= SWEEP_LEN_MIN + 1);
}

proptest! {
    #[test]
    fn victims_are_known_allowed_and_never_missed(
        steps in proptest::collection::vec((0u8..4, 0u32..40, 1u64..1000), 1..400)
    ) {
        let mut policy = S3Fifo::new();
        let mut model = BTreeMap::new();
        for (step, number, bytes) in steps {
            match step {
                0 => {
                    policy.insert(page(number), bytes);
                    model.insert(page(number), bytes);
                }
                1 => policy.touch(&page(number)),
                2 => {
                    policy.remove(&page(number));
                    model.remove(&page(number));
                }
                _ => {
                    let may_go = |key: &PageKey| key.page.0 % 3 != number % 3;
                    let allowed = model.keys().any(may_go);
                    let victim = policy.victim(&mut |key| may_go(key));
                    prop_assert_eq!(victim.is_some(), allowed);
                    if let Some(victim) = victim {
                        prop_assert!(may_go(&victim) && model.remove(&victim).is_some());
                    }
                }
            }
            prop_assert_eq!(policy.entries.len(), model.len());
            prop_assert_eq!(policy.small.bytes + policy.main.bytes, model.values().sum::<u64>());
        }
    }
}
