//! Loops of one call over several threads: each takes the next item until none is left.
//!
//! The calling thread is one of them, and all end with the call. The first error is the result; it stops the
//! others between two items, and also where they wait for the node. An interrupt reaches the calling thread
//! only, so that thread also looks for it when it has run out of items ([`WorkerScope`]).

use std::sync::{Mutex, MutexGuard, PoisonError};

use forebay_core::{Error, Result};

use crate::client::Client;
use crate::worker_scope::WorkerScope;

/// Items that are left, and the result so far.
struct Queue<I> {
    items: I,
    result: Result<()>,
}

/// Calls `work` with each item, `threads` at a time. An interrupt of the client ends it.
pub fn for_each<T: Send>(
    client: Option<&Client>,
    items: Vec<T>,
    threads: usize,
    work: impl Fn(T) -> Result<()> + Sync,
) -> Result<()> {
    let threads = threads.min(items.len()).max(1);
    let queue = Mutex::new(Queue {
        items: items.into_iter(),
        result: Ok(()),
    });
    let workers = WorkerScope::default();
    let take = || {
        let mut queue = lock(&queue);
        let is_going = queue.result.is_ok();
        is_going.then(|| queue.items.next()).flatten()
    };
    let fail = |error: Error| {
        let mut queue = lock(&queue);
        if queue.result.is_ok() {
            queue.result = Err(error);
            workers.stop();
        }
    };
    let run = || {
        while let Some(item) = take() {
            work(item).unwrap_or_else(fail);
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
    queue.into_inner().unwrap_or_else(PoisonError::into_inner).result
}

/// Calls `work` with each item as [`for_each`] does, and returns the results in the order of the items.
pub fn map<T: Sync, R: Send>(
    client: Option<&Client>,
    items: &[T],
    threads: usize,
    work: impl Fn(&T) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let results: Mutex<Vec<Option<R>>> = Mutex::new(items.iter().map(|_| None).collect());
    for_each(
        client,
        items.iter().enumerate().collect(),
        threads,
        |(index, item)| {
            let done = work(item)?;
            if let Some(result) = lock(&results).get_mut(index) {
                *result = Some(done);
            }
            Ok(())
        },
    )?;
    let results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    Ok(results.into_iter().flatten().collect())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use forebay_core::Kind;

    use super::*;

    #[test]
    fn each_item_is_taken_once_and_the_first_error_stops() {
        let sum = AtomicUsize::new(0);
        let add = |item: usize| {
            sum.fetch_add(item, Ordering::Relaxed);
            Ok(())
        };
        for_each(None, (0..100).collect(), 4, add).unwrap();
        assert_eq!(sum.into_inner(), 4950);
        let done = AtomicUsize::new(0);
        let failed = for_each(None, (0..100).collect(), 1, |item: usize| {
            done.fetch_add(1, Ordering::Relaxed);
            match item {
                3 => Err(Error::new(Kind::Corrupt, "no")),
                _ => Ok(()),
            }
        });
        assert_eq!(failed.unwrap_err().kind(), Kind::Corrupt);
        assert_eq!(done.into_inner(), 4);
    }

    #[test]
    fn results_keep_the_order_of_the_items() {
        let items: Vec<u32> = (0..100).collect();
        let doubled = map(None, &items, 4, |item| Ok(item * 2)).unwrap();
        assert_eq!(doubled, items.iter().map(|item| item * 2).collect::<Vec<_>>());
    }
}
