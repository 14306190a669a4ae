//! The thread that keeps one segment ready.
//!
//! First touch of fresh memory is ten times slower than a copy, so it happens here and not in a fill. The thread sleeps
//! until the arena runs low, prepares one segment and sleeps again. Segments that were needed before they could be prepared are
//! given huge pages here too, while they are being filled. It ends when its owner is dropped.

use std::sync::Arc;
use std::thread::JoinHandle;

use forebay_core::{Error, Result};

use super::{Arena, Next, create};
use crate::segment::Segment;

/// Owns the thread.
#[derive(Debug)]
pub(crate) struct FaultIn {
    arena: Arc<Arena>,
    thread: Option<JoinHandle<()>>,
}

impl FaultIn {
    /// Starts the thread; it touches no memory before the arena is used.
    pub(crate) fn start(arena: Arc<Arena>) -> Result<Self> {
        let of_thread = Arc::clone(&arena);
        let thread = std::thread::Builder::new()
            .name("forebay-fault-in".into())
            .spawn(move || of_thread.prepare_segments())
            .map_err(|why| Error::io("cannot start the thread that prepares memory segments", why))?;
        Ok(Self {
            arena,
            thread: Some(thread),
        })
    }
}

impl Drop for FaultIn {
    fn drop(&mut self) {
        self.arena.state.lock().stopped = true;
        self.arena.prepare.notify_all();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that prepares memory segments panicked");
        }
    }
}

/// What the thread is to do next.
enum Work {
    /// Make a segment of this size, already counted as held.
    Next(u64),
    /// Give memory to a segment that is in use already.
    InUse(Arc<Segment>),
}

impl Arena {
    /// Prepares a segment whenever one is wanted, until it is told to stop.
    fn prepare_segments(&self) {
        while let Some(work) = self.wait_for_work() {
            match work {
                Work::Next(bytes) => self.prepare_next(bytes),
                Work::InUse(segment) => {
                    let huge_bytes = segment.fault_in();
                    tracing::debug!(
                        bytes = segment.bytes(),
                        huge_bytes,
                        "memory segment in use faulted in"
                    );
                }
            }
        }
    }

    fn prepare_next(&self, bytes: u64) {
        let segment = create(bytes).inspect(|segment| {
            let huge_bytes = segment.fault_in();
            tracing::debug!(bytes, huge_bytes, "memory segment faulted in");
        });
        let mut state = self.state.lock();
        state.next = match segment {
            Ok(segment) => Next::Ready(segment),
            Err(error) => {
                state.shrink_budget(bytes, &error);
                Next::None
            }
        };
        drop(state);
        self.space_freed.notify_waiters();
    }

    /// Sleeps until there is work; `None` when it is time to stop.
    fn wait_for_work(&self) -> Option<Work> {
        let mut state = self.state.lock();
        loop {
            if state.stopped {
                return None;
            }
            while let Some(segment) = state.unprepared.pop() {
                if let Some(segment) = segment.upgrade() {
                    return Some(Work::InUse(segment));
                }
            }
            if matches!(state.next, Next::Wanted) {
                state.next = Next::None;
                if let Some(bytes) = self.reserve_within_budget(&mut state) {
                    state.next = Next::Preparing;
                    return Some(Work::Next(bytes));
                }
            }
            self.prepare.wait(&mut state);
        }
    }
}
