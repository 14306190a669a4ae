//! Coming in: sessions, protocols, hostile frames, the socket file.

use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;

use forebay_node::config::Config;
use forebay_node::{EmbeddedNode, EmbeddedOptions, Node, options::NodeOptions};
use forebay_wire::session::Hello;
use forebay_wire::{self as wire, Failure};
use forebay_wire::{objects, session};

use crate::fixture::{Client, TestNode, connect, receive, send};

use forebay_core::crc32c;

fn failure_kind(answer: Option<(Result<session::Answer, Failure>, Option<OwnedFd>)>) -> String {
    match answer {
        Some((Err(failure), None)) => failure.kind,
        other => panic!("{other:?}"),
    }
}

fn hello_frame() -> Vec<u8> {
    let hello = Hello {
        client: "test".into(),
        session: None,
    };
    let mut frame = Vec::new();
    wire::encode(&session::Request::Hello(hello), &mut frame).unwrap();
    frame
}

#[test]
fn a_client_that_says_hello_is_served() {
    let node = TestNode::start();
    let mut client = node.client();
    assert_eq!(client.ask(&session::Request::Ping), Ok(session::Answer::Ready));
    assert_eq!(
        client.ask(&objects::Request::Buckets),
        Ok(objects::Answer::Buckets(vec!["box".into()]))
    );
    assert_eq!(node.stats().sessions, 1);
}

#[test]
fn a_second_connection_joins_a_session_by_its_secret_only() {
    let node = TestNode::start();
    let first = node.client();
    let second = Client::hello_to(node.node.socket(), Some(first.welcome.session)).unwrap();
    assert_eq!(second.welcome.session, first.welcome.session);
    node.wait_until("one session", |stats| stats.sessions == 1);
    let refused = Client::hello_to(node.node.socket(), Some([7; 16])).err().unwrap();
    assert_eq!(refused.kind, "not_found");
}

#[test]
fn a_session_ends_with_its_first_connection_and_takes_the_others_along() {
    let node = TestNode::start();
    let first = node.client();
    let mut second = Client::hello_to(node.node.socket(), Some(first.welcome.session)).unwrap();
    drop(first);
    assert!(second.is_closed());
    node.wait_until("no session", |stats| {
        stats.sessions == 0 && stats.connections == 0
    });
}

/// Another family and version in front of a message, with the checksum that belongs to it.
fn relabelled(mut frame: Vec<u8>, family: u16, version: u16) -> Vec<u8> {
    frame[4..6].copy_from_slice(&family.to_le_bytes());
    frame[6..8].copy_from_slice(&version.to_le_bytes());
    let checksum = crc32c::crc32c_append(crc32c::crc32c(&frame[..12]), &frame[16..]);
    frame[12..16].copy_from_slice(&checksum.to_le_bytes());
    frame
}

fn context(failure: &Failure, name: &str) -> Option<String> {
    let found = failure.context.iter().find(|(known, _)| known == name);
    found.map(|(_, value)| value.clone())
}

#[test]
fn a_hello_of_another_version_is_answered_with_both_versions() {
    let node = TestNode::start();
    let id = session::FAMILY;
    // The second is a client from before there were families: protocol 4, zero behind it.
    for (family, version) in [(id.number, id.version + 1), (4, 0)] {
        let mut stream = connect(node.node.socket());
        stream
            .write_all(&relabelled(hello_frame(), family, version))
            .unwrap();
        let (answer, _) = receive::<session::Answer>(&mut stream).unwrap();
        let failure = answer.unwrap_err();
        assert_eq!(failure.kind, "unsupported");
        assert!(context(&failure, "theirs").is_some(), "{failure:?}");
        assert!(context(&failure, "ours").is_some(), "{failure:?}");
        assert!(receive::<session::Answer>(&mut stream).is_none(), "and closed");
    }
}

