//! The thread that keeps some memory ready.
//!
//! First touch of fresh memory is ten times slower than a copy, so it happens here and not in a fill. The
//! thread stays a step ([`STEP_BYTES`]) ahead of what is lent of a segment, and when that is almost lent it
//! makes the next one with its first step. More would be memory that nobody uses. What was lent before it
//! could be prepared is given huge pages here too, while it is being filled. The thread ends when its owner
//! is dropped.

use std::sync::Arc;
use std::thread::JoinHandle;

use forebay_core::{Error, Result};

use super::arena_state::Unprepared;
use super::{Arena, Next, create};

/// Memory that is ready beyond what is lent: some milliseconds of the fastest fill.
pub(super) const STEP_BYTES: u64 = 16 << 20;

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

/// The next work of the thread.
enum Work {
    /// Make a segment of this size, already counted as held.
    Next(u64),
    /// Give memory to a part of a segment that is in use.
    InUse(Unprepared),
}

impl Arena {
    /// Prepares a segment whenever one is wanted, until it is told to stop.
    fn prepare_segments(&self) {
        while let Some(work) = self.wait_for_work() {
            match work {
                Work::Next(bytes) => self.prepare_next(bytes),
                Work::InUse(part) => part.fault_in(),
            }
        }
    }

    fn prepare_next(&self, bytes: u64) {
        let segment = create(bytes).inspect(|segment| {
            let first = bytes.min(STEP_BYTES) as usize;
            let huge_bytes = segment.fault_in(0..first);
            tracing::debug!(bytes, huge_bytes, "memory segment made ready");
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
            if let Some(part) = state.unprepared.pop() {
                return Some(Work::InUse(part));
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
