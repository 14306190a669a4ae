//! Working sets and for the memory of pages.

use super::*;
use crate::ObjectId;

/// Reads one block of each object in turn, and then all of the first; in how many parts that lies.
async fn parts_after_single_blocks(is_dense: bool) -> usize {
    let (reservoir, source) = (reservoir(64 * MIB).await, FakeSource::new());
    let (member, other) = (object("member", "1", MIB), object("other", "1", MIB));
    let mut guard = reservoir.working_set(1);
    guard.add(MIB, is_dense, [ObjectId::of(&member), ObjectId::of(&other)]);
    for block in [9, 3, 4, 12] {
        let place = range(block * 64 * KIB, block * 64 * KIB + 1000);
        check(&reservoir, &member, place, &source).await;
        check(&reservoir, &other, place, &source).await;
    }
    check(&reservoir, &member, whole(&member), &source).await;
    let leased = reservoir
        .lease(&member, whole(&member), &shared(&source))
        .await
        .unwrap();
    leased.parts().len()
}

#[tokio::test]
async fn a_page_that_is_read_whole_in_the_end_lies_in_one_piece() {
    assert_eq!(parts_after_single_blocks(true).await, 1);
    assert!(
        parts_after_single_blocks(false).await > 1,
        "memory by the block lies apart"
    );
}

#[tokio::test]
async fn no_page_goes_for_bytes_that_nobody_asked_for() {
    let (reservoir, source) = (reservoir(4 * MIB).await, FakeSource::new());
    let (there, member) = (
        object("there", "1", 3 * MIB + 512 * KIB),
        object("member", "1", 3 * MIB),
    );
    check(&reservoir, &there, whole(&there), &source).await;
    let mut guard = reservoir.working_set(1);
    guard.add(MIB, true, [ObjectId::of(&member)]);
    for page in 0..3 {
        check(&reservoir, &member, range(page * MIB, page * MIB + 1000), &source).await;
    }
    assert_eq!(reservoir.stats().evicted_ram_pages, 0);
}

#[tokio::test]
async fn a_working_set_that_ended_gives_no_memory() {
    let (reservoir, source) = (reservoir(64 * MIB).await, FakeSource::new());
    let member = object("member", "1", MIB);
    let mut guard = reservoir.working_set(1);
    guard.add(MIB, true, [ObjectId::of(&member)]);
    drop(guard);
    check(&reservoir, &member, range(0, 1000), &source).await;
    assert_eq!(reservoir.stats().ram_used_bytes, 64 * KIB);
}
