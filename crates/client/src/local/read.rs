//! Reads of items: one request, the segments that are new to this process, then each item where it lies
//! (`leased_item.rs`).

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::Instant;

use forebay_core::{Error, Kind, Result};
use forebay_wire::objects::{Found, Handle, ViewPart};
use forebay_wire::{Failure, Item, ObjectName};
use forebay_wire::{objects, session};

use super::leased_item::LeasedItem;
use super::leases::Share;
use super::pool::{PooledConnection, Retry};
use super::segments::Segment;
use super::session::Local;
use super::view::{Hold, ScatteredView, total_bytes};
use crate::scattered::Scattered;
use crate::stats::add;
use crate::view::{Bytes, View, ViewHandle};
use crate::wait::Wait;

/// Segments that an answer needs: mapped, or why not.
type Mappings = HashMap<u64, Result<Arc<Segment>>>;

/// An item whose lease is held, before its segments are there.
struct Leased {
    found: Found,
    hold: Option<Hold>,
}

/// An answer whose leases are held, and the segments that it needs.
struct MappedAnswer {
    leased: Vec<Result<Leased>>,
    mappings: Mappings,
    /// The node's incarnation that gave it.
    generation: u64,
}

impl Local {
    /// Each item where the node keeps it, or its failure, in order. Asked again as a whole if the node was
    /// replaced in the middle.
    pub(crate) fn read(self: &Arc<Self>, items: Vec<Item>) -> Result<Vec<Result<Scattered>>> {
        let wait = Wait::start(&self.options);
        let grace = wait.with_grace();
        let count = items.len();
        let request = objects::Request::Read {
            items,
            timeout_ms: wait.left_ms(),
        };
        let answer = self.with_connection(Retry::Idempotent, &wait, |connection| {
            match connection.ask(&request, &grace)? {
                objects::Answer::Read(found) if found.len() == count => {
                    self.map_all(connection, found, &grace)
                }
                other => Err(connection.inner().misunderstood(&other)),
            }
        })?;
        let objects::Request::Read { items, .. } = request else {
            return Ok(Vec::new());
        };
        let named = items.into_iter().zip(answer.leased);
        let scattered = named
            .map(|(item, leased)| self.scattered(item.object, leased?, &answer.mappings, answer.generation));
        Ok(scattered.collect())
    }

    /// Holds the leases of an answer and maps the segments that are new to this process.
    fn map_all(
        self: &Arc<Self>,
        connection: &mut PooledConnection<'_>,
        found: Vec<Result<Found, Failure>>,
        wait: &Wait,
    ) -> Result<MappedAnswer> {
        let (leased, mut mappings) = self.hold_all(connection, found)?;
        for found in leased.iter().flatten().map(|leased| &leased.found) {
            let keep = found.sources.copied == 0;
            for part in found.view.iter().flat_map(|view| &view.parts) {
                if let Entry::Vacant(vacant) = mappings.entry(part.segment) {
                    let mapped = self.map_segment(connection, part.segment, keep, wait);
                    if connection.inner().is_lost() {
                        return Err(mapped.err().unwrap_or_else(went_away));
                    }
                    vacant.insert(mapped);
                }
            }
        }
        Ok(MappedAnswer {
            leased,
            mappings,
            generation: connection.generation,
        })
    }

