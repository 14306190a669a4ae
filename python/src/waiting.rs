//! Waiting without the interpreter: Ctrl-C and cancellation.
//!
//! A call into the client runs with the interpreter let go ([`wait`]). While it waits, the client asks
//! [`is_interrupted`] about ten times a second, on the thread that waits. That function looks at two things:
//! signals, which Python delivers to its main thread only (their exception is kept and raised when the call
//! returns), and the [`Cancellation`] under which this thread works, which is how a cancelled asyncio task
//! stops the thread that works for it.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_core::Result;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::error;

thread_local! {
    /// Exception that a signal handler raised while this thread waited.
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
    /// Flag that may stop this thread's calls.
    static CANCELLATION: RefCell<Option<Arc<AtomicBool>>> = const { RefCell::new(None) };
}

/// Runs a call of the client without the interpreter; what it fails with becomes an exception.
pub(crate) fn wait<T: Send>(py: Python<'_>, call: impl FnOnce() -> Result<T> + Send) -> PyResult<T> {
    let result = py.detach(call);
    // Taken even if the call succeeded: a signal that came meanwhile must not be lost.
    if let Some(raised) = RAISED.take() {
        return Err(raised);
    }
    result.map_err(|why| error::to_err(py, &why))
}

/// Returns whether the call that this thread waits for should end now.
pub(crate) fn is_interrupted() -> bool {
    let cancelled =
        CANCELLATION.with_borrow(|flag| flag.as_ref().is_some_and(|flag| flag.load(Ordering::Relaxed)));
    if cancelled {
        return true;
    }
    // At the end of the interpreter there is nobody left to wait for.
    match Python::try_attach(signals) {
        Some(Ok(())) => false,
        Some(Err(raised)) => {
            RAISED.set(Some(raised));
            true
        }
        None => true,
    }
}

/// Calls `work` on this thread, so that the flag stops the waits in it.
pub(crate) fn stopped_by<T>(flag: Arc<AtomicBool>, work: impl FnOnce() -> T) -> T {
    let before = CANCELLATION.replace(Some(flag));
    let result = work();
    CANCELLATION.set(before);
    result
}

/// A function, because a path to the method is not general enough in its lifetime.
fn signals(py: Python<'_>) -> PyResult<()> {
    py.check_signals()
}

/// Stops calls that run under it, from another thread.
#[pyclass(frozen, module = "forebay._native")]
pub(crate) struct Cancellation(Arc<AtomicBool>);

#[pymethods]
impl Cancellation {
    #[new]
    fn new() -> Self {
        Self(Arc::new(AtomicBool::new(false)))
    }

    /// Stops what runs under it, within a fraction of a second.
    fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Calls `function` on this thread, so that `cancel` stops the waits in it.
    #[pyo3(signature = (function, /, *args, **kwargs))]
    fn run<'py>(
        &self,
        function: &Bound<'py, PyAny>,
        args: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        stopped_by(Arc::clone(&self.0), || function.call(args, kwargs))
    }
}
