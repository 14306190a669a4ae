//! Families of requests, as the door sees them: registered by whoever composes the node, found by number.
//!
//! The door reads frames and sends replies; it does not know what a message says. A [`Family`] reads its
//! requests straight from the frame and writes its answers straight into the reply, so that a request costs no
//! copy and one indirect call. What can be answered at once is answered within that call, without a future on
//! the heap ([`Handling::Done`]): a warm read takes this way. Everything else waits in a future that ends with
//! its connection ([`Handling::Waiting`]).
//!
//! A family keeps what it holds for a session itself and lets go of it in [`Family::on_session_end`]. A new
//! capability is a new family: nothing here changes for it.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use forebay_core::{Error, Kind, Result};
use forebay_wire::{self as wire, Failure, FamilyId, FrameHeader, HEADER_BYTES, Message, decode_message};

use crate::counters;
use crate::sessions::Session;

/// The reply's buffer at rest is no larger.
const REPLY_BYTES_KEPT: usize = 256 << 10;

/// The largest number that a family may have.
const NUMBER_MAX: u16 = 255;

/// A family of requests that the socket serves.
pub trait Family: fmt::Debug + Send + Sync {
    /// Number, version and name.
    fn id(&self) -> FamilyId;

    /// Names of its requests in the order of their variants, for metrics; several may share one.
    fn kinds(&self) -> &'static [&'static str];

    /// Answers a request, whose frame was checked.
    fn handle<'a>(&'a self, session: &'a Arc<Session>, request: &[u8], reply: &'a mut Reply) -> Handling<'a>;

    /// Takes back what an answer gave, because the client never gets it: only the client could end it, and it
    /// does not know of it.
    fn take_back(&self, session: &Session, answer: &[u8]) {
        let _ = (session, answer);
    }

    /// A session began.
    fn on_session_start(&self, session: &Arc<Session>) {
        let _ = session;
    }

    /// A session has ended: [`Session::has_ended`] says so from now on, and what it held goes.
    fn on_session_end(&self, session: &Session) {
        let _ = session;
    }
}

/// A request on its way to its answer, which is written to the reply.
pub enum Handling<'a> {
    /// It was answered at once, or has failed.
    Done(Result<()>),
    /// It is answered when this ends. Dropped when the client goes away.
    Waiting(Pin<Box<dyn Future<Output = Result<()>> + Send + 'a>>),
    /// It cannot be understood: the connection ends, because what follows cannot be trusted.
    Malformed(Error),
}

impl<'a> Handling<'a> {
    /// Reads a request and answers it in a future.
    pub fn wait<R, F>(request: &[u8], reply: &'a mut Reply, answer: impl FnOnce(R) -> F) -> Self
    where
        R: wire::Request,
        R::Answer: Send + Sync,
        F: Future<Output = Result<R::Answer>> + Send + 'a,
    {
        match decode_message(request) {
            Ok(request) => Self::answer_with(reply, answer(request)),
            Err(error) => Self::Malformed(error),
        }
    }

    /// Answers in a future.
    pub fn answer_with<A>(reply: &'a mut Reply, answer: impl Future<Output = Result<A>> + Send + 'a) -> Self
    where
        A: Message + Send + Sync,
    {
        Self::Waiting(Box::pin(async move {
            let answer = answer.await?;
            reply.answer(&answer)
        }))
    }
}

impl fmt::Debug for Handling<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Done(result) => f.debug_tuple("Done").field(result).finish(),
            Self::Waiting(_) => f.write_str("Waiting"),
            Self::Malformed(error) => f.debug_tuple("Malformed").field(error).finish(),
        }
    }
}

/// A reply on its way to the client: one frame, and a descriptor beside it.
#[derive(Default)]
pub struct Reply {
    frame: Vec<u8>,
    descriptor: Option<Descriptor>,
    is_failure: bool,
}

/// A descriptor on its way to a client.
pub enum Descriptor {
    /// Of a segment, which stays open as long as anybody shares it.
    Shared(Arc<dyn AsFd + Send + Sync>),
    /// A second one of a staging buffer.
    Owned(OwnedFd),
}

impl Reply {
    /// Writes the answer. `InvalidInput` if it is too long for a frame: whatever it gave has to be taken back
    /// by the caller.
    pub fn answer<A: Message>(&mut self, answer: &A) -> Result<()> {
        self.clear();
        wire::encode(answer, &mut self.frame)
    }

