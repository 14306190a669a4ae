//! Ways to a lake, with a little proxy that notes what it is asked for.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, copy_bidirectional};
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;

use super::*;
use crate::backend::s3::http::{HttpClient, RequestBody, Tls};

/// A proxy that says `answer` to tunnels and opens them if that is a success; other requests it answers
/// itself.
struct TestProxy {
    uri: String,
    /// Heads of requests.
    asked: Arc<Mutex<Vec<String>>>,
    _server: AbortOnDropHandle<()>,
}

impl TestProxy {
    async fn start(answer: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let uri = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&asked);
        let server = tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                tokio::spawn(serve(socket, Arc::clone(&kept), answer));
            }
        });
        Self {
            uri,
            asked,
            _server: AbortOnDropHandle::new(server),
        }
    }

    fn for_lake(&self, lake: &str, not_for: &str) -> Option<Proxy> {
        let with_keys = self.uri.replace("http://", "http://me:secret@");
        let matcher = Matcher::builder().all(with_keys).no(not_for).build();
        Proxy::by(&matcher, &lake.parse().unwrap()).unwrap()
    }
}

async fn serve(socket: TcpStream, asked: Arc<Mutex<Vec<String>>>, answer: &'static str) {
    let mut socket = BufReader::new(socket);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        socket.read_line(&mut head).await.unwrap();
    }
    asked.lock().push(head.clone());
    if head.starts_with("CONNECT ") {
        socket.write_all(answer.as_bytes()).await.unwrap();
        if answer.contains(" 200 ") {
            let to = head.split(' ').nth(1).unwrap();
            let mut lake = TcpStream::connect(to).await.unwrap();
            // Ends when either side does.
            let _ = copy_bidirectional(&mut socket, &mut lake).await;
        }
        return;
    }
    let answer = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nhi";
    socket.write_all(answer.as_bytes()).await.unwrap();
}

const OPEN: &str = "HTTP/1.1 200 OK\r\n\r\n";

fn route(proxy: Option<Proxy>) -> Route {
    let mut direct = HttpConnector::new();
    direct.enforce_http(false);
    Route { direct, proxy }
}

/// Returns whether the lake that listens at `lake` gets what is written to the stream.
async fn reaches(stream: LakeStream, lake: &TcpListener) -> bool {
    let mut stream = stream.stream.into_inner();
    stream.write_all(b"hello").await.unwrap();
    let (mut there, _) = lake.accept().await.unwrap();
    let mut got = [0; 5];
    there.read_exact(&mut got).await.unwrap();
    got == *b"hello"
}

#[tokio::test]
async fn a_lake_over_tls_is_reached_through_a_tunnel() {
    let proxy = TestProxy::start(OPEN).await;
    let lake = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = lake.local_addr().unwrap();
    let uri = format!("https://{address}");
    let stream = route(proxy.for_lake(&uri, "")).call(uri.parse().unwrap()).await;
    assert!(reaches(stream.unwrap(), &lake).await);
    let asked = proxy.asked.lock().concat();
    assert!(
        asked.starts_with(&format!("CONNECT {address} HTTP/1.1\r\n")),
        "{asked}"
    );
    assert!(
        asked.contains("Proxy-Authorization: Basic bWU6c2VjcmV0\r\n"),
        "{asked}"
    );
}

#[tokio::test]
async fn a_lake_that_needs_no_proxy_is_reached_straight() {
    let proxy = TestProxy::start(OPEN).await;
    let lake = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let uri = format!("https://{}", lake.local_addr().unwrap());
    let found = proxy.for_lake(&uri, "10.0.0.0/8,127.0.0.1");
    assert!(found.is_none());
    let stream = route(found).call(uri.parse().unwrap()).await;
    assert!(reaches(stream.unwrap(), &lake).await);
    assert!(proxy.asked.lock().is_empty());
}

#[tokio::test]
async fn a_plain_lake_is_asked_through_the_proxy_by_whole_urls() {
    let proxy = TestProxy::start(OPEN).await;
    let uri = "http://lake.example/bucket/a%20key?x=1";
    let http = HttpClient::new(Tls::None, proxy.for_lake(uri, "")).unwrap();
    let mut request = http::Request::new(RequestBody::chunks(&[Bytes::from_static(b"body")]));
    *request.uri_mut() = uri.parse().unwrap();
    *request.method_mut() = http::Method::PUT;
    let answer = http.send(request).await.unwrap();
    assert!(answer.status().is_success());
    let asked = proxy.asked.lock().concat().to_lowercase();
    assert!(asked.starts_with(&format!("put {uri} http/1.1\r\n")), "{asked}");
    assert!(asked.contains("host: lake.example\r\n"), "{asked}");
    assert!(asked.contains("proxy-authorization: basic "), "{asked}");
}

#[tokio::test]
async fn a_proxy_that_refuses_is_named_and_the_request_was_not_sent() {
    let proxy = TestProxy::start("HTTP/1.1 403 Forbidden\r\n\r\n").await;
    let uri = "https://lake.example/bucket/key";
    let http = HttpClient::new(Tls::None, proxy.for_lake(uri, "")).unwrap();
    let mut request = http::Request::new(RequestBody::chunks(&[]));
    *request.uri_mut() = uri.parse().unwrap();
    let failure = http.send(request).await.unwrap_err();
    assert!(!failure.maybe_applied);
    assert_eq!(failure.error.kind(), Kind::Unavailable);
    let text = failure.error.to_string();
    assert!(text.contains("NO_PROXY") && text.contains(&proxy.uri), "{text}");
    assert!(!text.contains("secret"), "{text}");
}

#[test]
fn a_proxy_of_another_kind_is_refused_in_words() {
    for uri in ["socks5://localhost:1080", "https://proxy.example"] {
        let matcher = Matcher::builder().https(uri).build();
        let lake = "https://s3.example".parse().unwrap();
        let error = Proxy::by(&matcher, &lake).unwrap_err();
        assert_eq!(error.kind(), Kind::Unsupported);
        assert!(error.to_string().contains("NO_PROXY"), "{error}");
    }
}
