//! Objects: put, get, head, ranges, conditions, metadata, checksums.

mod fixture;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use fixture::{Payload, Server};
use s3s::crypto::{Checksum as _, Crc32, Crc32c, Crc64Nvme, Md5, Sha1, Sha256};

#[tokio::test]
async fn what_was_put_comes_back() {
    let server = Server::start().await;
    let put = server
        .call("PUT", "/bucket/dir/a%20b%2Bc")
        .header("content-type", "text/plain")
        .header("cache-control", "no-store")
        .header("content-disposition", "inline")
        .header("content-language", "de")
        .header("content-encoding", "gzip")
        .header("expires", "Wed, 21 Oct 2026 07:28:00 GMT")
        .header("x-amz-meta-colour", "blue")
        .body(b"hello");
    let put = put.send().await;
    assert_eq!(put.status, 200, "{}", put.text());
    let got = server.call("GET", "/bucket/dir/a%20b%2Bc").send().await;
    assert_eq!((got.status, got.body.as_slice()), (200, &b"hello"[..]));
    for (name, value) in [
        ("content-type", "text/plain"),
        ("cache-control", "no-store"),
        ("content-disposition", "inline"),
        ("content-language", "de"),
        ("content-encoding", "gzip"),
        ("expires", "Wed, 21 Oct 2026 07:28:00 GMT"),
        ("x-amz-meta-colour", "blue"),
        ("content-length", "5"),
        ("accept-ranges", "bytes"),
    ] {
        assert_eq!(got.get(name), Some(value), "{name}");
    }
    assert_eq!(got.get("etag"), put.get("etag"));
    assert_eq!(got.get("x-amz-meta-forebay-expires"), None);
    let head = server.call("HEAD", "/bucket/dir/a%20b%2Bc").send().await;
    assert_eq!(
        (head.status, head.get("content-length"), head.get("etag")),
        (200, Some("5"), got.get("etag"))
    );
}

#[tokio::test]
async fn ranges_follow_s3() {
    let server = Server::start().await;
    server.put("a", b"0123456789").await;
    let get = |range: &str| server.call("GET", "/bucket/a").header("range", range);
    for (range, body, shown) in [
        ("bytes=0-0", "0", "bytes 0-0/10"),
        ("bytes=3-5", "345", "bytes 3-5/10"),
        ("bytes=8-99", "89", "bytes 8-9/10"),
        ("bytes=7-", "789", "bytes 7-9/10"),
        ("bytes=-3", "789", "bytes 7-9/10"),
        ("bytes=-30", "0123456789", "bytes 0-9/10"),
    ] {
        let reply = get(range).send().await;
        assert_eq!(
            (reply.status, reply.text().as_str(), reply.get("content-range")),
            (206, body, Some(shown)),
            "{range}"
        );
        let head = server
            .call("HEAD", "/bucket/a")
            .header("range", range)
            .send()
            .await;
        assert_eq!(
            (head.status, head.get("content-range")),
            (206, Some(shown)),
            "HEAD {range}"
        );
    }
    for range in ["bytes=10-", "bytes=10-12", "bytes=-0"] {
        let reply = get(range).send().await;
        reply.expect_error(416, "InvalidRange");
        assert_eq!(reply.get("content-range"), Some("bytes */10"), "{range}");
        assert_eq!(reply.get("content-type"), Some("application/xml"), "{range}");
        let head = server
            .call("HEAD", "/bucket/a")
            .header("range", range)
            .send()
            .await;
        assert_eq!(
            (head.status, head.get("content-range")),
            (416, Some("bytes */10")),
            "HEAD {range}"
        );
    }
    // S3 answers what it does not understand with the whole object.
    for range in ["bytes=0-1,4-5", "bytes=5-2", "items=0-1", "bytes=x"] {
        let reply = get(range).send().await;
        assert_eq!(
            (reply.status, reply.text().as_str(), reply.get("content-range")),
            (200, "0123456789", None),
            "{range}"
        );
        let presigned = get(range)
            .signer(|signer| signer.presign_seconds = Some(60))
            .send()
            .await;
        assert_eq!(presigned.status, 200, "{range}");
        get(range)
            .key("test-key", "wrong")
            .send()
            .await
            .expect_error(403, "SignatureDoesNotMatch");
        get(range)
            .anonymous()
            .send()
            .await
            .expect_error(403, "AccessDenied");
    }
}

#[tokio::test]
async fn large_objects_come_back_whole_and_in_parts() {
    let server = Server::start().await;
    let body: Vec<u8> = (0..3_500_000_u32).map(|i| (i * 7 % 251) as u8).collect();
    server.put("big", &body).await;
    assert!(server.get("big").await.body == body);
    let reply = server
        .call("GET", "/bucket/big")
        .header("range", "bytes=1048570-2097160")
        .send()
        .await;
    assert!(reply.body == body[1_048_570..=2_097_160]);
}

