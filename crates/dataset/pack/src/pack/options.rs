//! Options of a pack.

use std::str::FromStr;

use forebay_core::{Error, Kind, Result};
use forebay_dataset::shard::Format;
use forebay_dataset::write::PackFormat;

/// Size of a shard unless something else is said.
const SHARD_BYTES_DEFAULT: u64 = 256 << 20;
/// Shards that are written at once unless something else is said.
const JOBS_DEFAULT: usize = 4;
/// Level of Zstandard that mosaicml-streaming has by default.
const ZSTD_LEVEL: i32 = 3;
/// Levels above take up to a gigabyte for every shard that is written.
const ZSTD_LEVELS: std::ops::RangeInclusive<i32> = 1..=19;

/// Options of a pack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackOptions {
    /// Format of the shards: tar, TFRecord, MDS or Parquet.
    pub format: Format,
    /// Compression of whole shards.
    pub compress: Compression,
    /// Bytes that a shard may have before it is compressed.
    pub shard_bytes: u64,
    /// Shuffles all samples by this seed.
    pub shuffle: Option<u64>,
    /// Sorts the samples; without effect if they are shuffled.
    pub sort_by: Option<SortBy>,
    /// Shards that are written at once.
    pub jobs: usize,
}

impl PackOptions {
    /// Shards of this format, in the order of the source.
    #[must_use]
    pub fn new(format: Format) -> Self {
        Self {
            format,
            compress: Compression::None,
            shard_bytes: SHARD_BYTES_DEFAULT,
            shuffle: None,
            sort_by: None,
            jobs: JOBS_DEFAULT,
        }
    }
}

/// Sort key of samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SortBy {
    /// The key of a sample.
    Key,
    /// The size of a sample, the smallest first.
    Bytes,
}

/// Compression of whole shards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// Shards stay as they are.
    None,
    /// Gzip, for TFRecord.
    Gzip,
    /// Zstandard at this level, for MDS.
    Zstd(i32),
}

impl FromStr for Compression {
    type Err = Error;

    /// Reads `none`, `gzip`, `zstd` or `zstd:LEVEL`.
    fn from_str(text: &str) -> Result<Self> {
        let (name, level) = match text.split_once(':') {
            Some((name, level)) => (name, Some(level)),
            None => (text, None),
        };
        match (name, level) {
            ("none", None) => Ok(Self::None),
            ("gzip", None) => Ok(Self::Gzip),
            ("zstd", None) => Ok(Self::Zstd(ZSTD_LEVEL)),
            ("zstd", Some(level)) => {
                let level = level.parse().ok().filter(|level| ZSTD_LEVELS.contains(level));
                let levels = (ZSTD_LEVELS.start(), ZSTD_LEVELS.end());
                let message = format!("levels of zstd are {} to {}", levels.0, levels.1);
                level
                    .map(Self::Zstd)
                    .ok_or_else(|| Error::new(Kind::InvalidInput, message))
            }
            _ => {
                let message = "there are none, gzip (tfrecord), zstd and zstd:LEVEL (mds)";
                Err(Error::new(Kind::InvalidInput, message))
            }
        }
    }
}

impl Compression {
    /// The format with this compression. Errors: `InvalidInput` if it has none of the kind.
    pub(super) fn of(self, format: PackFormat) -> Result<PackFormat> {
        let message = match (format, self) {
            (format, Self::None) => return Ok(format),
            (PackFormat::TfRecord(records), Self::Gzip) => return Ok(PackFormat::TfRecordGzip(records)),
            (PackFormat::Mds(columns), Self::Zstd(level)) => return Ok(PackFormat::MdsZstd(columns, level)),
            (PackFormat::TfRecord(_), _) => {
                "TensorFlow reads TFRecord compressed with gzip; choose gzip".to_owned()
            }
            (PackFormat::Mds(_), _) => {
                "MDS is compressed with Zstandard; choose zstd or zstd:LEVEL".to_owned()
            }
            (format, _) => format!(
                "only tfrecord (gzip) and mds (zstd) are compressed; {} shards are not compressed as a whole: samples could only be read from the start (Parquet compresses its columns anyway)",
                format.format().as_str()
            ),
        };
        Err(Error::new(Kind::InvalidInput, message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compressions_are_read_and_nonsense_is_refused() {
        assert_eq!("zstd".parse::<Compression>().unwrap(), Compression::Zstd(3));
        assert_eq!("zstd:19".parse::<Compression>().unwrap(), Compression::Zstd(19));
        for wrong in ["", "zstd:20", "zstd:x", "gzip:1", "lz4"] {
            assert!(wrong.parse::<Compression>().is_err(), "{wrong}");
        }
    }
}
