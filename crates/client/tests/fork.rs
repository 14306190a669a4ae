//! Fork: a child holds what it inherited, has connections of its own, and its death is seen.
#![allow(unsafe_code, reason = "fork itself")]
#![allow(clippy::unwrap_used, reason = "a failure here is the failure of a test")]

mod fixture;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use fixture::{Answer, FakeNode, Folder, Reply, Request, connect, item, name, pattern, until};
use forebay_client::{BeforeFork, ItemRange, View, ViewHandle, tell_before_fork};
use forebay_core::{Error, Kind};
use forebay_wire::Failure;
use forebay_wire::{objects, session};

/// One test at a time, also where all are threads of one process: a child inherits the pipes and sockets of
/// every test that runs then, and keeps them open.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `work` in a forked child; the child ends with 0 if it returns `true`.
fn fork(work: impl FnOnce() -> bool) -> libc::pid_t {
    // SAFETY: the child runs `work` and ends by `_exit`, without unwinding into the test harness.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork failed");
    if pid == 0 {
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(!matches!(result, Ok(true)))) };
    }
    pid
}

fn wait_for(pid: libc::pid_t) -> i32 {
    let mut status = 0;
    // SAFETY: waits for our own child.
    let reaped = unsafe { libc::waitpid(pid, &raw mut status, 0) };
    assert_eq!(reaped, pid);
    status
}

/// A pipe by which the parent tells the child to go on.
struct Signal {
    read: std::io::PipeReader,
    write: std::io::PipeWriter,
}

impl Signal {
    fn new() -> Self {
        let (read, write) = std::io::pipe().unwrap();
        Self { read, write }
    }

    /// In the child: closes its copy of the writing side, then waits until the parent drops the signal.
    fn wait(&self) {
        use std::io::Read as _;
        use std::os::fd::AsRawFd as _;
        // SAFETY: the child ends by `_exit`, so the owner of this descriptor never closes it a second time.
        unsafe { libc::close(self.write.as_raw_fd()) };
        let _ = (&self.read).read(&mut [0]);
    }
}

#[test]
fn a_child_holds_the_view_it_inherited_after_its_parent_let_go() {
    let _alone = alone();
    let node = FakeNode::start();
    let content = pattern(1, 100_000);
    node.books().add_object("a", &content);
    let client = connect(&node);
    let view = client.get(&name("a"), ItemRange::Whole, None).unwrap();
    let signal = Signal::new();
    let pid = fork(|| {
        signal.wait();
        view[..] == content[..]
    });
    assert_eq!(node.sessions(), 2);
    assert_eq!(node.books().holders(), 2);
    drop(view);
    until("the parent let go", || node.books().holders() == 1);
    drop(signal);
    assert_eq!(wait_for(pid), 0);
    until("the child's share ended with it", || node.books().holders() == 0);
    until("the child's session ended with it", || node.sessions() == 1);
}

/// Somebody who gives its view back before the process forks.
struct Keeper(Mutex<Option<View>>);

impl BeforeFork for Keeper {
    fn before_fork(&self) {
        drop(self.0.lock().unwrap().take());
    }
}

#[test]
fn what_is_given_back_before_a_fork_is_not_the_childs() {
    let _alone = alone();
    let node = FakeNode::start();
    node.books().add_object("a", &pattern(1, 100_000));
    let client = connect(&node);
    let view = client.get(&name("a"), ItemRange::Whole, None).unwrap();
    let keeper = Arc::new(Keeper(Mutex::new(Some(view))));
    let weak: Weak<Keeper> = Arc::downgrade(&keeper);
    tell_before_fork(&(weak as Weak<dyn BeforeFork>));
    let signal = Signal::new();
    let pid = fork(|| {
        signal.wait();
        // The hook is the parent's; a fork of the child does not wait for it.
        let held = keeper.0.lock();
        let grandchild = fork(|| true);
        drop(held);
        wait_for(grandchild) == 0
    });
    assert!(keeper.0.lock().unwrap().is_none());
    until("nobody holds it while the child lives", || {
        node.books().holders() == 0
    });
    drop(signal);
    assert_eq!(wait_for(pid), 0);
}