#[tokio::test]
async fn empty_objects_are_objects() {
    let server = Server::start().await;
    server.put("empty", b"").await;
    let got = server.get("empty").await;
    assert_eq!(
        (got.status, got.get("content-length"), got.body.len()),
        (200, Some("0"), 0)
    );
    let range = server
        .call("GET", "/bucket/empty")
        .header("range", "bytes=0-")
        .send()
        .await;
    range.expect_error(416, "InvalidRange");
}

#[tokio::test]
async fn conditions_decide_reads() {
    let server = Server::start().await;
    let etag = server.put("a", b"hello").await.get("etag").unwrap().to_owned();
    let past = "Wed, 21 Oct 2015 07:28:00 GMT";
    let future = "Wed, 21 Oct 2099 07:28:00 GMT";
    for method in ["GET", "HEAD"] {
        for (name, value, status) in [
            ("if-match", etag.as_str(), 200),
            ("if-match", "*", 200),
            ("if-match", "\"other\"", 412),
            ("if-none-match", etag.as_str(), 304),
            ("if-none-match", "\"other\"", 200),
            ("if-modified-since", past, 200),
            ("if-modified-since", future, 304),
            ("if-unmodified-since", past, 412),
            ("if-unmodified-since", future, 200),
        ] {
            let reply = server.call(method, "/bucket/a").header(name, value).send().await;
            assert_eq!(reply.status, status, "{method} {name}: {value}");
            if status == 304 {
                assert_eq!((reply.get("etag"), reply.body.len()), (Some(etag.as_str()), 0));
            }
        }
    }
}

#[tokio::test]
async fn conditions_decide_writes() {
    let server = Server::start().await;
    let put = |name: &str, value: &str| server.call("PUT", "/bucket/a").header(name, value).body(b"new");
    put("if-match", "\"abc\"")
        .send()
        .await
        .expect_error(404, "NoSuchKey");
    assert_eq!(put("if-none-match", "*").send().await.status, 200);
    put("if-none-match", "*")
        .send()
        .await
        .expect_error(412, "PreconditionFailed");
    let etag = server.get("a").await.get("etag").unwrap().to_owned();
    put("if-match", "\"abc\"")
        .send()
        .await
        .expect_error(412, "PreconditionFailed");
    assert_eq!(put("if-match", &etag).send().await.status, 200);
    put("if-none-match", "\"abc\"")
        .send()
        .await
        .expect_error(501, "NotImplemented");
}

#[tokio::test]
async fn response_headers_can_be_overridden() {
    let server = Server::start().await;
    server.put("a", b"hello").await;
    let target = "/bucket/a?response-cache-control=no-cache&response-content-type=text%2Fhtml";
    for method in ["GET", "HEAD"] {
        let reply = server.call(method, target).send().await;
        let shown = (reply.get("content-type"), reply.get("cache-control"));
        assert_eq!(shown, (Some("text/html"), Some("no-cache")), "{method}");
    }
}

#[tokio::test]
async fn every_checksum_is_verified_kept_and_returned() {
    let server = Server::start().await;
    let body = b"checksummed";
    let checksums = [
        ("x-amz-checksum-crc32", BASE64.encode(Crc32::checksum(body))),
        ("x-amz-checksum-crc32c", BASE64.encode(Crc32c::checksum(body))),
        (
            "x-amz-checksum-crc64nvme",
            BASE64.encode(Crc64Nvme::checksum(body)),
        ),
        ("x-amz-checksum-sha1", BASE64.encode(Sha1::checksum(body))),
        ("x-amz-checksum-sha256", BASE64.encode(Sha256::checksum(body))),
    ];
    for (name, value) in &checksums {
        let in_header = server.call("PUT", "/bucket/a").header(name, value);
        let trailer = Payload::Trailer((*name).to_owned(), value.clone());
        let in_trailer = server
            .call("PUT", "/bucket/a")
            .signer(|signer| signer.payload = trailer);
        for call in [in_header, in_trailer] {
            let put = call.clone().body(body).send().await;
            assert_eq!(
                (put.status, put.get(name)),
                (200, Some(value.as_str())),
                "{name} {}",
                put.text()
            );
            let get = server
                .call("GET", "/bucket/a")
                .header("x-amz-checksum-mode", "ENABLED")
                .send()
                .await;
            assert_eq!(
                (get.get(name), get.get("x-amz-checksum-type")),
                (Some(value.as_str()), Some("FULL_OBJECT"))
            );
            assert_eq!(server.get("a").await.get(name), None);
            let range = server
                .call("GET", "/bucket/a")
                .header("x-amz-checksum-mode", "ENABLED");
            assert_eq!(range.header("range", "bytes=0-1").send().await.get(name), None);
            call.body(b"something else")
                .send()
                .await
                .expect_error(400, "BadDigest");
        }
    }
    assert_eq!(server.get("a").await.body, body);
}

