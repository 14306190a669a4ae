//! One data file: its parts are hashed in one pass off the runtime, then header and parts go to the lake from
//! where the client left them.
//!
//! Nothing is copied: what is written are slices of the staging buffer, which goes back to the arena when the
//! file is in the lake. A put that fails is repeated as a whole, which is harmless, because a file has one
//! name and one content.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use forebay_checkpoint::hash::{DigestOptions, Digests, digest};
use forebay_checkpoint::manifest::{DataFile, Extent};
use forebay_checkpoint::safetensors::{Entry, check_name, header};
use forebay_checkpoint::{Dtype, TensorBox, names};
use forebay_core::{Error, Kind, Result};
use forebay_wire::saves::{Differential, SavePart};

use super::Save;
use super::differences::{self, Difference, Differences};
use super::fail_point::fail_point;
use super::parent::Parent;
use super::saves::Saves;

/// A full file as the client left it.
#[derive(Debug)]
pub(super) struct StagedFile {
    /// Counts the files of a save.
    pub(super) number: u32,
    bytes: Bytes,
    parts: Vec<StagedPart>,
}

/// A part in a staging buffer.
#[derive(Debug, Clone)]
pub(super) struct StagedPart {
    pub(super) name: String,
    pub(super) dtype: Dtype,
    tensor_shape: Vec<u64>,
    pub(super) at: TensorBox,
    range: Range<usize>,
}

/// A part that is in the lake.
#[derive(Debug)]
pub(super) struct WrittenPart {
    pub(super) name: String,
    pub(super) dtype: Dtype,
    pub(super) tensor_shape: Vec<u64>,
    pub(super) at: TensorBox,
    pub(super) digests: Digests,
    pub(super) location: PartLocation,
}

/// Location of a part in the lake.
#[derive(Debug)]
pub(super) enum PartLocation {
    /// In the file that was written, at this range.
    Here([u64; 2]),
    /// In a file of the parent; indexes are those of the parent's manifest.
    Parent(Extent),
    /// In the file of differences that was written.
    Difference(Difference),
}

impl WrittenPart {
    /// Returns how many bytes it has.
    pub(super) fn bytes(&self) -> u64 {
        self.at.elements().unwrap_or(0) * self.dtype.bytes()
    }
}

/// A file that is in the lake.
#[derive(Debug)]
pub(super) struct WrittenFile {
    pub(super) number: u32,
    /// `None` if there was nothing to write as it is.
    pub(super) file: Option<DataFile>,
    /// The file of differences, if there are any.
    pub(super) differences: Option<DataFile>,
    pub(super) parts: Vec<WrittenPart>,
}

impl StagedFile {
    /// Checks what the client says about its bytes.
    pub(super) fn new(number: u32, bytes: Bytes, parts: Vec<SavePart>) -> Result<Self> {
        let mut first = 0usize;
        let mut staged = Vec::with_capacity(parts.len());
        for part in parts {
            let name = part.name.clone();
            let part = staged_part(part, first).map_err(|error| error.with("tensor", name))?;
            first = part.range.end;
            staged.push(part);
        }
        if first != bytes.len() {
            let message = "the parts of a file do not have as many bytes as its buffer";
            return Err(Error::new(Kind::InvalidInput, message)
                .with("bytes", bytes.len())
                .with("parts_bytes", first));
        }
        let file = Self {
            number,
            bytes,
            parts: staged,
        };
        // A name that comes twice, and a header that is too long, are told to the client at once.
        file.header(file.parts.iter())?;
        Ok(file)
    }

    /// A part by its number, and its bytes.
    pub(super) fn part(&self, number: usize) -> (&StagedPart, Bytes) {
        let part = &self.parts[number];
        (part, file_bytes(self, part))
    }

    /// Returns how many parts it has.
    pub(super) fn parts(&self) -> usize {
        self.parts.len()
    }

    /// Returns how many bytes it has.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn header<'a>(&'a self, parts: impl Iterator<Item = &'a StagedPart>) -> Result<Vec<u8>> {
        let entries: Vec<_> = parts
            .map(|part| Entry {
                name: &part.name,
                dtype: part.dtype,
                at: &part.at,
                bytes: part.range.len() as u64,
            })
            .collect();
        header(&entries)
    }

    /// Looks at every byte once. Blocks.
    fn digest(&self, sha256: bool) -> Vec<Digests> {
        let one = |part: &StagedPart| {
            let wanted = DigestOptions {
                dtype: Some(part.dtype),
                sha256,
            };
            digest(&self.bytes[part.range.clone()], wanted)
        };
        self.parts.iter().map(one).collect()
    }
}

fn staged_part(part: SavePart, first: usize) -> Result<StagedPart> {
    check_name(&part.name)?;
    let dtype = Dtype::parse(&part.dtype)?;
    let at = TensorBox {
        offset: part.offset,
        shape: part.shape,
    };
    at.check_within(&part.tensor_shape)?;
    let bytes = at.elements()?.checked_mul(dtype.bytes());
    let end = bytes
        .and_then(|bytes| usize::try_from(bytes).ok())
        .and_then(|bytes| first.checked_add(bytes))
        .ok_or_else(|| Error::new(Kind::InvalidInput, "a part is larger than memory can be"))?;
    Ok(StagedPart {
        name: part.name,
        dtype,
        tensor_shape: part.tensor_shape,
        at,
        range: first..end,
    })
}

