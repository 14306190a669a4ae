//! Fork: a child holds the leases that it inherited from its first instruction on.
//!
//! `pthread_atfork` handlers are registered when the first client is made. Nothing happens at import or exec:
//! a child that execs loses every descriptor (`CLOEXEC`), and one made by `vfork` or `posix_spawn` runs no
//! handler and needs none.
//!
//! 1. *prepare*, in the parent before the fork: takes the list of clients, then the lock of each, in this
//!    order, so that no other thread is in the middle of anything. A client with live views opens a session
//!    for the child and lets it adopt all of them.
//! 2. *parent*: closes its copy of the child's connection and gives the locks back.
//! 3. *child*: takes that connection as its lifeline, lets go of all connections of its parent, and gives the
//!    locks back. The sockets that other threads of the parent were using are replaced by a dead one in
//!    place, so that their numbers stay taken.
//!
//! If the session cannot be opened (the node is overloaded or slow), the child keeps the parent's lifeline
//! open, and neither ever gives the leases of that moment back: the memory is held until both are gone, which
//! is safe. What the child asks later it asks in a session of its own, because of two processes in one
//! session each would give back what the other looks at. A node that is gone writes to nothing. The handlers
//! do not log and do not call the interrupt; the child's only frees memory, closes and duplicates
//! descriptors.
#![allow(
    unsafe_code,
    reason = "fork handlers, and guards that live from one to the next"
)]

use std::cell::RefCell;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError, Weak};
use std::time::Duration;

use forebay_core::{Error, Kind, Result};
use forebay_wire::objects;
use forebay_wire::objects::Handle;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::Pid;

use crate::local::{Connection, Link, Local, SessionState, dial};
use crate::wait::Wait;

/// Time that a fork may wait for the node.
const FORK_WAIT: Duration = Duration::from_secs(2);

/// Somebody who has something to do in the parent just before it forks.
pub trait BeforeFork: Send + Sync {
    /// Called on the thread that forks, before clients are made ready for it. It must not make or end a
    /// client.
    fn before_fork(&self);
}

static HOOKS: Mutex<Vec<Weak<dyn BeforeFork>>> = Mutex::new(Vec::new());
static CLIENTS: Mutex<Vec<Weak<Local>>> = Mutex::new(Vec::new());
static HANDLERS: Once = Once::new();

thread_local! {
    /// From *prepare* to *parent* or *child*, which run on the same thread.
    static FORKING: RefCell<Option<Forking>> = const { RefCell::new(None) };
}

struct Forking {
    clients: Vec<Prepared>,
    hooks: MutexGuard<'static, Vec<Weak<dyn BeforeFork>>>,
    /// Given back last.
    _list: MutexGuard<'static, Vec<Weak<Local>>>,
}

struct Prepared {
    /// Given back before the client itself is dropped.
    state: MutexGuard<'static, SessionState>,
    heir: Heir,
    /// A socket without another side.
    dead: Option<OwnedFd>,
    _local: Arc<Local>,
}

/// Inheritance of the child.
enum Heir {
    /// It has nothing to look at; it connects when it needs to.
    Nothing,
    /// A session of its own that shares all leases.
    Session(Box<Link>),
    /// The parent's session, for as long as the child lives; it asks nothing in it.
    Shared,
}

/// The process that listens at the other side, if it can be known.
///
/// A child of a process that runs a node holds copies of the node's sockets, among them the other side of its
/// own connections. So it would never see them hang up; it has to ask whether the process is there.
pub(crate) fn peer_process(socket: &OwnedFd) -> Option<Pid> {
    let mut peer = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let mut bytes = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `bytes` bytes to `peer`, which has so many.
    let answer = unsafe {
        let into = (&raw mut peer).cast();
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            into,
            &raw mut bytes,
        )
    };
    // 0 is a process of another PID namespace.
    Pid::from_raw(peer.pid).filter(|_| answer == 0)
}

/// Returns whether a process has ended and was reaped.
pub(crate) fn is_gone(process: Option<Pid>) -> bool {
    process.is_some_and(|process| rustix::process::test_kill_process(process) == Err(Errno::SRCH))
}

/// Makes a client ready for forks of this process.
pub(crate) fn watch(local: &Arc<Local>) {
    HANDLERS.call_once(|| {
        // SAFETY: the three handlers are functions without arguments that live as long as the program.
        unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) };
    });
    let mut clients = CLIENTS.lock().unwrap_or_else(PoisonError::into_inner);
    clients.retain(|client| client.strong_count() > 0);
    clients.push(Arc::downgrade(local));
}

/// Tells `who` of forks of this process, for as long as it lives and once there is a client.
pub fn tell_before_fork(who: &Weak<dyn BeforeFork>) {
    let mut hooks = HOOKS.lock().unwrap_or_else(PoisonError::into_inner);
    hooks.retain(|hook| hook.strong_count() > 0);
    hooks.push(Weak::clone(who));
}

