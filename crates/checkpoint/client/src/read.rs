//! Bytes of tensors into the caller's memory, each block proved on the way.
//!
//! The plan (`forebay_checkpoint::plan`) cuts every target into jobs. ContiguousJob jobs, nearly all of them,
//! are put in the order in which their bytes lie in files; neighbours become one read, and reads of about
//! [`BATCH_BYTES`] one call, so that many small tensors cost little more than one large one. Each thread
//! takes a batch, looks at the bytes where the node keeps them, compares the CRC32C of a block and copies
//! what is wanted of it while it is still in the processor's cache: one copy in all.
//!
//! Encoded parts are read by the same plan; `decode.rs` makes their bytes.
//!
//! An error leaves targets partly written, and says so.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_checkpoint::manifest::{DEPTH_MAX, Extent, Part};
use forebay_checkpoint::plan::{self, Job, Piece, Source};
use forebay_checkpoint::shape::TensorBox;
use forebay_checkpoint::table::BLOCK_BYTES;
use forebay_client::copy_past_cache;
use forebay_core::{ByteRange, CoalesceLimits, Coalesced, Error, Kind, Result, Run, coalesce, crc32c};

use crate::parallel;
use crate::step::{Fetch, Step};
use crate::tables::{Proofs, crcs};

/// Bytes of files that one call asks for.
const BATCH_BYTES: u64 = 16 << 20;
/// Reads in one call.
const BATCH_READS_MAX: usize = 256;
/// Bytes that one call makes of encoded parts; chains read up to twice as many.
const ENCODED_BATCH_BYTES: usize = 8 << 20;
/// Jobs in one such call, each of which reads every file of a chain.
const ENCODED_BATCH_JOBS_MAX: usize = BATCH_READS_MAX / (1 + DEPTH_MAX);
/// Limits of one read: a small gap between two neighbours is read over.
const LIMITS: CoalesceLimits = CoalesceLimits {
    gap_bytes_max: 4 << 10,
    run_bytes_max: BATCH_BYTES,
};

/// A box of a tensor that is wanted, and memory for it.
#[derive(Debug)]
pub struct Want<'a> {
    /// The tensor's full name.
    pub name: &'a str,
    /// The wanted box.
    pub at: TensorBox,
    /// As many bytes as the box has; filled in C order, little endian.
    pub target: &'a mut [u8],
}

/// Report of a load.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Loaded {
    /// Bytes that were wanted.
    pub bytes: u64,
    /// Bytes that were read and proved for it.
    pub read_bytes: u64,
}

/// A job with its memory.
pub(crate) struct CopyJob<'a> {
    name: &'a str,
    element_bytes: u64,
    parts: &'a [Part],
    source: Source,
    target: &'a mut [u8],
}

/// A contiguous job: bytes of one part.
pub(crate) struct ContiguousJob<'a> {
    pub(crate) name: &'a str,
    pub(crate) part: &'a Part,
    /// Bytes of the part.
    pub(crate) bytes: Range<u64>,
    pub(crate) target: &'a mut [u8],
}

/// One read of a file for jobs whose bytes lie together in it.
struct Read<'a> {
    file: u32,
    range: ByteRange,
    jobs: Vec<ContiguousJob<'a>>,
}

