//! Documents while they are read: every field where it stands in the JSON, none of them flattened.
//!
//! To flatten, serde first holds the whole document in a form of its own, 32 bytes for every number, before a
//! field of it is looked at. Written documents are flattened (that costs nothing); read ones go through these
//! structs, so that what they take is a small multiple of their bytes. What a caller does not need is skipped
//! and never held: [`Wanted`].

use std::collections::BTreeMap;
use std::mem::take;

use forebay_core::{Error, Kind, Result};
use serde::de::{Deserialize, Deserializer, IgnoredAny};
use serde_json::{Map, Value};

use super::{
    Alarm, Content, DataFile, Encoding, Extent, Manifest, Object, ObjectKind, Part, Record, StepRef,
    TableFile, Tensor, Tree,
};
use crate::shape::{TensorBox, dimensions};

/// A manifest or a record of a rank; `ALL` of it, or only what readers of tensors need.
#[derive(Debug, serde::Deserialize)]
pub(super) struct Document<const ALL: bool> {
    pub(super) format: String,
    pub(super) version: u32,
    step: u64,
    attempt: String,
    world_size: u32,
    files: Vec<DataFile>,
    tables: Vec<TableFile>,
    tensors: BTreeMap<String, Tensor>,
    objects: Wanted<BTreeMap<String, Vec<Object>>, ALL>,
    tree: Wanted<Tree, ALL>,
    metadata: Wanted<Map<String, Value>, ALL>,
    alarms: Wanted<Vec<Alarm>, ALL>,
    digest: String,
    // Of manifests.
    generation: Option<u32>,
    parent: Option<StepRef>,
    created_ms: Option<u64>,
    writer: Option<String>,
    // Of records.
    rank: Option<u32>,
}

/// A value that is there if it is wanted, and empty else.
#[derive(Debug)]
struct Wanted<T, const IS_WANTED: bool>(T);

impl<'de, T: Deserialize<'de> + Default, const IS_WANTED: bool> Deserialize<'de> for Wanted<T, IS_WANTED> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        if IS_WANTED {
            return T::deserialize(deserializer).map(Self);
        }
        IgnoredAny::deserialize(deserializer)?;
        Ok(Self(T::default()))
    }
}

impl<const ALL: bool> Document<ALL> {
    pub(super) fn manifest(mut self) -> Result<Manifest> {
        Ok(Manifest {
            content: self.content(),
            format: self.format,
            version: self.version,
            step: self.step,
            generation: there(self.generation, "generation")?,
            attempt: self.attempt,
            world_size: self.world_size,
            parent: self.parent,
            created_ms: there(self.created_ms, "created_ms")?,
            writer: there(self.writer, "writer")?,
            digest: self.digest,
        })
    }

    pub(super) fn record(mut self) -> Result<Record> {
        Ok(Record {
            content: self.content(),
            format: self.format,
            version: self.version,
            step: self.step,
            attempt: self.attempt,
            rank: there(self.rank, "rank")?,
            world_size: self.world_size,
            digest: self.digest,
        })
    }

    fn content(&mut self) -> Content {
        Content {
            files: take(&mut self.files),
            tables: take(&mut self.tables),
            tensors: take(&mut self.tensors),
            objects: take(&mut self.objects.0),
            tree: take(&mut self.tree.0),
            metadata: take(&mut self.metadata.0),
            alarms: take(&mut self.alarms.0),
        }
    }
}

fn there<T>(field: Option<T>, name: &'static str) -> Result<T> {
    field.ok_or_else(|| Error::new(Kind::Corrupt, "a document lacks a field").with("field", name))
}

/// [`super::Part`].
#[derive(serde::Deserialize)]
pub(super) struct FlatPart {
    #[serde(deserialize_with = "dimensions")]
    offset: Vec<u64>,
    #[serde(deserialize_with = "dimensions")]
    shape: Vec<u64>,
    file: u32,
    range: [u64; 2],
    blake3: String,
    table: u32,
    first_block: u64,
    #[serde(default)]
    encoding: Option<Box<Encoding>>,
    #[serde(default)]
    sha256: Option<String>,
}

impl From<FlatPart> for Part {
    fn from(flat: FlatPart) -> Self {
        Self {
            at: TensorBox {
                offset: flat.offset,
                shape: flat.shape,
            },
            bytes: Extent {
                file: flat.file,
                range: flat.range,
                blake3: flat.blake3,
                table: flat.table,
                first_block: flat.first_block,
                encoding: flat.encoding,
            },
            sha256: flat.sha256,
        }
    }
}

/// [`super::Object`].
#[derive(serde::Deserialize)]
pub(super) struct FlatObject {
    ranks: Vec<u32>,
    kind: ObjectKind,
    file: u32,
    range: [u64; 2],
    blake3: String,
    table: u32,
    first_block: u64,
    #[serde(default)]
    encoding: Option<Box<Encoding>>,
}

impl From<FlatObject> for Object {
    fn from(flat: FlatObject) -> Self {
        Self {
            ranks: flat.ranks,
            kind: flat.kind,
            bytes: Extent {
                file: flat.file,
                range: flat.range,
                blake3: flat.blake3,
                table: flat.table,
                first_block: flat.first_block,
                encoding: flat.encoding,
            },
        }
    }
}
