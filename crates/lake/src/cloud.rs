//! Lakes in the cloud.
//!
//! `s3` is a small S3 client of our own, because `object_store` cannot express every legal key (`dir/`, `a//b`,
//! `..`), completes only contiguous part numbers and knows no conditional complete; it takes only the credential
//! chain of instances and pods from `object_store`. `generic` puts Google Cloud Storage and Azure behind the lake
//! trait through `object_store`. All speak HTTP/1.1 with many pooled connections: one HTTP/2 connection caps the
//! rate of a whole node.

mod chunks;
pub(crate) mod credentials;
pub(crate) mod generic;
pub(crate) mod http;
pub(crate) mod profile;
pub(crate) mod route;
pub(crate) mod s3;
