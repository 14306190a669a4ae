//! Documents that a pack keeps beside its shards, so that it is whole or absent, and can go on after any end.
//!
//! docs/formats/dataset-pack.md has the layout. `packing` is there from before the first shard until after
//! the manifest: who opens the folder meanwhile is refused. A shard counts as written when its record is
//! there and the object still has the version that the record names. The commit is the create-only write of
//! `SHA256SUMS`.

use std::collections::HashMap;

use forebay_client::WriteCondition;
use forebay_core::{Error, Kind, Result};
use serde::{Deserialize, Serialize};

use crate::folder::Folder;

/// The name of the marker.
const MARKER: &str = "packing";
/// A record or marker that is longer is none of ours.
const DOCUMENT_BYTES_MAX: usize = 64 << 10;

/// A shard that is written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ShardRecord {
    pub(crate) name: String,
    pub(crate) bytes: u64,
    pub(crate) samples: u64,
    pub(crate) sha256: String,
    /// The version that the lake gave.
    pub(crate) version: String,
    /// The shard before it was compressed, of compressed MDS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) raw: Option<RawRecord>,
}

/// A shard before it was compressed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RawRecord {
    pub(crate) bytes: u64,
    pub(crate) sha256: String,
}

/// That a folder is being packed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Marker {
    pub(crate) id: String,
    pub(crate) format: String,
    pub(crate) shards: u64,
    pub(crate) samples: u64,
}

/// The folder that is packed into.
pub(crate) struct PackFolder<'a> {
    pub(crate) folder: &'a Folder,
}

impl<'a> PackFolder<'a> {
    pub(crate) fn new(folder: &'a Folder) -> Self {
        Self { folder }
    }

    /// Returns where our own documents lie; at the root of a bucket `.forebay/` is the node's.
    fn own(&self, relative: &str) -> String {
        let own = if self.folder.is_bucket() {
            ".forebay-dataset"
        } else {
            ".forebay"
        };
        format!("{own}/{relative}")
    }

    /// The marker that is there.
    pub(crate) fn marker(&self) -> Result<Option<Marker>> {
        let Some((text, _)) = self.folder.read(&self.own(MARKER))? else {
            return Ok(None);
        };
        parse(&text).map(Some)
    }

    /// Sets the marker; `false` if there is one.
    pub(crate) fn mark(&self, marker: &Marker) -> Result<bool> {
        self.folder
            .write(&self.own(MARKER), &to_json(marker)?, WriteCondition::Absent)
    }

    /// Takes the marker away: the folder is whole.
    pub(crate) fn unmark(&self) -> Result<()> {
        self.folder.delete(&self.own(MARKER))
    }

    /// Notes that a shard is written.
    pub(crate) fn note(&self, id: &str, record: &ShardRecord) -> Result<()> {
        let name = self.own(&format!("pack-{id}/{}.json", record.name));
        self.folder
            .write(&name, &to_json(record)?, WriteCondition::None)
            .map(|_| ())
    }

    /// Everything in the folder that is not ours, by name, with size and version.
    pub(crate) fn objects(&self) -> Result<HashMap<String, (u64, String)>> {
        let mut objects = self.folder.list("")?;
        objects.retain(|object| !object.key.split('/').any(|part| part.starts_with('.')));
        let objects = objects.into_iter();
        Ok(objects
            .map(|object| (object.key, (object.bytes, object.version)))
            .collect())
    }

    /// The shards of a pack that are written and still there as they were.
    pub(crate) fn written(&self, id: &str) -> Result<HashMap<String, ShardRecord>> {
        let objects = self.objects()?;
        let own = self.own(&format!("pack-{id}/"));
        let mut records = HashMap::new();
        for document in self.folder.list(&own)? {
            let text = self.folder.read(&format!("{own}{}", document.key))?;
            // A record that cannot be read is a shard that is written again.
            let record: Option<ShardRecord> = text.and_then(|(text, _)| parse(&text).ok());
            if let Some(record) = record
                && objects.get(&record.name) == Some(&(record.bytes, record.version.clone()))
            {
                records.insert(record.name.clone(), record);
            }
        }
        Ok(records)
    }
}

fn to_json(document: &impl Serialize) -> Result<Vec<u8>> {
    serde_json::to_vec(document)
        .map_err(|why| Error::new(Kind::Internal, "cannot write a record").caused_by(why))
}

fn parse<T: for<'a> Deserialize<'a>>(text: &[u8]) -> Result<T> {
    let wrong = || {
        Error::new(
            Kind::Corrupt,
            "a document of an earlier pack cannot be read; pack into another folder",
        )
    };
    if text.len() > DOCUMENT_BYTES_MAX {
        return Err(wrong());
    }
    serde_json::from_slice(text).map_err(|why| wrong().caused_by(why))
}
