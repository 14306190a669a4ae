//! The cache commands as jobs: warm, evict, pin, unpin.
//!
//! A warm job lists the prefix page by page and reads each object through the reservoir, a bounded number at
//! once; the bytes are dropped as they come, so it costs no memory of its own. An object that fails is
//! counted and the job goes on; a listing that fails ends it. The other commands are one call to the
//! reservoir.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use forebay_core::{BucketName, Error, Kind, ObjectKey, Result};
use forebay_engine::{Conditions, Engine, RangeRequest, ReadAnswer};
use forebay_lake::{LakeCondition, ListOptions, ListedObject};
use futures::{StreamExt, TryStreamExt, stream};

use crate::Administered;
use crate::jobs::{JobInfo, JobKind, Progress};

/// Period at which a job looks whether it waits for its lake.
const LOOK_PERIOD: Duration = Duration::from_millis(500);
/// Keys of one listing page.
const PAGE_KEYS: usize = 1000;

/// Starts a job for what lies below a prefix.
pub(crate) fn start(
    node: &dyn Administered,
    kind: JobKind,
    bucket: BucketName,
    prefix: String,
) -> Result<JobInfo> {
    let engine = node.engine()?;
    let target = format!("{bucket}/{prefix}");
    let parallel = node.warm_parallel_max();
    node.jobs().start(kind, target, move |progress| async move {
        match kind {
            JobKind::Warm => {
                let work = warm(&engine, &bucket, &prefix, parallel, &progress);
                saying_why_it_waits(&engine, &bucket, &progress, work).await
            }
            JobKind::Evict | JobKind::Pin | JobKind::Unpin => {
                change(engine, kind, bucket, prefix, progress).await
            }
        }
    })
}

/// Does the work and tells meanwhile whether it waits for the lake.
async fn saying_why_it_waits(
    engine: &Engine,
    bucket: &BucketName,
    progress: &Progress,
    work: impl Future<Output = Result<()>>,
) -> Result<()> {
    tokio::pin!(work);
    loop {
        match tokio::time::timeout(LOOK_PERIOD, &mut work).await {
            Ok(ended) => return ended,
            Err(_) => {
                let condition = engine.lake_condition(bucket)?;
                let waits = condition != LakeCondition::Well;
                progress.set_waiting(waits.then(|| format!("the lake {condition}")));
            }
        }
    }
}

async fn warm(
    engine: &Engine,
    bucket: &BucketName,
    prefix: &str,
    parallel: usize,
    progress: &Progress,
) -> Result<()> {
    let mut start_after = None;
    loop {
        let options = ListOptions {
            prefix: prefix.to_owned(),
            start_after: start_after.take(),
            limit: PAGE_KEYS,
            ..ListOptions::default()
        };
        let page = engine.list(bucket, options).await?;
        progress
            .objects_found
            .fetch_add(page.objects.len() as u64, Ordering::Relaxed);
        progress.bytes_found.fetch_add(
            page.objects.iter().map(|object| object.bytes).sum(),
            Ordering::Relaxed,
        );
        stream::iter(page.objects)
            .for_each_concurrent(parallel, |object| warm_object(engine, bucket, object, progress))
            .await;
        match page.next {
            Some(next) => start_after = Some(next),
            None => return Ok(()),
        }
    }
}

async fn warm_object(engine: &Engine, bucket: &BucketName, object: ListedObject, progress: &Progress) {
    match read_through(engine, bucket, &object.key, progress).await {
        Ok(()) => {
            progress.objects_done.fetch_add(1, Ordering::Relaxed);
        }
        Err(error) => progress.fail_object(&error.with("key", &object.key)),
    }
}

async fn read_through(
    engine: &Engine,
    bucket: &BucketName,
    key: &ObjectKey,
    progress: &Progress,
) -> Result<()> {
    let answer = engine
        .read(bucket, key, RangeRequest::Whole, &Conditions::default())
        .await?;
    let ReadAnswer::Object(mut read) = answer else {
        return Err(Error::new(
            Kind::Internal,
            "a read without conditions was answered as not modified",
        ));
    };
    while let Some(piece) = read.pieces.try_next().await? {
        progress
            .bytes_done
            .fetch_add(piece.bytes.len() as u64, Ordering::Relaxed);
    }
    Ok(())
}

/// Evict, pin, unpin: the reservoir walks its index, which may take a moment, so off the runtime.
async fn change(
    engine: Arc<Engine>,
    kind: JobKind,
    bucket: BucketName,
    prefix: String,
    progress: Arc<Progress>,
) -> Result<()> {
    let work = move || {
        let reservoir = engine.reservoir();
        match kind {
            JobKind::Pin => reservoir.pin(&bucket, &prefix),
            JobKind::Unpin => reservoir.unpin(&bucket, &prefix),
            JobKind::Warm | JobKind::Evict => reservoir.evict(&bucket, &prefix),
        }
    };
    let change = tokio::task::spawn_blocking(work)
        .await
        .map_err(|why| Error::new(Kind::Internal, "the cache command ended early").caused_by(why))?;
    for counter in [&progress.objects_found, &progress.objects_done] {
        counter.fetch_add(change.objects, Ordering::Relaxed);
    }
    for counter in [&progress.bytes_found, &progress.bytes_done] {
        counter.fetch_add(change.bytes, Ordering::Relaxed);
    }
    Ok(())
}
