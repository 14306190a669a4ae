//! The two things about a fill that may change while it runs: its urgency and its source, each once.
//!
//! Whoever claims blocks leaves the control of their fill with the page. A reader that joins raises read-ahead to
//! demand. A reader whose own source is a last resort (a request of another node) moves the fill to the fallback
//! of its source: two nodes that asked each other would otherwise wait for ever.

use std::sync::Arc;

use tokio::sync::watch;

use crate::{Priority, Source, Urgency};

/// Urgency and source of a fill. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct FillControl {
    pub(crate) urgency: Urgency,
    pub(crate) source: FillSource,
}

impl FillControl {
    pub(crate) fn new(source: &Arc<dyn Source>, priority: Priority) -> Self {
        Self {
            urgency: Urgency::new(priority),
            source: FillSource::new(source),
        }
    }

    /// Returns whether a reader that joins may have something to change.
    pub(crate) fn may_change(&self) -> bool {
        self.urgency.now() == Priority::ReadAhead || self.source.may_change()
    }

    /// A reader waits for the fill from now on.
    pub(crate) fn join(&self, reader: &Self) {
        if reader.urgency.now() == Priority::Demand {
            self.urgency.raise();
        }
        if reader.source.is_last_resort() {
            self.source.change();
        }
    }
}

/// The source of a fill, which may change to its fallback once.
#[derive(Debug, Clone)]
pub(crate) struct FillSource {
    first: Arc<dyn Source>,
    /// `None` if the first is a last resort.
    fallback: Option<Arc<Fallback>>,
}

#[derive(Debug)]
struct Fallback {
    source: Arc<dyn Source>,
    is_taken: watch::Sender<bool>,
}

impl FillSource {
    fn new(source: &Arc<dyn Source>) -> Self {
        let fallback = source.fallback().map(|source| {
            Arc::new(Fallback {
                source,
                is_taken: watch::Sender::new(false),
            })
        });
        Self {
            first: Arc::clone(source),
            fallback,
        }
    }

    /// Returns whether it began with a source that has no fallback.
    fn is_last_resort(&self) -> bool {
        self.fallback.is_none()
    }

    /// Returns whether it has a fallback that it did not change to.
    pub(crate) fn may_change(&self) -> bool {
        self.fallback
            .as_ref()
            .is_some_and(|fallback| !*fallback.is_taken.borrow())
    }

    /// Changes to the fallback; `false` if there is none or it has changed already.
    pub(crate) fn change(&self) -> bool {
        self.fallback
            .as_ref()
            .is_some_and(|fallback| !fallback.is_taken.send_replace(true))
    }

    /// The source that it has now.
    pub(crate) fn now(&self) -> &Arc<dyn Source> {
        match &self.fallback {
            Some(fallback) if *fallback.is_taken.borrow() => &fallback.source,
            _ => &self.first,
        }
    }

    /// Ends when somebody changes it; never if nobody can. Cancel-safe.
    pub(crate) async fn changed(&self) {
        let Some(fallback) = self.fallback.as_ref().filter(|_| self.may_change()) else {
            return std::future::pending().await;
        };
        let mut is_taken = fallback.is_taken.subscribe();
        // The sender lives as long as `self`.
        let _ = is_taken.wait_for(|is_taken| *is_taken).await;
    }
}
