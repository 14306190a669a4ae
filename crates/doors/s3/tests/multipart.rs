//! Multipart uploads from create to complete, and everything that can be wrong with them.
#![allow(clippy::unwrap_used, reason = "a broken step should fail the test")]

mod fixture;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use fixture::{Reply, Server};
use s3s::crypto::{Checksum as _, Crc32, Crc64Nvme};

const PART: usize = 5 << 20;

async fn create(server: &Server, headers: &[(&str, &str)]) -> String {
    let mut call = server.call("POST", "/bucket/big?uploads");
    for (name, value) in headers {
        call = call.header(name, value);
    }
    let reply = call.send().await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply.element("UploadId").unwrap()
}

async fn upload(server: &Server, id: &str, number: u32, body: &[u8]) -> String {
    let reply = server
        .call("PUT", &format!("/bucket/big?partNumber={number}&uploadId={id}"))
        .body(body)
        .send()
        .await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply.get("etag").unwrap().to_owned()
}

async fn complete(server: &Server, id: &str, parts: &[(u32, &str)]) -> Reply {
    let parts: String = parts
        .iter()
        .map(|(number, etag)| format!("<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>"))
        .collect();
    let xml = format!("<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>");
    server
        .call("POST", &format!("/bucket/big?uploadId={id}"))
        .body(xml.as_bytes())
        .send()
        .await
}

#[tokio::test]
async fn parts_become_one_object() {
    let server = Server::start().await;
    let id = create(&server, &[("x-amz-meta-colour", "blue"), ("content-type", "a/b")]).await;
    let (one, two) = (vec![1; PART], vec![2; 10]);
    let second = upload(&server, &id, 7, &two).await;
    upload(&server, &id, 3, b"replaced").await;
    let first = upload(&server, &id, 3, &one).await;

    let listed = server
        .call("GET", &format!("/bucket/big?uploadId={id}"))
        .send()
        .await;
    assert_eq!(listed.elements("PartNumber"), ["3", "7"]);
    let page = server
        .call("GET", &format!("/bucket/big?uploadId={id}&max-parts=1"))
        .send()
        .await;
    assert_eq!(
        (
            page.element("IsTruncated").as_deref(),
            page.element("NextPartNumberMarker").as_deref()
        ),
        (Some("true"), Some("3"))
    );
    let rest = server
        .call("GET", &format!("/bucket/big?uploadId={id}&part-number-marker=3"))
        .send()
        .await;
    assert_eq!(rest.elements("PartNumber"), ["7"]);
    assert_eq!(server.get("big").await.status, 404);

    let done = complete(&server, &id, &[(3, &first), (7, &second)]).await;
    assert_eq!(done.status, 200, "{}", done.text());
    assert!(done.element("ETag").unwrap().contains("-2"), "{}", done.text());
    let got = server.get("big").await;
    assert!(got.body == [one, two.clone()].concat());
    assert_eq!(
        (got.get("x-amz-meta-colour"), got.get("content-type")),
        (Some("blue"), Some("a/b"))
    );

    let part = server.call("GET", "/bucket/big?partNumber=2").send().await;
    assert_eq!(
        (
            part.status,
            part.body,
            part.headers
                .iter()
                .find(|(name, _)| name == "x-amz-mp-parts-count")
                .map(|(_, count)| count.as_str())
        ),
        (206, two, Some("2"))
    );
    let head = server.call("HEAD", "/bucket/big?partNumber=1").send().await;
    assert_eq!((head.status, head.get("content-length")), (206, Some("5242880")));
    server
        .call("GET", "/bucket/big?partNumber=3")
        .send()
        .await
        .expect_error(416, "InvalidPartNumber");
    complete(&server, &id, &[(3, &first)])
        .await
        .expect_error(404, "NoSuchUpload");
}

