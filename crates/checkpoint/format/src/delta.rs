//! Parts stored as their difference from a part of an earlier step: exclusive or, bytes of elements grouped,
//! zstd.
//!
//! Training changes every number a little, so whole blocks never repeat, but signs, exponents and high
//! bits of mantissas do: after the exclusive or with the parent they are zero, and grouped (all first bytes,
//! all second bytes …) they lie together, where zstd finds them. What is left of the low bits is noise and
//! stays.
//!
//! A part is cut into frames of [`FRAME_BYTES`] that are encoded one by one, so that a range reads and
//! decodes only what it needs. A frame that would not get smaller is stored as it is, which its length says.
//! Entries of its side table prove an encoded part, see [`Frames`]: lengths and checksums of what
//! is stored, behind the checksums of the blocks that come out.
//!
//! The choice is made here too: a part that does not shrink by [`is_worth`] is better stored
//! as it is, and so is one whose chain would make a restore read more than twice the bytes ([`may_follow`]).

pub mod chain;
mod group;
#[cfg(test)]
mod tests;

use std::ops::Range;

use forebay_core::{Error, Kind, Result, crc32c};
use zstd::bulk::{Compressor, Decompressor};

use crate::Dtype;
use crate::manifest::{DEPTH_MAX, Extent};
use crate::table::{Table, blocks};

/// Bytes that a frame stands for; the last one of a part is shorter.
pub const FRAME_BYTES: u64 = 1 << 20;
/// Smaller parts are stored as they are: they cost more to look for than they save.
pub const PART_BYTES_MIN: u64 = 64 << 10;
/// After so many frames it is clear whether the rest is worth it.
pub const PROBE_FRAMES: u64 = 4;
const LEVEL: i32 = 1;

/// Returns how many frames so many bytes have.
#[must_use]
pub const fn frames(bytes: u64) -> u64 {
    bytes.div_ceil(FRAME_BYTES)
}

/// Frames that have these bytes of a part.
#[must_use]
pub fn frames_of(bytes: &Range<u64>) -> Range<u64> {
    bytes.start / FRAME_BYTES..bytes.end.div_ceil(FRAME_BYTES)
}

/// Bytes of a part of `part_bytes` that these frames stand for.
#[must_use]
pub fn bytes_of(frames: &Range<u64>, part_bytes: u64) -> Range<u64> {
    let end = frames.end.saturating_mul(FRAME_BYTES).min(part_bytes);
    (frames.start * FRAME_BYTES).min(end)..end
}

/// By how many bytes elements of this type are grouped: numbers, not pairs of them.
#[must_use]
pub const fn element_bytes(dtype: Dtype) -> u8 {
    match dtype {
        Dtype::C64 => 4,
        other => other.bytes() as u8,
    }
}

/// Returns whether so many stored bytes are few enough: a sixth has to be saved.
#[must_use]
pub const fn is_worth(bytes: u64, stored_bytes: u64) -> bool {
    stored_bytes.saturating_mul(6) <= bytes.saturating_mul(5)
}

/// Returns whether a part may be stored as its difference from `base`: the chain stays short.
#[must_use]
pub fn may_follow(base: &Extent, bytes: u64) -> bool {
    bytes >= PART_BYTES_MIN && base.bytes() == bytes && base.depth() < DEPTH_MAX
}

/// Returns whether so many stored bytes on top of `base` leave a restore that reads no more than twice the
/// bytes of the part.
#[must_use]
pub fn is_cheap_to_read(base: &Extent, stored_bytes: u64) -> bool {
    base.chain_bytes().saturating_add(stored_bytes) <= base.bytes().saturating_mul(2)
}

/// One frame as it is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame {
    /// Bytes in the file.
    pub stored_bytes: u32,
    /// CRC32C of them.
    pub crc: u32,
}

/// Frames of an encoded part, as its side table has them: two entries for each, length and checksum, right
/// behind those of the part's blocks.
#[derive(Debug, Clone, Copy)]
pub struct Frames<'a> {
    entries: &'a [[u32; 2]],
}

impl<'a> Frames<'a> {
    /// The frames of this extent, whose table it is. Lengths are checked: none is longer than what it stands
    /// for, and together they fill the extent.
    pub fn of(table: &'a Table, extent: &Extent) -> Result<Self> {
        let wrong =
            |what: &'static str| Error::new(Kind::Corrupt, what).with("first_block", extent.first_block);
        let bytes = extent.bytes();
        let first = extent.first_block.saturating_add(blocks(bytes));
        let entries = table.entries(first, frames(bytes).saturating_mul(2))?;
        let (entries, _) = entries.as_chunks::<2>();
        let mut stored_bytes = 0u64;
        for (frame, [length, _]) in (0..).zip(entries) {
            let raw = bytes_of(&(frame..frame + 1), bytes);
            if *length == 0 || u64::from(*length) > raw.end - raw.start {
                return Err(wrong("a frame of an encoded part has an impossible length"));
            }
            stored_bytes += u64::from(*length);
        }
        if stored_bytes != extent.stored_bytes() {
            return Err(wrong("frames of an encoded part do not fill its range"));
        }
        Ok(Self { entries })
    }

