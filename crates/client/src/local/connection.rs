//! One connection to a node: frames out, frames in, descriptors beside the latter.
//!
//! A connection answers in order, so that a message whose answer nobody waits for (a release, or a request
//! that was given up) leaves a *pending reply*: that answer is read before that of the next request. A
//! request that was given up may still bring leases or buffers; [`Connection::settle`] finds them, so that
//! nothing is held for nobody. A connection that broke, or said something that cannot be understood, is
//! `lost` and never used again.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use forebay_core::{Error, Kind, Result};
use forebay_wire::session::{Hello, Welcome};
use forebay_wire::{self as wire, FrameHeader, HEADER_BYTES, objects, saves, session, writes};
use rustix::io::Errno;
use rustix::net::sockopt::Timeout;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};
use rustix::process::Pid;

use crate::fork;
use crate::wait::{WAIT_SLICE, Wait};

/// Replies that may be pending before somebody has to read them: the node must never block on writing them.
pub(crate) const PENDING_REPLIES_MAX: usize = 16;

/// Bytes that one read of the socket asks for, at least.
const INBOX_BYTES_MIN: usize = 32 << 10;

/// Bytes of buffers that an idle connection keeps.
const INBOX_BYTES_KEPT: usize = 1 << 20;

/// A reply that is still to be read, although nobody waits for it.
#[derive(Debug)]
pub(crate) enum PendingReply {
    /// These leases were given back.
    Released(Vec<u64>),
    /// Something without leases that needs no answer.
    Oneway,
    /// A request that was given up.
    Abandoned,
}

/// Grants that came with replies nobody waits for any more.
#[derive(Debug, Default)]
pub(crate) struct OrphanedGrants {
    /// Leases, to be given back.
    pub(crate) leases: Vec<u64>,
    /// Messages that give back the rest.
    pub(crate) returns: Vec<OnewayMessage>,
}

/// A message whose answer nobody waits for: it gives something back.
#[derive(Debug)]
pub(crate) enum OnewayMessage {
    /// Of the family of writes.
    Writes(writes::Request),
    /// Of the family of saves.
    Saves(saves::Request),
}

impl From<writes::Request> for OnewayMessage {
    fn from(request: writes::Request) -> Self {
        Self::Writes(request)
    }
}

impl From<saves::Request> for OnewayMessage {
    fn from(request: saves::Request) -> Self {
        Self::Saves(request)
    }
}

