//! `index.json`: the shards of an MDS dataset, how long they are and what their hashes must be.
//!
//! Names in it are paths relative to the document; those that would leave its folder are refused. A document
//! is read up to [`INDEX_JSON_BYTES_MAX`].

use std::collections::BTreeMap;

use forebay_core::{Error, Kind, Result};
use serde::Deserialize;

use super::MdsColumns;
use crate::foreign::stays_inside;
use crate::shard::{Codec, Format, ShardRecord};

/// The longest `index.json` that is read: a million shards.
pub const INDEX_JSON_BYTES_MAX: usize = 1 << 30;

/// A file of a shard.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct MdsFile {
    /// Its path, relative to the document.
    #[serde(rename = "basename")]
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// Hashes by name of the algorithm, in hex.
    #[serde(default)]
    pub hashes: BTreeMap<String, String>,
}

/// A shard as the document has it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct MdsShard {
    /// Its columns.
    #[serde(flatten)]
    pub columns: MdsColumns,
    format: String,
    #[serde(default)]
    compression: Option<String>,
    /// The shard, decompressed.
    pub raw_data: MdsFile,
    /// The shard as it is stored, if it is compressed.
    #[serde(default)]
    pub zip_data: Option<MdsFile>,
    /// Its samples.
    pub samples: u64,
    version: u32,
}

/// The whole document.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct MdsIndex {
    version: u32,
    /// Its shards, in order.
    pub shards: Vec<MdsShard>,
}

impl MdsIndex {
    /// Reads a document.
    ///
    /// Errors: `Corrupt` if it cannot be read, `Unsupported` for another version, format or compression.
    pub fn parse(document: &[u8]) -> Result<Self> {
        if document.len() > INDEX_JSON_BYTES_MAX {
            let error = Error::new(Kind::Unsupported, "the index.json of the MDS dataset is too long");
            return Err(error.with("bytes_max", INDEX_JSON_BYTES_MAX));
        }
        let mut index: Self = serde_json::from_slice(document).map_err(|why| {
            let message =
                "the index.json of the MDS dataset cannot be read; is it one of mosaicml-streaming?";
            Error::new(Kind::Corrupt, message).caused_by(why)
        })?;
        if index.version != 2 {
            let message = "the index.json is of an unknown version; version 2 is read";
            return Err(Error::new(Kind::Unsupported, message).with("version", index.version));
        }
        for shard in &mut index.shards {
            shard.check()?;
        }
        Ok(index)
    }
}

impl MdsShard {
    fn check(&mut self) -> Result<()> {
        let unsupported =
            |message: &str| Err(Error::new(Kind::Unsupported, message).with("shard", &self.raw_data.name));
        if self.format != "mds" || self.version != 2 {
            return unsupported(
                "a shard of the dataset is no MDS shard of version 2; convert it, or use its own format",
            )
            .map_err(|error| error.with("format", &self.format));
        }
        if self.compression.is_some() != self.zip_data.is_some() {
            return unsupported("a shard of the dataset is compressed and not compressed at once");
        }
        let limit = u64::from(u32::MAX);
        if self.raw_data.bytes > limit || self.samples > limit / 4 {
            return unsupported("a shard of the dataset is larger than MDS allows");
        }
        self.columns = self.columns.clone().check()?;
        for file in [Some(&self.raw_data), self.zip_data.as_ref()]
            .into_iter()
            .flatten()
        {
            check_name(&file.name)?;
        }
        self.codec().map(|_| ())
    }

    /// Returns how the shard is compressed. Errors: `Unsupported`, with advice.
    pub fn codec(&self) -> Result<Codec> {
        let Some(compression) = &self.compression else {
            return Ok(Codec::None);
        };
        match compression.split(':').next() {
            Some("gz") => Ok(Codec::Gzip),
            Some("zstd") => Ok(Codec::Zstd),
            Some("bz2") => Ok(Codec::Bzip2),
            Some("br") => Ok(Codec::Brotli),
            Some("snappy") => Ok(Codec::Snappy),
            _ => {
                let message = "the shards are compressed in a way that is not supported; zstd, gz, br, bz2 and snappy are, \
                               or write them without compression";
                Err(Error::new(Kind::Unsupported, message).with("compression", compression))
            }
        }
    }

    /// The file that is stored.
    #[must_use]
    pub fn stored(&self) -> &MdsFile {
        self.zip_data.as_ref().unwrap_or(&self.raw_data)
    }

    /// The shard as an index keeps it.
    pub fn record(&self) -> Result<ShardRecord> {
        let stored = self.stored();
        let mut record = ShardRecord::new(&stored.name, Format::Mds, stored.bytes);
        record.codec = self.codec()?;
        record.stream_bytes = self.raw_data.bytes;
        Ok(record)
    }
}

/// A path that stays in the folder of the document.
fn check_name(name: &str) -> Result<()> {
    if stays_inside(name) {
        return Ok(());
    }
    let message = "the index.json names a file outside of its folder";
    Err(Error::new(Kind::InvalidInput, message).with("name", name))
}
