//! A way to the engine for doors that open before it is there.

use std::fmt;
use std::sync::Arc;

use forebay_core::Result;

use crate::Engine;

/// Holder of the engine: a node's doors open before its lakes have answered, and the engine comes after.
pub trait EngineSource: fmt::Debug + Send + Sync {
    /// The engine, or `Unavailable`, which says what it waits for.
    fn engine(&self) -> Result<&Arc<Engine>>;
}
