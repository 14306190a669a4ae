//! Nodes that lie, stall, die and come back.

#![allow(clippy::unwrap_used, reason = "a failure here is the failure of a test")]

mod fixture;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fixture::{
    Answer, FakeNode, Folder, Reply, Request, connect, item, memfd, name, options, pattern, until,
};
use forebay_client::{Client, ClientOptions, ItemRange, PutOptions, PutSource};
use forebay_core::Kind;
use forebay_wire::objects::ViewPart;
use forebay_wire::{self as wire};
use forebay_wire::{objects, session, writes};
use rustix::fs::SealFlags;

fn read_error(node: &FakeNode, client: &Client) -> forebay_core::Error {
    let error = client.get(&name("a"), ItemRange::Whole, None).unwrap_err();
    until("the lease is given back", || node.books().holders() == 0);
    error
}

#[test]
fn bytes_outside_of_a_segment_are_refused() {
    let node = FakeNode::start();
    let segment = node.books().add_segment(&pattern(1, 8192));
    let client = connect(&node);
    for (offset, bytes) in [
        (8192, 1),
        (4096, 4097),
        (u64::MAX, 2),
        (0, u64::MAX),
        (1 << 40, 1),
    ] {
        node.books().add_parts(
            "a",
            vec![ViewPart {
                segment,
                offset,
                bytes,
            }],
        );
        // The fake cuts ranges out of parts; a whole read passes them on as they are.
        let error = read_error(&node, &client);
        assert_eq!(error.kind(), Kind::Corrupt, "{offset}+{bytes}: {error}");
    }
    let parts = [(0, 4096), (4096, 8192)].map(|(offset, bytes)| ViewPart {
        segment,
        offset,
        bytes,
    });
    node.books().add_parts("a", parts.to_vec());
    assert_eq!(read_error(&node, &client).kind(), Kind::Corrupt);
    node.books().add_parts(
        "a",
        vec![ViewPart {
            segment,
            offset: 0,
            bytes: 8192,
        }],
    );
    assert!(
        client.get(&name("a"), ItemRange::Whole, None).is_ok(),
        "the connection is still good"
    );
}

#[test]
fn memory_that_could_shrink_or_is_too_short_or_no_memfd_is_refused() {
    let node = FakeNode::start();
    node.books().add_object("a", &pattern(2, 4096));
    let client = connect(&node);
    let file = std::fs::File::open("/dev/zero").unwrap().into();
    let bad = [
        (memfd(&[0; 16384], SealFlags::empty()), 16384),
        (memfd(&[0; 4096], SealFlags::SHRINK), 16384),
        (memfd(&[0; 16384], SealFlags::SHRINK), 0),
        (file, 16384),
    ];
    for (descriptor, bytes) in bad {
        let descriptor = Arc::new(descriptor);
        node.hook(move |request| match request {
            Request::Session(session::Request::MapSegment { .. }) => Some(Reply::Answer(
                Answer::Session(session::Answer::Segment { bytes }),
                Some(Arc::clone(&descriptor)),
            )),
            _ => None,
        });
        assert_eq!(read_error(&node, &client).kind(), Kind::Corrupt);
    }
    node.hook(|request| match request {
        Request::Session(session::Request::MapSegment { .. }) => Some(Reply::Answer(
            Answer::Session(session::Answer::Segment { bytes: 16384 }),
            None,
        )),
        _ => None,
    });
    assert_eq!(read_error(&node, &client).kind(), Kind::Corrupt, "no descriptor");
    node.unhook();
    assert!(client.get(&name("a"), ItemRange::Whole, None).is_ok());
}

