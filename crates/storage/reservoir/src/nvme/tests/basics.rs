//! Reads return the bytes that were written, and only those.

use super::disk::GateIo;
use super::*;
use crate::eviction::S3Fifo;

#[tokio::test]
async fn every_size_comes_back_byte_for_byte() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), 32 * MIB).await;
    for bytes in [
        1,
        4095,
        4096,
        4097,
        65_535,
        65_536,
        65_537,
        MIB - 1,
        MIB,
        MIB + 1,
        3 * MIB + 17,
    ] {
        let object = object(&format!("o{bytes}"), bytes);
        put(&store, &object).await;
        assert!(has(&store, &object).await, "{bytes}");
    }
    assert_eq!(store.stats().corrupt_blocks, 0);
}

#[tokio::test]
async fn any_subset_of_blocks_can_be_written_and_read() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), 64 * MIB).await;
    let mut rng = fastrand::Rng::with_seed(1);
    for n in 0..40 {
        let object = object(&format!("o{n}"), MIB - 100);
        let mut present = BlockMask::EMPTY;
        for _ in 0..4 {
            let blocks = BlockMask(rng.u16(..));
            put_blocks(&store, &object, 0, blocks).await;
            present = present.union(blocks);
            let wanted = BlockMask(rng.u16(..));
            assert_eq!(
                get_blocks(&store, &object, 0, wanted).await,
                wanted.intersect(present)
            );
        }
        assert_eq!(store.lookup(&key_of(&object, 0)).unwrap_or_default(), present);
    }
}

#[tokio::test]
async fn blocks_that_are_there_are_not_written_again() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), 8 * MIB).await;
    let object = object("o", MIB);
    put_blocks(&store, &object, 0, BlockMask(0b0101)).await;
    settle(&store).await;
    let journal_bytes = store.stats().journal_bytes;
    put_blocks(&store, &object, 0, BlockMask(0b0100)).await;
    settle(&store).await;
    assert_eq!(store.stats().journal_bytes, journal_bytes);
    put_blocks(&store, &object, 0, BlockMask(0b0111)).await;
    assert_eq!(store.stats().used_bytes, 3 * BLOCK_BYTES);
    assert_eq!(store.index.lock().space.taken_units(), 3 * 16);
    assert_eq!(
        get_blocks(&store, &object, 0, BlockMask(u16::MAX)).await,
        BlockMask(0b0111)
    );
}

#[tokio::test]
async fn bytes_that_flipped_in_memory_are_not_kept() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), 8 * MIB).await;
    let object = object("o", MIB);
    let good = content(&object, 0);
    let mut flipped = good.to_vec();
    flipped[3 * BLOCK_BYTES as usize + 5] ^= 4;
    let error = store
        .write(
            &object,
            PageIndex(0),
            BlockMask(u16::MAX),
            flipped.into(),
            checksums(&good),
        )
        .await
        .unwrap_err();
    assert_eq!(error.kind(), Kind::Checksum);
    assert_eq!(store.lookup(&key_of(&object, 0)), None);
    assert_eq!(store.index.lock().space.taken_units(), 0);
}

#[tokio::test]
async fn blocks_past_the_end_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), 8 * MIB).await;
    let object = object("o", BLOCK_BYTES + 1);
    let bytes = content(&object, 0);
    for (page, blocks, bytes) in [
        (0, BlockMask(0b111), bytes.clone()),
        (1, BlockMask(0b1), bytes.clone()),
        (0, BlockMask(0b11), bytes.slice(..BLOCK_BYTES as usize)),
    ] {
        let error = store
            .write(&object, PageIndex(page), blocks, bytes, [0; 16])
            .await
            .unwrap_err();
        assert_eq!(error.kind(), Kind::InvalidInput);
    }
}

#[tokio::test]
async fn removed_objects_are_gone_and_their_room_is_free() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), 8 * MIB).await;
    let (gone, kept) = (object("gone", 2 * MIB), object("kept", MIB));
    put(&store, &gone).await;
    put(&store, &kept).await;
    store.remove_object(&ObjectId::of(&gone));
    assert_eq!(store.lookup(&key_of(&gone, 0)), None);
    assert_eq!(store.objects(), [(Arc::clone(&kept), MIB)]);
    settle(&store).await;
    store.index.lock().reclaim();
    assert_eq!(store.index.lock().space.taken_units(), 256);
    drop(store);
    let store = open(dir.path(), 8 * MIB).await;
    assert_eq!(store.lookup(&key_of(&gone, 1)), None);
    assert!(has(&store, &kept).await);
}

