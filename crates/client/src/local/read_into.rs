//! One copy from the node's memory into the caller's, in windows, so that a large read never holds more than
//! one window.

use std::sync::Arc;

use forebay_core::{Error, Kind, Result};
use forebay_wire::{Item, ItemRange, ObjectName};

use super::session::Local;
use crate::copy::copy_past_cache;
use crate::scattered::Scattered;
use crate::stats::add;

/// Bytes under lease at a time.
const WINDOW_BYTES: usize = 64 << 20;

/// Pieces that one thread copies, at least.
const COPY_BYTES_MIN: usize = 4 << 20;

impl Local {
    /// Fills `target` from `offset` on; less only at the end of the object. All bytes are of one version.
    pub(crate) fn read_into(
        self: &Arc<Self>,
        object: &ObjectName,
        offset: u64,
        target: &mut [u8],
    ) -> Result<usize> {
        match self.read_version_into(object, offset, target) {
            // The object was replaced between two windows: once more from the start.
            Err(error) if matches!(error.kind(), Kind::Changed | Kind::PreconditionFailed) => {
                self.read_version_into(object, offset, target)
            }
            other => other,
        }
    }

    fn read_version_into(
        self: &Arc<Self>,
        object: &ObjectName,
        offset: u64,
        target: &mut [u8],
    ) -> Result<usize> {
        let mut done = 0;
        let mut version = None;
        while done < target.len() {
            let window = (target.len() - done).min(WINDOW_BYTES);
            let from = offset.checked_add(done as u64).ok_or_else(|| {
                Error::new(Kind::InvalidInput, "the offset is too large").with("offset", offset)
            })?;
            let item = Item {
                object: object.clone(),
                range: ItemRange::Range {
                    offset: from,
                    length: window as u64,
                },
                version: version.take(),
            };
            let read = self.read(vec![item])?.pop();
            let view = match read.map(|item| item.and_then(Scattered::flat)) {
                Some(Ok(view)) => view,
                Some(Err(error)) if error.kind() == Kind::OutOfRange => break,
                Some(Err(error)) => return Err(error),
                None => return Err(Error::new(Kind::Internal, "an answer without items")),
            };
            if view.len() > window {
                return Err(Error::new(
                    Kind::Corrupt,
                    "the node gave more bytes than were asked for",
                ));
            }
            copy(
                &view,
                &mut target[done..done + view.len()],
                self.options.copy_threads,
            );
            add(&self.counters.copied_bytes, view.len() as u64);
            done += view.len();
            if view.len() < window || from + view.len() as u64 >= view.object_bytes() {
                break;
            }
            version = Some(view.version().to_owned());
        }
        Ok(done)
    }
}

/// Copies with several threads if that is allowed and worth it.
pub(crate) fn copy(from: &[u8], to: &mut [u8], threads_max: usize) {
    let threads = threads_max.min(from.len() / COPY_BYTES_MIN).max(1);
    let piece = from.len().div_ceil(threads).max(1);
    if threads == 1 {
        to.copy_from_slice(from);
        return;
    }
    std::thread::scope(|scope| {
        for (from, to) in from.chunks(piece).zip(to.chunks_mut(piece)) {
            scope.spawn(move || copy_past_cache(to, from));
        }
    });
}
