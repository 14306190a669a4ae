//! Indexes that other tools have left beside the data: wids' JSON for WebDataset, DALI's `.idx` for tar and
//! TFRecord.
//!
//! They save a scan, or tell which shards there are. None of them has checksums, so what they give has none
//! either: places are usable at once, and a scan adds the rest later. The `index.json` of MDS is in
//! `mds/index_json.rs`.

use forebay_core::{Error, Kind, Result};
use serde::Deserialize;
use smallvec::SmallVec;

use crate::index::{Field, SampleRecord, ShardIndexBuilder};
use crate::scan::SampleSink;
use crate::shard::Format;
use crate::{tar, tfrecord};

/// The longest document that is read.
pub const DOCUMENT_BYTES_MAX: usize = 1 << 30;

/// Prefix of DALI's index of a tar if it has names of members, and so keys of samples.
pub const DALI_WITH_NAMES: &[u8] = b"v1.2";
/// Said of an index that is about another shard.
pub const DOES_NOT_FIT: &str =
    "the index beside the shard does not fit it; make it again, or let the shard be indexed";

/// Takes the samples of somebody else's index, as far as they lie inside of the shard.
pub struct ForeignIndexSink {
    builder: ShardIndexBuilder,
    shard_bytes: u64,
    /// Place and size of the first field of every sample.
    first: Vec<(u64, u64)>,
}

impl ForeignIndexSink {
    /// For a shard of so many bytes.
    #[must_use]
    pub fn new(builder: ShardIndexBuilder, shard_bytes: u64) -> Self {
        Self {
            builder,
            shard_bytes,
            first: Vec::new(),
        }
    }

    /// Place and size of the first field of a few samples, the first and the last among them.
    pub fn some(&self, count: usize) -> impl Iterator<Item = (u64, u64)> + '_ {
        let last = self.first.len().saturating_sub(1);
        let each = (0..count.min(self.first.len())).map(move |at| at * last / (count - 1).max(1));
        each.filter_map(|at| self.first.get(at).copied())
    }

    /// Returns what was collected.
    #[must_use]
    pub fn into_builder(self) -> ShardIndexBuilder {
        self.builder
    }
}

impl SampleSink for ForeignIndexSink {
    fn sample(&mut self, sample: &SampleRecord<'_>) -> Result<()> {
        let ends = sample
            .fields
            .iter()
            .map(|field| field.offset.saturating_add(field.bytes));
        if ends.max().is_some_and(|end| end > self.shard_bytes) {
            return Err(Error::new(Kind::Corrupt, DOES_NOT_FIT));
        }
        let first = sample.fields.first().map(|field| (field.offset, field.bytes));
        self.first.extend(first);
        self.builder.sample(sample)
    }
}

/// Returns how many bytes in front of a sample's first field tell whether it is there.
#[must_use]
pub fn header_bytes(format: Format) -> u64 {
    match format {
        Format::Tar => tar::BLOCK_BYTES,
        _ => tfrecord::HEADER_BYTES as u64,
    }
}

/// Returns whether these bytes are the header of something that long. Errors: `Corrupt`.
pub fn check_header(format: Format, header: &[u8], bytes: u64) -> Result<()> {
    let found = match format {
        Format::Tar => tar::member_bytes(header),
        _ => tfrecord::length(header),
    };
    if found == Some(bytes) {
        return Ok(());
    }
    Err(Error::new(Kind::Corrupt, DOES_NOT_FIT).with("bytes", bytes))
}

/// Returns whether a relative path stays in the folder of the document that names it, and means the same to
/// every store.
#[must_use]
pub fn stays_inside(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with('/')
        && !name.contains('\\')
        && name.split('/').all(|part| !matches!(part, "" | "." | ".."))
}

/// A shard as wids lists it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct WidsShard {
    /// Its URL; relative to the document unless it has a scheme.
    pub url: String,
    /// Its samples.
    #[serde(rename = "nsamples")]
    pub samples: u64,
    /// Its size, if the document says so.
    #[serde(default, rename = "filesize")]
    pub bytes: Option<u64>,
}

#[derive(Deserialize)]
struct Wids {
    wids_version: u64,
    shardlist: Vec<WidsShard>,
}

/// Reads a wids document: which shards there are and how many samples each has.
///
/// Errors: `Corrupt` if it is none, `Unsupported` for another version.
pub fn wids(document: &[u8]) -> Result<Vec<WidsShard>> {
    check_length(document)?;
    let wids: Wids = serde_json::from_slice(document).map_err(|why| {
        let message =
            "this is no wids index; make one with widsindex, or index the shards: forebay dataset index URL";
        Error::new(Kind::Corrupt, message).caused_by(why)
    })?;
    if wids.wids_version != 1 {
        let message = "the wids index is of an unknown version; version 1 is read";
        return Err(Error::new(Kind::Unsupported, message).with("version", wids.wids_version));
    }
    Ok(wids.shardlist)
}

