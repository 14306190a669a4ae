//! Buckets, listings, and settings that are not there.

mod fixture;

use std::sync::Arc;

use fixture::{Server, sign};
use forebay_lake::{Fault, Faulty, MemoryLake, Operation};
use forebay_testkit::until;

#[tokio::test]
async fn buckets_come_and_go() {
    let server = Server::start().await;
    assert_eq!(server.call("PUT", "/second").send().await.status, 200);
    assert_eq!(
        server.call("GET", "/").send().await.elements("Name"),
        ["bucket", "second"]
    );
    let head = server.call("HEAD", "/second").send().await;
    assert_eq!(
        (head.status, head.get("x-amz-bucket-region")),
        (200, Some("us-east-1"))
    );
    let location = server.call("GET", "/second?location").send().await;
    assert_eq!(location.status, 200);
    assert!(
        location.text().contains("LocationConstraint"),
        "{}",
        location.text()
    );
    server.put("a", b"x").await;
    server
        .call("DELETE", "/bucket")
        .send()
        .await
        .expect_error(409, "BucketNotEmpty");
    assert_eq!(server.call("DELETE", "/second").send().await.status, 204);
    server
        .call("DELETE", "/second")
        .send()
        .await
        .expect_error(404, "NoSuchBucket");
    let elsewhere = "<CreateBucketConfiguration><LocationConstraint>eu-west-1</LocationConstraint></CreateBucketConfiguration>";
    let create = server
        .call("PUT", "/third")
        .body(elsewhere.as_bytes())
        .send()
        .await;
    create.expect_error(400, "InvalidLocationConstraint");
}

async fn server_with_keys() -> Server {
    let server = Server::start().await;
    for key in ["a", "b/1", "b/2", "c d", "d/x/1", "d/y", "e+f"] {
        server.put(&sign::encode(key).replace("%2F", "/"), b"x").await;
    }
    server
}

/// All keys and prefixes of a V2 listing, page by page.
async fn pages(server: &Server, query: &str, max_keys: usize) -> Vec<String> {
    let mut seen = Vec::new();
    let mut token = String::new();
    loop {
        let continued = if token.is_empty() {
            String::new()
        } else {
            format!("&continuation-token={}", sign::encode(&token))
        };
        let target = format!("/bucket?list-type=2&max-keys={max_keys}{continued}{query}");
        let page = server.call("GET", &target).send().await;
        assert_eq!(page.status, 200, "{}", page.text());
        let names = [
            page.elements("Key"),
            page.elements("Prefix").into_iter().skip(1).collect(),
        ]
        .concat();
        assert_eq!(page.element("KeyCount"), Some(names.len().to_string()));
        assert!(names.len() <= max_keys);
        seen.extend(names);
        match page.element("NextContinuationToken") {
            Some(next) => token = next,
            None => {
                assert_eq!(page.element("IsTruncated").as_deref(), Some("false"));
                seen.sort();
                return seen;
            }
        }
    }
}

#[tokio::test]
async fn pages_of_any_size_show_everything_once() {
    let server = server_with_keys().await;
    for max_keys in [1, 2, 3, 7, 1000] {
        assert_eq!(
            pages(&server, "", max_keys).await,
            ["a", "b/1", "b/2", "c d", "d/x/1", "d/y", "e+f"],
            "{max_keys}"
        );
        assert_eq!(
            pages(&server, "&delimiter=%2F", max_keys).await,
            ["a", "b/", "c d", "d/", "e+f"],
            "{max_keys}"
        );
    }
    assert_eq!(
        pages(&server, "&delimiter=%2F&prefix=d%2F", 1000).await,
        ["d/x/", "d/y"]
    );
    assert_eq!(
        pages(&server, "&start-after=c%20d", 1000).await,
        ["d/x/1", "d/y", "e+f"]
    );
    assert_eq!(
        pages(&server, "&encoding-type=url&start-after=c", 1000).await,
        ["c%20d", "d/x/1", "d/y", "e%2Bf"]
    );
}

