use super::*;
use forebay_core::Tier;

async fn with_nvme(dir: &std::path::Path, ram_bytes: u64) -> Arc<Reservoir> {
    let nvme = ReservoirOptions {
        nvme_bytes: 256 * MIB,
        nvme_dir: dir.to_owned(),
        ..options(ram_bytes)
    };
    Reservoir::open(nvme).await.unwrap()
}

/// Reads an object and waits until the reserve of free memory is there again.
async fn check_slowly(reservoir: &Arc<Reservoir>, object: &ObjectVersion, source: &Arc<FakeSource>) {
    check(reservoir, object, whole(object), source).await;
    eventually("the demoter has made room", || {
        reservoir.ram.arena.available_bytes() >= 2 * MIB
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn evicted_pages_come_back_from_nvme() {
    let (dir, source) = (tempfile::tempdir().unwrap(), FakeSource::new());
    let reservoir = with_nvme(dir.path(), 64 * MIB).await;
    let objects: Vec<_> = (0..90)
        .map(|number| object(&format!("object-{number}"), "1", MIB))
        .collect();
    for object in objects.iter().chain(&objects) {
        check_slowly(&reservoir, object, &source).await;
    }
    let stats = reservoir.stats();
    assert_eq!(stats.demotions_dropped, 0, "there was time to write every page");
    assert!(stats.served_nvme_bytes >= 27 * MIB, "{stats:?}");
    assert_eq!(source.sent(), 90 * MIB, "nothing is fetched twice");
    reservoir.shutdown(Duration::from_secs(10)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_after_shutdown_is_warm() {
    let (dir, source) = (tempfile::tempdir().unwrap(), FakeSource::new());
    let object = object("a", "1", 5 * MIB + 100);
    let reservoir = with_nvme(dir.path(), 32 * MIB).await;
    check(&reservoir, &object, whole(&object), &source).await;
    reservoir.shutdown(Duration::from_secs(10)).await;
    drop(reservoir);
    let reservoir = with_nvme(dir.path(), 32 * MIB).await;
    assert_eq!(reservoir.resident(&object).nvme_bytes, object.bytes);
    let pieces = pieces(&reservoir, &object, whole(&object), &source)
        .await
        .unwrap();
    assert!(pieces.iter().all(|piece| piece.tier == Tier::Nvme));
    check(&reservoir, &object, whole(&object), &source).await;
    assert_eq!(source.sent(), object.bytes);
    reservoir.forget(&bucket(), &object.key);
    assert_eq!(reservoir.resident(&object), crate::Residency::default());
    reservoir.shutdown(Duration::from_secs(10)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pinned_objects_are_pinned_on_nvme_too() {
    let (dir, source) = (tempfile::tempdir().unwrap(), FakeSource::new());
    let reservoir = with_nvme(dir.path(), 16 * MIB).await;
    let object = object("pinned/a", "1", 15 * MIB);
    reservoir.pin(&bucket(), "pinned/");
    check_slowly(&reservoir, &object, &source).await;
    let scan = super::object("scan", "1", 40 * MIB);
    check_slowly(&reservoir, &scan, &source).await;
    eventually("what is past the cap in ram is pinned on nvme", || {
        let on_nvme = reservoir.resident(&object).nvme_bytes;
        on_nvme > 0 && reservoir.stats().pinned_bytes == 12 * MIB + on_nvme
    })
    .await;
    assert_eq!(
        reservoir.evict(&bucket(), "pinned/"),
        crate::CacheChange::default()
    );
    assert_eq!(reservoir.unpin(&bucket(), "pinned/").objects, 1);
    assert_eq!(reservoir.stats().pinned_bytes, 0);
    reservoir.shutdown(Duration::from_secs(10)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_reserve_comes_back_after_all_pages_were_held() {
    let (dir, source) = (tempfile::tempdir().unwrap(), FakeSource::new());
    let reservoir = with_nvme(dir.path(), 8 * MIB).await;
    let object = object("a", "1", 8 * MIB);
    let held = pieces(&reservoir, &object, whole(&object), &source)
        .await
        .unwrap();
    assert!(reservoir.ram.is_reserve_low());
    // Whoever got the call, the demoter or this test: no later read will repeat it.
    let _ = tokio::time::timeout(Duration::from_millis(20), reservoir.ram.reserve_is_low()).await;
    drop(held);
    eventually("the reserve", || !reservoir.ram.is_reserve_low()).await;
    reservoir.shutdown(Duration::from_secs(10)).await;
}
