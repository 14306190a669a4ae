//! Writes in parts: larger than staging memory, whole or absent, whoever dies.

use std::path::{Path, PathBuf};
use std::time::Instant;

use forebay_wire::writes::{BeginWrite, FinishWrite, StagedBytes, WritePart};
use forebay_wire::{Failure, Headers};
use forebay_wire::{objects, writes};

use crate::fixture::{Client, LONG, TestNode, kind, name, pattern};

use forebay_core::{Version, WriteCondition, crc32c};

const SMALL_ARENA: &str = "staging = '8MiB'";

fn begin_of(key: &str) -> BeginWrite {
    BeginWrite {
        object: name(key),
        bytes: None,
        condition: WriteCondition::None,
        headers: Headers::default(),
        metadata: Vec::new(),
    }
}

/// A write as a decent client does it.
struct Writing {
    write: u64,
    part_bytes: usize,
    sent: u64,
}

impl Writing {
    fn begin(client: &mut Client, begin: BeginWrite) -> Result<Self, Failure> {
        match client.ask(&writes::Request::BeginWrite(begin)) {
            Ok(writes::Answer::Writing {
                write,
                part_bytes_max,
            }) => Ok(Self {
                write,
                part_bytes: usize::try_from(part_bytes_max).unwrap(),
                sent: 0,
            }),
            Err(failure) => Err(failure),
            other => panic!("{other:?}"),
        }
    }

    fn part(&self, client: &mut Client, offset: u64, bytes: &[u8], crc32c: Option<u32>) -> writes::Request {
        let deadline = Instant::now() + LONG;
        let buffer = loop {
            match client.allocate(bytes.len() as u64) {
                Ok(place) => break place.buffer,
                Err(failure) => assert!(failure.kind == "busy" && Instant::now() < deadline, "{failure:?}"),
            }
        };
        let (_, memfd) = client.map(buffer).unwrap();
        assert_eq!(rustix::io::pwrite(&memfd, bytes, 0).unwrap(), bytes.len());
        writes::Request::WritePart(WritePart {
            write: self.write,
            offset,
            from: StagedBytes {
                buffer,
                bytes: bytes.len() as u64,
                crc32c,
            },
        })
    }

    fn push(&mut self, client: &mut Client, bytes: &[u8]) {
        for piece in bytes.chunks(self.part_bytes) {
            let part = self.part(client, self.sent, piece, None);
            assert_eq!(client.ask(&part), Ok(writes::Answer::Done));
            self.sent += piece.len() as u64;
        }
    }

    fn end(&self, crc32c: Option<u32>) -> writes::Request {
        writes::Request::FinishWrite(FinishWrite {
            write: self.write,
            bytes: self.sent,
            crc32c,
        })
    }
}

fn lake_of(node: &TestNode) -> PathBuf {
    node.node.node().unwrap().options().data_dir.join("lake")
}

/// Files that are no objects and no documents: what an unfinished write would leave.
fn leftovers(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(leftovers(&path));
        } else if path.to_str().unwrap().contains("/.forebay/folder/tmp/") {
            found.push(path);
        }
    }
    found
}

#[test]
fn an_object_eight_times_the_arena_goes_through_in_parts() {
    let node = TestNode::with(SMALL_ARENA);
    let mut client = node.client();
    let content = pattern(64 << 20, 1);
    let mut begin = begin_of("key");
    begin.bytes = Some(64 << 20);
    begin.headers.content_type = Some("text/plain".into());
    begin.metadata = vec![("owner".into(), "lab".into())];
    let mut writing = Writing::begin(&mut client, begin).unwrap();
    assert_eq!(writing.part_bytes, 2 << 20);
    writing.push(&mut client, &content);
    assert_eq!(
        kind(client.ask(&objects::Request::Stat(name("key")))),
        "not_found"
    );
    match client.ask(&writing.end(Some(crc32c::crc32c(&content)))) {
        Ok(writes::Answer::Written { bytes, .. }) => assert_eq!(bytes, 64 << 20),
        other => panic!("{other:?}"),
    }
    assert!(std::fs::read(lake_of(&node).join("box/key")).unwrap() == content);
    match client.ask(&objects::Request::Stat(name("key"))) {
        Ok(objects::Answer::Stat(stat)) => {
            assert_eq!(stat.headers.content_type.as_deref(), Some("text/plain"));
            assert_eq!(stat.metadata, [("owner".to_owned(), "lab".to_owned())]);
        }
        other => panic!("{other:?}"),
    }
    let stats = node.stats();
    assert!(stats.staging_held_bytes <= 8 << 20, "{stats:?}");
    assert_eq!((stats.staging_lent_bytes, stats.open_writes), (0, 0));
}