/// Work of one thread at a time.
enum Batch<'a> {
    Contiguous(Vec<Read<'a>>),
    Encoded(Vec<ContiguousJob<'a>>),
    Strided(CopyJob<'a>),
}

impl Step {
    /// Fills every target with its box, `threads` at a time.
    ///
    /// Errors name tensor, file and bytes, and leave targets partly written. Damage outside of the blocks
    /// that are needed is not seen.
    pub fn load(&self, wants: &mut [Want<'_>], threads: usize) -> Result<Loaded> {
        let copy_jobs = self.copy_jobs(wants)?;
        let proofs = self.proofs(copy_jobs.iter().flat_map(extents))?;
        let bytes = copy_jobs.iter().map(|job| job.target.len() as u64).sum::<u64>();
        let read_bytes = AtomicU64::new(0);
        parallel::each(Some(self.root.client()), batches(copy_jobs)?, threads, |batch| {
            let read = match batch {
                Batch::Contiguous(reads) => self.read_contiguous(reads, &proofs)?,
                Batch::Encoded(jobs) => self.read_encoded(jobs, &proofs)?,
                Batch::Strided(mut job) => self.read_strided(&mut job, &proofs)?,
            };
            read_bytes.fetch_add(read, Ordering::Relaxed);
            Ok(())
        })?;
        Ok(Loaded {
            bytes,
            read_bytes: read_bytes.into_inner(),
        })
    }

    /// Cuts the targets as the plan says.
    fn copy_jobs<'a>(&'a self, wants: &'a mut [Want<'_>]) -> Result<Vec<CopyJob<'a>>> {
        let mut copy_jobs = Vec::with_capacity(wants.len());
        for want in wants {
            let name = want.name;
            let tensor = self.tensor(name)?;
            let element_bytes = tensor.dtype.bytes();
            let jobs = plan::jobs(tensor, &want.at).map_err(|error| error.with("tensor", name))?;
            let bytes = want.at.elements()?.saturating_mul(element_bytes);
            if bytes != want.target.len() as u64 {
                let error = Error::new(
                    Kind::InvalidInput,
                    "the memory for a tensor has another size than what is wanted",
                );
                return Err(error
                    .with("tensor", name)
                    .with("bytes", want.target.len())
                    .with("expected", bytes));
            }
            let mut rest = &mut *want.target;
            for Job { target, source } in jobs {
                let (job, behind) = rest.split_at_mut((target.end - target.start) as usize);
                rest = behind;
                copy_jobs.push(CopyJob {
                    name,
                    element_bytes,
                    parts: &tensor.parts,
                    source,
                    target: job,
                });
            }
        }
        Ok(copy_jobs)
    }

    fn read_contiguous(&self, reads: Vec<Read<'_>>, proofs: &Proofs) -> Result<u64> {
        let fetches: Vec<Fetch<'_>> = reads.iter().map(Read::fetch).collect();
        let found = self.fetch_scattered(&fetches)?;
        let mut read_bytes = 0;
        for (read, pieces) in reads.into_iter().zip(found) {
            read_bytes += pieces.bytes() as u64;
            for job in read.jobs {
                let first = job.part.bytes.range[0];
                let blocks = plan::blocks_of(&job.bytes);
                let proof = Proof {
                    step: self,
                    name: job.name,
                    extent: &job.part.bytes,
                    crcs: crcs(proofs, &job.part.bytes)?,
                };
                for block in blocks {
                    let range = plan::bytes_of(&(block..block + 1), job.part.bytes.bytes());
                    let from = (first + range.start - read.range.start()) as usize;
                    let to = from + (range.end - range.start) as usize;
                    let crc = pieces.slices(from..to).fold(0, crc32c::crc32c_append);
                    proof.compare_crc(block, crc)?;
                    let wanted = range.start.max(job.bytes.start)..range.end.min(job.bytes.end);
                    let source = from + (wanted.start - range.start) as usize
                        ..from + (wanted.end - range.start) as usize;
                    let mut target = (wanted.start - job.bytes.start) as usize;
                    for slice in pieces.slices(source) {
                        copy_past_cache(&mut job.target[target..target + slice.len()], slice);
                        target += slice.len();
                    }
                }
            }
        }
        Ok(read_bytes)
    }

    fn read_strided(&self, job: &mut CopyJob<'_>, proofs: &Proofs) -> Result<u64> {
        let Source::Strided { at, parts } = &job.source else {
            return Ok(0);
        };
        let mut read_bytes = 0;
        for part in parts.iter().map(|part| &job.parts[*part]) {
            let proof = Proof {
                step: self,
                name: job.name,
                extent: &part.bytes,
                crcs: crcs(proofs, &part.bytes)?,
            };
            let pieces = plan::pieces(part, at, job.element_bytes);
            if part.bytes.encoding.is_some() {
                read_bytes += self.copy_strided_encoded(&proof, pieces, proofs, job.target)?;
                continue;
            }
            let mut pieces = pieces.peekable();
            while pieces.peek().is_some() {
                let now = some_pieces(&mut pieces);
                let ranges: Vec<Range<u64>> = now
                    .iter()
                    .map(|piece| plan::bytes_of(&piece.blocks, part.bytes.bytes()))
                    .collect();
                let first = part.bytes.range[0];
                let fetches: Vec<Fetch<'_>> = ranges
                    .iter()
                    .map(|range| Fetch {
                        file: part.bytes.file,
                        range: first + range.start..first + range.end,
                        for_name: job.name,
                    })
                    .collect();
                let views = self.fetch(&fetches)?;
                for ((piece, range), view) in now.into_iter().zip(ranges).zip(views) {
                    read_bytes += view.len() as u64;
                    copy_strided(&proof, piece, &range, &view, job.target)?;
                }
            }
        }
        Ok(read_bytes)
    }
}

