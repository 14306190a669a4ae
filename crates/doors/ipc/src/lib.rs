//! The socket door: processes on this host that share memory with the node.
//!
//! A client connects to a Unix socket, asks in small framed messages, and gets locations in shared memory for
//! answers: bulk data never crosses the socket. The flows are docs/flows/local-read.md and local-write.md, the
//! messages docs/formats/wire.md.
//!
//! Read in this order: `listener.rs` (who may come in), `connection.rs` (request and reply), `family.rs` (who
//! answers), `sessions.rs` (what a process holds); then the families of this crate: `memory.rs` (segments),
//! `objects.rs` with `objects/` (reads, leases, names), `writes.rs` with `writes/`, `loaders.rs`. Other
//! capabilities bring families of their own ([`Ipc::register`]).
//!
//! Life cycle: [`Ipc::new`] makes the state, [`Ipc::register`] adds families, [`run`] accepts and answers until
//! the node stops, then lets answers and writes under way finish. Limits: connections, leased bytes per
//! session, staging memory, open writes, items per request, frame sizes.
//!
//! ```no_run
//! use forebay_ipc::{Access, Ipc, IpcLimits, IpcServices, Listener, SocketSetting};
//! # async fn example(services: IpcServices, limits: IpcLimits) -> forebay_core::Result<()> {
//! let access = std::sync::Arc::new(Access::new(&[], []));
//! let listener = Listener::open(&SocketSetting::Chosen("/run/forebay.sock".into()), &access)?;
//! let ipc = Ipc::new(limits, access, services)?;
//! if let Some(listener) = listener {
//!     forebay_ipc::run(ipc.into(), listener).await?;
//! }
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::fmt;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use forebay_core::{Clock, Result};
use forebay_engine::EngineSource;
use forebay_reservoir::{Reservoir, Staging};
use forebay_wire::session::{Hello, Welcome};
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

mod access;
mod connection;
mod counters;
mod family;
mod listener;
mod loaders;
mod memory;
mod objects;
mod sessions;
mod stream;
#[cfg(test)]
mod test_engine;
mod writes;

pub use access::{Access, ClosedBucket, trust_domain};
pub use counters::IpcStats;
pub use family::{Descriptor, Family, Handling, Reply};
pub use listener::{Listener, SocketSetting};
pub use objects::Members;
pub use sessions::{Session, random_bytes};

use counters::Counters;
use family::Families;
use loaders::Loaders;
use memory::Memory;
use objects::Objects;
use sessions::{Peer, Sessions};
use writes::Writes;

/// Old leases are looked for this many times within the time-out …
const EXPIRY_SCANS: u32 = 8;
/// … but not more often than this …
const EXPIRY_SCAN_PERIOD_MIN: Duration = Duration::from_millis(20);
/// … and not more seldom than this.
const EXPIRY_SCAN_PERIOD_MAX: Duration = Duration::from_secs(30);

/// Limits of the door.
#[derive(Debug, Clone, Copy)]
pub struct IpcLimits {
    /// Connections at a time.
    pub connections_max: usize,
    /// Bytes of the cache that one client may hold.
    pub client_lease_bytes_max: u64,
    /// Longest hold of a view before its memory leaves the cache; zero means for ever.
    pub lease_timeout: Duration,
}

/// Services of the node that the door uses.
#[derive(Debug, Clone)]
pub struct IpcServices {
    /// The engine, once every lake has answered.
    pub engine: Arc<dyn EngineSource>,
    /// The cache.
    pub reservoir: Arc<Reservoir>,
    /// The memory for what clients write.
    pub staging: Arc<Staging>,
    /// Told when that memory is used up.
    pub pressure: Arc<dyn StagingPressure>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Fires when the node stops.
    pub stop: CancellationToken,
    /// Version of the node, for messages.
    pub version: &'static str,
    /// `http://host:port` of the S3 endpoint, if there is one.
    pub s3_url: Option<String>,
}

/// A holder of staging memory that can give some back.
pub trait StagingPressure: fmt::Debug + Send + Sync {
    /// A client asked for staging memory and there was none.
    fn staging_is_full(&self);
}

/// State that the connections share.
#[derive(Debug)]
pub struct Ipc {
    /// Incarnation of the node: handles of another one are stale.
    generation: u64,
    limits: IpcLimits,
    services: IpcServices,
    access: Arc<Access>,
    sessions: Sessions,
    families: Families,
    objects: Arc<Objects>,
    writes: Arc<Writes>,
    loaders: Arc<Loaders>,
    counters: Counters,
    /// The node's ends of all sockets, for whoever forks this process.
    sockets: Mutex<BTreeSet<RawFd>>,
}

