//! The server around the operations: overload, CORS, broken reads, shutdown, hostile bytes, the access log's
//! numbers.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a broken step should fail the test"
)]

mod fixture;

use std::sync::Arc;
use std::time::Duration;

use fixture::Server;
use forebay_core::{Kind, SystemClock};
use forebay_lake::{Fault, Faulty, MemoryLake, Operation};
use forebay_net::{ClientTls, Connector, Listener, ServerTls, TlsFiles};
use forebay_s3::{RequestEnd, S3Observer};
use forebay_testkit::Authority;
use parking_lot::Mutex;
use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Waits until the condition holds.
async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..5000 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    panic!("waited in vain until {what}");
}

/// A PUT whose body does not come.
async fn hanging_put(server: &Server) -> TcpStream {
    let wire = server.call("PUT", "/bucket/slow").body(&[7; 1000]).wire();
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(&wire[..wire.len() - 500]).await.unwrap();
    stream
}

#[tokio::test]
async fn overload_is_answered_with_slow_down() {
    let server = Server::start_with(|options| options.inflight_requests_max = 4).await;
    let mut hanging = Vec::new();
    for _ in 0..3 {
        hanging.push(hanging_put(&server).await);
    }
    until("all are in flight", || server.edge.in_flight().requests == 3).await;
    let reply = server.get("a").await;
    reply.expect_error(503, "SlowDown");
    assert_eq!(reply.get("retry-after"), Some("1"));
    hanging.clear();
    until("all are gone", || server.edge.in_flight().requests == 0).await;
    assert_eq!(server.edge.in_flight().bytes, 0);
    assert_eq!(server.get("a").await.status, 404);
}

#[tokio::test]
async fn bytes_in_flight_are_limited() {
    let server = Server::start_with(|options| options.inflight_bytes_max = 1 << 20).await;
    let _one = hanging_put(&server).await;
    until("it is in flight", || server.edge.in_flight().requests == 1).await;
    server.get("a").await.expect_error(503, "SlowDown");
}

#[tokio::test]
async fn bodies_that_stand_still_are_ended() {
    let server = Server::start_with(|options| options.body_idle_timeout = Duration::from_millis(100)).await;
    let mut stream = hanging_put(&server).await;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(
        answer.starts_with("HTTP/1.1 400") && answer.contains("RequestTimeout"),
        "{answer}"
    );
}

#[tokio::test]
async fn cors_answers_allowed_origins_only() {
    let server =
        Server::start_with(|options| options.cors_origins = vec!["https://lab.example".into()]).await;
    server.put("a", b"x").await;
    let preflight = |origin: &str| {
        let call = server
            .call("OPTIONS", "/bucket/a")
            .anonymous()
            .header("origin", origin);
        call.header("access-control-request-method", "PUT")
            .header("access-control-request-headers", "x-amz-date")
    };
    let yes = preflight("https://lab.example").send().await;
    assert_eq!(
        (yes.status, yes.get("access-control-allow-origin")),
        (200, Some("https://lab.example"))
    );
    assert_eq!(preflight("https://evil.example").send().await.status, 403);
    let get = server
        .call("GET", "/bucket/a")
        .header("origin", "https://lab.example")
        .send()
        .await;
    assert_eq!(
        get.get("access-control-allow-origin"),
        Some("https://lab.example")
    );
    let plain = Server::start().await;
    assert_eq!(
        plain
            .call("OPTIONS", "/bucket/a")
            .anonymous()
            .header("origin", "x")
            .send()
            .await
            .status,
        403
    );
}

#[tokio::test]
async fn every_answer_has_a_request_id() {
    let server = Server::start().await;
    let mut ids = Vec::new();
    for call in [
        server.call("GET", "/"),
        server.call("HEAD", "/bucket/nothing"),
        server.call("GET", "/bucket/nothing"),
        server.call("GET", "/").anonymous(),
        server.call("OPTIONS", "/bucket").anonymous(),
        server.call("PATCH", "/bucket/x"),
    ] {
        ids.push(call.send().await.get("x-amz-request-id").unwrap().to_owned());
    }
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 6);
}

/// Operation, status, bytes in, bytes out, bytes of all tiers.
type End = (String, u16, u64, u64, u64);

#[derive(Default)]
struct Ends(Mutex<Vec<End>>);

impl S3Observer for Ends {
    fn on_request_end(&self, end: &RequestEnd) {
        let tiers = end.ram_bytes + end.nvme_bytes + end.lake_bytes;
        self.0
            .lock()
            .push((end.op.to_owned(), end.status, end.bytes_in, end.bytes_out, tiers));
    }
}

