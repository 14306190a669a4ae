//! The books of the RAM tier about its pages agree with what is there, also when two things happen at once.

use forebay_core::{BlockMask, PageIndex};
use futures::StreamExt;

use super::*;
use crate::Priority;
use crate::fill::FillControl;

/// Evicts until nothing may go; the pages that are left.
fn left_after_eviction(reservoir: &Reservoir) -> u64 {
    while reservoir.ram.evict_one().is_some() {}
    reservoir.stats().ram_pages
}

#[tokio::test]
async fn a_page_that_takes_the_place_of_a_bad_one_can_be_evicted() {
    let (reservoir, source) = (reservoir(16 * MIB).await, FakeSource::new());
    let object = object("a", "1", MIB);
    check(&reservoir, &object, whole(&object), &source).await;
    let entry = reservoir.ram.entry(&object);
    let bad = entry.page(PageIndex(0)).unwrap();
    // One reader has taken the bad page out of the index; before it goes on, another fills the page anew.
    reservoir.ram.index.take(&bad.key, |_| true).unwrap();
    check(&reservoir, &object, whole(&object), &source).await;
    reservoir.ram.release(&bad);
    drop(bad);
    assert_eq!(left_after_eviction(&reservoir), 0);
}

#[tokio::test]
async fn a_page_that_is_pinned_while_it_is_being_evicted_stays() {
    let (reservoir, source) = (reservoir(16 * MIB).await, FakeSource::new());
    let object = object("a", "1", MIB);
    check(&reservoir, &object, whole(&object), &source).await;
    let victim = reservoir.ram.next_victim(crate::TrustDomain::DEFAULT).unwrap();
    let present = victim.frame.present();
    reservoir.pin(&bucket(), "");
    assert!(!reservoir.ram.finish_eviction(victim, present));
    assert_eq!(left_after_eviction(&reservoir), 1);
    reservoir.unpin(&bucket(), "");
    assert_eq!(left_after_eviction(&reservoir), 0);
}

#[tokio::test]
async fn a_page_that_got_no_memory_goes_with_the_reader_that_waited_for_it() {
    let (reservoir, source) = (reservoir(16 * MIB).await, FakeSource::new());
    let object = object("a", "1", MIB);
    let entry = reservoir.ram.entry(&object);
    let page = reservoir.ram.index.page(&entry, PageIndex(0));
    let control = FillControl::new(&shared(&FakeSource::new()), Priority::Demand);
    let claim = page.claim(BlockMask::full(MIB), &control).unwrap();
    let mut reader = reservoir.read(&object, whole(&object), &shared(&source));
    assert!(futures::poll!(reader.next()).is_pending());
    // Whoever holds the claim finds no memory, and the reader goes away before it hears of it.
    claim.fail_no_memory();
    drop((page, reader));
    assert_eq!(reservoir.stats().ram_pages, 0);
}
