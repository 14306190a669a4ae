//! Writes: one copy or none, a full arena, buffers that go back.

mod fixture;

use std::time::Duration;

use fixture::{FakeNode, connect, name, options, pattern, until};
use forebay_client::{Client, ClientOptions, ItemRange, PutOptions, PutSource};
use forebay_core::Kind;
use forebay_core::wire::Request;

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
        timeout: Duration::from_millis(50),
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
            .filter(|request| matches!(request, Request::Allocate { .. }))
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
