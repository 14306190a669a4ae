//! When the saver may keep cores busy: not while a trainer copies.
//!
//! A trainer waits for its copy into the arena and for nothing else. Hashing and writing beside it would take cores and the way to memory from it, and
//! give its buffers back early, so that the next save finds fewer that are warm. So the files of a save wait until no save of this node is being
//! filled.
//!
//! They stop waiting when somebody needs what they hold: the arena is full, or a save has brought more than its queue takes. And a
//! client that takes its time holds nobody up for longer than [`HOLD_MAX`].

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

/// How long files wait for clients that copy, at most.
const HOLD_MAX: Duration = Duration::from_secs(5);

/// Who copies now; see the top of this file.
#[derive(Debug)]
pub(super) struct Copying {
    state: watch::Sender<State>,
    hold_max: Duration,
}

#[derive(Debug, Default)]
struct State {
    /// Saves that clients are filling.
    open: usize,
    /// Somebody cannot go on before files have left the arena.
    is_pressed: bool,
}

impl Copying {
    pub(super) fn new() -> Arc<Self> {
        Self::within(HOLD_MAX)
    }

    fn within(hold_max: Duration) -> Arc<Self> {
        Arc::new(Self {
            state: watch::Sender::new(State::default()),
            hold_max,
        })
    }

    /// A client begins to fill a save, until the answer is dropped.
    pub(super) fn begin(self: &Arc<Self>) -> Filling {
        self.state.send_modify(|state| {
            state.open += 1;
            // Who is still short of memory will say so again.
            state.is_pressed = false;
        });
        Filling(Arc::clone(self))
    }

    /// Files need not wait any longer: somebody waits for them.
    pub(super) fn press(&self) {
        self.state
            .send_if_modified(|state| !std::mem::replace(&mut state.is_pressed, true));
    }

    /// Waits until nobody copies, or somebody waits for files to leave the arena.
    pub(super) async fn quiet(&self) {
        let mut state = self.state.subscribe();
        let quiet = state.wait_for(|state| state.open == 0 || state.is_pressed);
        if tokio::time::timeout(self.hold_max, quiet).await.is_err() {
            // What comes after these files would wait as long again.
            self.press();
        }
    }
}

/// A save that a client is filling.
#[derive(Debug)]
pub(crate) struct Filling(Arc<Copying>);

impl Drop for Filling {
    fn drop(&mut self) {
        self.0.state.send_modify(|state| state.open -= 1);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn files_wait_while_any_client_copies() {
        let copying = Copying::new();
        assert!(copying.quiet().now_or_never().is_some());
        let (one, other) = (copying.begin(), copying.begin());
        drop(one);
        assert!(copying.quiet().now_or_never().is_none());
        drop(other);
        assert!(copying.quiet().now_or_never().is_some());
    }

    #[tokio::test]
    async fn a_full_arena_lets_files_go_until_the_next_save_begins() {
        let copying = Copying::new();
        let _open = copying.begin();
        copying.press();
        assert!(copying.quiet().now_or_never().is_some());
        let _next = copying.begin();
        assert!(copying.quiet().now_or_never().is_none());
    }

    #[tokio::test]
    async fn a_client_that_takes_its_time_holds_files_up_once() {
        let copying = Copying::within(Duration::from_millis(1));
        let _open = copying.begin();
        copying.quiet().await;
        assert!(copying.quiet().now_or_never().is_some());
    }
}
