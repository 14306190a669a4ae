//! MDS, the shards of MosaicML's `streaming`.
//!
//! A shard is: u32 number of samples, u32 offsets of all samples and of the end, a JSON document that names
//! the columns, then the samples. A sample is one u32 per column of variable size, then the bytes of all
//! columns, in the order of the document. The scanner gives every sample with one field per column.
//! `index_json.rs` reads the `index.json` of a dataset, `encoding.rs` decodes the bytes of a column,
//! `hashes.rs` checks what the `index.json` says about a shard.
//!
//! Limits: offsets have 32 bits, so a shard is below 4 GiB; the table of offsets is held while the shard
//! streams by (4 bytes a sample; of a compressed shard, which could unpack to any table, up to
//! [`PACKED_SAMPLES_MAX`] samples), the document up to 1 MiB.

mod encoding;
mod hashes;
mod index_json;

use std::collections::HashSet;

use forebay_core::{Error, Kind, Result};
use serde::Deserialize;

pub use encoding::{MdsArray, MdsEncoding, MdsValue};
pub use hashes::{Checked, MdsHasher};
pub use index_json::{INDEX_JSON_BYTES_MAX, MdsFile, MdsIndex, MdsShard};

use crate::index::{FIELDS_MAX, Field, SampleRecord};
use crate::scan::{Accumulator, SampleSink, ShardScanner, StreamingCrc};

/// The longest document inside a shard that is read.
pub const CONFIG_BYTES_MAX: usize = 1 << 20;
/// Samples of a compressed shard, at most: a few kilobytes can unpack to gigabytes of offsets.
pub const PACKED_SAMPLES_MAX: u32 = 1 << 24;

/// The columns of a shard, as the document in it and the `index.json` have them.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct MdsColumns {
    #[serde(rename = "column_names")]
    names: Vec<String>,
    #[serde(rename = "column_encodings")]
    encodings: Vec<String>,
    #[serde(rename = "column_sizes")]
    sizes: Vec<Option<u32>>,
}

impl MdsColumns {
    /// Checks that the three lists belong together.
    fn check(self) -> Result<Self> {
        let count = self.names.len();
        let different: HashSet<&str> = self.names.iter().map(String::as_str).collect();
        let lengths = [different.len(), self.encodings.len(), self.sizes.len()];
        if lengths == [count; 3] && count <= FIELDS_MAX {
            return Ok(self);
        }
        let message =
            "the columns of an MDS shard do not fit together, have a name twice, or there are too many";
        Err(Error::new(Kind::Corrupt, message).with("columns", count))
    }

    /// Name and encoding of every column.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        let encodings = self.encodings.iter().map(String::as_str);
        self.names.iter().map(String::as_str).zip(encodings)
    }

    /// The size of every column; `None`: it varies and stands in the sample.
    fn fixed(&self) -> impl Iterator<Item = Option<u32>> {
        // The library writes null; 0 means the same.
        self.sizes.iter().map(|size| size.filter(|size| *size > 0))
    }
}

/// Finds the samples of a shard.
pub struct MdsScanner {
    shard_bytes: Option<u64>,
    samples_max: u32,
    at: u64,
    accumulator: Accumulator,
    state: ShardState,
    columns: Option<MdsColumns>,
    /// Ends of samples, the last one first.
    ends: Vec<u32>,
    sizes: Vec<u64>,
    /// Offset and CRC of the fields of this sample that are complete.
    done: Vec<(u64, u32)>,
}

enum ShardState {
    Count,
    Offsets { samples: u32 },
    Config { bytes: usize },
    Sizes,
    Column { crc: StreamingCrc },
    End,
}

impl MdsScanner {
    /// For a shard of this size; `None`: not known, because it is being decompressed.
    #[must_use]
    pub fn new(shard_bytes: Option<u64>) -> Self {
        Self {
            shard_bytes,
            samples_max: u32::MAX,
            at: 0,
            accumulator: Accumulator::default(),
            state: ShardState::Count,
            columns: None,
            ends: Vec::new(),
            sizes: Vec::new(),
            done: Vec::new(),
        }
    }

    /// For a shard that is being decompressed to so many bytes, if that is known.
    #[must_use]
    pub fn packed(shard_bytes: Option<u64>) -> Self {
        Self {
            samples_max: PACKED_SAMPLES_MAX,
            ..Self::new(shard_bytes)
        }
    }

    /// The columns, once the document has come.
    #[must_use]
    pub fn columns(&self) -> Option<&MdsColumns> {
        self.columns.as_ref()
    }

    /// One thing, if all of it is there. The answer is whether it was.
    fn step(&mut self, input: &mut &[u8], sink: &mut dyn SampleSink) -> Result<bool> {
        match &mut self.state {
            ShardState::Count => self.read_count(input),
            ShardState::Offsets { samples } => {
                let samples = *samples;
                self.read_offsets(samples, input)
            }
            ShardState::Config { bytes } => {
                let bytes = *bytes;
                self.read_config(bytes, input)
            }
            ShardState::Sizes => self.read_sizes(input, sink),
            ShardState::Column { crc } => {
                let Some(crc) = crc.take(input) else {
                    return Ok(false);
                };
                let column = self.done.len();
                self.done.push((self.at, crc));
                self.at += self.sizes[column];
                self.next_column(sink)?;
                Ok(true)
            }
            ShardState::End if input.is_empty() => Ok(false),
            ShardState::End => Err(damaged("has bytes behind its last sample")),
        }
    }