#[tokio::test]
async fn every_request_is_reported_once_with_its_bytes() {
    let ends = Arc::new(Ends::default());
    let observer = Arc::clone(&ends);
    let server = Server::start_with(|options| options.observer = Some(observer)).await;
    server.put("a", b"hello").await;
    server.get("a").await;
    let missing = server.get("b").await.body.len() as u64;
    until("all are reported", || ends.0.lock().len() == 4).await;
    let seen = ends.0.lock().clone();
    assert_eq!(seen[0].0, "CreateBucket");
    assert_eq!(seen[1], ("PutObject".to_owned(), 200, 5, 0, 0));
    assert_eq!(seen[2], ("GetObject".to_owned(), 200, 0, 5, 5));
    assert_eq!(seen[3], ("GetObject".to_owned(), 404, 0, missing, 0));
}

#[tokio::test]
async fn a_read_that_fails_midway_cuts_the_connection() {
    let lake = Arc::new(Faulty::new(Arc::new(MemoryLake::new()), 1));
    let server = Server::start_on(lake.clone(), |_| {}).await;
    let bytes = 32 << 20;
    server.put("big", &vec![5; bytes]).await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream
        .write_all(&server.call("GET", "/bucket/big").wire())
        .await
        .unwrap();
    let mut first = vec![0; 64 << 10];
    stream.read_exact(&mut first).await.unwrap();
    lake.random(Operation::Get, 1.0, Fault::Error(Kind::Denied));
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest).await;
    assert!(first.starts_with(b"HTTP/1.1 200"), "the answer had begun");
    assert!(
        first.len() + rest.len() < bytes,
        "a broken read must not look whole"
    );
    lake.heal();
    assert_eq!(server.get("big").await.body.len(), bytes);
}

#[tokio::test]
async fn a_lake_that_is_away_is_a_503() {
    let lake = Arc::new(Faulty::new(Arc::new(MemoryLake::new()), 1));
    let server = Server::start_on(lake.clone(), |_| {}).await;
    lake.random(Operation::Head, 1.0, Fault::Error(Kind::Throttled));
    let reply = server.get("a").await;
    assert_eq!(
        (reply.status, reply.get("retry-after")),
        (503, Some("1")),
        "{}",
        reply.text()
    );
}

#[tokio::test]
async fn shutdown_finishes_what_is_in_flight() {
    let server = Server::start().await;
    let wire = server.call("PUT", "/bucket/late").body(b"in time").wire();
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(&wire[..wire.len() - 3]).await.unwrap();
    until("it is in flight", || server.edge.in_flight().requests == 1).await;
    let idle = TcpStream::connect(server.address).await.unwrap();
    server.shutdown.cancel();
    stream.write_all(&wire[wire.len() - 3..]).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    server.served.await.unwrap().unwrap();
    assert!(TcpStream::connect(server.address).await.is_err());
    drop(idle);
}

#[tokio::test]
async fn shutdown_cuts_what_does_not_end() {
    let server = Server::start_with(|options| options.shutdown_deadline = Duration::from_millis(50)).await;
    let _hanging = hanging_put(&server).await;
    until("it is in flight", || server.edge.in_flight().requests == 1).await;
    server.shutdown.cancel();
    server.served.await.unwrap().unwrap();
    assert_eq!(server.edge.in_flight().requests, 0);
}

/// Serves the edge of a server on a listener in memory too.
fn in_memory(server: &Server, tls: Option<Arc<ServerTls>>) -> Connector {
    let (listener, connector) = Listener::in_memory();
    let listener = match tls {
        Some(tls) => listener.with_tls(tls),
        None => listener,
    };
    let served = forebay_s3::serve(listener, Arc::clone(&server.edge), server.shutdown.clone());
    tokio::spawn(served);
    connector
}

#[tokio::test]
async fn requests_are_served_without_a_network() {
    let server = Server::start().await;
    server.put("a", b"hello").await;
    let mut stream = in_memory(&server, None).connect("node", 1).await.unwrap();
    let wire = server.call("GET", "/bucket/a").wire();
    stream.write_all(&wire).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(
        answer.starts_with("HTTP/1.1 200") && answer.ends_with("hello"),
        "{answer}"
    );
}

#[tokio::test]
async fn a_peer_that_stops_reading_is_cut_also_where_tls_holds_the_rest_back() {
    let server = Server::start_with(|options| options.body_idle_timeout = Duration::from_millis(200)).await;
    // More than the connection in memory takes, by less than the buffer of TLS.
    let bytes = 290 << 10;
    server.put("a", &vec![5; bytes]).await;
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    let (cert, key) = authority.node().write(folder.path(), "node");
    let files = TlsFiles {
        cert,
        key,
        client_ca: None,
    };
    let tls = ServerTls::load(files, Arc::new(SystemClock::new())).unwrap();
    let trust = ClientTls {
        ca: Some(authority.write(folder.path())),
        ..ClientTls::default()
    };
    let connector = in_memory(&server, Some(tls)).with_tls(Arc::new(trust.config().unwrap()));
    let mut stream = connector.connect("localhost", 1).await.unwrap();
    stream
        .write_all(&server.call("GET", "/bucket/a").wire())
        .await
        .unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let mut answer = Vec::new();
    let read = tokio::time::timeout(Duration::from_secs(10), stream.read_to_end(&mut answer));
    assert!(
        read.await.expect("the connection has ended").is_err(),
        "it was not closed in order"
    );
    assert!(answer.len() < bytes, "{}", answer.len());
}

