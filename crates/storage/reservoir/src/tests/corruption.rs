use super::*;

#[tokio::test]
async fn a_flipped_bit_is_caught_by_the_read_and_refetched() {
    let (reservoir, source) = (reservoir(64 * MIB).await, FakeSource::new());
    let object = object("a", "1", 3 * MIB);
    check(&reservoir, &object, whole(&object), &source).await;
    assert!(reservoir.debug_corrupt_ram(&object, MIB + 70_000));
    check(&reservoir, &object, whole(&object), &source).await;
    assert_eq!(reservoir.stats().corrupt_ram_blocks, 1);
    assert_eq!(
        source.sent(),
        object.bytes + MIB,
        "the bad page was fetched again"
    );
    check(&reservoir, &object, whole(&object), &source).await;
    assert_eq!(reservoir.stats().corrupt_ram_blocks, 1);
}

#[tokio::test]
async fn a_read_whose_every_page_went_bad_still_ends_well() {
    let (reservoir, source) = (reservoir(64 * MIB).await, FakeSource::new());
    let object = object("a", "1", 8 * MIB);
    check(&reservoir, &object, whole(&object), &source).await;
    for page in 0..8 {
        assert!(reservoir.debug_corrupt_ram(&object, page * MIB + 5));
    }
    check(&reservoir, &object, whole(&object), &source).await;
    assert_eq!(reservoir.stats().corrupt_ram_blocks, 8);
}

#[tokio::test]
async fn a_read_checks_just_the_blocks_it_touches() {
    let (reservoir, source) = (reservoir(64 * MIB).await, FakeSource::new());
    let object = object("a", "1", MIB);
    check(&reservoir, &object, whole(&object), &source).await;
    assert!(reservoir.debug_corrupt_ram(&object, 0));
    check(&reservoir, &object, range(MIB - 10, MIB), &source).await;
    assert_eq!(reservoir.stats().corrupt_ram_blocks, 0);
}

#[tokio::test]
async fn the_scrub_finds_a_flipped_bit_that_nobody_reads() {
    let options = ReservoirOptions {
        scrub_period: Duration::from_millis(64),
        ..options(64 * MIB)
    };
    let (reservoir, source) = (Reservoir::open(options).await.unwrap(), FakeSource::new());
    let object = object("a", "1", 3 * MIB);
    check(&reservoir, &object, whole(&object), &source).await;
    let blocks_before = reservoir.stats().scrubbed_blocks;
    eventually("a clean pass", || {
        reservoir.stats().scrubbed_blocks >= blocks_before + 48
    })
    .await;
    assert_eq!(reservoir.stats().corrupt_ram_blocks, 0);
    assert!(reservoir.debug_corrupt_ram(&object, 2 * MIB + 1));
    eventually("the scrub", || reservoir.stats().corrupt_ram_blocks == 1).await;
    assert_eq!(
        reservoir.resident(&object).ram_bytes,
        2 * MIB,
        "the page is quarantined"
    );
    check(&reservoir, &object, whole(&object), &source).await;
    reservoir.shutdown(Duration::from_secs(1)).await;
}