#[test]
fn an_unknown_family_or_version_is_refused_by_number_and_the_connection_goes_on() {
    let node = TestNode::start();
    let mut client = node.client();
    let mut frame = Vec::new();
    wire::encode(&objects::Request::Buckets, &mut frame).unwrap();
    let id = objects::FAMILY;
    client.send_bytes(&relabelled(frame.clone(), 200, 7));
    let failure = client.receive::<objects::Answer>().unwrap_err();
    assert_eq!(failure.kind, "unsupported");
    assert_eq!(context(&failure, "family"), Some("200".into()));
    assert_eq!(context(&failure, "version"), Some("7".into()));
    client.send_bytes(&relabelled(frame, id.number, id.version + 1));
    let failure = client.receive::<objects::Answer>().unwrap_err();
    assert_eq!(failure.kind, "unsupported");
    assert_eq!(context(&failure, "family"), Some("objects".into()));
    assert_eq!(context(&failure, "theirs"), Some((id.version + 1).to_string()));
    assert_eq!(context(&failure, "ours"), Some(id.version.to_string()));
    assert_eq!(client.ask(&session::Request::Ping), Ok(session::Answer::Ready));
}

#[test]
fn a_message_that_cannot_be_understood_ends_the_connection() {
    let node = TestNode::start();
    let mut client = node.client();
    let mut frame = Vec::new();
    wire::encode(&session::Request::Ping, &mut frame).unwrap();
    *frame.last_mut().unwrap() = 0x7f; // No such request.
    client.send_bytes(&relabelled(
        frame,
        session::FAMILY.number,
        session::FAMILY.version,
    ));
    assert_eq!(client.receive::<session::Answer>().unwrap_err().kind, "corrupt");
    assert!(client.is_closed());
}

#[test]
fn hostile_bytes_end_the_connection_and_nothing_else() {
    let node = TestNode::start();
    let mut long = hello_frame();
    long[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
    let mut longer_than_a_hello = hello_frame();
    longer_than_a_hello[8..12].copy_from_slice(&(1u32 << 20).to_le_bytes());
    let mut flipped = hello_frame();
    flipped[17] ^= 1;
    for bytes in [
        b"GET / HTTP/1.1\r\nhost: x\r\n\r\n".to_vec(),
        long,
        longer_than_a_hello,
        flipped,
    ] {
        let mut stream = connect(node.node.socket());
        stream.write_all(&bytes).unwrap();
        assert_eq!(failure_kind(receive(&mut stream)), "corrupt");
        assert!(receive::<session::Answer>(&mut stream).is_none());
    }
    node.wait_until("all gone", |stats| stats.connections == 0);
    assert_eq!(
        node.client().ask(&session::Request::Ping),
        Ok(session::Answer::Ready)
    );
}

#[test]
fn half_a_frame_and_a_close_leave_nothing_behind() {
    let node = TestNode::start();
    let frame = hello_frame();
    for length in 0..frame.len() {
        let mut stream = connect(node.node.socket());
        stream.write_all(&frame[..length]).unwrap();
    }
    node.wait_until("all gone", |stats| stats.connections == 0 && stats.sessions == 0);
}

#[test]
fn the_first_message_must_be_a_hello_and_there_is_only_one() {
    let node = TestNode::start();
    let mut stream = connect(node.node.socket());
    send(&mut stream, &session::Request::Ping);
    assert_eq!(failure_kind(receive(&mut stream)), "invalid_input");
    assert!(receive::<session::Answer>(&mut stream).is_none());
    let mut client = node.client();
    let again = session::Request::Hello(Hello {
        client: String::new(),
        session: None,
    });
    assert!(matches!(client.ask(&again), Err(failure) if failure.kind == "invalid_input"));
    assert_eq!(
        client.ask(&session::Request::Ping),
        Ok(session::Answer::Ready),
        "and the connection goes on"
    );
}

#[test]
fn requests_sent_ahead_are_answered_in_order() {
    let node = TestNode::start();
    let mut client = node.client();
    for _ in 0..100 {
        client.send(&session::Request::Ping);
        client.send(&objects::Request::Buckets);
    }
    for _ in 0..100 {
        assert_eq!(client.receive(), Ok(session::Answer::Ready));
        assert!(matches!(client.receive(), Ok(objects::Answer::Buckets(_))));
    }
}

#[test]
fn too_many_connections_are_refused_with_the_limit() {
    let node = TestNode::with("[limits]\nclient_connections = 2");
    node.wait_until("the first client is gone", |stats| stats.connections == 0);
    let (_one, _two) = (node.client(), node.client());
    let mut third = connect(node.node.socket());
    assert_eq!(failure_kind(receive(&mut third)), "busy");
    assert_eq!(node.stats().refused_connections, 1);
}

#[test]
fn a_long_or_odd_client_name_does_no_harm() {
    let node = TestNode::start();
    let mut stream = connect(node.node.socket());
    let client = "ä\n\u{1b}[31m".repeat(200);
    send(
        &mut stream,
        &session::Request::Hello(Hello {
            client,
            session: None,
        }),
    );
    assert!(matches!(
        receive(&mut stream),
        Some((Ok(session::Answer::Welcome(_)), None))
    ));
}

fn options(socket: &std::path::Path, data: &std::path::Path) -> NodeOptions {
    let text = format!(
        "data = '{}'\nram = '64MiB'\nnvme = 0\ns3 = 'off'\nadmin = 'off'\nsocket = '{}'",
        data.display(),
        socket.display()
    );
    NodeOptions::resolve(Config::parse(&text).unwrap()).unwrap()
}

#[tokio::test]
async fn the_socket_is_private_and_goes_with_its_node() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    let node = Node::start(options(&socket, &dir.path().join("data")))
        .await
        .unwrap();
    let mode = std::fs::metadata(&socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let error = Node::start(options(&socket, &dir.path().join("other")))
        .await
        .unwrap_err();
    assert!(
        error.to_string().contains("another node listens on this socket"),
        "{error}"
    );
    assert!(socket.exists(), "the refused node has not touched it");
    node.shutdown(crate::fixture::LONG).await;
    assert!(!socket.exists());
}

#[tokio::test]
async fn the_socket_of_a_dead_node_is_replaced_and_other_files_are_not() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    assert!(socket.exists(), "as a killed node leaves it");
    let node = Node::start(options(&socket, &dir.path().join("data")))
        .await
        .unwrap();
    node.shutdown(crate::fixture::LONG).await;
    std::fs::write(&socket, "precious").unwrap();
    let error = Node::start(options(&socket, &dir.path().join("data")))
        .await
        .unwrap_err();
    assert!(
        error.to_string().contains("something else has the name"),
        "{error}"
    );
    assert_eq!(std::fs::read(&socket).unwrap(), b"precious");
}