/// Checksums of the blocks of an extent.
pub(crate) struct Proof<'a> {
    pub(crate) step: &'a Step,
    pub(crate) name: &'a str,
    pub(crate) extent: &'a Extent,
    pub(crate) crcs: &'a [u32],
}

impl Proof<'_> {
    /// Compares a block of the extent with its checksum.
    pub(crate) fn compare(&self, block: u64, bytes: &[u8]) -> Result<()> {
        self.compare_crc(block, crc32c::crc32c(bytes))
    }

    /// Compares the checksum of a block with what it should be.
    fn compare_crc(&self, block: u64, crc: u32) -> Result<()> {
        if self.crcs.get(block as usize) == Some(&crc) {
            return Ok(());
        }
        let [first, end] = self.extent.range;
        let range = match &self.extent.encoding {
            None => {
                let range = plan::bytes_of(&(block..block + 1), self.extent.bytes());
                first + range.start..first + range.end
            }
            // No bytes of the file are these bytes.
            Some(_) => first..end,
        };
        Err(damaged(self.step, self.name, self.extent.file, &range))
    }

    /// Compares all blocks of these bytes, which begin at this byte of the extent, where a block does.
    pub(crate) fn compare_all(&self, first: u64, bytes: &[u8]) -> Result<()> {
        let blocks = (first / BLOCK_BYTES..).zip(bytes.chunks(BLOCK_BYTES as usize));
        for (block, bytes) in blocks {
            self.compare(block, bytes)?;
        }
        Ok(())
    }
}

/// Returns what to say of bytes of a file that are not what they were.
pub(crate) fn damaged(step: &Step, name: &str, file: u32, range: &Range<u64>) -> Error {
    let message = "bytes of a tensor do not match their checksum: the file is damaged; what was loaded so far must not be used";
    Error::new(Kind::Checksum, message)
        .with("tensor", name)
        .with("file", step.path(file))
        .with("bytes", format!("{}-{}", range.start, range.end))
}

/// Copies the rows of a piece; blocks are proved just before the first row that needs them.
pub(crate) fn copy_strided(
    proof: &Proof<'_>,
    piece: Piece,
    range: &Range<u64>,
    view: &[u8],
    target: &mut [u8],
) -> Result<()> {
    let mut next_block = piece.blocks.start;
    for run in piece.runs {
        let end = run.part_byte + run.bytes;
        while next_block < end.div_ceil(BLOCK_BYTES) {
            let block = plan::bytes_of(&(next_block..next_block + 1), proof.extent.bytes());
            let bytes = (block.start - range.start) as usize..(block.end - range.start) as usize;
            proof.compare(next_block, &view[bytes])?;
            next_block += 1;
        }
        let from = (run.part_byte - range.start) as usize;
        let to = run.wanted_byte as usize;
        let bytes = run.bytes as usize;
        target[to..to + bytes].copy_from_slice(&view[from..from + bytes]);
    }
    Ok(())
}

/// As many pieces as one call takes.
fn some_pieces(pieces: &mut impl Iterator<Item = Piece>) -> Vec<Piece> {
    let mut some = Vec::new();
    let mut blocks = 0;
    while blocks * BLOCK_BYTES < BATCH_BYTES && some.len() < BATCH_READS_MAX {
        let Some(piece) = pieces.next() else { break };
        blocks += piece.blocks.end - piece.blocks.start;
        some.push(piece);
    }
    some
}

