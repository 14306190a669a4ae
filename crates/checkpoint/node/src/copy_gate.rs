//! Gate that says when the saver may keep cores busy: not while a trainer copies.
//!
//! A trainer waits for its copy into the arena and for nothing else. Hashing and writing beside it would take
//! cores and the way to memory from it, and give its buffers back early, so that the next save finds fewer
//! that are warm. So the files of a save wait until no save of this node is being filled.
//!
//! They stop waiting when somebody needs what they hold: the arena is full, or a save has brought more than
//! its queue takes. And a client that takes its time holds nobody up for longer than [`HOLD_MAX`].

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

/// Longest wait of files for clients that copy.
const HOLD_MAX: Duration = Duration::from_secs(5);

/// Counts the clients that copy; see the top of this file.
#[derive(Debug)]
pub(super) struct CopyGate {
    state: watch::Sender<CopyState>,
    hold_max: Duration,
}

#[derive(Debug, Default)]
struct CopyState {
    /// Saves that clients are filling.
    copying: usize,
    /// Somebody cannot go on before files have left the arena.
    is_opened_early: bool,
}

impl CopyGate {
    pub(super) fn new() -> Arc<Self> {
        Self::within(HOLD_MAX)
    }

    fn within(hold_max: Duration) -> Arc<Self> {
        Arc::new(Self {
            state: watch::Sender::new(CopyState::default()),
            hold_max,
        })
    }

    /// Closes the gate until the guard is dropped: a client fills a save.
    pub(super) fn begin(self: &Arc<Self>) -> CopyGuard {
        self.state.send_modify(|state| {
            state.copying += 1;
            // Who is still short of memory will say so again.
            state.is_opened_early = false;
        });
        CopyGuard(Arc::clone(self))
    }

    /// Opens the gate for files that somebody waits for, until the next save begins.
    pub(super) fn open_early(&self) {
        self.state
            .send_if_modified(|state| !std::mem::replace(&mut state.is_opened_early, true));
    }

    /// Waits until nobody copies, or somebody waits for files to leave the arena.
    pub(super) async fn passed(&self) {
        let mut state = self.state.subscribe();
        let passed = state.wait_for(|state| state.copying == 0 || state.is_opened_early);
        if tokio::time::timeout(self.hold_max, passed).await.is_err() {
            // What comes after these files would wait as long again.
            self.open_early();
        }
    }
}

/// A save that a client is filling.
#[derive(Debug)]
pub(crate) struct CopyGuard(Arc<CopyGate>);

impl Drop for CopyGuard {
    fn drop(&mut self) {
        self.0.state.send_modify(|state| state.copying -= 1);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn files_wait_while_any_client_copies() {
        let copy_gate = CopyGate::new();
        assert!(copy_gate.passed().now_or_never().is_some());
        let (one, other) = (copy_gate.begin(), copy_gate.begin());
        drop(one);
        assert!(copy_gate.passed().now_or_never().is_none());
        drop(other);
        assert!(copy_gate.passed().now_or_never().is_some());
    }

    #[tokio::test]
    async fn a_full_arena_lets_files_go_until_the_next_save_begins() {
        let copy_gate = CopyGate::new();
        let _open = copy_gate.begin();
        copy_gate.open_early();
        assert!(copy_gate.passed().now_or_never().is_some());
        let _next = copy_gate.begin();
        assert!(copy_gate.passed().now_or_never().is_none());
    }

    #[tokio::test]
    async fn a_client_that_takes_its_time_holds_files_up_once() {
        let copy_gate = CopyGate::within(Duration::from_millis(1));
        let _open = copy_gate.begin();
        copy_gate.passed().await;
        assert!(copy_gate.passed().now_or_never().is_some());
    }
}
