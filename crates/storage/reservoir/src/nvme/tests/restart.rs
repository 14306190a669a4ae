//! Restarts: clean ends, abrupt ends, compaction, other budgets, many pages.

use futures::future::join_all;

use super::disk::{HoleIo, put_zeros};
use super::*;
use crate::nvme::journal::read_records;

#[tokio::test]
async fn content_survives_a_clean_restart() {
    let dir = tempfile::tempdir().unwrap();
    let objects: Vec<_> = (0..20)
        .map(|n| object(&format!("o{n}"), 1 + n * 70_000))
        .collect();
    let store = open(dir.path(), 64 * MIB).await;
    for object in &objects {
        put(&store, object).await;
    }
    let before = store.stats();
    store.shutdown().await;
    drop(store);
    let store = open(dir.path(), 64 * MIB).await;
    let after = store.stats();
    assert_eq!((after.pages, after.used_bytes), (before.pages, before.used_bytes));
    for object in &objects {
        assert!(has(&store, object).await);
    }
    assert_eq!(store.objects().len(), objects.len());
}

#[tokio::test]
async fn content_survives_an_end_without_shutdown() {
    let dir = tempfile::tempdir().unwrap();
    let (first, second) = (object("first", 2 * MIB), object("second", 70_000));
    let store = open(dir.path(), 16 * MIB).await;
    put(&store, &first).await;
    drop(store);
    let store = open(dir.path(), 16 * MIB).await;
    put(&store, &second).await;
    put_blocks(&store, &object("third", MIB), 0, BlockMask(0b1010)).await;
    drop(store);
    let store = open(dir.path(), 16 * MIB).await;
    assert!(has(&store, &first).await && has(&store, &second).await);
    assert_eq!(
        get_blocks(&store, &object("third", MIB), 0, BlockMask(0xff)).await,
        BlockMask(0b1010)
    );
    assert_eq!(store.stats().corrupt_blocks, 0);
}

#[tokio::test]
async fn the_journal_stays_small_under_churn_and_still_tells_the_truth() {
    let dir = tempfile::tempdir().unwrap();
    let store = open_on(Arc::new(HoleIo::default()), dir.path(), 8 * MIB).await;
    for n in 0..12_000 {
        put_zeros(&store, &object(&format!("key-{n}"), 4096)).await;
    }
    let stats = store.stats();
    assert!(stats.evicted_pages > 10_000);
    assert!(
        stats.journal_bytes <= store.shares.journal_bytes,
        "{}",
        stats.journal_bytes
    );
    let mut pages: Vec<_> = store
        .objects()
        .into_iter()
        .map(|(object, _)| key_of(&object, 0))
        .collect();
    drop(store);
    let store = open_on(Arc::new(HoleIo::default()), dir.path(), 8 * MIB).await;
    let mut after: Vec<_> = store
        .objects()
        .into_iter()
        .map(|(object, _)| key_of(&object, 0))
        .collect();
    pages.sort_unstable();
    after.sort_unstable();
    assert!(
        pages == after,
        "{} pages before, {} after",
        pages.len(),
        after.len()
    );
}

#[tokio::test]
async fn a_smaller_budget_cuts_files_and_keeps_what_fits() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), 32 * MIB).await;
    let objects: Vec<_> = (0..24).map(|n| object(&format!("o{n}"), MIB)).collect();
    for object in &objects {
        put(&store, object).await;
    }
    store.shutdown().await;
    drop(store);
    let store = open(dir.path(), 8 * MIB).await;
    let segment = std::fs::metadata(&files(dir.path(), ".pages")[0]).unwrap();
    assert!(segment.len() <= 8 * MIB);
    let mut kept = 0;
    for object in &objects {
        kept += u32::from(has(&store, object).await);
    }
    assert!((5..8).contains(&kept), "{kept}");
    for n in 0..8 {
        put(&store, &object(&format!("new{n}"), MIB)).await;
    }
    assert!(has(&store, &object("new7", MIB)).await);
    assert_eq!(store.stats().corrupt_blocks, 0);
}

#[tokio::test]
async fn an_old_journal_left_by_a_compaction_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), 8 * MIB).await;
    let object = object("o", MIB);
    put(&store, &object).await;
    settle(&store).await;
    let old = journal_of(dir.path());
    let stale = std::fs::read(&old).unwrap();
    store.remove_object(&ObjectId::of(&object));
    store.shutdown().await;
    drop(store);
    assert_ne!(journal_of(dir.path()), old);
    std::fs::write(&old, stale).unwrap();
    std::fs::write(dir.path().join("index-9.tmp"), "half a draft").unwrap();
    let store = open(dir.path(), 8 * MIB).await;
    assert_eq!(store.lookup(&key_of(&object, 0)), None);
    assert!(!old.exists() && !dir.path().join("index-9.tmp").exists());
    assert_eq!(store.stats().set_aside_files, 0);
}

/// Zeros instead of contents: the records and the index are what is large here, and the files stay sparse.
#[tokio::test]
async fn a_hundred_thousand_small_pages_are_all_hits_after_a_restart() {
    const PAGES: u64 = 100_000;
    let (dir, raw) = (tempfile::tempdir().unwrap(), Arc::new(HoleIo::default()));
    let budget_bytes = PAGES * (16 << 10) * 5 / 4;
    let store = open_on(Arc::clone(&raw) as _, dir.path(), budget_bytes).await;
    let objects: Vec<_> = (0..PAGES)
        .map(|n| object(&format!("train/part-{n:08}.bin"), 16 << 10))
        .collect();
    for some in objects.chunks(100) {
        join_all(some.iter().map(|object| put_zeros(&store, object))).await;
    }
    drop(store);
    let mut records = 0;
    read_records(&journal_of(dir.path()), |_| records += 1).unwrap();
    assert_eq!(records, 2 * PAGES);
    let store = open_on(raw, dir.path(), budget_bytes).await;
    let stats = store.stats();
    assert_eq!((stats.pages, stats.used_bytes), (PAGES, PAGES * (16 << 10)));
    assert!(
        objects
            .iter()
            .all(|object| store.lookup(&key_of(object, 0)) == Some(BlockMask(1)))
    );
    for object in objects.iter().step_by(97) {
        let read = store
            .read(&key_of(object, 0), BlockMask(1))
            .await
            .unwrap()
            .unwrap();
        assert!(read.block(0).unwrap().iter().all(|&byte| byte == 0));
    }
    assert_eq!(store.stats().corrupt_blocks, 0);
}