impl OrphanedGrants {
    /// Looks for grants in an answer of any family.
    fn take(&mut self, header: &FrameHeader, message: &[u8]) -> Result<()> {
        header.check(message)?;
        match header.family {
            number if number == objects::FAMILY.number => self.take_leases(wire::decode(header, message)?),
            number if number == writes::FAMILY.number => match wire::decode(header, message)? {
                writes::Answer::Buffer(buffer) => {
                    let buffer = buffer.buffer;
                    self.returns.push(writes::Request::Free { buffer }.into());
                }
                writes::Answer::Writing { write, .. } => {
                    self.returns.push(writes::Request::AbortWrite { write }.into());
                }
                writes::Answer::Done | writes::Answer::Written { .. } => {}
            },
            number if number == saves::FAMILY.number => {
                if let saves::Answer::Saving { save, .. } = wire::decode(header, message)? {
                    self.returns.push(saves::Request::AbortSave { save }.into());
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn take_leases(&mut self, answer: objects::Answer) {
        if let objects::Answer::Read(items) = answer {
            let views = items.into_iter().filter_map(|item| item.ok()?.view);
            self.leases.extend(views.map(|view| view.lease));
            self.leases.dedup(); // Items of one batch share leases.
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
    pending: VecDeque<PendingReply>,
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
        secret: Option<[u8; 16]>,
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
            pending: VecDeque::new(),
            confirmed: Vec::new(),
            lost: false,
        };
        let hello = session::Request::Hello(Hello {
            client: client_name(),
            session: secret,
        });
        match connection.ask(&hello, wait)? {
            session::Answer::Welcome(welcome) => Ok((connection, welcome)),
            other => Err(connection.misunderstood(&other)),
        }
    }

    /// Returns whether it broke; then it is of no use any more.
    pub(crate) fn is_lost(&self) -> bool {
        self.lost
    }

    /// The socket, for the list of all sockets.
    pub(crate) fn socket(&self) -> &Arc<OwnedFd> {
        &self.socket
    }

    /// Returns whether the other side has hung up; only for a connection on which no answer is due.
    pub(crate) fn is_hung_up(&self) -> bool {
        let mut byte = [0u8; 1];
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        match rustix::net::recv(&*self.socket, &mut byte[..], flags) {
            Ok((_, bytes)) => bytes == 0,
            Err(Errno::AGAIN | Errno::INTR) => fork::is_gone(self.peer),
            Err(_) => true,
        }
    }

    /// Puts a message in front of the next request; its reply becomes pending.
    pub(crate) fn send_oneway(&mut self, message: &impl wire::Request, pending: PendingReply) -> Result<()> {
        wire::encode(message, &mut self.outbox)?;
        self.pending.push_back(pending);
        Ok(())
    }

    /// Puts a message that gives something back in front of the next request.
    pub(crate) fn send_back(&mut self, message: &OnewayMessage) -> Result<()> {
        match message {
            OnewayMessage::Writes(request) => self.send_oneway(request, PendingReply::Oneway),
            OnewayMessage::Saves(request) => self.send_oneway(request, PendingReply::Oneway),
        }
    }

    /// Returns whether it may take a message whose answer nobody waits for.
    pub(crate) fn may_send_oneway(&self) -> bool {
        !self.lost && self.pending.len() < PENDING_REPLIES_MAX
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

    /// Sends a request and waits for its answer. A failure that the node reports is an `Err` as well.
    pub(crate) fn ask<R: wire::Request>(&mut self, request: &R, wait: &Wait) -> Result<R::Answer> {
        if let Err(error) = wire::encode(request, &mut self.outbox) {
            self.lost |= !self.outbox.is_empty(); // What was told before it is not sent; the caller takes it back.
            return Err(error);
        }
        self.send(wait)?;
        self.descriptors.clear();
        while let Some(pending) = self.pending.pop_front() {
            if let Err(error) = self.receive(wait) {
                self.pending.push_front(pending);
                self.pending.push_back(PendingReply::Abandoned);
                return Err(error);
            }
            self.confirm(pending);
        }
        match self.receive(wait) {
            Ok((header, message)) => {
                let answer = wire::decode_answer(&header, &self.inbox[message]);
                answer.inspect_err(|_| self.lost = true)?.map_err(Error::from)
            }
            Err(error) => {
                self.pending.push_back(PendingReply::Abandoned);
                Err(error)
            }
        }
    }

    /// An answer of the wrong kind: the two sides no longer understand each other.
    pub(crate) fn misunderstood(&mut self, answer: &impl Debug) -> Error {
        self.lost = true;
        let text = format!("{answer:?}");
        let kind = text.split(['(', ' ', '{']).next().unwrap_or_default().to_owned();
        Error::new(Kind::Corrupt, "the node gave an answer of another kind").with("answer", kind)
    }

    /// The descriptor that came beside the last answer.
    pub(crate) fn take_descriptor(&mut self) -> Option<OwnedFd> {
        self.descriptors.pop()
    }

    /// Reads pending replies that are there already, without waiting. Returns what requests that were given
    /// up have brought.
    pub(crate) fn settle(&mut self) -> OrphanedGrants {
        let mut late = OrphanedGrants::default();
        while !self.lost && !self.pending.is_empty() {
            match self.try_receive(RecvFlags::DONTWAIT) {
                Ok(Some((header, message))) => {
                    if late.take(&header, &self.inbox[message]).is_err() {
                        self.lost = true;
                        break;
                    }
                }
                Ok(None) | Err(_) => break,
            }
            if let Some(pending) = self.pending.pop_front() {
                self.confirm(pending);
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

    fn confirm(&mut self, pending: PendingReply) {
        if let PendingReply::Released(mut leases) = pending {
            self.confirmed.append(&mut leases);
        }
    }

    /// Returns whether a request that was given up is still open, so that nobody else may ask.
    pub(crate) fn is_occupied(&self) -> bool {
        self.pending
            .iter()
            .any(|pending| matches!(pending, PendingReply::Abandoned))
    }

    /// Leases whose release was not confirmed: it has to be sent again on another connection.
    pub(crate) fn unconfirmed(&mut self) -> Vec<u64> {
        let pending = std::mem::take(&mut self.pending);
        let released = pending.into_iter().filter_map(|pending| match pending {
            PendingReply::Released(leases) => Some(leases),
            PendingReply::Oneway | PendingReply::Abandoned => None,
        });
        released.flatten().collect()
    }

    fn send(&mut self, wait: &Wait) -> Result<()> {
        let mut sent = 0;
        while sent < self.outbox.len() {
            match rustix::net::send(&self.socket, &self.outbox[sent..], SendFlags::NOSIGNAL) {
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

    /// Waits for the next frame; its message lies in the inbox until the next one is asked for.
    fn receive(&mut self, wait: &Wait) -> Result<(FrameHeader, Range<usize>)> {
        loop {
            if let Some(frame) = self.try_receive(RecvFlags::empty())? {
                return Ok(frame);
            }
            if fork::is_gone(self.peer) {
                return Err(self.broke(Errno::CONNRESET));
            }
            wait.check()?;
        }
    }

    /// One frame, or `None` if it is not all there yet (after the time slice of the socket, or at once).
    fn try_receive(&mut self, flags: RecvFlags) -> Result<Option<(FrameHeader, Range<usize>)>> {
        loop {
            if let Some((header, from)) = self.whole_frame().inspect_err(|_| self.lost = true)? {
                let to = from + header.length;
                self.start = to;
                return Ok(Some((header, from..to)));
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
