//! Gathering what a lease needs while a read brings it in.
//!
//! Every piece of the read either lies in a page that the index has, which is then held, or it does not (it
//! went past the cache, or the object was forgotten meanwhile). The first one that does not turns the whole
//! lease into a copy: what was held so far is copied and let go.

use std::sync::Arc;

use forebay_core::{ByteRange, PAGE_BYTES, PageIndex, Result, TierBytes};
use smallvec::SmallVec;

use super::copy::CopyDraft;
use super::{Hold, Leased, LeasedPart, Parts, lost_bytes, push_part};
use crate::page::PageLease;
use crate::reservoir::Reservoir;
use crate::{ObjectId, ObjectVersion, PageKey, Piece};

/// A lease on its way.
pub(super) struct Gathering {
    reservoir: Arc<Reservoir>,
    object: ObjectVersion,
    id: ObjectId,
    range: ByteRange,
    tiers: TierBytes,
    into: GatherTarget,
}

enum GatherTarget {
    Pages(Vec<Span>),
    Copy(CopyDraft),
}

/// Bytes of a page that were handed out.
struct Span {
    page: PageLease,
    start: usize,
    end: usize,
}

impl Gathering {
    /// Holds pages where they lie, as long as that goes.
    pub(super) fn in_place(
        reservoir: &Arc<Reservoir>,
        object: &ObjectVersion,
        id: ObjectId,
        range: ByteRange,
    ) -> Self {
        Self {
            reservoir: Arc::clone(reservoir),
            object: object.clone(),
            id,
            range,
            tiers: TierBytes::default(),
            into: GatherTarget::Pages(Vec::new()),
        }
    }

    /// Copies from the first byte on.
    pub(super) fn copied(
        reservoir: &Arc<Reservoir>,
        object: &ObjectVersion,
        range: ByteRange,
    ) -> Result<Self> {
        let draft = reservoir.copies.draft(range.len(), object.domain)?;
        Ok(Self {
            into: GatherTarget::Copy(draft),
            ..Self::in_place(reservoir, object, ObjectId::of(object), range)
        })
    }

    pub(super) fn object(&self) -> &ObjectVersion {
        &self.object
    }

    pub(super) fn range(&self) -> ByteRange {
        self.range
    }

    /// Takes the next piece.
    pub(super) fn take(&mut self, piece: &Piece) -> Result<()> {
        self.tiers.add(piece.tier, piece.bytes.len() as u64);
        match &mut self.into {
            GatherTarget::Copy(draft) => draft.push(&piece.bytes),
            GatherTarget::Pages(spans) => match find(&self.reservoir, self.id, piece) {
                Some(found) => extend(spans, found),
                None => {
                    let mut draft = self
                        .reservoir
                        .copies
                        .draft(self.range.len(), self.object.domain)?;
                    for span in spans.drain(..) {
                        copy_span(&span, &mut draft);
                    }
                    draft.push(&piece.bytes);
                    self.into = GatherTarget::Copy(draft);
                }
            },
        }
        Ok(())
    }

    /// The lease, when all pieces were taken.
    pub(super) fn finish(self) -> Result<Leased> {
        let (mut parts, mut tiers) = (Parts::new(), self.tiers);
        let hold = match self.into {
            GatherTarget::Copy(draft) => {
                let copy = draft.finish();
                tiers.copied = copy.bytes;
                parts.push(LeasedPart {
                    segment: copy.id,
                    offset: 0,
                    bytes: copy.bytes,
                });
                Hold::Copy(copy)
            }
            GatherTarget::Pages(spans) => {
                let mut pages = SmallVec::with_capacity(spans.len());
                for span in spans {
                    let add = |segment, offset, bytes| push_part(&mut parts, segment, offset, bytes);
                    if !span.page.frame.places(span.start, span.end, add) {
                        return Err(lost_bytes());
                    }
                    pages.push(span.page);
                }
                Hold::Pages(pages)
            }
        };
        let leased = Leased { parts, tiers, hold };
        if leased.bytes() != self.range.len() {
            return Err(lost_bytes());
        }
        Ok(leased)
    }
}

/// The page that a piece lies in, held; `None` if the index has none or another.
fn find(reservoir: &Reservoir, object: ObjectId, piece: &Piece) -> Option<Span> {
    let page = PageIndex(u32::try_from(piece.start / PAGE_BYTES).ok()?);
    let page = reservoir.ram.index.lease_page(&PageKey { object, page })?;
    let start = usize::try_from(piece.start % PAGE_BYTES).ok()?;
    let in_page = page.frame.slice(start, start + 1);
    (in_page.as_ptr() == piece.bytes.as_ptr()).then(|| Span {
        end: start + piece.bytes.len(),
        start,
        page,
    })
}

/// Appends a span, joined with the last one if it goes on in the same page.
fn extend(spans: &mut Vec<Span>, found: Span) {
    match spans.last_mut() {
        Some(last) if last.page.is_same(&found.page) && last.end == found.start => last.end = found.end,
        _ => spans.push(found),
    }
}

fn copy_span(span: &Span, draft: &mut CopyDraft) {
    let mut start = span.start;
    while start < span.end {
        let bytes = span.page.frame.slice(start, span.end);
        if bytes.is_empty() {
            return; // A page that lost its bytes: `finish` finds the copy too short.
        }
        draft.push(bytes);
        start += bytes.len();
    }
}
