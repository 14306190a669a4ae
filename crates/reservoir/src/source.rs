//! Where missing blocks come from: a trait that whoever composes the node implements.

use std::fmt;

use async_trait::async_trait;
use bytes::Bytes;
use forebay_core::{ByteRange, Result};
use futures::stream::BoxStream;

use crate::ObjectVersion;

/// How urgent a fetch is. Demand always goes before read-ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Priority {
    /// Somebody waits for these bytes.
    Demand,
    /// Nobody waits yet.
    ReadAhead,
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
        priority: Priority,
    ) -> Result<BoxStream<'static, Result<Bytes>>>;
}
