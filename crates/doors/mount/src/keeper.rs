//! Threads beside the requests: one copies large objects whole, one takes names back from the kernel and scrubs.
//!
//! Names are taken back here and never within a request: the kernel may hold the folder's lock until a request is
//! answered, and this call waits for that lock.

use std::ffi::OsStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forebay_core::{Error, Result};
use fuser::{INodeNo, Notifier};
use tracing::debug;

use crate::shared::{CopyOrder, Shared};

/// Pause between two looks, and the longest wait of a stop.
const PERIOD: Duration = Duration::from_millis(200);
/// Names that are taken back between two looks.
const VICTIMS_MAX: usize = 20_000;

/// The threads; they end when this is dropped.
pub(crate) struct Keeper {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Keeper {
    pub(crate) fn start(
        shared: &Arc<Shared>,
        orders: Receiver<CopyOrder>,
        notifier: Notifier,
    ) -> Result<Self> {
        let mut keeper = Self {
            stop: Arc::new(AtomicBool::new(false)),
            threads: Vec::new(),
        };
        let (state, stop) = (Arc::clone(shared), Arc::clone(&keeper.stop));
        keeper.spawn("forebay-copy", move || copy(&state, &orders, &stop))?;
        let (state, stop) = (Arc::clone(shared), Arc::clone(&keeper.stop));
        keeper.spawn("forebay-keep", move || keep(&state, &notifier, &stop))?;
        Ok(keeper)
    }

    fn spawn(&mut self, name: &str, work: impl FnOnce() + Send + 'static) -> Result<()> {
        let thread = std::thread::Builder::new().name(name.into()).spawn(work);
        self.threads
            .push(thread.map_err(|why| Error::io("cannot start a thread of the mount", why))?);
        Ok(())
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // A thread that panicked has said so already.
            let _ = thread.join();
        }
    }
}

fn copy(shared: &Shared, orders: &Receiver<CopyOrder>, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        match orders.recv_timeout(PERIOD) {
            Ok(order) => {
                if let Err(error) = shared.copies.fill(order.number, &order.version, &shared.tree) {
                    debug!(key = &*order.version.key, %error, "not copied whole");
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

fn keep(shared: &Shared, notifier: &Notifier, stop: &AtomicBool) {
    let mut scrubbed = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        std::thread::park_timeout(PERIOD);
        shared.recent.sweep();
        if let Some(writes) = &shared.writes {
            writes.sweep();
        }
        if shared.inodes.is_over() {
            for (folder, name) in shared.inodes.victims(VICTIMS_MAX) {
                // A name that the kernel does not have any more is fine.
                let _ = notifier.inval_entry(INodeNo(folder), OsStr::new(&name));
            }
        }
        if scrubbed.elapsed() >= shared.options.scrub_period {
            shared.copies.scrub(&shared.tree);
            scrubbed = Instant::now();
        }
    }
}
