//! Disks that are full, broken, slow or give less than asked.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Condvar;

use super::*;

/// Leaves zeros unwritten, so that large tests stay off the disk.
#[derive(Debug, Default)]
pub(super) struct HoleIo {
    growth: Mutex<()>,
}

impl RawIo for HoleIo {
    fn write_at(&self, file: &File, buffer: &[u8], offset: u64) -> io::Result<usize> {
        if buffer.iter().any(|&byte| byte != 0) {
            return file.write_at(buffer, offset);
        }
        let _growing = self.growth.lock();
        let end = offset + buffer.len() as u64;
        if file.metadata()?.len() < end {
            file.set_len(end)?;
        }
        Ok(buffer.len())
    }
}

/// Puts an object of one page of zeros.
pub(super) async fn put_zeros(store: &NvmeStore, object: &Arc<ObjectVersion>) {
    static ZEROS: [u8; MIB as usize] = [0; MIB as usize];
    let bytes = Bytes::from_static(&ZEROS[..object.bytes as usize]);
    let mut checksums = [0; 16];
    for (block, checksum) in checksums.iter_mut().enumerate() {
        let zeros = extent::block_bytes(object.bytes, block as u32) as usize;
        *checksum = crc32c::crc32c(&ZEROS[..zeros]);
    }
    store
        .write(
            object,
            PageIndex(0),
            BlockMask::full(object.bytes),
            bytes,
            checksums,
        )
        .await
        .unwrap();
}

/// Moves one unit at a time and is interrupted now and then.
#[derive(Debug, Default)]
struct ShortIo {
    calls: AtomicU64,
}

impl ShortIo {
    fn call(&self) -> io::Result<()> {
        if self.calls.fetch_add(1, Ordering::Relaxed) % 3 == 1 {
            return Err(io::ErrorKind::Interrupted.into());
        }
        Ok(())
    }
}

impl RawIo for ShortIo {
    fn read_at(&self, file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.call()?;
        let bytes = buffer.len().min(4096);
        file.read_at(&mut buffer[..bytes], offset)
    }

    fn write_at(&self, file: &File, buffer: &[u8], offset: u64) -> io::Result<usize> {
        self.call()?;
        file.write_at(&buffer[..buffer.len().min(4096)], offset)
    }
}

#[tokio::test]
async fn short_and_interrupted_transfers_are_finished() {
    let dir = tempfile::tempdir().unwrap();
    let raw = Arc::new(ShortIo::default());
    let store = open_on(Arc::clone(&raw) as _, dir.path(), 16 * MIB).await;
    let object = object("o", 3 * MIB + 5000);
    put(&store, &object).await;
    assert!(has(&store, &object).await);
    assert!(raw.calls.load(Ordering::Relaxed) > 2 * 3 * 256);
    drop(store);
    assert!(has(&*open_on(raw, dir.path(), 16 * MIB).await, &object).await);
}

/// Files may grow by this much in all.
#[derive(Debug)]
struct FullIo {
    left_bytes: Mutex<u64>,
}

impl RawIo for FullIo {
    fn write_at(&self, file: &File, buffer: &[u8], offset: u64) -> io::Result<usize> {
        let mut left_bytes = self.left_bytes.lock();
        let growth = (offset + buffer.len() as u64).saturating_sub(file.metadata()?.len());
        if growth > *left_bytes {
            return Err(io::ErrorKind::StorageFull.into());
        }
        *left_bytes -= growth;
        file.write_at(buffer, offset)
    }
}

#[tokio::test]
async fn a_full_disk_makes_the_tier_smaller_and_room_makes_it_grow_again() {
    let dir = tempfile::tempdir().unwrap();
    let raw = Arc::new(FullIo {
        left_bytes: Mutex::new(6 * MIB),
    });
    let store = open_on(Arc::clone(&raw) as _, dir.path(), 64 * MIB).await;
    for n in 0..40 {
        put(&store, &object(&format!("o{n}"), MIB)).await;
    }
    let full = store.stats();
    assert!(full.write_errors > 0);
    assert!((4 * MIB..=6 * MIB).contains(&full.used_bytes), "{full:?}");
    let usable_bytes = store.index.lock().space.usable_units() * UNIT_BYTES;
    assert!(usable_bytes <= 6 * MIB, "{full:?}");
    assert!(
        has(&store, &object("o39", MIB)).await,
        "new pages replace old ones"
    );

    *raw.left_bytes.lock() = 1 << 40;
    for n in 40..400 {
        put(&store, &object(&format!("o{n}"), MIB)).await;
    }
    let grown = store.stats();
    assert!(grown.used_bytes > 50 * MIB, "{grown:?}");
    assert!(has(&store, &object("o399", MIB)).await);
    assert_eq!(grown.corrupt_blocks, 0);
}

