//! Suites and fakes that the tests of all crates share; no product code depends on it.
//!
//! [`lake_suite`] runs the same behaviour checks on every lake, [`lake_model`] runs random operations against
//! the reference lake in memory, [`until`] waits for a state instead of for a time, [`PeakMemory`] measures,
//! [`Authority`] makes certificates.
//!
//! ```
//! use std::sync::Arc;
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! let lake = Arc::new(forebay_lake::MemoryLake::new());
//! forebay_testkit::lake_suite(lake, forebay_testkit::LakeTraits::exact()).await;
//! # });
//! ```
#![forbid(unsafe_code)]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a check that fails panics: that is what it is for"
)]

mod authority;
mod bytes_of;
mod corpus;
mod lake_model;
mod lake_suite;
mod peak_memory;
mod until;

pub use authority::{Authority, Identity};
pub use bytes_of::{patterned, read_all};
pub use corpus::replay_corpus;
pub use lake_model::lake_model;
pub use lake_suite::{LakeTraits, lake_suite};
pub use peak_memory::PeakMemory;
pub use until::{until, until_async};
