//! Everything at once on little memory, then the books: whatever is in RAM can be evicted, and nothing is
//! left behind.

use std::sync::Arc;

use futures::TryStreamExt;
use futures::future::join_all;

use super::*;

const OBJECTS: u64 = 12;
const STEPS: u64 = 40;

fn churned(number: u64) -> ObjectVersion {
    object(
        &format!("{}/{number}", number % 3),
        "1",
        200 * KIB + number * 731 * KIB,
    )
}

/// Reads, breaks off, forgets, evicts, pins and writes at random.
async fn churn(reservoir: Arc<Reservoir>, source: Arc<FakeSource>, seed: u64, steps: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    for _ in 0..steps {
        let object = churned(random.u64(..OBJECTS));
        let prefix = format!("{}/", random.u64(..3));
        match random.u32(..40) {
            0 => reservoir.forget(&object.bucket, &object.key),
            1 => drop(reservoir.evict(&bucket(), &prefix)),
            2 => drop(reservoir.pin(&bucket(), &prefix)),
            3 => drop(reservoir.unpin(&bucket(), &prefix)),
            5 => {
                let mut fill = reservoir.begin_fill(random.bool().then_some(object.bytes));
                fill.push(&content(&object, whole(&object)).into()).await;
                fill.commit(&object);
            }
            step => {
                let start = random.u64(..object.bytes);
                let wanted = if step < 20 {
                    whole(&object)
                } else {
                    range(start, object.bytes)
                };
                let pieces_max = if step % 2 == 0 {
                    usize::MAX
                } else {
                    random.usize(..8)
                };
                read_some(&reservoir, &source, &object, wanted, pieces_max).await;
            }
        }
    }
}

async fn read_some(
    reservoir: &Arc<Reservoir>,
    source: &Arc<FakeSource>,
    object: &ObjectVersion,
    wanted: ByteRange,
    pieces_max: usize,
) {
    let mut stream = reservoir.read(object, wanted, &shared(source));
    for _ in 0..pieces_max {
        match stream.try_next().await {
            Ok(Some(piece)) => {
                let end = piece.start + piece.bytes.len() as u64;
                assert!(piece.bytes[..] == content(object, range(piece.start, end)));
            }
            Ok(None) => return,
            Err(error) => panic!("{error:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn after_any_churn_all_memory_can_be_evicted_and_nothing_is_left() {
    let options = ReservoirOptions {
        read_ahead_bytes_max: 2 * MIB,
        ..options(16 * MIB)
    };
    let (reservoir, source) = (Reservoir::open(options).await.unwrap(), FakeSource::new());
    let tasks = (0..16).map(|seed| {
        let (reservoir, source) = (Arc::clone(&reservoir), Arc::clone(&source));
        tokio::spawn(churn(reservoir, source, seed, STEPS))
    });
    for task in join_all(tasks).await {
        task.unwrap();
    }
    reservoir.unpin(&bucket(), "");
    let counters = &reservoir.counters;
    eventually("the last fill", || counters.read_ahead_bytes.get() == 0).await;
    eventually("all memory to go", || {
        while reservoir.ram.evict_one().is_some() {}
        reservoir.stats().ram_used_bytes == 0
    })
    .await;
    let stats = reservoir.stats();
    assert_eq!(
        (stats.ram_pages, stats.leased_pages, stats.pinned_bytes),
        (0, 0, 0)
    );
    assert_eq!(
        (counters.reserved_bytes.get(), counters.write_fill_bytes.get()),
        (0, 0)
    );
    let entries = |shard| reservoir.ram.index.entries(shard).len();
    assert_eq!((0..crate::index::SHARDS).map(entries).sum::<usize>(), 0);
}