#[tokio::test]
async fn wrong_part_lists_are_refused() {
    let server = Server::start().await;
    let id = create(&server, &[]).await;
    let first = upload(&server, &id, 1, &vec![1; PART]).await;
    let small = upload(&server, &id, 2, b"small").await;
    let last = upload(&server, &id, 3, b"last").await;
    complete(&server, &id, &[(2, &small), (1, &first)])
        .await
        .expect_error(400, "InvalidPartOrder");
    complete(&server, &id, &[(1, "\"abc\"")])
        .await
        .expect_error(400, "InvalidPart");
    complete(&server, &id, &[(1, &first), (9, &last)])
        .await
        .expect_error(400, "InvalidPart");
    complete(&server, &id, &[(1, &first), (2, &small), (3, &last)])
        .await
        .expect_error(400, "EntityTooSmall");
    complete(&server, &id, &[])
        .await
        .expect_error(400, "MalformedXML");
    complete(&server, "nonsense", &[(1, &first)])
        .await
        .expect_error(404, "NoSuchUpload");
    let junk = server
        .call("POST", &format!("/bucket/big?uploadId={id}"))
        .body(b"<CompleteMulti")
        .send()
        .await;
    junk.expect_error(400, "MalformedXML");
    for number in ["0", "10001", "-1", "99999999999", "x"] {
        let target = format!("/bucket/big?partNumber={number}&uploadId={id}");
        server
            .call("PUT", &target)
            .body(b"x")
            .send()
            .await
            .expect_error(400, "InvalidArgument");
    }
    assert_eq!(
        complete(&server, &id, &[(1, &first), (3, &last)]).await.status,
        200
    );
}

#[tokio::test]
async fn aborted_uploads_are_gone() {
    let server = Server::start().await;
    let id = create(&server, &[]).await;
    let etag = upload(&server, &id, 1, b"x").await;
    assert_eq!(
        server
            .call("DELETE", &format!("/bucket/big?uploadId={id}"))
            .send()
            .await
            .status,
        204
    );
    complete(&server, &id, &[(1, &etag)])
        .await
        .expect_error(404, "NoSuchUpload");
    server
        .call("PUT", &format!("/bucket/big?partNumber=1&uploadId={id}"))
        .body(b"x")
        .send()
        .await
        .expect_error(404, "NoSuchUpload");
    assert!(
        server
            .call("GET", "/bucket?uploads")
            .send()
            .await
            .elements("UploadId")
            .is_empty()
    );
}

#[tokio::test]
async fn open_uploads_are_listed_in_pages() {
    let server = Server::start().await;
    let mut expected = Vec::new();
    for key in ["a", "b/1", "b/2", "c"] {
        let reply = server
            .call("POST", &format!("/bucket/{key}?uploads"))
            .send()
            .await;
        expected.push((key.to_owned(), reply.element("UploadId").unwrap()));
    }
    let mut seen = Vec::new();
    let mut markers = String::new();
    loop {
        let page = server
            .call("GET", &format!("/bucket?uploads&max-uploads=1{markers}"))
            .send()
            .await;
        seen.extend(page.elements("Key").into_iter().zip(page.elements("UploadId")));
        let Some(key) = page.element("NextKeyMarker") else {
            break;
        };
        let id = page.element("NextUploadIdMarker").unwrap();
        markers = format!(
            "&key-marker={}&upload-id-marker={id}",
            fixture::sign::encode(&key)
        );
    }
    assert_eq!(seen, expected);
    let grouped = server.call("GET", "/bucket?uploads&delimiter=%2F").send().await;
    assert_eq!(
        (
            grouped.elements("Key"),
            grouped.elements("Prefix").first().cloned()
        ),
        (vec!["a".into(), "c".into()], Some("b/".into()))
    );
}

