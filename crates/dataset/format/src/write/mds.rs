//! MDS: a table of offsets, a document that names the columns, the samples; and the `index.json` beside the
//! shards.
//!
//! All columns are written with their size in front, whatever their encoding: readers take that for each of
//! them, and a column of fixed size would have to be known before the first sample. `index.json` says how
//! long each shard is and what its SHA-256 is, as the library does.

use forebay_core::{Error, Kind, Result};
use serde_json::{Value, json};

use super::{KEY_FIELD, Out, PackFormat, PackSample, RawShard, SampleShape, ShardWriter, refused};
use crate::manifest::Digest;

/// A column of an MDS dataset.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct MdsColumn {
    /// Its name.
    pub name: String,
    /// Encoding of its bytes: `bytes`, `str`, `jpeg` …
    pub encoding: String,
}

impl MdsColumn {
    /// The column of a field, where nobody says how it is encoded: known endings of files, else plain bytes.
    #[must_use]
    pub fn of_field(name: &str) -> Self {
        let ending = name.rsplit('.').next().unwrap_or(name);
        let encoding = match ending {
            KEY_FIELD | "txt" | "text" => "str",
            "jpg" | "jpeg" => "jpeg",
            "png" => "png",
            "json" => "json",
            _ => "bytes",
        };
        Self {
            name: name.to_owned(),
            encoding: encoding.to_owned(),
        }
    }
}

/// Returns how the shards of a dataset are described, in them and in `index.json`.
fn config(columns: &[MdsColumn], compression: Option<&str>) -> Value {
    json!({
        "column_encodings": columns.iter().map(|column| &column.encoding).collect::<Vec<_>>(),
        "column_names": columns.iter().map(|column| &column.name).collect::<Vec<_>>(),
        "column_sizes": columns.iter().map(|_| Value::Null).collect::<Vec<_>>(),
        "compression": compression,
        "format": "mds",
        "hashes": ["sha256"],
        "size_limit": null,
        "version": 2,
    })
}

/// A shard that is written.
#[derive(Debug, Clone, Copy)]
pub struct PackedMds<'a> {
    /// The name of its file.
    pub name: &'a str,
    /// Its size.
    pub bytes: u64,
    /// Its digest.
    pub sha256: Digest,
    /// Its samples.
    pub samples: u64,
    /// The shard in it, if the file is compressed.
    pub raw: Option<RawShard>,
}

/// The document beside the shards: name, size, samples and SHA-256 of each, before and after they were
/// compressed.
#[must_use]
pub fn index_json<'a>(format: &PackFormat, shards: impl Iterator<Item = PackedMds<'a>>) -> String {
    let file = |name: &str, bytes: u64, sha256: Digest| json!({"basename": name, "bytes": bytes, "hashes": {"sha256": sha256.to_string()}});
    let compression = format.compression();
    let shards = shards.map(|packed| {
        let mut shard = config(format.mds_columns().unwrap_or_default(), compression.as_deref());
        let stored = file(packed.name, packed.bytes, packed.sha256);
        (shard["raw_data"], shard["zip_data"]) = match packed.raw {
            Some(raw) => {
                let name = packed.name.strip_suffix(".zstd").unwrap_or(packed.name);
                (file(name, raw.bytes, raw.sha256), stored)
            }
            None => (stored, Value::Null),
        };
        shard["samples"] = packed.samples.into();
        shard
    });
    json!({"version": 2, "shards": shards.collect::<Vec<_>>()}).to_string()
}

pub(super) fn sample_bytes(columns: &[MdsColumn], sample: &SampleShape<'_>) -> Result<u64> {
    let mut all = 4 * columns.len() as u64;
    for column in columns {
        let found = sample.fields.iter().find(|(name, _)| *name == column.name);
        all = all.saturating_add(match found {
            Some((_, bytes)) => *bytes,
            None if column.name == KEY_FIELD => sample.key.len() as u64,
            None => {
                let message = "the sample lacks a field that others have, and all samples of an MDS dataset have the same columns; \
                               pack to tar or tfrecord, or leave the sample out";
                return Err(refused(message).with("field", &column.name));
            }
        });
    }
    if all > u64::from(u32::MAX) / 2 {
        return Err(refused("the sample is too large for MDS; pack to tar or tfrecord").with("bytes", all));
    }
    Ok(all)
}

/// Number, offsets and document.
pub(super) fn head_bytes(columns: &[MdsColumn], compression: Option<&str>, samples: u64) -> u64 {
    4 + 4 * (samples + 1) + config(columns, compression).to_string().len() as u64
}

pub(super) struct MdsWriter {
    columns: Vec<MdsColumn>,
    compression: Option<String>,
    sample_bytes: Vec<u64>,
}

impl MdsWriter {
    pub(super) fn new(columns: Vec<MdsColumn>, compression: Option<String>, sample_bytes: Vec<u64>) -> Self {
        Self {
            columns,
            compression,
            sample_bytes,
        }
    }
}

impl ShardWriter for MdsWriter {
    fn start(&mut self, out: Out<'_>) -> Result<()> {
        let samples = self.sample_bytes.len() as u64;
        let mut at = head_bytes(&self.columns, self.compression.as_deref(), samples);
        let mut head = (samples as u32).to_le_bytes().to_vec();
        for bytes in [0].iter().chain(&self.sample_bytes) {
            at = at.saturating_add(*bytes);
            let offset = u32::try_from(at).map_err(|_| {
                refused("the shard is too large for MDS; choose a smaller shard size").with("bytes", at)
            })?;
            head.extend_from_slice(&offset.to_le_bytes());
        }
        let config = config(&self.columns, self.compression.as_deref());
        head.extend_from_slice(config.to_string().as_bytes());
        out(&head)
    }

    fn sample(&mut self, sample: &PackSample<'_>, out: Out<'_>) -> Result<()> {
        let mut sizes = Vec::with_capacity(4 * self.columns.len());
        let mut parts = Vec::with_capacity(self.columns.len());
        for column in &self.columns {
            let found = sample.fields.iter().find(|(name, _)| *name == column.name);
            let bytes = match found {
                Some((_, bytes)) => *bytes,
                None if column.name == KEY_FIELD => sample.key,
                None => {
                    return Err(Error::new(
                        Kind::Internal,
                        "a sample has other columns than were planned",
                    ));
                }
            };
            sizes.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
            parts.push(bytes);
        }
        out(&sizes)?;
        parts.into_iter().try_for_each(out)
    }

    fn finish(&mut self, _out: Out<'_>) -> Result<()> {
        Ok(())
    }
}
