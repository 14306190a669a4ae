//! Views of items: one question, the segments that are new to this process, then the bytes of each item.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::Instant;

use forebay_core::wire::{self, Answer, Failure, Found, Handle, Item, ItemRange, Request, ViewPart};
use forebay_core::{Error, Kind, Result};

use super::leases::Share;
use super::pool::{Again, Taken};
use super::segments::Segment;
use super::session::Local;
use super::view::{Apart, Hold, Seen, see, total_bytes};
use crate::pieces::Pieces;
use crate::stats::add;
use crate::view::{Bytes, Origin, View, ViewHandle};
use crate::wait::Wait;

/// Segments that an answer needs: mapped, or why not.
type Mappings = HashMap<u64, Result<Arc<Segment>>>;

/// An item whose lease is held, before its segments are there.
struct Leased {
    found: Found,
    hold: Option<Hold>,
}

impl Local {
    /// One view or failure for each item, in order. Asked again as a whole if the node was replaced in the middle.
    pub(crate) fn read(self: &Arc<Self>, items: Vec<Item>) -> Result<Vec<Result<View>>> {
        let (items, seen) = self.ask_for(items, |leased, mappings, generation| {
            self.see_one(leased, mappings, generation)
        })?;
        let named = items.into_iter().zip(seen);
        Ok(named
            .map(|(item, seen)| seen.map(|parts| parts.named(item)))
            .collect())
    }

    /// The same, as pieces where the node has them.
    pub(crate) fn read_pieces(self: &Arc<Self>, items: Vec<Item>) -> Result<Vec<Result<Pieces>>> {
        let (_, seen) = self.ask_for(items, |leased, mappings, _| self.see_apart(leased, mappings))?;
        Ok(seen)
    }

    /// The same, as one view for each piece of memory that the bytes of an item lie in.
    pub(crate) fn read_parts(self: &Arc<Self>, items: Vec<Item>) -> Result<Vec<Result<Vec<View>>>> {
        let (items, seen) = self.ask_for(items, |leased, mappings, generation| {
            let parts = self.parts_of(leased).into_iter();
            let seen = parts.map(|part| self.see_one(part, mappings, generation));
            seen.collect::<Result<Vec<Unnamed>>>()
        })?;
        let named = items.into_iter().zip(seen);
        Ok(named
            .map(|(item, seen)| {
                let views = seen?.into_iter().map(|part| part.named(item.clone()));
                Ok(views.collect())
            })
            .collect())
    }

    /// Every part of a leased item as an item of its own, all under the same lease.
    fn parts_of(self: &Arc<Self>, leased: Leased) -> Vec<Leased> {
        let Leased { mut found, hold } = leased;
        let (Some(view), Some(first_hold)) = (found.view.take(), hold) else {
            return Vec::new();
        };
        let (lease, life) = (view.lease, first_hold.life);
        let mut holds = vec![first_hold];
        let mut state = self.state();
        for _ in 1..view.parts.len() {
            // The first one counts the bytes of all. The books of another node have other leases.
            if state.life == life {
                state.leases.hold(lease, 0);
            }
            holds.push(self.hold(lease, life));
        }
        drop(state);
        let mut offset = found.offset;
        let part = |(part, hold): (ViewPart, Hold)| {
            let one = Found {
                offset,
                view: Some(wire::View {
                    lease,
                    parts: vec![part],
                }),
                ..found.clone()
            };
            offset += part.bytes;
            // Where the bytes came from is said once.
            found.sources = wire::Sources::default();
            Leased {
                found: one,
                hold: Some(hold),
            }
        };
        view.parts.into_iter().zip(holds).map(part).collect()
    }

    /// Gives the items back, and what was seen of each.
    fn ask_for<T>(
        self: &Arc<Self>,
        items: Vec<Item>,
        see: impl Fn(Leased, &Mappings, u64) -> Result<T>,
    ) -> Result<(Vec<Item>, Vec<Result<T>>)> {
        let wait = Wait::start(&self.options);
        let grace = wait.with_grace();
        let count = items.len();
        let request = Request::Read {
            items,
            timeout_ms: wait.left_ms(),
        };
        let seen = self.with_connection(Again::Harmless, &wait, |taken| {
            let answer = taken.ask(&request, &grace)?;
            match answer {
                Answer::Read(found) if found.len() == count => self.see_all(taken, found, &grace, &see),
                other => Err(taken.connection().misunderstood(&other)),
            }
        })?;
        let Request::Read { items, .. } = request else {
            return Ok((Vec::new(), Vec::new()));
        };
        Ok((items, seen))
    }