#[test]
fn a_child_asks_by_connections_of_its_own() {
    let _alone = alone();
    let node = FakeNode::start();
    node.books().add_object("a", &pattern(2, 5000));
    let client = connect(&node);
    let view = client.get(&name("a"), ItemRange::Whole, None).unwrap();
    let pid = fork(|| {
        (0..50).all(|_| {
            client
                .get(&name("a"), ItemRange::Whole, None)
                .is_ok_and(|got| got[..] == view[..])
        }) && client.stats().reconnects == 0
    });
    for _ in 0..50 {
        assert_eq!(
            &client.get(&name("a"), ItemRange::Whole, None).unwrap()[..],
            &view[..]
        );
    }
    assert_eq!(wait_for(pid), 0);
}

#[test]
fn a_child_without_views_connects_when_it_needs_to() {
    let _alone = alone();
    let node = FakeNode::start();
    node.books().add_object("a", &pattern(3, 5000));
    let client = connect(&node);
    let idle = fork(|| true);
    assert_eq!(wait_for(idle), 0);
    assert!(
        !node
            .books()
            .log
            .iter()
            .any(|request| matches!(request, Request::Objects(objects::Request::Adopt { .. })))
    );
    let pid = fork(|| {
        client
            .get(&name("a"), ItemRange::Whole, None)
            .is_ok_and(|view| view[..] == pattern(3, 5000))
    });
    assert_eq!(wait_for(pid), 0);
    client.ping().unwrap();
}

#[test]
fn a_killed_child_loses_its_share() {
    let _alone = alone();
    let node = FakeNode::start();
    node.books().add_object("a", &pattern(4, 5000));
    let client = connect(&node);
    let view = client.get(&name("a"), ItemRange::Whole, None).unwrap();
    let pid = fork(|| {
        loop {
            std::thread::park();
        }
    });
    assert_eq!(node.books().holders(), 2);
    // SAFETY: kills our own child.
    unsafe { libc::kill(pid, libc::SIGKILL) };
    wait_for(pid);
    until("only the parent holds it", || node.books().holders() == 1);
    drop(view);
}

#[test]
fn a_fork_in_the_middle_of_another_threads_call_hangs_nobody() {
    let _alone = alone();
    let node = FakeNode::start();
    node.books().add_object("a", &pattern(5, 5000));
    let client = connect(&node);
    let view = client.get(&name("a"), ItemRange::Whole, None).unwrap();
    let seen = Arc::new(AtomicBool::new(false));
    let stalled = Arc::clone(&seen);
    node.hook(move |request| {
        let batch =
            matches!(request, Request::Objects(objects::Request::Read { items, .. }) if items.len() == 2);
        stalled.fetch_or(batch, Ordering::SeqCst);
        batch.then_some(Reply::AfterGate)
    });
    let reading = client.clone();
    let reader = std::thread::spawn(move || reading.get_batch(vec![item("a"), item("a")]));
    until("the read is stalled", || seen.load(Ordering::SeqCst));
    let pid = fork(|| {
        client
            .get(&name("a"), ItemRange::Whole, None)
            .is_ok_and(|got| got[..] == view[..])
    });
    assert_eq!(wait_for(pid), 0);
    node.open_gate();
    let views = reader.join().unwrap().unwrap();
    assert_eq!(&views[1].as_ref().unwrap()[..], &view[..]);
}

#[test]
fn when_the_child_cannot_have_a_session_its_leases_are_never_given_back() {
    let _alone = alone();
    let node = FakeNode::start();
    node.books().add_object("a", &pattern(6, 5000));
    let client = connect(&node);
    let view = client.get(&name("a"), ItemRange::Whole, None).unwrap();
    node.hook(|request| {
        let busy = Failure::from(&Error::new(Kind::Busy, "too many sessions"));
        let opens =
            matches!(request, Request::Session(session::Request::Hello(hello)) if hello.session.is_none());
        opens.then(|| Reply::Answer(Answer::Failed(busy), None))
    });
    let signal = Signal::new();
    let pid = fork(|| {
        signal.wait();
        view[..] == pattern(6, 5000)
    });
    node.unhook();
    drop(view);
    client.ping().unwrap();
    client.get(&name("a"), ItemRange::Whole, None).unwrap();
    client.ping().unwrap();
    assert_eq!(node.books().holders(), 1, "the child may still look at it");
    drop(signal);
    assert_eq!(wait_for(pid), 0);
    drop(client);
    until("the session ends with both", || node.books().holders() == 0);
}

