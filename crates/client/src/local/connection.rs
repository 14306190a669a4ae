//! One connection to a node: frames out, frames in, descriptors beside them.
//!
//! A connection answers in order, so that a message whose answer nobody waits for (a release, or a question that was
//! given up) is only *owed*: its answer is read before that of the next question. A question that was given up may still bring leases
//! or buffers; [`Connection::settle`] finds them, so that nothing is held for nobody. A connection that broke, or said something that
//! cannot be understood, is `lost` and never used again.

use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use forebay_core::wire::{self, Answer, FrameHeader, HEADER_BYTES, Hello, Request, Welcome};
use forebay_core::{Error, Kind, Result};
use rustix::io::Errno;
use rustix::net::sockopt::Timeout;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use rustix::process::Pid;

use crate::fork;
use crate::wait::{WAIT_SLICE, Wait};

/// Answers that may be owed before somebody has to read them: the node must never block on writing them.
pub(crate) const OWED_MAX: usize = 16;

/// Bytes that one read of the socket asks for, at least.
const INBOX_BYTES_MIN: usize = 32 << 10;

/// Bytes of buffers that an idle connection keeps.
const INBOX_BYTES_KEPT: usize = 1 << 20;

/// A message whose answer nobody waits for.
#[derive(Debug)]
pub(crate) enum Owed {
    /// These leases were given back.
    Released(Vec<u64>),
    /// Something without leases that needs no answer.
    Told,
    /// A question that was given up.
    Abandoned,
}

/// What answers have brought that nobody waits for any more.
#[derive(Debug, Default)]
pub(crate) struct Late {
    /// Leases, to be given back.
    pub(crate) leases: Vec<u64>,
    /// How to give back the rest.
    pub(crate) returns: Vec<Request>,
}

impl Late {
    fn take(&mut self, answer: Answer) {
        match answer {
            Answer::Read(items) => {
                let views = items.into_iter().filter_map(|item| item.ok()?.view);
                self.leases.extend(views.map(|view| view.lease));
                self.leases.dedup(); // Items of one batch share leases.
            }
            Answer::Buffer(place) => self.returns.push(Request::Free { buffer: place.buffer }),
            Answer::Writing { write, .. } => self.returns.push(Request::AbortWrite { write }),
            Answer::Region { region } => self.returns.push(Request::Unregister { region }),
            Answer::Saving { save, .. } => self.returns.push(Request::AbortSave { save }),
            _ => {}
        }
    }
}

/// A connection after its `Hello`.
#[derive(Debug)]
pub(crate) struct Connection {
    /// Shared with the list of all sockets, which a forked child goes through.
    socket: Arc<OwnedFd>,
    inbox: Vec<u8>,
    /// Bytes of the inbox that are not yet read: from here …
    start: usize,
    /// … to here.
    end: usize,
    outbox: Vec<u8>,
    descriptors: Vec<OwnedFd>,
    owed: VecDeque<Owed>,
    /// Leases whose release the node has confirmed.
    confirmed: Vec<u64>,
    /// The process at the other side.
    peer: Option<Pid>,
    lost: bool,
}

/// A socket that is connected but has not said `Hello`; it can be put on the list of sockets first.
pub(crate) fn dial(path: &Path, wait: &Wait) -> Result<Arc<OwnedFd>> {
    let unavailable = |why: Errno| {
        let error = match why {
            Errno::ACCESS | Errno::PERM => Error::new(
                Kind::Denied,
                "this user may not talk to the node; start the node with --allow-uid, or run one of your own",
            ),
            Errno::AGAIN => Error::new(
                Kind::Busy,
                "the node does not accept connections; it may be overloaded",
            ),
            _ => Error::new(
                Kind::Unavailable,
                "no node answers here; start one with `forebay serve`, or name another with FOREBAY_NODE",
            ),
        };
        error
            .with("socket", path.display())
            .caused_by(std::io::Error::from(why))
    };
    let address = SocketAddrUnix::new(path)
        .map_err(|why| Error::new(Kind::InvalidInput, "the socket path is too long").caused_by(why))
        .map_err(|error| error.with("socket", path.display()))?;
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )
    .map_err(unavailable)?;
    for which in [Timeout::Recv, Timeout::Send] {
        rustix::net::sockopt::set_socket_timeout(&socket, which, Some(WAIT_SLICE)).map_err(unavailable)?;
    }
    loop {
        match rustix::net::connect(&socket, &address) {
            Ok(()) => return Ok(Arc::new(socket)),
            Err(why @ (Errno::AGAIN | Errno::INTR)) => wait.check().map_err(|_| unavailable(why))?,
            Err(why) => return Err(unavailable(why)),
        }
    }
}