impl<'a> Read<'a> {
    /// Reads of the blocks of jobs, neighbours joined, in the order of files.
    fn join(jobs: Vec<ContiguousJob<'a>>) -> Result<Vec<Self>> {
        let mut wanted = Vec::with_capacity(jobs.len());
        for job in &jobs {
            let extent = &job.part.bytes;
            let blocks = plan::bytes_of(&plan::blocks_of(&job.bytes), extent.bytes());
            let first = extent.range[0];
            wanted.push((
                extent.file,
                ByteRange::new(first + blocks.start, first + blocks.end)?,
            ));
        }
        let Coalesced { runs, run_of } = coalesce(&wanted, LIMITS);
        let read = |run: &Run<u32>| Self {
            file: run.key,
            range: run.range,
            jobs: Vec::new(),
        };
        let mut reads: Vec<Self> = runs.iter().map(read).collect();
        for (job, run) in jobs.into_iter().zip(run_of) {
            reads[run].jobs.push(job);
        }
        Ok(reads)
    }

    fn fetch(&self) -> Fetch<'a> {
        Fetch {
            file: self.file,
            range: self.range.start()..self.range.end(),
            for_name: self.jobs.first().map_or("", |job| job.name),
        }
    }
}

/// Extents that a job reads from.
fn extents<'a>(job: &'a CopyJob<'_>) -> impl Iterator<Item = &'a Extent> + use<'a> {
    let (one, several) = match &job.source {
        Source::Contiguous { part, .. } => (Some(*part), &[][..]),
        Source::Strided { parts, .. } => (None, &parts[..]),
    };
    let parts = job.parts;
    one.into_iter()
        .chain(several.iter().copied())
        .map(move |part| &parts[part].bytes)
}

/// Stretches in the order of files, neighbours joined.
fn batches(copy_jobs: Vec<CopyJob<'_>>) -> Result<Vec<Batch<'_>>> {
    let mut batches = Vec::new();
    let mut plain = Vec::new();
    let mut encoded = Vec::new();
    for job in copy_jobs {
        let Source::Contiguous { part, part_byte } = job.source else {
            batches.push(Batch::Strided(job));
            continue;
        };
        let contiguous = ContiguousJob {
            name: job.name,
            part: &job.parts[part],
            bytes: part_byte..part_byte + job.target.len() as u64,
            target: job.target,
        };
        match contiguous.part.bytes.encoding {
            Some(_) => encoded.push(contiguous),
            None => plain.push(contiguous),
        }
    }
    encoded_batches(encoded, &mut batches);
    contiguous_batches(Read::join(plain)?, &mut batches);
    Ok(batches)
}

/// Jobs in encoded parts, in the order of files.
fn encoded_batches<'a>(mut jobs: Vec<ContiguousJob<'a>>, batches: &mut Vec<Batch<'a>>) {
    jobs.sort_by_key(|job| (job.part.bytes.file, job.part.bytes.range[0], job.bytes.start));
    let mut batch: Vec<ContiguousJob<'_>> = Vec::new();
    let mut batch_bytes = 0;
    for job in jobs {
        let is_full =
            batch_bytes + job.target.len() > ENCODED_BATCH_BYTES || batch.len() >= ENCODED_BATCH_JOBS_MAX;
        if is_full && !batch.is_empty() {
            batches.push(Batch::Encoded(std::mem::take(&mut batch)));
            batch_bytes = 0;
        }
        batch_bytes += job.target.len();
        batch.push(job);
    }
    if !batch.is_empty() {
        batches.push(Batch::Encoded(batch));
    }
}

/// Batches of reads.
fn contiguous_batches<'a>(reads: Vec<Read<'a>>, batches: &mut Vec<Batch<'a>>) {
    let mut batch: Vec<Read<'_>> = Vec::new();
    let mut batch_bytes = 0;
    for read in reads {
        let is_full = batch_bytes + read.range.len() > BATCH_BYTES || batch.len() >= BATCH_READS_MAX;
        if is_full && !batch.is_empty() {
            batches.push(Batch::Contiguous(std::mem::take(&mut batch)));
            batch_bytes = 0;
        }
        batch_bytes += read.range.len();
        batch.push(read);
    }
    if !batch.is_empty() {
        batches.push(Batch::Contiguous(batch));
    }
}
