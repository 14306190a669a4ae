//! Waiting for a state, with a deadline instead of a guess at how long it takes.

use std::time::Duration;

use tokio::time::{Instant, sleep};

/// Time limit for a state to come; far longer than any test machine needs.
const DEADLINE: Duration = Duration::from_secs(30);

/// Interval between two looks.
const PAUSE: Duration = Duration::from_millis(2);

/// Waits until `condition` holds; panics with `what` if it does not within 30 seconds.
pub async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    until_async(what, async || condition()).await;
}

/// [`until`] for a condition that has to ask.
pub async fn until_async(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !condition().await {
        assert!(
            Instant::now() < deadline,
            "did not happen within {DEADLINE:?}: {what}"
        );
        sleep(PAUSE).await;
    }
}
