//! The family of writes: staging buffers, whole objects, objects in parts.
//!
//! `writes/put.rs` writes an object from one buffer, `writes/long_write.rs` one in parts. A buffer belongs to
//! its session until it is handed over; from then on the write is a task of the node, which goes on when the
//! client dies, and a stopping node waits for it ([`Writes::finish`]).

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_core::{BucketName, Error, Kind, ObjectKey, Result};
use forebay_engine::Engine;
use forebay_wire::writes::{Answer, Request};
use forebay_wire::{FamilyId, Message, ObjectName, Request as _, decode_message};
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::IpcServices;
use crate::family::{Family, Handling, Reply};
use crate::sessions::Session;

mod long_write;
mod put;

use long_write::{OpenWrite, PartSender};

/// Open writes of all sessions; each holds what the lake's writer gathers …
const WRITES_MAX: usize = 64;
/// … and those of one session.
const SESSION_WRITES_MAX: usize = 16;

/// The family of writes.
#[derive(Debug)]
pub(crate) struct Writes {
    services: IpcServices,
    last_write: AtomicU64,
    permits: Arc<Semaphore>,
    /// By session and number.
    open: Mutex<HashMap<u64, BTreeMap<u64, OpenWrite>>>,
    tasks: Mutex<Tasks>,
}

/// Writes that were handed over.
#[derive(Debug, Default)]
struct Tasks {
    running: JoinSet<()>,
    is_closed: bool,
}

/// A request and whose it is.
#[derive(Debug, Clone, Copy)]
struct Context<'a> {
    writes: &'a Writes,
    session: &'a Arc<Session>,
}

impl Writes {
    pub(crate) fn new(services: IpcServices) -> Self {
        Self {
            services,
            last_write: AtomicU64::new(0),
            permits: Arc::new(Semaphore::new(WRITES_MAX)),
            open: Mutex::default(),
            tasks: Mutex::default(),
        }
    }

    /// Returns how many writes in parts are under way.
    pub(crate) fn open_writes(&self) -> u64 {
        (WRITES_MAX - self.permits.available_permits()) as u64
    }

    fn next_number(&self) -> u64 {
        self.last_write.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Remembers an open write under a number; refused when the session is over, because nobody would end it.
    fn add(&self, session: &Session, number: u64, write: OpenWrite) -> Result<()> {
        let mut open = self.open.lock();
        session.check_open()?;
        let writes = open.entry(session.number()).or_default();
        if writes.len() >= SESSION_WRITES_MAX {
            let message = "this client has too many writes under way; finish or abort some";
            return Err(Error::new(Kind::Busy, message).with("writes_max", SESSION_WRITES_MAX));
        }
        writes.insert(number, write);
        Ok(())
    }

    /// Returns the queue of the parts of an open write.
    fn parts(&self, session: &Session, number: u64) -> Option<PartSender> {
        let open = self.open.lock();
        open.get(&session.number())?.get(&number).map(OpenWrite::parts)
    }

    fn take(&self, session: &Session, number: u64) -> Option<OpenWrite> {
        self.open.lock().get_mut(&session.number())?.remove(&number)
    }

    /// Runs a write that outlives its client; refused when the node no longer waits for it.
    fn spawn(&self, write: impl Future<Output = ()> + Send + 'static) -> Result<()> {
        let mut tasks = self.tasks.lock();
        if tasks.is_closed {
            return Err(Error::new(
                Kind::Unavailable,
                "the node is stopping; try again later",
            ));
        }
        while tasks.running.try_join_next().is_some() {}
        tasks.running.spawn(write);
        Ok(())
    }

    /// Waits for the writes that were handed over; no further ones are taken.
    pub(crate) async fn finish(&self) {
        let mut running = {
            let mut tasks = self.tasks.lock();
            tasks.is_closed = true;
            std::mem::take(&mut tasks.running)
        };
        while running.join_next().await.is_some() {}
    }
}

impl Family for Writes {
    fn id(&self) -> FamilyId {
        Request::FAMILY
    }

    fn kinds(&self) -> &'static [&'static str] {
        Request::KINDS
    }

    fn handle<'a>(&'a self, session: &'a Arc<Session>, request: &[u8], reply: &'a mut Reply) -> Handling<'a> {
        let context = Context {
            writes: self,
            session,
        };
        Handling::wait(request, reply, |request| context.answer(request))
    }

    fn take_back(&self, session: &Session, answer: &[u8]) {
        match decode_message(answer) {
            Ok(Answer::Buffer(buffer)) => drop(session.take_buffer(buffer.buffer)),
            Ok(Answer::Writing { write, .. }) => drop(self.take(session, write)),
            _ => {}
        }
    }

    fn on_session_end(&self, session: &Session) {
        let open = self.open.lock().remove(&session.number());
        drop(open);
    }
}

impl<'a> Context<'a> {
    async fn answer(self, request: Request) -> Result<Answer> {
        match request {
            Request::Allocate { bytes } => put::allocate(self, bytes).await,
            Request::Free { buffer } => Ok(put::free(self, buffer)),
            Request::Put(request) => put::put(self, request).await,
            Request::BeginWrite(begin) => long_write::begin(self, begin).await,
            Request::WritePart(part) => long_write::part(self, part).await,
            Request::FinishWrite(finish) => long_write::finish(self, finish).await,
            Request::AbortWrite { write } => Ok(long_write::abort(self, write).await),
        }
    }

    fn engine(self) -> Result<&'a Arc<Engine>> {
        self.writes.services.engine.engine()
    }

    /// An object that this user may use.
    fn object(self, name: &ObjectName) -> Result<(BucketName, ObjectKey)> {
        Ok((self.session.bucket(&name.bucket)?, ObjectKey::new(&name.key)?))
    }
}
