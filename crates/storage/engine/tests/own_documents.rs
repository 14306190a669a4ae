//! Our own documents under `.forebay/`: hidden from every listing, and no trap when they are damaged.

mod fixture;

use bytes::Bytes;
use fixture::{Fixture, bucket, key};
use forebay_engine::{CompleteRequest, CompletedPart, Consistency, CreateUpload, PartRequest};
use forebay_lake::{Lake, ListOptions};
use futures::StreamExt;

#[tokio::test]
async fn odd_delimiters_do_not_show_our_own_documents() {
    let fixture = Fixture::new(Consistency::Immutable).await;
    fixture.put("a", Bytes::from_static(b"x")).await;
    for delimiter in [".", "y", ".forebay", "/b"] {
        assert_eq!(fixture.list_all(1, Some(delimiter)).await, ["a"], "{delimiter}");
    }
    fixture.put(".f", Bytes::from_static(b"x")).await;
    assert_eq!(fixture.list_all(1, Some(".")).await, [".", "a"]);
}

#[tokio::test]
async fn a_listing_ends_though_keys_lie_behind_all_our_documents() {
    let fixture = Fixture::new(Consistency::Immutable).await;
    for name in [
        "a",
        ".forebay/\u{10ffff}1",
        ".forebay/\u{10ffff}2",
        ".forebay/\u{10ffff}3",
    ] {
        fixture.put_in_lake(name, Bytes::from_static(b"x")).await;
    }
    assert_eq!(fixture.list_all(1, None).await, ["a"]);
}

#[tokio::test]
async fn a_damaged_document_does_not_make_its_object_unreadable() {
    let fixture = Fixture::new(Consistency::Always).await;
    let engine = &fixture.engine;
    let upload = engine
        .create_upload(&bucket(), &key("big"), CreateUpload::default())
        .await
        .unwrap();
    let part = PartRequest {
        key: key("big"),
        upload: upload.id.clone(),
        number: 1,
        bytes: 5,
        body: futures::stream::iter([Ok(Bytes::from_static(b"bytes"))]).boxed(),
        md5: None,
    };
    let part = engine.upload_part(&bucket(), part, || Ok(vec![])).await.unwrap();
    let parts = vec![CompletedPart {
        number: 1,
        etag: part.etag,
        checksums: vec![],
    }];
    let request = CompleteRequest {
        parts,
        ..CompleteRequest::default()
    };
    engine
        .complete_upload(&bucket(), &key("big"), &upload.id, request)
        .await
        .unwrap();
    let options = ListOptions {
        prefix: "bucket/.forebay/extras/".into(),
        ..ListOptions::default()
    };
    let documents = fixture.lake.list(options).await.unwrap().objects;
    assert_eq!(documents.len(), 1);
    let name = documents[0].key.as_str().trim_start_matches("bucket/");
    fixture.put_in_lake(name, Bytes::from_static(b"{")).await;
    assert_eq!(fixture.get("big").await, Bytes::from_static(b"bytes"));
}
