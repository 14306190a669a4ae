//! Deadline and interrupt of a call that waits.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use forebay_core::{Error, Kind, Result};

use crate::options::{ClientOptions, Interrupt};

/// Period in which a waiting call looks at its deadline and its interrupt.
pub(crate) const WAIT_SLICE: Duration = Duration::from_millis(100);

thread_local! {
    /// Flag that stops the waits of this thread, which works for a call that another thread makes.
    static STOP: RefCell<Option<Arc<AtomicBool>>> = const { RefCell::new(None) };
}

/// Lets `stop` end the waits of this thread, for as long as it lives.
pub(crate) fn stop_this_thread_by(stop: &Arc<AtomicBool>) {
    STOP.set(Some(Arc::clone(stop)));
}

fn is_stopped() -> bool {
    STOP.with_borrow(|stop| stop.as_ref().is_some_and(|stop| stop.load(Ordering::Relaxed)))
}

/// `Cancelled` if somebody wants this thread to stop waiting.
pub(crate) fn check_interrupt(interrupt: Option<&Interrupt>) -> Result<()> {
    if is_stopped() || interrupt.is_some_and(|interrupt| interrupt()) {
        return Err(Error::new(
            Kind::Cancelled,
            "interrupted while waiting for the node",
        ));
    }
    Ok(())
}

/// The patience of one call.
pub(crate) struct Wait {
    deadline: Instant,
    interrupt: Option<Interrupt>,
}

impl Wait {
    /// As the options say, from now on.
    pub(crate) fn start(options: &ClientOptions) -> Self {
        Self::at_most(options.timeout, options.interrupt.clone())
    }

    /// So long from now on.
    pub(crate) fn at_most(timeout: Duration, interrupt: Option<Interrupt>) -> Self {
        let now = Instant::now();
        let far = Duration::from_secs(365 * 24 * 3600);
        Self {
            deadline: now.checked_add(timeout).unwrap_or(now + far),
            interrupt,
        }
    }

    /// The same interrupt, with more time: the node is given the chance to say itself that time is up.
    pub(crate) fn with_grace(&self) -> Self {
        Self {
            deadline: self.deadline + Duration::from_secs(2),
            interrupt: self.interrupt.clone(),
        }
    }

    /// The same interrupt, with less time.
    pub(crate) fn shortened(&self, timeout: Duration) -> Self {
        Self {
            deadline: self.deadline.min(Instant::now() + timeout),
            interrupt: self.interrupt.clone(),
        }
    }

    /// Returns whether to go on waiting.
    pub(crate) fn check(&self) -> Result<()> {
        check_interrupt(self.interrupt.as_ref())?;
        if Instant::now() >= self.deadline {
            return Err(Error::new(
                Kind::Timeout,
                "the node did not answer in time; raise the client's timeout if the lake is slow",
            ));
        }
        Ok(())
    }

    /// Returns what is left.
    pub(crate) fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// Returns what is left in the words of the protocol, where 0 would mean "no limit of mine".
    pub(crate) fn left_ms(&self) -> u32 {
        u32::try_from(self.left().as_millis()).unwrap_or(u32::MAX).max(1)
    }

    /// Sleeps a little, or stops waiting.
    pub(crate) fn pause(&self, duration: Duration) -> Result<()> {
        self.check()?;
        std::thread::sleep(duration.min(self.left()));
        Ok(())
    }
}