async fn raw(server: &Server, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let _ = stream.write_all(bytes).await;
    let _ = stream.shutdown().await;
    let mut answer = Vec::new();
    let read = tokio::time::timeout(Duration::from_secs(10), stream.read_to_end(&mut answer));
    let _ = read.await.expect("the connection ends");
    answer
}

#[test]
fn hostile_requests_never_get_500() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let server = runtime.block_on(Server::start());
    runtime.block_on(server.put("keeps-the-bucket", b"x"));
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases: 200,
        ..ProptestConfig::default()
    });
    let methods = prop::sample::select(vec!["GET", "PUT", "HEAD", "POST", "DELETE"]);
    let target = "/(bucket|b)?/?[!-~]{0,30}(\\?[!-~]{0,40})?";
    let header = prop::sample::select(vec![
        "range",
        "x-amz-copy-source",
        "x-amz-tagging",
        "if-match",
        "content-md5",
        "x-amz-meta-a",
        "content-type",
        "x-amz-checksum-crc32",
        "x-amz-copy-source-range",
        "expires",
        "x-amz-mp-object-size",
    ]);
    let input = (
        methods,
        target,
        header,
        "[ -~]{0,40}",
        prop::collection::vec(any::<u8>(), 0..60),
    );
    runner
        .run(&input, |(method, target, header, value, body)| {
            let call = server
                .call(method, &target.replace('#', ""))
                .header(header, &value)
                .body(&body);
            let answer = runtime.block_on(raw(&server, &call.wire()));
            let status = std::str::from_utf8(&answer[..answer.len().min(12)])
                .unwrap_or_default()
                .to_owned();
            prop_assert!(
                !status.starts_with("HTTP/1.1 500"),
                "{}",
                String::from_utf8_lossy(&answer)
            );
            Ok(())
        })
        .unwrap();
    assert_eq!(
        runtime.block_on(server.call("HEAD", "/bucket").send()).status,
        200
    );
}

#[test]
fn hostile_chunked_bodies_are_refused_and_change_nothing() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let server = runtime.block_on(Server::start());
    runtime.block_on(server.put("a", b"old"));
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases: 200,
        ..ProptestConfig::default()
    });
    let body = "([0-9a-f]{0,4}(;chunk-signature=[0-9a-f]{0,66})?\r\n[ -~]{0,20}\r\n){0,3}(0\r\n)?[ -~]{0,20}";
    runner
        .run(&body, |body| {
            let trailer = fixture::Payload::Trailer("x-amz-checksum-crc32".into(), "AAAAAA==".into());
            let call = server
                .call("PUT", "/bucket/a")
                .body(&[1; 10])
                .signer(|signer| signer.payload = trailer);
            let wire = call.wire();
            let head_end = wire.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
            let head = String::from_utf8(wire[..head_end].to_vec()).unwrap();
            let length = format!("content-length: {}", wire.len() - head_end);
            let head = head.replace(&length, &format!("content-length: {}", body.len()));
            let answer = runtime.block_on(raw(&server, &[head.as_bytes(), body.as_bytes()].concat()));
            let text = String::from_utf8_lossy(&answer);
            prop_assert!(text.starts_with("HTTP/1.1 4"), "{text}");
            Ok(())
        })
        .unwrap();
    assert_eq!(runtime.block_on(server.get("a")).body, b"old");
}

#[test]
fn any_key_survives_the_way_through_a_url_and_a_listing() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let server = runtime.block_on(Server::start());
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases: 100,
        ..ProptestConfig::default()
    });
    runner
        .run(&"[^\\p{Cc}/.][^\\p{Cc}]{0,40}", |key| {
            let target = format!("/bucket/{}", fixture::sign::encode(&key).replace("%2F", "/"));
            runtime.block_on(async {
                let put = server.call("PUT", &target).body(key.as_bytes()).send().await;
                prop_assert_eq!(put.status, 200, "{}", put.text());
                prop_assert_eq!(server.call("GET", &target).send().await.body, key.as_bytes());
                let prefix = fixture::sign::encode(&key);
                let list = format!("/bucket?list-type=2&encoding-type=url&prefix={prefix}");
                let listed = server.call("GET", &list).send().await.elements("Key");
                let decoded = percent_encoding::percent_decode_str(&listed[0])
                    .decode_utf8()
                    .unwrap()
                    .into_owned();
                prop_assert_eq!(decoded, key);
                prop_assert_eq!(server.call("DELETE", &target).send().await.status, 204);
                Ok(())
            })
        })
        .unwrap();
}
