//! A node in this process and a client that speaks raw frames, so that tests can say what no decent client
//! would.

use std::fmt::Debug;
use std::io::{IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use forebay_core::WriteCondition;
use forebay_node::config::Config;
use forebay_node::{EmbeddedNode, EmbeddedOptions, IpcStats};
use forebay_wire::objects::Found;
use forebay_wire::session::{Hello, Welcome};
use forebay_wire::writes::{Buffer, Put, StagedBytes};
use forebay_wire::{self as wire, Failure, FrameHeader, HEADER_BYTES, Headers, Item, ItemRange, ObjectName};
use forebay_wire::{objects, session, writes};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};

/// Long enough for any machine; a test that waits so long has failed.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// A node on a folder lake with one bucket, `box`.
pub(crate) struct TestNode {
    pub(crate) node: EmbeddedNode,
    pub(crate) _dir: tempfile::TempDir,
}

impl TestNode {
    pub(crate) fn start() -> Self {
        Self::with("")
    }

    /// With settings as a configuration file would say them.
    pub(crate) fn with(settings: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let config = Config::parse(&format!("consistency = '1h'\n{settings}")).unwrap();
        let options = EmbeddedOptions {
            ram_bytes: Some(64 << 20),
            data_dir: Some(dir.path().join("data")),
            config,
            ..EmbeddedOptions::default()
        };
        let node = EmbeddedNode::start(options).unwrap();
        let test = Self { node, _dir: dir };
        let made = test.client().ask(&objects::Request::CreateBucket("box".into()));
        assert_eq!(made, Ok(objects::Answer::Done));
        test
    }

    pub(crate) fn client(&self) -> Client {
        Client::hello(self.node.socket())
    }

    pub(crate) fn stats(&self) -> IpcStats {
        self.node.node().unwrap().ipc_stats()
    }

    /// Waits until the counters say what is expected.
    pub(crate) fn wait_until(&self, what: &str, is_so: impl Fn(&IpcStats) -> bool) {
        let deadline = Instant::now() + LONG;
        while !is_so(&self.stats()) {
            assert!(Instant::now() < deadline, "never: {what}; {:?}", self.stats());
            std::thread::yield_now();
        }
    }
}

/// One connection.
pub(crate) struct Client {
    stream: UnixStream,
    pub(crate) welcome: Welcome,
}

impl Client {
    /// Opens a session.
    pub(crate) fn hello(socket: &Path) -> Self {
        Self::hello_to(socket, None).unwrap()
    }

