//! Calls of the blocking client from async code.
//!
//! A call runs on a thread for blocking work. When whoever waits for it goes away (Ctrl-C, another part
//! failed), the call is interrupted, so that the thread is free again and the command can end. Limits: the
//! runtime's threads for blocking work; a call ends by itself after [`CALL_TIME_MAX`].

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forebay_client::ClientOptions;
use forebay_core::{Error, Kind, Result};

/// Time limit of one call: a lake may be slow, and people have Ctrl-C.
const CALL_TIME_MAX: Duration = Duration::from_secs(600);

thread_local! {
    /// Set when nobody waits any more for the call that this thread makes.
    static ABANDONED: RefCell<Option<Arc<AtomicBool>>> = const { RefCell::new(None) };
}

/// A client whose calls can be interrupted by [`spawn_client_call`].
pub fn client_options(address: Option<String>) -> ClientOptions {
    let is_abandoned = || {
        ABANDONED.with_borrow(|flag| {
            let flag = flag.as_ref();
            flag.is_some_and(|flag| flag.load(Ordering::Relaxed))
        })
    };
    ClientOptions {
        address,
        timeout: CALL_TIME_MAX,
        interrupt: Some(Arc::new(is_abandoned)),
        ..ClientOptions::default()
    }
}

/// Makes a blocking call on a thread for blocking work. Dropping the future interrupts the call.
pub async fn spawn_client_call<T: Send + 'static>(
    call: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let flag = Arc::new(AtomicBool::new(false));
    let _guard = AbandonOnDrop(Arc::clone(&flag));
    let work = move || {
        ABANDONED.replace(Some(flag));
        let done = call();
        ABANDONED.replace(None);
        done
    };
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|why| {
        Err(Error::new(Kind::Internal, "a call to the node was stopped").caused_by(why))
    })
}

/// Nobody waits any more when this is dropped.
struct AbandonOnDrop(Arc<AtomicBool>);

impl Drop for AbandonOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
