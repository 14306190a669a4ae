//! A few threads that take one thing after the other from a list.
//!
//! The calling thread is one of them; all end with the call. The first error is the result and stops the
//! others, also where they wait for the node. An interrupt reaches the calling thread only, which therefore
//! looks for it also when it has run out of things (`WorkerScope`).

use forebay_client::{Client, WorkerScope};
use forebay_core::{Error, Result};
use parking_lot::Mutex;

/// State that the threads share.
struct Shared<T> {
    things: std::vec::IntoIter<T>,
    result: Result<()>,
}

/// Does something with each thing, `threads` at a time. An interrupt of the client ends it.
pub(crate) fn each<T: Send>(
    client: Option<&Client>,
    things: Vec<T>,
    threads: usize,
    work: impl Fn(T) -> Result<()> + Sync,
) -> Result<()> {
    let threads = threads.min(things.len()).max(1);
    let shared = Mutex::new(Shared {
        things: things.into_iter(),
        result: Ok(()),
    });
    let workers = WorkerScope::default();
    let take = || {
        let mut shared = shared.lock();
        let is_going = shared.result.is_ok();
        is_going.then(|| shared.things.next()).flatten()
    };
    let fail = |error: Error| {
        let mut shared = shared.lock();
        if shared.result.is_ok() {
            shared.result = Err(error);
            workers.stop();
        }
    };
    let run = || {
        while let Some(thing) = take() {
            work(thing).unwrap_or_else(fail);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads {
            let worker = workers.worker();
            scope.spawn(|| worker.run(run));
        }
        run();
        workers
            .wait(|| client.map_or(Ok(()), Client::check_interrupt))
            .unwrap_or_else(fail);
    });
    shared.into_inner().result
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::time::{Duration, Instant};

    use forebay_client::{ClientOptions, SaveOptions};
    use forebay_core::Kind;
    use forebay_node::{EmbeddedNode, EmbeddedOptions};

    use super::*;

    #[test]
    fn each_thing_is_taken_once_and_the_first_error_stops() {
        let sum = AtomicUsize::new(0);
        let add = |thing: usize| {
            sum.fetch_add(thing, Ordering::Relaxed);
            Ok(())
        };
        each(None, (0..100).collect(), 4, add).unwrap();
        assert_eq!(sum.into_inner(), 4950);
        let done = AtomicUsize::new(0);
        let failed = each(None, (0..100).collect(), 1, |thing: usize| {
            done.fetch_add(1, Ordering::Relaxed);
            match thing {
                3 => Err(Error::new(Kind::Corrupt, "no")),
                _ => Ok(()),
            }
        });
        assert_eq!(failed.unwrap_err().kind(), Kind::Corrupt);
        assert_eq!(done.into_inner(), 4);
    }

    #[test]
    fn a_caller_that_has_run_out_of_things_hears_the_interrupt_while_a_helper_waits_for_the_node() {
        let dir = tempfile::tempdir().unwrap();
        let node = EmbeddedNode::start(EmbeddedOptions {
            ram_bytes: Some(64 << 20),
            data_dir: Some(dir.path().join("data")),
            ..EmbeddedOptions::default()
        })
        .unwrap();
        // As in Python, where a signal is noticed by the main thread alone.
        let caller = std::thread::current().id();
        let is_caller = move || std::thread::current().id() == caller;
        let helper_waits = Arc::new(AtomicBool::new(false));
        let waits = Arc::clone(&helper_waits);
        let client = Client::connect(ClientOptions {
            address: Some(node.socket().display().to_string()),
            interrupt: Some(Arc::new(move || is_caller() && waits.load(Ordering::SeqCst))),
            ..ClientOptions::default()
        })
        .unwrap();
        client.create_bucket("lake").unwrap();
        let never_ends = client
            .begin_save(SaveOptions::new("forebay://lake/run", 1))
            .unwrap();
        let start = Instant::now();
        let interrupted = each(Some(&client), vec![(), ()], 2, |()| {
            if is_caller() {
                while !helper_waits.load(Ordering::SeqCst) {
                    std::thread::yield_now();
                }
                return Ok(());
            }
            helper_waits.store(true, Ordering::SeqCst);
            client
                .wait_save(never_ends.id(), Duration::from_secs(60))
                .map(drop)
        });
        assert_eq!(interrupted.unwrap_err().kind(), Kind::Cancelled);
        assert!(
            start.elapsed() < Duration::from_secs(30),
            "nobody waited for the node"
        );
    }
}