    /// Sends a descriptor beside the answer.
    pub fn attach(&mut self, descriptor: Descriptor) {
        self.descriptor = Some(descriptor);
    }

    pub(crate) fn clear(&mut self) {
        self.frame.clear();
        self.descriptor = None;
        self.is_failure = false;
    }

    /// Writes a failure in place of an answer.
    pub(crate) fn fail(&mut self, error: &Error) -> Result<()> {
        self.clear();
        self.is_failure = true;
        wire::encode(&Failure::from(error), &mut self.frame)
    }

    pub(crate) fn frame(&self) -> &[u8] {
        &self.frame
    }

    /// The message of the answer; `None` if it is a failure.
    pub(crate) fn message(&self) -> Option<&[u8]> {
        self.frame.get(HEADER_BYTES..).filter(|_| !self.is_failure)
    }

    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.descriptor.as_ref().map(|descriptor| match descriptor {
            Descriptor::Shared(segment) => segment.as_fd(),
            Descriptor::Owned(buffer) => buffer.as_fd(),
        })
    }

    /// Gives back memory that one long answer took.
    pub(crate) fn trim(&mut self) {
        self.descriptor = None;
        if self.frame.capacity() > REPLY_BYTES_KEPT {
            self.frame = Vec::new();
        }
    }
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reply")
            .field("bytes", &self.frame.len())
            .field("descriptor", &self.descriptor.is_some())
            .finish_non_exhaustive()
    }
}

/// The families that are served, by number.
#[derive(Debug, Default)]
pub(crate) struct Families {
    by_number: Vec<Option<Registered>>,
}

#[derive(Debug)]
struct Registered {
    family: Arc<dyn Family>,
    /// Requests by kind.
    requests: Box<[AtomicU64]>,
}

impl Families {
    /// Adds a family. `Internal` if its number is taken or too large.
    pub(crate) fn register(&mut self, family: Arc<dyn Family>) -> Result<()> {
        let id = family.id();
        let index = usize::from(id.number);
        if id.number > NUMBER_MAX || self.by_number.get(index).is_some_and(Option::is_some) {
            let error = Error::new(
                Kind::Internal,
                "the number of a family of messages is taken or too large",
            );
            return Err(error.with("family", id.name).with("number", id.number));
        }
        if self.by_number.len() <= index {
            self.by_number.resize_with(index + 1, || None);
        }
        let requests = family.kinds().iter().map(|_| AtomicU64::new(0)).collect();
        self.by_number[index] = Some(Registered { family, requests });
        Ok(())
    }

    /// The family that a frame names, and counts the request; `Unsupported` if it is unknown or has another
    /// version.
    pub(crate) fn find(&self, header: &FrameHeader, message: &[u8]) -> Result<&dyn Family> {
        let registered = self
            .by_number
            .get(usize::from(header.family))
            .and_then(Option::as_ref);
        let Some(registered) = registered else {
            let message = "the node does not know this family of messages; install the same version of Forebay \
                           on both sides";
            return Err(Error::new(Kind::Unsupported, message)
                .with("family", header.family)
                .with("version", header.version));
        };
        registered.family.id().expect(header.family, header.version)?;
        // A message starts with the number of its variant, which is one byte up to 127.
        let kind = message.first().map(|first| usize::from(*first));
        if let Some(counter) = kind.and_then(|kind| registered.requests.get(kind)) {
            counters::add(counter, 1);
        }
        Ok(&*registered.family)
    }

    /// All families.
    pub(crate) fn all(&self) -> impl Iterator<Item = &dyn Family> {
        self.by_number
            .iter()
            .flatten()
            .map(|registered| &*registered.family)
    }

    /// Requests by kind; kinds of one name are summed.
    pub(crate) fn requests(&self) -> Vec<(&'static str, u64)> {
        let mut sums: Vec<(&'static str, u64)> = Vec::new();
        for registered in self.by_number.iter().flatten() {
            let counts = registered.requests.iter().map(counters::get);
            for (kind, count) in registered.family.kinds().iter().zip(counts) {
                match sums.iter_mut().find(|(known, _)| known == kind) {
                    Some((_, sum)) => *sum += count,
                    None => sums.push((kind, count)),
                }
            }
        }
        sums
    }
}
