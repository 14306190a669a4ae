//! A node with a certificate, seen by the client over `https://` and by plain sockets.
#![allow(unsafe_code, reason = "fork itself")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a broken step should fail the test"
)]

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use forebay_client::{Client, ClientOptions, ClientTls, Credentials, ItemRange, Name, PutOptions, PutSource};
use forebay_core::Kind;
use forebay_net::Connector;
use forebay_node::Node;
use forebay_node::config::Config;
use forebay_node::machine::Machine;
use forebay_node::options::NodeOptions;
use forebay_testkit::Authority;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Runtime;

const KEYS: &str = "[[key]]\nid = 'test-key'\nsecret = 'test-secret'\n";

/// A node with TLS, its runtime and its authority.
struct Secured {
    authority: Authority,
    ca: PathBuf,
    node: Node,
    runtime: Runtime,
    folder: tempfile::TempDir,
}

impl Secured {
    fn start(asks_for_certificates: bool) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::new();
        let ca = authority.write(folder.path());
        let (cert, key) = authority.node().write(folder.path(), "node");
        let mut tls = format!("[tls]\ncert = '{}'\nkey = '{}'\n", cert.display(), key.display());
        if asks_for_certificates {
            tls += &format!("client_ca = '{}'\n", ca.display());
        }
        let runtime = Runtime::new().unwrap();
        let node = runtime
            .block_on(Node::start(options(folder.path(), &tls)))
            .unwrap();
        runtime.block_on(node.wait_ready());
        Self {
            authority,
            ca,
            node,
            runtime,
            folder,
        }
    }

    fn trust(&self) -> ClientTls {
        ClientTls {
            ca: Some(self.ca.clone()),
            ..ClientTls::default()
        }
    }

    fn client(&self, tls: ClientTls) -> forebay_core::Result<Client> {
        Client::connect(ClientOptions {
            address: self.node.s3_url(),
            timeout: Duration::from_secs(20),
            credentials: Some(Credentials {
                access_key_id: "test-key".into(),
                secret_access_key: "test-secret".into(),
            }),
            tls,
            ..ClientOptions::default()
        })
    }

    /// An answer of the admin API over TLS.
    fn health(&self, tls: &ClientTls) -> std::io::Result<String> {
        let url = self.node.admin_url().unwrap();
        let port: u16 = url.rsplit_once(':').unwrap().1.parse().unwrap();
        let connector = Connector::tcp().with_tls(std::sync::Arc::new(tls.config().unwrap()));
        self.runtime.block_on(async {
            let connected = connector.connect("localhost", port).await;
            let mut stream = connected.map_err(std::io::Error::other)?;
            let request = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
            stream.write_all(request).await?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await?;
            Ok(answer)
        })
    }
}

fn options(folder: &Path, more: &str) -> NodeOptions {
    let text = format!(
        "data = '{}'\nlake = 'memory://'\nram = '64MiB'\nnvme = 0\ns3 = '127.0.0.1:0'\nadmin = '127.0.0.1:0'\n\
         socket = 'off'\n{more}{KEYS}",
        folder.join("data").display()
    );
    let machine = Machine {
        memory_bytes: 1 << 30,
        disk_bytes: 1 << 30,
    };
    NodeOptions::resolve_on(Config::parse(&text).unwrap(), &machine).unwrap()
}

fn name(key: &str) -> Name {
    Name::parse(&format!("bucket/{key}")).unwrap()
}

fn put(client: &Client, key: &str, bytes: &[u8]) {
    client
        .put(&name(key), PutSource::Slice(bytes), PutOptions::default())
        .unwrap();
}

fn read(client: &Client, key: &str) -> Vec<u8> {
    client.get(&name(key), ItemRange::Whole, None).unwrap().to_vec()
}

#[test]
fn both_endpoints_speak_tls() {
    let secured = Secured::start(false);
    let url = secured.node.s3_url().unwrap();
    assert!(url.starts_with("https://"), "{url}");
    assert!(secured.node.exposed_urls().is_empty());
    let client = secured.client(secured.trust()).unwrap();
    assert_eq!(client.address(), url);
    client.create_bucket("bucket").unwrap();
    // Larger than any buffer of TLS or HTTP, and read by several connections at once.
    let bytes = forebay_testkit::patterned(3, 40 << 20);
    put(&client, "large", &bytes);
    assert!(read(&client, "large") == bytes);
    let health = secured.health(&secured.trust()).unwrap();
    assert!(health.starts_with("HTTP/1.1 200"), "{health}");
}