    /// Opens or joins a session.
    pub(crate) fn hello_to(socket: &Path, session: Option<[u8; 16]>) -> Result<Self, Failure> {
        let mut stream = connect(socket);
        let hello = Hello {
            client: "test".into(),
            session,
        };
        send(&mut stream, &session::Request::Hello(hello));
        match receive(&mut stream).unwrap().0 {
            Ok(session::Answer::Welcome(welcome)) => Ok(Self { stream, welcome }),
            Err(failure) => Err(failure),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn ask<R: wire::Request>(&mut self, request: &R) -> Result<R::Answer, Failure> {
        self.ask_for_descriptor(request).0
    }

    pub(crate) fn ask_for_descriptor<R: wire::Request>(
        &mut self,
        request: &R,
    ) -> (Result<R::Answer, Failure>, Option<OwnedFd>) {
        self.send(request);
        receive(&mut self.stream).expect("the node has closed the connection")
    }

    pub(crate) fn send(&mut self, request: &impl wire::Request) {
        send(&mut self.stream, request);
    }

    pub(crate) fn send_bytes(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    pub(crate) fn receive<A: wire::Message>(&mut self) -> Result<A, Failure> {
        receive(&mut self.stream)
            .expect("the node has closed the connection")
            .0
    }

    /// Takes no more answers, but goes on asking.
    pub(crate) fn stop_listening(&mut self) {
        self.stream.shutdown(std::net::Shutdown::Read).unwrap();
    }

    /// Returns whether the node closes the connection without another word.
    pub(crate) fn is_closed(&mut self) -> bool {
        matches!(self.stream.read(&mut [0]), Ok(0))
    }

    pub(crate) fn read(&mut self, items: Vec<Item>) -> Vec<Result<Found, Failure>> {
        match self.ask(&objects::Request::Read { items, timeout_ms: 0 }) {
            Ok(objects::Answer::Read(found)) => found,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn get(&mut self, key: &str) -> Found {
        self.read(vec![item(key, ItemRange::Whole)]).remove(0).unwrap()
    }

    /// The bytes of a view, by the descriptors of its segments.
    pub(crate) fn bytes_of(&mut self, found: &Found) -> Vec<u8> {
        let mut bytes = Vec::new();
        for part in found.view.iter().flat_map(|view| &view.parts) {
            let (_, memfd) = self.map(part.segment).unwrap();
            bytes.extend(peek(&memfd, part.offset, part.bytes));
        }
        bytes
    }

    pub(crate) fn map(&mut self, segment: u64) -> Result<(u64, OwnedFd), Failure> {
        match self.ask_for_descriptor(&session::Request::MapSegment { segment }) {
            (Ok(session::Answer::Segment { bytes }), Some(descriptor)) => Ok((bytes, descriptor)),
            (Err(failure), None) => Err(failure),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn allocate(&mut self, bytes: u64) -> Result<Buffer, Failure> {
        match self.ask(&writes::Request::Allocate { bytes }) {
            Ok(writes::Answer::Buffer(place)) => Ok(place),
            Err(failure) => Err(failure),
            other => panic!("{other:?}"),
        }
    }

    /// A buffer that holds these bytes.
    pub(crate) fn staged(&mut self, bytes: &[u8]) -> Buffer {
        let place = self.allocate(bytes.len() as u64).unwrap();
        let (_, memfd) = self.map(place.buffer).unwrap();
        assert_eq!(rustix::io::pwrite(&memfd, bytes, 0).unwrap(), bytes.len());
        place
    }

    pub(crate) fn put(&mut self, key: &str, bytes: &[u8]) -> String {
        let place = self.staged(bytes);
        match self.ask(&writes::Request::Put(put_of(
            key,
            place.buffer,
            bytes.len() as u64,
        ))) {
            Ok(writes::Answer::Written { version, .. }) => version,
            other => panic!("{other:?}"),
        }
    }
}

pub(crate) fn put_of(key: &str, buffer: u64, bytes: u64) -> Put {
    Put {
        object: name(key),
        from: StagedBytes {
            buffer,
            bytes,
            crc32c: None,
        },
        condition: WriteCondition::None,
        headers: Headers::default(),
        metadata: Vec::new(),
    }
}

pub(crate) fn name(key: &str) -> ObjectName {
    ObjectName {
        bucket: "box".into(),
        key: key.into(),
    }
}

pub(crate) fn item(key: &str, range: ItemRange) -> Item {
    Item {
        object: name(key),
        range,
        version: None,
    }
}

pub(crate) fn range(offset: u64, length: u64) -> ItemRange {
    ItemRange::Range { offset, length }
}

/// Bytes that say where they belong.
pub(crate) fn pattern(bytes: usize, seed: u64) -> Vec<u8> {
    let word = |index: u64| (index ^ (seed << 32)).to_le_bytes();
    (0..bytes.div_ceil(8) as u64).flat_map(word).take(bytes).collect()
}

/// Reads from a descriptor without mapping it.
pub(crate) fn peek(memfd: &OwnedFd, offset: u64, bytes: u64) -> Vec<u8> {
    let mut read = vec![0; usize::try_from(bytes).unwrap()];
    assert_eq!(
        rustix::io::pread(memfd, &mut read[..], offset).unwrap(),
        read.len()
    );
    read
}

pub(crate) fn lease_of(found: &Found) -> u64 {
    found.view.as_ref().unwrap().lease
}

/// The kind of a failure.
pub(crate) fn kind(answer: Result<impl Debug, Failure>) -> String {
    answer.unwrap_err().kind
}

pub(crate) fn connect(socket: &Path) -> UnixStream {
    let stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream.set_write_timeout(Some(LONG)).unwrap();
    stream
}

pub(crate) fn send(stream: &mut UnixStream, request: &impl wire::Request) {
    let mut frame = Vec::new();
    wire::encode(request, &mut frame).unwrap();
    stream.write_all(&frame).unwrap();
}

/// The next answer; `None` if the node has closed.
pub(crate) fn receive<A: wire::Message>(
    stream: &mut UnixStream,
) -> Option<(Result<A, Failure>, Option<OwnedFd>)> {
    let mut header = [0; HEADER_BYTES];
    let mut descriptor = None;
    let mut filled = 0;
    while filled < HEADER_BYTES {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let room = &mut [IoSliceMut::new(&mut header[filled..])];
        let received = rustix::net::recvmsg(&*stream, room, &mut control, RecvFlags::empty()).ok()?;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(mut descriptors) = message {
                descriptor = descriptors.next();
            }
        }
        if received.bytes == 0 {
            return None;
        }
        filled += received.bytes;
    }
    let header = FrameHeader::parse(&header).unwrap();
    let mut message = vec![0; header.length];
    stream.read_exact(&mut message).ok()?;
    Some((wire::decode_answer(&header, &message).unwrap(), descriptor))
}
