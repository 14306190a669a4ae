//! From what lies in the files of a chain to the bytes of its first part: the same for who loads it and for
//! who writes the next difference.
//!
//! Goes through frame by frame: a frame of the plain extent is copied into the target and every difference is
//! applied to it there, while it is in the processor's cache. Whatever is read is proved before it is used:
//! blocks of the plain extent, stored frames of the others. What lies in between needs no proof then; what
//! comes out is proved by the checksums of the part's blocks, by whoever called.

use std::ops::Range;

use forebay_core::{Error, Kind, Result, crc32c};

use super::{Decoder, FRAME_BYTES, Frames, bytes_of};
use crate::manifest::Extent;
use crate::table::{BLOCK_BYTES, Table};

/// One extent of a chain and what was read of it.
#[derive(Debug, Clone, Copy)]
pub struct Level<'a> {
    /// The extent.
    pub extent: &'a Extent,
    /// Its side table.
    pub table: &'a Table,
    /// Bytes of its file, as [`file_range`] says.
    pub stored: &'a [u8],
}

/// Damage of a chain.
#[derive(Debug)]
pub struct Broken {
    /// Extent of the chain, counted from the part.
    pub level: usize,
    /// Error, with the bytes of its file.
    pub error: Error,
}

/// Returns where in its file an extent has what is needed for these frames.
pub fn file_range(extent: &Extent, table: &Table, frames: &Range<u64>) -> Result<Range<u64>> {
    let stored = match &extent.encoding {
        Some(_) => Frames::of(table, extent)?.stored(frames),
        None => bytes_of(frames, extent.bytes()),
    };
    Ok(extent.range[0] + stored.start..extent.range[0] + stored.end)
}

/// Fills `target` with what these frames of the first level stand for. Levels are in order, from the part
/// down to the plain extent.
pub fn put_together(
    levels: &[Level<'_>],
    frames: &Range<u64>,
    decoder: &mut Decoder,
    target: &mut [u8],
) -> std::result::Result<(), Broken> {
    let mut readers = Vec::with_capacity(levels.len());
    for (level, one) in levels.iter().enumerate() {
        let reader = Reader::of(one, frames);
        readers.push(reader.map_err(|error| Broken { level, error })?);
    }
    for target in target.chunks_mut(FRAME_BYTES as usize) {
        for (level, reader) in readers.iter_mut().enumerate().rev() {
            let applied = reader.apply(decoder, target);
            applied.map_err(|error| Broken { level, error })?;
        }
    }
    Ok(())
}

/// A level that is gone through.
struct Reader<'a> {
    extent: &'a Extent,
    /// First byte of `rest` in the file.
    first: u64,
    rest: &'a [u8],
    proof: Proof<'a>,
}

enum Proof<'a> {
    Blocks(&'a [u32]),
    Frames(&'a [[u32; 2]]),
}

impl<'a> Reader<'a> {
    fn of(level: &Level<'a>, frames: &Range<u64>) -> Result<Self> {
        let Level {
            extent,
            table,
            stored,
        } = *level;
        let blocks_per_frame = (FRAME_BYTES / BLOCK_BYTES) as usize;
        let proof = match &extent.encoding {
            Some(_) => {
                let entries = Frames::of(table, extent)?.entries;
                Proof::Frames(entries.get(frames.start as usize..).unwrap_or_default())
            }
            None => {
                let crcs = table.part(extent.first_block, extent.bytes())?;
                let first = (frames.start as usize).saturating_mul(blocks_per_frame);
                Proof::Blocks(crcs.get(first..).unwrap_or_default())
            }
        };
        Ok(Self {
            extent,
            first: file_range(extent, table, frames)?.start,
            rest: stored,
            proof,
        })
    }

    /// Does the next frame to the target.
    fn apply(&mut self, decoder: &mut Decoder, target: &mut [u8]) -> Result<()> {
        match (self.proof_of_next(target.len())?, &self.extent.encoding) {
            (Expected::Blocks(crcs), _) => {
                let bytes = self.take(target.len())?;
                let blocks = bytes.chunks(BLOCK_BYTES as usize).zip(crcs);
                for (number, (block, crc)) in (0..).zip(blocks) {
                    if crc32c::crc32c(block) != *crc {
                        let first = self.first - bytes.len() as u64 + number * BLOCK_BYTES;
                        return Err(damaged(first, block.len()));
                    }
                }
                target.copy_from_slice(bytes);
                Ok(())
            }
            (Expected::Frame([stored_bytes, crc]), Some(encoding)) => {
                let first = self.first;
                let bytes = self.take(stored_bytes as usize)?;
                if crc32c::crc32c(bytes) != crc {
                    return Err(damaged(first, bytes.len()));
                }
                decoder.frame(bytes, encoding.element_bytes, target)
            }
            (Expected::Frame(_), None) => Err(short()),
        }
    }

    fn proof_of_next(&mut self, bytes: usize) -> Result<Expected<'a>> {
        match &mut self.proof {
            Proof::Blocks(crcs) => {
                let blocks = bytes.div_ceil(BLOCK_BYTES as usize);
                let (now, later) = crcs.split_at_checked(blocks).ok_or_else(short)?;
                *crcs = later;
                Ok(Expected::Blocks(now))
            }
            Proof::Frames(frames) => {
                let (now, later) = frames.split_first().ok_or_else(short)?;
                *frames = later;
                Ok(Expected::Frame(*now))
            }
        }
    }

    fn take(&mut self, bytes: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(bytes).ok_or_else(short)?;
        self.rest = rest;
        self.first += bytes as u64;
        Ok(taken)
    }
}

enum Expected<'a> {
    Blocks(&'a [u32]),
    Frame([u32; 2]),
}

fn damaged(first: u64, bytes: usize) -> Error {
    let message = "bytes of a tensor do not match their checksum: the file is damaged; what was loaded so far must not be used";
    Error::new(Kind::Checksum, message).with("bytes", format!("{first}-{}", first + bytes as u64))
}

fn short() -> Error {
    Error::new(
        Kind::Corrupt,
        "an encoded part has fewer bytes than it stands for",
    )
}
