//! Random operations by several tasks under eviction pressure; every byte is compared with what the object
//! should hold.

use bytes::Bytes;

use super::*;

const OBJECTS: u64 = 24;

/// Sizes from one byte to several pages; each object has its own.
fn some_object(random: &mut fastrand::Rng) -> ObjectVersion {
    let number = random.u64(..OBJECTS);
    let bytes = [1, 4096, 65_536, 65_537, 300_000, MIB, MIB + 1, 5 * MIB + 999][(number % 8) as usize];
    object(&format!("object-{number}"), &random.u8(..3).to_string(), bytes)
}

async fn step(reservoir: &Arc<Reservoir>, source: &Arc<FakeSource>, random: &mut fastrand::Rng) {
    let object = some_object(random);
    match random.u8(..20) {
        0 => reservoir.forget(&object.bucket, &object.key),
        1 => reservoir.forget_others(&object),
        2 => {
            let hint = random.bool().then_some(object.bytes);
            let mut fill = reservoir.begin_fill(hint);
            for chunk in content(&object, whole(&object)).chunks(random.usize(1..200_000)) {
                fill.push(&Bytes::copy_from_slice(chunk)).await;
            }
            if random.bool() {
                fill.commit(&object);
            }
        }
        3 => {
            let prefix = format!("object-{}", random.u8(..3));
            if random.bool() {
                reservoir.pin(&bucket(), &prefix);
            } else {
                reservoir.unpin(&bucket(), &prefix);
            }
        }
        4 | 5 => {
            // A reader that goes away in the middle.
            let mut stream = reservoir.read(&object, whole(&object), &shared(source));
            let _ = stream.try_next().await.unwrap();
        }
        6..12 => check(reservoir, &object, whole(&object), source).await,
        _ => {
            let start = random.u64(..object.bytes);
            let end = random.u64(start..object.bytes) + 1;
            check(reservoir, &object, range(start, end), source).await;
        }
    }
}

async fn run(seed: u64, ram_bytes: u64, steps: u32) {
    let options = ReservoirOptions {
        read_ahead_bytes_max: 4 * MIB,
        scrub_period: Duration::from_millis(100),
        ..options(ram_bytes)
    };
    let (reservoir, source) = (Reservoir::open(options).await.unwrap(), FakeSource::new());
    let tasks = (0..4).map(|number| {
        let (reservoir, source) = (Arc::clone(&reservoir), Arc::clone(&source));
        let mut random = fastrand::Rng::with_seed(seed * 100 + number);
        tokio::spawn(async move {
            for _ in 0..steps {
                step(&reservoir, &source, &mut random).await;
                let stats = reservoir.stats();
                assert!(stats.ram_held_bytes <= ram_bytes && stats.ram_used_bytes <= stats.ram_held_bytes);
            }
        })
    });
    for task in futures::future::join_all(tasks).await {
        task.unwrap();
    }
    reservoir.shutdown(Duration::from_secs(5)).await;
    reservoir.unpin(&bucket(), "");
    reservoir.evict(&bucket(), "");
    let stats = reservoir.stats();
    assert_eq!(
        (stats.ram_used_bytes, stats.ram_pages, stats.pinned_bytes),
        (0, 0, 0)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn random_operations_under_pressure_never_give_a_wrong_byte() {
    for seed in 0..4 {
        run(seed, 12 * MIB, 150).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn random_operations_with_hardly_any_memory_never_give_a_wrong_byte() {
    run(7, 2 * MIB, 100).await;
    run(8, 3 * MIB + 5, 100).await;
}