    fn read_count(&mut self, input: &mut &[u8]) -> Result<bool> {
        let Some(bytes) = self.accumulator.fill(input, 4) else {
            return Ok(false);
        };
        let samples = u32_at(bytes, 0);
        self.accumulator.clear();
        self.at = 4;
        let table_end = 4 * (u64::from(samples) + 2);
        if table_end > self.shard_bytes.unwrap_or(u32::MAX.into()) {
            let message = "this is not an MDS shard: its table of samples is longer than the shard";
            return Err(Error::new(Kind::InvalidInput, message).with("samples", samples));
        }
        if samples > self.samples_max {
            let message = "the compressed MDS shard has more samples than can be read; write smaller shards";
            let error = Error::new(Kind::Unsupported, message).with("samples", samples);
            return Err(error.with("samples_max", self.samples_max));
        }
        self.state = ShardState::Offsets { samples };
        Ok(true)
    }

    fn read_offsets(&mut self, samples: u32, input: &mut &[u8]) -> Result<bool> {
        let table_bytes = 4 * (samples as usize + 1);
        let Some(table) = self.accumulator.fill(input, table_bytes) else {
            return Ok(false);
        };
        let offsets: Vec<u32> = table
            .chunks_exact(4)
            .map(|bytes| u32::from_le_bytes(bytes.try_into().expect("four bytes")))
            .collect();
        self.accumulator.clear();
        self.at += table_bytes as u64;
        let first = u64::from(offsets[0]);
        let last = u64::from(offsets[offsets.len() - 1]);
        if !offsets.is_sorted() || first < self.at || self.shard_bytes.is_some_and(|bytes| bytes != last) {
            return Err(damaged("has a wrong table of samples"));
        }
        let config_bytes = usize::try_from(first - self.at).unwrap_or(usize::MAX);
        if config_bytes > CONFIG_BYTES_MAX {
            return Err(damaged("has a document that is too long").with("bytes", config_bytes));
        }
        self.ends = offsets[1..].iter().rev().copied().collect();
        self.state = ShardState::Config { bytes: config_bytes };
        Ok(true)
    }

    fn read_config(&mut self, bytes: usize, input: &mut &[u8]) -> Result<bool> {
        let Some(config) = self.accumulator.fill(input, bytes) else {
            return Ok(false);
        };
        let columns: MdsColumns = serde_json::from_slice(config)
            .map_err(|why| damaged("has a document that cannot be read").caused_by(why))?;
        self.columns = Some(columns.check()?);
        self.accumulator.clear();
        self.at += bytes as u64;
        self.state = if self.ends.is_empty() {
            ShardState::End
        } else {
            ShardState::Sizes
        };
        Ok(true)
    }

    fn variable_columns(&self) -> usize {
        self.columns
            .as_ref()
            .map_or(0, |columns| columns.fixed().filter(Option::is_none).count())
    }

    fn read_sizes(&mut self, input: &mut &[u8], sink: &mut dyn SampleSink) -> Result<bool> {
        let Some(end) = self.ends.last().copied().map(u64::from) else {
            self.state = ShardState::End;
            return Ok(true);
        };
        let sizes_bytes = 4 * self.variable_columns();
        if self.at + sizes_bytes as u64 > end {
            return Err(self.wrong_sample());
        }
        let Some(bytes) = self.accumulator.fill(input, sizes_bytes) else {
            return Ok(false);
        };
        self.sizes.clear();
        let mut variable = bytes.chunks_exact(4);
        for fixed in self.columns.iter().flat_map(MdsColumns::fixed) {
            let size = fixed.or_else(|| variable.next().map(|bytes| u32_at(bytes, 0)));
            self.sizes.push(size.unwrap_or(0).into());
        }
        self.accumulator.clear();
        self.at += sizes_bytes as u64;
        if self.at + self.sizes.iter().sum::<u64>() != end {
            return Err(self.wrong_sample());
        }
        self.ends.pop();
        self.done.clear();
        self.next_column(sink)?;
        Ok(true)
    }

    /// Starts the next column that has bytes; when there is none, the sample is complete.
    fn next_column(&mut self, sink: &mut dyn SampleSink) -> Result<()> {
        while let Some(bytes) = self.sizes.get(self.done.len()) {
            if *bytes > 0 {
                self.state = ShardState::Column {
                    crc: StreamingCrc::new(*bytes),
                };
                return Ok(());
            }
            self.done.push((self.at, 0));
        }
        if let Some(columns) = &self.columns {
            let places = self.sizes.iter().zip(&self.done);
            let fields: Vec<Field<'_>> = columns
                .names
                .iter()
                .zip(places)
                .map(|(name, (bytes, (offset, crc)))| Field {
                    name,
                    offset: *offset,
                    bytes: *bytes,
                    crc32c: Some(*crc),
                })
                .collect();
            sink.sample(&SampleRecord::new(None, &fields))?;
        }
        self.state = if self.ends.is_empty() {
            ShardState::End
        } else {
            ShardState::Sizes
        };
        Ok(())
    }

    fn wrong_sample(&self) -> Error {
        damaged("has a sample whose columns are not as long as the sample").with("offset", self.at)
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn damaged(what: &str) -> Error {
    let message = format!("the MDS shard {what}; it is damaged or was not uploaded whole");
    Error::new(Kind::Corrupt, message)
}

impl ShardScanner for MdsScanner {
    fn push(&mut self, mut bytes: &[u8], sink: &mut dyn SampleSink) -> Result<()> {
        while self.step(&mut bytes, sink)? {}
        Ok(())
    }

    fn finish(&mut self, _sink: &mut dyn SampleSink) -> Result<()> {
        match self.state {
            ShardState::End => Ok(()),
            _ => Err(damaged("stops in the middle").with("offset", self.at)),
        }
    }
}

#[cfg(test)]
mod tests;
