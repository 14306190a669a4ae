//! One connection of a client: hello, then questions and answers, one at a time and in order.
//!
//! Life cycle: the first message must be `Hello`, soon. It opens a session, which ends with this connection, or joins one. A question
//! is answered before the next one is read; what is warm is answered without a wait. A client that goes away while it waits is noticed at
//! once, so that what its process held comes back; only a write that was handed over goes on. A message that is not ours ends the
//! connection after an answer that says why, because what follows cannot be trusted.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use forebay_core::wire::{self, Answer, FRAME_BYTES_MAX, Failure, Request, Welcome};
use forebay_core::{Error, Kind, Result};
use forebay_reservoir::SegmentId;
use tokio::net::UnixStream;
use tokio_util::sync::CancellationToken;

use super::counters::Present;
use super::sessions::{Peer, Session};
use super::stream::FrameStream;
use super::{fill, long_write, names, prepare, read, save, write};
use crate::parts::Parts;

/// How long a client may take to say hello.
const HELLO_DEADLINE: Duration = Duration::from_secs(10);
/// A hello is a name and a secret.
const HELLO_BYTES_MAX: usize = 4096;
/// The answer buffer at rest is no larger.
const OUTPUT_BYTES_KEPT: usize = 256 << 10;

/// What answers a question.
pub(super) struct Context {
    pub(super) parts: Arc<Parts>,
    pub(super) session: Arc<Session>,
}

/// An answer, and what travels beside it.
pub(super) struct Reply {
    answer: Answer,
    descriptor: Option<Descriptor>,
}

/// A descriptor on its way to a client.
enum Descriptor {
    Segment(Arc<dyn AsFd + Send + Sync>),
    Buffer(OwnedFd),
}

impl Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Segment(segment) => segment.as_fd(),
            Self::Buffer(buffer) => buffer.as_fd(),
        }
    }
}

impl From<Answer> for Reply {
    fn from(answer: Answer) -> Self {
        Self {
            answer,
            descriptor: None,
        }
    }
}

/// Serves a connection until it ends.
pub(super) async fn serve(parts: Arc<Parts>, stream: UnixStream, peer: Peer) {
    let native = &parts.native;
    let _present = Present::new(&native.counters.connections);
    let descriptor = stream.as_raw_fd();
    let mut connection = Connection {
        stream: FrameStream::new(stream),
        output: Vec::new(),
    };
    let _remembered = native.remember_socket(&descriptor);
    let hello = tokio::time::timeout(HELLO_DEADLINE, connection.hello(&parts, peer));
    let hello = tokio::select! {
        hello = hello => hello,
        () = parts.stop.cancelled() => return,
    };
    let joined = match hello {
        Ok(Ok(joined)) => joined,
        Ok(Err(error)) => {
            tracing::debug!(%error, uid = peer.uid, pid = peer.pid, "a client did not get in");
            return;
        }
        Err(_) => {
            tracing::debug!(
                uid = peer.uid,
                pid = peer.pid,
                "a client did not say hello in time"
            );
            return;
        }
    };
    let Joined { session, is_first } = joined;
    let context = Context {
        parts: Arc::clone(&parts),
        session: Arc::clone(&session),
    };
    // Closes the session also if this task is aborted.
    let _guard = is_first.then(|| SessionGuard {
        parts: Arc::clone(&parts),
        session: Arc::clone(&session),
    });
    if let Err(error) = connection.converse(&context).await {
        tracing::debug!(%error, client = session.client, "a connection was ended");
    }
}

struct Joined {
    session: Arc<Session>,
    is_first: bool,
}

struct SessionGuard {
    parts: Arc<Parts>,
    session: Arc<Session>,
}

impl Drop for SessionGuard {
    fn drop(&mut self) {
        self.parts.native.close_session(&self.session);
    }
}

struct Connection {
    stream: FrameStream,
    output: Vec<u8>,
}