impl Connection {
    /// Says `Hello` on a fresh socket: opens a session, or joins one.
    pub(crate) fn open(
        socket: Arc<OwnedFd>,
        session: Option<[u8; 16]>,
        wait: &Wait,
    ) -> Result<(Self, Welcome)> {
        let mut connection = Self {
            peer: fork::peer_process(&socket),
            socket,
            inbox: Vec::new(),
            start: 0,
            end: 0,
            outbox: Vec::new(),
            descriptors: Vec::new(),
            owed: VecDeque::new(),
            confirmed: Vec::new(),
            lost: false,
        };
        let hello = Request::Hello(Hello {
            client: client_name(),
            session,
        });
        match connection.ask(&hello, None, wait)? {
            Answer::Welcome(welcome) => Ok((connection, welcome)),
            other => Err(connection.misunderstood(&other)),
        }
    }

    /// Whether it broke; then it is of no use any more.
    pub(crate) fn is_lost(&self) -> bool {
        self.lost
    }

    /// The process at the other side, if the kernel says it.
    pub(crate) fn peer(&self) -> Option<Pid> {
        self.peer
    }

    /// The socket, for the list of all sockets.
    pub(crate) fn socket(&self) -> &Arc<OwnedFd> {
        &self.socket
    }

    /// Whether the other side has hung up; only for a connection on which no answer is due.
    pub(crate) fn is_hung_up(&self) -> bool {
        let mut byte = [0u8; 1];
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        match rustix::net::recv(&*self.socket, &mut byte[..], flags) {
            Ok((_, bytes)) => bytes == 0,
            Err(Errno::AGAIN | Errno::INTR) => fork::is_gone(self.peer),
            Err(_) => true,
        }
    }

    /// Puts a message in front of the next question; its answer is owed.
    pub(crate) fn tell(&mut self, message: &Request, owed: Owed) -> Result<()> {
        wire::encode(message, &mut self.outbox)?;
        self.owed.push_back(owed);
        Ok(())
    }

    /// Whether it may take a message whose answer nobody waits for.
    pub(crate) fn may_tell(&self) -> bool {
        !self.lost && self.owed.len() < OWED_MAX
    }

    /// Sends what was told without waiting; a socket that is full or broken is lost.
    pub(crate) fn flush(&mut self) {
        let sent = rustix::net::send(
            &*self.socket,
            &self.outbox,
            SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
        );
        self.lost |= sent != Ok(self.outbox.len());
        self.outbox.clear();
    }

    /// Sends a question and waits for its answer. A failure that the node reports is an `Err` as well.
    pub(crate) fn ask(
        &mut self,
        request: &Request,
        descriptor: Option<BorrowedFd<'_>>,
        wait: &Wait,
    ) -> Result<Answer> {
        if descriptor.is_some() && !self.outbox.is_empty() {
            self.send(None, wait)?; // A descriptor travels with the first byte of what is sent with it.
        }
        if let Err(error) = wire::encode(request, &mut self.outbox) {
            self.lost |= !self.outbox.is_empty(); // What was told before it is not sent; the caller takes it back.
            return Err(error);
        }
        self.send(descriptor, wait)?;
        self.descriptors.clear();
        while let Some(owed) = self.owed.pop_front() {
            if let Err(error) = self.receive(wait) {
                self.owed.push_front(owed);
                self.owed.push_back(Owed::Abandoned);
                return Err(error);
            }
            self.confirm(owed);
        }
        match self.receive(wait) {
            Ok(Answer::Failed(failure)) => Err(Error::from(failure)),
            Ok(answer) => Ok(answer),
            Err(error) => {
                self.owed.push_back(Owed::Abandoned);
                Err(error)
            }
        }
    }

    /// An answer of the wrong kind: the two sides no longer understand each other.
    pub(crate) fn misunderstood(&mut self, answer: &Answer) -> Error {
        self.lost = true;
        let text = format!("{answer:?}");
        let kind = text.split(['(', ' ', '{']).next().unwrap_or_default().to_owned();
        Error::new(Kind::Corrupt, "the node gave an answer of another kind").with("answer", kind)
    }

    /// The descriptor that came beside the last answer.
    pub(crate) fn take_descriptor(&mut self) -> Option<OwnedFd> {
        self.descriptors.pop()
    }

    /// Reads owed answers that are there already, without waiting. Returns what questions that were given up have brought.
    pub(crate) fn settle(&mut self) -> Late {
        let mut late = Late::default();
        while !self.lost && !self.owed.is_empty() {
            match self.try_receive(RecvFlags::DONTWAIT) {
                Ok(Some(answer)) => late.take(answer),
                Ok(None) | Err(_) => break,
            }
            if let Some(owed) = self.owed.pop_front() {
                self.confirm(owed);
            }
        }
        self.descriptors.clear();
        late
    }

    /// Gives back memory that one long answer took.
    pub(crate) fn trim(&mut self) {
        if self.inbox.len() > INBOX_BYTES_KEPT && self.start == self.end {
            (self.inbox, self.start, self.end) = (Vec::new(), 0, 0);
        }
        if self.outbox.capacity() > INBOX_BYTES_KEPT {
            self.outbox = Vec::new();
        }
    }

