//! Writes: one copy or none, a full arena, buffers that go back, objects larger than the arena.

mod fixture;

use std::time::Duration;

use fixture::{FakeNode, MIB, Request, connect, name, options, pattern, until};
use forebay_client::{Client, ClientOptions, ItemRange, PutOptions, PutSource};
use forebay_core::Kind;
use forebay_wire::writes;

#[test]
fn a_slice_is_written_and_read_back() {
    let node = FakeNode::start();
    let client = connect(&node);
    let content = pattern(1, 300_001);
    let receipt = client
        .put(&name("a"), PutSource::Slice(&content), PutOptions::default())
        .unwrap();
    assert_eq!(receipt.bytes, 300_001);
    let view = client
        .get(&name("a"), ItemRange::Whole, Some(&receipt.version))
        .unwrap();
    assert!(view[..] == content[..]);
    assert!(node.books().buffers.is_empty());
    assert_eq!(client.stats().written_bytes, 300_001);
}

#[test]
fn a_buffer_is_built_in_place_and_put_without_a_copy() {
    let node = FakeNode::start();
    let client = connect(&node);
    let content = pattern(2, 100_000);
    let mut buffer = client.alloc(120_000).unwrap();
    assert_eq!(buffer.len(), 120_000);
    buffer[..100_000].copy_from_slice(&content);
    buffer.truncate(100_000);
    client
        .put(&name("a"), PutSource::Buffer(buffer), PutOptions::default())
        .unwrap();
    assert_eq!(node.books().written["a"], content);
    assert_eq!(client.stats().copied_bytes, 0);
}

#[test]
fn an_empty_object_can_be_put() {
    let node = FakeNode::start();
    let client = connect(&node);
    let receipt = client
        .put(&name("a"), PutSource::Slice(b""), PutOptions::default())
        .unwrap();
    assert_eq!(receipt.bytes, 0);
}

#[test]
fn a_buffer_that_is_dropped_goes_back() {
    let node = FakeNode::start();
    let client = connect(&node);
    let buffer = client.alloc(1000).unwrap();
    assert_eq!(node.books().buffers.len(), 1);
    drop(buffer);
    until("the buffer is free", || node.books().buffers.is_empty());
}

#[test]
fn a_full_arena_is_waited_for_and_busy_when_time_is_up() {
    let node = FakeNode::start();
    node.books().buffers_max = 1;
    let client = connect(&node);
    let impatient = Client::connect(ClientOptions {
        timeout: Duration::from_secs(1),
        ..options(&node.path())
    })
    .unwrap();
    let held = client.alloc(1000).unwrap();
    assert_eq!(impatient.alloc(1000).unwrap_err().kind(), Kind::Busy);
    let waiting = client.clone();
    let waiter = std::thread::spawn(move || waiting.alloc(1000).map(|buffer| buffer.len()));
    let asked = |node: &FakeNode| {
        let books = node.books();
        books
            .log
            .iter()
            .filter(|request| matches!(request, Request::Writes(writes::Request::Allocate { .. })))
            .count()
    };
    let before = asked(&node);
    until("the waiter has asked again", || asked(&node) > before + 1);
    drop(held);
    assert_eq!(waiter.join().unwrap().unwrap(), 1000);
}

#[test]
fn a_buffer_of_another_client_is_refused() {
    let node = FakeNode::start();
    let (one, other) = (connect(&node), connect(&node));
    let buffer = one.alloc(10).unwrap();
    let error = other
        .put(&name("a"), PutSource::Buffer(buffer), PutOptions::default())
        .unwrap_err();
    assert_eq!(error.kind(), Kind::InvalidInput);
}

fn parts_of(node: &FakeNode) -> usize {
    let books = node.books();
    let is_part = |request: &&Request| matches!(request, Request::Writes(writes::Request::WritePart(_)));
    books.log.iter().filter(is_part).count()
}

#[test]
fn what_is_larger_than_the_arena_goes_in_parts() {
    let node = FakeNode::start();
    node.books().buffer_bytes_max = 4 * MIB as u64;
    let client = connect(&node);
    let content = pattern(3, 9 * MIB + 5);
    let receipt = client
        .put(&name("a"), PutSource::Slice(&content), PutOptions::default())
        .unwrap();
    assert_eq!(receipt.bytes, content.len() as u64);
    assert_eq!(parts_of(&node), 10);
    assert!(node.books().written["a"] == content);
    assert_eq!(client.stats().written_bytes, content.len() as u64);
    let mut buffer = client.alloc(content.len() as u64).unwrap();
    buffer.copy_from_slice(&content);
    client
        .put(&name("b"), PutSource::Buffer(buffer), PutOptions::default())
        .unwrap();
    assert!(node.books().written["b"] == content);
    assert!(node.books().buffers.is_empty());
}

#[test]
fn a_writer_gathers_small_pieces_and_keeps_their_order() {
    let node = FakeNode::start();
    let client = connect(&node);
    let content = pattern(4, 11 * MIB);
    let mut writer = client.writer(&name("a"), PutOptions::default(), None);
    let mut rest = &content[..];
    for bytes in [1, 70_000, 5 * MIB, 3, 4 * MIB, 100].into_iter().cycle() {
        let (piece, behind) = rest.split_at(bytes.min(rest.len()));
        writer.write(piece).unwrap();
        rest = behind;
        if rest.is_empty() {
            break;
        }
    }
    assert_eq!(writer.bytes(), content.len() as u64);
    assert!(node.books().written.is_empty(), "nobody sees it yet");
    writer.finish().unwrap();
    assert!(node.books().written["a"] == content);
}

#[test]
fn a_short_writer_is_one_plain_put() {
    let node = FakeNode::start();
    let client = connect(&node);
    let mut writer = client.writer(&name("a"), PutOptions::default(), None);
    writer.write(b"hello").unwrap();
    assert_eq!(writer.finish().unwrap().bytes, 5);
    assert_eq!(node.books().written["a"], b"hello");
    assert_eq!(parts_of(&node), 0);
}

#[test]
fn a_writer_that_is_dropped_or_aborted_writes_nothing() {
    let node = FakeNode::start();
    let client = connect(&node);
    let begun = || {
        let mut writer = client.writer(&name("a"), PutOptions::default(), None);
        writer.write(&pattern(5, 9 * MIB)).unwrap();
        assert_eq!(node.books().writes.len(), 1);
        writer
    };
    drop(begun());
    until("it was given up", || node.books().writes.is_empty());
    begun().abort().unwrap();
    assert!(node.books().writes.is_empty());
    assert!(node.books().written.is_empty());
}

#[test]
fn a_writer_whose_node_was_replaced_says_so_and_writes_nothing() {
    let folder = fixture::Folder::new();
    let mut node = FakeNode::start_at(&folder.socket(), 1);
    let client = connect(&node);
    let mut writer = client.writer(&name("a"), PutOptions::default(), None);
    writer.write(&pattern(6, 9 * MIB)).unwrap();
    node.stop();
    let node = FakeNode::start_at(&folder.socket(), 2);
    let error = writer.write(&pattern(6, 9 * MIB)).unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable);
    assert_eq!(writer.write(b"more").unwrap_err().kind(), Kind::InvalidInput);
    assert!(node.books().written.is_empty());
    client
        .put(&name("b"), PutSource::Slice(b"on it goes"), PutOptions::default())
        .unwrap();
}
