//! Facts about a shard as a whole: its name in the lake, its version, its format.
//!
//! A shard is one object with many samples, or ([`Layout::ObjectPerSample`]) a part of a folder in which
//! every object is one sample. The values here are what an index keeps of it and what decides whether an
//! index still fits.

use forebay_core::{Error, Kind, Result};

/// The longest name of a shard, field or column, and the longest version, that an index takes.
pub const NAME_BYTES_MAX: usize = 4096;

/// Format of a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Format {
    /// WebDataset: a tar archive, a sample is a run of members with one key.
    Tar,
    /// TFRecord: framed records with checksums.
    TfRecord,
    /// MosaicML's shards.
    Mds,
    /// One object per sample.
    Raw,
    /// A flat array of numpy, cut into windows.
    Npy,
    /// Flat numbers without a header, cut into windows.
    Bin,
    /// One JSON document per line.
    Jsonl,
    /// Apache Parquet: samples are rows.
    Parquet,
}

impl Format {
    /// Every format.
    pub const ALL: [Self; 8] = [
        Self::Tar,
        Self::TfRecord,
        Self::Mds,
        Self::Raw,
        Self::Npy,
        Self::Bin,
        Self::Jsonl,
        Self::Parquet,
    ];

    /// The name that people type and that documents have.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Tar => "tar",
            Self::TfRecord => "tfrecord",
            Self::Mds => "mds",
            Self::Raw => "raw",
            Self::Npy => "npy",
            Self::Bin => "bin",
            Self::Jsonl => "jsonl",
            Self::Parquet => "parquet",
        }
    }

    /// The format of this name.
    pub fn parse(name: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|format| format.as_str() == name);
        found.ok_or_else(|| {
            let message =
                "no such dataset format; there are tar, tfrecord, mds, raw, npy, bin, jsonl and parquet";
            Error::new(Kind::InvalidInput, message).with("format", name)
        })
    }

    /// Returns what the name of an object suggests, compression endings aside; `None`: it could be anything.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        let name = name.rsplit('/').next().unwrap_or(name).to_ascii_lowercase();
        let endings = [".gz", ".zst", ".zstd", ".gzip", ".br", ".bz2", ".snappy"];
        let bare = endings
            .iter()
            .find_map(|ending| name.strip_suffix(ending))
            .unwrap_or(&name);
        match bare.rsplit_once('.').map(|(_, ending)| ending) {
            Some("tar" | "tgz") => Some(Self::Tar),
            Some("tfrecord" | "tfrecords" | "tfrec") => Some(Self::TfRecord),
            Some("mds") => Some(Self::Mds),
            Some("npy") => Some(Self::Npy),
            Some("bin") => Some(Self::Bin),
            Some("jsonl" | "ndjson") => Some(Self::Jsonl),
            Some("parquet") => Some(Self::Parquet),
            // TensorFlow's datasets are called `name.tfrecord-00000-of-00512`.
            _ if bare.contains(".tfrecord-") => Some(Self::TfRecord),
            _ => None,
        }
    }

    pub(crate) const fn code(self) -> u8 {
        match self {
            Self::Tar => 1,
            Self::TfRecord => 2,
            Self::Mds => 3,
            Self::Raw => 4,
            Self::Npy => 5,
            Self::Bin => 6,
            Self::Jsonl => 7,
            Self::Parquet => 8,
        }
    }

    pub(crate) fn of_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|format| format.code() == code)
    }
}

/// Compression of a shard as a whole. Offsets of an index then lie in the decompressed stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Codec {
    /// Not at all.
    None,
    /// gzip, one or more members.
    Gzip,
    /// zlib, as TFRecord files may be.
    Zlib,
    /// Zstandard, one or more frames.
    Zstd,
    /// bzip2, one or more streams.
    Bzip2,
    /// Brotli; no first bytes tell it, a document has to.
    Brotli,
    /// Snappy without a frame; no first bytes tell it, a document has to.
    Snappy,
}

impl Codec {
    /// Every codec.
    pub const ALL: [Self; 7] = [
        Self::None,
        Self::Gzip,
        Self::Zlib,
        Self::Zstd,
        Self::Bzip2,
        Self::Brotli,
        Self::Snappy,
    ];

