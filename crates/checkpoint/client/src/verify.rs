//! Proof that a step is what its manifest says.
//!
//! [`Step::verify`] proves every byte: tables by their digest, headers by theirs and by what they say, each
//! part and object by BLAKE3 and by the CRC32C of its blocks. [`Step::verify_quick`] looks only whether every
//! file is there with its size. Both go on after an error, so that one look tells all that is wrong; at most
//! [`FINDINGS_MAX`] findings are kept.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Deref, Range};
use std::sync::Arc;

use forebay_checkpoint::delta::Decoder;
use forebay_checkpoint::header::Header;
use forebay_checkpoint::manifest::{DataFile, Extent, Part};
use forebay_checkpoint::table::BLOCK_BYTES;
use forebay_checkpoint::{names, plan};
use forebay_client::View;
use forebay_core::{Error, Kind, Result, crc32c};
use parking_lot::Mutex;
use sha2::{Digest, Sha256};

use crate::decode::Run;
use crate::parallel;
use crate::step::{Fetch, Step};
use crate::tables::Proofs;
use crate::view::memory;

/// Bytes that are read and hashed at a time.
const PIECE_BYTES: u64 = 16 << 20;
/// Findings that are kept.
pub const FINDINGS_MAX: usize = 1000;

/// Something that is not as the manifest says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The file, relative to the root.
    pub file: String,
    /// The tensor or object, if it is about one.
    pub name: Option<String>,
    /// The damage.
    pub message: String,
}

/// Report of a verification.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Verified {
    /// Files that were looked at, tables among them.
    pub files: u64,
    /// Tensors and objects that were proved.
    pub proved: u64,
    /// Bytes that were proved.
    pub bytes: u64,
    /// Damage, in order of files.
    pub findings: Vec<Finding>,
    /// True if there was more damage than is listed.
    pub has_more: bool,
}

/// Bytes that are to be proved.
enum Piece {
    /// Bytes where the node keeps them.
    Stored(View),
    /// Made from what it keeps.
    Decoded(Vec<u8>),
}

impl Deref for Piece {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Stored(view) => view,
            Self::Decoded(bytes) => bytes,
        }
    }
}

impl Verified {
    /// Returns whether all is well.
    #[must_use]
    pub fn is_ok(&self) -> bool {
        self.findings.is_empty()
    }

    fn found(&mut self, file: &str, name: Option<&str>, error: &Error) {
        if self.findings.len() >= FINDINGS_MAX {
            self.has_more = true;
            return;
        }
        self.findings.push(Finding {
            file: file.to_owned(),
            name: name.map(str::to_owned),
            message: error.to_string(),
        });
    }
}

/// A part or an object that is to be proved.
struct ProofTarget<'a> {
    name: &'a str,
    extent: &'a Extent,
    sha256: Option<&'a str>,
}

impl Step {
    /// Bytes that [`Step::verify`] proves.
    #[must_use]
    pub fn verify_bytes(&self) -> u64 {
        self.proof_targets()
            .iter()
            .map(|target| target.extent.bytes())
            .sum()
    }

    /// Proves every byte with `threads` threads; `progress` gets bytes as they are proved. An error is about
    /// the node, not about the step.
    pub fn verify(&self, threads: usize, progress: &(dyn Fn(u64) + Sync)) -> Result<Verified> {
        let content = &self.manifest.content;
        let verified = Mutex::new(Verified {
            files: (content.files.len() + content.tables.len()) as u64,
            ..Verified::default()
        });
        let tables = self.check_tables(&verified)?;
        let parts = self.parts_by_file();
        let files: Vec<(u32, &DataFile)> = (0..).zip(&content.files).collect();
        parallel::each(Some(self.root.client()), files, threads, |(index, file)| {
            let parts = parts.get(&index).map_or(&[][..], Vec::as_slice);
            note(self.check_file(index, file, parts), &verified, &file.path, None)
        })?;
        parallel::each(
            Some(self.root.client()),
            self.proof_targets(),
            threads,
            |target| {
                let path = self.path(target.extent.file);
                let proved = self.check_target(&target, &tables, progress);
                if proved.is_ok() {
                    let mut verified = verified.lock();
                    verified.proved += 1;
                    verified.bytes += target.extent.bytes();
                }
                note(proved, &verified, path, Some(target.name))
            },
        )?;
        let mut verified = verified.into_inner();
        verified
            .findings
            .sort_by(|a, b| (&a.file, &a.name).cmp(&(&b.file, &b.name)));
        Ok(verified)
    }

