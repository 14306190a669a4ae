//! A connection for each call: an idle one, a new one of the same session, or the first one of a new session.
//!
//! A call whose connection breaks is asked again once if that does no harm. Whether the node itself is gone
//! is what the lifeline says. A node that was there before gets some time to come back (`reconnect_wait`);
//! one that never was is an error at once.

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_core::{Error, Kind, Result};
use forebay_wire as wire;
use forebay_wire::session::Welcome;

use super::connection::{Connection, dial};
use super::session::{Link, Local, SessionState};
use crate::stats::add;
use crate::wait::{WAIT_SLICE, Wait};

/// Connections that wait for a call, at most; more are closed.
const IDLE_MAX: usize = 16;

/// Pause before looking again for a node that is gone.
const RECONNECT_PAUSE: Duration = Duration::from_millis(20);

/// Policy for a call whose connection broke in the middle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Retry {
    /// Sending it twice is as good as once.
    Idempotent,
    /// It may have been done.
    Never,
}

/// A connection while a call uses it; goes back when dropped.
pub(super) struct PooledConnection<'a> {
    local: &'a Local,
    inner: Option<Connection>,
    /// The session's incarnation it belongs to.
    pub(super) incarnation: u64,
    /// The node's incarnation.
    pub(super) generation: u64,
    process: u32,
}

impl PooledConnection<'_> {
    /// The process it was taken in.
    pub(super) fn process(&self) -> u32 {
        self.process
    }

    /// The connection itself.
    pub(super) fn inner(&mut self) -> &mut Connection {
        self.inner.as_mut().expect("it is there until the drop")
    }

    /// Sends a request, with what is to be given back in front of it, and waits for the answer.
    pub(super) fn ask<R: wire::Request>(&mut self, request: &R, wait: &Wait) -> Result<R::Answer> {
        let local = self.local;
        let connection = self.inner();
        local.state().load(connection);
        let since = Instant::now();
        let answer = connection.ask(request, wait);
        local.counters.count_wait(since);
        answer
    }
}

impl Drop for PooledConnection<'_> {
    fn drop(&mut self) {
        let Some(connection) = self.inner.take() else {
            return;
        };
        let mut state = self.local.state();
        let mut surplus = None;
        if (state.incarnation, state.process) == (self.incarnation, self.process) {
            state.busy -= 1;
            state.check_in(connection);
            if state.idle.len() > IDLE_MAX {
                surplus = state.take_surplus();
            }
            state.flush_when_due();
        } else {
            surplus = Some(connection);
        }
        drop(state);
        drop(surplus);
        self.local.changed.notify_one();
    }
}

impl SessionState {
    /// An idle connection too many: one that could be used, if there is one. A late answer on the other kind
    /// may still bring leases.
    fn take_surplus(&mut self) -> Option<Connection> {
        let index = self.idle.iter().position(|idle| !idle.is_occupied()).unwrap_or(0);
        let mut surplus = self.idle.swap_remove(index);
        let unconfirmed = surplus.unconfirmed();
        self.leases.requeue(unconfirmed);
        Some(surplus)
    }

    /// An idle connection that can be used at once.
    fn take_idle(&mut self) -> Option<Connection> {
        self.settle_occupied();
        let index = self.idle.iter().rposition(|idle| !idle.is_occupied())?;
        Some(self.idle.swap_remove(index))
    }

    /// Looks at connections on which a request was given up: an answer that came late may have brought
    /// leases.
    fn settle_occupied(&mut self) {
        for index in (0..self.idle.len()).rev() {
            if self.idle[index].is_occupied() {
                let occupied = self.idle.swap_remove(index);
                self.check_in(occupied);
            }
        }
    }
}

impl Local {
    /// Asks one request whose answer is whole in itself.
    pub(super) fn call<R: wire::Request>(&self, request: &R, retry: Retry) -> Result<R::Answer> {
        let wait = Wait::start(&self.options);
        self.with_connection(retry, &wait, |connection| connection.ask(request, &wait))
    }