#[tokio::test]
async fn first_version_listing_pages_by_marker() {
    let server = server_with_keys().await;
    let first = server
        .call("GET", "/bucket?delimiter=%2F&max-keys=2")
        .send()
        .await;
    assert_eq!(
        (first.elements("Key"), first.element("IsTruncated").as_deref()),
        (vec!["a".to_owned()], Some("true"))
    );
    let marker = first.element("NextMarker").unwrap();
    assert_eq!(marker, "b/");
    let second = server
        .call(
            "GET",
            &format!("/bucket?delimiter=%2F&marker={}", sign::encode(&marker)),
        )
        .send()
        .await;
    assert_eq!(second.elements("Key"), ["c d", "e+f"]);
    assert!(second.text().contains("<Owner>"));
}

#[tokio::test]
async fn odd_listing_parameters_are_answered() {
    let server = server_with_keys().await;
    let empty = server.call("GET", "/bucket?list-type=2&max-keys=0").send().await;
    assert_eq!(
        (
            empty.status,
            empty.element("KeyCount").as_deref(),
            empty.element("IsTruncated").as_deref()
        ),
        (200, Some("0"), Some("false"))
    );
    for query in [
        "max-keys=-1",
        "max-keys=abc",
        "continuation-token=nonsense",
        "encoding-type=xml",
    ] {
        let reply = server
            .call("GET", &format!("/bucket?list-type=2&{query}"))
            .send()
            .await;
        reply.expect_error(400, "InvalidArgument");
    }
    let versions = server.call("GET", "/bucket?versions").send().await;
    assert_eq!(
        (
            versions.elements("Key").len(),
            versions.elements("VersionId").len()
        ),
        (7, 7)
    );
}

#[tokio::test]
async fn settings_that_are_not_there_have_clean_answers() {
    let server = Server::start().await;
    server.put("a", b"x").await;
    for target in [
        "?versioning",
        "?acl",
        "?logging",
        "?requestPayment",
        "?ownershipControls",
        "?accelerate",
        "?notification",
        "/a?acl",
    ] {
        let reply = server.call("GET", &format!("/bucket{target}")).send().await;
        assert_eq!(reply.status, 200, "{target}: {}", reply.text());
    }
    for (target, code) in [
        ("?policy", "NoSuchBucketPolicy"),
        ("?lifecycle", "NoSuchLifecycleConfiguration"),
        ("?cors", "NoSuchCORSConfiguration"),
        ("?tagging", "NoSuchTagSet"),
        ("?encryption", "ServerSideEncryptionConfigurationNotFoundError"),
        ("?website", "NoSuchWebsiteConfiguration"),
        ("?replication", "ReplicationConfigurationNotFoundError"),
        ("?object-lock", "ObjectLockConfigurationNotFoundError"),
        ("?publicAccessBlock", "NoSuchPublicAccessBlockConfiguration"),
    ] {
        server
            .call("GET", &format!("/bucket{target}"))
            .send()
            .await
            .expect_error(404, code);
        server
            .call("GET", &format!("/no-such-bucket{target}"))
            .send()
            .await
            .expect_error(404, "NoSuchBucket");
    }
    for (method, target) in [
        ("GET", "/bucket?inventory"),
        ("GET", "/bucket/a?torrent"),
        ("GET", "/bucket/a?legal-hold"),
        ("PUT", "/bucket?policy"),
        ("DELETE", "/bucket?lifecycle"),
        ("POST", "/bucket/a?restore"),
        ("POST", "/bucket/a"),
    ] {
        let reply = server.call(method, target).send().await;
        assert!(
            reply.status == 501 || reply.status == 400,
            "{method} {target}: {} {}",
            reply.status,
            reply.text()
        );
        assert!(reply.element("Code").is_some(), "{}", reply.text());
    }
}

#[tokio::test]
async fn buckets_are_asked_for_their_dates_side_by_side() {
    let lake = Faulty::new(Arc::new(MemoryLake::new()), 1);
    let server = Server::start_on(Arc::new(lake.clone()), |_| {}).await;
    for name in ["second", "third"] {
        assert_eq!(server.call("PUT", &format!("/{name}")).send().await.status, 200);
    }
    lake.random(Operation::Head, 1.0, Fault::Stall);
    let listing = tokio::spawn(server.call("GET", "/").send());
    until("all three are asked", || lake.stalled() == 3).await;
    lake.heal();
    lake.release();
    let names = listing.await.unwrap().elements("Name");
    assert_eq!(names, ["bucket", "second", "third"]);
}