impl Ipc {
    /// The state of the door, with the families of this crate.
    pub fn new(limits: IpcLimits, access: Arc<Access>, services: IpcServices) -> Result<Self> {
        let mut generation = [0; 8];
        random_bytes(&mut generation)?;
        let generation = u64::from_le_bytes(generation);
        let objects = Arc::new(Objects::new(
            generation,
            limits,
            Arc::clone(&access),
            services.clone(),
        ));
        let writes = Arc::new(Writes::new(services.clone()));
        let loaders = Arc::new(Loaders::default());
        let mut ipc = Self {
            generation,
            limits,
            sessions: Sessions::new(Arc::clone(&access)),
            families: Families::default(),
            objects: Arc::clone(&objects),
            writes: Arc::clone(&writes),
            loaders: Arc::clone(&loaders),
            counters: Counters::default(),
            sockets: Mutex::default(),
            access: Arc::clone(&access),
            services: services.clone(),
        };
        ipc.register(Arc::new(Memory::new(access, services)))?;
        ipc.register(objects)?;
        ipc.register(writes)?;
        ipc.register(loaders)?;
        Ok(ipc)
    }

    /// Adds a family of requests; before [`run`].
    pub fn register(&mut self, family: Arc<dyn Family>) -> Result<()> {
        self.families.register(family)
    }

    /// Counters and gauges now.
    #[must_use]
    pub fn stats(&self) -> IpcStats {
        let (leases, leased_bytes) = self.objects.count_and_bytes();
        let staging = self.services.staging.stats();
        IpcStats {
            sessions: self.sessions.count(),
            connections: counters::get(&self.counters.connections),
            refused_connections: counters::get(&self.counters.refused),
            requests: self.families.requests(),
            leases,
            leased_bytes,
            expired_leases: self.objects.expired_leases(),
            staging_held_bytes: staging.held_bytes,
            staging_lent_bytes: staging.lent_bytes,
            staging_budget_bytes: self.services.staging.budget_bytes(),
            staging_refusals: staging.refusals,
            open_writes: self.writes.open_writes(),
            loaded: self.loaders.sum(),
        }
    }

    /// Indexes of tar shards; batches over HTTP use them too.
    #[must_use]
    pub fn members(&self) -> Arc<Members> {
        self.objects.members()
    }

    /// The node's ends of all sockets, the listening one included.
    #[must_use]
    pub fn sockets(&self) -> Vec<RawFd> {
        self.sockets.lock().iter().copied().collect()
    }

    /// Opens or joins the session of a connection, and says whether it was opened.
    fn welcome(&self, peer: Peer, hello: &Hello) -> Result<(Arc<Session>, bool)> {
        if let Some(secret) = &hello.session {
            return Ok((self.sessions.join(secret, peer)?, false));
        }
        let session = self.sessions.open(peer, &hello.client, &self.services.stop)?;
        for family in self.families.all() {
            family.on_session_start(&session);
        }
        Ok((session, true))
    }

    fn greeting(&self, session: &Session) -> Welcome {
        Welcome {
            session: session.secret,
            generation: self.generation,
            node: self.services.version.into(),
            s3: self.services.s3_url.clone(),
        }
    }

    /// The first connection of a session has ended: what it held comes back.
    fn close_session(&self, session: &Session) {
        self.sessions.close(session);
        for family in self.families.all() {
            family.on_session_end(session);
        }
    }

    /// Remembers a socket for as long as the answer lives.
    fn remember_socket(&self, socket: &impl AsRawFd) -> RememberedSocket<'_> {
        let descriptor = socket.as_raw_fd();
        self.sockets.lock().insert(descriptor);
        RememberedSocket {
            ipc: self,
            descriptor,
        }
    }
}

/// A socket that is open. Dropped before the socket is closed, so that its number cannot belong to another
/// file.
struct RememberedSocket<'a> {
    ipc: &'a Ipc,
    descriptor: RawFd,
}

impl Drop for RememberedSocket<'_> {
    fn drop(&mut self) {
        self.ipc.sockets.lock().remove(&self.descriptor);
    }
}

/// Serves the socket until the node stops; answers and writes under way are finished.
pub async fn run(ipc: Arc<Ipc>, listener: Listener) -> Result<()> {
    let mut connections = JoinSet::new();
    let expiring = expire_now_and_then(&ipc);
    tokio::pin!(expiring);
    let remembered = ipc.remember_socket(&listener);
    tokio::select! {
        () = ipc.services.stop.cancelled() => {}
        () = listener.accept(&ipc, &mut connections) => {}
        () = &mut expiring => {}
    }
    drop(remembered);
    drop(listener);
    while connections.join_next().await.is_some() {}
    ipc.writes.finish().await;
    Ok(())
}

async fn expire_now_and_then(ipc: &Ipc) {
    let timeout = ipc.limits.lease_timeout;
    if timeout.is_zero() {
        std::future::pending::<()>().await;
    }
    let period = (timeout / EXPIRY_SCANS).clamp(EXPIRY_SCAN_PERIOD_MIN, EXPIRY_SCAN_PERIOD_MAX);
    loop {
        tokio::time::sleep(period).await;
        ipc.objects.expire(timeout);
    }
}
