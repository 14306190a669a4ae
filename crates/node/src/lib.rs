//! One node: its options and its services composed.
//!
//! Read in this order: [`config`] (what was typed), [`options`] (what holds), [`Node`] (`node.rs`: services
//! composed and taken down), `services.rs` (what requests share), `socket.rs` (clients on this host, served by
//! `forebay_ipc`). The admin API, metrics and jobs are `forebay_admin`'s, saves `forebay_checkpoint_node`'s.
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

mod cluster;
pub mod config;
pub mod descriptors;
mod embedded;
pub mod keys;
pub mod lake_url;
mod lakes;
pub mod logging;
pub mod machine;
mod node;
pub mod options;
mod readiness;
mod services;
mod socket;
pub mod value;

pub use cluster::make_cluster_keys;
pub use embedded::{EmbeddedNode, EmbeddedOptions};
pub use forebay_checkpoint_node::SaveStats;
pub use forebay_ipc::IpcStats;
pub use node::Node;
