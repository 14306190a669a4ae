//! Authentication: signatures, regions, clocks, keys, public buckets.

mod fixture;

use fixture::{KEY, Payload, SECRET, Server};
use forebay_core::BucketName;
use forebay_s3::{Access, AccessKey, Buckets};

#[tokio::test]
async fn signed_requests_get_in_and_strangers_do_not() {
    let server = Server::start().await;
    server.put("a", b"hello").await;
    assert_eq!(server.get("a").await.body, b"hello");
    server
        .call("GET", "/bucket/a")
        .anonymous()
        .send()
        .await
        .expect_error(403, "AccessDenied");
    server
        .call("GET", "/")
        .anonymous()
        .send()
        .await
        .expect_error(403, "AccessDenied");
}

#[tokio::test]
async fn wrong_secrets_and_unknown_keys_are_told_apart() {
    let server = Server::start().await;
    server
        .call("GET", "/bucket")
        .key(KEY, "wrong")
        .send()
        .await
        .expect_error(403, "SignatureDoesNotMatch");
    server
        .call("GET", "/bucket")
        .key("nobody", SECRET)
        .send()
        .await
        .expect_error(403, "InvalidAccessKeyId");
}

#[tokio::test]
async fn header_added_after_signing_is_refused() {
    let server = Server::start().await;
    server.put("a", b"secret").await;
    let call = server
        .call("PUT", "/bucket/b")
        .header("x-amz-copy-source", "/bucket/a");
    let reply = call
        .signer(|signer| signer.unsigned.push("x-amz-copy-source".into()))
        .send()
        .await;
    reply.expect_error(403, "AccessDenied");
    assert_eq!(
        reply.element("HeadersNotSigned").as_deref(),
        Some("x-amz-copy-source")
    );
    assert_eq!(server.get("b").await.status, 404);
}

#[tokio::test]
async fn clock_skew_is_named() {
    let server = Server::start().await;
    for skew_seconds in [-3600, 3600] {
        let call = server
            .call("GET", "/bucket")
            .signer(|signer| signer.skew_seconds = skew_seconds);
        call.send().await.expect_error(403, "RequestTimeTooSkewed");
    }
    assert_eq!(
        server
            .call("GET", "/bucket")
            .signer(|signer| signer.skew_seconds = -300)
            .send()
            .await
            .status,
        200
    );
}

#[tokio::test]
async fn wrong_region_says_which_is_right() {
    let server = Server::start().await;
    let reply = server
        .call("GET", "/bucket")
        .signer(|signer| signer.region = "eu-west-1".into())
        .send()
        .await;
    reply.expect_error(400, "AuthorizationHeaderMalformed");
    assert_eq!(reply.element("Region").as_deref(), Some("us-east-1"));
    let call = server
        .call("GET", "/bucket")
        .signer(|signer| signer.service = "sts".into());
    call.send()
        .await
        .expect_error(400, "AuthorizationHeaderMalformed");
}

#[tokio::test]
async fn presigned_urls_work_for_get_put_and_head() {
    let server = Server::start().await;
    let presigned = |method: &str| {
        server
            .call(method, "/bucket/a%20b")
            .signer(|signer| signer.presign_seconds = Some(60))
    };
    assert_eq!(presigned("PUT").body(b"hello").send().await.status, 200);
    assert_eq!(presigned("GET").send().await.body, b"hello");
    assert_eq!(presigned("HEAD").send().await.get("content-length"), Some("5"));
}

#[tokio::test]
async fn presigned_urls_end_and_bind_their_headers() {
    let server = Server::start().await;
    server.put("a", b"hello").await;
    let presigned = |seconds: u64, skew: i64| {
        server.call("GET", "/bucket/a").signer(|signer| {
            signer.presign_seconds = Some(seconds);
            signer.skew_seconds = skew;
        })
    };
    presigned(60, -120).send().await.expect_error(403, "AccessDenied");
    presigned(604_801, 0)
        .send()
        .await
        .expect_error(400, "AuthorizationQueryParametersError");
    let call = presigned(60, 0).header("x-amz-meta-new", "1");
    let call = call.signer(|signer| signer.unsigned.push("x-amz-meta-new".into()));
    call.send().await.expect_error(403, "AccessDenied");
    let mut call = presigned(60, 0);
    call.method = "GET".to_owned();
    let wire = String::from_utf8(call.wire())
        .unwrap()
        .replacen("GET ", "DELETE ", 1);
    fixture::exchange(server.address, wire.as_bytes())
        .await
        .expect_error(403, "SignatureDoesNotMatch");
}

