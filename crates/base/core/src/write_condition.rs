//! The condition of a write, the same at every door; the lake decides it.

use serde::{Deserialize, Serialize};

use crate::Version;

/// The condition of a write.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum WriteCondition {
    /// Nothing.
    #[default]
    None,
    /// There is no such object yet (`If-None-Match: *`).
    Absent,
    /// It has this version (`If-Match`); `NotFound` if there is none.
    Version(Version),
}
