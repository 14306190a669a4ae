//! What every edge of a node calls: buckets and objects of a lake, read through the reservoir, written through
//! to the lake.
//!
//! Read in this order: [`Engine`] (`engine.rs`), `bucket.rs`, `freshness.rs`, `read.rs`, `pieces.rs`, `lease.rs`, `source.rs`, `write.rs`,
//! `list.rs`, `step_view.rs`, `copy.rs`, `delete.rs`, `upload.rs`, `tag.rs`, `document.rs`. The flows are in docs/flows/.
#![forbid(unsafe_code)]

mod bucket;
mod condition;
mod copy;
mod delete;
mod document;
mod engine;
mod freshness;
mod lease;
mod list;
mod metadata_name;
mod object;
mod pieces;
mod read;
mod read_version;
mod source;
mod step_view;
mod tag;
mod upload;
mod write;

pub use bucket::BucketInfo;
pub use condition::{Conditions, Verdict};
pub use delete::DeleteCondition;
pub use engine::{BucketOptions, Consistency, Engine, EngineOptions, LakeOptions};
pub use lease::{LeasePlace, LeaseRequest, ObjectLease};
pub use metadata_name::{kept_metadata_name, shown_metadata_name};
pub use object::{
    ChecksumKind, CopyRequest, ObjectChecksum, ObjectInfo, ObjectRead, RangeRequest, ReadAnswer, Tag,
};
pub use pieces::ObjectPieces;
pub use upload::{CompleteRequest, CompletedPart, CreateUpload, PartCopy, PartInfo, PartRequest, UploadInfo};
pub use write::{Finish, ObjectWrite, WriteCondition, WriteReceipt, WriteRequest};