    /// Looks whether every file is there with its size; reads no data.
    pub fn verify_quick(&self, threads: usize) -> Result<Verified> {
        let content = &self.manifest.content;
        let files = content.files.iter().map(|file| (&file.path, file.bytes));
        let tables = content.tables.iter().map(|table| (&table.path, table.bytes));
        let all: Vec<(&String, u64)> = files.chain(tables).collect();
        let verified = Mutex::new(Verified {
            files: all.len() as u64,
            ..Verified::default()
        });
        parallel::each(Some(self.root.client()), all, threads, |(path, bytes)| {
            note(self.check_size(path, bytes), &verified, path, None)
        })?;
        let mut verified = verified.into_inner();
        verified.findings.sort_by(|a, b| a.file.cmp(&b.file));
        Ok(verified)
    }

    fn check_size(&self, path: &str, bytes: u64) -> Result<()> {
        let stat = self.root.client().stat(&self.root.name(path)?);
        let stat = stat.map_err(|error| self.about_file(error, path))?;
        if stat.bytes == bytes {
            return Ok(());
        }
        let error = Error::new(Kind::Corrupt, "the file has another size than the manifest says");
        Err(error.with("bytes", stat.bytes).with("expected", bytes))
    }

    fn check_tables(&self, verified: &Mutex<Verified>) -> Result<Proofs> {
        let mut tables = Proofs::new();
        for (index, file) in (0..).zip(&self.manifest.content.tables) {
            match self.read_table(index) {
                Ok(table) => {
                    tables.insert(index, Arc::new(table));
                }
                Err(error) => note(Err(error), verified, &file.path, None)?,
            }
        }
        Ok(tables)
    }

    /// Size, digest of the header, and whether the header says what the manifest does.
    fn check_file(&self, index: u32, file: &DataFile, parts: &[(&str, &Part)]) -> Result<()> {
        self.check_size(&file.path, file.bytes)?;
        if file.data_start == 0 {
            return Ok(());
        }
        let fetch = Fetch {
            file: index,
            range: 0..file.data_start,
            for_name: "",
        };
        let front = self.fetch(&[fetch])?.pop();
        let front = front.ok_or_else(|| Error::new(Kind::Internal, "an answer without items"))?;
        if blake3::hash(&front).to_hex().as_str() != file.header_blake3 {
            return Err(Error::new(
                Kind::Checksum,
                "the header does not match its digest in the manifest: it is damaged",
            ));
        }
        let header = Header::decode(&front, file.bytes)?;
        let own = names::attempt_file(self.manifest.step, &self.manifest.attempt, "");
        let ranges: BTreeSet<[u64; 2]> = header.tensors.values().map(|entry| entry.range).collect();
        for (name, part) in parts {
            let dtype = self.tensor(name)?.dtype;
            // What is reused may lie where another tensor with the same bytes does.
            let is_same = if file.path.starts_with(&own) {
                header.tensors.get(*name).is_some_and(|entry| {
                    entry.dtype == dtype && entry.shape == part.at.shape && entry.range == part.bytes.range
                })
            } else {
                ranges.contains(&part.bytes.range)
            };
            if !is_same {
                let message = "the header does not have the tensor as the manifest says";
                return Err(Error::new(Kind::Corrupt, message).with("tensor", name));
            }
        }
        Ok(())
    }

