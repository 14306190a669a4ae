//! A few threads that take one thing after the other from a list.
//!
//! The calling thread is one of them; all end with the call. The first error is the result and stops the others, also where they wait for the node: an
//! interrupt reaches the calling thread only, and must not have to wait for answers that the others wait for.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_client::stop_this_thread_by;
use forebay_core::Result;
use parking_lot::Mutex;

/// What the threads share.
struct Shared<T> {
    things: std::vec::IntoIter<T>,
    result: Result<()>,
}

/// Does something with each thing, `threads` at a time.
pub(crate) fn each<T: Send>(
    things: Vec<T>,
    threads: usize,
    work: impl Fn(T) -> Result<()> + Sync,
) -> Result<()> {
    let threads = threads.min(things.len()).max(1);
    let shared = Mutex::new(Shared {
        things: things.into_iter(),
        result: Ok(()),
    });
    let stop = Arc::new(AtomicBool::new(false));
    let take = || {
        let mut shared = shared.lock();
        let is_going = shared.result.is_ok();
        is_going.then(|| shared.things.next()).flatten()
    };
    let run = || {
        while let Some(thing) = take() {
            if let Err(error) = work(thing) {
                let mut shared = shared.lock();
                if shared.result.is_ok() {
                    shared.result = Err(error);
                    stop.store(true, Ordering::Relaxed);
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(|| {
                stop_this_thread_by(&stop);
                run();
            });
        }
        run();
    });
    shared.into_inner().result
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use forebay_core::{Error, Kind};

    use super::*;

    #[test]
    fn each_thing_is_taken_once_and_the_first_error_stops() {
        let sum = AtomicUsize::new(0);
        let add = |thing: usize| {
            sum.fetch_add(thing, Ordering::Relaxed);
            Ok(())
        };
        each((0..100).collect(), 4, add).unwrap();
        assert_eq!(sum.into_inner(), 4950);
        let done = AtomicUsize::new(0);
        let failed = each((0..100).collect(), 1, |thing: usize| {
            done.fetch_add(1, Ordering::Relaxed);
            match thing {
                3 => Err(Error::new(Kind::Corrupt, "no")),
                _ => Ok(()),
            }
        });
        assert_eq!(failed.unwrap_err().kind(), Kind::Corrupt);
        assert_eq!(done.into_inner(), 4);
    }
}