/// Hashes a file and writes what the parent does not have of it to the lake.
pub(super) async fn write(
    saves: &Saves,
    save: &Save,
    parent: Option<&Parent>,
    staged: StagedFile,
) -> Result<WrittenFile> {
    let staged = Arc::new(staged);
    let digests = hash(saves, save, &staged).await?;
    let mut found: Vec<Option<PartLocation>> = staged
        .parts
        .iter()
        .zip(&digests)
        .map(|(part, digests)| reused(save, parent, part, digests).map(PartLocation::Parent))
        .collect();
    let differences = differ(saves, save, parent, &staged, &mut found).await;
    let fresh = staged.parts.iter().zip(&found);
    let fresh = fresh.filter(|(_, found)| found.is_none());
    let header = Bytes::from(staged.header(fresh.map(|(part, _)| part))?);
    let data_start = header.len() as u64;
    let mut runs = Runs::default();
    let mut parts = Vec::with_capacity(digests.len());
    let (mut end, mut reused_bytes) = (data_start, 0);
    for ((part, digests), found) in staged.parts.iter().zip(digests).zip(found) {
        let location = match found {
            Some(location) => {
                if let PartLocation::Parent(extent) = &location {
                    reused_bytes += extent.bytes();
                }
                location
            }
            None => {
                let range = [end, end + part.range.len() as u64];
                end = range[1];
                runs.add(part.range.clone());
                PartLocation::Here(range)
            }
        };
        parts.push(WrittenPart {
            name: part.name.clone(),
            dtype: part.dtype,
            tensor_shape: part.tensor_shape.clone(),
            at: part.at.clone(),
            digests,
            location,
        });
    }
    save.count_reused(reused_bytes);
    let file = if runs.0.is_empty() {
        None
    } else {
        let body: Vec<Bytes> = std::iter::once(header).chain(runs.of(&staged)).collect();
        Some(put(save, staged.number, &body, &parts).await?)
    };
    Ok(WrittenFile {
        number: staged.number,
        file,
        differences,
        parts,
    })
}

/// Writes parts that were not found as differences, if the save asks for that and where it pays; gives their
/// file.
async fn differ(
    saves: &Saves,
    save: &Save,
    parent: Option<&Parent>,
    staged: &StagedFile,
    found: &mut [Option<PartLocation>],
) -> Option<DataFile> {
    let parent = parent.filter(|_| save.begin.differential == Differential::Auto)?;
    let missing = |number: &usize| found[*number].is_none();
    let candidates: Vec<usize> = (0..found.len()).filter(missing).collect();
    let Differences { file, parts } = differences::write(saves, save, parent, staged, &candidates).await?;
    let bytes = parts.iter().map(|(_, difference)| difference.bytes()).sum();
    save.count_encoded(bytes, file.bytes);
    for (number, difference) in parts {
        found[number] = Some(PartLocation::Difference(difference));
    }
    Some(file)
}

/// Writes header and parts as a file.
async fn put(save: &Save, number: u32, body: &[Bytes], parts: &[WrittenPart]) -> Result<DataFile> {
    let file = DataFile {
        path: save.path(&names::data_file(save.begin.rank, number)),
        bytes: body.iter().map(|piece| piece.len() as u64).sum(),
        data_start: body[0].len() as u64,
        header_blake3: blake3::hash(&body[0]).to_hex().to_string(),
    };
    fail_point("before-file");
    let content = content_of(&file, parts);
    save.persist("write a data file", || {
        save.lake.put_data(&file.path, &content, body)
    })
    .await?;
    fail_point("after-file");
    save.count_file(file.bytes - file.data_start);
    Ok(file)
}

/// A name of the content: the digest of the digests of all that lies in the file.
fn content_of(file: &DataFile, parts: &[WrittenPart]) -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(file.header_blake3.as_bytes());
    let here = parts
        .iter()
        .filter(|part| matches!(part.location, PartLocation::Here(_)));
    here.for_each(|part| {
        hasher.update(part.digests.blake3.as_bytes());
    });
    hasher.finalize().to_hex()[..32].to_owned()
}

/// Returns where the parent has these bytes, if it does and they may be taken from there.
fn reused(save: &Save, parent: Option<&Parent>, part: &StagedPart, digests: &Digests) -> Option<Extent> {
    let parent = parent.filter(|_| save.begin.reuse)?;
    let found = parent.with_digest(&digests.blake3, part.range.len() as u64)?;
    Some(found.bytes.clone())
}

/// Slices of a staging buffer that are written, as few as possible: a lake takes long ones from where they
/// lie.
#[derive(Debug, Default)]
struct Runs(Vec<Range<usize>>);

impl Runs {
    fn add(&mut self, range: Range<usize>) {
        match self.0.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => self.0.push(range),
        }
    }

    fn of(self, staged: &StagedFile) -> impl Iterator<Item = Bytes> {
        self.0.into_iter().map(|range| staged.bytes.slice(range))
    }
}

/// Returns what a file has of a part: here a part's bytes become file bytes.
fn file_bytes(staged: &StagedFile, part: &StagedPart) -> Bytes {
    staged.bytes.slice(part.range.clone())
}

/// Digests of all parts, on a thread for such work; as many files at a time as there are cores.
async fn hash(saves: &Saves, save: &Save, staged: &Arc<StagedFile>) -> Result<Vec<Digests>> {
    let _permit = saves.hashing_permit().await?;
    let (staged, sha256) = (Arc::clone(staged), save.begin.sha256);
    tokio::task::spawn_blocking(move || staged.digest(sha256))
        .await
        .map_err(|why| Error::new(Kind::Internal, "a hash was stopped").caused_by(why))
}
