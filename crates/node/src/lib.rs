//! One node: options, the parts composed, admin API, metrics, jobs.
//!
//! Read in this order: [`config`] (what was typed), [`options`] (what holds), [`Node`] (`node.rs`, how the parts
//! are put together and taken down), [`admin`], [`jobs`], [`metrics`].
#![forbid(unsafe_code)]

pub mod config;
pub mod jobs;
pub mod keys;
pub mod lake_url;
pub mod logging;
pub mod machine;
pub mod metrics;
pub mod options;
pub mod value;
