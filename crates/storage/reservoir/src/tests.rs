//! The whole reservoir against a source that counts, stalls and fails as it is told.

mod books;
mod churn;
mod contents;
mod corruption;
mod demotion;
mod domains;
mod failure;
mod fill_source;
mod lease;
mod mapping;
mod model;
mod nvme;
mod pressure;
mod read;
mod source;
mod stress;
mod working_set;
mod write;

use std::sync::Arc;
use std::time::Duration;

use forebay_core::{BucketName, ByteRange, ObjectKey, Result, Version};
use futures::TryStreamExt;

use crate::{ObjectVersion, Piece, Reservoir, ReservoirOptions, Source};
use source::{FakeSource, content};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

fn options(ram_bytes: u64) -> ReservoirOptions {
    ReservoirOptions {
        ram_bytes,
        nvme_bytes: 0,
        nvme_dir: std::path::PathBuf::new(),
        scrub_period: Duration::ZERO,
        read_ahead_bytes_max: 0,
        write_fill_bytes_max: 64 * MIB,
        fill_silence_max: ReservoirOptions::FILL_SILENCE_DEFAULT,
    }
}

async fn reservoir(ram_bytes: u64) -> Arc<Reservoir> {
    Reservoir::open(options(ram_bytes)).await.unwrap()
}

fn bucket() -> BucketName {
    BucketName::new("bucket").unwrap()
}

fn object(key: &str, version: &str, bytes: u64) -> ObjectVersion {
    ObjectVersion {
        bucket: bucket(),
        key: ObjectKey::new(key).unwrap(),
        version: Version::new(version),
        bytes,
        domain: crate::TrustDomain::DEFAULT,
    }
}

fn range(start: u64, end: u64) -> ByteRange {
    ByteRange::new(start, end).unwrap()
}

fn whole(object: &ObjectVersion) -> ByteRange {
    ByteRange::whole(object.bytes).unwrap()
}

/// The source as readers want it.
fn shared(source: &Arc<FakeSource>) -> Arc<dyn Source> {
    Arc::clone(source) as Arc<dyn Source>
}

async fn pieces(
    reservoir: &Arc<Reservoir>,
    object: &ObjectVersion,
    range: ByteRange,
    source: &Arc<FakeSource>,
) -> Result<Vec<Piece>> {
    reservoir.read(object, range, &shared(source)).try_collect().await
}

/// Reads a range piece by piece, compares every byte, drops each piece at once.
async fn check(
    reservoir: &Arc<Reservoir>,
    object: &ObjectVersion,
    range: ByteRange,
    source: &Arc<FakeSource>,
) {
    let expected = content(object, range);
    let mut position = range.start();
    let mut stream = reservoir.read(object, range, &shared(source));
    while let Some(piece) = stream.try_next().await.unwrap() {
        assert_eq!(piece.start, position);
        let start = (position - range.start()) as usize;
        assert!(
            piece.bytes[..] == expected[start..start + piece.bytes.len()],
            "{object:?} at {position}"
        );
        position += piece.bytes.len() as u64;
    }
    assert_eq!(position, range.end());
}

/// Polls until the condition holds; the time only bounds a test that fails.
async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    for _ in 0..5000 {
        if condition() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    panic!("never happened: {what}");
}
