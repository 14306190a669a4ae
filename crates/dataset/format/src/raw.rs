//! Raw files: every object is one sample, with its bytes as field `data`.
//!
//! A folder (or a part of one) becomes a shard of [`Layout::ObjectPerSample`]: the key of a sample is the
//! name of its object below the folder, and the columns `version` and `label` say which version was indexed
//! and what it shows. Labels come from the parent folder or from a manifest (`manifest.rs`). A listing is
//! enough to build the index; who reads the objects anyway adds their CRC32C.

mod manifest;

use std::collections::BTreeSet;

use forebay_core::{Error, Kind, Result};

pub use manifest::Manifest;

use crate::index::{
    ColumnKind, ColumnSpec, Field, SampleRecord, ShardIndex, ShardIndexBuilder, ShardIndexOptions, Value,
};
use crate::shard::{Format, Layout, ShardRecord};

/// The one field of a sample.
pub const FIELD: &str = "data";
/// The column with the versions of objects.
pub const VERSION_COLUMN: &str = "version";
/// The column with labels.
pub const LABEL_COLUMN: &str = "label";

/// Origin of labels.
#[derive(Debug, Clone, Default)]
pub enum Labels {
    /// There are none.
    #[default]
    None,
    /// The name of the folder that an object lies in.
    Folder,
    /// A list of paths and labels; objects that are not in it are no samples.
    Manifest(Manifest),
}

/// An object of a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawObject<'a> {
    /// Its name below the folder.
    pub name: &'a str,
    /// Its size.
    pub bytes: u64,
    /// Its version; empty if it is not known.
    pub version: &'a str,
    /// CRC32C of its bytes, if they were read.
    pub crc32c: Option<u32>,
}

/// Collects the objects of a folder.
#[derive(Debug)]
pub struct RawBuilder {
    folder: String,
    labels: Labels,
    builder: ShardIndexBuilder,
    bytes: u64,
    /// Paths of the manifest that were found.
    found: BTreeSet<String>,
}

impl RawBuilder {
    /// For a folder: the part of all names that is the same, with its slash; empty for a whole bucket.
    #[must_use]
    pub fn new(folder: impl Into<String>, labels: Labels) -> Self {
        let mut columns = vec![ColumnSpec::new(VERSION_COLUMN, ColumnKind::Text)];
        if !matches!(labels, Labels::None) {
            columns.push(ColumnSpec::new(LABEL_COLUMN, ColumnKind::Text));
        }
        let options = ShardIndexOptions {
            with_keys: true,
            columns,
        };
        Self {
            folder: folder.into(),
            labels,
            builder: ShardIndexBuilder::new(options),
            bytes: 0,
            found: BTreeSet::new(),
        }
    }

    /// Takes the next object; the answer is whether it is a sample.
    ///
    /// Errors: `InvalidInput` if labels come from folders and the object is in none.
    pub fn object(&mut self, object: &RawObject<'_>) -> Result<bool> {
        let label = match &self.labels {
            Labels::None => None,
            Labels::Folder => Some(folder_label(&self.folder, object.name)?),
            Labels::Manifest(manifest) => match manifest.label(object.name) {
                Some(label) => {
                    self.found.insert(object.name.to_owned());
                    Some(label)
                }
                None => return Ok(false),
            },
        };
        let field = Field {
            name: FIELD,
            offset: 0,
            bytes: object.bytes,
            crc32c: object.crc32c,
        };
        let values = [
            Value::Text(object.version),
            Value::Text(label.unwrap_or_default()),
        ];
        let values = &values[..1 + usize::from(label.is_some())];
        let sample = SampleRecord {
            values,
            ..SampleRecord::new(Some(object.name.as_bytes()), std::slice::from_ref(&field))
        };
        self.builder.sample(&sample)?;
        self.bytes = self.bytes.saturating_add(object.bytes);
        Ok(true)
    }

    /// The index of the folder.
    ///
    /// Errors: `NotFound` if the manifest has objects that did not come.
    pub fn finish(self) -> Result<ShardIndex> {
        if let Labels::Manifest(manifest) = &self.labels {
            let mut missing = manifest.paths().filter(|path| !self.found.contains(*path));
            if let Some(first) = missing.next() {
                let message = "the manifest names objects that are not in the folder";
                let error = Error::new(Kind::NotFound, message).with("first", first);
                return Err(error.with("missing", 1 + missing.count()));
            }
        }
        let mut record = ShardRecord::new(self.folder, Format::Raw, self.bytes);
        record.layout = Layout::ObjectPerSample;
        Ok(self.builder.finish(record))
    }
}

/// The last folder of a path.
fn folder_label<'a>(folder: &'a str, name: &'a str) -> Result<&'a str> {
    let last = |path: &'a str| path.rsplit('/').next().filter(|last| !last.is_empty());
    let inside = name.rsplit_once('/').and_then(|(path, _)| last(path));
    let label = inside.or_else(|| last(folder.strip_suffix('/').unwrap_or(folder)));
    label.ok_or_else(|| {
        let message = "the object lies in no folder that could be its label; give a manifest instead";
        Error::new(Kind::InvalidInput, message).with("object", name)
    })
}

#[cfg(test)]
mod tests;
