//! Multipart uploads over a memory lake.
#![allow(clippy::unwrap_used, reason = "a broken step should fail the test")]

mod fixture;

use bytes::Bytes;
use fixture::{Fixture, body_of, bucket, key};
use forebay_core::{ByteRange, Kind};
use forebay_engine::{
    CompleteRequest, CompletedPart, Conditions, Consistency, CreateUpload, PartCopy, PartInfo, PartRequest,
    RangeRequest,
};
use forebay_lake::Lake;
use futures::StreamExt;

const PART_BYTES: usize = 5 << 20;

fn part(upload: &str, number: u16, body: Bytes) -> PartRequest {
    let bytes = body.len() as u64;
    let body = futures::stream::iter([Ok(body)]).boxed();
    PartRequest {
        key: key("big"),
        upload: upload.into(),
        number,
        bytes,
        body,
        md5: None,
    }
}

fn complete(parts: &[PartInfo]) -> CompleteRequest {
    let named = |part: &PartInfo| CompletedPart {
        number: part.number,
        etag: part.etag.clone(),
        checksums: vec![],
    };
    CompleteRequest {
        parts: parts.iter().map(named).collect(),
        ..CompleteRequest::default()
    }
}

#[tokio::test]
async fn parts_become_one_object_with_part_ranges() {
    let fixture = Fixture::new(Consistency::Always).await;
    let engine = &fixture.engine;
    let mut create = CreateUpload::default();
    create.attributes.content_type = Some("x/y".into());
    let upload = engine
        .create_upload(&bucket(), &key("big"), create)
        .await
        .unwrap();
    let bodies = [
        fixture.random_bytes(PART_BYTES),
        fixture.random_bytes(PART_BYTES),
        fixture.random_bytes(7),
    ];
    let mut parts = Vec::new();
    for (index, body) in bodies.iter().enumerate() {
        let request = part(&upload.id, index as u16 + 1, body.clone());
        parts.push(
            engine
                .upload_part(&bucket(), request, || Ok(vec![]))
                .await
                .unwrap(),
        );
    }
    let (listed, found, more) = engine
        .list_parts(&bucket(), &key("big"), &upload.id, 1, 1)
        .await
        .unwrap();
    assert_eq!(
        (listed.id.as_str(), found.len(), found[0].number, more),
        (upload.id.as_str(), 1, 2, true)
    );
    assert_eq!(engine.list_uploads(&bucket(), "b").await.unwrap().len(), 1);
    assert!(
        fixture.list_all(0, None).await.is_empty(),
        "nothing is visible before the upload is completed"
    );

    let (receipt, _) = engine
        .complete_upload(&bucket(), &key("big"), &upload.id, complete(&parts))
        .await
        .unwrap();
    assert_eq!(receipt.bytes, 2 * PART_BYTES as u64 + 7);
    assert!(receipt.version.as_str().ends_with("-3"));
    assert_eq!(fixture.get("big").await, Bytes::from(bodies.concat()));
    let info = engine.head(&bucket(), &key("big")).await.unwrap();
    assert_eq!(info.part_bytes, [PART_BYTES as u64, PART_BYTES as u64, 7]);
    assert_eq!(info.attributes.content_type.as_deref(), Some("x/y"));
    let answer = engine
        .read(
            &bucket(),
            &key("big"),
            RangeRequest::Part(3),
            &Conditions::default(),
        )
        .await
        .unwrap();
    assert_eq!(body_of(answer).await, bodies[2]);
    assert!(engine.list_uploads(&bucket(), "").await.unwrap().is_empty());
}

#[tokio::test]
async fn an_aborted_upload_leaves_nothing() {
    let fixture = Fixture::new(Consistency::Always).await;
    let engine = &fixture.engine;
    let upload = engine
        .create_upload(&bucket(), &key("big"), CreateUpload::default())
        .await
        .unwrap();
    engine
        .upload_part(&bucket(), part(&upload.id, 1, fixture.random_bytes(9)), || {
            Ok(vec![])
        })
        .await
        .unwrap();
    engine
        .abort_upload(&bucket(), &key("big"), &upload.id)
        .await
        .unwrap();
    let again = engine
        .abort_upload(&bucket(), &key("big"), &upload.id)
        .await
        .unwrap_err();
    assert_eq!(again.kind(), Kind::NotFound);
    assert!(engine.list_uploads(&bucket(), "").await.unwrap().is_empty());
}

#[tokio::test]
async fn an_upload_belongs_to_its_key() {
    let fixture = Fixture::new(Consistency::Always).await;
    let upload = fixture
        .engine
        .create_upload(&bucket(), &key("big"), CreateUpload::default())
        .await
        .unwrap();
    let other = fixture
        .engine
        .list_parts(&bucket(), &key("other"), &upload.id, 0, 10)
        .await
        .unwrap_err();
    assert_eq!(other.kind(), Kind::NotFound);
}

#[tokio::test]
async fn a_part_can_be_a_range_of_another_object() {
    let fixture = Fixture::new(Consistency::Always).await;
    let engine = &fixture.engine;
    let source = fixture.random_bytes(PART_BYTES);
    fixture.put("source", source.clone()).await;
    let upload = engine
        .create_upload(&bucket(), &key("big"), CreateUpload::default())
        .await
        .unwrap();
    let copy = |range| PartCopy {
        key: key("big"),
        upload: upload.id.clone(),
        number: 1,
        source: (bucket(), key("source")),
        range,
        conditions: Conditions::default(),
    };
    let past_end = ByteRange::new(1, PART_BYTES as u64 + 1).ok();
    assert_eq!(
        engine
            .copy_part(&bucket(), copy(past_end))
            .await
            .unwrap_err()
            .kind(),
        Kind::OutOfRange
    );
    let info = engine
        .copy_part(&bucket(), copy(ByteRange::new(10, 1000).ok()))
        .await
        .unwrap();
    engine
        .complete_upload(&bucket(), &key("big"), &upload.id, complete(&[info]))
        .await
        .unwrap();
    assert_eq!(fixture.get("big").await, source.slice(10..1000));
}

