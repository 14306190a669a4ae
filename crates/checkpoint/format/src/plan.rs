//! From what is wanted of a tensor to what has to be read for it: pure.
//!
//! A want is a box of a tensor; its target is memory that holds the box in C order. [`jobs`] cuts the target
//! into stretches that one thread fills at a time. A stretch is *contiguous* where it lies together in one
//! part too, which is the usual case: bytes go from there to here. Else it is *strided*: rows of one or
//! several parts alternate in it, and [`pieces`] says for each part which blocks have to be read and which
//! rows of them are wanted.
//!
//! Reads are of whole blocks of a part (64 KiB, counted from its start), because only those have a checksum.
//! Jobs of one want do not share a block where that can be had; a block at a cut of a strided stretch is read
//! once more.
//!
//! Limits: a job has at most [`JOB_BYTES`] of target and a block (a frame in an encoded part), a piece at
//! most [`PIECE_BYTES`] of a part and a run. Runs are made as they are used, never listed.

use std::ops::Range;

use forebay_core::{Error, Kind, Result};

use crate::delta::FRAME_BYTES;
use crate::manifest::{Part, Tensor};
use crate::shape::{Runs, TensorBox};
use crate::table::BLOCK_BYTES;

/// Target bytes of one job.
pub const JOB_BYTES: u64 = 4 << 20;
/// Bytes of a part that one piece of a strided job spans.
pub const PIECE_BYTES: u64 = 4 << 20;

/// A stretch of a target, and where its bytes are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// Bytes of the target.
    pub target: Range<u64>,
    /// Their layout in the parts.
    pub source: Source,
}

/// Layout of the bytes of a job in the parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// Together in one part.
    Contiguous {
        /// Index of the part in its tensor.
        part: usize,
        /// The first byte, counted from the start of the part.
        part_byte: u64,
    },
    /// In rows of these parts.
    Strided {
        /// The box that the stretch is.
        at: TensorBox,
        /// Indexes of the parts that have some of it.
        parts: Vec<usize>,
    },
}

/// Blocks of a part that lie together, and the rows of them that are wanted.
#[derive(Debug, Clone)]
pub struct Piece {
    /// Blocks of the part.
    pub blocks: Range<u64>,
    /// The rows, in order; places in the target count from the start of the job.
    pub runs: std::iter::Take<Runs>,
}

/// Returns how to fill memory that holds `at` of a tensor: jobs in order of the target, which they cover.
pub fn jobs(tensor: &Tensor, at: &TensorBox) -> Result<Vec<Job>> {
    at.check_within(&tensor.shape)?;
    let mut cutter = Cutter {
        tensor,
        element_bytes: tensor.dtype.bytes(),
        jobs: Vec::new(),
    };
    if !at.shape.contains(&0) {
        let all: Vec<usize> = (0..tensor.parts.len()).collect();
        cutter.cut(at, &all, 0)?;
    }
    Ok(cutter.jobs)
}

/// Pieces of one part for a strided job, in order.
#[must_use]
pub fn pieces(part: &Part, at: &TensorBox, element_bytes: u64) -> Pieces {
    let common = part.at.intersection(at);
    Pieces {
        runs: common.map(|common| part.at.runs(at, &common, element_bytes)),
    }
}

/// Boxes that make up `at` one after the other, each of at most so many bytes, if one element is not more.
///
/// For who goes through a tensor without having memory for all of it: the bytes of the boxes, joined, are the
/// bytes of `at`.
#[must_use]
pub fn stretches(at: &TensorBox, element_bytes: u64, bytes_max: u64) -> Vec<TensorBox> {
    let mut boxes = Vec::new();
    if !at.shape.contains(&0) {
        stretch(at, element_bytes, bytes_max, &mut boxes);
    }
    boxes
}

fn stretch(at: &TensorBox, element_bytes: u64, bytes_max: u64, boxes: &mut Vec<TensorBox>) {
    let bytes = at
        .shape
        .iter()
        .fold(element_bytes, |bytes, size| bytes.saturating_mul(*size));
    let dimension = at.shape.iter().position(|size| *size > 1);
    let Some(dimension) = dimension.filter(|_| bytes > bytes_max) else {
        boxes.push(at.clone());
        return;
    };
    let row_bytes = (bytes / at.shape[dimension]).max(1);
    let rows = (bytes_max / row_bytes).max(1);
    let mut first = 0;
    while first < at.shape[dimension] {
        let mut part = at.clone();
        part.offset[dimension] += first;
        part.shape[dimension] = rows.min(at.shape[dimension] - first);
        stretch(&part, element_bytes, bytes_max, boxes);
        first += rows;
    }
}

/// Blocks that have these bytes of a part.
#[must_use]
pub fn blocks_of(bytes: &Range<u64>) -> Range<u64> {
    bytes.start / BLOCK_BYTES..bytes.end.div_ceil(BLOCK_BYTES)
}

/// Bytes of a part of `part_bytes` that these blocks are.
#[must_use]
pub fn bytes_of(blocks: &Range<u64>, part_bytes: u64) -> Range<u64> {
    blocks.start * BLOCK_BYTES..(blocks.end * BLOCK_BYTES).min(part_bytes)
}

/// Iterator over [`Piece`]s.
#[derive(Debug)]
pub struct Pieces {
    runs: Option<Runs>,
}

