//! The pool: pages of objects in RAM and on NVMe, filled once, checked always.
//!
//! Contract draft; see `api.rs`.
mod api;
mod eviction;
mod key;
mod nvme;
pub use api::*;
pub use key::{ObjectId, PageKey};