#[test]
fn the_client_refuses_what_it_does_not_trust_and_says_what_to_do() {
    let secured = Secured::start(false);
    let other = Authority::new();
    let elsewhere = tempfile::tempdir().unwrap();
    let stranger = ClientTls {
        ca: Some(other.write(elsewhere.path())),
        ..ClientTls::default()
    };
    let error = secured.client(stranger).unwrap_err();
    assert_eq!(error.kind(), Kind::Denied);
    assert!(error.to_string().contains("FOREBAY_CA"), "{error}");
    let plain = secured.node.s3_url().unwrap().replacen("https://", "http://", 1);
    let options = ClientOptions {
        address: Some(plain),
        ..ClientOptions::default()
    };
    let error = Client::connect(options).unwrap_err();
    assert!(error.to_string().contains("https://"), "{error}");
}

#[test]
fn a_node_without_tls_is_named_as_such() {
    let secured = Secured::start(false);
    let folder = tempfile::tempdir().unwrap();
    let plain = secured
        .runtime
        .block_on(Node::start(options(folder.path(), "")))
        .unwrap();
    secured.runtime.block_on(plain.wait_ready());
    let options = ClientOptions {
        address: Some(plain.s3_url().unwrap().replacen("http://", "https://", 1)),
        tls: secured.trust(),
        timeout: Duration::from_secs(20),
        ..ClientOptions::default()
    };
    let error = Client::connect(options).unwrap_err();
    assert!(error.to_string().contains("use http://"), "{error}");
}

#[test]
fn a_client_certificate_is_asked_for_at_both_endpoints() {
    let secured = Secured::start(true);
    let error = secured.client(secured.trust()).unwrap_err();
    assert_eq!(error.kind(), Kind::Denied, "{error}");
    assert!(error.to_string().contains("FOREBAY_CLIENT_CERT"), "{error}");
    assert!(secured.health(&secured.trust()).is_err());
    let (cert, key) = secured
        .authority
        .client("trainer")
        .write(secured.folder.path(), "trainer");
    let known = ClientTls {
        cert: Some(cert),
        key: Some(key),
        ..secured.trust()
    };
    assert!(
        secured
            .client(known.clone())
            .unwrap()
            .buckets()
            .unwrap()
            .is_empty()
    );
    assert!(secured.health(&known).unwrap().starts_with("HTTP/1.1 200"));
}

#[test]
fn a_certificate_is_replaced_while_clients_read_and_none_fails() {
    let secured = Secured::start(false);
    let client = secured.client(secured.trust()).unwrap();
    client.create_bucket("bucket").unwrap();
    put(&client, "a", b"hello");
    let (stop, reads) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for fresh in [false, true] {
            let (stop, reads, client, secured) = (&stop, &reads, &client, &secured);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let another = fresh.then(|| secured.client(secured.trust()).unwrap());
                    assert_eq!(read(another.as_ref().unwrap_or(client), "a"), b"hello");
                    reads.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for name in ["second", "third"] {
            secured
                .authority
                .node_called(name)
                .write(secured.folder.path(), "node");
            std::thread::sleep(Duration::from_millis(1500));
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(reads.into_inner() > 10);
}

#[test]
fn a_forked_child_and_its_parent_both_go_on_over_tls() {
    let secured = Secured::start(false);
    let client = secured.client(secured.trust()).unwrap();
    client.create_bucket("bucket").unwrap();
    let bytes = forebay_testkit::patterned(5, 3 << 20);
    put(&client, "a", &bytes);
    assert!(
        read(&client, "a") == bytes,
        "the connection is kept for the next call"
    );
    let children: Vec<_> = (0..4)
        .map(|_| {
            // SAFETY: the child reads and ends by `_exit`, without unwinding into the test harness.
            let pid = unsafe { libc::fork() };
            assert!(pid >= 0, "fork failed");
            if pid == 0 {
                let read = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    (0..5).all(|_| read(&client, "a") == bytes)
                }));
                // SAFETY: ends the child at once.
                unsafe { libc::_exit(i32::from(!matches!(read, Ok(true)))) };
            }
            pid
        })
        .collect();
    for _ in 0..20 {
        assert!(read(&client, "a") == bytes);
    }
    for pid in children {
        let mut status = 0;
        // SAFETY: waits for our own child.
        assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
        assert_eq!(status, 0);
    }
    assert!(
        read(&client, "a") == bytes,
        "the parent's connection was not touched"
    );
}
