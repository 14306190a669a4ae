//! The bytes of an answer in this process: in place, side by side, or copied.
//!
//! Bytes that lie together are read where they are. Large pieces of several segments are mapped once more,
//! side by side, into a range of addresses of their own, without a descriptor (`mremap` of a shared mapping
//! with an old size of zero makes a second one). Such a range is kept for the next view of the same parts,
//! because mapping it again would cost its page faults again. Small or many pieces are copied, and the lease
//! ends at once; the statistics show it. Who can do with pieces gets them as they lie ([`ScatteredView`]).
#![allow(unsafe_code, reason = "memory that is shared with the node")]

use std::ptr::NonNull;
use std::sync::Arc;

use forebay_core::{Error, Kind, Result};
use forebay_wire::objects::ViewPart;
use rustix::mm::MremapFlags;

use super::segments::{Addresses, HUGE_PAGE_BYTES, Segment, cannot_map};
use super::session::Local;

/// Alignment of parts that are mapped side by side.
const PART_ALIGN: u64 = 4096;

/// Pieces are mapped side by side if there are at most so many …
const STITCHED_PARTS_MAX: usize = 64;

/// … unless they are as large as this on average …
const STITCHED_PART_BYTES_LARGE: u64 = 16 << 20;

/// … and if they have at least so many bytes on average; else copying is cheaper.
const STITCHED_PART_BYTES_MIN: u64 = 512 << 10;

/// A share of this process in a lease; gives it back when dropped.
pub(super) struct Hold {
    pub(super) local: Arc<Local>,
    pub(super) lease: u64,
    pub(super) incarnation: u64,
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.local.drop_view(self.lease, self.incarnation);
    }
}

/// Bytes in shared memory, under a lease.
pub(crate) struct Mapped {
    start: NonNull<u8>,
    bytes: usize,
    // Dropped in this order: first the addresses, then the lease.
    memory: Memory,
    _hold: Hold,
}

enum Memory {
    Segment(#[expect(dead_code, reason = "kept alive, not read")] Arc<Segment>),
    Stitched(Arc<Stitched>),
}

/// Parts of several segments, mapped side by side.
#[derive(Debug)]
pub(super) struct Stitched {
    start: NonNull<u8>,
    bytes: usize,
    _addresses: Addresses,
}

// SAFETY: read-only memory that lives as long as this value; see `Addresses`.
unsafe impl Send for Stitched {}
// SAFETY: as above.
unsafe impl Sync for Stitched {}

// SAFETY: read-only memory that is kept mapped by `memory` and unchanged by `_hold`.
unsafe impl Send for Mapped {}
// SAFETY: as above.
unsafe impl Sync for Mapped {}

/// Parts of an answer in this process.
pub(super) enum Mapping {
    /// They can be read in shared memory.
    Mapped(Mapped),
    /// They were copied; the lease is no longer needed.
    Copied(Vec<u8>),
}

/// Makes one flat piece of the parts. `segments` has one entry for each part; `known` is where the same parts
/// are mapped side by side already.
pub(super) fn map(
    parts: &[ViewPart],
    segments: &[Arc<Segment>],
    known: Option<Arc<Stitched>>,
    hold: Hold,
) -> Result<Mapping> {
    let bytes = total_bytes(parts)?;
    if let ([part], [segment]) = (parts, segments) {
        return Ok(Mapping::Mapped(Mapped {
            start: segment.locate(part)?,
            bytes,
            memory: Memory::Segment(Arc::clone(segment)),
            _hold: hold,
        }));
    }
    if can_stitch(parts, bytes as u64) {
        let stitched = match known.filter(|known| known.bytes == bytes) {
            Some(known) => known,
            None => Arc::new(stitch(parts, segments, bytes)?),
        };
        return Ok(Mapping::Mapped(Mapped {
            start: stitched.start,
            bytes,
            memory: Memory::Stitched(stitched),
            _hold: hold,
        }));
    }
    let mut copy = Vec::new();
    copy.try_reserve_exact(bytes).map_err(|why| {
        Error::new(Kind::NoSpace, "no memory for a copy")
            .with("bytes", bytes)
            .caused_by(why)
    })?;
    for (part, segment) in parts.iter().zip(segments) {
        copy.extend_from_slice(segment.slice(part)?);
    }
    Ok(Mapping::Copied(copy))
}

pub(super) fn total_bytes(parts: &[ViewPart]) -> Result<usize> {
    let total = parts
        .iter()
        .try_fold(0u64, |sum, part| sum.checked_add(part.bytes));
    total
        .and_then(|total| isize::try_from(total).ok())
        .filter(|total| *total > 0)
        .map(isize::unsigned_abs)
        .ok_or_else(|| Error::new(Kind::Corrupt, "the node named an impossible number of bytes"))
}

fn can_stitch(parts: &[ViewPart], bytes: u64) -> bool {
    let mean = bytes / parts.len().max(1) as u64;
    let few = parts.len() <= STITCHED_PARTS_MAX || mean >= STITCHED_PART_BYTES_LARGE;
    let last = parts.len().saturating_sub(1);
    let aligned = parts.iter().enumerate().all(|(index, part)| {
        let starts = index == 0 || part.offset % PART_ALIGN == 0;
        let ends = index == last || part.offset.wrapping_add(part.bytes) % PART_ALIGN == 0;
        starts && ends
    });
    few && aligned && mean >= STITCHED_PART_BYTES_MIN
}

/// Maps the parts once more, side by side.
fn stitch(parts: &[ViewPart], segments: &[Arc<Segment>], bytes: usize) -> Result<Stitched> {
    let first = parts.first().map_or(0, |part| part.offset);
    let lead = usize::try_from(first % PART_ALIGN).expect("less than a page");
    // The same place within 2 MiB as in the segment, so that its huge pages fit.
    let gap = usize::try_from(first % HUGE_PAGE_BYTES as u64).expect("less than 2 MiB") - lead;
    let (addresses, start) = Addresses::reserve(bytes + lead + PART_ALIGN as usize, gap)?;
    let mut done = 0;
    for (index, (part, segment)) in parts.iter().zip(segments).enumerate() {
        let skipped = if index == 0 { lead } else { 0 };
        let source = segment.locate(part)?;
        let length = usize::try_from(part.bytes).expect("checked by `locate`") + skipped;
        // SAFETY: `source` is inside the segment's mapping and `skipped` bytes before it is where its page
        // starts. The target lies inside the addresses reserved above, which nobody uses; an old size of zero
        // leaves the segment's mapping as it is.
        unsafe {
            rustix::mm::mremap_fixed(
                source.as_ptr().sub(skipped).cast(),
                0,
                length.next_multiple_of(PART_ALIGN as usize),
                MremapFlags::MAYMOVE,
                start.as_ptr().add(done).cast(),
            )
        }
        .map_err(|why| cannot_map(why, length))?;
        done += length;
    }
    Ok(Stitched {
        // SAFETY: `lead` bytes of the first page come before the first byte of the view.
        start: unsafe { start.add(lead) },
        bytes,
        _addresses: addresses,
    })
}

impl Mapped {
    /// The range of addresses this view lies in, if it was made of several parts.
    pub(super) fn stitched(&self) -> Option<&Arc<Stitched>> {
        match &self.memory {
            Memory::Stitched(stitched) => Some(stitched),
            Memory::Segment(_) => None,
        }
    }