#[test]
fn an_embedded_node_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let options = EmbeddedOptions {
        lake: Some(dir.path().display().to_string()),
        ram_bytes: Some(64 << 20),
        ..EmbeddedOptions::default()
    };
    let mut node = EmbeddedNode::start(options).unwrap();
    let socket = node.socket().to_path_buf();
    let folder = std::fs::metadata(socket.parent().unwrap()).unwrap();
    assert_eq!(folder.permissions().mode() & 0o777, 0o700);
    let data = node.node().unwrap().options().data_dir.clone();
    assert_eq!(
        Client::hello(&socket).ask(&session::Request::Ping),
        Ok(session::Answer::Ready)
    );
    node.shutdown(crate::fixture::LONG);
    assert!(!socket.parent().unwrap().exists() && !data.exists());
}

#[test]
fn the_wait_for_a_silent_lake_can_be_stopped() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = silent.local_addr().unwrap();
    let options = EmbeddedOptions {
        lake: Some(format!("s3://lake?endpoint=http://{endpoint}&anonymous=true")),
        ram_bytes: Some(64 << 20),
        ..EmbeddedOptions::default()
    };
    let asked = std::cell::Cell::new(0);
    let start = std::time::Instant::now();
    let started = EmbeddedNode::start_unless(options, || asked.replace(asked.get() + 1) == 3);
    assert_eq!(started.unwrap_err().kind(), forebay_core::Kind::Cancelled);
    assert!(
        start.elapsed() < std::time::Duration::from_secs(15),
        "the lake is asked for 20"
    );
}

#[test]
fn a_process_that_forks_can_ask_which_sockets_are_the_nodes() {
    let node = TestNode::start();
    let sockets = || node.node.node().unwrap().client_sockets().len();
    node.wait_until("only the listener is left", |stats| stats.connections == 0);
    assert_eq!(sockets(), 1);
    let client = node.client();
    assert_eq!(sockets(), 2);
    drop(client);
    node.wait_until("the client is gone", |stats| stats.connections == 0);
    assert_eq!(sockets(), 1);
}
