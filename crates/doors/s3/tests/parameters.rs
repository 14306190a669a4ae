//! Nothing in silence: `x-amz-*` names in the query of a presigned URL, checksums of every kind, and names with
//! characters that XML parsers change.

mod fixture;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use fixture::{Call, Payload, Server};

/// A presigned request.
fn presigned(server: &Server, method: &str, target: &str) -> Call {
    server
        .call(method, target)
        .signer(|signer| signer.presign_seconds = Some(60))
}

#[tokio::test]
async fn a_copy_source_in_a_presigned_url_copies() {
    let server = Server::start().await;
    server.put("source", b"what is there").await;
    let target = "/bucket/copy?x-amz-copy-source=%2Fbucket%2Fsource";
    let reply = presigned(&server, "PUT", target).send().await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert_eq!(server.get("copy").await.body, b"what is there");
}

#[tokio::test]
async fn metadata_and_tags_in_a_presigned_url_are_kept() {
    let server = Server::start().await;
    let target = "/bucket/key?X-Amz-Meta-Colour=blue&x-amz-tagging=a%3Db&x-amz-acl=private";
    let reply = presigned(&server, "PUT", target).body(b"hello").send().await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    let reply = server.get("key").await;
    assert_eq!(reply.get("x-amz-meta-colour"), Some("blue"));
    assert_eq!(reply.get("x-amz-tagging-count"), Some("1"));
}

#[tokio::test]
async fn what_a_presigned_url_cannot_get_is_refused() {
    let server = Server::start().await;
    for (parameter, status, code) in [
        ("x-amz-acl=public-read", 400, "AccessControlListNotSupported"),
        ("x-amz-storage-class=GLACIER", 400, "InvalidStorageClass"),
        ("x-amz-server-side-encryption=AES256", 501, "NotImplemented"),
        ("x-amz-something-new=1", 501, "NotImplemented"),
        ("x-amz-checksum-foo=AAAA", 501, "NotImplemented"),
    ] {
        let target = format!("/bucket/key?{parameter}");
        let reply = presigned(&server, "PUT", &target).body(b"hello").send().await;
        reply.expect_error(status, code);
    }
    assert_eq!(server.call("HEAD", "/bucket/key").send().await.status, 404);
}

#[tokio::test]
async fn a_parameter_of_a_request_that_is_signed_by_header_is_refused() {
    let server = Server::start().await;
    let reply = server
        .call("PUT", "/bucket/key?x-amz-meta-a=b")
        .body(b"hello")
        .send()
        .await;
    reply.expect_error(400, "InvalidArgument");
}

#[tokio::test]
async fn the_checksum_of_an_empty_body_in_a_presigned_url_is_no_promise() {
    let server = Server::start().await;
    let target = "/bucket/key?x-amz-checksum-crc32=AAAAAA%3D%3D&x-amz-sdk-checksum-algorithm=CRC32";
    let reply = presigned(&server, "PUT", target).body(b"hello").send().await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    let wrong = "/bucket/key?x-amz-checksum-crc32=AAAAAQ%3D%3D&x-amz-sdk-checksum-algorithm=CRC32";
    let reply = presigned(&server, "PUT", wrong).body(b"other").send().await;
    reply.expect_error(400, "BadDigest");
    assert_eq!(server.get("key").await.body, b"hello");
}

/// Checksums of "Hello world" that are compared and not kept; the xxHashes are those of the reference
/// implementation, most significant byte first.
fn checked_only() -> [(&'static str, String); 3] {
    let sha512 = "b7f783baed8297f0db917462184ff4f08e69c2d5e5f79a942600f9725f58ce1f29c18139bf80b06c0fff2bdd34738452ecf40c488c22a7e3d80cdf6f9c1c0d47";
    let bytes = |hex: &str| -> Vec<u8> {
        (0..hex.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).expect("digits"))
            .collect()
    };
    [
        ("x-amz-checksum-md5", bytes("3e25960a79dbc69b674cd4ec67a72c62")),
        ("x-amz-checksum-sha512", bytes(sha512)),
        ("x-amz-checksum-xxhash64", bytes("c500b0c912b376d8")),
    ]
    .map(|(name, digest)| (name, BASE64.encode(digest)))
}

#[tokio::test]
async fn newer_checksums_are_compared_before_the_object_is_visible() {
    let server = Server::start().await;
    for (name, value) in checked_only() {
        let put = |body: &[u8]| server.call("PUT", "/bucket/key").header(name, &value).body(body);
        put(b"Hello wor1d").send().await.expect_error(400, "BadDigest");
        assert_eq!(server.call("HEAD", "/bucket/key").send().await.status, 404);
        let reply = put(b"Hello world").send().await;
        assert_eq!(reply.status, 200, "{name}: {}", reply.text());
        server.call("DELETE", "/bucket/key").send().await;
    }
}

#[tokio::test]
async fn newer_checksums_in_trailers_are_compared_too() {
    let server = Server::start().await;
    for (name, value) in checked_only() {
        let put = |body: &[u8]| {
            let payload = Payload::Trailer(name.to_owned(), value.clone());
            let call = server.call("PUT", "/bucket/key").body(body);
            call.signer(|signer| signer.payload = payload)
        };
        put(b"Hello wor1d").send().await.expect_error(400, "BadDigest");
        let reply = put(b"Hello world").send().await;
        assert_eq!(reply.status, 200, "{name}: {}", reply.text());
    }
}

#[tokio::test]
async fn a_checksum_that_nobody_checks_is_refused_by_name() {
    let server = Server::start().await;
    let put = server
        .call("PUT", "/bucket/key")
        .header("x-amz-checksum-foo", "AAAA");
    let reply = put.body(b"hello").send().await;
    reply.expect_error(501, "NotImplemented");
    assert!(reply.text().contains("x-amz-checksum-foo"), "{}", reply.text());
    let body = b"<Delete><Object><Key>key</Key></Object></Delete>";
    let delete = server
        .call("POST", "/bucket?delete")
        .header("x-amz-checksum-md5", "AAAA");
    delete.body(body).send().await.expect_error(501, "NotImplemented");
}

#[tokio::test]
async fn a_carriage_return_in_a_key_comes_out_as_it_went_in() {
    let server = Server::start().await;
    server.put("a%0Db%0D%0Ac", b"x").await;
    for target in ["/bucket?list-type=2", "/bucket", "/bucket?versions"] {
        let text = server.call("GET", target).send().await.text();
        assert!(text.contains("<Key>a&#13;b&#13;\nc</Key>"), "{target}: {text}");
    }
    let missing = server.call("GET", "/bucket/no%0Dkey").send().await;
    assert!(missing.text().contains("no&#13;key"), "{}", missing.text());
    let body = b"<Delete><Object><Key>a&#13;b&#13;&#10;c</Key></Object></Delete>";
    let deleted = server
        .call("POST", "/bucket?delete")
        .body(body)
        .send()
        .await
        .text();
    assert!(
        deleted.contains("<Deleted><Key>a&#13;b&#13;\nc</Key>"),
        "{deleted}"
    );
    assert_eq!(
        server.call("HEAD", "/bucket/a%0Db%0D%0Ac").send().await.status,
        404
    );
}
