//! The native edge: processes on this host that share memory with the node.
//!
//! A client connects to a Unix socket, asks in small framed messages, and gets places in shared memory for answers: bulk data never
//! crosses the socket. The flows are docs/flows/local-read.md and local-write.md, the messages docs/formats/wire.md.
//!
//! Read in this order: `listener.rs` (who may come in), `connection.rs` (question and answer), `sessions.rs` and `leases.rs` (who
//! holds what), `read.rs`, `fill.rs`, `write.rs`, `long_write.rs`, `save.rs`, `names.rs`.
//!
//! Life cycle: [`Native`] is the state, a part of the node; [`run`] accepts and answers until the node stops, then lets answers and
//! writes under way finish. Limits: connections, leased bytes per session, staging memory, open writes, items per question, frame
//! sizes.

use std::collections::BTreeSet;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forebay_core::wire::Hello;
use forebay_core::{Error, Kind, Result};
use forebay_reservoir::Staging;
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

mod access;
mod connection;
mod counters;
mod fill;
mod leases;
mod listener;
mod long_write;
mod members;
mod names;
mod prepare;
mod read;
mod save;
mod sessions;
mod stream;
mod write;

pub(crate) use access::trust_domain;
pub use counters::NativeStats;
pub(crate) use listener::Listener;

use crate::checkpoint::Gathers;
use crate::options::NodeOptions;
use crate::parts::Parts;
use access::Access;
use counters::Counters;
use leases::Leases;
use long_write::WRITES_MAX;
use members::Members;
use sessions::{Peer, Session, Sessions};

/// Old leases are looked for this many times within the time-out …
const EXPIRY_SCANS: u32 = 8;
/// … but not more often than this …
const EXPIRY_SCAN_PERIOD_MIN: Duration = Duration::from_millis(20);
/// … and not more seldom than this.
const EXPIRY_SCAN_PERIOD_MAX: Duration = Duration::from_secs(30);

/// What the connections share.
#[derive(Debug)]
pub(crate) struct Native {
    /// This life of the node: handles of another one are stale.
    generation: u64,
    access: Access,
    sessions: Sessions,
    leases: Leases,
    /// Indexes of tar shards; batches over HTTP use them too.
    pub(crate) members: Arc<Members>,
    staging: Arc<Staging>,
    counters: Counters,
    last_region: AtomicU64,
    last_write: AtomicU64,
    open_writes: Arc<Semaphore>,
    puts: Mutex<Puts>,
    /// Exchanges between ranks.
    gathers: Gathers,
    /// The node's ends of all sockets, for whoever forks this process.
    sockets: Mutex<BTreeSet<RawFd>>,
}

/// Writes that were handed over.
#[derive(Debug, Default)]
struct Puts {
    running: JoinSet<()>,
    is_closed: bool,
}

impl Native {
    pub(crate) fn new(options: &NodeOptions) -> Result<Self> {
        let mut generation = [0; 8];
        sessions::random(&mut generation)?;
        Ok(Self {
            generation: u64::from_le_bytes(generation),
            access: Access::new(options),
            sessions: Sessions::default(),
            leases: Leases::default(),
            members: Arc::new(Members::new()),
            staging: Staging::new(options.native.staging_bytes),
            counters: Counters::default(),
            // Regions and staging buffers are named by numbers of one kind; those of buffers are small.
            last_region: AtomicU64::new(1 << 63),
            last_write: AtomicU64::new(0),
            open_writes: Arc::new(Semaphore::new(WRITES_MAX)),
            puts: Mutex::default(),
            gathers: Gathers::default(),
            sockets: Mutex::default(),
        })
    }

    /// Counters and gauges now.
    pub(crate) fn stats(&self) -> NativeStats {
        let (leases, leased_bytes) = self.leases.count_and_bytes();
        let staging = self.staging.stats();
        NativeStats {
            sessions: self.sessions.count(),
            connections: counters::get(&self.counters.connections),
            refused_connections: counters::get(&self.counters.refused),
            requests: self.counters.requests(),
            leases,
            leased_bytes,
            expired_leases: counters::get(&self.counters.expired),
            staging_held_bytes: staging.held_bytes,
            staging_lent_bytes: staging.lent_bytes,
            staging_budget_bytes: self.staging.budget_bytes(),
            staging_refusals: staging.refusals,
            open_writes: (WRITES_MAX - self.open_writes.available_permits()) as u64,
            loaded: self.counters.loaded(),
        }
    }

