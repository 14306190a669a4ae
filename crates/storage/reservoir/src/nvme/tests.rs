//! Tests of the whole tier. Contents are made from the object's name and the page, so that every byte that is
//! read can be compared.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use forebay_core::{
    BLOCK_BYTES, BlockMask, BucketName, Kind, ObjectKey, PageIndex, Version, crc32c, page_bytes, page_count,
};

use super::segments::RawIo;
use super::*;
use crate::eviction::S3Fifo;

mod basics;
mod churn;
mod crash;
mod damage;
mod disk;
mod restart;

pub(super) const MIB: u64 = 1 << 20;

pub(super) fn options(dir: &Path, budget_bytes: u64) -> NvmeOptions {
    NvmeOptions {
        dir: dir.to_owned(),
        budget_bytes,
        index_bytes_max: u64::MAX,
    }
}

pub(super) async fn open(dir: &Path, budget_bytes: u64) -> Arc<NvmeStore> {
    NvmeStore::open(options(dir, budget_bytes), Box::new(S3Fifo::new()))
        .await
        .unwrap()
}

pub(super) async fn open_on(raw: Arc<dyn RawIo>, dir: &Path, budget_bytes: u64) -> Arc<NvmeStore> {
    NvmeStore::open_with(options(dir, budget_bytes), raw, Box::new(S3Fifo::new()))
        .await
        .unwrap()
}

pub(super) fn object(key: &str, bytes: u64) -> Arc<ObjectVersion> {
    Arc::new(ObjectVersion {
        bucket: BucketName::new("bucket").unwrap(),
        key: ObjectKey::new(key).unwrap(),
        version: Version::new("v1"),
        bytes,
        domain: crate::TrustDomain::DEFAULT,
    })
}

pub(super) fn key_of(object: &ObjectVersion, page: u32) -> PageKey {
    PageKey {
        object: ObjectId::of(object),
        page: PageIndex(page),
    }
}

/// The bytes of a page.
pub(super) fn content(object: &ObjectVersion, page: u32) -> Bytes {
    let id = ObjectId::of(object).0;
    let seed = u64::from_le_bytes(id[..8].try_into().unwrap()) ^ u64::from(page);
    let mut bytes = vec![0; page_bytes(object.bytes, PageIndex(page)) as usize];
    fastrand::Rng::with_seed(seed).fill(&mut bytes);
    bytes.into()
}

pub(super) fn checksums(page: &[u8]) -> [u32; 16] {
    let mut all = [0; 16];
    for (checksum, block) in all.iter_mut().zip(page.chunks(BLOCK_BYTES as usize)) {
        *checksum = crc32c::crc32c(block);
    }
    all
}

pub(super) async fn put_blocks(store: &NvmeStore, object: &Arc<ObjectVersion>, page: u32, blocks: BlockMask) {
    let bytes = content(object, page);
    let checksums = checksums(&bytes);
    store
        .write(object, PageIndex(page), blocks, bytes, checksums)
        .await
        .unwrap();
}

pub(super) async fn put(store: &NvmeStore, object: &Arc<ObjectVersion>) {
    for page in 0..page_count(object.bytes) as u32 {
        let blocks = BlockMask::full(page_bytes(object.bytes, PageIndex(page)));
        put_blocks(store, object, page, blocks).await;
    }
}

/// Reads blocks, compares each that comes back, and says which did.
pub(super) async fn get_blocks(
    store: &NvmeStore,
    object: &ObjectVersion,
    page: u32,
    blocks: BlockMask,
) -> BlockMask {
    let Some(read) = store.read(&key_of(object, page), blocks).await.unwrap() else {
        return BlockMask::EMPTY;
    };
    let expected = content(object, page);
    let checksums = checksums(&expected);
    assert!(blocks.contains(read.blocks));
    for block in 0..16 {
        let bytes = read.block(block);
        assert_eq!(bytes.is_some(), read.blocks.contains(BlockMask(1 << block)));
        let Some(bytes) = bytes else { continue };
        let start = block as usize * BLOCK_BYTES as usize;
        let end = (start + BLOCK_BYTES as usize).min(expected.len());
        assert!(
            bytes == expected[start..end],
            "wrong bytes in block {block} of page {page} of {}",
            object.key
        );
        assert_eq!(read.checksums[block as usize], checksums[block as usize]);
    }
    read.blocks
}

/// Returns whether every block of every page comes back, and is right.
pub(super) async fn has(store: &NvmeStore, object: &ObjectVersion) -> bool {
    for page in 0..page_count(object.bytes) as u32 {
        let full = BlockMask::full(page_bytes(object.bytes, PageIndex(page)));
        if get_blocks(store, object, page, full).await != full {
            return false;
        }
    }
    true
}

/// Paths in the folder whose names have this in them, sorted.
pub(super) fn files(dir: &Path, part: &str) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.file_name().unwrap().to_string_lossy().contains(part))
        .collect();
    found.sort();
    found
}

/// The one journal of a folder.
pub(super) fn journal_of(dir: &Path) -> PathBuf {
    let mut found = files(dir, ".log");
    found.retain(|path| path.extension().is_some_and(|extension| extension == "log"));
    assert_eq!(found.len(), 1, "{found:?}");
    found[0].clone()
}

/// Everything pushed so far is in the journal file.
pub(super) async fn settle(store: &NvmeStore) {
    let sequence = store.journal.push(Change::default());
    store.journal.written(sequence).await;
}