    /// Returns where these frames lie, counted from the first byte of the extent.
    #[must_use]
    pub fn stored(&self, frames: &Range<u64>) -> Range<u64> {
        let sum = |entries: &[[u32; 2]]| entries.iter().map(|[length, _]| u64::from(*length)).sum::<u64>();
        let end = (frames.end as usize).min(self.entries.len());
        let start = (frames.start as usize).min(end);
        let first = sum(&self.entries[..start]);
        first..first + sum(&self.entries[start..end])
    }

    /// These frames, in order.
    pub fn iter(&self, frames: &Range<u64>) -> impl Iterator<Item = Frame> + use<'a> {
        let end = (frames.end as usize).min(self.entries.len());
        let start = (frames.start as usize).min(end);
        let frame = |[stored_bytes, crc]: &[u32; 2]| Frame {
            stored_bytes: *stored_bytes,
            crc: *crc,
        };
        self.entries[start..end].iter().map(frame)
    }
}

impl Table {
    /// Adds an encoded part: its blocks as they come out, then its frames; gives the index of its first
    /// block.
    pub fn add_encoded(&mut self, crcs: &[u32], frames: &[Frame]) -> u64 {
        let first = self.add(crcs);
        for frame in frames {
            self.add(&[frame.stored_bytes, frame.crc]);
        }
        first
    }
}

/// Encodes frames; memory of one frame is kept between them.
pub struct Encoder {
    compressor: Compressor<'static>,
    grouped: Vec<u8>,
    compressed: Vec<u8>,
}

impl Encoder {
    /// A new one.
    pub fn new() -> Result<Self> {
        let compressor = Compressor::new(LEVEL)
            .map_err(|why| Error::new(Kind::NoSpace, "no memory for compression").caused_by(why))?;
        Ok(Self {
            compressor,
            grouped: Vec::new(),
            compressed: Vec::new(),
        })
    }

    /// Adds what is stored for a frame to `stored`. `base` has as many bytes, at most [`FRAME_BYTES`].
    pub fn frame(
        &mut self,
        bytes: &[u8],
        base: &[u8],
        element_bytes: u8,
        stored: &mut Vec<u8>,
    ) -> Result<Frame> {
        if bytes.len() != base.len() || bytes.len() as u64 > FRAME_BYTES {
            return Err(Error::new(Kind::Internal, "a frame and its base differ in size"));
        }
        self.grouped.resize(bytes.len(), 0);
        group::apart(bytes, base, element_bytes, &mut self.grouped);
        self.compressed.clear();
        self.compressed
            .reserve(zstd::zstd_safe::compress_bound(bytes.len()));
        let failed = |why| Error::new(Kind::Internal, "a frame could not be compressed").caused_by(why);
        self.compressor
            .compress_to_buffer(&self.grouped[..], &mut self.compressed)
            .map_err(failed)?;
        let frame = if self.compressed.len() < bytes.len() {
            &self.compressed[..]
        } else {
            bytes
        };
        stored.extend_from_slice(frame);
        Ok(Frame {
            stored_bytes: frame.len() as u32,
            crc: crc32c::crc32c(frame),
        })
    }
}

/// Decodes frames; memory of one frame is kept between them.
pub struct Decoder {
    decompressor: Decompressor<'static>,
    grouped: Vec<u8>,
}

impl Decoder {
    /// A new one.
    pub fn new() -> Result<Self> {
        let decompressor = Decompressor::new()
            .map_err(|why| Error::new(Kind::NoSpace, "no memory for decompression").caused_by(why))?;
        Ok(Self {
            decompressor,
            grouped: Vec::new(),
        })
    }

    /// Turns the bytes of the base in `target` into those of the frame. What is stored can never make more
    /// bytes than that.
    pub fn frame(&mut self, stored: &[u8], element_bytes: u8, target: &mut [u8]) -> Result<()> {
        let wrong = |what: &'static str| Error::new(Kind::Corrupt, what);
        if target.len() as u64 > FRAME_BYTES || stored.len() > target.len() {
            return Err(wrong("a frame of an encoded part has an impossible length"));
        }
        if stored.len() == target.len() {
            target.copy_from_slice(stored);
            return Ok(());
        }
        self.grouped.resize(target.len(), 0);
        let bytes = self
            .decompressor
            .decompress_to_buffer(stored, &mut self.grouped[..])
            .map_err(|why| wrong("a frame of an encoded part cannot be decompressed").caused_by(why))?;
        if bytes != target.len() {
            return Err(wrong(
                "a frame of an encoded part has fewer bytes than it stands for",
            ));
        }
        group::together(&self.grouped, element_bytes, target);
        Ok(())
    }
}
