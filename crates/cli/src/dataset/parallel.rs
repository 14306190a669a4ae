//! A few threads that take one thing after the other.
//!
//! The calling thread is one of them; all end with the call. The first error stops the others between two things and is the result.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use forebay_core::Result;
use parking_lot::Mutex;

/// Does something with each, `jobs` at a time, and gives the results in the order of the things.
pub(crate) fn each<T: Sync, R: Send>(
    things: &[T],
    jobs: usize,
    work: impl Fn(&T) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let next = AtomicUsize::new(0);
    let stopped = AtomicBool::new(false);
    let results: Mutex<Result<Vec<Option<R>>>> = Mutex::new(Ok(things.iter().map(|_| None).collect()));
    let run = || {
        while !stopped.load(Ordering::Relaxed) {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(thing) = things.get(number) else { return };
            let done = work(thing);
            let mut results = results.lock();
            match (done, results.as_mut()) {
                (Ok(done), Ok(all)) => all[number] = Some(done),
                (Err(error), Ok(_)) => {
                    *results = Err(error);
                    stopped.store(true, Ordering::Relaxed);
                }
                (_, Err(_)) => {}
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..jobs.min(things.len()) {
            scope.spawn(run);
        }
        run();
    });
    Ok(results.into_inner()?.into_iter().flatten().collect())
}

#[cfg(test)]
mod tests {
    use forebay_core::{Error, Kind};

    use super::*;

    #[test]
    fn results_keep_their_order_and_the_first_error_stops() {
        let things: Vec<u32> = (0..100).collect();
        let doubled = each(&things, 4, |thing| Ok(thing * 2)).unwrap();
        assert_eq!(doubled, things.iter().map(|thing| thing * 2).collect::<Vec<_>>());
        let done = AtomicUsize::new(0);
        let failed = each(&things, 1, |thing| {
            done.fetch_add(1, Ordering::Relaxed);
            if *thing == 3 {
                Err(Error::new(Kind::Corrupt, "no"))
            } else {
                Ok(())
            }
        });
        assert_eq!(failed.unwrap_err().kind(), Kind::Corrupt);
        assert_eq!(done.into_inner(), 4);
    }
}
