//! Budgets, waste and many hands at once.

use super::disk::{HoleIo, put_zeros};
use super::*;

/// A file that the journal's thread renames or removes after the listing counts nothing.
fn folder_bytes(dir: &Path) -> u64 {
    files(dir, "")
        .iter()
        .map(|path| std::fs::metadata(path).map_or(0, |metadata| metadata.len()))
        .sum()
}

/// Sizes from 4 KiB to 1 MiB, each power of two as likely as the next.
fn mixed_size(rng: &mut fastrand::Rng) -> u64 {
    let power = rng.f64().mul_add(8.0, 12.0);
    (power.exp2() as u64).clamp(4096, MIB)
}

#[tokio::test]
async fn mixed_sizes_waste_at_most_15_percent_of_the_budget() {
    let dir = tempfile::tempdir().unwrap();
    let budget_bytes = 64 * MIB;
    let store = open_on(Arc::new(HoleIo::default()), dir.path(), budget_bytes).await;
    let mut rng = fastrand::Rng::with_seed(11);
    let mut lowest = u64::MAX;
    for n in 0..4000 {
        put_zeros(&store, &object(&format!("o{n}"), mixed_size(&mut rng))).await;
        if n >= 1000 {
            lowest = lowest.min(store.stats().used_bytes);
        }
        if n % 500 == 0 {
            let held = folder_bytes(dir.path());
            assert!(held <= budget_bytes, "{held}");
        }
    }
    let stats = store.stats();
    assert!(
        lowest * 100 >= budget_bytes * 85,
        "at worst {lowest} of {budget_bytes} in use"
    );
    assert_eq!((stats.skipped_writes, stats.write_errors), (0, 0));
}

#[tokio::test]
async fn a_large_page_finds_room_among_small_ones() {
    let dir = tempfile::tempdir().unwrap();
    let store = open_on(Arc::new(HoleIo::default()), dir.path(), 8 * MIB).await;
    for n in 0..3000 {
        put_zeros(&store, &object(&format!("small{n}"), 4096)).await;
    }
    for n in 0..4 {
        let large = object(&format!("large{n}"), MIB);
        put_zeros(&store, &large).await;
        assert_eq!(store.lookup(&key_of(&large, 0)), Some(BlockMask(u16::MAX)));
    }
}

/// Readers, writers, removers and impatient ones on a tier a quarter of the size of what they use.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_hands_never_see_a_wrong_byte() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), 8 * MIB).await;
    let objects: Arc<Vec<_>> = Arc::new(
        (0..64u64)
            .map(|n| object(&format!("o{n}"), 1 + n * n * 300))
            .collect(),
    );
    let hands: Vec<_> = (0..6)
        .map(|hand| {
            let (store, objects) = (Arc::clone(&store), Arc::clone(&objects));
            tokio::spawn(async move { work(&store, &objects, hand).await })
        })
        .collect();
    let mut hits = 0;
    for hand in hands {
        hits += hand.await.unwrap();
    }
    let stats = store.stats();
    assert!(hits > 50, "{hits}");
    assert!(stats.evicted_pages > 50, "{stats:?}");
    assert_eq!(
        (stats.corrupt_blocks, stats.read_errors, stats.write_errors),
        (0, 0, 0)
    );
    drop(store);
    let store = open(dir.path(), 8 * MIB).await;
    assert_eq!(store.stats().pages, stats.pages);
    for object in objects.iter() {
        has(&store, object).await;
    }
    assert_eq!(store.stats().corrupt_blocks, 0);
}

async fn work(store: &NvmeStore, objects: &[Arc<ObjectVersion>], hand: u64) -> u64 {
    let mut rng = fastrand::Rng::with_seed(hand);
    let mut hits = 0;
    for _ in 0..250 {
        let object = &objects[rng.usize(..objects.len())];
        let page = rng.u32(..page_count(object.bytes) as u32);
        let full = BlockMask::full(page_bytes(object.bytes, PageIndex(page)));
        let some = BlockMask(rng.u16(..)).intersect(full);
        match rng.u32(..20) {
            0 => store.remove_object(&ObjectId::of(object)),
            1..4 => {
                let mut write = Box::pin(put_blocks(store, object, page, full));
                let _ = futures::poll!(&mut write);
            }
            4..10 => put_blocks(store, object, page, some).await,
            10..13 => put_blocks(store, object, page, full).await,
            _ => hits += u64::from(!get_blocks(store, object, page, some).await.is_empty()),
        }
    }
    hits
}
