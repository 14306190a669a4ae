//! Working sets larger than RAM over disks that are slow, silent or broken.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::future::join_all;
use parking_lot::Mutex;

use super::*;
use crate::nvme::RawIo;
use crate::ram::DemotionLimits;

const RAM_BYTES: u64 = 16 * MIB;
const OBJECTS: u64 = 28;
const OBJECT_BYTES: u64 = 2 * MIB;
const SET_BYTES: u64 = OBJECTS * OBJECT_BYTES;

/// A disk that writes one thing after the other, each in this time, and refuses some.
#[derive(Debug, Default)]
struct SlowIo {
    turn: Mutex<()>,
    write_time: Duration,
    /// Refuses every write to a segment whose number is a multiple of this, unless it is 0.
    refuses_each: u64,
    writes: AtomicU64,
}

impl RawIo for SlowIo {
    fn write_at(&self, file: &File, buffer: &[u8], offset: u64) -> io::Result<usize> {
        if buffer.len() >= 64 << 10 {
            let _turn = self.turn.lock();
            std::thread::sleep(self.write_time); // The disk, not the test.
            let number = self.writes.fetch_add(1, Ordering::SeqCst);
            if self.refuses_each > 0 && number.is_multiple_of(self.refuses_each) {
                return Err(io::Error::other("the disk was told to refuse"));
            }
        }
        file.write_at(buffer, offset)
    }
}

/// Waits for any disk that goes on at all: how fast this machine is must not matter.
const PATIENT: DemotionLimits = DemotionLimits {
    wait_max: Duration::from_secs(60),
    silence_max: Duration::from_secs(60),
    bytes_per_s_min: 0.0,
    pages_per_s_min: 0.0,
};

async fn open(raw: SlowIo, limits: DemotionLimits, dir: &std::path::Path, nvme_bytes: u64) -> Arc<Reservoir> {
    let options = ReservoirOptions {
        nvme_bytes,
        nvme_dir: dir.to_owned(),
        ..options(RAM_BYTES)
    };
    Reservoir::open_on(Arc::new(raw), limits, options).await.unwrap()
}

/// Reads the whole set by four readers, each byte compared; returns what the source sent for it.
async fn pass(reservoir: &Arc<Reservoir>, source: &Arc<FakeSource>) -> u64 {
    let before = source.sent();
    let readers = (0..4).map(|reader| {
        let (reservoir, source) = (Arc::clone(reservoir), Arc::clone(source));
        tokio::spawn(async move {
            for number in (0..OBJECTS).filter(|number| number % 4 == reader) {
                let object = object(&format!("object-{number}"), "1", OBJECT_BYTES);
                check(&reservoir, &object, whole(&object), &source).await;
            }
        })
    });
    for reader in join_all(readers).await {
        reader.unwrap();
    }
    source.sent() - before
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_set_larger_than_ram_leaves_the_lake_once_although_the_disk_is_slow() {
    let (dir, source) = (tempfile::tempdir().unwrap(), FakeSource::new());
    let raw = SlowIo {
        write_time: Duration::from_millis(20),
        ..SlowIo::default()
    };
    let reservoir = open(raw, PATIENT, dir.path(), 256 * MIB).await;
    assert_eq!(pass(&reservoir, &source).await, SET_BYTES);
    for _ in 2..=4 {
        assert_eq!(pass(&reservoir, &source).await, 0);
    }
    let stats = reservoir.stats();
    assert_eq!((stats.demotions_dropped, stats.bypassed_bytes), (0, 0));
    reservoir.shutdown(Duration::from_secs(10)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_disk_that_says_nothing_is_not_waited_for() {
    let (dir, source) = (tempfile::tempdir().unwrap(), FakeSource::new());
    let raw = SlowIo {
        write_time: Duration::from_secs(5),
        ..SlowIo::default()
    };
    let limits = DemotionLimits {
        silence_max: Duration::from_millis(50),
        ..PATIENT
    };
    let reservoir = open(raw, limits, dir.path(), 256 * MIB).await;
    let first = tokio::time::timeout(Duration::from_secs(60), pass(&reservoir, &source)).await;
    assert_eq!(first.unwrap(), SET_BYTES);
    assert!(reservoir.stats().demotions_dropped > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_disk_that_refuses_writes_delays_nobody_and_is_counted() {
    let (dir, source) = (tempfile::tempdir().unwrap(), FakeSource::new());
    let raw = SlowIo {
        refuses_each: 1,
        ..SlowIo::default()
    };
    let reservoir = open(raw, PATIENT, dir.path(), 256 * MIB).await;
    let first = tokio::time::timeout(Duration::from_secs(60), pass(&reservoir, &source)).await;
    assert_eq!(first.unwrap(), SET_BYTES);
    let stats = reservoir.stats();
    assert!(stats.nvme_write_errors > 0);
    assert!(
        stats.demotions_dropped >= (SET_BYTES - RAM_BYTES) / MIB - 8,
        "{stats:?}"
    );
    reservoir.shutdown(Duration::from_secs(10)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_full_tier_is_not_waited_for() {
    let (dir, source) = (tempfile::tempdir().unwrap(), FakeSource::new());
    let raw = SlowIo {
        write_time: Duration::from_millis(200),
        ..SlowIo::default()
    };
    let reservoir = open(raw, PATIENT, dir.path(), 4 * MIB).await;
    assert_eq!(pass(&reservoir, &source).await, SET_BYTES);
    assert!(reservoir.stats().demotions_dropped > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn readers_that_hold_all_memory_do_not_wait_for_the_disk() {
    let (dir, source) = (tempfile::tempdir().unwrap(), FakeSource::new());
    let reservoir = open(SlowIo::default(), PATIENT, dir.path(), 256 * MIB).await;
    let held_object = object("held", "1", RAM_BYTES);
    let held = pieces(&reservoir, &held_object, whole(&held_object), &source)
        .await
        .unwrap();
    let other = object("other", "1", OBJECT_BYTES);
    let read = check(&reservoir, &other, whole(&other), &source);
    tokio::time::timeout(Duration::from_secs(30), read).await.unwrap();
    drop(held);
    reservoir.shutdown(Duration::from_secs(10)).await;
}
