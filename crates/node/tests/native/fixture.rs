//! A node in this process and a client that speaks raw frames, so that tests can say what no decent client would.

use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use forebay_core::wire::{
    self, Answer, BufferPlace, Condition, Durability, Failure, Found, FrameHeader, HEADER_BYTES, Headers,
    Hello, Item, ItemRange, ObjectName, Put, Request, Welcome, WrittenFrom,
};
use forebay_node::config::Config;
use forebay_node::{EmbeddedNode, EmbeddedOptions, NativeStats};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};

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
        let made = test.client().ask(&Request::CreateBucket("box".into()));
        assert_eq!(made, Answer::Done);
        test
    }

    pub(crate) fn client(&self) -> Client {
        Client::hello(self.node.socket())
    }

    pub(crate) fn stats(&self) -> NativeStats {
        self.node.node().unwrap().native_stats()
    }

    /// Waits until the counters say what is expected.
    pub(crate) fn wait_until(&self, what: &str, is_so: impl Fn(&NativeStats) -> bool) {
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
        send(&mut stream, &Request::Hello(hello), None);
        match receive(&mut stream).unwrap().0 {
            Answer::Welcome(welcome) => Ok(Self { stream, welcome }),
            Answer::Failed(failure) => Err(failure),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn ask(&mut self, request: &Request) -> Answer {
        self.ask_with(request, None).0
    }

    pub(crate) fn ask_with(
        &mut self,
        request: &Request,
        descriptor: Option<&OwnedFd>,
    ) -> (Answer, Option<OwnedFd>) {
        self.send(request, descriptor);
        receive(&mut self.stream).expect("the node has closed the connection")
    }

    pub(crate) fn send(&mut self, request: &Request, descriptor: Option<&OwnedFd>) {
        send(&mut self.stream, request, descriptor);
    }

    pub(crate) fn receive(&mut self) -> Answer {
        receive(&mut self.stream)
            .expect("the node has closed the connection")
            .0
    }

    /// Takes no more answers, but goes on asking.
    pub(crate) fn stop_listening(&mut self) {
        self.stream.shutdown(std::net::Shutdown::Read).unwrap();
    }

    /// Whether the node closes the connection without another word.
    pub(crate) fn is_closed(&mut self) -> bool {
        matches!(self.stream.read(&mut [0]), Ok(0))
    }

    pub(crate) fn read(&mut self, items: Vec<Item>) -> Vec<Result<Found, Failure>> {
        match self.ask(&Request::Read { items, timeout_ms: 0 }) {
            Answer::Read(found) => found,
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
        match self.ask_with(&Request::MapSegment { segment }, None) {
            (Answer::Segment { bytes }, Some(descriptor)) => Ok((bytes, descriptor)),
            (Answer::Failed(failure), None) => Err(failure),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn allocate(&mut self, bytes: u64) -> Result<BufferPlace, Failure> {
        match self.ask(&Request::Allocate { bytes }) {
            Answer::Buffer(place) => Ok(place),
            Answer::Failed(failure) => Err(failure),
            other => panic!("{other:?}"),
        }
    }

    /// A buffer that holds these bytes.
    pub(crate) fn staged(&mut self, bytes: &[u8]) -> BufferPlace {
        let place = self.allocate(bytes.len() as u64).unwrap();
        let (_, memfd) = self.map(place.buffer).unwrap();
        assert_eq!(rustix::io::pwrite(&memfd, bytes, 0).unwrap(), bytes.len());
        place
    }

    pub(crate) fn put(&mut self, key: &str, bytes: &[u8]) -> String {
        let place = self.staged(bytes);
        match self.ask(&Request::Put(put_of(key, place.buffer, bytes.len() as u64))) {
            Answer::Written { version, .. } => version,
            other => panic!("{other:?}"),
        }
    }
}

pub(crate) fn put_of(key: &str, buffer: u64, bytes: u64) -> Put {
    Put {
        object: name(key),
        from: WrittenFrom {
            buffer,
            bytes,
            crc32c: None,
        },
        condition: Condition::None,
        durability: Durability::Lake,
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

pub(crate) fn connect(socket: &Path) -> UnixStream {
    let stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream.set_write_timeout(Some(LONG)).unwrap();
    stream
}

pub(crate) fn send(stream: &mut UnixStream, request: &Request, descriptor: Option<&OwnedFd>) {
    let mut frame = Vec::new();
    wire::encode(request, &mut frame).unwrap();
    let Some(descriptor) = descriptor else {
        stream.write_all(&frame).unwrap();
        return;
    };
    let descriptors = [descriptor.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
    let sent =
        rustix::net::sendmsg(stream, &[IoSlice::new(&frame)], &mut control, SendFlags::empty()).unwrap();
    assert_eq!(sent, frame.len());
}

/// The next answer; `None` if the node has closed.
pub(crate) fn receive(stream: &mut UnixStream) -> Option<(Answer, Option<OwnedFd>)> {
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
    Some((wire::decode(&header, &message).unwrap(), descriptor))
}

/// A memfd of a client, sealed as a region must be.
pub(crate) fn region(bytes: u64, seals: rustix::fs::SealFlags) -> OwnedFd {
    let flags = rustix::fs::MemfdFlags::ALLOW_SEALING | rustix::fs::MemfdFlags::CLOEXEC;
    let memfd = rustix::fs::memfd_create("region", flags).unwrap();
    rustix::fs::ftruncate(&memfd, bytes).unwrap();
    rustix::fs::fcntl_add_seals(&memfd, seals).unwrap();
    memfd
}