    /// Writes the leases down and finds the segments that are mapped already, all under one lock.
    fn hold_all(
        self: &Arc<Self>,
        connection: &PooledConnection<'_>,
        found: Vec<Result<Found, Failure>>,
    ) -> Result<(Vec<Result<Leased>>, Mappings)> {
        let now = Instant::now();
        let mut mappings = Mappings::new();
        let mut state = self.state();
        if state.incarnation != connection.incarnation {
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
                self.hold(view.lease, connection.incarnation)
            });
            Ok(Leased { found, hold })
        };
        let leased = found.into_iter().map(&mut hold).collect();
        let unused = state.segments.sweep(now);
        drop(state);
        drop(unused);
        Ok((leased, mappings))
    }

    pub(super) fn hold(self: &Arc<Self>, lease: u64, incarnation: u64) -> Hold {
        Hold {
            local: Arc::clone(self),
            lease,
            incarnation,
        }
    }

    fn map_segment(
        &self,
        connection: &mut PooledConnection<'_>,
        segment: u64,
        keep: bool,
        wait: &Wait,
    ) -> Result<Arc<Segment>> {
        let inner = connection.inner();
        let bytes = match inner.ask(&session::Request::MapSegment { segment }, wait)? {
            session::Answer::Segment { bytes } => bytes,
            other => return Err(inner.misunderstood(&other)),
        };
        let Some(memfd) = inner.take_descriptor() else {
            return Err(
                Error::new(Kind::Corrupt, "the node sent no descriptor beside its answer")
                    .with("segment", segment),
            );
        };
        let mapped = Segment::map(&memfd, bytes).map(Arc::new);
        let mapped = mapped.map_err(|error| error.with("segment", segment))?;
        if keep {
            let mut state = self.state();
            if state.incarnation == connection.incarnation {
                state.segments.keep(segment, &mapped);
            }
        }
        Ok(mapped)
    }

    fn scattered(
        self: &Arc<Self>,
        object: ObjectName,
        leased: Leased,
        mappings: &Mappings,
        generation: u64,
    ) -> Result<Scattered> {
        let Leased { mut found, hold } = leased;
        self.counters.count_sources(&found.sources);
        let (Some(view), Some(hold)) = (found.view.take(), hold) else {
            let empty = View::new(object, found, Bytes::Owned(Vec::new()), None);
            return Ok(Scattered::from(empty));
        };
        let segments = segments_of(&view.parts, mappings)?;
        let memory = ScatteredView::new(&view.parts, segments, hold)?;
        add(&self.counters.mapped_bytes, memory.bytes() as u64);
        Ok(Scattered::leased(LeasedItem {
            local: Arc::clone(self),
            object,
            found,
            view,
            generation,
            memory,
        }))
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
        view: &objects::View,
    ) -> Result<Option<View>> {
        let wait = Wait::start(&self.options);
        let bytes = total_bytes(&view.parts)? as u64;
        self.with_connection(Retry::Idempotent, &wait, |connection| {
            if connection.generation != generation
                || !self.share(connection, generation, view.lease, bytes, &wait)?
            {
                return Ok(None);
            }
            // From here on the lease is held by this process.
            let leased = Leased {
                found: handle.found(view),
                hold: Some(self.hold(view.lease, connection.incarnation)),
            };
            let mut mappings = Mappings::new();
            for part in &view.parts {
                let known = self.state().segments.get(part.segment, Instant::now());
                let mapped = match known {
                    Some(segment) => Ok(segment),
                    None => self.map_segment(connection, part.segment, handle.sources().copied == 0, &wait),
                };
                mappings.insert(part.segment, mapped);
            }
            let scattered = self.scattered(handle.object().clone(), leased, &mappings, generation)?;
            scattered.flat().map(Some)
        })
    }

    /// Takes a share in a lease; one that this process still has needs no request.
    fn share(
        &self,
        connection: &mut PooledConnection<'_>,
        generation: u64,
        lease: u64,
        bytes: u64,
        wait: &Wait,
    ) -> Result<bool> {
        let begun = {
            let mut state = self.state();
            if state.incarnation != connection.incarnation {
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
        let answer = connection.ask(&objects::Request::Adopt { handles }, wait);
        let shared = match answer {
            Ok(objects::Answer::Adopted(lives)) if lives.len() == 1 => Ok(lives == [true]),
            Ok(other) => Err(connection.inner().misunderstood(&other)),
            Err(error) => Err(error),
        };
        let mut state = self.state();
        if state.incarnation != connection.incarnation {
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