#[tokio::test]
async fn a_part_whose_checksum_is_wrong_leaves_the_part_that_was_there() {
    let fixture = Fixture::new(Consistency::Always).await;
    let engine = &fixture.engine;
    let upload = engine
        .create_upload(&bucket(), &key("big"), CreateUpload::default())
        .await
        .unwrap();
    let good = fixture.random_bytes(9);
    let stored = engine
        .upload_part(&bucket(), part(&upload.id, 1, good.clone()), || Ok(vec![]))
        .await
        .unwrap();
    let refused = engine
        .upload_part(&bucket(), part(&upload.id, 1, fixture.random_bytes(9)), || {
            Err(forebay_core::Error::new(Kind::Checksum, "not what was announced"))
        })
        .await
        .unwrap_err();
    assert_eq!(refused.kind(), Kind::Checksum);
    engine
        .complete_upload(&bucket(), &key("big"), &upload.id, complete(&[stored]))
        .await
        .unwrap();
    assert_eq!(fixture.get("big").await, good);
}

/// An upload with one part, and what the lake calls it.
async fn upload_with_a_part(fixture: &Fixture) -> (String, PartInfo, forebay_lake::UploadId) {
    let upload = fixture
        .engine
        .create_upload(&bucket(), &key("big"), CreateUpload::default())
        .await
        .unwrap();
    let body = Bytes::from_static(b"all of it");
    let stored = fixture
        .engine
        .upload_part(&bucket(), part(&upload.id, 1, body), || Ok(vec![]))
        .await
        .unwrap();
    let name = key(&format!("bucket/.forebay/uploads/{}/upload.json", upload.id));
    let document = fixture.lake.get(&name, forebay_lake::GetOptions::default());
    let chunks: Vec<_> = document.await.unwrap().body.collect().await;
    let text: Vec<u8> = chunks.into_iter().flat_map(|chunk| chunk.unwrap()).collect();
    let document: serde_json::Value = serde_json::from_slice(&text).unwrap();
    let lake_upload = document["lake_upload"].as_str().unwrap().to_owned();
    (upload.id, stored, forebay_lake::UploadId(lake_upload))
}

#[tokio::test]
async fn a_completion_that_was_cut_off_can_be_repeated() {
    let fixture = Fixture::new(Consistency::Always).await;
    let (id, stored, lake_upload) = upload_with_a_part(&fixture).await;
    let parts = [forebay_lake::PartReceipt {
        number: 1,
        etag: stored.etag.clone(),
        bytes: stored.bytes,
    }];
    let mut options = forebay_lake::PutOptions::default();
    options
        .attributes
        .user
        .insert("forebay-extras".into(), "1".into());
    fixture
        .lake
        .complete_upload(&key("bucket/big"), &lake_upload, &parts, options)
        .await
        .unwrap();

    let engine = &fixture.engine;
    let (receipt, _) = engine
        .complete_upload(&bucket(), &key("big"), &id, complete(&[stored]))
        .await
        .unwrap();
    assert_eq!(receipt.bytes, 9);
    let info = engine.head(&bucket(), &key("big")).await.unwrap();
    assert_eq!((info.version, info.part_bytes), (receipt.version, vec![9]));
    assert!(engine.list_uploads(&bucket(), "").await.unwrap().is_empty());
}

#[tokio::test]
async fn an_upload_that_the_lake_has_given_up_is_no_such_upload() {
    let fixture = Fixture::new(Consistency::Always).await;
    let (id, stored, lake_upload) = upload_with_a_part(&fixture).await;
    fixture
        .lake
        .abort_upload(&key("bucket/big"), &lake_upload)
        .await
        .unwrap();
    fixture.put("big", Bytes::from_static(b"not of it")).await;
    let engine = &fixture.engine;
    let refused = [
        engine
            .complete_upload(&bucket(), &key("big"), &id, complete(&[stored]))
            .await
            .unwrap_err(),
        engine
            .upload_part(&bucket(), part(&id, 1, Bytes::from_static(b"x")), || Ok(vec![]))
            .await
            .unwrap_err(),
    ];
    for error in refused {
        assert!(
            error.context().any(|pair| pair == ("code", "NoSuchUpload")),
            "{error}"
        );
    }
    assert_eq!(fixture.get("big").await, Bytes::from_static(b"not of it"));
}

#[tokio::test]
async fn a_removed_bucket_takes_its_open_uploads_along() {
    let fixture = Fixture::new(Consistency::Always).await;
    let (_, _, lake_upload) = upload_with_a_part(&fixture).await;
    fixture.engine.delete_bucket(&bucket()).await.unwrap();
    let body = futures::stream::iter([Ok(Bytes::from_static(b"x"))]).boxed();
    let gone = fixture
        .lake
        .upload_part(&key("bucket/big"), &lake_upload, 1, 1, body)
        .await
        .unwrap_err();
    assert_eq!(gone.kind(), Kind::NotFound);
}
