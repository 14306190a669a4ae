//! Members of archives, as a batch asks for them. The edge knows no archive format; the node brings an index.

use std::fmt;

use async_trait::async_trait;
use forebay_core::{ByteRange, Result};
use forebay_engine::{Engine, ObjectInfo};

/// Finds members of archives by name.
#[async_trait]
pub trait MemberIndex: fmt::Debug + Send + Sync + 'static {
    /// Returns where the member lies in this version of the object; `None` if it has no bytes. `NotFound` if
    /// there is no such member, `Changed` if the object has another version by now.
    async fn member_range(
        &self,
        engine: &Engine,
        object: &ObjectInfo,
        name: &str,
    ) -> Result<Option<ByteRange>>;
}