/// Reads DALI's index of a tar shard (`wds2idx`, versions 1.1 and 1.2): places of all fields, without
/// checksums.
///
/// Errors: `Corrupt` with the number of the line.
pub fn dali_tar(document: &[u8], sink: &mut dyn SampleSink) -> Result<()> {
    let text = text(document)?;
    let mut lines = text.lines();
    let first = lines.next().unwrap_or_default();
    let (version, count) = first.split_once(' ').ok_or_else(|| damaged(1))?;
    let has_names = match version {
        "v1.1" => false,
        "v1.2" => true,
        _ => {
            let message = "the DALI index is of an unknown version; make it again with wds2idx";
            return Err(Error::new(Kind::Unsupported, message).with("version", version));
        }
    };
    let count: usize = count.trim().parse().map_err(|_| damaged(1))?;
    let mut found = 0;
    for (number, line) in (2..).zip(lines) {
        dali_sample(line, has_names, sink).map_err(|error| error.unwrap_or_else(|| damaged(number)))?;
        found += 1;
    }
    if found != count {
        return Err(damaged(1).with("samples", count).with("lines", found));
    }
    Ok(())
}

/// One line: `ext offset size [name]` for each field. An error of `None` means that the line cannot be read.
fn dali_sample(line: &str, has_names: bool, sink: &mut dyn SampleSink) -> Result<(), Option<Error>> {
    let mut words = line.split_ascii_whitespace();
    let mut fields = SmallVec::<[Field<'_>; 8]>::new();
    let mut key = None;
    while let Some(name) = words.next() {
        let mut number = || words.next().and_then(|word| word.parse::<u64>().ok());
        let (offset, bytes) = (number().ok_or(None)?, number().ok_or(None)?);
        let is_inside = offset % tar::BLOCK_BYTES == 0 && offset.checked_add(bytes).is_some();
        if !is_inside || fields.iter().any(|field| field.name == name) {
            return Err(None);
        }
        if has_names {
            let path = words.next().ok_or(None)?;
            key = key.or_else(|| path.strip_suffix(name)?.strip_suffix('.'));
        }
        fields.push(Field {
            name,
            offset,
            bytes,
            crc32c: None,
        });
    }
    if fields.is_empty() {
        return Err(None);
    }
    let sample = SampleRecord::new(key.map(str::as_bytes), &fields);
    sink.sample(&sample).map_err(Some)
}

/// Reads DALI's index of a TFRecord file (`tfrecord2idx`): lines of `offset length`, frames included. No
/// checksums.
///
/// Errors: `Corrupt` with the number of the line.
pub fn dali_tfrecord(document: &[u8], sink: &mut dyn SampleSink) -> Result<()> {
    const FRAME_BYTES: u64 = 16;
    let mut end = 0;
    for (number, line) in (1..).zip(text(document)?.lines()) {
        let parse = || {
            let (offset, bytes) = line.trim_end().split_once(' ')?;
            let (offset, bytes) = (offset.parse::<u64>().ok()?, bytes.parse::<u64>().ok()?);
            let payload = bytes.checked_sub(FRAME_BYTES)?;
            (offset == end).then_some((offset, payload, offset.checked_add(bytes)?))
        };
        let (offset, bytes, next) = parse().ok_or_else(|| damaged(number))?;
        let field = Field {
            name: tfrecord::FIELD,
            offset: offset + tfrecord::HEADER_BYTES as u64,
            bytes,
            crc32c: None,
        };
        sink.sample(&SampleRecord::new(None, &[field]))?;
        end = next;
    }
    Ok(())
}

fn text(document: &[u8]) -> Result<&str> {
    check_length(document)?;
    std::str::from_utf8(document).map_err(|_| damaged(1))
}

fn check_length(document: &[u8]) -> Result<()> {
    if document.len() <= DOCUMENT_BYTES_MAX {
        return Ok(());
    }
    let error = Error::new(Kind::Unsupported, "the index is too long");
    Err(error.with("bytes_max", DOCUMENT_BYTES_MAX))
}

fn damaged(line: usize) -> Error {
    let message = "a line of the DALI index cannot be read or does not fit; make it again, or index the shard itself: forebay dataset index URL";
    Error::new(Kind::Corrupt, message).with("line", line)
}

#[cfg(test)]
mod tests;
