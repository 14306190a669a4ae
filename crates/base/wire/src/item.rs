//! Items: what a read names.

use forebay_core::ItemRange;
use serde::{Deserialize, Serialize};

/// An object by bucket and key, not yet checked.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ObjectName {
    /// Bucket.
    pub bucket: String,
    /// Key.
    pub key: String,
}

/// Some bytes of an object, to be read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Item {
    /// The object.
    pub object: ObjectName,
    /// Its bytes.
    pub range: ItemRange,
    /// The version it must have; `None` takes the current one.
    pub version: Option<String>,
}