#[tokio::test]
async fn full_object_checksums_are_combined_and_compared() {
    let server = Server::start().await;
    let (one, two) = (vec![1; PART], vec![2; 1000]);
    let whole = BASE64.encode(Crc64Nvme::checksum(&[one.clone(), two.clone()].concat()));
    let id = create(&server, &[("x-amz-checksum-algorithm", "CRC64NVME")]).await;
    let mut parts = String::new();
    for (number, body) in [(1, &one), (2, &two)] {
        let value = BASE64.encode(Crc64Nvme::checksum(body));
        let call = server.call("PUT", &format!("/bucket/big?partNumber={number}&uploadId={id}"));
        let reply = call
            .header("x-amz-checksum-crc64nvme", &value)
            .body(body)
            .send()
            .await;
        assert_eq!(reply.get("x-amz-checksum-crc64nvme"), Some(value.as_str()));
        let etag = reply.get("etag").unwrap();
        parts.push_str(&format!(
            "<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>"
        ));
    }
    let xml = format!("<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>");
    let complete = || {
        server
            .call("POST", &format!("/bucket/big?uploadId={id}"))
            .body(xml.as_bytes())
    };
    let wrong = complete()
        .header("x-amz-checksum-crc64nvme", "AAAAAAAAAAA=")
        .header("x-amz-checksum-type", "FULL_OBJECT");
    wrong.send().await.expect_error(400, "BadDigest");
    let right = complete()
        .header("x-amz-checksum-crc64nvme", &whole)
        .header("x-amz-checksum-type", "FULL_OBJECT");
    let right = right.send().await;
    assert_eq!(
        right.element("ChecksumCRC64NVME"),
        Some(whole.clone()),
        "{}",
        right.text()
    );
    let head = server
        .call("HEAD", "/bucket/big")
        .header("x-amz-checksum-mode", "ENABLED")
        .send()
        .await;
    assert_eq!(head.get("x-amz-checksum-crc64nvme"), Some(whole.as_str()));
    assert_eq!(head.get("x-amz-checksum-type"), Some("FULL_OBJECT"));
}

#[tokio::test]
async fn composite_checksums_name_their_parts() {
    let server = Server::start().await;
    let id = create(&server, &[("x-amz-checksum-algorithm", "CRC32")]).await;
    let digest = Crc32::checksum(b"only");
    let call = server.call("PUT", &format!("/bucket/big?partNumber=1&uploadId={id}"));
    let reply = call
        .header("x-amz-checksum-crc32", &BASE64.encode(digest))
        .body(b"only")
        .send()
        .await;
    let done = complete(&server, &id, &[(1, reply.get("etag").unwrap())]).await;
    let expected = format!("{}-1", BASE64.encode(Crc32::checksum(&digest)));
    assert_eq!(done.element("ChecksumCRC32"), Some(expected), "{}", done.text());
    assert_eq!(done.element("ChecksumType").as_deref(), Some("COMPOSITE"));
    let wrong = server
        .call("POST", "/bucket/x?uploads")
        .header("x-amz-checksum-algorithm", "SHA256");
    wrong
        .header("x-amz-checksum-type", "FULL_OBJECT")
        .send()
        .await
        .expect_error(400, "InvalidRequest");
}

#[tokio::test]
async fn parts_can_be_copied_from_objects() {
    let server = Server::start().await;
    server.put("source", &vec![9; PART + 100]).await;
    let id = create(&server, &[]).await;
    let copy = |number: u32, range: &str| {
        let call = server.call("PUT", &format!("/bucket/big?partNumber={number}&uploadId={id}"));
        call.header("x-amz-copy-source", "bucket/source")
            .header("x-amz-copy-source-range", range)
    };
    let first = copy(1, &format!("bytes=0-{}", PART - 1)).send().await;
    assert_eq!(first.status, 200, "{}", first.text());
    let second = copy(2, &format!("bytes={PART}-{}", PART + 99)).send().await;
    let etag = |reply: &Reply| reply.element("ETag").unwrap().replace("&quot;", "\"");
    let reply = complete(&server, &id, &[(1, &etag(&first)), (2, &etag(&second))]).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert!(server.get("big").await.body == vec![9; PART + 100]);
    let id = create(&server, &[]).await;
    let past_end = server.call("PUT", &format!("/bucket/big?partNumber=1&uploadId={id}"));
    let past_end = past_end
        .header("x-amz-copy-source", "bucket/source")
        .header("x-amz-copy-source-range", "bytes=0-99999999");
    assert!((400..=416).contains(&past_end.send().await.status));
}

#[tokio::test]
async fn completion_can_be_conditional() {
    let server = Server::start().await;
    server.put("big", b"there").await;
    let id = create(&server, &[]).await;
    let etag = upload(&server, &id, 1, b"x").await;
    let xml = format!(
        "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{etag}</ETag></Part></CompleteMultipartUpload>"
    );
    let call = server
        .call("POST", &format!("/bucket/big?uploadId={id}"))
        .body(xml.as_bytes())
        .header("if-none-match", "*");
    call.send().await.expect_error(412, "PreconditionFailed");
    assert_eq!(server.get("big").await.body, b"there");
}
