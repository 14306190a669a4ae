//! Files that are no steps, proved: safetensors, `torch.save`, or anything.
//!
//! Such files have no digests of their own (`torch.save` notes a CRC-32 that `torch.load` ignores), so a
//! first look hashes every tensor and keeps the digests beside the file, and every later look compares. What
//! the file itself says is checked each time: the header of safetensors, the directory and CRC-32 of a zip
//! file. Nothing is unpickled. The document is docs/formats/file-digests.md.

use std::collections::BTreeMap;

use crc_fast::CrcAlgorithm;
use forebay_checkpoint::header::Header;
use forebay_checkpoint::zip::{self, Tail};
use forebay_core::{Error, Kind, Result};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::file::PlainFile;
use crate::parallel;
use crate::verify::{FINDINGS_MAX, Finding};

/// Bytes that are read and hashed at a time.
const PIECE_BYTES: u64 = 16 << 20;
/// The largest document of digests that is read.
pub const DIGESTS_BYTES_MAX: u64 = 256 << 20;
const FORMAT: &str = "forebay-file-digests";
const VERSION: u32 = 1;
const HEADER: &str = "(header)";

/// Kind of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PlainKind {
    /// Tensors behind a header.
    Safetensors,
    /// A zip file, as `torch.save` writes them.
    Zip,
    /// Anything else; hashed as a whole.
    Other,
}

/// Digests of everything in a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlainDigests {
    format: String,
    version: u32,
    /// Kind of the file.
    pub kind: PlainKind,
    /// Its size.
    pub bytes: u64,
    /// Tensors or entries by name.
    pub entries: BTreeMap<String, EntryDigest>,
}

/// The digest of one tensor or entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryDigest {
    /// Bytes.
    pub bytes: u64,
    /// BLAKE3 of them, in hexadecimal digits.
    pub blake3: String,
}

/// A piece of a file that has a name.
struct Named {
    name: String,
    first: u64,
    bytes: u64,
    /// CRC-32 by the file's own word.
    crc32: Option<u32>,
}

impl PlainDigests {
    /// As it lies beside the file.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let unwritable = |why| Error::new(Kind::Internal, "digests could not be written").caused_by(why);
        let mut bytes = serde_json::to_vec_pretty(self).map_err(|why: serde_json::Error| unwritable(why))?;
        bytes.push(b'\n');
        Ok(bytes)
    }

    /// Reads what lies beside a file.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let digests: Self = serde_json::from_slice(bytes)
            .map_err(|why| Error::new(Kind::Corrupt, "the kept digests cannot be read").caused_by(why))?;
        if digests.format != FORMAT || digests.version != VERSION {
            let message = "the kept digests were written by another version of forebay; update forebay";
            return Err(Error::new(Kind::Unsupported, message));
        }
        Ok(digests)
    }

    /// Returns what is not as it was.
    #[must_use]
    pub fn compare(&self, now: &Self, file: &str) -> Vec<Finding> {
        let mut findings = Vec::new();
        let mut found = |name: &str, message: &str| {
            if findings.len() < FINDINGS_MAX {
                findings.push(Finding {
                    file: file.to_owned(),
                    name: Some(name.to_owned()),
                    message: message.to_owned(),
                });
            }
        };
        for (name, before) in &self.entries {
            match now.entries.get(name) {
                None => found(name, "is not there any more"),
                Some(entry) if entry == before => {}
                Some(_) => found(name, "has other bytes than when its digest was kept"),
            }
        }
        for name in now
            .entries
            .keys()
            .filter(|name| !self.entries.contains_key(*name))
        {
            found(name, "was not there when digests were kept");
        }
        findings
    }
}

impl PlainFile {
    /// Reads what the file says about itself: its kind and how much is in it. `Corrupt` if it is cut off or
    /// damaged there.
    pub fn structure(&self) -> Result<(PlainKind, u64)> {
        let (kind, named) = self.named()?;
        Ok((kind, named.len() as u64))
    }