impl Iterator for Pieces {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        let rest = self.runs.as_mut()?;
        let start = rest.clone();
        let first = rest.next()?;
        let mut blocks = blocks_of(&(first.part_byte..first.part_byte + first.bytes));
        let mut count = 1;
        loop {
            let before = rest.clone();
            let Some(run) = rest.next() else { break };
            let more = blocks_of(&(run.part_byte..run.part_byte + run.bytes));
            let is_near = more.start <= blocks.end;
            if !is_near || (more.end - blocks.start) * BLOCK_BYTES > PIECE_BYTES {
                *rest = before;
                break;
            }
            blocks.end = more.end;
            count += 1;
        }
        Some(Piece {
            blocks,
            runs: start.take(count),
        })
    }
}

struct Cutter<'a> {
    tensor: &'a Tensor,
    element_bytes: u64,
    jobs: Vec<Job>,
}

impl Cutter<'_> {
    /// Cuts along the outermost dimension that has more than one row: there everything stays together in the
    /// target.
    fn cut(&mut self, at: &TensorBox, among: &[usize], target_byte: u64) -> Result<()> {
        let parts: Vec<usize> = among
            .iter()
            .copied()
            .filter(|part| self.tensor.parts[*part].at.intersection(at).is_some())
            .collect();
        let bytes = self.bytes(at)?;
        if let [part] = parts[..]
            && let Some(part_byte) = self.contiguous(part, at, bytes)
        {
            self.add_straight(part, part_byte, target_byte, bytes);
            return Ok(());
        }
        let dimension = at.shape.iter().position(|size| *size > 1);
        let mut cuts = dimension.map_or_else(Vec::new, |dimension| self.edges(at, &parts, dimension));
        if cuts.is_empty() && bytes > JOB_BYTES {
            cuts = dimension.map_or_else(Vec::new, |dimension| even(at, dimension, bytes));
        }
        let Some(dimension) = dimension.filter(|_| !cuts.is_empty()) else {
            if parts.is_empty() {
                let error = Error::new(Kind::Corrupt, "no part of the tensor has what is wanted");
                return Err(error.with("offset", format!("{:?}", at.offset)));
            }
            let target = target_byte..target_byte + bytes;
            let source = Source::Strided {
                at: at.clone(),
                parts,
            };
            self.jobs.push(Job { target, source });
            return Ok(());
        };
        let row_bytes = bytes / at.shape[dimension];
        let end = at.offset[dimension] + at.shape[dimension];
        cuts.push(end);
        let mut first = at.offset[dimension];
        for cut in cuts {
            let mut rows = at.clone();
            rows.offset[dimension] = first;
            rows.shape[dimension] = cut - first;
            let place = target_byte + (first - at.offset[dimension]) * row_bytes;
            self.cut(&rows, &parts, place)?;
            first = cut;
        }
        Ok(())
    }

    fn bytes(&self, at: &TensorBox) -> Result<u64> {
        let bytes = at.elements()?.checked_mul(self.element_bytes);
        bytes.ok_or_else(|| Error::new(Kind::InvalidInput, "a box has too many bytes"))
    }

    /// Returns where the box begins in the part, if it lies together there, all of it.
    fn contiguous(&self, part: usize, at: &TensorBox, bytes: u64) -> Option<u64> {
        let part = &self.tensor.parts[part].at;
        let common = part.intersection(at).filter(|common| common == at)?;
        let run = part.runs(at, &common, self.element_bytes).next()?;
        (run.bytes == bytes).then_some(run.part_byte)
    }

    /// In jobs that end where blocks of the part do, or its frames if it is encoded.
    fn add_straight(&mut self, part: usize, part_byte: u64, target_byte: u64, bytes: u64) {
        let unit_bytes = match self.tensor.parts[part].bytes.encoding {
            Some(_) => FRAME_BYTES,
            None => BLOCK_BYTES,
        };
        let end = part_byte + bytes;
        let mut first = part_byte;
        while first < end {
            let cut = (first + JOB_BYTES).next_multiple_of(unit_bytes).min(end);
            let place = target_byte + (first - part_byte);
            self.jobs.push(Job {
                target: place..place + (cut - first),
                source: Source::Contiguous {
                    part,
                    part_byte: first,
                },
            });
            first = cut;
        }
    }

    /// Returns where parts begin or end within the box, in order.
    fn edges(&self, at: &TensorBox, parts: &[usize], dimension: usize) -> Vec<u64> {
        let first = at.offset[dimension];
        let end = first + at.shape[dimension];
        let mut edges: Vec<u64> = parts
            .iter()
            .map(|part| &self.tensor.parts[*part].at)
            .flat_map(|part| {
                [
                    part.offset[dimension],
                    part.offset[dimension] + part.shape[dimension],
                ]
            })
            .filter(|edge| first < *edge && *edge < end)
            .collect();
        edges.sort_unstable();
        edges.dedup();
        edges
    }
}

/// Cuts that make jobs of the usual size.
fn even(at: &TensorBox, dimension: usize, bytes: u64) -> Vec<u64> {
    let row_bytes = (bytes / at.shape[dimension]).max(1);
    let rows = (JOB_BYTES / row_bytes).max(1);
    let first = at.offset[dimension];
    (1..at.shape[dimension].div_ceil(rows))
        .map(|cut| first + cut * rows)
        .collect()
}

#[cfg(test)]
mod tests;