#[tokio::test]
async fn content_md5_is_checked() {
    let server = Server::start().await;
    let put = |md5: &str| {
        server
            .call("PUT", "/bucket/a")
            .header("content-md5", md5)
            .body(b"hello")
    };
    put(&BASE64.encode(Md5::checksum(b"other")))
        .send()
        .await
        .expect_error(400, "BadDigest");
    put("nonsense").send().await.expect_error(400, "InvalidDigest");
    assert_eq!(server.get("a").await.status, 404);
    assert_eq!(
        put(&BASE64.encode(Md5::checksum(b"hello"))).send().await.status,
        200
    );
}

#[tokio::test]
async fn broken_bodies_leave_the_old_object() {
    let server = Server::start().await;
    server.put("a", b"old").await;
    let trailer = Payload::Trailer("x-amz-checksum-crc32".into(), "AAAAAA==".into());
    let call = server
        .call("PUT", "/bucket/a")
        .body(b"new body")
        .signer(|signer| signer.payload = trailer);
    let wire = call.wire();
    // Cut in the middle of the chunk, before the trailer, and with a wrong chunk size.
    for cut in [wire.len() - 40, wire.len() - 30, wire.len() - 1] {
        let mut stream = tokio::net::TcpStream::connect(server.address).await.unwrap();
        tokio::io::AsyncWriteExt::write_all(&mut stream, &wire[..cut])
            .await
            .unwrap();
        drop(stream);
    }
    let text = String::from_utf8_lossy(&wire).into_owned();
    for (from, to) in [
        ("8\r\nnew", "9\r\nnew"),
        ("8\r\nnew", "zz\r\nnew"),
        ("8\r\nnew", "ffffffffff\r\nnew"),
    ] {
        let reply = fixture::exchange(server.address, text.replace(from, to).as_bytes()).await;
        assert!(
            (400..500).contains(&reply.status),
            "{} {}",
            reply.status,
            reply.text()
        );
    }
    assert_eq!(server.get("a").await.body, b"old");
}

#[tokio::test]
async fn metadata_and_keys_have_limits() {
    let server = Server::start().await;
    let put = server
        .call("PUT", "/bucket/a")
        .header("x-amz-meta-big", &"x".repeat(3000))
        .body(b"x");
    put.send().await.expect_error(400, "MetadataTooLarge");
    let long = format!("/bucket/{}", "k".repeat(1025));
    server
        .call("PUT", &long)
        .body(b"x")
        .send()
        .await
        .expect_error(400, "KeyTooLongError");
    server
        .call("PUT", "/bucket/.forebay/x")
        .body(b"x")
        .send()
        .await
        .expect_error(400, "InvalidArgument");
    server
        .call("GET", "/bucket/.forebay/bucket.json")
        .send()
        .await
        .expect_error(404, "NoSuchKey");
    server
        .call("DELETE", "/bucket/.forebay/bucket.json")
        .send()
        .await
        .expect_error(400, "InvalidArgument");
    server
        .call("PUT", "/bucket/a")
        .header("x-amz-server-side-encryption", "AES256")
        .body(b"x")
        .send()
        .await
        .expect_error(501, "NotImplemented");
}

#[tokio::test]
async fn missing_things_have_their_own_codes() {
    let server = Server::start().await;
    server.get("nothing").await.expect_error(404, "NoSuchKey");
    server
        .call("GET", "/no-such-bucket/a")
        .send()
        .await
        .expect_error(404, "NoSuchBucket");
    server
        .call("PUT", "/no-such-bucket/a")
        .body(b"x")
        .send()
        .await
        .expect_error(404, "NoSuchBucket");
    server
        .call("GET", "/no-such-bucket")
        .send()
        .await
        .expect_error(404, "NoSuchBucket");
    server
        .call("GET", "/Bad_Bucket/a")
        .send()
        .await
        .expect_error(400, "InvalidBucketName");
    assert_eq!(server.call("HEAD", "/bucket/nothing").send().await.status, 404);
    assert_eq!(server.call("HEAD", "/no-such-bucket").send().await.status, 404);
    server
        .call("GET", "/bucket/a?versionId=abc")
        .send()
        .await
        .expect_error(404, "NoSuchVersion");
    server
        .call("PUT", "/bucket")
        .send()
        .await
        .expect_error(409, "BucketAlreadyOwnedByYou");
}
