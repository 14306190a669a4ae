//! Where missing blocks come from: a trait that whoever composes the node implements.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use forebay_core::{ByteRange, Result};
use futures::stream::BoxStream;
use tokio::sync::watch;

use crate::ObjectVersion;

/// How urgent a fetch is. Demand always goes before read-ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Priority {
    /// Somebody waits for these bytes.
    Demand,
    /// Nobody waits yet.
    ReadAhead,
}

/// How urgent a fetch is now. Read-ahead becomes demand as soon as somebody waits for its bytes. Clones share it.
#[derive(Debug, Clone)]
pub struct Urgency {
    /// Whether it was raised; nothing if it was demand from the start.
    ahead: Option<Arc<watch::Sender<bool>>>,
}

impl Urgency {
    /// Starts with a priority.
    #[must_use]
    pub fn new(priority: Priority) -> Self {
        let ahead = match priority {
            Priority::Demand => None,
            Priority::ReadAhead => Some(Arc::new(watch::Sender::new(false))),
        };
        Self { ahead }
    }

    /// What it is now.
    #[must_use]
    pub fn now(&self) -> Priority {
        match &self.ahead {
            Some(raised) if !*raised.borrow() => Priority::ReadAhead,
            _ => Priority::Demand,
        }
    }

    /// Somebody waits for these bytes from now on.
    pub fn raise(&self) {
        if let Some(raised) = &self.ahead {
            raised.send_replace(true);
        }
    }

    /// Ends when the fetch is demand; never if it stays read-ahead. Cancel-safe.
    pub fn raised(&self) -> impl Future<Output = ()> + Send + 'static {
        let receiver = self.ahead.as_ref().map(|raised| raised.subscribe());
        async move {
            if let Some(mut receiver) = receiver
                && receiver.wait_for(|raised| *raised).await.is_err()
            {
                std::future::pending::<()>().await; // Nobody is left who could raise it.
            }
        }
    }
}

/// Where missing blocks come from: the lake today, the owner peer later. Wired by whoever composes the node.
#[async_trait]
pub trait Source: Send + Sync + fmt::Debug + 'static {
    /// The bytes of `range` of exactly this version, in order. `Changed` if the object has another version now.
    ///
    /// Retries, deadlines and parallel ranges are the source's business: an error that it returns goes to the readers.
    async fn fetch(
        &self,
        object: &ObjectVersion,
        range: ByteRange,
        urgency: &Urgency,
    ) -> Result<BoxStream<'static, Result<Bytes>>>;
}