    /// Leases whose release was confirmed since this was last asked.
    pub(crate) fn take_confirmed(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.confirmed)
    }

    fn confirm(&mut self, owed: Owed) {
        if let Owed::Released(mut leases) = owed {
            self.confirmed.append(&mut leases);
        }
    }

    /// Whether a question that was given up is still open, so that nobody else may ask.
    pub(crate) fn is_occupied(&self) -> bool {
        self.owed.iter().any(|owed| matches!(owed, Owed::Abandoned))
    }

    /// Leases whose release was not confirmed: it has to be said again elsewhere.
    pub(crate) fn unconfirmed(&mut self) -> Vec<u64> {
        let owed = std::mem::take(&mut self.owed);
        let released = owed.into_iter().filter_map(|owed| match owed {
            Owed::Released(leases) => Some(leases),
            Owed::Told | Owed::Abandoned => None,
        });
        released.flatten().collect()
    }

    fn send(&mut self, descriptor: Option<BorrowedFd<'_>>, wait: &Wait) -> Result<()> {
        let mut sent = 0;
        while sent < self.outbox.len() {
            let beside = descriptor.filter(|_| sent == 0);
            match send_some(&self.socket, &self.outbox[sent..], beside) {
                Ok(bytes) => sent += bytes,
                Err(Errno::AGAIN | Errno::INTR) => {
                    if let Err(error) = wait.check() {
                        self.lost = true; // Half a frame is out.
                        self.outbox.clear();
                        return Err(error);
                    }
                }
                Err(why) => {
                    self.outbox.clear();
                    return Err(self.broke(why));
                }
            }
        }
        self.outbox.clear();
        Ok(())
    }

    fn receive(&mut self, wait: &Wait) -> Result<Answer> {
        loop {
            if let Some(answer) = self.try_receive(RecvFlags::empty())? {
                return Ok(answer);
            }
            if fork::is_gone(self.peer) {
                return Err(self.broke(Errno::CONNRESET));
            }
            wait.check()?;
        }
    }

    /// One answer, or `None` if it is not all there yet (after the time slice of the socket, or at once).
    fn try_receive(&mut self, flags: RecvFlags) -> Result<Option<Answer>> {
        loop {
            if let Some((header, from)) = self.whole_frame().inspect_err(|_| self.lost = true)? {
                let to = from + header.length;
                self.start = to;
                let answer = wire::decode(&header, &self.inbox[from..to]);
                return answer.map(Some).inspect_err(|_| self.lost = true);
            }
            match self.receive_some(flags) {
                Ok(0) => return Err(self.broke(Errno::CONNRESET)),
                Ok(bytes) => self.end += bytes,
                Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
                Err(why) => return Err(self.broke(why)),
            }
        }
    }

    /// The frame at the front of the inbox, if it is complete; else there is room for the rest of it.
    fn whole_frame(&mut self) -> Result<Option<(FrameHeader, usize)>> {
        let unread = &self.inbox[self.start..self.end];
        let mut needed = HEADER_BYTES;
        if let Some(header) = unread.first_chunk::<HEADER_BYTES>() {
            let header = FrameHeader::parse(header)?;
            needed += header.length;
            if unread.len() >= needed {
                return Ok(Some((header, self.start + HEADER_BYTES)));
            }
        }
        self.inbox.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        if self.inbox.len() < needed.max(INBOX_BYTES_MIN) {
            self.inbox.resize(needed.max(INBOX_BYTES_MIN), 0);
        }
        Ok(None)
    }

    fn receive_some(&mut self, flags: RecvFlags) -> Result<usize, Errno> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut into = [IoSliceMut::new(&mut self.inbox[self.end..])];
        let flags = flags | RecvFlags::CMSG_CLOEXEC;
        let received = rustix::net::recvmsg(&*self.socket, &mut into, &mut control, flags)?;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                self.descriptors.extend(descriptors);
            }
        }
        Ok(received.bytes)
    }

    fn broke(&mut self, why: Errno) -> Error {
        self.lost = true;
        Error::new(
            Kind::Unavailable,
            "the node went away; the next call looks for it again",
        )
        .caused_by(std::io::Error::from(why))
    }
}

fn send_some(socket: impl AsFd, bytes: &[u8], descriptor: Option<BorrowedFd<'_>>) -> Result<usize, Errno> {
    let Some(descriptor) = descriptor else {
        return rustix::net::send(socket, bytes, SendFlags::NOSIGNAL);
    };
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = [descriptor];
    control.push(SendAncillaryMessage::ScmRights(&descriptors));
    rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)
}

/// Program and process id, for the node's logs.
fn client_name() -> String {
    let program = std::env::args_os().next().unwrap_or_default();
    let program = Path::new(&program)
        .file_name()
        .unwrap_or_default()
        .to_string_lossy();
    let program: String = program.chars().take(64).collect();
    format!("{program} ({})", std::process::id())
}