    /// Does something with a connection; once more with another one if the first broke and that is harmless.
    pub(super) fn with_connection<T>(
        &self,
        retry: Retry,
        wait: &Wait,
        mut work: impl FnMut(&mut PooledConnection<'_>) -> Result<T>,
    ) -> Result<T> {
        let mut tries = if retry == Retry::Idempotent { 2 } else { 1 };
        loop {
            tries -= 1;
            let mut connection = self.take(wait)?;
            let result = work(&mut connection);
            if connection.inner().is_lost() {
                let incarnation = connection.incarnation;
                drop(connection);
                self.look_after(incarnation);
                let broke = result
                    .as_ref()
                    .is_err_and(|error| error.kind() == Kind::Unavailable);
                if broke && tries > 0 {
                    continue;
                }
            }
            return result.map_err(|error| self.name_node(error));
        }
    }

    fn name_node(&self, error: Error) -> Error {
        let said = error.context().any(|(name, _)| name == "socket");
        match error.kind() {
            Kind::Unavailable | Kind::Timeout | Kind::Corrupt if !said => {
                error.with("socket", self.path.display())
            }
            _ => error,
        }
    }

    /// Opens the session if there is none; for `connect`, which wants to know at once.
    pub(crate) fn greet(&self) -> Result<()> {
        let wait = Wait::start(&self.options);
        self.take(&wait).map(drop)
    }

    fn take(&self, wait: &Wait) -> Result<PooledConnection<'_>> {
        let reconnect = wait.shortened(self.options.reconnect_wait);
        let mut state = self.state();
        loop {
            let found = state.link.as_ref().map(|link| (link.session, link.generation));
            if let Some((session, generation)) = found {
                if let Some(connection) = state.take_idle() {
                    return Ok(self.lend(&mut state, connection, generation));
                }
                if state.busy < self.options.connections_max.max(1) {
                    state.busy += 1;
                    let (incarnation, process) = (state.incarnation, state.process);
                    drop(state);
                    let joined = self.join(session, generation, wait);
                    state = self.state();
                    if (state.incarnation, state.process) != (incarnation, process) {
                        continue;
                    }
                    state.busy -= 1;
                    match joined {
                        Ok(connection) => return Ok(self.lend(&mut state, connection, generation)),
                        // Whoever listens there does not know the session: its node is gone, whatever the
                        // lifeline says.
                        Err(error) if error.kind() == Kind::NotFound => {
                            drop(state);
                            self.forget(incarnation);
                            reconnect.check().map_err(|_| error)?;
                            state = self.state();
                        }
                        Err(error) if error.kind() != Kind::Unavailable => return Err(error),
                        Err(error) => {
                            drop(state);
                            self.look_after(incarnation);
                            reconnect.pause(RECONNECT_PAUSE).map_err(|_| error)?;
                            state = self.state();
                        }
                    }
                    continue;
                }
            } else if !state.connecting {
                state.connecting = true;
                let (first, process) = (state.incarnation == 0, state.process);
                drop(state);
                let opened = self.open_session(first, &reconnect);
                state = self.state();
                if state.process == process {
                    state.connecting = false;
                    self.changed.notify_all();
                    let forgotten = state.enter(opened?);
                    drop(state);
                    drop(forgotten);
                    state = self.state();
                }
                continue;
            }
            drop(self.changed.wait_timeout(state, WAIT_SLICE));
            // Without the lock: the interrupt may wait for somebody who wants it (in Python: for whoever has
            // the interpreter and drops a view).
            wait.check()?;
            state = self.state();
        }
    }

    fn lend(
        &self,
        state: &mut SessionState,
        connection: Connection,
        generation: u64,
    ) -> PooledConnection<'_> {
        state.busy += 1;
        PooledConnection {
            local: self,
            inner: Some(connection),
            incarnation: state.incarnation,
            generation,
            process: state.process,
        }
    }

    /// Notices that the node is gone.
    fn look_after(&self, incarnation: u64) {
        let is_gone = |link: &Link| link.lifeline.is_hung_up();
        if self.state().link.as_ref().is_some_and(is_gone) {
            self.forget(incarnation);
        }
    }

    /// Forgets the node of this incarnation, which is gone.
    fn forget(&self, incarnation: u64) {
        let mut state = self.state();
        if state.incarnation == incarnation && state.link.is_some() {
            let old = state.forget_node();
            state.busy = 0;
            drop(state);
            drop(old);
            add(&self.counters.reconnects, 1);
            self.changed.notify_all();
            tracing::debug!(socket = %self.path.display(), "node is gone");
        }
    }

    /// A further connection of the session.
    fn join(&self, session: [u8; 16], generation: u64, wait: &Wait) -> Result<Connection> {
        let (connection, welcome) = self.open(Some(session), wait)?;
        if welcome.generation == generation {
            return Ok(connection);
        }
        Err(Error::new(Kind::Unavailable, "the node was replaced by another")
            .with("socket", self.path.display()))
    }

    /// The first connection of a new session. A node that was there before may take a moment to come back.
    fn open_session(&self, first: bool, wait: &Wait) -> Result<Link> {
        loop {
            match self.open(None, wait) {
                Ok((lifeline, welcome)) => {
                    return Ok(Link {
                        lifeline,
                        session: welcome.session,
                        generation: welcome.generation,
                        s3: welcome.s3,
                    });
                }
                Err(error) if error.kind() == Kind::Unavailable && !first => {
                    wait.pause(RECONNECT_PAUSE).map_err(|stop| match stop.kind() {
                        Kind::Cancelled => stop,
                        _ => error,
                    })?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn open(&self, session: Option<[u8; 16]>, wait: &Wait) -> Result<(Connection, Welcome)> {
        let socket = dial(&self.path, wait)?;
        {
            let mut state = self.state();
            state.sockets.retain(|socket| socket.strong_count() > 0);
            state.sockets.push(Arc::downgrade(&socket));
        }
        Connection::open(socket, session, wait).map_err(|error| self.name_node(error))
    }
}
