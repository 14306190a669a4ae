//! MDS: a table of offsets, a document that names the columns, the samples; and the `index.json` beside the shards.
//!
//! All columns are written with their size in front, whatever their encoding: readers take that for each of them, and a column of fixed size would
//! have to be known before the first sample. `index.json` says how long each shard is and what its SHA-256 is, as the library does.

use forebay_core::{Error, Kind, Result};
use serde_json::{Value, json};

use super::{KEY_FIELD, Out, PackSample, SampleShape, ShardWriter, refused};
use crate::manifest::Digest;

/// A column of an MDS dataset.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct MdsColumn {
    /// Its name.
    pub name: String,
    /// How its bytes are read: `bytes`, `str`, `jpeg` …
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

/// How the shards of a dataset are described, in them and in `index.json`.
fn config(columns: &[MdsColumn]) -> Value {
    json!({
        "column_encodings": columns.iter().map(|column| &column.encoding).collect::<Vec<_>>(),
        "column_names": columns.iter().map(|column| &column.name).collect::<Vec<_>>(),
        "column_sizes": columns.iter().map(|_| Value::Null).collect::<Vec<_>>(),
        "compression": null,
        "format": "mds",
        "hashes": ["sha256"],
        "size_limit": null,
        "version": 2,
    })
}

/// The document beside the shards: name, size, samples and SHA-256 of each.
#[must_use]
pub fn index_json<'a>(
    columns: &[MdsColumn],
    shards: impl Iterator<Item = (&'a str, u64, u64, Digest)>,
) -> String {
    let shards = shards.map(|(name, bytes, samples, sha256)| {
        let mut shard = config(columns);
        shard["raw_data"] =
            json!({"basename": name, "bytes": bytes, "hashes": {"sha256": sha256.to_string()}});
        shard["zip_data"] = Value::Null;
        shard["samples"] = samples.into();
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
pub(super) fn head_bytes(columns: &[MdsColumn], samples: u64) -> u64 {
    4 + 4 * (samples + 1) + config(columns).to_string().len() as u64
}

pub(super) struct MdsWriter {
    columns: Vec<MdsColumn>,
    sample_bytes: Vec<u64>,
}

impl MdsWriter {
    pub(super) fn new(columns: Vec<MdsColumn>, sample_bytes: Vec<u64>) -> Self {
        Self {
            columns,
            sample_bytes,
        }
    }
}

impl ShardWriter for MdsWriter {
    fn start(&mut self, out: Out<'_>) -> Result<()> {
        let samples = self.sample_bytes.len() as u64;
        let mut at = head_bytes(&self.columns, samples);
        let mut head = (samples as u32).to_le_bytes().to_vec();
        for bytes in [0].iter().chain(&self.sample_bytes) {
            at = at.saturating_add(*bytes);
            let offset = u32::try_from(at).map_err(|_| {
                refused("the shard is too large for MDS; choose a smaller shard size").with("bytes", at)
            })?;
            head.extend_from_slice(&offset.to_le_bytes());
        }
        head.extend_from_slice(config(&self.columns).to_string().as_bytes());
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
