//! Safetensors files as a step of a run.
//!
//! Life cycle: read the headers of all sources; lay their tensors into data files as a save would; write the
//! lease, then every file, hashed on the way, the side table and the record, and last the manifest, created
//! once. Whatever fails before that leaves an attempt without a commit, which nobody sees and a prune
//! collects. Goes through the client alone, so a remote node will do.
//!
//! Limits: a stretch of a tensor for each thread in memory. Several sources may each have a part of a tensor,
//! if `DCP_SHARDING_INFO` says which.

use std::collections::BTreeMap;

use forebay_checkpoint::attempt_lease::AttemptLease;
use forebay_checkpoint::header::{self, Header};
use forebay_checkpoint::manifest::{Content, DataFile, Extent, Part, Record, TableFile, Tensor};
use forebay_checkpoint::pack::{Owned, PackedFile, Piece, pack};
use forebay_checkpoint::safetensors::{self, Entry};
use forebay_checkpoint::table::{BLOCK_BYTES, Table};
use forebay_checkpoint::{Dtype, Manifest, TensorBox, names};
use forebay_client::{PutOptions, PutSource, WriteCondition};
use forebay_core::{Error, Kind, Result, crc32c};
use parking_lot::Mutex;
use serde_json::{Map, Value};

use crate::file::PlainFile;
use crate::{Root, parallel};

/// Bytes of one data file, at most.
const FILE_BYTES_MAX: u64 = 512 << 20;
/// Bytes that are read and hashed at a time.
const STRETCH_BYTES: u64 = 8 << 20;
/// Time of an import after which others may collect what it left.
const LEASE_MS: u64 = 24 * 3600 * 1000;
const SHARDING: &str = "DCP_SHARDING_INFO";

/// Options of an import.
#[derive(Debug, Clone)]
pub struct ImportOptions {
    /// The step.
    pub step: u64,
    /// Replaces an existing step by its next generation; else that is `AlreadyExists`.
    pub supersede: bool,
    /// Comes before every name.
    pub prefix: String,
    /// Metadata of the step.
    pub metadata: Map<String, Value>,
    /// Threads that read, hash and write, each a file of its own.
    pub threads: usize,
    /// A number that no other attempt has.
    pub random: u64,
    /// The time, milliseconds since 1970 UTC.
    pub now_ms: u64,
}

/// Report of an import.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Imported {
    /// The step.
    pub step: u64,
    /// Its generation.
    pub generation: u32,
    /// Tensors.
    pub tensors: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Data files that were written.
    pub files: u64,
}

/// A box of a tensor in a source.
struct SourceTensor {
    source: usize,
    /// Its first byte in the source.
    first: u64,
    name: String,
    dtype: Dtype,
    at: TensorBox,
}

/// A data file that was written.
struct Written {
    file: DataFile,
    parts: Vec<WrittenPart>,
}

struct WrittenPart {
    found: usize,
    at: TensorBox,
    range: [u64; 2],
    blake3: String,
    crcs: Vec<u32>,
}

/// Hands progress on.
type Progress<'a> = &'a (dyn Fn(u64) + Sync);

impl Root {
    /// Makes a step of these files; `progress` gets bytes as they are written. Errors: `AlreadyExists` if the
    /// step is there and not to be superseded, `Conflict` if somebody else committed it meanwhile.
    pub fn import(
        &self,
        sources: &[PlainFile],
        options: &ImportOptions,
        progress: Progress<'_>,
    ) -> Result<Imported> {
        let found = found(sources, &options.prefix)?;
        let generation = self.next_generation(options)?;
        let attempt = names::attempt(options.random);
        let importer = Importer {
            root: self,
            sources,
            found: &found,
            options,
            attempt: &attempt,
        };
        let deadline_ms = options.now_ms.saturating_add(LEASE_MS);
        let open = AttemptLease::new(options.step, &attempt, None, options.now_ms, deadline_ms);
        self.put_new(&importer.path(names::OPEN), &open.encode()?)?;
        let files = importer.write_files(progress)?;
        let content = importer.content(files)?;
        let imported = Imported {
            step: options.step,
            generation,
            tensors: content.tensors.len() as u64,
            bytes: content
                .files
                .iter()
                .map(|file| file.bytes - file.data_start)
                .sum(),
            files: content.files.len() as u64,
        };
        let mut record = Record::new(options.step, &attempt, 0, 1, content.clone());
        self.put_new(&importer.path(&names::record_file(0)), &record.encode()?)?;
        let mut manifest = Manifest::new(options.step, generation, &attempt, 1, content);
        manifest.created_ms = options.now_ms;
        let path = names::manifest(options.step, generation);
        self.put_new(&path, &manifest.encode()?)
            .map_err(|error| match error.kind() {
                Kind::PreconditionFailed | Kind::AlreadyExists => {
                    let message =
                        "somebody else committed this step meanwhile; nothing of the import is visible";
                    Error::new(Kind::Conflict, message)
                        .with("step", options.step)
                        .with("generation", generation)
                }
                _ => error,
            })?;
        Ok(imported)
    }

