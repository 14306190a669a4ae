//! Session state of a process with its node: one mutex around all of it.
//!
//! One mutex, because a fork may come at any moment and takes every lock first (`fork.rs`). It is held for
//! book-keeping only, never while a socket is read or a view is dropped. It is one of `std`, whose locked
//! state a child can undo; `parking_lot` keeps waiting threads in a table that another thread may have locked
//! when the process is forked.
//!
//! Life cycle: [`Local::new`] → a [`Link`] is made by the first call (`pool.rs`) → lost when the node is gone
//! (`incarnation` counts it; leases and segments of that incarnation are forgotten, views keep their
//! own mappings) → made again by the next call.

use forebay_wire::objects;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};

use super::connection::{Connection, OnewayMessage, PendingReply};
use super::leases::Leases;
use super::segments::Segments;
use super::staging::BufferMappingCache;
use crate::options::ClientOptions;
use crate::stats::{ClientStats, Counters};

/// Leases that one message gives back.
const RELEASES_MAX: usize = 64 << 10;

/// A client of a node on this host.
pub(crate) struct Local {
    pub(super) path: PathBuf,
    pub(crate) options: ClientOptions,
    pub(crate) counters: Counters,
    state: Mutex<SessionState>,
    /// A connection came back, or somebody finished looking for the node.
    pub(super) changed: Condvar,
}

/// All that a process knows of its node.
pub(crate) struct SessionState {
    /// The session with the node, if there is one.
    pub(crate) link: Option<Link>,
    /// The node's incarnation that leases and mapped segments belong to. A forked child may meet another one,
    /// which uses the same numbers.
    pub(crate) generation: Option<u64>,
    /// In a forked child that could not have a session: those of its parents, kept open because they hold
    /// leases that the child looks at.
    pub(crate) inherited: Vec<Connection>,
    /// Counts sessions that were lost; leases and segments belong to one incarnation.
    pub(crate) incarnation: u64,
    /// Counts forks; staging buffers belong to one process.
    pub(crate) process: u32,
    /// Somebody is looking for the node.
    pub(crate) connecting: bool,
    /// Connections that wait for a call.
    pub(crate) idle: Vec<Connection>,
    /// Connections that a call uses.
    pub(crate) busy: usize,
    /// Every socket, so that a forked child can let go of those that other threads of its parent use.
    pub(crate) sockets: Vec<Weak<OwnedFd>>,
    pub(crate) leases: Leases,
    pub(super) segments: Segments,
    /// Staging buffers that stay mapped.
    pub(super) buffer_mappings: BufferMappingCache,
    /// Further messages to the node: staging buffers to give back, writes that were given up.
    pub(super) outbox: Vec<OnewayMessage>,
}

/// A session with a node.
pub(crate) struct Link {
    /// The session lives as long as this connection. No call uses it, because a call that is given up costs
    /// its connection.
    pub(crate) lifeline: Connection,
    /// The secret by which further connections join.
    pub(crate) session: [u8; 16],
    /// The node's incarnation.
    pub(crate) generation: u64,
    /// Its S3 endpoint.
    pub(crate) s3: Option<String>,
}

impl Local {
    /// Nothing is opened yet.
    pub(crate) fn new(path: PathBuf, options: ClientOptions) -> Arc<Self> {
        let state = SessionState {
            link: None,
            generation: None,
            inherited: Vec::new(),
            incarnation: 0,
            process: 0,
            connecting: false,
            idle: Vec::new(),
            busy: 0,
            sockets: Vec::new(),
            leases: Leases::new(),
            segments: Segments::new(),
            buffer_mappings: BufferMappingCache::default(),
            outbox: Vec::new(),
        };
        let local = Arc::new(Self {
            path,
            options,
            counters: Counters::default(),
            state: Mutex::new(state),
            changed: Condvar::new(),
        });
        crate::fork::watch(&local);
        local
    }

    /// The socket.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The S3 endpoint of the node that this process has a session with.
    pub(crate) fn s3_url(&self) -> Option<String> {
        self.state().link.as_ref().and_then(|link| link.s3.clone())
    }

