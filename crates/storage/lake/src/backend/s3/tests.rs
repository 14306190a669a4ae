//! The S3 lake against a server that answers from a script, to see what real servers do only sometimes.

use std::sync::Arc;

use bytes::Bytes;
use forebay_core::{ByteRange, Kind, ObjectKey, Version};
use futures::TryStreamExt;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::task::AbortOnDropHandle;

use crate::{
    CopyOptions, GetOptions, GetRange, Lake, ListOptions, OpenOptions, PartReceipt, PutMode, PutOptions,
    UpdateToken, UploadId, open,
};

/// Answers requests in order and keeps what was asked.
struct Script {
    lake: Arc<dyn Lake>,
    asked: Arc<Mutex<Vec<String>>>,
    _server: AbortOnDropHandle<()>,
}

/// `answers` are whole HTTP answers without `Connection`; each closes its connection.
async fn script(answers: Vec<String>) -> Script {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let asked = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&asked);
    let server = tokio::spawn(async move {
        for answer in answers {
            let (mut socket, _) = listener.accept().await.unwrap();
            let request = read_request(&mut socket).await;
            kept.lock().push(request);
            socket.write_all(answer.as_bytes()).await.unwrap();
            socket.shutdown().await.unwrap();
        }
    });
    let options = OpenOptions {
        endpoint: Some(endpoint),
        access_key_id: Some("id".into()),
        secret_access_key: Some("secret".into()),
        ..OpenOptions::default()
    };
    let lake = open("s3://bucket", &options).await.unwrap();
    Script {
        lake,
        asked,
        _server: AbortOnDropHandle::new(server),
    }
}

async fn read_request(socket: &mut TcpStream) -> String {
    let mut text = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let read = socket.read(&mut buffer).await.unwrap();
        text.extend_from_slice(&buffer[..read]);
        let so_far = String::from_utf8_lossy(&text).into_owned();
        let Some((head, body)) = so_far.split_once("\r\n\r\n") else {
            continue;
        };
        let length = head
            .lines()
            .find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
        if body.len() >= length.unwrap_or(0) || read == 0 {
            return so_far;
        }
    }
}

fn answer(status: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n{headers}\r\n{body}")
}

fn found(etag: &str, body: &str) -> String {
    answer("200 OK", &format!("etag: \"{etag}\"\r\n"), body)
}

fn key() -> ObjectKey {
    ObjectKey::new("k").unwrap()
}

fn update(etag: &str) -> PutOptions {
    let token = UpdateToken {
        etag: Some(etag.into()),
        version: None,
    };
    PutOptions {
        mode: PutMode::Update(token),
        ..PutOptions::default()
    }
}

#[tokio::test]
async fn an_update_is_sent_without_quotes_to_a_server_that_wants_it_so() {
    let refused = answer("412 Precondition Failed", "", "");
    let script = script(vec![
        refused,
        found("old", ""),
        found("new", ""),
        found("newer", ""),
    ])
    .await;
    let receipt = script
        .lake
        .put(&key(), Bytes::from_static(b"x"), update("old"))
        .await
        .unwrap();
    assert_eq!(receipt.version.as_str(), "new");
    script
        .lake
        .put(&key(), Bytes::from_static(b"y"), update("new"))
        .await
        .unwrap();
    let asked = script.asked.lock().clone();
    assert!(asked[0].contains("if-match: \"old\""), "{}", asked[0]);
    assert!(asked[1].starts_with("HEAD /bucket/k "), "{}", asked[1]);
    assert!(asked[2].contains("if-match: old\r\n"), "{}", asked[2]);
    assert!(
        asked[3].contains("if-match: new\r\n"),
        "it is remembered: {}",
        asked[3]
    );
}

#[tokio::test]
async fn an_update_of_a_changed_object_is_not_tried_again() {
    let script = script(vec![
        answer("412 Precondition Failed", "", ""),
        found("other", ""),
    ])
    .await;
    let error = script
        .lake
        .put(&key(), Bytes::from_static(b"x"), update("old"))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), Kind::PreconditionFailed);
}

#[tokio::test]
async fn a_server_that_has_taken_quotes_is_not_asked_about_them_again() {
    let refused = answer("412 Precondition Failed", "", "");
    let script = script(vec![found("new", ""), refused]).await;
    let k = key();
    let put = |etag| script.lake.put(&k, Bytes::from_static(b"x"), update(etag));
    put("old").await.unwrap();
    assert_eq!(put("old").await.unwrap_err().kind(), Kind::PreconditionFailed);
    assert_eq!(script.asked.lock().len(), 2, "no HEAD after the refusal");
}

#[tokio::test]
async fn a_throttled_request_is_tried_again() {
    let slow = answer("503 Slow Down", "", "<Error><Code>SlowDown</Code></Error>");
    let script = script(vec![slow.clone(), slow, found("e", "")]).await;
    assert_eq!(script.lake.head(&key()).await.unwrap().version.as_str(), "e");
    assert_eq!(script.asked.lock().len(), 3);
}

#[tokio::test]
async fn a_pinned_range_is_sent_once_so_that_the_scheduler_sees_the_throttling() {
    let slow = answer("503 Slow Down", "", "<Error><Code>SlowDown</Code></Error>");
    let script = script(vec![slow]).await;
    let range = Some(GetRange::Bounded(ByteRange::new(0, 1).unwrap()));
    let error = script
        .lake
        .get(
            &key(),
            GetOptions {
                range,
                if_match: Some(Version::new("v")),
            },
        )
        .await
        .unwrap_err();
    assert_eq!(error.kind(), Kind::Throttled);
}