#[test]
fn answers_of_another_kind_or_number_and_garbage_are_refused_and_the_next_call_works() {
    let node = FakeNode::start();
    node.books().add_object("a", &pattern(3, 4096));
    let client = connect(&node);
    let mut cut = Vec::new();
    wire::encode(&objects::Answer::Done, &mut cut).unwrap();
    cut.pop();
    let replies: Vec<(Reply, Kind)> = vec![
        (
            Reply::Answer(Answer::Objects(objects::Answer::Done), None),
            Kind::Corrupt,
        ),
        (
            Reply::Answer(Answer::Objects(objects::Answer::Read(Vec::new())), None),
            Kind::Corrupt,
        ),
        (Reply::Bytes(b"GET / HTTP/1.1\r\n\r\n".to_vec()), Kind::Corrupt),
        (
            Reply::Bytes(b"FBAY\x01\0\0\0\xff\xff\xff\xff\0\0\0\0".to_vec()),
            Kind::Corrupt,
        ),
        (Reply::Bytes(cut), Kind::Unavailable),
        (Reply::Bytes(Vec::new()), Kind::Unavailable),
    ];
    for (reply, kind) in replies {
        // Twice, because a broken connection is tried again once.
        let again = match &reply {
            Reply::Bytes(bytes) => Some(Reply::Bytes(bytes.clone())),
            _ => None,
        };
        let mut replies = vec![Some(reply), again];
        node.hook(move |request| match request {
            Request::Objects(objects::Request::Read { .. }) if !replies.is_empty() => replies.remove(0),
            _ => None,
        });
        let result = client.get(&name("a"), ItemRange::Whole, None);
        assert_eq!(result.unwrap_err().kind(), kind);
        node.unhook();
        assert_eq!(
            &client.get(&name("a"), ItemRange::Whole, None).unwrap()[..],
            pattern(3, 4096)
        );
    }
    assert_eq!(client.stats().reconnects, 0, "the session itself was never lost");
}

#[test]
fn a_node_of_another_protocol_is_named_as_such() {
    let node = FakeNode::start();
    node.hook(|_| {
        let mut frame = Vec::new();
        wire::encode(&objects::Answer::Done, &mut frame).unwrap();
        frame[4] = 9;
        let checksum = crc(&frame);
        frame[12..16].copy_from_slice(&checksum.to_le_bytes());
        Some(Reply::Bytes(frame))
    });
    let error = Client::connect(options(&node.path())).unwrap_err();
    assert_eq!(error.kind(), Kind::Unsupported);
    assert!(error.to_string().contains("same version"), "{error}");
}

/// CRC32C over bytes 0..12 and the message, bit by bit.
fn crc(frame: &[u8]) -> u32 {
    let bytes = frame[..12].iter().chain(&frame[16..]);
    !bytes.fold(!0u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            (crc >> 1) ^ (0x82f6_3b78 & 0u32.wrapping_sub(crc & 1))
        })
    })
}

#[test]
fn no_node_is_unavailable_at_once_and_the_message_names_the_socket() {
    let folder = Folder::new();
    let start = Instant::now();
    let error = Client::connect(options(&folder.socket())).unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable);
    assert!(
        error.to_string().contains("node.sock") && error.to_string().contains("forebay serve"),
        "{error}"
    );
    assert!(start.elapsed() < Duration::from_secs(5));
}

#[test]
fn a_view_outlives_its_node_and_the_next_call_finds_the_new_one() {
    let folder = Folder::new();
    let mut node = FakeNode::start_at(&folder.socket(), 1);
    let content = pattern(4, 50_000);
    node.books().add_object("a", &content);
    let client = connect(&node);
    let view = client.get(&name("a"), ItemRange::Whole, None).unwrap();
    node.stop();
    assert_eq!(&view[..], content);
    let error = client.get(&name("a"), ItemRange::Whole, None).unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable);
    let new = FakeNode::start_at(&folder.socket(), 2);
    new.books().add_object("a", b"of the new node");
    assert_eq!(
        &client.get(&name("a"), ItemRange::Whole, None).unwrap()[..],
        b"of the new node"
    );
    assert_eq!(client.stats().reconnects, 1);
    // The handle is of another incarnation: the object has another version now.
    assert_eq!(
        client.open_handle(&view.handle()).unwrap_err().kind(),
        Kind::Changed
    );
    assert_eq!(&view[..], content);
    drop(view);
    client.ping().unwrap();
    let strangers = new.books().log.iter().any(|request| match request {
        Request::Objects(objects::Request::Release { leases }) => leases.iter().any(|lease| *lease < 2000),
        _ => false,
    });
    assert!(
        !strangers,
        "leases of the old node are not given back to the new one"
    );
}