#[test]
fn a_client_that_dies_in_the_middle_leaves_the_old_object_and_nothing_else() {
    let node = TestNode::with(SMALL_ARENA);
    let mut other = node.client();
    other.put("key", b"old");
    let mut client = node.client();
    let mut writing = Writing::begin(&mut client, begin_of("key")).unwrap();
    writing.push(&mut client, &pattern(20 << 20, 1));
    assert_eq!(leftovers(&lake_of(&node)).len(), 1, "the lake has a part of it");
    drop(client);
    node.wait_until("it was given up", |stats| {
        (stats.open_writes, stats.staging_lent_bytes) == (0, 0)
    });
    assert_eq!(leftovers(&lake_of(&node)), Vec::<PathBuf>::new());
    let found = other.get("key");
    assert_eq!(other.bytes_of(&found), b"old");
}

#[test]
fn a_write_whose_end_was_sent_goes_on_when_its_client_dies() {
    let node = TestNode::with(SMALL_ARENA);
    let content = pattern(12 << 20, 1);
    for round in 0..4 {
        let key = format!("key-{round}");
        let mut client = node.client();
        let mut writing = Writing::begin(&mut client, begin_of(&key)).unwrap();
        writing.push(&mut client, &content);
        client.send(&writing.end(None));
        drop(client);
        let mut other = node.client();
        let deadline = Instant::now() + LONG;
        while !matches!(
            other.ask(&objects::Request::Stat(name(&key))),
            Ok(objects::Answer::Stat(_))
        ) {
            assert!(Instant::now() < deadline, "{key} was never written");
        }
        assert!(std::fs::read(lake_of(&node).join("box").join(&key)).unwrap() == content);
    }
}

#[test]
fn a_write_that_was_given_up_leaves_nothing_and_may_be_given_up_again() {
    let node = TestNode::with(SMALL_ARENA);
    let mut client = node.client();
    let mut writing = Writing::begin(&mut client, begin_of("key")).unwrap();
    writing.push(&mut client, &pattern(10 << 20, 1));
    let abort = writes::Request::AbortWrite { write: writing.write };
    assert_eq!(client.ask(&abort), Ok(writes::Answer::Done));
    assert_eq!(leftovers(&lake_of(&node)), Vec::<PathBuf>::new());
    assert_eq!(client.ask(&abort), Ok(writes::Answer::Done));
    assert_eq!(kind(client.ask(&writing.end(None))), "not_found");
    assert_eq!(
        kind(client.ask(&objects::Request::Stat(name("key")))),
        "not_found"
    );
}

