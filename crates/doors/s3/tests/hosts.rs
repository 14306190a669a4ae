//! Requests that name their bucket in the host.

mod fixture;

use fixture::Server;

#[tokio::test]
async fn with_a_domain_virtual_hosted_requests_are_served() {
    let server = Server::start_with(|options| options.domain = Some("s3.lab.example".into())).await;
    let host = "bucket.s3.lab.example:9000";
    let put = server.call("PUT", "/folder/key").header("host", host);
    assert_eq!(put.body(b"hello").send().await.status, 200);
    assert_eq!(server.get("folder/key").await.body, b"hello");
    let got = server
        .call("GET", "/folder/key")
        .header("host", host)
        .send()
        .await;
    assert_eq!(got.body, b"hello");
    let list = server
        .call("GET", "/?list-type=2")
        .header("host", host)
        .send()
        .await;
    assert_eq!(
        list.element("Key").as_deref(),
        Some("folder/key"),
        "{}",
        list.text()
    );
    // The domain itself, and every other host, is path-style.
    for host in ["s3.lab.example", "node-7.cluster.local", "localhost:9000"] {
        let got = server
            .call("GET", "/bucket/folder/key")
            .header("host", host)
            .send()
            .await;
        assert_eq!(got.body, b"hello", "{host}");
    }
}

#[tokio::test]
async fn without_a_domain_a_bucket_in_the_host_is_refused_with_advice() {
    let server = Server::start().await;
    server.put("key", b"hello").await;
    for (method, target) in [
        ("GET", "/"),
        ("PUT", "/object"),
        ("DELETE", "/bucket"),
        ("GET", "/key"),
    ] {
        let call = server
            .call(method, target)
            .header("host", "bucket.s3.lab.example:9000");
        let reply = call.send().await;
        reply.expect_error(400, "InvalidRequest");
        assert!(reply.text().contains("s3_domain"), "{}", reply.text());
    }
    assert_eq!(server.get("key").await.body, b"hello");
    let buckets = server.call("GET", "/").send().await;
    assert_eq!(buckets.elements("Name"), ["bucket"]);
}

#[tokio::test]
async fn other_hosts_stay_path_style() {
    let server = Server::start().await;
    server.put("key", b"hello").await;
    for host in [
        "node-7.cluster.local",
        "cache.lab.example:9000",
        "localhost",
        "127.0.0.1:9000",
    ] {
        let got = server
            .call("GET", "/bucket/key")
            .header("host", host)
            .send()
            .await;
        assert_eq!(got.body, b"hello", "{host}");
    }
}