    fn see_all<T>(
        self: &Arc<Self>,
        taken: &mut Taken<'_>,
        found: Vec<Result<Found, Failure>>,
        wait: &Wait,
        see: impl Fn(Leased, &Mappings, u64) -> Result<T>,
    ) -> Result<Vec<Result<T>>> {
        let (leased, mut mappings) = self.hold_all(taken, found)?;
        for found in leased.iter().flatten().map(|leased| &leased.found) {
            let keep = found.sources.copied == 0;
            for part in found.view.iter().flat_map(|view| &view.parts) {
                if let Entry::Vacant(vacant) = mappings.entry(part.segment) {
                    let mapped = self.map_segment(taken, part.segment, keep, wait);
                    if taken.connection().is_lost() {
                        return Err(mapped.err().unwrap_or_else(went_away));
                    }
                    vacant.insert(mapped);
                }
            }
        }
        let generation = taken.generation;
        let seen = leased
            .into_iter()
            .map(|leased| see(leased?, &mappings, generation));
        Ok(seen.collect())
    }

    /// Writes the leases down and finds the segments that are mapped already, all under one lock.
    fn hold_all(
        self: &Arc<Self>,
        taken: &Taken<'_>,
        found: Vec<Result<Found, Failure>>,
    ) -> Result<(Vec<Result<Leased>>, Mappings)> {
        let now = Instant::now();
        let mut mappings = Mappings::new();
        let mut state = self.state();
        if state.life != taken.life {
            return Err(Error::new(Kind::Unavailable, "the node was replaced by another"));
        }
        let mut hold = |found: Result<Found, Failure>| -> Result<Leased> {
            let found = found.map_err(Error::from)?;
            let hold = found.view.as_ref().map(|view| {
                let bytes = view
                    .parts
                    .iter()
                    .fold(0u64, |sum, part| sum.saturating_add(part.bytes));
                state.leases.hold(view.lease, bytes);
                for part in &view.parts {
                    if !mappings.contains_key(&part.segment)
                        && let Some(segment) = state.segments.get(part.segment, now)
                    {
                        mappings.insert(part.segment, Ok(segment));
                    }
                }
                self.hold(view.lease, taken.life)
            });
            Ok(Leased { found, hold })
        };
        let leased = found.into_iter().map(&mut hold).collect();
        let unused = state.segments.sweep(now);
        drop(state);
        drop(unused);
        Ok((leased, mappings))
    }

    fn hold(self: &Arc<Self>, lease: u64, life: u64) -> Hold {
        Hold {
            local: Arc::clone(self),
            lease,
            life,
        }
    }

    fn map_segment(
        &self,
        taken: &mut Taken<'_>,
        segment: u64,
        keep: bool,
        wait: &Wait,
    ) -> Result<Arc<Segment>> {
        let connection = taken.connection();
        let bytes = match connection.ask(&Request::MapSegment { segment }, None, wait)? {
            Answer::Segment { bytes } => bytes,
            other => return Err(connection.misunderstood(&other)),
        };
        let Some(memfd) = connection.take_descriptor() else {
            return Err(
                Error::new(Kind::Corrupt, "the node sent no descriptor beside its answer")
                    .with("segment", segment),
            );
        };
        let mapped = Segment::map(&memfd, bytes).map(Arc::new);
        let mapped = mapped.map_err(|error| error.with("segment", segment))?;
        if keep {
            let mut state = self.state();
            if state.life == taken.life {
                state.segments.keep(segment, &mapped);
            }
        }
        Ok(mapped)
    }

    fn see_one(&self, leased: Leased, mappings: &Mappings, generation: u64) -> Result<Unnamed> {
        let Leased { mut found, hold } = leased;
        self.counters.count_sources(&found.sources);
        let (Some(view), Some(hold)) = (found.view.take(), hold) else {
            return Ok(Unnamed {
                found,
                bytes: Bytes::Owned(Vec::new()),
                origin: None,
            });
        };
        let segments = segments_of(&view.parts, mappings)?;
        // Another node may use the same numbers for other segments, so both ways depend on the node's life.
        let life = hold.life;
        let mut known = None;
        if view.parts.len() > 1 {
            let mut state = self.state();
            known = (state.life == life)
                .then(|| state.segments.joined(&view.parts))
                .flatten();
        }
        let bytes = match see(&view.parts, &segments, known, hold)? {
            Seen::Mapped(mapped) => {
                // What the node copied for this answer alone is not seen again.
                if let Some(stitched) = mapped.stitched().filter(|_| found.sources.copied == 0) {
                    let mut state = self.state();
                    let same_node = state.life == life;
                    let replaced = same_node.then(|| state.segments.keep_joined(&view.parts, stitched));
                    drop(state);
                    drop(replaced);
                }
                add(&self.counters.mapped_bytes, mapped.as_slice().len() as u64);
                Bytes::Mapped(mapped)
            }
            Seen::Copied(copy) => {
                add(&self.counters.copied_bytes, copy.len() as u64);
                Bytes::Owned(copy)
            }
        };
        let origin = matches!(bytes, Bytes::Mapped(_)).then_some(Origin { generation, view });
        Ok(Unnamed { found, bytes, origin })
    }