    /// The name that people type and that documents have.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Gzip => "gzip",
            Self::Zlib => "zlib",
            Self::Zstd => "zstd",
            Self::Bzip2 => "bzip2",
            Self::Brotli => "brotli",
            Self::Snappy => "snappy",
        }
    }

    pub(crate) const fn code(self) -> u8 {
        match self {
            Self::None => 0,
            Self::Gzip => 1,
            Self::Zlib => 2,
            Self::Zstd => 3,
            Self::Bzip2 => 4,
            Self::Brotli => 5,
            Self::Snappy => 6,
        }
    }

    pub(crate) fn of_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|codec| codec.code() == code)
    }
}

/// Objects behind the name of a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Layout {
    /// One object that holds all samples.
    OneObject,
    /// A folder: a sample's object is the name of the shard followed by the key of the sample.
    ObjectPerSample,
}

/// A shard as an index keeps it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardRecord {
    /// Its key in the lake, or relative to the dataset; for [`Layout::ObjectPerSample`] the folder, with its
    /// slash.
    pub name: String,
    /// Bytes of the object; of all objects together if there is one per sample.
    pub bytes: u64,
    /// The version (ETag) that was indexed; `None`: not known, only the size can be compared.
    pub version: Option<String>,
    /// SHA-256 of the object; `None`: not computed.
    pub sha256: Option<[u8; 32]>,
    /// Its format.
    pub format: Format,
    /// Its compression.
    pub codec: Codec,
    /// Bytes after decompression; the same as `bytes` if it is not compressed. Places are below it.
    pub stream_bytes: u64,
    /// Objects behind the name.
    pub layout: Layout,
}

impl ShardRecord {
    /// A shard that is one plain object, with no version and no hash yet.
    #[must_use]
    pub fn new(name: impl Into<String>, format: Format, bytes: u64) -> Self {
        Self {
            name: name.into(),
            bytes,
            version: None,
            sha256: None,
            format,
            codec: Codec::None,
            stream_bytes: bytes,
            layout: Layout::OneObject,
        }
    }

    /// With the version that the lake gave.
    #[must_use]
    pub fn with_version(mut self, version: impl Into<String>) -> Self {
        self.version = Some(version.into());
        self
    }

    /// Returns whether what is in the lake now is what was indexed.
    ///
    /// Errors: `Changed`, with the advice to index the shard again.
    pub fn check(&self, bytes: u64, version: Option<&str>) -> Result<()> {
        let same_version = match (&self.version, version) {
            (Some(indexed), Some(found)) => indexed == found,
            _ => true,
        };
        if self.bytes == bytes && same_version {
            return Ok(());
        }
        let message = "the shard is not the one that was indexed; index it again: forebay dataset index URL";
        let error = Error::new(Kind::Changed, message).with("shard", &self.name);
        let error = error.with("indexed_bytes", self.bytes).with("bytes", bytes);
        let unknown = "unknown";
        Err(error
            .with("indexed_version", self.version.as_deref().unwrap_or(unknown))
            .with("version", version.unwrap_or(unknown)))
    }

    /// Returns whether it is compressed as a whole, so that it can only be read from its start.
    #[must_use]
    pub fn is_compressed(&self) -> bool {
        self.codec != Codec::None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_have_distinct_names_and_codes() {
        for format in Format::ALL {
            assert_eq!(Format::parse(format.as_str()).unwrap(), format);
            assert_eq!(Format::of_code(format.code()), Some(format));
        }
        assert_eq!(Format::of_code(0), None);
        assert!(Format::parse("hdf5").unwrap_err().message().contains("tfrecord"));
    }

    #[test]
    fn names_suggest_formats() {
        for (name, format) in [
            ("a/b.0001.tar", Some(Format::Tar)),
            ("a/b.TGZ", Some(Format::Tar)),
            ("a/b.tar.zst", Some(Format::Tar)),
            ("x.tfrecord-00001-of-00512", Some(Format::TfRecord)),
            ("x.tfrecord.gz", Some(Format::TfRecord)),
            ("shard.00000.mds.zstd", Some(Format::Mds)),
            ("a.tar/b", None),
            ("tar", None),
        ] {
            assert_eq!(Format::of_name(name), format, "{name}");
        }
    }

    #[test]
    fn another_size_or_version_does_not_fit() {
        let record = ShardRecord::new("a.tar", Format::Tar, 10).with_version("e1");
        record.check(10, Some("e1")).unwrap();
        record.check(10, None).unwrap();
        for (bytes, version) in [(11, Some("e1")), (10, Some("e2")), (11, None)] {
            let error = record.check(bytes, version).unwrap_err();
            assert_eq!(error.kind(), Kind::Changed);
            assert!(error.message().contains("forebay dataset index"), "{error}");
        }
    }
}
