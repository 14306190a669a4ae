//! The operations, one file per family. Each takes `s3s`'s typed input, calls the engine, and gives the typed
//! output; signature and access are checked before.

pub(crate) mod bucket;
pub(crate) mod copy;
pub(crate) mod delete;
pub(crate) mod list;
pub(crate) mod multipart;
pub(crate) mod object_read;
pub(crate) mod object_write;
pub(crate) mod settings;
pub(crate) mod tagging;
pub(crate) mod uploads;

use s3s::{S3Request, S3Response, S3Result};

/// Result of every operation.
pub(crate) type Response<T> = S3Result<S3Response<T>>;

/// Input of every operation.
pub(crate) type Request<T> = S3Request<T>;
