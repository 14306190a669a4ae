//! The commit of a step: a JSON document that names every tensor, every part, and what proves it.
//!
//! Life cycle: every rank has a [`Record`] of what it wrote; the committer merges all records into a
//! [`Manifest`] and creates it in the lake, once. A reader takes the highest generation,
//! [`Manifest::decode`]s it (digest, version, then every number in it), and trusts it from then on. Who needs
//! only tensors uses [`Manifest::decode_tensors`], which takes a small multiple of the document in memory
//! whatever is in it.
//!
//! Limits: 256 MiB, 2^22 tensors; see docs/formats/checkpoint.md.

mod check;
mod document;
mod encoding;
mod flat;
#[cfg(test)]
mod tests;
mod tree;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::Dtype;
use crate::shape::{TensorBox, dimensions};

pub use document::DOCUMENT_BYTES_MAX;
pub use encoding::{DEPTH_MAX, Encoding, EncodingKind};
pub use tree::Tree;

/// Tensors of one step.
pub const TENSORS_MAX: usize = 1 << 22;
/// The version that this program writes and reads.
pub const VERSION: u32 = 1;

/// Content that was written: by one rank in a record, by all in a manifest.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Content {
    /// Files that hold bytes, of this attempt or of an earlier step.
    pub files: Vec<DataFile>,
    /// Side tables.
    pub tables: Vec<TableFile>,
    /// Tensors by full name.
    pub tensors: BTreeMap<String, Tensor>,
    /// State that is not a tensor, by full name.
    pub objects: BTreeMap<String, Vec<Object>>,
    /// Tree by which names make up the user's state again; opaque here.
    pub tree: Tree,
    /// Metadata of the user.
    pub metadata: Map<String, Value>,
    /// Alarms that were let pass.
    pub alarms: Vec<Alarm>,
}

/// The commit of a step.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Manifest {
    /// `forebay-checkpoint`.
    pub format: String,
    /// [`VERSION`].
    pub version: u32,
    /// The step.
    pub step: u64,
    /// Counts from 1; the highest holds.
    pub generation: u32,
    /// The attempt that made it.
    pub attempt: String,
    /// Ranks that saved together.
    pub world_size: u32,
    /// The step whose files are reused.
    pub parent: Option<StepRef>,
    /// Time of the commit, milliseconds since 1970 UTC.
    pub created_ms: u64,
    /// Program and version.
    pub writer: String,
    /// Everything else.
    #[serde(flatten)]
    pub content: Content,
    /// BLAKE3 of the document with this field as zeros.
    pub digest: String,
}

/// Record of what one rank wrote.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Record {
    /// `forebay-checkpoint-rank`.
    pub format: String,
    /// [`VERSION`].
    pub version: u32,
    /// The step.
    pub step: u64,
    /// The attempt, the same on all ranks.
    pub attempt: String,
    /// The rank.
    pub rank: u32,
    /// Ranks that save together.
    pub world_size: u32,
    /// Content that it wrote.
    #[serde(flatten)]
    pub content: Content,
    /// BLAKE3 of the document with this field as zeros.
    pub digest: String,
}

/// A step by number and generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct StepRef {
    /// The step.
    pub step: u64,
    /// The generation.
    pub generation: u32,
}

/// A file that holds bytes of parts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataFile {
    /// Relative to the root of the run.
    pub path: String,
    /// Its size.
    pub bytes: u64,
    /// First byte of data, in a safetensors file; 0 in others.
    pub data_start: u64,
    /// BLAKE3 of the bytes before it; empty in others.
    pub header_blake3: String,
}

/// A side table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableFile {
    /// Relative to the root of the run.
    pub path: String,
    /// Its size.
    pub bytes: u64,
    /// Its digest.
    pub blake3: String,
}

/// A tensor and where its parts lie.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tensor {
    /// Type of its elements.
    pub dtype: Dtype,
    /// Its whole shape.
    #[serde(deserialize_with = "dimensions")]
    pub shape: Vec<u64>,
    /// Its parts; in a manifest they cover it.
    pub parts: Vec<Part>,
}

/// A box of a tensor, and its bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "flat::FlatPart")]
pub struct Part {
    /// Its box in the tensor.
    #[serde(flatten)]
    pub at: TensorBox,
    /// Position of its bytes, and their proof.
    #[serde(flatten)]
    pub bytes: Extent,
    /// SHA-256, where it was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
}

/// Bytes in a file, with their proofs: digest and checksums are those of the bytes that it stands for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extent {
    /// Index into `files`.
    pub file: u32,
    /// First byte and end, in the file.
    pub range: [u64; 2],
    /// Their digest.
    pub blake3: String,
    /// Index into `tables`.
    pub table: u32,
    /// The first entry in that table.
    pub first_block: u64,
    /// Encoding of what lies in the file; `None` where they lie there as they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encoding: Option<Box<Encoding>>,
}

/// State that is not a tensor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "flat::FlatObject")]
pub struct Object {
    /// The ranks that had just these bytes.
    pub ranks: Vec<u32>,
    /// Kind of the bytes.
    pub kind: ObjectKind,
    /// Their position.
    #[serde(flatten)]
    pub bytes: Extent,
}

/// Kind of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ObjectKind {
    /// A JSON text.
    Json,
    /// Just bytes.
    Bytes,
    /// A pickle, which only a caller who trusts it may load.
    Pickle,
}

/// Something that looked wrong when a step was committed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Alarm {
    /// Kind of the alarm.
    pub kind: AlarmKind,
    /// The tensor.
    pub name: String,
    /// For a person.
    pub message: String,
}

/// Kinds of alarms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AlarmKind {
    /// A part is all zeros and was not in the parent.
    Zeroed,
    /// Everything a rank saved is what it was in the parent, though the step went on.
    Stale,
    /// There are numbers that are none.
    NotFinite,
}
