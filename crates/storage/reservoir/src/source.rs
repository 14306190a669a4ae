//! The source of missing blocks: a trait that whoever composes the node implements.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use forebay_core::{ByteRange, Result, Tier};
use futures::stream::BoxStream;
use tokio::sync::watch;

use crate::ObjectVersion;

/// The urgency of a fetch. Demand always goes before read-ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Priority {
    /// Somebody waits for these bytes.
    Demand,
    /// Nobody waits yet.
    ReadAhead,
}

/// The current urgency of a fetch. Read-ahead becomes demand as soon as somebody waits for its bytes. Clones
/// share it.
#[derive(Debug, Clone)]
pub struct Urgency {
    /// Set once it was raised; `None` if it was demand from the start.
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

    /// Returns what it is now.
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

/// Bytes on their way from a source.
#[derive(Debug, Clone)]
pub struct SourceBlock {
    /// The bytes, which follow those of the item before.
    pub bytes: Bytes,
    /// CRC32C of `bytes` from where they first entered a node. It is compared on arrival, and kept where `bytes`
    /// are one whole block.
    pub crc32c: Option<u32>,
    /// The tier that they came from: [`Tier::Lake`] or [`Tier::Peer`].
    pub tier: Tier,
}

impl SourceBlock {
    /// Bytes of a lake, which has no checksum of ours.
    #[must_use]
    pub fn from_lake(bytes: Bytes) -> Self {
        Self {
            bytes,
            crc32c: None,
            tier: Tier::Lake,
        }
    }
}

/// The bytes of a fetch, in order, in pieces of any size. An error ends the stream.
pub type SourceStream = BoxStream<'static, Result<SourceBlock>>;

/// A part of an object that one source gives.
#[derive(Debug, Clone)]
pub struct Route {
    /// The source, which has no routes of its own.
    pub source: Arc<dyn Source>,
    /// The end of what it gives; the border of a page, or past the object.
    pub end: u64,
}

/// The source of missing blocks of a bucket: its lake, or peers in front of it. Given by whoever composes the
/// node.
#[async_trait]
pub trait Source: Send + Sync + fmt::Debug + 'static {
    /// The bytes of `range` of exactly this version, in order. `Changed` if the object has another version
    /// now.
    ///
    /// Retries and parallel ranges are the source's business. A source that is silent for too long is given up
    /// by the fill.
    async fn fetch(
        &self,
        object: &ObjectVersion,
        range: ByteRange,
        urgency: &Urgency,
    ) -> Result<SourceStream>;

    /// The source that a fill changes to, at most once: if this one fails, is silent or sends damaged bytes, or if
    /// a reader joins that may not wait for it. `None` if this one is the last resort.
    ///
    /// A reader whose own source is a last resort never waits for a fill from another kind: the fill changes.
    fn fallback(&self) -> Option<Arc<dyn Source>> {
        None
    }

    /// The source of the bytes from `at` on, for one whose bytes come from several; asked for missing blocks only.
    /// Each route is fetched by fills of its own, which have a fallback of their own. `None` if this source gives
    /// all of the object.
    fn route(&self, _object: &ObjectVersion, _at: u64) -> Option<Route> {
        None
    }
}
