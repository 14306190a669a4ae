//! Bodies in odd frames, metadata with odd names, requests with odd targets.

mod fixture;

use fixture::{Payload, Server, exchange};
use s3s::crypto::{Checksum as _, Crc32, Md5};

fn base64(bytes: &[u8]) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

#[tokio::test]
async fn a_body_in_one_large_unsigned_chunk_arrives_whole() {
    let server = Server::start().await;
    let body: Vec<u8> = (0..5_000_000u32).map(|n| (n % 251) as u8).collect();
    let checksum = base64(&Crc32::checksum(&body));
    let trailer = Payload::Trailer("x-amz-checksum-crc32".to_owned(), checksum.clone());
    let reply = server
        .call("PUT", "/bucket/large")
        .body(&body)
        .signer(|signer| signer.payload = trailer)
        .send()
        .await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert_eq!(reply.get("x-amz-checksum-crc32"), Some(checksum.as_str()));
    assert!(server.get("large").await.body == body);
}

#[tokio::test]
async fn a_signed_chunk_larger_than_we_hold_is_refused() {
    let server = Server::start().await;
    let body = vec![7; (16 << 20) + 1];
    let reply = server
        .call("PUT", "/bucket/large")
        .body(&body)
        .signer(|signer| signer.payload = Payload::Chunked(body.len()))
        .send()
        .await;
    reply.expect_error(400, "InvalidRequest");
    assert!(reply.text().contains("16 MiB"), "{}", reply.text());
    assert_eq!(server.get("large").await.status, 404);
}

#[tokio::test]
async fn metadata_named_like_ours_comes_back_and_changes_nothing() {
    let server = Server::start().await;
    let names = ["x-amz-meta-forebay-extras", "x-amz-meta-forebay-client-a"];
    let mut call = server.call("PUT", "/bucket/k").body(b"x");
    for name in names {
        call = call.header(name, "theirs");
    }
    assert_eq!(call.send().await.status, 200);
    let reply = server.get("k").await;
    for name in names {
        assert_eq!(reply.get(name), Some("theirs"), "{name}");
    }
}

#[tokio::test]
async fn odd_request_targets_are_the_clients_error() {
    let server = Server::start().await;
    for line in [
        "CONNECT a:1 HTTP/1.1",
        "GET * HTTP/1.1",
        "GET http://h HTTP/1.1",
        "GET //bucket/k HTTP/1.1",
        "GET /bucket/%ff HTTP/1.1",
        "GET /bucket?list-type=2&prefix=%ff HTTP/1.1",
        "PUT /bucket/%00 HTTP/1.1",
        "TRACE /bucket HTTP/1.1",
        "POST / HTTP/1.1",
    ] {
        let wire = format!("{line}\r\nhost: h\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
        let reply = exchange(server.address, wire.as_bytes()).await;
        assert!(
            (400..500).contains(&reply.status) || reply.status == 501,
            "{line}: {reply:?}"
        );
    }
    assert_eq!(server.call("PUT", "/bucket/%00").send().await.status, 400);
    assert_eq!(server.call("GET", "/bucket/%00").send().await.status, 400);
}

#[tokio::test]
async fn a_client_that_is_refused_before_its_body_reads_why_and_that_the_connection_ends() {
    let server = Server::start().await;
    assert_eq!(
        server.call("PUT", "/bucket/k").body(b"old").send().await.status,
        200
    );
    let body = vec![7; 4 << 20];
    for _ in 0..20 {
        let call = server.call("PUT", "/bucket/k").header("if-none-match", "*");
        let reply = call.body(&body).send().await;
        reply.expect_error(412, "PreconditionFailed");
        assert_eq!(reply.get("connection"), Some("close"));
    }
    assert_eq!(server.get("k").await.body, b"old");
}

#[tokio::test]
async fn a_document_that_does_not_match_its_md5_does_nothing() {
    let server = Server::start().await;
    server.put("a", b"x").await;
    let document = b"<Delete><Object><Key>a</Key></Object></Delete>";
    let delete = |md5: &str| {
        let call = server.call("POST", "/bucket?delete").header("content-md5", md5);
        call.body(document).send()
    };
    let (right, wrong) = (base64(&Md5::checksum(document)), base64(&Md5::checksum(b"other")));
    delete(&wrong).await.expect_error(400, "BadDigest");
    delete("abc").await.expect_error(400, "InvalidDigest");
    assert_eq!(server.get("a").await.status, 200);
    assert_eq!(delete(&right).await.status, 200);
    server.get("a").await.expect_error(404, "NoSuchKey");
}

#[tokio::test]
async fn a_key_too_long_for_its_place_in_the_lake_is_refused_as_such() {
    let server = Server::start().await;
    // `bucket/` stands before it in the lake.
    let (longest, longer) = ("k".repeat(1017), "k".repeat(1018));
    assert_eq!(server.put(&longest, b"x").await.status, 200);
    for method in ["PUT", "GET", "DELETE"] {
        let reply = server.call(method, &format!("/bucket/{longer}")).send().await;
        reply.expect_error(400, "KeyTooLongError");
        assert!(reply.text().contains("at most 1017 bytes"), "{}", reply.text());
    }
}
