//! Threads for heavy work that nobody waits for: hashing and writing what is staged.
//!
//! Training goes on meanwhile, often on every core, and a step whose threads wait for each other is as slow as the slowest. So these
//! threads are nice: beside a trainer that keeps a core busy they get about a tenth of it, and all of a core that is idle. Niceness counts among the
//! threads of one control group or session; elsewhere the kernel shares cores between the groups first.
//!
//! A thread cannot take niceness back, so these are threads of a runtime of their own. Work is polled where it was, and what it hands to
//! other threads goes to these.

use std::pin::pin;
use std::sync::OnceLock;

use rustix::process::{getpriority_process, setpriority_process};
use tokio::runtime::{Builder, Runtime};

/// How much nicer they are than the node, and how nice a thread can be.
const NICER: i32 = 10;
const NICE_MAX: i32 = 19;

/// See the top of this file. The threads begin with the first work.
#[derive(Debug, Default)]
pub(super) struct Quiet(OnceLock<Option<Runtime>>);

impl Quiet {
    /// Does work; what it hands to other threads goes to quiet ones.
    pub(super) async fn run<F: Future>(&self, work: F) -> F::Output {
        let runtime = self.0.get_or_init(threads).as_ref();
        let mut work = pin!(work);
        std::future::poll_fn(|context| {
            let _here = runtime.map(Runtime::enter);
            work.as_mut().poll(context)
        })
        .await
    }
}

fn threads() -> Option<Runtime> {
    // A thread begins with the niceness of the one that made it, so this is asked once.
    let nice = getpriority_process(None).map_or(NICER, |nice| (nice + NICER).min(NICE_MAX));
    let runtime = Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("forebay-quiet")
        .on_thread_start(move || be_nice(nice))
        .enable_all()
        .build();
    runtime
        .inspect_err(|why| tracing::warn!(%why, "saves use the threads of requests"))
        .ok()
}

impl Drop for Quiet {
    fn drop(&mut self) {
        // It may be dropped by a task, which must not wait for threads.
        if let Some(Some(runtime)) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

fn be_nice(nice: i32) {
    // The kernel takes "this process" as the calling thread.
    if let Err(why) = setpriority_process(None, nice) {
        tracing::debug!(%why, "a thread of the saver is as busy as others");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn niceness() -> i32 {
        getpriority_process(None).unwrap()
    }

    #[tokio::test]
    async fn what_work_hands_to_other_threads_is_nice_and_the_work_itself_is_not() {
        let before = niceness();
        let quiet = Quiet::default();
        let work = async {
            let there = tokio::task::spawn_blocking(niceness).await.unwrap();
            (niceness(), there)
        };
        assert_eq!(quiet.run(work).await, (before, (before + NICER).min(NICE_MAX)));
        assert_eq!(tokio::task::spawn_blocking(niceness).await.unwrap(), before);
    }
}
