//! Bytes of encoded parts: frames of the whole chain in one call, put together by
//! `forebay_checkpoint::delta::chain`, which proves what it reads.
//!
//! Decoded bytes are proved by the checksums of the part's blocks, by whoever called [`Step::decode`].

use std::ops::Range;

use forebay_checkpoint::delta::chain::{Broken, Level, file_range, put_together};
use forebay_checkpoint::delta::{self, Decoder};
use forebay_checkpoint::manifest::Extent;
use forebay_checkpoint::plan;
use forebay_core::Result;

use crate::read::{ContiguousJob, Proof, copy_strided};
use crate::step::{Fetch, Step};
use crate::tables::{Proofs, crcs, table};

/// Frames of an encoded extent that are wanted, for which tensor.
#[derive(Clone)]
pub(crate) struct Run<'a> {
    name: &'a str,
    extent: &'a Extent,
    frames: Range<u64>,
}

impl<'a> Run<'a> {
    /// Frames that have these bytes of an extent.
    pub(crate) fn of(name: &'a str, extent: &'a Extent, bytes: &Range<u64>) -> Self {
        Self {
            name,
            extent,
            frames: delta::frames_of(bytes),
        }
    }

    /// Bytes of the extent that they stand for.
    pub(crate) fn bytes(&self) -> Range<u64> {
        delta::bytes_of(&self.frames, self.extent.bytes())
    }
}

impl Step {
    /// Fills each target with the bytes of its run, one call for all; gives how many bytes were read. The
    /// caller proves what comes out.
    pub(crate) fn decode(
        &self,
        runs: &mut [(Run<'_>, &mut [u8])],
        proofs: &Proofs,
        decoder: &mut Decoder,
    ) -> Result<u64> {
        let mut fetches = Vec::new();
        for (run, _) in &*runs {
            for extent in run.extent.chain() {
                fetches.push(Fetch {
                    file: extent.file,
                    range: file_range(extent, table(proofs, extent)?, &run.frames)?,
                    for_name: run.name,
                });
            }
        }
        let views = self.fetch(&fetches)?;
        let mut stored = views.iter();
        for (run, target) in runs {
            let mut levels = Vec::with_capacity(1 + run.extent.depth());
            for (extent, stored) in run.extent.chain().zip(&mut stored) {
                levels.push(Level {
                    extent,
                    table: table(proofs, extent)?,
                    stored,
                });
            }
            let made = put_together(&levels, &run.frames, decoder, target);
            made.map_err(|Broken { level, error }| {
                let file = levels.get(level).map_or("", |level| self.path(level.extent.file));
                error.with("tensor", run.name).with("file", file)
            })?;
        }
        Ok(views.iter().map(|view| view.len() as u64).sum())
    }

    /// Fills targets of contiguous jobs in encoded parts.
    pub(crate) fn read_encoded(&self, jobs: Vec<ContiguousJob<'_>>, proofs: &Proofs) -> Result<u64> {
        let mut decoder = Decoder::new()?;
        // A job that begins or ends within a frame needs memory for all of it.
        let mut whole_frames: Vec<Vec<u8>> = Vec::new();
        for job in &jobs {
            let run = job.run().bytes();
            let is_whole = run == job.bytes;
            whole_frames.push(vec![
                0;
                if is_whole {
                    0
                } else {
                    (run.end - run.start) as usize
                }
            ]);
        }
        let mut jobs = jobs;
        let mut runs = Vec::with_capacity(jobs.len());
        for (job, whole) in jobs.iter_mut().zip(&mut whole_frames) {
            let run = job.run();
            let target = if whole.is_empty() {
                &mut *job.target
            } else {
                &mut whole[..]
            };
            runs.push((run, target));
        }
        let read_bytes = self.decode(&mut runs, proofs, &mut decoder)?;
        drop(runs);
        for (job, whole) in jobs.into_iter().zip(whole_frames) {
            let extent = &job.part.bytes;
            let proof = Proof {
                step: self,
                name: job.name,
                extent,
                crcs: crcs(proofs, extent)?,
            };
            if whole.is_empty() {
                proof.compare_all(job.bytes.start, job.target)?;
                continue;
            }
            let first = job.run().bytes().start;
            let blocks = plan::bytes_of(&plan::blocks_of(&job.bytes), extent.bytes());
            proof.compare_all(blocks.start, part_of(&whole, first, &blocks))?;
            job.target.copy_from_slice(part_of(&whole, first, &job.bytes));
        }
        Ok(read_bytes)
    }

    /// Rows of an encoded part into a strided target; frames that one piece shares with the one before are
    /// decoded once.
    pub(crate) fn copy_strided_encoded(
        &self,
        proof: &Proof<'_>,
        pieces: plan::Pieces,
        proofs: &Proofs,
        target: &mut [u8],
    ) -> Result<u64> {
        let mut decoder = Decoder::new()?;
        let mut held = (0..0, Vec::new());
        let mut read_bytes = 0;
        for piece in pieces {
            let range = plan::bytes_of(&piece.blocks, proof.extent.bytes());
            if range.start < held.0.start || range.end > held.0.end {
                let run = Run::of(proof.name, proof.extent, &range);
                let bytes = run.bytes();
                held.1.resize((bytes.end - bytes.start) as usize, 0);
                held.0 = bytes;
                read_bytes += self.decode(&mut [(run, &mut held.1[..])], proofs, &mut decoder)?;
            }
            copy_strided(
                proof,
                piece,
                &range,
                part_of(&held.1, held.0.start, &range),
                target,
            )?;
        }
        Ok(read_bytes)
    }
}

impl<'a> ContiguousJob<'a> {
    fn run(&self) -> Run<'a> {
        Run::of(self.name, &self.part.bytes, &self.bytes)
    }
}

/// Bytes of a part, of memory that has them from `first` on.
fn part_of<'a>(memory: &'a [u8], first: u64, bytes: &Range<u64>) -> &'a [u8] {
    &memory[(bytes.start - first) as usize..(bytes.end - first) as usize]
}