    /// Hashes everything with `threads` threads. Findings are entries that do not match what the file itself
    /// says.
    pub fn digests(
        &self,
        threads: usize,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<(PlainDigests, Vec<Finding>)> {
        let (kind, named) = self.named()?;
        let all = Mutex::new((BTreeMap::new(), Vec::new()));
        parallel::each(self.client(), named, threads, |named| {
            let (digest, is_as_noted) = self.digest(&named, progress)?;
            let mut all = all.lock();
            if !is_as_noted && all.1.len() < FINDINGS_MAX {
                all.1.push(Finding {
                    file: self.shown().to_owned(),
                    name: Some(named.name.clone()),
                    message: "does not match the CRC-32 that was noted when it was written".into(),
                });
            }
            all.0.insert(named.name, digest);
            Ok(())
        })?;
        let (entries, mut findings) = all.into_inner();
        findings.sort_by(|a, b| a.name.cmp(&b.name));
        let digests = PlainDigests {
            format: FORMAT.into(),
            version: VERSION,
            kind,
            bytes: self.bytes(),
            entries,
        };
        Ok((digests, findings))
    }

    fn digest(&self, named: &Named, progress: &(dyn Fn(u64) + Sync)) -> Result<(EntryDigest, bool)> {
        let mut blake3 = blake3::Hasher::new();
        let mut crc32 = crc_fast::Digest::new(CrcAlgorithm::Crc32IsoHdlc);
        let end = named.first.saturating_add(named.bytes);
        let mut first = named.first;
        while first < end {
            let piece = self.read(first..(first + PIECE_BYTES).min(end))?;
            blake3.update(&piece);
            if named.crc32.is_some() {
                crc32.update(&piece);
            }
            first += piece.len() as u64;
            progress(piece.len() as u64);
        }
        let digest = EntryDigest {
            bytes: named.bytes,
            blake3: blake3.finalize().to_hex().to_string(),
        };
        let found = crc32.finalize();
        Ok((digest, named.crc32.is_none_or(|noted| u64::from(noted) == found)))
    }

    /// Returns what is in the file, and where.
    fn named(&self) -> Result<(PlainKind, Vec<Named>)> {
        let start = self.read(0..self.bytes().min(8))?;
        if start.starts_with(b"PK\x03\x04") {
            let entries = self.zip().map_err(|error| error.with("file", self.shown()))?;
            return Ok((PlainKind::Zip, entries));
        }
        if self.shown().ends_with(".safetensors") {
            return Ok((PlainKind::Safetensors, self.safetensors()?));
        }
        let whole = Named {
            name: "(file)".into(),
            first: 0,
            bytes: self.bytes(),
            crc32: None,
        };
        Ok((PlainKind::Other, vec![whole]))
    }

    fn safetensors(&self) -> Result<Vec<Named>> {
        let Header {
            data_start, tensors, ..
        } = crate::import::read_header(self)?;
        let mut named = vec![Named {
            name: HEADER.into(),
            first: 0,
            bytes: data_start,
            crc32: None,
        }];
        named.extend(tensors.into_iter().map(|(name, entry)| Named {
            name,
            first: entry.range[0],
            bytes: entry.range[1] - entry.range[0],
            crc32: None,
        }));
        Ok(named)
    }

    fn zip(&self) -> Result<Vec<Named>> {
        let bytes = self.bytes();
        let tail = self.read(bytes.saturating_sub(zip::TAIL_BYTES)..bytes)?;
        let directory = match zip::tail(&tail, bytes)? {
            Tail::Near(directory) => directory,
            Tail::Far(place) => {
                let end = place.saturating_add(zip::FAR_BYTES);
                zip::far(&self.read(place..end)?, bytes)?
            }
        };
        let listed = self.read(directory.first..directory.first + directory.bytes)?;
        let mut named = Vec::new();
        for entry in zip::entries(&listed)? {
            let end = entry.header_first.saturating_add(zip::LOCAL_BYTES);
            let local = self.read(entry.header_first..end)?;
            let first = zip::data_first(&local, entry.header_first)?;
            // A writer that was told not to compute it leaves zero; packed bytes have another one.
            let is_noted = entry.is_stored && entry.crc32 != 0;
            named.push(Named {
                name: entry.name,
                first,
                bytes: entry.bytes,
                crc32: is_noted.then_some(entry.crc32),
            });
        }
        Ok(named)
    }
}