#[tokio::test]
async fn a_create_with_an_unknown_outcome_is_not_sent_again() {
    let script = script(vec![answer("500 Oops", "", ""), found("e", "")]).await;
    let options = PutOptions {
        mode: PutMode::Create,
        ..PutOptions::default()
    };
    let error = script
        .lake
        .put(&key(), Bytes::from_static(b"x"), options)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable);
    assert_eq!(script.asked.lock().len(), 1);
}

#[tokio::test]
async fn a_short_body_ends_in_an_error() {
    let cut = "HTTP/1.1 200 OK\r\ncontent-length: 10\r\netag: \"e\"\r\n\r\n0123".to_owned();
    let script = script(vec![cut]).await;
    let answer = script.lake.get(&key(), GetOptions::default()).await.unwrap();
    assert_eq!(answer.bytes, 10);
    let read: Result<Vec<Bytes>, _> = answer.body.try_collect().await;
    assert_eq!(read.unwrap_err().kind(), Kind::Unavailable);
}

#[tokio::test]
async fn a_server_that_ignores_the_version_or_the_range_is_caught() {
    let script = script(vec![found("new", "0123"), found("e", "0123")]).await;
    let pinned = GetOptions {
        range: None,
        if_match: Some(Version::new("old")),
    };
    assert_eq!(
        script.lake.get(&key(), pinned).await.unwrap_err().kind(),
        Kind::Changed
    );
    let range = Some(GetRange::Bounded(ByteRange::new(1, 2).unwrap()));
    let error = script
        .lake
        .get(
            &key(),
            GetOptions {
                range,
                if_match: None,
            },
        )
        .await
        .unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable);
}

#[tokio::test]
async fn an_error_inside_a_success_is_an_error() {
    let failed = answer(
        "200 OK",
        "",
        "<?xml version=\"1.0\"?><Error><Code>InternalError</Code></Error>",
    );
    let script = script(vec![failed.clone(), found("e", ""), failed]).await;
    let parts = [PartReceipt {
        number: 3,
        etag: "p".into(),
        bytes: 1,
    }];
    let upload = UploadId("u/1".into());
    let error = script
        .lake
        .complete_upload(&key(), &upload, &parts, PutOptions::default())
        .await
        .unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable);
    let error = script
        .lake
        .copy(&key(), &ObjectKey::new("to").unwrap(), CopyOptions::default())
        .await
        .unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable);
    let asked = script.asked.lock().clone();
    assert!(
        asked[0].starts_with("POST /bucket/k?uploadId=u%2F1 "),
        "{}",
        asked[0]
    );
    assert!(
        asked[0].contains("<PartNumber>3</PartNumber><ETag>\"p\"</ETag>"),
        "{}",
        asked[0]
    );
    assert!(
        asked[2].contains("x-amz-copy-source-if-match: \"e\""),
        "{}",
        asked[2]
    );
}

#[tokio::test]
async fn every_key_reaches_the_server_as_it_is() {
    let keys = ["dir/", "a//b", "a/../b", "./x", "sp ace+%41?q#h", "ü"];
    let script = script(keys.map(|_| found("e", "")).to_vec()).await;
    for key in keys {
        script.lake.head(&ObjectKey::new(key).unwrap()).await.unwrap();
    }
    let paths: Vec<String> = script
        .asked
        .lock()
        .iter()
        .map(|asked| asked.split(' ').nth(1).unwrap_or_default().to_owned())
        .collect();
    let expected = [
        "dir/",
        "a//b",
        "a/../b",
        "./x",
        "sp%20ace%2B%2541%3Fq%23h",
        "%C3%BC",
    ];
    assert_eq!(paths, expected.map(|path| format!("/bucket/{path}")));
}

#[tokio::test]
async fn a_cut_listing_without_a_way_on_is_an_error() {
    let page = "<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>";
    let script = script(vec![answer("200 OK", "", page)]).await;
    assert!(script.lake.list(ListOptions::default()).await.is_err());
}

#[tokio::test]
async fn a_listing_out_of_order_is_never_gone_on_with() {
    let object = |key: &str| {
        format!(
            "<Contents><Key>{key}</Key><Size>1</Size><ETag>e</ETag><LastModified>2024-01-01T00:00:00Z</LastModified></Contents>"
        )
    };
    let page = format!(
        "<ListBucketResult>{}{}</ListBucketResult>",
        object("a/2"),
        object("a-b")
    );
    let script = script(vec![answer("200 OK", "", &page)]).await;
    let options = ListOptions {
        start_after: Some("a/1".into()),
        ..ListOptions::default()
    };
    let error = script.lake.list(options).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unsupported, "{error:?}");
}

#[tokio::test]
async fn a_lake_that_does_not_listen_is_unavailable() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let options = OpenOptions {
        endpoint: Some(endpoint),
        access_key_id: Some("id".into()),
        secret_access_key: Some("secret".into()),
        ..OpenOptions::default()
    };
    let lake = open("s3://bucket", &options).await.unwrap();
    let range = Some(GetRange::Bounded(ByteRange::new(0, 1).unwrap()));
    let error = lake
        .get(
            &key(),
            GetOptions {
                range,
                if_match: Some(Version::new("v")),
            },
        )
        .await
        .unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable, "{error:?}");
    assert!(error.to_string().contains("cannot connect"), "{error}");
}
