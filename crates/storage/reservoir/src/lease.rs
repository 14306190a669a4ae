//! A lease for a client on the host: where the bytes of a range lie, and the hold that keeps them there.
//!
//! A range whose blocks are all in RAM is leased without a copy, a task or a wait ([`Reservoir::try_lease`]):
//! the lease holds the pages, and held pages are no candidates for eviction. What is missing is read first as
//! by any other reader ([`Reservoir::lease`]). Bytes that find no memory in the cache, or whose page was
//! forgotten meanwhile, are copied into a segment of their own (`lease/copy.rs`), which goes with its lease.
//!
//! Life cycle: a lease ends when it is dropped. One that is held too long is abandoned
//! ([`Reservoir::abandon`]): its segments leave the arena and are never written again, so whoever still maps
//! them reads what was there.
//!
//! Limits: copies together are capped; who may hold how much is decided by whoever numbers the leases.

mod copy;
mod gather;

use std::os::fd::AsFd;
use std::sync::Arc;

use forebay_core::{ByteRange, Error, Kind, PAGE_BYTES, PageIndex, Result, Tier, TierBytes};
use futures::TryStreamExt;
use smallvec::SmallVec;

use crate::page::PageLease;
use crate::reservoir::Reservoir;
use crate::segment::SegmentId;
use crate::{ObjectId, ObjectVersion, Source, TrustDomain};

pub(crate) use copy::Copies;
use copy::Copy;
use gather::Gathering;

/// A piece of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeasedPart {
    /// The segment.
    pub segment: SegmentId,
    /// First byte in it.
    pub offset: u64,
    /// Their number.
    pub bytes: u64,
}

type Parts = SmallVec<[LeasedPart; 1]>;

/// Bytes that stay where they are until this is dropped.
#[derive(Debug)]
pub struct Leased {
    parts: Parts,
    tiers: TierBytes,
    hold: Hold,
}

/// The hold that keeps the bytes.
#[derive(Debug)]
enum Hold {
    #[expect(dead_code, reason = "held, never looked at")]
    Pages(SmallVec<[PageLease; 1]>),
    Copy(Copy),
}

impl Leased {
    /// Returns where the bytes lie, in order. Every part but the first starts, and every one but the last
    /// ends, at a multiple of 4096; parts that lie together are one.
    #[must_use]
    pub fn parts(&self) -> &[LeasedPart] {
        &self.parts
    }

    /// Returns how many bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.bytes).sum()
    }

    /// Returns where they came from.
    #[must_use]
    pub fn tiers(&self) -> TierBytes {
        self.tiers
    }

    /// The segments that they lie in; one may come up again.
    pub fn segments(&self) -> impl Iterator<Item = SegmentId> {
        self.parts.iter().map(|part| part.segment)
    }
}

impl Reservoir {
    /// Leases a range if all its bytes are in RAM; never waits.
    #[must_use]
    pub fn try_lease(self: &Arc<Self>, object: &ObjectVersion, range: ByteRange) -> Option<Leased> {
        self.try_lease_id(&ObjectId::of(object), range)
    }

    /// As [`Self::try_lease`], for a caller that keeps the id of the object.
    #[must_use]
    pub fn try_lease_id(self: &Arc<Self>, id: &ObjectId, range: ByteRange) -> Option<Leased> {
        let pages = self.ram.index.lease_pages(id, range)?;
        let mut parts = Parts::new();
        for page in &pages {
            let (start, end) = span_in_page(page.key.page, range);
            page.frame.places(start, end, |segment, offset, bytes| {
                push_part(&mut parts, segment, offset, bytes);
            });
            if page.mark_read(page.blocks(start, end)) {
                self.ram.touch(page);
            }
        }
        self.counters.served(Tier::Ram, range.len());
        let tiers = TierBytes {
            ram: range.len(),
            ..TierBytes::default()
        };
        Some(Leased {
            parts,
            tiers,
            hold: Hold::Pages(pages),
        })
    }

    /// Leases a range: what is missing comes in as for any reader, once however many wait. When there is no
    /// memory for it the bytes are copied into a segment of their own; `Busy` when too many such copies are
    /// held, `NoSpace` when this one is larger than all of them may be.
    ///
    /// Cancel-safe: fills that it started go on for the others.
    pub async fn lease(
        self: &Arc<Self>,
        object: &ObjectVersion,
        range: ByteRange,
        source: &Arc<dyn Source>,
    ) -> Result<Leased> {
        let id = ObjectId::of(object);
        if let Some(leased) = self.try_lease_id(&id, range) {
            return Ok(leased);
        }
        self.gather(Gathering::in_place(self, object, id, range), source)
            .await
    }

    /// Leases a copy of a range in a segment of its own, however much RAM there is: for a client that holds
    /// its share already. Errors and cancellation as [`Self::lease`].
    pub async fn lease_copy(
        self: &Arc<Self>,
        object: &ObjectVersion,
        range: ByteRange,
        source: &Arc<dyn Source>,
    ) -> Result<Leased> {
        self.gather(Gathering::copied(self, object, range)?, source).await
    }

    async fn gather(self: &Arc<Self>, mut gathering: Gathering, source: &Arc<dyn Source>) -> Result<Leased> {
        let mut pieces = self.read(gathering.object(), gathering.range(), source);
        while let Some(piece) = pieces.try_next().await? {
            gathering.take(&piece)?;
        }
        gathering.finish()
    }

    /// The descriptor of a segment that a lease lies in, its size, and who may map it. `None` if there is no
    /// such segment (any more).
    #[must_use]
    pub fn segment_fd(
        &self,
        id: SegmentId,
    ) -> Option<(Arc<impl AsFd + Send + Sync + 'static + use<>>, u64, TrustDomain)> {
        let (segment, domain) = self.ram.arena.segment(id).or_else(|| self.copies.segment(id))?;
        let bytes = segment.bytes() as u64;
        Some((segment, bytes, domain))
    }

    /// Gives up the memory of a lease that is held too long: its segments are never written again, their
    /// pages leave the cache, and their bytes leave the budget. The kernel frees them with the last mapping.
    pub fn abandon(&self, leased: &Leased) {
        match &leased.hold {
            Hold::Pages(_) => self.ram.abandon(&leased.segments().collect()),
            Hold::Copy(copy) => {
                self.counters.abandoned_segments.add(1);
                self.counters.abandoned_bytes.add(copy.bytes);
            }
        }
    }
}

/// The bytes of a page that lie in the range, as offsets inside the page.
fn span_in_page(page: PageIndex, range: ByteRange) -> (usize, usize) {
    let start = range.start().saturating_sub(page.start());
    let end = range.end().saturating_sub(page.start()).min(PAGE_BYTES);
    let inside = |offset| usize::try_from(offset).expect("at most a page");
    (inside(start), inside(end))
}

/// Appends a part, joined with the last one if it lies right behind it.
fn push_part(parts: &mut Parts, segment: SegmentId, offset: u64, bytes: u64) {
    match parts.last_mut() {
        Some(last) if last.segment == segment && last.offset + last.bytes == offset => last.bytes += bytes,
        _ => parts.push(LeasedPart {
            segment,
            offset,
            bytes,
        }),
    }
}

/// The error for a lease whose pages lost bytes: a mistake of this crate.
fn lost_bytes() -> Error {
    Error::new(Kind::Internal, "a leased page has lost its bytes")
}
