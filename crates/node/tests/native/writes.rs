//! Writing: staging memory, conditions, checksums, clients that die.

use std::time::Instant;

use forebay_core::{Version, WriteCondition};
use forebay_wire::{objects, writes};

use crate::fixture::{LONG, TestNode, kind, name, pattern, put_of};

use forebay_core::crc32c;

#[test]
fn full_staging_memory_is_busy_until_somebody_gives_back() {
    let node = TestNode::with("staging = '4MiB'");
    let mut client = node.client();
    let first = client.allocate(2 << 20).unwrap();
    let second = client.allocate(2 << 20).unwrap();
    let refused = client.allocate(2 << 20).unwrap_err();
    assert_eq!(refused.kind, "busy");
    assert_eq!(client.allocate(5 << 20).unwrap_err().kind, "invalid_input");
    client
        .ask(&writes::Request::Free { buffer: first.buffer })
        .unwrap();
    let third = client.allocate(2 << 20).unwrap();
    assert_eq!(third.buffer, first.buffer, "the same memory, already faulted in");
    client
        .ask(&writes::Request::Put(put_of("key", second.buffer, 10)))
        .unwrap();
    client.allocate(2 << 20).unwrap();
}

#[test]
fn buffers_of_a_dead_client_come_back() {
    let node = TestNode::with("staging = '4MiB'");
    let mut client = node.client();
    client.allocate(4 << 20).unwrap();
    drop(client);
    node.wait_until("nothing lent", |stats| stats.staging_lent_bytes == 0);
    node.client().allocate(4 << 20).unwrap();
}

#[test]
fn a_buffer_is_put_once_and_by_its_own_session_only() {
    let node = TestNode::start();
    let mut client = node.client();
    let place = client.staged(b"hello");
    let put = writes::Request::Put(put_of("key", place.buffer, 5));
    let mut stranger = node.client();
    assert_eq!(kind(stranger.ask(&put)), "not_found");
    assert_eq!(stranger.map(place.buffer).unwrap_err().kind, "not_found");
    assert!(matches!(
        client.ask(&put),
        Ok(writes::Answer::Written { bytes: 5, .. })
    ));
    assert_eq!(kind(client.ask(&put)), "not_found");
    let place = client.staged(b"hello");
    assert_eq!(
        kind(client.ask(&writes::Request::Put(put_of("key", place.buffer, 6)))),
        "invalid_input"
    );
}

#[test]
fn a_wrong_checksum_writes_nothing() {
    let node = TestNode::start();
    let mut client = node.client();
    let content = pattern(3 << 20, 1);
    let mut put = put_of("key", client.staged(&content).buffer, content.len() as u64);
    put.from.crc32c = Some(crc32c::crc32c(&content) ^ 1);
    assert_eq!(kind(client.ask(&writes::Request::Put(put.clone()))), "checksum");
    assert_eq!(
        kind(client.ask(&objects::Request::Stat(name("key")))),
        "not_found"
    );
    put.from.buffer = client.staged(&content).buffer;
    put.from.crc32c = Some(crc32c::crc32c(&content));
    assert!(matches!(
        client.ask(&writes::Request::Put(put)),
        Ok(writes::Answer::Written { .. })
    ));
}

#[test]
fn conditions_are_the_lakes() {
    let node = TestNode::start();
    let mut client = node.client();
    let mut put = |condition: WriteCondition| {
        let mut put = put_of("key", client.staged(b"x").buffer, 1);
        put.condition = condition;
        client.ask(&writes::Request::Put(put))
    };
    let Ok(writes::Answer::Written { version, .. }) = put(WriteCondition::Absent) else {
        panic!("not written");
    };
    assert_eq!(kind(put(WriteCondition::Absent)), "precondition_failed");
    assert_eq!(
        kind(put(WriteCondition::Version(Version::new("other")))),
        "precondition_failed"
    );
    assert!(matches!(
        put(WriteCondition::Version(Version::new(&version))),
        Ok(writes::Answer::Written { .. })
    ));
}

#[test]
fn metadata_comes_back_and_hostile_metadata_does_not_get_in() {
    let node = TestNode::start();
    let mut client = node.client();
    let mut put = put_of("key", client.staged(b"x").buffer, 1);
    put.headers.content_type = Some("text/plain".into());
    put.metadata = vec![("Owner".into(), "lab".into())];
    assert!(matches!(
        client.ask(&writes::Request::Put(put.clone())),
        Ok(writes::Answer::Written { .. })
    ));
    match client.ask(&objects::Request::Stat(name("key"))) {
        Ok(objects::Answer::Stat(stat)) => {
            assert_eq!(stat.headers.content_type.as_deref(), Some("text/plain"));
            assert_eq!(stat.metadata, [("owner".to_owned(), "lab".to_owned())]);
        }
        other => panic!("{other:?}"),
    }
    for (name, value) in [
        ("a b", "x"),
        ("", "x"),
        ("a", "x\r\ny: z"),
        ("a", &"x".repeat(3000)),
    ] {
        put.from.buffer = client.staged(b"x").buffer;
        put.metadata = vec![(name.into(), value.into())];
        assert_eq!(
            kind(client.ask(&writes::Request::Put(put.clone()))),
            "invalid_input"
        );
    }
}

/// It was taken for an entry of ours: a client could forge the checksums of an object.
#[test]
fn metadata_named_like_ours_stays_the_clients() {
    let node = TestNode::start();
    let mut client = node.client();
    let mut put = put_of("key", client.staged(b"x").buffer, 1);
    let forged = ("forebay-checksums".to_owned(), "forged".to_owned());
    put.metadata = vec![forged.clone()];
    assert!(matches!(
        client.ask(&writes::Request::Put(put)),
        Ok(writes::Answer::Written { .. })
    ));
    match client.ask(&objects::Request::Stat(name("key"))) {
        Ok(objects::Answer::Stat(stat)) => assert_eq!(stat.metadata, [forged]),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_write_goes_on_when_its_client_dies() {
    let node = TestNode::start();
    let content = pattern(16 << 20, 1);
    for round in 0..8 {
        let key = format!("key-{round}");
        let mut client = node.client();
        let place = client.staged(&content);
        client.send(&writes::Request::Put(put_of(
            &key,
            place.buffer,
            content.len() as u64,
        )));
        drop(client);
        let mut other = node.client();
        let deadline = Instant::now() + LONG;
        while !matches!(
            other.ask(&objects::Request::Stat(name(&key))),
            Ok(objects::Answer::Stat(_))
        ) {
            assert!(Instant::now() < deadline, "{key} was never written");
        }
        let found = other.get(&key);
        assert!(other.bytes_of(&found) == content, "{key}");
    }
}

#[test]
fn a_stopping_node_finishes_the_writes_it_took() {
    let node = TestNode::start();
    let content = pattern(32 << 20, 1);
    let mut client = node.client();
    let place = client.staged(&content);
    client.send(&writes::Request::Put(put_of(
        "key",
        place.buffer,
        content.len() as u64,
    )));
    node.wait_until("it was read", |stats| {
        stats
            .requests
            .iter()
            .any(|(kind, count)| *kind == "put" && *count == 1)
    });
    let lake = node.node.node().unwrap().options().data_dir.join("lake/box/key");
    let TestNode { mut node, _dir } = node;
    node.shutdown(LONG);
    assert!(std::fs::read(lake).unwrap() == content);
    assert!(matches!(client.receive(), Ok(writes::Answer::Written { .. })));
}
