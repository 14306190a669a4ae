//! Copies objects between lakes, nodes and files: the library behind `forebay cp`, and the locations of `ls`,
//! `cat`, `rm`, `stat` and `du`.
//!
//! An [`OpenLocation`] is a lake and a key in it, or a path. A [`Transfer`] copies one object or everything
//! below a location, with resumable uploads (`upload.rs`) and downloads (`download.rs`). [`SocketLake`] shows a
//! bucket of a node on this host as a lake, so that both ways to a node are one code. Nothing is printed:
//! progress goes to an [`Observer`].
//!
//! ```
//! use std::sync::Arc;
//!
//! use forebay_transfer::{OpenLocation, Silent, Transfer, TransferOptions};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! let dir = tempfile::tempdir()?;
//! std::fs::write(dir.path().join("a"), "hello")?;
//! let transfer = Transfer::new(TransferOptions::default(), Arc::new(Silent));
//! let source = OpenLocation::Local(dir.path().join("a"));
//! transfer.copy_one(&source, &OpenLocation::Local(dir.path().join("b"))).await?;
//! assert_eq!(std::fs::read_to_string(dir.path().join("b"))?, "hello");
//! # Ok(())
//! # })
//! # }
//! ```
#![forbid(unsafe_code)]

mod client_call;
mod content_type;
mod download;
pub mod local;
mod observer;
mod open_location;
mod socket_lake;
mod transfer;
mod upload;

pub use client_call::{client_options, spawn_client_call};
pub use observer::{CopyOutcome, Observer, Silent};
pub use open_location::{Entry, OpenLocation};
pub use socket_lake::SocketLake;
pub use transfer::{Transfer, TransferOptions};