    /// The books. Never held while waiting, and never while something is dropped that takes it again (a hold
    /// on a lease).
    pub(crate) fn state(&self) -> MutexGuard<'_, SessionState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns what was done so far.
    pub(crate) fn stats(&self) -> ClientStats {
        self.counters.snapshot()
    }

    /// A view of a lease ended.
    pub(super) fn drop_view(&self, lease: u64, incarnation: u64) {
        let mut state = self.state();
        if state.incarnation == incarnation {
            state.leases.drop_view(lease);
            state.flush_when_due();
        }
    }

    /// Something of this incarnation and process is not needed any more; told with the next message, or soon.
    pub(super) fn send_oneway_later(
        &self,
        message: impl Into<OnewayMessage>,
        incarnation: u64,
        process: u32,
    ) {
        let mut state = self.state();
        if (state.incarnation, state.process) == (incarnation, process) {
            state.outbox.push(message.into());
            state.flush_when_due();
        }
    }
}

impl SessionState {
    /// Sends what is to be given back if that is due and no call is on its way that could take it along.
    pub(crate) fn flush_when_due(&mut self) {
        let is_due = self.leases.is_due() || !self.outbox.is_empty();
        if self.busy > 0 || !is_due {
            return;
        }
        let Some(index) = self.idle.iter().rposition(Connection::may_send_oneway) else {
            return;
        };
        let mut connection = self.idle.swap_remove(index);
        self.load(&mut connection);
        connection.flush();
        self.check_in(connection);
    }

    /// Puts what is to be given back in front of the next message on this connection.
    pub(super) fn load(&mut self, connection: &mut Connection) {
        let leases = self.leases.take_pending();
        for some in leases.chunks(RELEASES_MAX) {
            let release = objects::Request::Release {
                leases: some.to_vec(),
            };
            if connection
                .send_oneway(&release, PendingReply::Released(some.to_vec()))
                .is_err()
            {
                self.leases.requeue(some.to_vec()); // Longer than a frame: cannot be, but then it waits.
            }
        }
        for message in std::mem::take(&mut self.outbox) {
            let _ = connection.send_back(&message);
        }
    }

    /// Takes a connection back, with what it knows about leases.
    pub(super) fn check_in(&mut self, mut connection: Connection) {
        let late = connection.settle();
        self.leases.return_unused(late.leases);
        self.outbox.extend(late.returns);
        let confirmed = connection.take_confirmed();
        self.leases.confirm(&confirmed);
        if connection.is_lost() {
            let unconfirmed = connection.unconfirmed();
            self.leases.requeue(unconfirmed);
        } else {
            connection.trim();
            self.idle.push(connection);
        }
    }

    /// Forgets a node that is gone. Returns what must be dropped after the lock is given back.
    #[must_use]
    pub(super) fn forget_node(&mut self) -> impl Sized + use<> {
        self.incarnation += 1;
        self.leases = Leases::new();
        self.outbox.clear();
        let segments = std::mem::replace(&mut self.segments, Segments::new());
        let mappings = std::mem::take(&mut self.buffer_mappings);
        self.generation = None;
        self.idle.append(&mut self.inherited);
        (
            self.link.take(),
            std::mem::take(&mut self.idle),
            segments,
            mappings,
        )
    }

    /// Enters a session. What was mapped of another node is forgotten; it is returned, to be dropped after
    /// the lock is given back.
    #[must_use]
    pub(super) fn enter(&mut self, link: Link) -> Option<impl Sized + use<>> {
        let is_other = self.generation.is_some_and(|known| known != link.generation);
        let forgotten = is_other.then(|| self.forget_node());
        self.generation = Some(link.generation);
        self.link = Some(link);
        forgotten
    }

    /// In a forked child: everything but leases and mapped segments is the parent's.
    pub(crate) fn leave_parent(&mut self) {
        self.process += 1;
        self.connecting = false;
        self.busy = 0;
        self.idle.clear();
        self.outbox.clear();
        self.leases.forget_returns();
    }
}
