//! Clients that want others to get nothing: forged lengths, slow bodies, slow readers, slow heads, floods of
//! requests that are refused, and many connections of one address.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a broken step should fail the test"
)]

mod fixture;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use fixture::{Call, Payload, Server};
use forebay_core::BucketName;
use forebay_s3::{AccessKey, S3Options};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

const MIB: u64 = 1 << 20;

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

/// A server with a second key and a public bucket.
async fn start(change: impl FnOnce(&mut S3Options)) -> Server {
    let server = Server::start_with(|options| {
        options.public_read = [BucketName::new("bucket").unwrap()].into();
        change(options);
    })
    .await;
    server.keys.replace([
        AccessKey::full(fixture::KEY, fixture::SECRET),
        AccessKey::full("victim", "secret"),
    ]);
    server
}

/// A call of the other key.
fn victim(server: &Server, method: &str, target: &str) -> Call {
    server.call(method, target).key("victim", "secret")
}

/// A connection from this address of the host.
async fn connect_from(last: u8, server: &Server) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::from(([127, 0, 0, last], 0))).unwrap();
    socket.connect(server.address).await.unwrap()
}

/// Sends a call from this address; `None` if the connection was closed without an answer.
async fn ask_from(last: u8, server: &Server, call: Call) -> Option<String> {
    let mut stream = connect_from(last, server).await;
    let _ = stream.write_all(&call.wire()).await;
    let mut answer = Vec::new();
    let read = tokio::time::timeout(Duration::from_secs(20), stream.read_to_end(&mut answer));
    let _ = read.await.expect("an answer or an end");
    (!answer.is_empty()).then(|| String::from_utf8_lossy(&answer).into_owned())
}

/// The head of an upload of this length, and the first bytes of it.
fn forged_put(server: &Server, key: &str, length: u64) -> Vec<u8> {
    let call = server
        .call("PUT", &format!("/bucket/{key}"))
        .header("content-length", &length.to_string())
        .signer(|signer| signer.payload = Payload::Unsigned);
    let mut wire = call.wire();
    wire.extend_from_slice(&[7; 100]);
    wire
}

async fn send(server: &Server, wire: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(wire).await.unwrap();
    stream
}

#[tokio::test]
async fn a_forged_length_of_an_upload_takes_nothing_from_others() {
    let server = start(|options| options.inflight_bytes_max = 64 * MIB).await;
    server.put("a", b"hello").await;
    let mut forged = Vec::new();
    for n in 0..5 {
        forged.push(send(&server, &forged_put(&server, &format!("forged-{n}"), 4 << 40)).await);
    }
    until("one is in flight", || server.edge.in_flight().requests >= 1).await;
    assert!(server.edge.in_flight().bytes <= 5 * MIB);
    for n in 0..20 {
        let put = victim(&server, "PUT", &format!("/bucket/v{n}")).body(&[1; 1 << 20]);
        assert_eq!(put.send().await.status, 200);
        assert_eq!(victim(&server, "GET", "/bucket/a").send().await.body, b"hello");
    }
    assert_eq!(
        server.get("a").await.status,
        200,
        "nor from readers with the same key"
    );
}

#[tokio::test]
async fn a_forged_length_of_a_read_counts_nothing() {
    let server = start(|options| options.inflight_bytes_max = 8 * MIB).await;
    server.put("a", b"hello").await;
    let huge = (1u64 << 40).to_string();
    for method in ["GET", "HEAD"] {
        let mut hanging = Vec::new();
        for _ in 0..10 {
            let call = server.call(method, "/bucket/a").anonymous();
            hanging.push(send(&server, &call.header("content-length", &huge).wire()).await);
        }
        for _ in 0..10 {
            assert_eq!(victim(&server, "GET", "/bucket/a").send().await.body, b"hello");
        }
        for stream in &mut hanging {
            let mut answer = [0; 12];
            stream.read_exact(&mut answer).await.unwrap();
            assert_eq!(&answer, b"HTTP/1.1 200");
        }
    }
    until("nothing is in flight", || server.edge.in_flight().bytes == 0).await;
}