#[test]
fn what_came_must_be_what_was_sent() {
    let node = TestNode::with(SMALL_ARENA);
    let mut client = node.client();
    let content = pattern(3 << 20, 1);
    let begin = |client: &mut Client| {
        let mut writing = Writing::begin(client, begin_of("key")).unwrap();
        writing.push(client, &content);
        writing
    };
    let wrong_sum = begin(&mut client).end(Some(crc32c::crc32c(&content) ^ 1));
    assert_eq!(kind(client.ask(&wrong_sum)), "checksum");
    let mut short = begin(&mut client);
    short.sent -= 1;
    assert_eq!(kind(client.ask(&short.end(None))), "invalid_input");

    // A part that is wrong by itself is refused when it is looked at: at the end at the latest.
    let writing = begin(&mut client);
    let gap = writing.part(&mut client, writing.sent + 1, b"x", None);
    client.ask(&gap).unwrap();
    assert_eq!(kind(client.ask(&writing.end(None))), "invalid_input");
    let writing = begin(&mut client);
    let spoiled = writing.part(&mut client, writing.sent, b"x", Some(1));
    client.ask(&spoiled).unwrap();
    assert_eq!(kind(client.ask(&writing.end(None))), "checksum");
    assert_eq!(
        kind(client.ask(&objects::Request::Stat(name("key")))),
        "not_found"
    );
    node.wait_until("all were given up", |stats| stats.open_writes == 0);
}

#[test]
fn a_write_belongs_to_its_session() {
    let node = TestNode::with(SMALL_ARENA);
    let (mut client, mut stranger) = (node.client(), node.client());
    let writing = Writing::begin(&mut client, begin_of("key")).unwrap();
    let part = writing.part(&mut stranger, 0, b"x", None);
    assert_eq!(kind(stranger.ask(&part)), "not_found");
    assert_eq!(kind(stranger.ask(&writing.end(None))), "not_found");
    assert_eq!(
        stranger.ask(&writes::Request::AbortWrite { write: writing.write }),
        Ok(writes::Answer::Done)
    );
    assert!(matches!(
        client.ask(&writing.end(None)),
        Ok(writes::Answer::Written { bytes: 0, .. })
    ));
}

#[test]
fn conditions_hold_at_the_beginning_and_at_the_end() {
    let node = TestNode::with(SMALL_ARENA);
    let mut client = node.client();
    let absent = BeginWrite {
        condition: WriteCondition::Absent,
        ..begin_of("key")
    };
    let mut racing = Writing::begin(&mut client, absent.clone()).unwrap();
    racing.push(&mut client, b"late");
    let version = client.put("key", b"first");
    assert_eq!(kind(client.ask(&racing.end(None))), "precondition_failed");
    let refused = Writing::begin(&mut client, absent).err().unwrap();
    assert_eq!(refused.kind, "precondition_failed");
    let update = BeginWrite {
        condition: WriteCondition::Version(Version::new(&version)),
        ..begin_of("key")
    };
    let mut writing = Writing::begin(&mut client, update.clone()).unwrap();
    writing.push(&mut client, b"second");
    assert!(matches!(
        client.ask(&writing.end(None)),
        Ok(writes::Answer::Written { bytes: 6, .. })
    ));
    assert_eq!(
        Writing::begin(&mut client, update).err().unwrap().kind,
        "precondition_failed"
    );
}

#[test]
fn too_many_open_writes_are_busy() {
    let node = TestNode::with(SMALL_ARENA);
    let mut client = node.client();
    let mut open = Vec::new();
    let refused = loop {
        match Writing::begin(&mut client, begin_of(&format!("key-{}", open.len()))) {
            Ok(writing) => open.push(writing),
            Err(failure) => break failure,
        }
        assert!(open.len() < 1000);
    };
    assert_eq!(refused.kind, "busy");
    assert_eq!(
        client.ask(&writes::Request::AbortWrite { write: open[0].write }),
        Ok(writes::Answer::Done)
    );
    Writing::begin(&mut client, begin_of("key")).unwrap();
}

#[test]
fn a_stopping_node_gives_up_what_was_not_ended() {
    let node = TestNode::with(SMALL_ARENA);
    let mut client = node.client();
    let mut writing = Writing::begin(&mut client, begin_of("key")).unwrap();
    writing.push(&mut client, &pattern(10 << 20, 1));
    let lake = lake_of(&node);
    let TestNode { mut node, _dir } = node;
    node.shutdown(LONG);
    assert_eq!(leftovers(&lake), Vec::<PathBuf>::new());
    assert!(!lake.join("box/key").exists());
}
