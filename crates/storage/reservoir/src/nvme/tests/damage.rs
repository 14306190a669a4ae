//! Flipped bits, foreign files, torn journals: misses and set-aside files, never wrong bytes and never a
//! crash.

use std::os::unix::fs::FileExt;

use super::*;

fn flip(path: &Path, offset: u64) {
    let file = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[byte[0] ^ 0x10], offset).unwrap();
}

#[tokio::test]
async fn a_flipped_bit_costs_one_block_and_the_block_can_come_back() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), 16 * MIB).await;
    let object = object("o", MIB);
    put(&store, &object).await;
    flip(&files(dir.path(), ".pages")[0], 4096 + 3 * BLOCK_BYTES + 77);
    let good = BlockMask(!(1 << 3));
    assert_eq!(get_blocks(&store, &object, 0, BlockMask(u16::MAX)).await, good);
    assert_eq!(store.lookup(&key_of(&object, 0)), Some(good));
    assert_eq!(store.stats().corrupt_blocks, 1);
    drop(store);
    let store = open(dir.path(), 16 * MIB).await;
    assert_eq!(
        store.lookup(&key_of(&object, 0)),
        Some(good),
        "the removal is remembered"
    );
    put(&store, &object).await;
    assert!(has(&store, &object).await);
    drop(store);
    assert!(has(&*open(dir.path(), 16 * MIB).await, &object).await);
}

#[tokio::test]
async fn a_segment_cut_short_by_somebody_is_a_miss() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), 16 * MIB).await;
    let (first, second) = (object("first", MIB), object("second", MIB));
    put(&store, &first).await;
    put(&store, &second).await;
    store.shutdown().await;
    drop(store);
    let segment = std::fs::OpenOptions::new()
        .write(true)
        .open(&files(dir.path(), ".pages")[0])
        .unwrap();
    segment.set_len(4096 + MIB).unwrap();
    let store = open(dir.path(), 16 * MIB).await;
    assert!(has(&store, &first).await);
    assert!(!has(&store, &second).await);
}

/// An object that does not fit where the removed one lay: there it would replace bytes that a journal torn
/// before the removal still names.
fn late() -> Arc<ObjectVersion> {
    object("late", 9000)
}

/// Small pages, so that the journal has many records and few bytes. The journal is begun by an empty store: one
/// that is begun while pages come in may hold their records twice, and damage to the second goes unnoticed.
async fn small_store(dir: &Path) -> Vec<Arc<ObjectVersion>> {
    let objects: Vec<_> = (0..4).map(|n| object(&format!("o{n}"), 5000 + n)).collect();
    open(dir, 4 * MIB).await.shutdown().await;
    let store = open(dir, 4 * MIB).await;
    for object in &objects {
        put(&store, object).await;
    }
    store.remove_object(&ObjectId::of(&objects[1]));
    put(&store, &late()).await;
    objects
}

#[tokio::test]
async fn a_journal_torn_at_any_byte_loses_only_its_end() {
    let dir = tempfile::tempdir().unwrap();
    let objects = small_store(dir.path()).await;
    let journal = journal_of(dir.path());
    let whole = std::fs::read(&journal).unwrap();
    let mut pages_before = 0;
    for end in record::HEADER_BYTES..=whole.len() {
        std::fs::write(&journal, &whole[..end]).unwrap();
        let store = open(dir.path(), 4 * MIB).await;
        let mut pages = 0;
        for object in objects.iter().chain([&late()]) {
            pages += u64::from(has(&store, object).await);
        }
        let stats = store.stats();
        assert_eq!(stats.pages, pages, "every page that the journal names is good");
        assert_eq!(
            (stats.corrupt_blocks, stats.read_errors, stats.set_aside_files),
            (0, 0, 0)
        );
        assert!(
            pages.abs_diff(pages_before) <= 1,
            "one record more, one page more or less"
        );
        pages_before = pages;
        drop(store);
    }
    assert_eq!(pages_before, 4);
}

#[tokio::test]
async fn a_flipped_bit_anywhere_in_the_journal_is_never_a_wrong_byte() {
    let dir = tempfile::tempdir().unwrap();
    let mut objects = small_store(dir.path()).await;
    objects.push(late());
    let journal = journal_of(dir.path());
    let whole = std::fs::read(&journal).unwrap();
    let undamaged = present_after(dir.path(), &journal, &whole, &objects, 0).await;
    for offset in 0..whole.len() {
        let mut damaged = whole.clone();
        damaged[offset] ^= 1 << (offset % 8);
        let set_aside_files = u64::from(offset < record::HEADER_BYTES);
        let found = present_after(dir.path(), &journal, &damaged, &objects, set_aside_files).await;
        // The removal may be the last record; without it the removed object is back, with its own bytes.
        assert_ne!(found, undamaged, "the flip at {offset} went unnoticed");
    }
}

