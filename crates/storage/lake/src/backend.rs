//! Object stores: one file or folder each, all behind [`Lake`](crate::Lake).
//!
//! - `folder`: a directory of plain files, any POSIX file system.
//! - `memory`: the reference model, for tests and for trying things out.
//! - `s3`: a small S3 client of our own. `object_store` cannot express every legal key (`dir/`, `a//b`, `..`),
//!   completes only contiguous part numbers and knows no conditional complete; it supplies only the credential
//!   chain of instances and pods. Requests go over HTTP/1.1 with many pooled connections: one HTTP/2 connection
//!   caps the rate of a whole node.
//! - `object_store`: Google Cloud Storage and Azure through the library of that name.
//!
//! `chunks` is the send buffer of the two cloud writers.

mod chunks;
pub(crate) mod folder;
pub(crate) mod memory;
pub(crate) mod object_store;
pub(crate) mod s3;