#[tokio::test]
async fn a_journal_that_finds_no_room_is_a_cold_start_and_no_lie() {
    let dir = tempfile::tempdir().unwrap();
    let raw = Arc::new(FullIo {
        left_bytes: Mutex::new(2 * MIB),
    });
    let store = open_on(Arc::clone(&raw) as _, dir.path(), 16 * MIB).await;
    put(&store, &object("before", MIB)).await;
    settle(&store).await;
    *raw.left_bytes.lock() = 0;
    store.remove_object(&ObjectId::of(&object("before", MIB)));
    settle(&store).await;
    assert_eq!(files(dir.path(), ".log"), Vec::<PathBuf>::new());
    put(&store, &object("after", MIB)).await;
    assert!(
        has(&store, &object("after", MIB)).await,
        "it takes the room of the removed one"
    );
    assert!(store.stats().write_errors > 0);
    drop(store);
    let store = open(dir.path(), 16 * MIB).await;
    assert_eq!(store.stats().pages, 0);
    put(&store, &object("again", MIB)).await;
    drop(store);
    assert!(has(&*open(dir.path(), 16 * MIB).await, &object("again", MIB)).await);
}

/// Fails as told.
#[derive(Debug, Default)]
struct BrokenIo {
    reads_fail: AtomicBool,
    writes_fail: AtomicBool,
}

impl RawIo for BrokenIo {
    fn read_at(&self, file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        if self.reads_fail.load(Ordering::Relaxed) {
            return Err(io::Error::from_raw_os_error(rustix::io::Errno::IO.raw_os_error()));
        }
        file.read_at(buffer, offset)
    }

    fn write_at(&self, file: &File, buffer: &[u8], offset: u64) -> io::Result<usize> {
        if self.writes_fail.load(Ordering::Relaxed) {
            return Err(io::Error::from_raw_os_error(rustix::io::Errno::IO.raw_os_error()));
        }
        file.write_at(buffer, offset)
    }
}

#[tokio::test]
async fn a_disk_error_is_a_miss_and_is_counted() {
    let dir = tempfile::tempdir().unwrap();
    let raw = Arc::new(BrokenIo::default());
    let store = open_on(Arc::clone(&raw) as _, dir.path(), 16 * MIB).await;
    let (kept, lost) = (object("kept", MIB), object("lost", MIB));
    put(&store, &kept).await;
    put(&store, &lost).await;
    raw.reads_fail.store(true, Ordering::Relaxed);
    assert_eq!(get_blocks(&store, &lost, 0, BlockMask(1)).await, BlockMask::EMPTY);
    raw.reads_fail.store(false, Ordering::Relaxed);
    assert_eq!(store.lookup(&key_of(&lost, 0)), None);
    assert!(has(&store, &kept).await);
    raw.writes_fail.store(true, Ordering::Relaxed);
    put(&store, &lost).await;
    assert_eq!(store.lookup(&key_of(&lost, 0)), None);
    let stats = store.stats();
    assert_eq!(stats.read_errors, 1);
    assert!(stats.write_errors >= 1);
    raw.writes_fail.store(false, Ordering::Relaxed);
    put(&store, &lost).await;
    assert!(has(&store, &lost).await);
}

/// Holds large transfers back while it is shut.
#[derive(Debug, Default)]
pub(super) struct GateIo {
    is_shut: Mutex<bool>,
    opened: Condvar,
    waiting: AtomicU64,
}

impl GateIo {
    pub(super) fn shut(&self) {
        *self.is_shut.lock() = true;
    }

    pub(super) fn open(&self) {
        *self.is_shut.lock() = false;
        self.opened.notify_all();
    }

    fn pass(&self, bytes: usize) {
        let mut is_shut = self.is_shut.lock();
        if *is_shut && bytes as u64 >= BLOCK_BYTES {
            self.waiting.fetch_add(1, Ordering::SeqCst);
            self.opened.wait_while(&mut is_shut, |is_shut| *is_shut);
        }
    }
}

impl RawIo for GateIo {
    fn read_at(&self, file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.pass(buffer.len());
        file.read_at(buffer, offset)
    }

    fn write_at(&self, file: &File, buffer: &[u8], offset: u64) -> io::Result<usize> {
        self.pass(buffer.len());
        file.write_at(buffer, offset)
    }
}

#[tokio::test]
async fn units_under_a_running_read_are_not_reused() {
    let dir = tempfile::tempdir().unwrap();
    let raw = Arc::new(GateIo::default());
    let store = open_on(Arc::clone(&raw) as _, dir.path(), 4 * MIB).await;
    let read_object = object("read", MIB);
    put(&store, &read_object).await;
    raw.shut();
    let reader = {
        let (store, object) = (Arc::clone(&store), Arc::clone(&read_object));
        tokio::spawn(async move { get_blocks(&store, &object, 0, BlockMask(u16::MAX)).await })
    };
    while raw.waiting.load(Ordering::SeqCst) == 0 {
        tokio::task::yield_now().await;
    }
    store.remove_object(&ObjectId::of(&read_object));
    for n in 0..1200 {
        put(&store, &object(&format!("o{n}"), 12 << 10)).await;
    }
    assert!(store.stats().evicted_pages > 0, "every other unit was reused");
    raw.open();
    assert_eq!(reader.await.unwrap(), BlockMask(u16::MAX));
    assert_eq!(store.stats().corrupt_blocks, 0);
}
