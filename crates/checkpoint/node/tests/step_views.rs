//! Views of steps while others wait: who is held up by whom.
#![allow(clippy::unwrap_used, reason = "a failure here is the failure of a test")]

mod fixture;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use fixture::{Fixture, bucket, key};
use forebay_checkpoint::manifest::Content;
use forebay_checkpoint::{Manifest, names};
use forebay_core::{BucketName, Kind, Result};
use forebay_engine::{
    CompleteRequest, CompletedPart, CreateUpload, Engine, Finish, PartRequest, WriteRequest,
};
use forebay_lake::{Fault, Faulty, Lake, ListOptions, MemoryLake, Operation, PutOptions};
use forebay_testkit::until;
use futures::{StreamExt, stream};
use tokio::task::JoinHandle;

/// Far longer than a view takes that waits for nobody.
const SOON: Duration = Duration::from_secs(20);

fn other() -> BucketName {
    BucketName::new("other").unwrap()
}

/// Two buckets with steps 1 and 2 in each, over a lake that can stall.
async fn two_buckets() -> (Fixture, Faulty) {
    let lake = Faulty::new(Arc::new(MemoryLake::new()), 1);
    let fixture = Fixture::over(Arc::new(lake.clone())).await;
    fixture.engine.create_bucket(&other()).await.unwrap();
    for bucket in [bucket(), other()] {
        for step in [1, 2] {
            let mut manifest = Manifest::new(step, 1, &names::attempt(1), 1, Content::default());
            let path = key(&format!("{bucket}/run/{}", names::manifest(step, 1)));
            let bytes = manifest.encode().unwrap();
            lake.put(&path, bytes.into(), PutOptions::default())
                .await
                .unwrap();
        }
    }
    (fixture, lake)
}

/// Asks for the files of a view: without tensors there are none, but its manifest is read.
fn ask(engine: &Arc<Engine>, bucket: BucketName, step: u64) -> JoinHandle<Result<usize>> {
    let engine = Arc::clone(engine);
    tokio::spawn(async move {
        let options = ListOptions {
            prefix: format!("run/steps/{step}/whole/"),
            ..ListOptions::default()
        };
        engine.list(&bucket, options).await.map(|page| page.objects.len())
    })
}

async fn soon(asked: JoinHandle<Result<usize>>) -> usize {
    tokio::time::timeout(SOON, asked).await.unwrap().unwrap().unwrap()
}

fn gets(fixture: &Fixture) -> u64 {
    fixture.lake.counters().snapshot().requests_of(Operation::Get)
}

#[tokio::test]
async fn a_manifest_that_comes_slowly_holds_up_nobody_else() {
    let (fixture, lake) = two_buckets().await;
    lake.script(Operation::Get, Fault::StallBody { after_bytes: 10 });
    let slow = ask(&fixture.engine, bucket(), 1);
    until("the manifest is being read", || lake.stalled() == 1).await;
    soon(ask(&fixture.engine, other(), 1)).await;
    soon(ask(&fixture.engine, bucket(), 2)).await;
    assert!(!slow.is_finished());
    lake.release();
    soon(slow).await;
}

#[tokio::test]
async fn a_step_that_many_ask_for_is_read_once() {
    let (fixture, lake) = two_buckets().await;
    lake.script(Operation::Get, Fault::StallBody { after_bytes: 10 });
    let before = gets(&fixture);
    let asked: Vec<_> = (0..8).map(|_| ask(&fixture.engine, bucket(), 1)).collect();
    until("the manifest is being read", || lake.stalled() == 1).await;
    lake.release();
    for one in asked {
        soon(one).await;
    }
    assert_eq!(gets(&fixture) - before, 1);
}

#[tokio::test]
async fn who_leaves_while_a_manifest_is_read_leaves_the_permit_to_the_next() {
    let (fixture, lake) = two_buckets().await;
    lake.script(Operation::Get, Fault::StallBody { after_bytes: 10 });
    let first = ask(&fixture.engine, bucket(), 1);
    until("the manifest is being read", || lake.stalled() == 1).await;
    let next = ask(&fixture.engine, bucket(), 1);
    first.abort();
    soon(next).await;
}

#[tokio::test]
async fn a_body_that_began_before_the_commit_cannot_end_in_a_view() {
    let fixture = Fixture::over(Arc::new(MemoryLake::new())).await;
    let engine = &fixture.engine;
    let target = key("run/steps/1/whole/model.safetensors");
    let upload = engine
        .create_upload(&bucket(), &target, CreateUpload::default())
        .await;
    let upload = upload.unwrap();
    let part = PartRequest {
        key: target.clone(),
        upload: upload.id.clone(),
        number: 1,
        bytes: 7,
        body: stream::iter([Ok(Bytes::from_static(b"7 bytes"))]).boxed(),
        md5: None,
    };
    let stored = engine
        .upload_part(&bucket(), part, || Ok(Vec::new()))
        .await
        .unwrap();
    let write = engine.write(&bucket(), &target, WriteRequest::default()).await;
    let mut write = write.unwrap();
    write.push(Bytes::from_static(b"7 bytes")).await.unwrap();

    let manifest = format!("run/{}", names::manifest(1, 1));
    fixture
        .put_in_lake(&manifest, Bytes::from_static(b"a commit"))
        .await;
    let complete = CompleteRequest {
        parts: vec![CompletedPart {
            number: stored.number,
            etag: stored.etag,
            checksums: Vec::new(),
        }],
        ..CompleteRequest::default()
    };
    let completed = engine
        .complete_upload(&bucket(), &target, &upload.id, complete)
        .await;
    assert_eq!(completed.unwrap_err().kind(), Kind::InvalidInput);
    let finished = write.finish(Finish::default()).await;
    assert_eq!(finished.unwrap_err().kind(), Kind::InvalidInput);
}