#[test]
fn a_client_without_a_free_connection_finds_the_new_node_too() {
    let folder = Folder::new();
    let mut node = FakeNode::start_at(&folder.socket(), 1);
    let client = connect(&node);
    // Every connection of the session breaks but the one that holds it.
    node.hook(|request| {
        matches!(request, Request::Session(session::Request::Ping)).then(|| Reply::Bytes(Vec::new()))
    });
    assert_eq!(client.ping().unwrap_err().kind(), Kind::Unavailable);
    node.stop();
    let _new = FakeNode::start_at(&folder.socket(), 2);
    client.ping().unwrap();
    assert_eq!(client.stats().reconnects, 1);
}

#[test]
fn a_call_waits_for_a_node_that_restarts() {
    let folder = Folder::new();
    let mut node = FakeNode::start_at(&folder.socket(), 1);
    let client = Client::connect(ClientOptions {
        reconnect_wait: Duration::from_secs(20),
        ..options(&node.path())
    })
    .unwrap();
    node.stop();
    let asking = client.clone();
    let caller = std::thread::spawn(move || asking.ping());
    let _new = FakeNode::start_at(&folder.socket(), 2);
    caller.join().unwrap().unwrap();
}

#[test]
fn a_put_whose_node_dies_is_not_repeated() {
    let node = FakeNode::start();
    let client = connect(&node);
    node.hook(|request| {
        matches!(request, Request::Writes(writes::Request::Put(_))).then(|| Reply::Bytes(Vec::new()))
    });
    let error = client
        .put(&name("a"), PutSource::Slice(b"x"), PutOptions::default())
        .unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable);
    assert!(error.to_string().contains("may still be done"), "{error}");
    assert!(node.books().written.is_empty());
}

#[test]
fn an_interrupted_read_ends_soon_and_its_late_leases_are_given_back() {
    let node = FakeNode::start();
    node.books().add_object("a", &pattern(5, 4096));
    let stop = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stop);
    let client = Client::connect(ClientOptions {
        interrupt: Some(Arc::new(move || flag.load(Ordering::SeqCst))),
        ..options(&node.path())
    })
    .unwrap();
    let seen = Arc::new(AtomicBool::new(false));
    let stalled = Arc::clone(&seen);
    node.hook(move |request| {
        let read = matches!(request, Request::Objects(objects::Request::Read { .. }));
        stalled.fetch_or(read, Ordering::SeqCst);
        read.then_some(Reply::AfterGate)
    });
    let reading = client.clone();
    let reader = std::thread::spawn(move || reading.get_batch(vec![item("a")]));
    until("the read is stalled", || seen.load(Ordering::SeqCst));
    stop.store(true, Ordering::SeqCst);
    let start = Instant::now();
    assert_eq!(reader.join().unwrap().unwrap_err().kind(), Kind::Cancelled);
    assert!(start.elapsed() < Duration::from_secs(5));
    stop.store(false, Ordering::SeqCst);
    node.unhook();
    client.ping().unwrap(); // Others are not held up.
    node.open_gate();
    until("the late lease is there", || {
        node.books().next > 0 && node.books().log.len() > 1
    });
    until("the late lease is given back", || {
        client.ping().unwrap();
        node.books().holders() == 0 && node.books().releases() > 0
    });
}

