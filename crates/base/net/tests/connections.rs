//! Listener and connector against each other: TCP and memory, plain and TLS, slow and wrong peers.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a broken step should fail the test"
)]

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use forebay_core::{Kind, ManualClock};
use forebay_net::{ClientTls, Connector, Listener, ServerTls, Stream, TlsFiles};
use forebay_testkit::{Authority, Identity};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

struct Fixture {
    authority: Authority,
    folder: tempfile::TempDir,
    clock: Arc<ManualClock>,
}

impl Fixture {
    fn new() -> Self {
        Self {
            authority: Authority::new(),
            folder: tempfile::tempdir().unwrap(),
            clock: Arc::new(ManualClock::default()),
        }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn server_of(&self, identity: &Identity, client_ca: bool) -> Arc<ServerTls> {
        let (cert, key) = identity.write(self.path(), "node");
        let client_ca = client_ca.then(|| self.authority.write(self.path()));
        let files = TlsFiles { cert, key, client_ca };
        ServerTls::load(files, self.clock.clone()).unwrap()
    }

    fn server(&self) -> Arc<ServerTls> {
        self.server_of(&self.authority.node(), false)
    }

    fn trusting(&self, connector: Connector) -> Connector {
        connector.with_tls(Arc::new(self.client().config().unwrap()))
    }

    fn client(&self) -> ClientTls {
        ClientTls {
            ca: Some(self.authority.write(self.path())),
            ..ClientTls::default()
        }
    }
}

/// Sends back what comes, on every connection.
fn echo(mut listener: Listener) {
    tokio::spawn(async move {
        loop {
            let stream = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let (mut from, mut to) = tokio::io::split(stream);
                let _ = tokio::io::copy(&mut from, &mut to).await;
                let _ = to.shutdown().await;
            });
        }
    });
}

async fn tcp_listener() -> (Listener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (Listener::tcp(listener), address)
}

async fn says_hello(stream: &mut (impl AsyncRead + AsyncWrite + Unpin)) {
    stream.write_all(b"hello").await.unwrap();
    stream.flush().await.unwrap();
    let mut bytes = [0; 5];
    stream.read_exact(&mut bytes).await.unwrap();
    assert_eq!(&bytes, b"hello");
}

async fn failure(connector: &Connector, port: u16) -> forebay_core::Error {
    match connector.connect("localhost", port).await {
        Ok(mut stream) => {
            // With TLS 1.3 a client learns that its certificate is refused only when it reads.
            let _ = stream.write_all(b"x").await;
            let why = stream.read_u8().await.unwrap_err();
            forebay_net::explain(&why).unwrap_or_else(|| panic!("{why:?}"))
        }
        Err(error) => error,
    }
}

#[tokio::test]
async fn bytes_pass_over_every_kind_of_connection() {
    let fixture = Fixture::new();
    let (memory, by_memory) = Listener::in_memory();
    echo(memory);
    says_hello(&mut by_memory.connect("node", 1).await.unwrap()).await;
    let (memory, by_memory) = Listener::in_memory();
    echo(memory.with_tls(fixture.server()));
    let by_memory = fixture.trusting(by_memory);
    says_hello(&mut by_memory.connect("localhost", 1).await.unwrap()).await;
    let (plain, address) = tcp_listener().await;
    echo(plain);
    let mut stream = Connector::tcp()
        .connect("127.0.0.1", address.port())
        .await
        .unwrap();
    assert!(!stream.is_tls() && stream.peer().address == Some(address));
    says_hello(&mut stream).await;
    let (tls, address) = tcp_listener().await;
    echo(tls.with_tls(fixture.server()));
    let connector = fixture.trusting(Connector::tcp());
    let mut stream = connector.connect("127.0.0.1", address.port()).await.unwrap();
    assert!(stream.is_tls() && stream.tcp().is_some());
    says_hello(&mut stream).await;
}

#[tokio::test]
async fn large_bodies_pass_whole_through_tls() {
    let fixture = Fixture::new();
    let (listener, connector) = Listener::in_memory();
    echo(listener.with_tls(fixture.server()));
    let stream = fixture.trusting(connector).connect("localhost", 1).await.unwrap();
    let bytes = forebay_testkit::patterned(7, 5 << 20);
    let (mut from, mut to) = tokio::io::split(stream);
    let sent = bytes.clone();
    let sending = tokio::spawn(async move {
        to.write_all(&sent).await.unwrap();
        to.shutdown().await.unwrap();
    });
    let mut back = Vec::new();
    from.read_to_end(&mut back).await.unwrap();
    sending.await.unwrap();
    assert!(back == bytes);
}

#[tokio::test]
async fn a_certificate_of_another_authority_is_refused_with_advice() {
    let (fixture, stranger) = (Fixture::new(), Fixture::new());
    let (listener, address) = tcp_listener().await;
    echo(listener.with_tls(fixture.server()));
    let error = failure(&stranger.trusting(Connector::tcp()), address.port()).await;
    assert_eq!(error.kind(), Kind::Denied);
    assert!(error.to_string().contains("--ca"), "{error}");
}

#[tokio::test]
async fn an_expired_certificate_is_refused_with_advice() {
    let fixture = Fixture::new();
    let (listener, address) = tcp_listener().await;
    echo(listener.with_tls(fixture.server_of(&fixture.authority.expired_node(), false)));
    let error = failure(&fixture.trusting(Connector::tcp()), address.port()).await;
    assert!(error.to_string().contains("has expired"), "{error}");
}