/// Returns which objects a store has that is opened with this journal; each is compared byte by byte.
async fn present_after(
    dir: &Path,
    journal: &Path,
    content: &[u8],
    objects: &[Arc<ObjectVersion>],
    set_aside_files: u64,
) -> Vec<bool> {
    std::fs::write(journal, content).unwrap();
    let store = open(dir, 4 * MIB).await;
    assert_eq!(store.stats().set_aside_files, set_aside_files);
    let mut present = Vec::new();
    for object in objects {
        present.push(has(&store, object).await);
    }
    drop(store);
    for path in files(dir, "index-") {
        std::fs::remove_file(path).unwrap();
    }
    present
}

#[tokio::test]
async fn a_journal_torn_in_the_middle_goes_on_from_there() {
    let dir = tempfile::tempdir().unwrap();
    let objects = small_store(dir.path()).await;
    let journal = journal_of(dir.path());
    let bytes = std::fs::metadata(&journal).unwrap().len();
    std::fs::OpenOptions::new()
        .write(true)
        .open(&journal)
        .unwrap()
        .set_len(bytes - 3)
        .unwrap();
    let store = open(dir.path(), 4 * MIB).await;
    put(&store, &object("next", MIB)).await;
    drop(store);
    let store = open(dir.path(), 4 * MIB).await;
    assert!(has(&store, &objects[0]).await && has(&store, &object("next", MIB)).await);
}

#[tokio::test]
async fn damaged_and_foreign_files_are_set_aside() {
    let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let object = object("o", MIB);
    for dir in [dir.path(), other.path()] {
        let store = open(dir, 16 * MIB).await;
        put(&store, &object).await;
        store.shutdown().await;
    }
    let segment = files(dir.path(), ".pages")[0].clone();
    let own = std::fs::read(&segment).unwrap();
    let mut damaged = own.clone();
    damaged[20] ^= 1;
    let foreign = std::fs::read(&files(other.path(), ".pages")[0]).unwrap();
    for (round, bytes) in [damaged, foreign, b"holiday pictures".to_vec()]
        .into_iter()
        .enumerate()
    {
        std::fs::write(&segment, &bytes).unwrap();
        let store = open(dir.path(), 16 * MIB).await;
        assert_eq!(store.stats().set_aside_files, 1);
        assert!(!has(&store, &object).await);
        let aside = dir.path().join(format!("seg-00000.pages.set-aside-{round}"));
        assert!(std::fs::read(aside).unwrap() == bytes);
        put(&store, &object).await;
        assert!(has(&store, &object).await);
        store.shutdown().await;
    }
    let journal = journal_of(dir.path());
    std::fs::copy(journal_of(other.path()), &journal).unwrap();
    let store = open(dir.path(), 16 * MIB).await;
    assert_eq!((store.stats().set_aside_files, store.stats().pages), (1, 0));
    assert_eq!(files(dir.path(), ".log.set-aside-").len(), 1);
}

#[tokio::test]
async fn without_a_good_journal_the_segments_are_used_again() {
    let dir = tempfile::tempdir().unwrap();
    let object = object("o", MIB);
    let store = open(dir.path(), 16 * MIB).await;
    put(&store, &object).await;
    store.shutdown().await;
    drop(store);
    std::fs::write(journal_of(dir.path()), "nonsense").unwrap();
    let store = open(dir.path(), 16 * MIB).await;
    assert_eq!((store.stats().pages, store.stats().set_aside_files), (0, 1));
    put(&store, &object).await;
    assert!(has(&store, &object).await);
    assert_eq!(files(dir.path(), ".pages").len(), 1);
}

#[tokio::test]
async fn only_the_newest_set_aside_files_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    for _ in 0..12 {
        let store = open(dir.path(), 4 * MIB).await;
        store.shutdown().await;
        std::fs::write(journal_of(dir.path()), "nonsense").unwrap();
    }
    assert_eq!(files(dir.path(), "set-aside").len(), 8);
}

#[tokio::test]
async fn strange_neighbours_are_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    for name in [
        "notes.txt",
        "seg-1.pages",
        "seg-x.pages",
        "index-+1.log",
        "other.tmp",
    ] {
        std::fs::write(dir.path().join(name), name).unwrap();
    }
    std::fs::create_dir(dir.path().join("index-0.log")).unwrap();
    let store = open(dir.path(), 4 * MIB).await;
    assert_eq!(store.stats().set_aside_files, 1, "the folder with a name of ours");
    put(&store, &object("o", MIB)).await;
    assert!(has(&store, &object("o", MIB)).await);
    for name in [
        "notes.txt",
        "seg-1.pages",
        "seg-x.pages",
        "index-+1.log",
        "other.tmp",
    ] {
        assert_eq!(std::fs::read_to_string(dir.path().join(name)).unwrap(), name);
    }
}