extern "C" fn prepare() {
    let hooks = HOOKS.lock().unwrap_or_else(PoisonError::into_inner);
    for hook in hooks.iter().filter_map(Weak::upgrade) {
        hook.before_fork();
    }
    let list = CLIENTS.lock().unwrap_or_else(PoisonError::into_inner);
    let live: Vec<Arc<Local>> = list.iter().filter_map(Weak::upgrade).collect();
    let clients = live.into_iter().map(prepare_client).collect();
    let forking = Forking {
        clients,
        hooks,
        _list: list,
    };
    // Without thread-local storage (the thread is ending) the locks are given back at once; nothing better
    // can be done.
    let _ = FORKING.try_with(|cell| *cell.borrow_mut() = Some(forking));
}

fn prepare_client(local: Arc<Local>) -> Prepared {
    // SAFETY: the guard borrows from `*local`, which the same `Prepared` keeps alive and drops after the
    // guard.
    let mut state = unsafe {
        std::mem::transmute::<MutexGuard<'_, SessionState>, MutexGuard<'static, SessionState>>(local.state())
    };
    let heir = inherit(&local, &mut state);
    let pair = rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    );
    Prepared {
        state,
        heir,
        dead: pair.ok().map(|(one, _)| one),
        _local: local,
    }
}

fn inherit(local: &Local, state: &mut SessionState) -> Heir {
    let Some(generation) = state.generation else {
        return Heir::Nothing;
    };
    let handles: Vec<Handle> = state
        .leases
        .live()
        .map(|lease| Handle { generation, lease })
        .collect();
    if handles.is_empty() {
        return Heir::Nothing;
    }
    match open_for_child(local, generation, handles) {
        Ok(link) => Heir::Session(Box::new(link)),
        Err(_) => {
            state.leases.pin_live();
            Heir::Shared
        }
    }
}

/// A session that shares all these leases.
fn open_for_child(local: &Local, generation: u64, handles: Vec<Handle>) -> Result<Link> {
    let wait = Wait::at_most(FORK_WAIT, None);
    let (mut lifeline, welcome) = Connection::open(dial(local.path(), &wait)?, None, &wait)?;
    if welcome.generation != generation {
        return Err(Error::new(Kind::Unavailable, "the node was replaced by another"));
    }
    let answer = lifeline.ask(&objects::Request::Adopt { handles }, &wait)?;
    match answer {
        // One that is not shared any more has ended at the node, which never writes to its memory again.
        objects::Answer::Adopted(_) => Ok(Link {
            s3: welcome.s3,
            lifeline,
            session: welcome.session,
            generation,
        }),
        other => Err(lifeline.misunderstood(&other)),
    }
}

extern "C" fn parent() {
    let _ = FORKING.try_with(|cell| drop(cell.borrow_mut().take()));
}

extern "C" fn child() {
    let forking = FORKING.try_with(|cell| cell.borrow_mut().take());
    let Ok(Some(mut forking)) = forking else {
        return;
    };
    // They are the parent's: a thread that is not here may have held a lock of theirs, which a fork of this
    // child would wait for.
    forking.hooks.clear();
    for client in &mut forking.clients {
        let heir = std::mem::replace(&mut client.heir, Heir::Nothing);
        become_child(&mut client.state, heir, client.dead.as_ref());
    }
}

fn become_child(state: &mut SessionState, heir: Heir, dead: Option<&OwnedFd>) {
    state.leave_parent();
    match heir {
        Heir::Nothing => {
            state.link = None;
            state.inherited.clear();
        }
        Heir::Session(link) => {
            state.link = Some(*link);
            state.inherited.clear();
        }
        Heir::Shared => {
            let lifeline = state.link.take().map(|link| link.lifeline);
            state.inherited.extend(lifeline);
        }
    }
    let lifelines = state.link.iter().map(|link| &link.lifeline);
    let kept: Vec<_> = lifelines
        .chain(&state.inherited)
        .map(|connection| Arc::clone(connection.socket()))
        .collect();
    for socket in state.sockets.iter().filter_map(Weak::upgrade) {
        let is_kept = kept.iter().any(|kept| Arc::ptr_eq(kept, &socket));
        let Some(dead) = dead.filter(|_| !is_kept) else {
            continue;
        };
        // SAFETY: both are open descriptors; the number stays valid for its owner, which finds a dead socket
        // behind it.
        unsafe { libc::dup3(dead.as_raw_fd(), socket.as_raw_fd(), libc::O_CLOEXEC) };
    }
    state.sockets = kept.iter().map(Arc::downgrade).collect();
}
