//! The thread that keeps one segment ready.
//!
//! First touch of fresh memory is ten times slower than a copy, so it happens here and not in a fill. The thread sleeps
//! until the arena runs low, prepares one segment and sleeps again. It ends when its owner is dropped.

use std::sync::Arc;
use std::thread::JoinHandle;

use forebay_core::{Error, Result};

use super::{Arena, Next, shrink_budget};
use crate::segment::{ClientAccess, Segment};

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

impl Arena {
    /// Prepares a segment whenever one is wanted, until it is told to stop.
    fn prepare_segments(&self) {
        while let Some(bytes) = self.wait_until_wanted() {
            let segment = Segment::create(
                usize::try_from(bytes).expect("a segment fits the address space"),
                ClientAccess::Read,
            );
            let segment = segment.map(|mut segment| {
                let huge_bytes = segment.fault_in();
                tracing::debug!(bytes, huge_bytes, "memory segment faulted in");
                segment
            });
            let mut state = self.state.lock();
            state.next = match segment {
                Ok(segment) => Next::Ready(segment),
                Err(error) => {
                    shrink_budget(&mut state, bytes, &error);
                    Next::None
                }
            };
            drop(state);
            self.space_freed.notify_waiters();
        }
    }

    /// Sleeps until a segment is wanted; its size, already counted as held, or `None` when it is time to stop.
    fn wait_until_wanted(&self) -> Option<u64> {
        let mut state = self.state.lock();
        loop {
            if state.stopped {
                return None;
            }
            if matches!(state.next, Next::Wanted) {
                state.next = Next::None;
                if let Some(bytes) = self.reserve_segment(&mut state) {
                    state.next = Next::Preparing;
                    return Some(bytes);
                }
            }
            self.prepare.wait(&mut state);
        }
    }
}