#[tokio::test]
async fn a_certificate_of_another_name_is_refused_with_its_names() {
    let fixture = Fixture::new();
    let (listener, connector) = Listener::in_memory();
    echo(listener.with_tls(fixture.server()));
    let connector = fixture.trusting(connector);
    let error = connector.connect("node.example", 1).await.unwrap_err();
    assert!(error.to_string().contains("localhost"), "{error}");
}

#[tokio::test]
async fn a_door_that_does_not_speak_tls_is_named_as_such() {
    let (mut listener, address) = tcp_listener().await;
    tokio::spawn(async move {
        let mut stream = listener.accept().await.unwrap();
        let _ = stream.read_u8().await;
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
    });
    let error = failure(&Fixture::new().trusting(Connector::tcp()), address.port()).await;
    assert!(error.to_string().contains("use http://"), "{error}");
}

#[tokio::test]
async fn plain_http_to_a_tls_port_is_told_to_use_https() {
    let fixture = Fixture::new();
    let (listener, address) = tcp_listener().await;
    echo(listener.with_tls(fixture.server()));
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream
        .write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
        .await
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(
        answer.starts_with("HTTP/1.1 400 ") && answer.contains("https://"),
        "{answer}"
    );
}

#[tokio::test]
async fn a_client_without_a_certificate_is_refused_where_one_is_asked_for() {
    let fixture = Fixture::new();
    let (mut listener, address) = tcp_listener().await;
    listener = listener.with_tls(fixture.server_of(&fixture.authority.node(), true));
    let accepted = tokio::spawn(async move {
        let mut stream = listener.accept().await.unwrap();
        stream.write_all(b"hello").await.unwrap();
        (stream.peer().clone(), listener)
    });
    let error = failure(&fixture.trusting(Connector::tcp()), address.port()).await;
    assert_eq!(error.kind(), Kind::Denied);
    assert!(error.to_string().contains("FOREBAY_CLIENT_CERT"), "{error}");
    let stranger = Authority::new()
        .client("stranger")
        .write(fixture.path(), "stranger");
    let error = failure(&as_client(&fixture, stranger), address.port()).await;
    assert!(error.to_string().contains("tls.client_ca"), "{error}");
    let known = fixture
        .authority
        .client("trainer")
        .write(fixture.path(), "trainer");
    let mut stream = as_client(&fixture, known)
        .connect("localhost", address.port())
        .await
        .unwrap();
    let mut bytes = [0; 5];
    stream.read_exact(&mut bytes).await.unwrap();
    let (peer, _listener) = accepted.await.unwrap();
    assert_eq!(peer.certificate.unwrap().subject, "CN=trainer");
}

fn as_client(fixture: &Fixture, (cert, key): (std::path::PathBuf, std::path::PathBuf)) -> Connector {
    let tls = ClientTls {
        cert: Some(cert),
        key: Some(key),
        ..fixture.client()
    };
    Connector::tcp().with_tls(Arc::new(tls.config().unwrap()))
}

async fn subject_of(connector: &Connector) -> String {
    let stream = connector.connect("localhost", 1).await.unwrap();
    stream.peer().certificate.clone().unwrap().subject
}

#[tokio::test]
async fn a_new_certificate_holds_for_new_connections_and_old_ones_go_on() {
    let fixture = Fixture::new();
    let (listener, connector) = Listener::in_memory();
    echo(listener.with_tls(fixture.server()));
    let connector = fixture.trusting(connector);
    let mut old = connector.connect("localhost", 1).await.unwrap();
    says_hello(&mut old).await;
    assert_eq!(subject_of(&connector).await, "CN=node of a test");
    let other = fixture.authority.node_called("the next one");
    other.write(fixture.path(), "node");
    fixture.clock.advance(Duration::from_secs(2));
    assert_eq!(subject_of(&connector).await, "CN=the next one");
    says_hello(&mut old).await;
    std::fs::write(fixture.path().join("node.pem"), "nonsense").unwrap();
    fixture.clock.advance(Duration::from_secs(2));
    assert_eq!(subject_of(&connector).await, "CN=the next one");
}

#[tokio::test(start_paused = true)]
async fn silent_peers_do_not_keep_others_waiting() {
    let fixture = Fixture::new();
    let (listener, connector) = Listener::in_memory();
    echo(listener.with_tls(fixture.server()));
    let mut silent: Vec<Stream> = Vec::new();
    for _ in 0..200 {
        silent.push(connector.connect("localhost", 1).await.unwrap());
    }
    let trusting = fixture.trusting(connector);
    let began = tokio::time::Instant::now();
    says_hello(&mut trusting.connect("localhost", 1).await.unwrap()).await;
    assert!(
        began.elapsed() < Duration::from_millis(500),
        "{:?}",
        began.elapsed()
    );
    // Their time passes: each is hung up on.
    tokio::time::sleep(Duration::from_secs(11)).await;
    for stream in &mut silent {
        assert_eq!(stream.read(&mut [0; 64]).await.unwrap_or(0), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn more_silent_peers_than_there_is_room_for_give_way() {
    let fixture = Fixture::new();
    let (listener, connector) = Listener::in_memory();
    echo(listener.with_tls(fixture.server()));
    let mut silent = Vec::new();
    for _ in 0..300 {
        silent.push(connector.connect("localhost", 1).await.unwrap());
    }
    let trusting = fixture.trusting(connector);
    let began = tokio::time::Instant::now();
    says_hello(&mut trusting.connect("localhost", 1).await.unwrap()).await;
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
}