impl Connection {
    async fn hello(&mut self, parts: &Parts, peer: Peer) -> Result<Joined> {
        let request = self.request(HELLO_BYTES_MAX).await;
        let joined = match request {
            Ok(Some(Request::Hello(hello))) => parts.native.welcome(peer, &hello, &parts.stop),
            Ok(Some(_)) => Err(Error::new(
                Kind::InvalidInput,
                "the first message must be a hello",
            )),
            Ok(None) => return Err(Error::new(Kind::Io, "the client closed before it said hello")),
            Err(error) => Err(error),
        };
        match joined {
            Ok((session, is_first)) => {
                let joined = Joined { session, is_first };
                let welcome = Welcome {
                    session: joined.session.secret,
                    generation: parts.native.generation,
                    node: env!("CARGO_PKG_VERSION").into(),
                    s3: parts.s3_url.clone(),
                };
                if let Err(error) = self.send(&Answer::Welcome(welcome).into()).await {
                    if joined.is_first {
                        parts.native.close_session(&joined.session);
                    }
                    return Err(error);
                }
                Ok(joined)
            }
            Err(error) => {
                // It may be gone already; then nobody needs to be told.
                let _ = self.send(&failed(&error).into()).await;
                Err(error)
            }
        }
    }

    async fn converse(&mut self, context: &Context) -> Result<()> {
        let ended = context.session.ended.clone();
        loop {
            let request = tokio::select! {
                biased;
                request = self.request(FRAME_BYTES_MAX) => request,
                () = ended.cancelled() => return Ok(()),
            };
            let request = match request {
                Ok(Some(request)) => request,
                Ok(None) => return Ok(()),
                Err(error) => {
                    let _ = self.send(&failed(&error).into()).await;
                    return Err(error);
                }
            };
            context.parts.native.counters.request(&request);
            // The kernel may hand a descriptor over with bytes that were sent before it, so only who needs one takes it.
            let takes_one = matches!(request, Request::Register { .. });
            let descriptor = takes_one.then(|| self.stream.take_descriptor()).flatten();
            let reply = tokio::select! {
                biased;
                reply = context.answer(request, descriptor) => reply,
                () = self.stream.closed() => return Ok(()),
                () = cut(&ended, &context.parts.stop) => return Ok(()),
            };
            let is_written = self.write_down(&reply.answer)?;
            let sent = self.send_written(&reply).await;
            if !is_written || sent.is_err() {
                context.take_back(&reply.answer);
            }
            sent?;
        }
    }

    async fn request(&mut self, message_bytes_max: usize) -> Result<Option<Request>> {
        match self.stream.next(message_bytes_max).await? {
            Some(frame) => wire::decode(&frame.header, frame.message).map(Some),
            None => Ok(None),
        }
    }

    async fn send(&mut self, reply: &Reply) -> Result<()> {
        self.write_down(&reply.answer)?;
        self.send_written(reply).await
    }

    /// Makes a frame of an answer; `false` if it is too long and a failure that says so takes its place.
    fn write_down(&mut self, answer: &Answer) -> Result<bool> {
        self.output.clear();
        let Err(error) = wire::encode(answer, &mut self.output) else {
            return Ok(true);
        };
        self.output.clear();
        wire::encode(&failed(&error), &mut self.output)?;
        Ok(false)
    }

    async fn send_written(&mut self, reply: &Reply) -> Result<()> {
        let descriptor = reply.descriptor.as_ref().map(Descriptor::as_fd);
        let sent = self.stream.send(&self.output, descriptor).await;
        if self.output.capacity() > OUTPUT_BYTES_KEPT {
            self.output = Vec::new();
        }
        sent.map_err(|why| Error::io("an answer could not be sent", why))
    }
}

/// The session is over while the node is not: its process is dead. When the node stops, answers under way may still be finished.
async fn cut(ended: &CancellationToken, node_stops: &CancellationToken) {
    ended.cancelled().await;
    if node_stops.is_cancelled() {
        std::future::pending::<()>().await;
    }
}

pub(super) fn failed(error: &Error) -> Answer {
    Answer::Failed(Failure::from(error))
}

