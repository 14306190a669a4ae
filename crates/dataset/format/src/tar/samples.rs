//! WebDataset: the samples of a tar archive, with the CRC32C of each field, while the archive streams by.
//!
//! A sample is a run of members with one key, where the key is the path up to the first dot of the base name
//! and what follows the dot is the field's name, in lower case. Members without a dot, metadata (`__x__`, or
//! what lies in a folder of such a name, at the top) and everything that is not a plain file are passed over; one field twice in a sample is an error;
//! the end of the archive ends the sample. These are webdataset's own rules, which `tests/e2e` compares with
//! the library. The whole state is one sample's fields.

use forebay_core::{Error, Kind, Result, crc32c};
use smallvec::SmallVec;

use super::{Member, MemberKind, TarScanner};
use crate::index::{FIELDS_MAX, Field, SampleRecord};
use crate::scan::{SampleSink, ShardScanner};

/// Different field names that are remembered; more are an error, because then names are no names of fields.
const NAMES_MAX: usize = FIELDS_MAX;

/// Finds the samples of an archive.
pub struct TarSamples {
    scanner: TarScanner,
    is_size_known: bool,
    /// Bytes that have come.
    at: u64,
    /// End of the last member.
    contents_end: u64,
    /// The member of a sample whose bytes have not all come.
    open: Option<OpenMember>,
    samples: Samples,
}

/// The sample that is being put together.
#[derive(Default)]
struct Samples {
    names: Vec<String>,
    key: Vec<u8>,
    fields: Vec<OwnField>,
}

struct OpenMember {
    key: Vec<u8>,
    name: usize,
    offset: u64,
    end: u64,
    crc: u32,
}

#[derive(Clone, Copy)]
struct OwnField {
    name: usize,
    offset: u64,
    bytes: u64,
    crc: u32,
}

impl TarSamples {
    /// For an archive of this size; `None`: not known, because it is being decompressed.
    #[must_use]
    pub fn new(archive_bytes: Option<u64>) -> Self {
        Self {
            scanner: TarScanner::new(archive_bytes.unwrap_or(u64::MAX)),
            is_size_known: archive_bytes.is_some(),
            at: 0,
            contents_end: 0,
            open: None,
            samples: Samples::default(),
        }
    }
}

impl Samples {
    /// Adds the part of the open member that lies in these bytes, which start at `start`, to its CRC; a
    /// complete one goes into its sample.
    fn check_content(
        &mut self,
        open: &mut Option<OpenMember>,
        (start, bytes): (u64, &[u8]),
        sink: &mut dyn SampleSink,
    ) -> Result<()> {
        let end = start + bytes.len() as u64;
        let Some(member) = open else { return Ok(()) };
        let (from, to) = (member.offset.max(start), member.end.min(end));
        if from < to {
            let part = &bytes[position(from - start)..position(to - start)];
            member.crc = crc32c::crc32c_append(member.crc, part);
        }
        if member.end > end {
            return Ok(());
        }
        open.take().map_or(Ok(()), |member| self.add(member, sink))
    }

    fn add(&mut self, member: OpenMember, sink: &mut dyn SampleSink) -> Result<()> {
        if member.key != self.key {
            self.close(sink)?;
            self.key = member.key;
        }
        if self.fields.iter().any(|field| field.name == member.name) {
            let message = "a sample of the archive has the same field twice; members of one sample need different endings";
            let error = Error::new(Kind::InvalidInput, message).with("field", &self.names[member.name]);
            return Err(error
                .with("key", String::from_utf8_lossy(&self.key))
                .with("offset", member.offset));
        }
        self.fields.push(OwnField {
            name: member.name,
            offset: member.offset,
            bytes: member.end - member.offset,
            crc: member.crc,
        });
        Ok(())
    }