    /// Digest and checksums of a part or an object.
    fn check_target(
        &self,
        target: &ProofTarget<'_>,
        tables: &Proofs,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<()> {
        let extent = target.extent;
        // A table that cannot be read is a finding of its own.
        let crcs = tables
            .get(&extent.table)
            .map(|table| table.part(extent.first_block, extent.bytes()))
            .transpose()?;
        let mut blake3 = blake3::Hasher::new();
        let mut sha256 = target.sha256.map(|_| Sha256::new());
        let mut first = 0;
        while first < extent.bytes() {
            let end = (first + PIECE_BYTES).min(extent.bytes());
            let piece = self.piece(target, first..end, tables)?;
            blake3.update(&piece);
            if let Some(sha256) = &mut sha256 {
                sha256.update(&*piece);
            }
            let blocks = (first / BLOCK_BYTES..).zip(piece.chunks(BLOCK_BYTES as usize));
            for (block, bytes) in blocks {
                let expected = crcs.map(|crcs| crcs[block as usize]);
                if expected.is_some_and(|expected| expected != crc32c::crc32c(bytes)) {
                    return Err(wrong_block(extent, block));
                }
            }
            progress(end - first);
            first = end;
        }
        let is_digest = blake3.finalize().to_hex().as_str() == extent.blake3;
        let is_sha256 = sha256.map(|sha256| hex(&sha256.finalize())).as_deref() == target.sha256;
        if is_digest && is_sha256 {
            return Ok(());
        }
        let error = Error::new(
            Kind::Checksum,
            "bytes do not match their digest in the manifest: the file is damaged",
        );
        Err(error.with("bytes", format!("{}-{}", extent.range[0], extent.range[1])))
    }

    /// Bytes of a part or an object, from where a frame begins.
    fn piece(&self, target: &ProofTarget<'_>, bytes: Range<u64>, tables: &Proofs) -> Result<Piece> {
        let extent = target.extent;
        if extent.encoding.is_some() {
            if extent.chain().any(|extent| !tables.contains_key(&extent.table)) {
                let message = "the part cannot be decoded, because a side table of it cannot be read";
                return Err(Error::new(Kind::Corrupt, message));
            }
            let mut piece = memory(bytes.end - bytes.start)?;
            let run = Run::of(target.name, extent, &bytes);
            self.decode(&mut [(run, &mut piece[..])], tables, &mut Decoder::new()?)?;
            return Ok(Piece::Decoded(piece));
        }
        let fetch = Fetch {
            file: extent.file,
            range: extent.range[0] + bytes.start..extent.range[0] + bytes.end,
            for_name: target.name,
        };
        let view = self.fetch(&[fetch])?.pop();
        let view = view.ok_or_else(|| Error::new(Kind::Internal, "an answer without items"))?;
        Ok(Piece::Stored(view))
    }

    /// Parts and objects, in the order of files.
    fn proof_targets(&self) -> Vec<ProofTarget<'_>> {
        let content = &self.manifest.content;
        let parts = content.tensors.iter().flat_map(|(name, tensor)| {
            tensor.parts.iter().map(move |part| ProofTarget {
                name,
                extent: &part.bytes,
                sha256: part.sha256.as_deref(),
            })
        });
        let objects = content.objects.iter().flat_map(|(name, objects)| {
            objects.iter().map(move |object| ProofTarget {
                name,
                extent: &object.bytes,
                sha256: None,
            })
        });
        let mut proof_targets: Vec<_> = parts.chain(objects).collect();
        proof_targets.sort_by_key(|target| (target.extent.file, target.extent.range));
        proof_targets
    }

    fn parts_by_file(&self) -> BTreeMap<u32, Vec<(&str, &Part)>> {
        let mut by_file: BTreeMap<u32, Vec<(&str, &Part)>> = BTreeMap::new();
        for (name, tensor) in &self.manifest.content.tensors {
            for part in &tensor.parts {
                by_file.entry(part.bytes.file).or_default().push((name, part));
            }
        }
        by_file
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn wrong_block(extent: &Extent, block: u64) -> Error {
    let range = match &extent.encoding {
        None => plan::bytes_of(&(block..block + 1), extent.bytes()),
        // No bytes of the file are these bytes.
        Some(_) => 0..extent.stored_bytes(),
    };
    let error = Error::new(
        Kind::Checksum,
        "bytes do not match their checksum: the file is damaged",
    );
    error.with(
        "bytes",
        format!(
            "{}-{}",
            extent.range[0] + range.start,
            extent.range[0] + range.end
        ),
    )
}

/// Writes down what is wrong with the step; passes on what is wrong with the node.
fn note(result: Result<()>, verified: &Mutex<Verified>, file: &str, name: Option<&str>) -> Result<()> {
    let Err(error) = result else { return Ok(()) };
    match error.kind() {
        Kind::Checksum | Kind::Corrupt | Kind::Unsupported | Kind::InvalidInput => {
            verified.lock().found(file, name, &error);
            Ok(())
        }
        _ => Err(error),
    }
}
