//! An item under a lease, where the node keeps it: read in place, piece by piece, or made flat.

use std::sync::Arc;

use forebay_core::Result;
use forebay_wire::objects::Found;
use forebay_wire::{ObjectName, TierBytes, objects};

use super::session::Local;
use super::view::{Hold, Mapping, ScatteredView, map};
use crate::stats::{add, subtract};
use crate::view::{Bytes, Origin, View};

/// See the top of this file. All its parts were checked against the segments that they lie in.
pub(crate) struct LeasedItem {
    pub(super) local: Arc<Local>,
    pub(super) object: ObjectName,
    /// Without its view.
    pub(super) found: Found,
    pub(super) view: objects::View,
    /// The node's incarnation that gave the lease.
    pub(super) generation: u64,
    pub(super) memory: ScatteredView,
}

impl LeasedItem {
    pub(crate) fn bytes(&self) -> usize {
        self.memory.bytes()
    }

    pub(crate) fn object_bytes(&self) -> u64 {
        self.found.object_bytes
    }

    /// The number of the piece that has this byte.
    pub(crate) fn piece_with(&self, byte: usize) -> usize {
        self.memory.piece_with(byte)
    }

    /// Returns where a piece begins among all bytes, and its bytes.
    pub(crate) fn piece(&self, number: usize) -> (usize, &[u8]) {
        self.memory.piece(number)
    }

    /// One slice: in place, mapped side by side (and kept so for the next time), or copied.
    pub(crate) fn flat(self) -> Result<View> {
        let Self {
            local,
            object,
            found,
            view,
            generation,
            memory,
        } = self;
        let (segments, hold) = memory.into_segments();
        // Another node may use the same numbers for other segments, so both ways depend on the incarnation.
        let incarnation = hold.incarnation;
        let mut known = None;
        if view.parts.len() > 1 {
            let mut state = local.state();
            known = (state.incarnation == incarnation)
                .then(|| state.segments.joined(&view.parts))
                .flatten();
        }
        let mapped = match map(&view.parts, &segments, known, hold)? {
            Mapping::Mapped(mapped) => mapped,
            Mapping::Copied(copy) => {
                subtract(&local.counters.mapped_bytes, copy.len() as u64);
                add(&local.counters.copied_bytes, copy.len() as u64);
                return Ok(View::new(object, found, Bytes::Owned(copy), None));
            }
        };
        // What the node copied for this answer alone is not mapped again.
        if let Some(stitched) = mapped.stitched().filter(|_| found.sources.copied == 0) {
            let mut state = local.state();
            let same_node = state.incarnation == incarnation;
            let replaced = same_node.then(|| state.segments.keep_joined(&view.parts, stitched));
            drop(state);
            drop(replaced);
        }
        let origin = Origin { generation, view };
        Ok(View::new(object, found, Bytes::Mapped(mapped), Some(origin)))
    }

    /// A view of each piece, all under the same lease.
    pub(crate) fn pieces(self) -> Result<Vec<View>> {
        let (segments, first_hold) = self.memory.into_segments();
        let holds = self.local.share_hold(first_hold, self.view.parts.len());
        let (mut found, lease) = (self.found, self.view.lease);
        let mut views = Vec::with_capacity(holds.len());
        for ((part, segment), hold) in self.view.parts.into_iter().zip(segments).zip(holds) {
            let Mapping::Mapped(mapped) = map(&[part], &[segment], None, hold)? else {
                continue;
            };
            let origin = Origin {
                generation: self.generation,
                view: objects::View {
                    lease,
                    parts: vec![part],
                },
            };
            let (object, bytes) = (self.object.clone(), Bytes::Mapped(mapped));
            views.push(View::new(object, found.clone(), bytes, Some(origin)));
            found.offset += part.bytes;
            // The tiers that the bytes came from are told once.
            found.sources = TierBytes::default();
        }
        Ok(views)
    }
}

impl Local {
    /// So many holds on the lease of one.
    fn share_hold(self: &Arc<Self>, first: Hold, count: usize) -> Vec<Hold> {
        let (lease, incarnation) = (first.lease, first.incarnation);
        let mut holds = vec![first];
        let mut state = self.state();
        for _ in 1..count {
            // The first one counts the bytes of all. The books of another node have other leases.
            if state.incarnation == incarnation {
                state.leases.hold(lease, 0);
            }
            holds.push(self.hold(lease, incarnation));
        }
        drop(state);
        holds
    }
}