#[tokio::test]
async fn read_only_keys_and_bucket_lists_hold() {
    let server = Server::start().await;
    server.put("a", b"hello").await;
    assert_eq!(server.call("PUT", "/other").send().await.status, 200);
    let only = Buckets::Only([BucketName::new("bucket").unwrap()].into());
    server.keys.replace([
        AccessKey {
            id: "ro".into(),
            secret: "s1".into(),
            access: Access::ReadOnly,
            buckets: Buckets::All,
        },
        AccessKey {
            id: "one".into(),
            secret: "s2".into(),
            access: Access::ReadWrite,
            buckets: only,
        },
    ]);
    let ro = |method: &str, target: &str| server.call(method, target).key("ro", "s1");
    let one = |method: &str, target: &str| server.call(method, target).key("one", "s2");
    assert_eq!(ro("GET", "/bucket/a").send().await.body, b"hello");
    ro("PUT", "/bucket/a")
        .body(b"x")
        .send()
        .await
        .expect_error(403, "AccessDenied");
    ro("DELETE", "/bucket/a")
        .send()
        .await
        .expect_error(403, "AccessDenied");
    ro("POST", "/bucket/a?uploads")
        .send()
        .await
        .expect_error(403, "AccessDenied");
    assert_eq!(one("PUT", "/bucket/b").body(b"x").send().await.status, 200);
    one("GET", "/other")
        .send()
        .await
        .expect_error(403, "AccessDenied");
    assert_eq!(one("GET", "/").send().await.elements("Name"), ["bucket"]);
    let copy = one("PUT", "/bucket/c").header("x-amz-copy-source", "/other/x");
    copy.send().await.expect_error(403, "AccessDenied");
    // The key that started is gone.
    server
        .call("GET", "/bucket/a")
        .send()
        .await
        .expect_error(403, "InvalidAccessKeyId");
}

#[tokio::test]
async fn public_buckets_can_be_read_by_anybody_but_not_written() {
    let name = BucketName::new("bucket").unwrap();
    let server = Server::start_with(|options| {
        options.public_read.insert(name);
    })
    .await;
    server.put("a", b"hello").await;
    assert_eq!(
        server.call("GET", "/bucket/a").anonymous().send().await.body,
        b"hello"
    );
    assert_eq!(
        server
            .call("GET", "/bucket?list-type=2")
            .anonymous()
            .send()
            .await
            .elements("Key"),
        ["a"]
    );
    server
        .call("PUT", "/bucket/b")
        .anonymous()
        .body(b"x")
        .send()
        .await
        .expect_error(403, "AccessDenied");
    server
        .call("DELETE", "/bucket/a")
        .anonymous()
        .send()
        .await
        .expect_error(403, "AccessDenied");
    let evil = server
        .call("GET", "/bucket/a?response-content-type=text%2Fhtml")
        .anonymous();
    evil.send().await.expect_error(400, "InvalidRequest");
}

#[tokio::test]
async fn old_signatures_and_forms_are_refused() {
    let server = Server::start().await;
    let v2 = server
        .call("GET", "/bucket/a")
        .anonymous()
        .header("authorization", "AWS key:c2ln");
    v2.send().await.expect_error(400, "InvalidRequest");
    let form = server
        .call("POST", "/bucket")
        .anonymous()
        .header("content-type", "multipart/form-data; boundary=x");
    form.body(b"--x--")
        .send()
        .await
        .expect_error(501, "NotImplemented");
}

#[tokio::test]
async fn bodies_must_match_their_signature() {
    let server = Server::start().await;
    let wrong = fixture::sign::hex(&[7; 32]);
    let put = |payload: Payload| {
        server
            .call("PUT", "/bucket/a")
            .signer(|signer| signer.payload = payload)
    };
    put(Payload::Claimed(wrong))
        .body(b"hello")
        .send()
        .await
        .expect_error(400, "XAmzContentSHA256Mismatch");
    let broken = put(Payload::Chunked(65_536)).signer(|signer| signer.broken_chunk = Some(1));
    broken
        .body(&[1; 100_000])
        .send()
        .await
        .expect_error(403, "SignatureDoesNotMatch");
    assert_eq!(server.get("a").await.status, 404);
    assert_eq!(
        put(Payload::Chunked(65_536))
            .body(&[1; 200_000])
            .send()
            .await
            .status,
        200
    );
    let got = server.get("a").await;
    assert_eq!(got.body, [1; 200_000]);
    assert_eq!(got.get("content-encoding"), None);
    assert_eq!(put(Payload::Unsigned).body(b"plain").send().await.status, 200);
    assert_eq!(server.get("a").await.body, b"plain");
}