#[tokio::test]
async fn a_write_under_way_does_not_bring_a_removed_object_back() {
    let (dir, gate) = (tempfile::tempdir().unwrap(), Arc::new(GateIo::default()));
    let store = open_on(Arc::clone(&gate) as _, dir.path(), 8 * MIB).await;
    let object = object("o", MIB);
    gate.shut();
    let mut write = Box::pin(put(&store, &object));
    assert!(futures::poll!(&mut write).is_pending());
    store.remove_object(&ObjectId::of(&object));
    gate.open();
    write.await;
    assert_eq!(store.lookup(&key_of(&object, 0)), None);
    put(&store, &object).await;
    assert!(has(&store, &object).await);
}

#[tokio::test]
async fn a_write_dropped_in_the_middle_leaves_nothing() {
    let (dir, gate) = (tempfile::tempdir().unwrap(), Arc::new(GateIo::default()));
    let store = open_on(Arc::clone(&gate) as _, dir.path(), 64 * MIB).await;
    gate.shut();
    for n in 0..20 {
        let object = object(&format!("o{n}"), MIB);
        let mut write = Box::pin(put(&store, &object));
        assert!(futures::poll!(&mut write).is_pending());
    }
    gate.open();
    store.shutdown().await;
    let mut index = store.index.lock();
    index.reclaim();
    assert_eq!((index.page_count(), index.space.taken_units()), (0, 0));
}

#[tokio::test]
async fn pinned_objects_stay_and_unpinned_ones_go() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), 8 * MIB).await;
    let (early, late) = (object("early", 2 * MIB), object("late", MIB));
    put(&store, &early).await;
    store.set_pinned(&ObjectId::of(&early), true);
    store.set_pinned(&ObjectId::of(&late), true);
    put(&store, &late).await;
    for n in 0..20 {
        put(&store, &object(&format!("filler{n}"), MIB)).await;
    }
    assert!(has(&store, &early).await && has(&store, &late).await);
    assert_eq!(store.stats().pinned_bytes, 3 * MIB);
    store.set_pinned(&ObjectId::of(&early), false);
    for n in 20..60 {
        put(&store, &object(&format!("filler{n}"), MIB)).await;
    }
    assert!(!has(&store, &early).await && has(&store, &late).await);
}

#[tokio::test]
async fn a_tier_full_of_pins_leaves_writes_out() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), 4 * MIB).await;
    for n in 0..6 {
        let object = object(&format!("o{n}"), MIB);
        store.set_pinned(&ObjectId::of(&object), true);
        put(&store, &object).await;
    }
    let stats = store.stats();
    assert_eq!(
        (stats.pages, stats.skipped_writes, stats.evicted_pages),
        (3, 3, 0)
    );
}

#[tokio::test]
async fn a_second_opener_is_told_that_the_folder_is_in_use() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), 8 * MIB).await;
    let error = NvmeStore::open(options(dir.path(), 8 * MIB), Box::new(S3Fifo::new()))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), Kind::Busy);
    assert!(error.to_string().contains("in use"), "{error}");
    store.shutdown().await;
    open(dir.path(), 8 * MIB).await;
}

#[tokio::test]
async fn after_shutdown_reads_miss_and_writes_do_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), 8 * MIB).await;
    let object = object("o", MIB);
    put(&store, &object).await;
    store.shutdown().await;
    store.shutdown().await;
    assert!(
        store
            .read(&key_of(&object, 0), BlockMask(1))
            .await
            .unwrap()
            .is_none()
    );
    put(&store, &self::object("other", MIB)).await;
    assert_eq!(store.stats().pages, 1);
}

#[tokio::test]
async fn a_budget_too_small_to_work_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let error = NvmeStore::open(options(dir.path(), 1000), Box::new(S3Fifo::new()))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), Kind::InvalidInput);
}

#[tokio::test]
async fn many_small_pages_do_not_outgrow_the_memory_of_the_index() {
    let dir = tempfile::tempdir().unwrap();
    let index_bytes_max = 200 << 10;
    let options = NvmeOptions {
        index_bytes_max,
        ..options(dir.path(), 64 * MIB)
    };
    let store = NvmeStore::open(options, Box::new(S3Fifo::new())).await.unwrap();
    let objects: Vec<_> = (0..1000).map(|n| object(&format!("o{n}"), 100)).collect();
    for object in &objects {
        put(&store, object).await;
    }
    let record_bytes = store.index.lock().totals().record_bytes;
    assert!(
        record_bytes * HEAP_PER_RECORD_BYTE <= index_bytes_max,
        "{record_bytes}"
    );
    assert!(store.stats().evicted_pages > 0);
    assert!(has(&store, &objects[999]).await, "the newest is there");
}
