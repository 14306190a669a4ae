//! Tests of admission: what counts, whose share it is, and that somebody can always end.

use super::*;

const MIB: u64 = 1 << 20;

fn key(name: &str) -> Holder {
    Holder::Key(name.into())
}

fn from(last: u8) -> Origin {
    Origin::of(Some(([10, 0, 0, last], 1).into()))
}

fn put(bytes: u64) -> Load {
    Load::Object { bytes: Some(bytes) }
}

#[test]
fn requests_are_limited_and_given_back() {
    let admission = Admission::new(4, 1 << 30);
    let permits: Vec<_> = (0..4)
        .filter_map(|_| admission.admit(key("a"), from(1), Load::Small))
        .collect();
    assert_eq!(permits.len(), 3, "three quarters are the most of one key");
    assert!(admission.admit(key("b"), from(2), Load::Small).is_some());
    drop(permits);
    assert_eq!(admission.in_flight(), InFlight::default());
    assert!(admission.table.lock().holders.is_empty());
}

#[test]
fn an_announced_length_counts_nothing() {
    let admission = Admission::new(100, 64 * MIB);
    let _forged = admission.admit(key("a"), from(1), put(5 << 40)).unwrap();
    assert_eq!(admission.in_flight().bytes, READ_COST_BYTES);
    let others: Vec<_> = (0..40)
        .filter_map(|_| admission.admit(key("b"), from(2), Load::Small))
        .collect();
    assert_eq!(others.len(), 40);
    let reads = admission.admit(key("a"), from(1), Load::Small);
    assert!(reads.is_some(), "nor does it keep readers of the same key out");
}

#[test]
fn an_upload_counts_what_has_come_up_to_its_window() {
    let admission = Admission::new(100, 1 << 30);
    let mut permit = admission.admit(key("a"), from(1), put(1 << 30)).unwrap();
    for _ in 0..10 {
        assert!(permit.receive(MIB));
    }
    assert_eq!(admission.in_flight().bytes / MIB, 10);
    for _ in 0..500 {
        assert!(permit.receive(MIB));
    }
    assert_eq!(admission.in_flight().bytes / MIB, 80, "five parts of 16 MiB");
    let mut part = admission
        .admit(key("a"), from(1), Load::Part { bytes: Some(1 << 30) })
        .unwrap();
    assert!((0..100).all(|_| part.receive(MIB)));
    assert_eq!(admission.in_flight().bytes / MIB, 96);
}

#[test]
fn a_body_that_is_longer_than_was_announced_counts_all_the_same() {
    let admission = Admission::new(100, 1 << 30);
    let mut permit = admission.admit(key("a"), from(1), put(5)).unwrap();
    assert!((0..50).all(|_| permit.receive(MIB)));
    assert_eq!(admission.in_flight().bytes / MIB, 50);
}

#[test]
fn the_window_grows_with_the_parts_of_a_huge_object() {
    assert!(put(5 << 40).window_bytes() > 2 << 30);
    assert!(put(u64::MAX).window_bytes() > 0);
    assert_eq!(Load::Object { bytes: None }.window_bytes(), 80 * MIB);
}

#[test]
fn what_one_key_promises_keeps_only_its_own_uploads_out() {
    let admission = Admission::new(1000, 400 * MIB);
    let mut promised: Vec<_> = (0..3)
        .map(|_| admission.admit(key("a"), from(1), put(1 << 30)).unwrap())
        .collect();
    assert!(
        admission.admit(key("a"), from(1), put(1 << 30)).is_none(),
        "a share of 300 MiB is three windows"
    );
    assert!(admission.admit(key("a"), from(1), Load::Small).is_some());
    assert!(admission.admit(key("b"), from(1), put(1 << 30)).is_some());
    promised[0].break_promise();
    assert!(
        admission.admit(key("a"), from(1), put(1 << 30)).is_some(),
        "a body that does not come is no promise"
    );
}

#[test]
fn a_key_that_holds_its_share_leaves_room_for_others() {
    let admission = Admission::new(1000, 400 * MIB);
    let mut uploads = Vec::new();
    while let Some(mut permit) = admission.admit(key("a"), from(1), put(8 * MIB)) {
        assert!((0..8).all(|_| permit.receive(MIB)));
        uploads.push(permit);
    }
    assert!(admission.in_flight().bytes <= 300 * MIB);
    let mut other = admission.admit(key("b"), from(2), put(20 * MIB)).unwrap();
    assert!((0..20).all(|_| other.receive(MIB)));
}

#[test]
fn an_address_has_a_share_whatever_keys_it_uses_and_strangers_have_one_together() {
    let admission = Admission::new(100, 1 << 40);
    let one_address = (0..100).filter_map(|n| admission.admit(key(&n.to_string()), from(1), Load::Small));
    let one_address: Vec<_> = one_address.collect();
    assert_eq!(one_address.len(), 75);
    assert!(admission.admit(key("b"), from(2), Load::Small).is_some());
    drop(one_address);
    let strangers = (0..100).filter_map(|n| admission.admit(Holder::Strangers, from(n), Load::Small));
    let strangers: Vec<_> = strangers.collect();
    assert_eq!(strangers.len(), 75);
    assert!(admission.admit(key("b"), from(200), Load::Small).is_some());
}

#[test]
fn uploads_that_wait_for_each_other_end_one_after_the_other() {
    let admission = Admission::new(1000, 100 * MIB);
    // Of different keys, so that no promise keeps them out: together they want 32 times 8 MiB.
    let mut uploads: Vec<_> = (0..32u8)
        .map(|n| {
            let permit = admission
                .admit(key(&n.to_string()), from(n), put(8 * MIB))
                .unwrap();
            (permit, 0)
        })
        .collect();
    let mut rounds = 0;
    while !uploads.is_empty() {
        let mut has_moved = false;
        for (permit, received) in &mut uploads {
            if permit.receive(MIB) {
                *received += 1;
                has_moved = true;
            }
        }
        uploads.retain(|(_, received)| *received < 8);
        assert!(has_moved, "{} uploads stand still", uploads.len());
        assert!(admission.in_flight().bytes <= 100 * MIB);
        rounds += 1;
    }
    assert!(rounds < 300, "{rounds}");
    assert_eq!(admission.in_flight(), InFlight::default());
    assert!(admission.table.lock().waiting.is_empty());
}

#[test]
fn what_counts_more_than_the_limit_comes_in_alone() {
    let admission = Admission::new(100, 4 * MIB);
    let mut alone = admission.admit(key("a"), from(1), put(1 << 30)).unwrap();
    assert!((0..1000).all(|_| alone.receive(MIB)));
    assert_eq!(admission.in_flight().bytes, 3 * MIB);
    assert!(admission.admit(key("a"), from(1), Load::Small).is_none());
    drop(alone);
    let copy = admission.admit(key("a"), from(1), Load::COPY).unwrap();
    assert_eq!(admission.in_flight().bytes, 3 * MIB);
    drop(copy);
    assert_eq!(admission.in_flight(), InFlight::default());
}