    /// The memory for what clients write.
    pub(crate) fn staging(&self) -> &Arc<Staging> {
        &self.staging
    }

    /// Opens or joins the session of a connection, and says whether it was opened.
    fn welcome(
        &self,
        peer: Peer,
        hello: &Hello,
        node_stops: &CancellationToken,
    ) -> Result<(Arc<Session>, bool)> {
        if let Some(secret) = &hello.session {
            return Ok((self.sessions.join(secret, peer)?, false));
        }
        let session = self.sessions.open(peer, &hello.client, node_stops)?;
        self.leases.open(&session);
        Ok((session, true))
    }

    /// The first connection of a session has ended: what it held comes back.
    fn close_session(&self, session: &Session) {
        self.sessions.close(session);
        self.leases.close(session);
    }

    /// The node's ends of all sockets, the listening one included.
    pub(crate) fn sockets(&self) -> Vec<RawFd> {
        self.sockets.lock().iter().copied().collect()
    }

    /// Remembers a socket for as long as the answer lives.
    fn remember_socket(&self, socket: &impl AsRawFd) -> RememberedSocket<'_> {
        let descriptor = socket.as_raw_fd();
        self.sockets.lock().insert(descriptor);
        RememberedSocket {
            native: self,
            descriptor,
        }
    }

    fn next_region(&self) -> u64 {
        self.last_region.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn next_write(&self) -> u64 {
        self.last_write.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Runs a write that outlives its client; refused when the node no longer waits for it.
    fn spawn_put(&self, put: impl Future<Output = ()> + Send + 'static) -> Result<()> {
        let mut puts = self.puts.lock();
        if puts.is_closed {
            return Err(Error::new(
                Kind::Unavailable,
                "the node is stopping; try again later",
            ));
        }
        while puts.running.try_join_next().is_some() {}
        puts.running.spawn(put);
        Ok(())
    }

    /// Waits for the writes that were handed over; no further ones are taken.
    async fn finish_puts(&self) {
        let mut running = {
            let mut puts = self.puts.lock();
            puts.is_closed = true;
            std::mem::take(&mut puts.running)
        };
        while running.join_next().await.is_some() {}
    }

    /// Gives up the memory of leases that are held too long.
    fn expire(&self, parts: &Parts, timeout: Duration) {
        let now = parts.clock.monotonic();
        let Some(oldest) = now.checked_sub(timeout) else {
            return;
        };
        for expired in self.leases.expire(oldest, now) {
            counters::add(&self.counters.expired, 1);
            for grant in &expired.grants {
                parts.reservoir.abandon(&grant.leased);
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
}

/// A socket that is open. Dropped before the socket is closed, so that its number cannot belong to another file.
struct RememberedSocket<'a> {
    native: &'a Native,
    descriptor: RawFd,
}

impl Drop for RememberedSocket<'_> {
    fn drop(&mut self) {
        self.native.sockets.lock().remove(&self.descriptor);
    }
}

/// Serves the socket until the node stops; answers and writes under way are finished.
pub(crate) async fn run(parts: Arc<Parts>, listener: Listener) -> Result<()> {
    let mut connections = JoinSet::new();
    let expiring = expire_now_and_then(&parts);
    tokio::pin!(expiring);
    let remembered = parts.native.remember_socket(&listener);
    tokio::select! {
        () = parts.stop.cancelled() => {}
        () = listener.accept(&parts, &mut connections) => {}
        () = &mut expiring => {}
    }
    drop(remembered);
    drop(listener);
    while connections.join_next().await.is_some() {}
    parts.native.finish_puts().await;
    parts.saves.finish().await;
    Ok(())
}

async fn expire_now_and_then(parts: &Parts) {
    let timeout = parts.options.native.lease_timeout;
    if timeout.is_zero() {
        std::future::pending::<()>().await;
    }
    let period = (timeout / EXPIRY_SCANS).clamp(EXPIRY_SCAN_PERIOD_MIN, EXPIRY_SCAN_PERIOD_MAX);
    loop {
        tokio::time::sleep(period).await;
        parts.native.expire(parts, timeout);
    }
}