impl Context {
    async fn answer(&self, request: Request, descriptor: Option<OwnedFd>) -> Reply {
        let answer = match request {
            Request::Read { items, timeout_ms } => Ok(read::answer(self, &items, timeout_ms).await),
            Request::Release { leases } => {
                self.parts.native.leases.release(&self.session, &leases);
                Ok(Answer::Done)
            }
            Request::MapSegment { segment } => return self.map_segment(segment),
            Request::Adopt { handles } => Ok(self.adopt(&handles)),
            Request::Stat(name) => names::stat(self, &name).await,
            Request::List(list) => names::list(self, list).await,
            Request::Delete(name) => names::delete(self, &name).await,
            Request::Buckets => names::buckets(self).await,
            Request::CreateBucket(name) => names::create_bucket(self, &name).await,
            Request::Register { bytes } => fill::register(self, bytes, descriptor),
            Request::Unregister { region } => {
                self.session.remove_region(region);
                Ok(Answer::Done)
            }
            Request::Fill(request) => fill::answer(self, &request).await,
            Request::Allocate { bytes } => write::allocate(self, bytes).await,
            Request::Free { buffer } => Ok(write::free(self, buffer)),
            Request::Put(put) => write::put(self, put).await,
            Request::BeginWrite(begin) => long_write::begin(self, begin).await,
            Request::WritePart(part) => long_write::part(self, part).await,
            Request::FinishWrite(finish) => long_write::finish(self, finish).await,
            Request::AbortWrite { write } => Ok(long_write::abort(self, write).await),
            Request::BeginSave(begin) => save::begin(self, begin).await,
            Request::SaveFile(file) => save::file(self, file).await,
            Request::SaveObject(object) => save::object(self, object).await,
            Request::StageSave { save } => save::stage(self, &save).await,
            Request::SaveStates { save, wait_ms } => save::states(self, save.as_deref(), wait_ms).await,
            Request::AbortSave { save } => save::abort(self, &save).await,
            Request::Gather(gather) => save::gather(self, gather).await,
            Request::Prepare { items, timeout_ms } => prepare::answer(self, &items, timeout_ms).await,
            Request::Plan(plan) => prepare::plan(self, &plan),
            Request::EndPlan { reader } => {
                self.session.end_plan(reader);
                Ok(Answer::Done)
            }
            Request::Loaded(loaded) => {
                self.parts.native.counters.add_loaded(&loaded);
                Ok(Answer::Done)
            }
            Request::Ping => self.parts.engine().map(|_| Answer::Done),
            Request::Hello(_) => Err(Error::new(
                Kind::InvalidInput,
                "this connection has said hello already",
            )),
        };
        answer.unwrap_or_else(|error| failed(&error)).into()
    }

    /// Takes back what an answer gave that the client never gets: only the client could end it, and it does not know of it.
    fn take_back(&self, answer: &Answer) {
        match answer {
            Answer::Read(items) => {
                let views = items.iter().flatten().filter_map(|found| found.view.as_ref());
                let leases: Vec<u64> = views.map(|view| view.lease).collect();
                self.parts.native.leases.release(&self.session, &leases);
            }
            Answer::Buffer(place) => drop(self.session.take_buffer(place.buffer)),
            Answer::Writing { write, .. } => drop(self.session.take_write(*write)),
            Answer::Saving { save, .. } => self.session.remove_save(save),
            Answer::Region { region } => self.session.remove_region(*region),
            _ => {}
        }
    }

    fn adopt(&self, handles: &[wire::Handle]) -> Answer {
        let native = &self.parts.native;
        let may_map = |domain| native.access.may_map(self.session.peer.uid, domain);
        let adopt = |handle: &wire::Handle| {
            handle.generation == native.generation
                && native.leases.adopt(&self.session, handle.lease, may_map)
        };
        Answer::Adopted(handles.iter().map(adopt).collect())
    }

    /// The descriptor of a staging buffer of this session, or of a segment whose domain the user may see.
    fn map_segment(&self, number: u64) -> Reply {
        if let Some(buffer) = self.session.buffer_descriptor(number) {
            return match buffer {
                Ok((descriptor, bytes)) => Reply {
                    answer: Answer::Segment { bytes },
                    descriptor: Some(Descriptor::Buffer(descriptor)),
                },
                Err(error) => failed(&error).into(),
            };
        }
        let native = &self.parts.native;
        let uid = self.session.peer.uid;
        let found = self.parts.reservoir.segment_fd(SegmentId(number));
        // Whether it is there is none of the business of whoever may not see it.
        match found.filter(|(_, _, domain)| native.access.may_map(uid, *domain)) {
            Some((segment, bytes, _)) => Reply {
                answer: Answer::Segment { bytes },
                descriptor: Some(Descriptor::Segment(segment)),
            },
            None => {
                let message = "there is no such segment (any more); read the object again";
                failed(&Error::new(Kind::NotFound, message).with("segment", number)).into()
            }
        }
    }
}
