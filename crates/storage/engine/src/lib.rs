//! The engine that every edge of a node calls: buckets and objects of a lake, read through the reservoir,
//! written through to the lake.
//!
//! Read in this order: [`Engine`] (`engine.rs`), `bucket.rs`, `with_version.rs`, `freshness.rs`, `metadata.rs`, `read.rs`, `pieces.rs`,
//! `lease.rs`, `source.rs`, `write.rs`, `list.rs`, `derived.rs`, `copy.rs`, `delete.rs`, `upload.rs`,
//! `tag.rs`, `document.rs`. The flows are in docs/flows/.
#![forbid(unsafe_code)]

mod bucket;
mod condition;
mod copy;
mod delete;
mod derived;
mod document;
mod engine;
mod engine_source;
mod freshness;
mod lease;
mod list;
mod metadata;
mod metadata_name;
mod object;
mod pieces;
mod read;
mod read_version;
mod source;
mod tag;
mod upload;
mod with_version;
mod write;

pub use bucket::BucketInfo;
pub use condition::{Conditions, Verdict};
pub use delete::DeleteCondition;
pub use derived::{Derived, DerivedStat};
pub use engine::{BucketOptions, Consistency, Engine, EngineOptions, LakeOptions, LakePromises};
pub use engine_source::EngineSource;
pub use forebay_lake::LakeCondition;
pub use lease::{LeaseMemory, LeaseRequest, ObjectLease};
pub use metadata_name::{kept_metadata_name, shown_metadata_name};
pub use object::{
    ChecksumKind, CopyRequest, ObjectChecksum, ObjectInfo, ObjectRead, RangeRequest, ReadAnswer, Tag,
};
pub use pieces::ObjectPieces;
pub use source::{BucketLake, LakeSource, LakeSources, Sources};
pub use upload::{CompleteRequest, CompletedPart, CreateUpload, PartCopy, PartInfo, PartRequest, UploadInfo};
pub use write::{Finish, ObjectWrite, WriteReceipt, WriteRequest};

// Words of the layers below that stand in the signatures of this one: a door needs core and engine.
pub use forebay_core::WriteCondition;
pub use forebay_lake::{Attributes, ListOptions, ListPage, ListedObject};
pub use forebay_reservoir::{Piece, PieceStream};