#[tokio::test]
async fn a_flood_of_refused_requests_takes_nothing_from_others() {
    let server = start(|options| options.inflight_requests_max = 4).await;
    server.put("a", b"hello").await;
    let wrong = server
        .call("PUT", "/bucket/a")
        .key(fixture::KEY, "wrong")
        .body(&[0; 1000])
        .wire();
    let anonymous = server
        .call("PUT", "/bucket/a")
        .anonymous()
        .body(&[0; 1000])
        .wire();
    let flood = async {
        loop {
            let wave = (0..32).map(|n| {
                let wire = if n % 2 == 0 { &wrong } else { &anonymous };
                fixture::exchange(server.address, &wire[..wire.len() - 500])
            });
            for reply in futures::future::join_all(wave).await {
                assert_eq!(reply.status, 403, "{}", reply.text());
            }
        }
    };
    let reads = async {
        for _ in 0..100 {
            let reply = victim(&server, "GET", "/bucket/a").send().await;
            assert_eq!(reply.status, 200, "{}", reply.text());
        }
    };
    tokio::select! {
        () = flood => {}
        () = reads => {}
    }
}

#[tokio::test]
async fn one_key_cannot_hold_every_place() {
    let server = start(|options| options.inflight_requests_max = 8).await;
    server.put("a", b"hello").await;
    let mut slow = Vec::new();
    for n in 0..12 {
        slow.push(send(&server, &forged_put(&server, &format!("slow-{n}"), 1000)).await);
    }
    until("its share is taken", || server.edge.in_flight().requests == 6).await;
    server.get("a").await.expect_error(503, "SlowDown");
    // The same address, which has its share too, is no way around: the victim comes from another.
    let answer = ask_from(2, &server, victim(&server, "GET", "/bucket/a"))
        .await
        .unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[tokio::test]
async fn a_body_that_comes_by_the_byte_is_ended() {
    let server = start(|options| {
        options.body_idle_timeout = Duration::from_millis(500);
        options.body_rate_min = 100_000;
    })
    .await;
    let mut stream = send(&server, &forged_put(&server, "slow", 1_000_000)).await;
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(20) {
        tokio::time::sleep(Duration::from_millis(50)).await;
        if stream.write_all(b"x").await.is_err() || server.edge.in_flight().requests == 0 {
            break;
        }
    }
    until("it is ended", || server.edge.in_flight().requests == 0).await;
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer).await;
    assert!(began.elapsed() < Duration::from_secs(20), "it went on");
    assert!(answer.contains("RequestTimeout"), "{answer}");
}

#[tokio::test]
async fn a_reader_that_takes_a_little_now_and_then_is_cut() {
    let server = start(|options| {
        options.body_idle_timeout = Duration::from_secs(1);
        options.body_rate_min = 256 * MIB;
    })
    .await;
    let bytes = 40usize << 20;
    server.put("big", &vec![5; bytes]).await;
    let mut stream = send(&server, &server.call("GET", "/bucket/big").wire()).await;
    let (mut taken, mut piece) = (0, vec![0; 512 << 10]);
    loop {
        // Progress in every second, at a hundredth of the rate.
        tokio::time::sleep(Duration::from_millis(200)).await;
        match tokio::time::timeout(Duration::from_secs(20), stream.read_exact(&mut piece)).await {
            Ok(Ok(count)) => taken += count,
            Ok(Err(_)) => break,
            Err(_) => panic!("neither bytes nor an end"),
        }
        assert!(taken < bytes, "it was served to its end");
    }
    until("nothing is in flight", || server.edge.in_flight().requests == 0).await;
}

#[tokio::test]
async fn a_slow_head_is_cut_and_an_idle_connection_is_not() {
    let server = start(|options| {
        options.head_timeout = Duration::from_millis(300);
        options.idle_timeout = Duration::from_secs(60);
    })
    .await;
    server.put("a", b"hello").await;
    let mut idle = TcpStream::connect(server.address).await.unwrap();
    let mut kept = TcpStream::connect(server.address).await.unwrap();
    let head = String::from_utf8(server.call("GET", "/bucket/a").wire()).unwrap();
    let head = head.replace("connection: close\r\n", "");
    kept.write_all(head.as_bytes()).await.unwrap();
    let mut answer = [0; 12];
    kept.read_exact(&mut answer).await.unwrap();
    let mut slow = send(&server, b"GET /bucket/a HTTP/1.1\r\nx").await;
    let began = Instant::now();
    let mut rest = Vec::new();
    loop {
        let read = tokio::time::timeout(Duration::from_millis(50), slow.read_buf(&mut rest)).await;
        if read.is_ok() || slow.write_all(b"x").await.is_err() {
            break;
        }
        assert!(
            began.elapsed() < Duration::from_secs(20),
            "a head went on for ever"
        );
    }
    assert!(began.elapsed() >= Duration::from_millis(200));
    // Both have been idle for longer than a head may take.
    for stream in [&mut idle, &mut kept] {
        stream
            .write_all(&server.call("GET", "/bucket/a").wire())
            .await
            .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.ends_with("hello"), "{answer}");
    }
}

