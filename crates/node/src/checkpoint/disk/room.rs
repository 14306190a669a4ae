//! How much staged saves may take on the disk, together.
//!
//! Bytes are counted from before they are written until their folder is gone, so also those that a former life of the node left; of these there may be
//! more than the limit, and then nobody gets any until they are finished. Ranks of one attempt end together: what they hold here never makes room for one
//! of them, so a save that is too large for the disk is told at once instead of waiting for itself.

use std::collections::BTreeMap;

use forebay_core::{Error, Kind, Result};
use tokio::sync::watch;

/// What the smallest file takes.
const BLOCK_BYTES: u64 = 4096;

/// See the top of this file.
#[derive(Debug)]
pub(in crate::checkpoint) struct Room {
    bytes_max: u64,
    /// What each save that has a folder holds, by its name.
    held: watch::Sender<BTreeMap<String, u64>>,
}

impl Room {
    pub(in crate::checkpoint) fn new(bytes_max: u64) -> Self {
        Self {
            bytes_max,
            held: watch::Sender::default(),
        }
    }

    /// What all hold.
    pub(in crate::checkpoint) fn held_bytes(&self) -> u64 {
        self.held.borrow().values().sum()
    }

    pub(in crate::checkpoint) fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    /// A save has a folder in which these pieces lie already.
    pub(super) fn open(&self, id: &str, pieces: impl Iterator<Item = u64>) {
        let bytes = pieces.map(on_disk).sum();
        self.held.send_modify(|held| {
            held.insert(id.to_owned(), bytes);
        });
    }

    /// Its folder is gone.
    pub(super) fn close(&self, id: &str) {
        self.held.send_modify(|held| {
            held.remove(id);
        });
    }

    /// Takes room for a piece, if there is some now. `NoSpace` if there can never be.
    pub(super) fn try_take(&self, id: &str, bytes: u64) -> Result<bool> {
        let bytes = on_disk(bytes);
        let own_bytes = own_bytes(&self.held.borrow(), id);
        if own_bytes + bytes > self.bytes_max {
            let message = "the save does not fit into the room for saves on this node's disk; raise limits.save_disk, or stage in ram";
            return Err(Error::new(Kind::NoSpace, message)
                .with("save", id)
                .with("bytes", own_bytes + bytes)
                .with("bytes_max", self.bytes_max));
        }
        Ok(self.held.send_if_modified(|held| {
            let held_bytes: u64 = held.values().sum();
            match held.get_mut(id) {
                Some(own) if held_bytes + bytes <= self.bytes_max => {
                    *own += bytes;
                    true
                }
                _ => false,
            }
        }))
    }

    /// Waits for room for a piece; `false` if the folder is gone meanwhile. Cancel-safe.
    pub(super) async fn take(&self, id: &str, bytes: u64) -> Result<bool> {
        let mut changes = self.held.subscribe();
        while changes.borrow_and_update().contains_key(id) {
            if self.try_take(id, bytes)? {
                return Ok(true);
            }
            if changes.changed().await.is_err() {
                break;
            }
        }
        Ok(false)
    }
}

/// What a piece takes.
fn on_disk(bytes: u64) -> u64 {
    bytes.max(1).next_multiple_of(BLOCK_BYTES)
}

/// What the ranks of the attempt hold to which this save belongs.
fn own_bytes(held: &BTreeMap<String, u64>, id: &str) -> u64 {
    let attempt = id.rsplit_once('.').map_or(id, |(attempt, _)| attempt);
    let is_own = |id: &str| id.strip_prefix(attempt).is_some_and(|rest| rest.starts_with('.'));
    let own = held.range(attempt.to_owned()..);
    own.take_while(|(id, _)| id.starts_with(attempt))
        .filter(|(id, _)| is_own(id))
        .map(|(_, bytes)| bytes)
        .sum()
}

#[cfg(test)]
mod tests;
