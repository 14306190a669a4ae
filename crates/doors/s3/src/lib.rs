//! The S3 endpoint: HTTP and SigV4 in, engine calls out.
//!
//! One request walks through these files in this order: `server.rs` (connections) → `edge.rs` (the pipeline)
//! → `cors.rs` → `guard.rs` (what `s3s` leaves open) → `rechunk.rs` (framing of bodies) → `s3s` (signature,
//! routing, XML) → `access.rs` (which key may do what) → `limits.rs` (admission) → `operations.rs` →
//! `ops/*.rs` (one file per family of operations) → `body.rs` (bytes out, counted by tier). A batch
//! (`batch.rs`) leaves this way after the signature. `map.rs` is the one place where errors become S3 codes.
//!
//! ```no_run
//! use std::sync::Arc;
//! use forebay_s3::{AccessKey, AccessKeys, S3Edge, S3Options};
//!
//! # async fn example(engine: Arc<forebay_engine::Engine>) -> forebay_core::Result<()> {
//! let keys = Arc::new(AccessKeys::new([AccessKey::full("forebay", "a long secret")]));
//! let edge = Arc::new(S3Edge::new(engine, S3Options::new(keys)));
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:9000").await.expect("the port is free");
//! let listener = forebay_net::Listener::tcp(listener);
//! forebay_s3::serve(listener, edge, tokio_util::sync::CancellationToken::new()).await
//! # }
//! ```
#![forbid(unsafe_code)]

mod access;
mod amz;
mod attributes;
mod batch;
mod body;
mod checksum;
mod context;
mod cors;
mod edge;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod guard;
mod hosts;
mod ignored_range;
mod keys;
mod lake_patience;
mod limits;
mod map;
mod members;
mod operations;
mod ops;
mod options;
mod rechunk;
mod refusal;
mod server;
mod xml_answer;
mod xml_digest;

pub use context::{RequestEnd, S3Observer};
pub use edge::S3Edge;
pub use keys::{Access, AccessKey, AccessKeys, Buckets};
pub use limits::InFlight;
pub use members::MemberIndex;
pub use options::S3Options;
pub use server::serve;
