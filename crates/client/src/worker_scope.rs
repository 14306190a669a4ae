//! Threads that work for one call beside the thread that makes it.
//!
//! An interrupt reaches the calling thread only: Python delivers signals to its main thread. So that thread
//! never sits in a join while others wait for the node: out of work it waits here, looks at the interrupt
//! every 100 ms, and stops the others, also where they wait.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use forebay_core::Result;

use crate::wait::{WAIT_SLICE, stop_this_thread_by};

/// The threads that help with one call.
#[derive(Debug, Default)]
pub struct WorkerScope {
    stop: Arc<AtomicBool>,
    at_work: Mutex<usize>,
    one_ended: Condvar,
}

/// The place of one helper. Dropping it says that the helper has ended.
#[derive(Debug)]
pub struct Worker<'a> {
    scope: &'a WorkerScope,
}

impl WorkerScope {
    /// A place for one more helper; taken by the calling thread before it starts the helper, so that
    /// [`Self::wait`] knows of it.
    pub fn worker(&self) -> Worker<'_> {
        *self.at_work() += 1;
        Worker { scope: self }
    }

    /// Ends what helpers wait for: the call has failed.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Returns whether the call has failed.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Waits until all helpers have ended. An error of `check`, which is asked every 100 ms, stops them and
    /// is the result.
    pub fn wait(&self, check: impl Fn() -> Result<()>) -> Result<()> {
        let mut at_work = self.at_work();
        while *at_work > 0 {
            // An interrupt may need what a helper has: no lock is held while it is asked.
            drop(at_work);
            check().inspect_err(|_| self.stop())?;
            at_work = self.at_work();
            if *at_work > 0 {
                let waited = self.one_ended.wait_timeout(at_work, WAIT_SLICE);
                (at_work, _) = waited.unwrap_or_else(PoisonError::into_inner);
            }
        }
        Ok(())
    }

    fn at_work(&self) -> MutexGuard<'_, usize> {
        self.at_work.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Worker<'_> {
    /// Works as this helper, on a thread of its own.
    pub fn run<T>(self, work: impl FnOnce() -> T) -> T {
        stop_this_thread_by(&self.scope.stop);
        work()
    }
}

impl Drop for Worker<'_> {
    fn drop(&mut self) {
        *self.scope.at_work() -= 1;
        self.scope.one_ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use forebay_core::{Error, Kind};

    use super::*;
    use crate::wait::Wait;

    #[test]
    fn a_caller_without_work_hears_the_interrupt_and_stops_who_waits() {
        let workers = WorkerScope::default();
        let waits = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let member = workers.worker();
            let helper = scope.spawn(|| {
                member.run(|| {
                    let wait = Wait::at_most(Duration::from_secs(60), None);
                    loop {
                        waits.store(true, Ordering::SeqCst);
                        if let Err(stopped) = wait.pause(Duration::from_millis(1)) {
                            return stopped.kind();
                        }
                    }
                })
            });
            let interrupted = || match waits.load(Ordering::SeqCst) {
                true => Err(Error::new(Kind::Cancelled, "Ctrl-C")),
                false => Ok(()),
            };
            assert_eq!(workers.wait(interrupted).unwrap_err().kind(), Kind::Cancelled);
            assert_eq!(helper.join().unwrap(), Kind::Cancelled);
        });
    }

    #[test]
    fn helpers_that_end_or_panic_are_not_waited_for() {
        let workers = WorkerScope::default();
        std::thread::scope(|scope| {
            let (first, second) = (workers.worker(), workers.worker());
            scope.spawn(|| first.run(|| ()));
            let failed = scope.spawn(|| second.run(|| panic!("as a test wants it")));
            workers.wait(|| Ok(())).unwrap();
            assert!(failed.join().is_err());
        });
        assert!(!workers.is_stopped());
    }
}
