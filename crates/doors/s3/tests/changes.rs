//! Copies, deletes and tags.

mod fixture;

use fixture::{Payload, Server};

#[tokio::test]
async fn copies_keep_or_replace_metadata() {
    let server = Server::start().await;
    let put = server
        .call("PUT", "/bucket/a/b")
        .header("x-amz-meta-colour", "blue")
        .header("content-type", "a/b");
    assert_eq!(put.body(b"hello").send().await.status, 200);
    let copy = |target: &str| {
        server
            .call("PUT", target)
            .header("x-amz-copy-source", "/bucket/a%2Fb")
    };
    let kept = copy("/bucket/kept").send().await;
    assert_eq!(kept.status, 200, "{}", kept.text());
    assert!(
        kept.element("ETag").is_some() && kept.element("LastModified").is_some(),
        "{}",
        kept.text()
    );
    let got = server.get("kept").await;
    assert_eq!(
        (
            got.body.as_slice(),
            got.get("x-amz-meta-colour"),
            got.get("content-type")
        ),
        (&b"hello"[..], Some("blue"), Some("a/b"))
    );
    let replaced = copy("/bucket/new")
        .header("x-amz-metadata-directive", "REPLACE")
        .header("x-amz-meta-shape", "round");
    assert_eq!(replaced.send().await.status, 200);
    let got = server.get("new").await;
    assert_eq!(
        (got.get("x-amz-meta-colour"), got.get("x-amz-meta-shape")),
        (None, Some("round"))
    );
    copy("/bucket/a/b")
        .send()
        .await
        .expect_error(400, "InvalidRequest");
    let itself = copy("/bucket/a/b")
        .header("x-amz-metadata-directive", "REPLACE")
        .send()
        .await;
    assert_eq!(itself.status, 200, "{}", itself.text());
    assert_eq!(server.get("a/b").await.get("x-amz-meta-colour"), None);
    let conditional = copy("/bucket/c").header("x-amz-copy-source-if-match", "\"other\"");
    conditional.send().await.expect_error(412, "PreconditionFailed");
    let missing = server
        .call("PUT", "/bucket/c")
        .header("x-amz-copy-source", "/bucket/missing");
    missing.send().await.expect_error(404, "NoSuchKey");
    assert_eq!(server.call("PUT", "/other").send().await.status, 200);
    assert_eq!(copy("/other/across").send().await.status, 200);
    assert_eq!(server.call("GET", "/other/across").send().await.body, b"hello");
}

#[tokio::test]
async fn deletes_are_repeatable() {
    let server = Server::start().await;
    server.put("a", b"x").await;
    for _ in 0..2 {
        assert_eq!(server.call("DELETE", "/bucket/a").send().await.status, 204);
    }
    assert_eq!(server.get("a").await.status, 404);
}

#[tokio::test]
async fn many_keys_are_deleted_at_once() {
    let server = Server::start().await;
    for key in ["a", "b", "c"] {
        server.put(key, b"x").await;
    }
    let delete = |xml: &str| server.call("POST", "/bucket?delete").body(xml.as_bytes());
    let loud = delete("<Delete><Object><Key>a</Key></Object><Object><Key>nothing</Key></Object></Delete>")
        .send()
        .await;
    assert_eq!(
        (loud.status, loud.elements("Key")),
        (200, vec!["a".to_owned(), "nothing".to_owned()])
    );
    let quiet = delete(
        "<Delete><Quiet>true</Quiet><Object><Key>b</Key></Object><Object><Key>.forebay/bucket.json</Key></Object></Delete>",
    );
    let quiet = quiet.send().await;
    assert_eq!(
        (
            quiet.element("Code").as_deref(),
            quiet.text().contains("<Deleted>")
        ),
        (Some("InvalidArgument"), false)
    );
    delete("<Delete></Delete>")
        .send()
        .await
        .expect_error(400, "MalformedXML");
    delete("<Delete><Object>")
        .send()
        .await
        .expect_error(400, "MalformedXML");
    delete("nonsense").send().await.expect_error(400, "MalformedXML");
    let many: String = (0..1001)
        .map(|i| format!("<Object><Key>k{i}</Key></Object>"))
        .collect();
    delete(&format!("<Delete>{many}</Delete>"))
        .send()
        .await
        .expect_error(400, "MalformedXML");
    let wrong_digest = delete("<Delete><Object><Key>c</Key></Object></Delete>");
    let wrong_digest =
        wrong_digest.signer(|signer| signer.payload = Payload::Claimed(fixture::sign::hex(&[1; 32])));
    wrong_digest.send().await.expect_error(400, "BadDigest");
    assert_eq!(server.get("c").await.status, 200);
}

#[tokio::test]
async fn tags_are_kept_with_the_object() {
    let server = Server::start().await;
    let put = server
        .call("PUT", "/bucket/a")
        .header("x-amz-tagging", "colour=blue&shape=r%20d")
        .body(b"x");
    assert_eq!(put.send().await.status, 200);
    let get = || server.call("GET", "/bucket/a?tagging");
    assert_eq!(get().send().await.elements("Value"), ["blue", "r d"]);
    let xml = "<Tagging><TagSet><Tag><Key>k</Key><Value>v</Value></Tag></TagSet></Tagging>";
    assert_eq!(
        server
            .call("PUT", "/bucket/a?tagging")
            .body(xml.as_bytes())
            .send()
            .await
            .status,
        200
    );
    assert_eq!(get().send().await.elements("Key"), ["k"]);
    let twice = "<Tagging><TagSet><Tag><Key>k</Key><Value>v</Value></Tag><Tag><Key>k</Key><Value>w</Value></Tag></TagSet></Tagging>";
    server
        .call("PUT", "/bucket/a?tagging")
        .body(twice.as_bytes())
        .send()
        .await
        .expect_error(400, "InvalidTag");
    assert_eq!(
        server.call("DELETE", "/bucket/a?tagging").send().await.status,
        204
    );
    assert!(get().send().await.elements("Key").is_empty());
    server
        .call("GET", "/bucket/nothing?tagging")
        .send()
        .await
        .expect_error(404, "NoSuchKey");
}