    fn close(&mut self, sink: &mut dyn SampleSink) -> Result<()> {
        if self.fields.is_empty() {
            return Ok(());
        }
        let names = &self.names;
        let fields = self.fields.iter().map(|field| Field {
            name: &names[field.name],
            offset: field.offset,
            bytes: field.bytes,
            crc32c: Some(field.crc),
        });
        let fields: SmallVec<[Field<'_>; 8]> = fields.collect();
        sink.sample(&SampleRecord::new(Some(&self.key), &fields))?;
        self.fields.clear();
        Ok(())
    }
}

/// A position inside of bytes that are in memory.
fn position(offset: u64) -> usize {
    usize::try_from(offset).expect("not more than was pushed")
}

impl ShardScanner for TarSamples {
    fn push(&mut self, bytes: &[u8], sink: &mut dyn SampleSink) -> Result<()> {
        let Self {
            scanner,
            at,
            contents_end,
            open,
            samples,
            ..
        } = self;
        let pushed = (*at, bytes);
        scanner.push(*at, bytes, |member| {
            // What comes before a header has come with it, so there is never more than one open member.
            samples.check_content(open, pushed, sink)?;
            *contents_end = member.offset.saturating_add(member.bytes);
            *open = member_of_a_sample(&member, &mut samples.names)?;
            Ok(())
        })?;
        samples.check_content(open, pushed, sink)?;
        *at += bytes.len() as u64;
        Ok(())
    }

    fn finish(&mut self, sink: &mut dyn SampleSink) -> Result<()> {
        if !self.is_size_known {
            self.scanner.end_at(self.at)?;
        }
        if self.contents_end > self.at {
            let message =
                "the archive stops in the middle of a member; it is damaged or was not uploaded whole";
            let error = Error::new(Kind::Corrupt, message).with("archive_bytes", self.at);
            return Err(error.with("member_end", self.contents_end));
        }
        self.scanner.finish()?;
        self.samples.close(sink)
    }
}

/// The member, if it belongs to a sample.
fn member_of_a_sample(member: &Member, names: &mut Vec<String>) -> Result<Option<OpenMember>> {
    let Some((key, ending)) = split_name(&member.name) else {
        return Ok(None);
    };
    match member.kind {
        MemberKind::File => {}
        MemberKind::Sparse => {
            let message =
                "the member is a sparse file and cannot be read in place; pack the archive without --sparse";
            let error = Error::new(Kind::Unsupported, message);
            return Err(error.with("member", String::from_utf8_lossy(&member.name)));
        }
        _ => return Ok(None),
    }
    let name = number_of(&ending, names).ok_or_else(|| {
        let message = "the members of the archive have too many different endings to be fields of samples";
        Error::new(Kind::Unsupported, message).with("fields_max", NAMES_MAX)
    })?;
    Ok(Some(OpenMember {
        key: key.to_vec(),
        name,
        offset: member.offset,
        end: member.offset.saturating_add(member.bytes),
        crc: 0,
    }))
}

fn number_of(name: &str, names: &mut Vec<String>) -> Option<usize> {
    if let Some(number) = names.iter().position(|known| known == name) {
        return Some(number);
    }
    (names.len() < NAMES_MAX).then(|| {
        names.push(name.to_owned());
        names.len() - 1
    })
}

/// Key and field of a member's path; `None` if it is none of a sample.
fn split_name(path: &[u8]) -> Option<(&[u8], String)> {
    let base_start = path
        .iter()
        .rposition(|byte| *byte == b'/')
        .map_or(0, |slash| slash + 1);
    let (folder, base) = path.split_at(base_start);
    if is_metadata(path) {
        return None;
    }
    let dot = base.iter().position(|byte| *byte == b'.')?;
    if dot == 0 && !names_a_sample(folder) {
        return None;
    }
    let ending = String::from_utf8_lossy(&base[dot + 1..]).to_lowercase();
    Some((&path[..base_start + dot], ending))
}

/// Returns whether the first part of a path is `__x__`: notes of whoever packed the shard, no sample.
fn is_metadata(path: &[u8]) -> bool {
    let first = path.split(|byte| *byte == b'/').next().unwrap_or_default();
    first.len() >= 4 && first.starts_with(b"__") && first.ends_with(b"__")
}

/// For webdataset's pattern, `a/.jpg` is field `jpg` of sample `a/`, unless the last folder has a dot in its
/// name.
fn names_a_sample(folder: &[u8]) -> bool {
    let Some(last) = folder.strip_suffix(b"/") else {
        return false;
    };
    let last = last.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    !last.contains(&b'.')
}

#[cfg(test)]
mod tests;
