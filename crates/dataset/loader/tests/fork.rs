//! Fork: a loader that a child inherits goes on where it stood, with threads of its own.
#![allow(unsafe_code, reason = "fork itself")]

mod fixture;

use fixture::{TestNode, numbers, rest};
use forebay_dataset::order::{Shuffle, Window};
use forebay_loader::LoaderOptions;

/// Runs `work` in a forked child; whether it returned `true` there.
fn forked(work: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child runs `work` and ends by `_exit`, without unwinding into the test harness.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork failed");
    if pid == 0 {
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(!matches!(result, Ok(true)))) };
    }
    let mut status = 0;
    // SAFETY: waits for our own child.
    let reaped = unsafe { libc::waitpid(pid, &raw mut status, 0) };
    assert_eq!(reaped, pid);
    status == 0
}

#[test]
fn a_child_and_its_parent_both_go_on_where_the_loader_stood() {
    let node = TestNode::start();
    node.shards("set", &[40, 40]);
    let dataset = node.open("lake/set/");
    let options = LoaderOptions {
        batch_size: 8,
        shuffle: Shuffle::Window(Window::samples(32)),
        ..LoaderOptions::default()
    };
    let whole = rest(&mut dataset.loader(options.clone()).unwrap());
    let mut loader = dataset.loader(options).unwrap();
    for step in 0..9 {
        let inherited = &mut loader;
        let expected = &whole[step..];
        assert!(forked(|| rest(inherited) == expected), "step {step}");
        let batch = loader.next_batch().unwrap().unwrap();
        assert_eq!(numbers(&batch), whole[step]);
    }
}