    fn next_generation(&self, options: &ImportOptions) -> Result<u32> {
        match self.generation(options.step)? {
            None => Ok(1),
            Some(generation) if options.supersede => Ok(generation.saturating_add(1)),
            Some(generation) => {
                let message = "the step is there already; choose another, or supersede it on purpose";
                Err(Error::new(Kind::AlreadyExists, message)
                    .with("step", options.step)
                    .with("generation", generation))
            }
        }
    }

    /// Writes an object that must not be there yet.
    fn put_new(&self, path: &str, bytes: &[u8]) -> Result<()> {
        let options = PutOptions {
            condition: WriteCondition::Absent,
            ..PutOptions::default()
        };
        self.client()
            .put(&self.name(path)?, PutSource::Slice(bytes), options)?;
        Ok(())
    }
}

struct Importer<'a> {
    root: &'a Root,
    sources: &'a [PlainFile],
    found: &'a [SourceTensor],
    options: &'a ImportOptions,
    attempt: &'a str,
}

impl Importer<'_> {
    fn path(&self, name: &str) -> String {
        names::attempt_file(self.options.step, self.attempt, name)
    }

    /// Every data file, in order.
    fn write_files(&self, progress: Progress<'_>) -> Result<Vec<Written>> {
        let owned: Vec<Owned<'_>> = self
            .found
            .iter()
            .map(|found| Owned {
                name: &found.name,
                dtype: found.dtype,
                at: &found.at,
            })
            .collect();
        let packed: Vec<(u32, PackedFile)> = (0..).zip(pack(&owned, FILE_BYTES_MAX)?).collect();
        let written = Mutex::new(BTreeMap::new());
        parallel::each(
            Some(self.root.client()),
            packed,
            self.options.threads,
            |(number, file)| {
                let done = self.write_file(number, &file.pieces, progress)?;
                written.lock().insert(number, done);
                Ok(())
            },
        )?;
        Ok(written.into_inner().into_values().collect())
    }

    fn write_file(&self, number: u32, pieces: &[Piece], progress: Progress<'_>) -> Result<Written> {
        let entries: Vec<Entry<'_>> = pieces
            .iter()
            .map(|piece| Entry {
                name: &self.found[piece.owner].name,
                dtype: self.found[piece.owner].dtype,
                at: &piece.at,
                bytes: piece.bytes,
            })
            .collect();
        let header = safetensors::header(&entries)?;
        let data_start = header.len() as u64;
        let bytes = data_start + pieces.iter().map(|piece| piece.bytes).sum::<u64>();
        let path = self.path(&names::data_file(0, number));
        let name = self.root.name(&path)?;
        let mut writer = self
            .root
            .client()
            .writer(&name, PutOptions::default(), Some(bytes));
        writer.write(&header)?;
        let mut parts = Vec::with_capacity(pieces.len());
        let mut first = data_start;
        for piece in pieces {
            let end = first + piece.bytes;
            let mut blake3 = blake3::Hasher::new();
            let mut crcs = Vec::new();
            self.stretches(piece, |stretch| {
                blake3.update(stretch);
                crcs.extend(stretch.chunks(BLOCK_BYTES as usize).map(crc32c::crc32c));
                progress(stretch.len() as u64);
                writer.write(stretch)
            })?;
            parts.push(WrittenPart {
                found: piece.owner,
                at: piece.at.clone(),
                range: [first, end],
                blake3: blake3.finalize().to_hex().to_string(),
                crcs,
            });
            first = end;
        }
        writer.finish()?;
        let header_blake3 = blake3::hash(&header).to_hex().to_string();
        Ok(Written {
            file: DataFile {
                path,
                bytes,
                data_start,
                header_blake3,
            },
            parts,
        })
    }

    /// The bytes of a piece, a stretch of whole blocks at a time.
    fn stretches(&self, piece: &Piece, mut see: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let found = &self.found[piece.owner];
        let start = found.first + piece.first;
        let mut first = 0;
        while first < piece.bytes {
            let end = (first + STRETCH_BYTES).min(piece.bytes);
            see(&self.sources[found.source].read(start + first..start + end)?)?;
            first = end;
        }
        Ok(())
    }

    /// Returns what the manifest says; writes the side table.
    fn content(&self, files: Vec<Written>) -> Result<Content> {
        let mut content = Content {
            metadata: self.options.metadata.clone(),
            ..Content::default()
        };
        for found in self.found {
            let shape = &mut content
                .tensors
                .entry(found.name.clone())
                .or_insert_with(|| Tensor {
                    dtype: found.dtype,
                    shape: vec![0; found.at.shape.len()],
                    parts: Vec::new(),
                })
                .shape;
            for ((size, offset), length) in shape.iter_mut().zip(&found.at.offset).zip(&found.at.shape) {
                *size = (*size).max(offset.saturating_add(*length));
            }
        }
        let mut table = Table::default();
        for (index, written) in (0..).zip(files) {
            content.files.push(written.file);
            for part in written.parts {
                let bytes = Extent {
                    file: index,
                    range: part.range,
                    blake3: part.blake3,
                    table: 0,
                    first_block: table.add(&part.crcs),
                    encoding: None,
                };
                if let Some(tensor) = content.tensors.get_mut(&self.found[part.found].name) {
                    tensor.parts.push(Part {
                        at: part.at,
                        bytes,
                        sha256: None,
                    });
                }
            }
        }
        let (path, bytes) = (self.path(&names::table_file(0)), table.encode());
        self.root.put_new(&path, &bytes)?;
        content.tables.push(TableFile {
            path,
            bytes: bytes.len() as u64,
            blake3: blake3::hash(&bytes).to_hex().to_string(),
        });
        Ok(content)
    }
}

