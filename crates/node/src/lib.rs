//! One node: options, the parts composed, admin API, metrics, jobs.
//!
//! Read in this order: [`config`] (what was typed), [`options`] (what holds), [`Node`] (`node.rs`, how the parts
//! are put together and taken down), [`admin`], [`jobs`], [`metrics`], `native.rs`, `checkpoint.rs`.
//!
//! ```no_run
//! use forebay_node::{Node, config::Config, options::NodeOptions};
//!
//! # async fn example() -> forebay_core::Result<()> {
//! let node = Node::start(NodeOptions::resolve(Config::default())?).await?;
//! node.wait_ready().await;
//! println!("S3 at {:?}, socket {:?}", node.s3_url(), node.socket());
//! node.shutdown(std::time::Duration::from_secs(10)).await;
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

pub mod admin;
mod cache_jobs;
mod checkpoint;
pub mod config;
mod embedded;
pub mod jobs;
pub mod keys;
pub mod lake_url;
mod lakes;
pub mod logging;
pub mod machine;
pub mod metrics;
mod native;
mod node;
pub mod options;
mod parts;
#[cfg(test)]
mod test_engine;
pub mod value;
mod waiting_room;

pub use checkpoint::SaveStats;
pub use embedded::{EmbeddedNode, EmbeddedOptions};
pub use native::NativeStats;
pub use node::Node;