#[test]
fn a_grandchild_holds_what_it_inherited() {
    let _alone = alone();
    let node = FakeNode::start();
    node.books().add_object("a", &pattern(7, 5000));
    let client = connect(&node);
    let view = client.get(&name("a"), ItemRange::Whole, None).unwrap();
    let pid = fork(|| {
        let pid = fork(|| view[..] == pattern(7, 5000) && client.ping().is_ok());
        wait_for(pid) == 0 && client.ping().is_ok()
    });
    assert_eq!(wait_for(pid), 0);
    until("only the parent holds it", || node.books().holders() == 1);
    drop(view);
    until("nobody holds it", || node.books().holders() == 0);
}

#[test]
fn a_buffer_of_the_parent_cannot_be_put_by_the_child() {
    let _alone = alone();
    use forebay_client::{PutOptions, PutSource};
    let node = FakeNode::start();
    let client = connect(&node);
    let buffer = client.alloc(100).unwrap();
    let mut buffer = Some(buffer);
    let pid = fork(|| {
        let source = PutSource::Buffer(buffer.take().unwrap());
        client
            .put(&name("a"), source, PutOptions::default())
            .is_err_and(|error| error.kind() == Kind::Unavailable)
    });
    assert_eq!(wait_for(pid), 0);
    assert_eq!(node.books().buffers.len(), 1, "it is still the parent's");
    client
        .put(
            &name("a"),
            PutSource::Buffer(buffer.take().unwrap()),
            PutOptions::default(),
        )
        .unwrap();
}

#[test]
fn a_child_that_meets_another_node_forgets_what_its_parent_mapped() {
    let _alone = alone();
    let folder = Folder::new();
    let mut node = FakeNode::start_at(&folder.socket(), 1);
    node.books().add_object("a", &pattern(8, 5000));
    let client = connect(&node);
    let first = client.get(&name("a"), ItemRange::Whole, None).unwrap();
    let segment = first.handle();
    drop(first);
    node.stop();
    let node = FakeNode::start_at(&folder.socket(), 2);
    node.books().next = 1000; // Every node begins to count anew.
    node.books().add_object("a", &pattern(9, 5000));
    let pid = fork(|| {
        client
            .get(&name("a"), ItemRange::Whole, None)
            .is_ok_and(|view| view.handle() != segment && view[..] == pattern(9, 5000))
    });
    assert_eq!(wait_for(pid), 0);
}

#[test]
fn a_child_without_a_session_of_its_own_does_not_ask_in_that_of_its_parent() {
    let _alone = alone();
    let node = FakeNode::start();
    node.books().add_object("a", &pattern(10, 5000));
    let client = connect(&node);
    let view = client.get(&name("a"), ItemRange::Whole, None).unwrap();
    let refused = Arc::new(AtomicBool::new(false));
    let refuse_once = Arc::clone(&refused);
    node.hook(move |request| {
        let busy = Failure::from(&Error::new(Kind::Busy, "too many sessions"));
        let opens =
            matches!(request, Request::Session(session::Request::Hello(hello)) if hello.session.is_none());
        let refuses = opens && !refuse_once.swap(true, Ordering::SeqCst);
        refuses.then(|| Reply::Answer(Answer::Failed(busy), None))
    });
    let (mut read, mut write) = std::io::pipe().unwrap();
    let signal = Signal::new();
    let pid = fork(|| {
        let fresh = client.get(&name("a"), ItemRange::Whole, None);
        let handle = fresh
            .as_ref()
            .map_or(Vec::new(), |view| view.handle().encode().unwrap());
        std::io::Write::write_all(&mut write, &handle).unwrap();
        // SAFETY: the child ends by `_exit`, so the owner of this descriptor never closes it a second time.
        unsafe { libc::close(std::os::fd::AsRawFd::as_raw_fd(&write)) };
        signal.wait();
        fresh.is_ok_and(|fresh| fresh[..] == view[..])
    });
    drop(write);
    let mut handle = Vec::new();
    std::io::Read::read_to_end(&mut read, &mut handle).unwrap();
    assert!(refused.load(Ordering::SeqCst));
    let handle = ViewHandle::decode(&handle).unwrap();
    let shared = client.open_handle(&handle).unwrap();
    assert_eq!(
        node.books().holders(),
        3,
        "the first view, and both processes of the second"
    );
    drop(shared);
    client.ping().unwrap();
    until("the parent let go of its share", || node.books().holders() == 2);
    drop(signal);
    assert_eq!(wait_for(pid), 0);
    until("the child's share ended with it", || node.books().holders() == 1);
    assert_eq!(view[..], pattern(10, 5000));
}