#[test]
fn memory_that_comes_after_its_put_was_given_up_goes_back() {
    let node = FakeNode::start();
    let stop = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stop);
    let client = Client::connect(ClientOptions {
        interrupt: Some(Arc::new(move || flag.load(Ordering::SeqCst))),
        ..options(&node.path())
    })
    .unwrap();
    let requests: [fn(&Request) -> bool; 2] = [
        |request| matches!(request, Request::Writes(writes::Request::Allocate { .. })),
        |request| matches!(request, Request::Writes(writes::Request::BeginWrite(_))),
    ];
    node.books().buffer_bytes_max = 1000;
    for (is_stalled, bytes) in requests.into_iter().zip([100, 5000]) {
        let seen = Arc::new(AtomicBool::new(false));
        let stalled = Arc::clone(&seen);
        node.hook(move |request| {
            let read = is_stalled(request);
            stalled.fetch_or(read, Ordering::SeqCst);
            read.then_some(Reply::AfterGate)
        });
        let writing = client.clone();
        let writer = std::thread::spawn(move || {
            let content = pattern(6, bytes);
            writing.put(&name("a"), PutSource::Slice(&content), PutOptions::default())
        });
        until("the put is stalled", || seen.load(Ordering::SeqCst));
        stop.store(true, Ordering::SeqCst);
        assert_eq!(writer.join().unwrap().unwrap_err().kind(), Kind::Cancelled);
        stop.store(false, Ordering::SeqCst);
        node.unhook();
        node.open_gate();
        let has_come = || node.books().log.iter().any(is_stalled);
        until("the answer was given", has_come);
        until("what it brought is given back", || {
            client.ping().unwrap();
            let books = node.books();
            books.buffers.is_empty() && books.writes.is_empty()
        });
        node.close_gate();
    }
}

#[test]
fn a_view_can_be_dropped_by_whom_the_interrupt_of_another_thread_waits_for() {
    let node = FakeNode::start();
    node.books().add_object("a", &pattern(7, 4096));
    // As in Python, where the interrupt needs the interpreter, and views are dropped by whoever has it.
    let interpreter = Arc::new(std::sync::Mutex::new(()));
    let asked = Arc::new(AtomicBool::new(false));
    let (taken, has_asked) = (Arc::clone(&interpreter), Arc::clone(&asked));
    let client = Client::connect(ClientOptions {
        interrupt: Some(Arc::new(move || {
            let waits = std::thread::current().name() == Some("waits");
            has_asked.fetch_or(waits, Ordering::SeqCst);
            drop(taken.lock().unwrap());
            false
        })),
        connections_max: 1,
        ..options(&node.path())
    })
    .unwrap();
    let view = client.get(&name("a"), ItemRange::Whole, None).unwrap();
    let stalled = Arc::new(AtomicBool::new(false));
    let is_stalled = Arc::clone(&stalled);
    node.hook(move |request| {
        let stat = matches!(request, Request::Objects(objects::Request::Stat(_)));
        is_stalled.fetch_or(stat, Ordering::SeqCst);
        stat.then_some(Reply::AfterGate)
    });
    let held = interpreter.lock().unwrap();
    let (first, second) = (client.clone(), client.clone());
    let first = std::thread::spawn(move || first.stat(&name("a")));
    until("the only connection is taken", || stalled.load(Ordering::SeqCst));
    let waits = std::thread::Builder::new().name("waits".into());
    let second = waits.spawn(move || second.ping()).unwrap();
    until("another call waits for it", || asked.load(Ordering::SeqCst));
    let (done, dropped) = std::sync::mpsc::channel();
    let dropper = std::thread::spawn(move || {
        drop(view);
        done.send(())
    });
    let in_time = dropped.recv_timeout(Duration::from_secs(10));
    drop(held);
    node.open_gate();
    assert!(in_time.is_ok(), "the view could not be dropped");
    dropper.join().unwrap().unwrap();
    first.join().unwrap().unwrap();
    second.join().unwrap().unwrap();
}

#[test]
fn a_stalled_node_is_a_timeout() {
    let node = FakeNode::start();
    let client = Client::connect(ClientOptions {
        timeout: Duration::from_secs(1),
        ..options(&node.path())
    })
    .unwrap();
    node.hook(|request| {
        matches!(request, Request::Session(session::Request::Ping)).then_some(Reply::AfterGate)
    });
    let error = client.ping().unwrap_err();
    assert_eq!(error.kind(), Kind::Timeout);
}

#[test]
fn connections_are_limited_and_further_calls_wait() {
    let node = FakeNode::start();
    node.books().add_object("a", &pattern(6, 4096));
    let client = Client::connect(ClientOptions {
        connections_max: 1,
        ..options(&node.path())
    })
    .unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..20 {
                    client.get(&name("a"), ItemRange::Whole, None).unwrap();
                }
            });
        }
    });
    assert_eq!(node.sessions(), 1);
}
