//! What a pack leaves beside its shards, so that it is whole or absent, and can go on after any end.
//!
//! docs/formats/dataset-pack.md has the layout. `packing` is there from before the first shard until after the manifest: who opens the folder meanwhile is refused. A
//! shard counts as written when its record is there and the object still has the version that the record names. The commit is the create-only write of
//! `SHA256SUMS`.

use std::collections::HashMap;

use forebay_client::{Client, Condition, Entry, ItemRange, ListOptions, Name, PutOptions, PutSource};
use forebay_core::{Error, Kind, Result};
use serde::{Deserialize, Serialize};

use super::super::open::Folder;

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
pub(crate) struct Target<'a> {
    pub(crate) client: &'a Client,
    pub(crate) folder: &'a Folder,
}

impl Target<'_> {
    /// An object of the folder.
    pub(crate) fn name(&self, relative: &str) -> Result<Name> {
        Name::new(&self.folder.bucket, &format!("{}{relative}", self.folder.prefix))
    }

    /// Where our own things lie; at the root of a bucket `.forebay/` is the node's.
    fn own(&self, relative: &str) -> String {
        let own = if self.folder.prefix.is_empty() {
            ".forebay-dataset"
        } else {
            ".forebay"
        };
        format!("{own}/{relative}")
    }

    /// Bytes and version of a small object.
    pub(crate) fn read(&self, relative: &str) -> Result<Option<Vec<u8>>> {
        match self.client.get(&self.name(relative)?, ItemRange::Whole, None) {
            Ok(view) => Ok(Some(view.to_vec())),
            Err(error) if error.kind() == Kind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Writes a small object. `false`: it was there, under [`Condition::Absent`].
    pub(crate) fn write(&self, relative: &str, bytes: &[u8], condition: Condition) -> Result<bool> {
        let name = self.name(relative)?;
        let put = |condition| {
            let options = PutOptions {
                condition,
                ..PutOptions::default()
            };
            self.client.put(&name, PutSource::Slice(bytes), options)
        };
        match put(condition) {
            Ok(_) => Ok(true),
            Err(error) if matches!(error.kind(), Kind::PreconditionFailed | Kind::AlreadyExists) => Ok(false),
            // A lake that cannot decide: one pack at a time is then up to the user, as the documentation says.
            Err(error) if error.kind() == Kind::Unsupported => put(Condition::None).map(|_| true),
            Err(error) => Err(error),
        }
    }

    /// The marker that is there.
    pub(crate) fn marker(&self) -> Result<Option<Marker>> {
        let Some(text) = self.read(&self.own(MARKER))? else {
            return Ok(None);
        };
        parse(&text).map(Some)
    }

    /// Sets the marker; `false` if there is one.
    pub(crate) fn mark(&self, marker: &Marker) -> Result<bool> {
        self.write(&self.own(MARKER), &to_json(marker)?, Condition::Absent)
    }

    /// Takes the marker away: the folder is whole.
    pub(crate) fn unmark(&self) -> Result<()> {
        self.client.delete(&self.name(&self.own(MARKER))?)
    }

    /// Notes that a shard is written.
    pub(crate) fn note(&self, id: &str, record: &ShardRecord) -> Result<()> {
        let name = self.own(&format!("pack-{id}/{}.json", record.name));
        self.write(&name, &to_json(record)?, Condition::None).map(|_| ())
    }

    /// Everything in the folder that is not ours, by name, with size and version.
    pub(crate) fn objects(&self) -> Result<HashMap<String, (u64, String)>> {
        let mut objects = HashMap::new();
        self.list(&self.folder.prefix, |below, bytes, version| {
            if !below.split('/').any(|part| part.starts_with('.')) {
                objects.insert(below.to_owned(), (bytes, version));
            }
            Ok(())
        })?;
        Ok(objects)
    }

    /// The shards of a pack that are written and still there as they were.
    pub(crate) fn written(&self, id: &str) -> Result<HashMap<String, ShardRecord>> {
        let objects = self.objects()?;
        let folder = self.own(&format!("pack-{id}/"));
        let mut names = Vec::new();
        self.list(&format!("{}{folder}", self.folder.prefix), |below, _, _| {
            names.push(format!("{folder}{below}"));
            Ok(())
        })?;
        let mut records = HashMap::new();
        for name in names {
            // A record that cannot be read is a shard that is written again.
            let record: Option<ShardRecord> = self.read(&name)?.and_then(|text| parse(&text).ok());
            if let Some(record) = record
                && objects.get(&record.name) == Some(&(record.bytes, record.version.clone()))
            {
                records.insert(record.name.clone(), record);
            }
        }
        Ok(records)
    }

    fn list(&self, prefix: &str, mut take: impl FnMut(&str, u64, String) -> Result<()>) -> Result<()> {
        let options = ListOptions {
            prefix: prefix.to_owned(),
            ..ListOptions::default()
        };
        for entry in self.client.list(&self.folder.bucket, options)? {
            if let Entry::Object(object) = entry? {
                let below = object.key.get(prefix.len()..).unwrap_or_default();
                take(below, object.bytes, object.version)?;
            }
        }
        Ok(())
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
            "a document of an earlier pack cannot be read; remove the folder and pack again",
        )
    };
    if text.len() > DOCUMENT_BYTES_MAX {
        return Err(wrong());
    }
    serde_json::from_slice(text).map_err(|why| wrong().caused_by(why))
}
