//! What every edge of a node calls: buckets and objects of a lake, read through the reservoir, written through
//! to the lake.
//!
//! Read in this order: [`Engine`] (`engine.rs`), `bucket.rs`, `freshness.rs`, `read.rs`, `write.rs`, `list.rs`,
//! `upload.rs`, `extras.rs`. The flows are in docs/flows/.
#![forbid(unsafe_code)]

mod condition;
mod engine;
mod object;
mod upload;
mod write;

pub use condition::{Conditions, Verdict};
pub use engine::{BucketInfo, BucketOptions, Consistency, Engine, EngineOptions};
pub use object::{ChecksumKind, CopyRequest, ObjectChecksum, ObjectInfo, ObjectRead, RangeRequest, ReadAnswer, Tag};
pub use upload::{CompleteRequest, CompletedPart, CreateUpload, ListedUpload, PartInfo, PartRequest, UploadInfo};
pub use write::{Finish, ObjectWrite, WriteCondition, WriteReceipt, WriteRequest};
