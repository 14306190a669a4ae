//! The family of objects: reads, leases, names, and what readers say about what they will need.
//!
//! Read in this order: `objects/read.rs` (views of items), `objects/leases.rs` (who holds what),
//! `objects/members.rs` (members of tar shards), `objects/names.rs` (metadata, listings, buckets),
//! `objects/prefetch.rs` (hints). A read whose bytes are in RAM is answered within the call; all else waits.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use forebay_core::{BucketName, ObjectKey, Result};
use forebay_engine::Engine;
use forebay_reservoir::WorkingSetGuard;
use forebay_wire::objects::{Answer, Handle, Request};
use forebay_wire::{FamilyId, Message, ObjectName, Request as _, decode_message};
use parking_lot::Mutex;

use crate::access::Access;
use crate::family::{Family, Handling, Reply};
use crate::sessions::Session;
use crate::{IpcLimits, IpcServices, counters};

mod leases;
mod members;
mod names;
mod prefetch;
mod read;

pub use members::Members;

use leases::Leases;

/// The family of objects.
#[derive(Debug)]
pub(crate) struct Objects {
    /// Incarnation of the node: handles of another one are stale.
    generation: u64,
    limits: IpcLimits,
    access: Arc<Access>,
    services: IpcServices,
    leases: Leases,
    members: Arc<Members>,
    /// By session and reader.
    working_sets: Mutex<HashMap<u64, BTreeMap<u64, WorkingSetGuard>>>,
    expired: AtomicU64,
}

/// A request and whose it is.
#[derive(Debug, Clone, Copy)]
struct Context<'a> {
    objects: &'a Objects,
    session: &'a Arc<Session>,
}

impl Objects {
    pub(crate) fn new(
        generation: u64,
        limits: IpcLimits,
        access: Arc<Access>,
        services: IpcServices,
    ) -> Self {
        Self {
            generation,
            limits,
            access,
            services,
            leases: Leases::default(),
            members: Arc::new(Members::new()),
            working_sets: Mutex::default(),
            expired: AtomicU64::new(0),
        }
    }

    pub(crate) fn members(&self) -> Arc<Members> {
        Arc::clone(&self.members)
    }

    /// Returns how many leases there are, and their bytes.
    pub(crate) fn count_and_bytes(&self) -> (u64, u64) {
        self.leases.count_and_bytes()
    }

    /// Returns how many leases were held too long.
    pub(crate) fn expired_leases(&self) -> u64 {
        counters::get(&self.expired)
    }

    /// Gives up the memory of leases that are held too long.
    pub(crate) fn expire(&self, timeout: Duration) {
        let now = self.services.clock.monotonic();
        let Some(oldest) = now.checked_sub(timeout) else {
            return;
        };
        for expired in self.leases.expire(oldest, now) {
            counters::add(&self.expired, 1);
            for grant in &expired.grants {
                self.services.reservoir.abandon(&grant.leased);
                tracing::warn!(
                    clients = expired.clients.join(", "),
                    bucket = %grant.info.bucket,
                    key = %grant.info.key,
                    bytes = grant.leased.bytes(),
                    held_for_s = expired.held_for.as_secs(),
                    "a view is held too long, its memory leaves the cache"
                );
            }
        }
    }

    /// Ends the leases that an answer gave.
    fn release_granted(&self, session: &Session, answer: &Answer) {
        if let Answer::Read(items) = answer {
            let views = items.iter().flatten().filter_map(|found| found.view.as_ref());
            let leases: Vec<u64> = views.map(|view| view.lease).collect();
            self.leases.release(session, &leases);
        }
    }
}

impl Family for Objects {
    fn id(&self) -> FamilyId {
        Request::FAMILY
    }

    fn kinds(&self) -> &'static [&'static str] {
        Request::KINDS
    }

    fn handle<'a>(&'a self, session: &'a Arc<Session>, request: &[u8], reply: &'a mut Reply) -> Handling<'a> {
        let request = match decode_message(request) {
            Ok(request) => request,
            Err(error) => return Handling::Malformed(error),
        };
        let context = Context {
            objects: self,
            session,
        };
        let answer = match request {
            Request::Read { items, timeout_ms } => return read::handle(context, items, timeout_ms, reply),
            Request::Release { leases } => {
                self.leases.release(session, &leases);
                Ok(Answer::Done)
            }
            Request::Adopt { handles } => Ok(context.adopt(&handles)),
            Request::WorkingSet(set) => prefetch::keep_working_set(context, &set),
            Request::DropWorkingSet { reader } => Ok(prefetch::drop_working_set(context, reader)),
            request => return Handling::answer_with(reply, context.answer(request)),
        };
        Handling::Done(answer.and_then(|answer| reply.answer(&answer)))
    }

    fn take_back(&self, session: &Session, answer: &[u8]) {
        if let Ok(answer) = decode_message(answer) {
            self.release_granted(session, &answer);
        }
    }

    fn on_session_start(&self, session: &Arc<Session>) {
        self.leases.open(session);
    }

    fn on_session_end(&self, session: &Session) {
        let working_sets = self.working_sets.lock().remove(&session.number());
        drop(working_sets);
        self.leases.close(session);
    }
}

impl<'a> Context<'a> {
    /// Answers what may have to wait.
    async fn answer(self, request: Request) -> Result<Answer> {
        match request {
            Request::Stat(name) => names::stat(self, &name).await,
            Request::List(list) => names::list(self, list).await,
            Request::Delete(name) => names::delete(self, &name).await,
            Request::Buckets => names::buckets(self).await,
            Request::CreateBucket(name) => names::create_bucket(self, &name).await,
            Request::Prefetch { items, timeout_ms } => prefetch::answer(self, &items, timeout_ms).await,
            Request::Read { .. }
            | Request::Release { .. }
            | Request::Adopt { .. }
            | Request::WorkingSet(_)
            | Request::DropWorkingSet { .. } => unreachable!("answered at once"),
        }
    }

    fn engine(self) -> Result<&'a Arc<Engine>> {
        self.objects.services.engine.engine()
    }

    /// A bucket that this user may use.
    fn bucket(self, name: &str) -> Result<BucketName> {
        self.session.bucket(name)
    }

    /// An object that this user may use.
    fn object(self, name: &ObjectName) -> Result<(BucketName, ObjectKey)> {
        Ok((self.bucket(&name.bucket)?, ObjectKey::new(&name.key)?))
    }

    fn adopt(self, handles: &[Handle]) -> Answer {
        let Self { objects, session } = self;
        let may_map = |domain| objects.access.may_map(session.uid(), domain);
        let adopt = |handle: &Handle| {
            handle.generation == objects.generation && objects.leases.adopt(session, handle.lease, may_map)
        };
        Answer::Adopted(handles.iter().map(adopt).collect())
    }
}
