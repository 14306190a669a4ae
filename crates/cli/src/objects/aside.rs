//! Calls of the blocking client from async code.
//!
//! A call runs on a thread for blocking work. When whoever waits for it goes away (Ctrl-C, another part failed), the call is interrupted, so that the
//! thread is free again and the command can end. Limits: the runtime's threads for blocking work; a call ends by itself after [`CALL_TIME_MAX`].

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forebay_client::ClientOptions;
use forebay_core::{Error, Kind, Result};

/// How long one call may take: a lake may be slow, and people have Ctrl-C.
const CALL_TIME_MAX: Duration = Duration::from_secs(600);

thread_local! {
    /// Whether nobody waits any more for the call that this thread makes.
    static GIVEN_UP: RefCell<Option<Arc<AtomicBool>>> = const { RefCell::new(None) };
}

/// A client whose calls can be interrupted by [`aside`].
pub(crate) fn client_options(address: Option<String>) -> ClientOptions {
    let is_given_up = || {
        GIVEN_UP.with_borrow(|flag| {
            let flag = flag.as_ref();
            flag.is_some_and(|flag| flag.load(Ordering::Relaxed))
        })
    };
    ClientOptions {
        address,
        timeout: CALL_TIME_MAX,
        interrupt: Some(Arc::new(is_given_up)),
        ..ClientOptions::default()
    }
}

/// Makes a blocking call elsewhere. Dropping the future interrupts the call.
pub(crate) async fn aside<T: Send + 'static>(call: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let flag = Arc::new(AtomicBool::new(false));
    let _guard = GiveUp(Arc::clone(&flag));
    let work = move || {
        GIVEN_UP.replace(Some(flag));
        let done = call();
        GIVEN_UP.replace(None);
        done
    };
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|why| {
        Err(Error::new(Kind::Internal, "a call to the node was stopped").caused_by(why))
    })
}

/// Nobody waits any more when this is dropped.
struct GiveUp(Arc<AtomicBool>);

impl Drop for GiveUp {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