    fn see_apart(&self, leased: Leased, mappings: &Mappings) -> Result<Pieces> {
        let Leased { mut found, hold } = leased;
        self.counters.count_sources(&found.sources);
        let (Some(view), Some(hold)) = (found.view.take(), hold) else {
            return Ok(Pieces::none(found.object_bytes));
        };
        let segments = segments_of(&view.parts, mappings)?;
        let apart = Apart::new(&view.parts, segments, hold)?;
        add(&self.counters.mapped_bytes, apart.bytes() as u64);
        Ok(Pieces::apart(found.object_bytes, apart))
    }

    /// A share in the view of another process; `None` if its lease has ended.
    pub(crate) fn open_shared(self: &Arc<Self>, handle: &ViewHandle) -> Result<Option<View>> {
        match handle.leased() {
            Some((generation, view)) => self.adopt(handle, generation, view),
            None => Ok(None),
        }
    }

    fn adopt(
        self: &Arc<Self>,
        handle: &ViewHandle,
        generation: u64,
        view: &wire::View,
    ) -> Result<Option<View>> {
        let wait = Wait::start(&self.options);
        let bytes = total_bytes(&view.parts)? as u64;
        self.with_connection(Again::Harmless, &wait, |taken| {
            if taken.generation != generation || !self.share(taken, generation, view.lease, bytes, &wait)? {
                return Ok(None);
            }
            // From here on the lease is held by this process.
            let leased = Leased {
                found: handle.found(view),
                hold: Some(self.hold(view.lease, taken.life)),
            };
            let mut mappings = Mappings::new();
            for part in &view.parts {
                let known = self.state().segments.get(part.segment, Instant::now());
                let mapped = match known {
                    Some(segment) => Ok(segment),
                    None => self.map_segment(taken, part.segment, handle.sources().copied == 0, &wait),
                };
                mappings.insert(part.segment, mapped);
            }
            let seen = self.see_one(leased, &mappings, generation)?;
            Ok(Some(seen.named(Item {
                object: handle.object().clone(),
                range: ItemRange::Whole,
                version: None,
            })))
        })
    }

    /// Takes a share in a lease; one that this process still has needs no question.
    fn share(
        &self,
        taken: &mut Taken<'_>,
        generation: u64,
        lease: u64,
        bytes: u64,
        wait: &Wait,
    ) -> Result<bool> {
        let begun = {
            let mut state = self.state();
            if state.life != taken.life {
                return Err(went_away());
            }
            state.leases.begin_share(lease, bytes)
        };
        match begun {
            Share::Held => return Ok(true),
            Share::Ending => return Ok(false),
            Share::Ask => {}
        }
        let handles = vec![Handle { generation, lease }];
        let answer = taken.ask(&Request::Adopt { handles }, wait);
        let shared = match answer {
            Ok(Answer::Adopted(lives)) if lives.len() == 1 => Ok(lives == [true]),
            Ok(other) => Err(taken.connection().misunderstood(&other)),
            Err(error) => Err(error),
        };
        let mut state = self.state();
        if state.life != taken.life {
            return Err(went_away());
        }
        state
            .leases
            .end_share(lease, bytes, shared.as_ref().ok().copied());
        shared
    }
}

fn went_away() -> Error {
    Error::new(
        Kind::Unavailable,
        "the node went away; the next call looks for it again",
    )
}

fn segments_of(parts: &[ViewPart], mappings: &Mappings) -> Result<Vec<Arc<Segment>>> {
    let segment = |part: &ViewPart| match mappings.get(&part.segment) {
        Some(Ok(segment)) => Ok(Arc::clone(segment)),
        Some(Err(error)) => Err(error.share()),
        None => Err(Error::new(Kind::Internal, "a segment was not asked for")),
    };
    parts.iter().map(segment).collect()
}

/// A view that does not know its object yet.
struct Unnamed {
    found: Found,
    bytes: Bytes,
    origin: Option<Origin>,
}

impl Unnamed {
    fn named(self, item: Item) -> View {
        View::new(item.object, self.found, self.bytes, self.origin)
    }
}
