//! Shard writers: samples go in, the bytes of a shard come out, piece by piece.
//!
//! The other direction of `scan.rs`, and as pure: a writer holds no payload and does no I/O, its bytes go to
//! a function of the caller. Shards are plain WebDataset tar, TFRecord of `tf.train.Example`, MDS or Parquet;
//! whoever has the libraries of those formats reads them. The same samples give the same bytes, always: no
//! dates, no users, no order of hash maps. [`PackFormat::sample_bytes`] says before a byte is written how
//! long a sample will be (of Parquet about), so shards can be cut and announced in advance; MDS needs that,
//! because its offsets come first.
//!
//! A format that is compressed as a whole (`compressed.rs`) is compressed on the way out.
//!
//! Life cycle: [`PackFormat::writer`] with the sizes of all samples of the shard, `start`, `sample` for each,
//! `finish`.

mod compressed;
mod mds;
mod parquet;
mod tar;
mod tfrecord;

use forebay_core::{Error, Kind, Result};

pub use mds::{MdsColumn, PackedMds, index_json};
pub use parquet::ParquetColumn;
pub use tfrecord::{FeatureList, Records, feature};

use crate::manifest::Digest;
use crate::shard::Format;

/// The field or column that keeps the key of a sample in formats that have none.
pub const KEY_FIELD: &str = "__key__";

/// Takes the next bytes of a shard.
pub type Out<'a> = &'a mut dyn FnMut(&[u8]) -> Result<()>;

/// A sample as it is packed.
#[derive(Debug, Clone, Copy)]
pub struct PackSample<'a> {
    /// Its key; empty: it has none.
    pub key: &'a [u8],
    /// Name and bytes of each field, in the order in which they are written.
    pub fields: &'a [(&'a str, &'a [u8])],
}

/// The same before its bytes are there.
#[derive(Debug, Clone, Copy)]
pub struct SampleShape<'a> {
    /// Its key; empty: it has none.
    pub key: &'a [u8],
    /// Name and size of each field.
    pub fields: &'a [(&'a str, u64)],
}

/// Format that shards are packed into.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PackFormat {
    /// WebDataset: members `key.field`.
    Tar,
    /// A record per sample.
    TfRecord(Records),
    /// The same, compressed as a whole, as TensorFlow's `compression_type="GZIP"`.
    TfRecordGzip(Records),
    /// MosaicML's shards; every sample has these columns.
    Mds(Vec<MdsColumn>),
    /// The same, compressed as a whole with Zstandard at this level.
    MdsZstd(Vec<MdsColumn>, i32),
    /// Rows with these columns; a field that a sample lacks is null.
    Parquet(Vec<ParquetColumn>),
}

impl PackFormat {
    /// The format of the shards.
    #[must_use]
    pub fn format(&self) -> Format {
        match self {
            Self::Tar => Format::Tar,
            Self::TfRecord(_) | Self::TfRecordGzip(_) => Format::TfRecord,
            Self::Mds(_) | Self::MdsZstd(..) => Format::Mds,
            Self::Parquet(_) => Format::Parquet,
        }
    }

    /// The name of a shard.
    #[must_use]
    pub fn shard_name(&self, number: u64) -> String {
        match self {
            Self::Tar => format!("shard-{number:06}.tar"),
            Self::TfRecord(_) => format!("shard-{number:06}.tfrecord"),
            Self::TfRecordGzip(_) => format!("shard-{number:06}.tfrecord.gz"),
            Self::Parquet(_) => format!("shard-{number:06}.parquet"),
            // As the library calls them.
            Self::Mds(_) => format!("shard.{number:05}.mds"),
            Self::MdsZstd(..) => format!("shard.{number:05}.mds.zstd"),
        }
    }

    /// The longest shard that the format can have.
    #[must_use]
    pub fn shard_bytes_max(&self) -> u64 {
        match self {
            Self::Mds(_) | Self::MdsZstd(..) => u64::from(u32::MAX),
            _ => u64::MAX,
        }
    }