    /// The bytes.
    pub(crate) fn as_slice(&self) -> &[u8] {
        // SAFETY: `start` and `bytes` were checked against the mapping that `memory` keeps; the node never
        // writes to these bytes while the lease in `_hold` lives, and abandons the memory instead when the
        // lease is taken away.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }
}

/// Parts of an answer where they lie, under one lease.
pub(super) struct ScatteredView {
    /// Start of each part among the bytes of all, and in memory.
    parts: Vec<(usize, NonNull<u8>)>,
    bytes: usize,
    // Dropped in this order: first the addresses, then the lease.
    segments: Vec<Arc<Segment>>,
    hold: Hold,
}

// SAFETY: read-only memory that is kept mapped by `segments` and unchanged by `hold`.
unsafe impl Send for ScatteredView {}
// SAFETY: as above.
unsafe impl Sync for ScatteredView {}

impl ScatteredView {
    /// `segments` has one entry for each part.
    pub(super) fn new(parts: &[ViewPart], segments: Vec<Arc<Segment>>, hold: Hold) -> Result<Self> {
        let bytes = total_bytes(parts)?;
        let mut placed = Vec::with_capacity(parts.len());
        let mut first = 0;
        for (part, segment) in parts.iter().zip(&segments) {
            placed.push((first, segment.locate(part)?));
            first += usize::try_from(part.bytes).expect("checked by `total_bytes`");
        }
        Ok(Self {
            parts: placed,
            bytes,
            segments,
            hold,
        })
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The segments, one for each part, and the lease.
    pub(super) fn into_segments(self) -> (Vec<Arc<Segment>>, Hold) {
        (self.segments, self.hold)
    }

    /// The number of the part that has this byte.
    pub(super) fn piece_with(&self, byte: usize) -> usize {
        self.parts
            .partition_point(|(first, _)| *first <= byte)
            .saturating_sub(1)
    }

    /// Returns where a part begins among the bytes of all, and its bytes.
    pub(super) fn piece(&self, number: usize) -> (usize, &[u8]) {
        let (first, start) = self.parts[number];
        let end = self.parts.get(number + 1).map_or(self.bytes, |(next, _)| *next);
        // SAFETY: all of the part lies in its segment's mapping, as `locate` checked, which `_segments`
        // keeps; the node never writes to these bytes while the lease in `hold` lives, and abandons the
        // memory instead when the lease is taken away.
        (first, unsafe {
            std::slice::from_raw_parts(start.as_ptr(), end - first)
        })
    }
}