#[tokio::test]
async fn the_oldest_idle_connection_makes_room_for_a_new_one() {
    let server = start(|options| options.connections_max = 4).await;
    server.put("a", b"hello").await;
    let mut idle = Vec::new();
    for last in 1..=4 {
        let mut stream = connect_from(last, &server).await;
        // A head that is never complete is as idle as no head.
        stream.write_all(b"GET /bu").await.unwrap();
        idle.push(stream);
    }
    for last in 5..=8 {
        let answer = ask_from(last, &server, server.call("GET", "/bucket/a"))
            .await
            .unwrap();
        assert!(answer.ends_with("hello"), "{answer}");
    }
    let mut end = [0; 1];
    assert!(
        !matches!(idle[0].read(&mut end).await, Ok(1..)),
        "the oldest is closed"
    );
}

#[tokio::test]
async fn one_address_cannot_hold_every_connection() {
    let server = start(|options| options.connections_max = 8).await;
    server.put("a", b"hello").await;
    let mut hanging = Vec::new();
    for n in 0..6 {
        let mut stream = connect_from(2, &server).await;
        stream
            .write_all(&forged_put(&server, &format!("slow-{n}"), 1000))
            .await
            .unwrap();
        hanging.push(stream);
    }
    until("all are in flight", || server.edge.in_flight().requests == 6).await;
    let refused = ask_from(2, &server, server.call("GET", "/bucket/a")).await;
    assert!(refused.is_none_or(|answer| answer.starts_with("HTTP/1.1 503")));
    let answer = ask_from(3, &server, server.call("GET", "/bucket/a"))
        .await
        .unwrap();
    assert!(answer.ends_with("hello"), "{answer}");
}

#[tokio::test]
async fn documents_are_refused_by_their_length_before_they_are_read() {
    let server = start(|_| {}).await;
    for (method, target, bytes_max) in [
        ("POST", "/bucket?delete", 2u64 << 20),
        ("POST", "/bucket/k?uploadId=u", 4 << 20),
        ("PUT", "/bucket/k?tagging", 256 << 10),
        ("PUT", "/bucket?policy", 256 << 10),
    ] {
        let head = server
            .call(method, target)
            .header("content-length", &(bytes_max + 1).to_string())
            .signer(|signer| signer.payload = Payload::Unsigned)
            .wire();
        let reply = fixture::exchange(server.address, &head).await;
        reply.expect_error(400, "MaxMessageLengthExceeded");
        assert!(reply.text().contains(&bytes_max.to_string()), "{}", reply.text());
    }
}

#[tokio::test]
async fn a_document_without_a_length_is_cut_at_its_limit() {
    let server = start(|_| {}).await;
    let head = server
        .call("POST", "/bucket?delete")
        .header("transfer-encoding", "chunked")
        .header("x-amz-decoded-content-length", "5")
        .signer(|signer| signer.payload = Payload::Claimed("STREAMING-UNSIGNED-PAYLOAD-TRAILER".into()))
        .header("x-amz-trailer", "x-amz-checksum-crc32");
    let mut wire = head.wire();
    let chunk = vec![b' '; 1 << 20];
    // One chunk of S3 in chunks of HTTP.
    wire.extend_from_slice(b"9\r\n10000000\n\r\n");
    for _ in 0..8 {
        wire.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
        wire.extend_from_slice(&chunk);
        wire.extend_from_slice(b"\r\n");
    }
    let reply = fixture::exchange(server.address, &wire).await;
    assert_eq!(reply.status, 400, "{}", reply.text());
    until("nothing is in flight", || server.edge.in_flight().bytes == 0).await;
}