    /// Returns whether the sizes of samples and [`PackFormat::overhead_bytes`] together are the size of a
    /// shard to the byte.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        !matches!(self, Self::Parquet(_) | Self::TfRecordGzip(_) | Self::MdsZstd(..))
    }

    /// Returns whether a writer must know the sizes of all samples first.
    #[must_use]
    pub fn needs_sizes(&self) -> bool {
        self.mds_columns().is_some()
    }

    /// The columns, if it is MDS.
    #[must_use]
    pub fn mds_columns(&self) -> Option<&[MdsColumn]> {
        match self {
            Self::Mds(columns) | Self::MdsZstd(columns, _) => Some(columns),
            _ => None,
        }
    }

    /// Returns what MosaicML calls the compression.
    fn compression(&self) -> Option<String> {
        match self {
            Self::MdsZstd(_, level) => Some(format!("zstd:{level}")),
            _ => None,
        }
    }

    /// Returns how many bytes a sample adds to a shard, before the shard is compressed.
    ///
    /// Errors: `InvalidInput` if the format cannot hold it, with key or field and what to do.
    pub fn sample_bytes(&self, sample: &SampleShape<'_>) -> Result<u64> {
        let about = |error: Error| error.with("key", String::from_utf8_lossy(sample.key));
        check_fields(sample).map_err(about)?;
        let bytes = match self {
            Self::Tar => tar::sample_bytes(sample),
            Self::TfRecord(records) | Self::TfRecordGzip(records) => tfrecord::sample_bytes(records, sample),
            Self::Parquet(columns) => Ok(parquet::sample_bytes(columns, sample)),
            Self::Mds(columns) | Self::MdsZstd(columns, _) => mds::sample_bytes(columns, sample),
        };
        bytes.map_err(about)
    }

    /// Returns whether a sample may come right behind another one with this key in a shard.
    ///
    /// Errors: `InvalidInput` if readers would take the two for one.
    pub fn check_neighbours(&self, before: &[u8], key: &[u8]) -> Result<()> {
        match self {
            Self::Tar if before == key => {
                Err(tar::one_sample_of_two().with("key", String::from_utf8_lossy(key)))
            }
            _ => Ok(()),
        }
    }

    /// Returns how many bytes a shard with so many samples has besides them.
    #[must_use]
    pub fn overhead_bytes(&self, samples: u64) -> u64 {
        match self {
            Self::Tar => tar::END_BYTES,
            Self::TfRecord(_) | Self::TfRecordGzip(_) | Self::Parquet(_) => 0,
            Self::Mds(columns) | Self::MdsZstd(columns, _) => {
                mds::head_bytes(columns, self.compression().as_deref(), samples)
            }
        }
    }

    /// The writer of a shard whose samples have these sizes.
    #[must_use]
    pub fn writer(&self, sample_bytes: Vec<u64>) -> Box<dyn ShardWriter> {
        match self {
            Self::Tar => Box::new(tar::TarWriter::default()),
            Self::TfRecord(records) => Box::new(tfrecord::TfRecordWriter::new(records.clone())),
            Self::TfRecordGzip(records) => {
                Box::new(compressed::gzip(tfrecord::TfRecordWriter::new(records.clone())))
            }
            Self::Parquet(columns) => Box::new(parquet::ParquetWriter::new(columns.clone())),
            Self::Mds(columns) => Box::new(mds::MdsWriter::new(columns.clone(), None, sample_bytes)),
            Self::MdsZstd(columns, level) => {
                let samples = sample_bytes
                    .iter()
                    .fold(0, |all: u64, bytes| all.saturating_add(*bytes));
                let bytes = samples.saturating_add(self.overhead_bytes(sample_bytes.len() as u64));
                let writer = mds::MdsWriter::new(columns.clone(), self.compression(), sample_bytes);
                Box::new(compressed::zstd(writer, *level, bytes))
            }
        }
    }
}

/// Writes one shard.
pub trait ShardWriter {
    /// Returns what comes before the samples.
    fn start(&mut self, out: Out<'_>) -> Result<()>;

    /// The next sample.
    fn sample(&mut self, sample: &PackSample<'_>, out: Out<'_>) -> Result<()>;

    /// Returns what comes behind them.
    fn finish(&mut self, out: Out<'_>) -> Result<()>;

    /// After `finish`: the shard before it was compressed, if it was.
    fn raw(&self) -> Option<RawShard> {
        None
    }
}

/// A shard before it was compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawShard {
    /// Its size.
    pub bytes: u64,
    /// Its digest.
    pub sha256: Digest,
}

/// A field that comes twice would be lost in one format and damage in another.
fn check_fields(sample: &SampleShape<'_>) -> Result<()> {
    for (at, (field, _)) in sample.fields.iter().enumerate() {
        if sample.fields[..at].iter().any(|(before, _)| before == field) {
            let message =
                "a sample has a field twice (of files, endings count in lower case); rename one of them";
            return Err(refused(message).with("field", field));
        }
    }
    Ok(())
}

fn refused(message: &str) -> Error {
    Error::new(Kind::InvalidInput, message)
}

#[cfg(test)]
mod tests;