/// Returns what a safetensors file has before its data.
pub(crate) fn read_header(file: &PlainFile) -> Result<Header> {
    let about = |error: Error| error.with("file", file.shown());
    let length = file.read(0..header::LENGTH_BYTES as u64)?;
    let length = length.first_chunk().copied().unwrap_or_default();
    let data_start = header::data_start(length).map_err(about)?;
    Header::decode(&file.read(0..data_start)?, file.bytes()).map_err(about)
}

/// Every box of every source.
fn found(sources: &[PlainFile], prefix: &str) -> Result<Vec<SourceTensor>> {
    let mut all: Vec<SourceTensor> = Vec::new();
    let mut dtypes: BTreeMap<String, (Dtype, usize)> = BTreeMap::new();
    for (source, file) in sources.iter().enumerate() {
        let header = read_header(file)?;
        let offsets = offsets(&header).map_err(|error| error.with("file", file.shown()))?;
        for (tensor, entry) in header.tensors {
            let name = format!("{prefix}{tensor}");
            safetensors::check_name(&name)?;
            let form = (entry.dtype, entry.shape.len());
            if *dtypes.entry(name.clone()).or_insert(form) != form {
                let message = "two files have this tensor with different types or numbers of dimensions";
                let error = Error::new(Kind::InvalidInput, message).with("tensor", name);
                return Err(error.with("file", file.shown()));
            }
            let mut at = TensorBox::whole(&entry.shape);
            if let Some(offset) = offsets.get(&tensor) {
                at.offset.clone_from(offset);
            }
            if at.offset.len() != at.shape.len() {
                let error = Error::new(Kind::Corrupt, "the offsets of a shard do not fit its shape");
                return Err(error.with("tensor", name).with("file", file.shown()));
            }
            all.push(SourceTensor {
                source,
                first: entry.range[0],
                name,
                dtype: entry.dtype,
                at,
            });
        }
    }
    if all.is_empty() {
        return Err(Error::new(Kind::InvalidInput, "the files have no tensors"));
    }
    Ok(all)
}

/// Returns where parts of tensors lie, if the file says so.
fn offsets(header: &Header) -> Result<BTreeMap<String, Vec<u64>>> {
    #[derive(serde::Deserialize)]
    struct Shard {
        saved_offsets: Vec<u64>,
    }
    let Some(text) = header.metadata.get(SHARDING) else {
        return Ok(BTreeMap::new());
    };
    let shards: BTreeMap<String, Shard> = serde_json::from_str(text).map_err(|why| {
        Error::new(Kind::Corrupt, "the offsets of shards in a header cannot be read").caused_by(why)
    })?;
    let shards = shards.into_iter();
    Ok(shards.map(|(name, shard)| (name, shard.saved_offsets)).collect())
}
