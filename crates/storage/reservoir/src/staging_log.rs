//! Staging log: bytes that are acknowledged before the lake has them, synced to disk and proved by checksums.
//!
//! An entry is a folder of pieces and a commit marker. The marker is written last: it lists the pieces with
//! their CRC32C and carries a payload that is opaque here. Whoever stages writes down in the payload what the
//! pieces are.
//!
//! Life cycle of an entry: [`StagingLog::create`] makes its folder; [`StagedEntry::append`] writes and syncs
//! pieces behind the caller; [`StagedEntry::seal`] waits for them and writes the marker, and from then on the
//! entry survives kill -9 and power loss; [`StagedEntry::remove`] takes the marker back before the pieces, so
//! that a crash in between leaves an entry that was never sealed. After a restart [`StagingLog::replay`]
//! returns sealed entries, removes unsealed ones, and sets aside those whose marker does not prove itself.
//!
//! Limits: pieces of all entries together (`staging_log/budget.rs`), bytes of a marker. The files are
//! described in docs/formats/staged-saves.md.

mod budget;
mod disk;
mod entry;
mod marker;
mod name;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::Arc;

use forebay_core::{Error, Kind, Result};

use budget::Budget;
use disk::Disk;

pub use budget::Reservation;
pub use entry::StagedEntry;
pub use marker::StagedPiece;
pub use name::EntryName;

/// End of the name of a folder that was set aside.
const ASIDE: &str = ".damaged";

/// Entries below one folder, under one budget; see the top of this file.
#[derive(Debug)]
pub struct StagingLog {
    folder: PathBuf,
    budget: Budget,
    disk: Disk,
}

/// Bytes of a staging log now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StagingLogStats {
    /// Bytes of all pieces, each rounded up to what it takes on disk.
    pub held_bytes: u64,
    /// Budget of these.
    pub bytes_max: u64,
}

/// A sealed entry that an earlier incarnation of the process left.
#[derive(Debug)]
pub struct SealedEntry {
    /// The entry.
    pub entry: StagedEntry,
    /// Its pieces, by number.
    pub pieces: Vec<StagedPiece>,
    /// Payload of its marker.
    pub payload: Vec<u8>,
}

impl StagingLog {
    /// A log below this folder, which is made with the first entry. Pieces of all entries take at most
    /// `bytes_max`.
    #[must_use]
    pub fn new(folder: PathBuf, bytes_max: u64) -> Arc<Self> {
        Self::on(folder, bytes_max, Disk::default())
    }

    fn on(folder: PathBuf, bytes_max: u64, disk: Disk) -> Arc<Self> {
        Arc::new(Self {
            folder,
            budget: Budget::new(bytes_max),
            disk,
        })
    }

    /// Bytes now.
    #[must_use]
    pub fn stats(&self) -> StagingLogStats {
        StagingLogStats {
            held_bytes: self.budget.held_bytes(),
            bytes_max: self.budget.bytes_max(),
        }
    }

    /// Makes an entry. Blocks. `Conflict` if there is one of this name, which may have been acknowledged.
    pub fn create(self: &Arc<Self>, name: EntryName) -> Result<StagedEntry> {
        let is_new = self.disk.make_folder(&self.folder)?;
        if let Some(parent) = self.folder.parent().filter(|_| is_new) {
            self.disk.sync_folder(parent)?;
        }
        let entry = StagedEntry::new(Arc::clone(self), name);
        if !self.disk.make_folder(entry.folder())? {
            let message = "an entry of this name is staged already; every write needs a name of its own";
            return Err(Error::new(Kind::Conflict, message).with("entry", entry.name()));
        }
        self.disk.sync_folder(&self.folder)?;
        self.budget.open(entry.name(), std::iter::empty());
        Ok(entry)
    }

    /// Returns the sealed entries that an earlier incarnation left, and takes their bytes from the budget.
    /// Unsealed entries are removed, damaged ones set aside. Blocks.
    ///
    /// A new entry of this incarnation would be taken for one that was never sealed: replay has to end before
    /// the first [`Self::create`].
    pub fn replay(self: &Arc<Self>) -> Result<Vec<SealedEntry>> {
        let mut sealed = Vec::new();
        for folder in self.disk.list(&self.folder)? {
            // What was set aside, and what is not ours, has no such name.
            let Some(name) = EntryName::parse(&folder) else {
                continue;
            };
            let entry = StagedEntry::new(Arc::clone(self), name);
            match entry.read_marker() {
                Ok(Some((pieces, payload))) => {
                    let bytes = pieces.iter().map(|piece| piece.bytes);
                    self.budget.open(entry.name(), bytes);
                    sealed.push(SealedEntry {
                        entry,
                        pieces,
                        payload,
                    });
                }
                Ok(None) => entry.remove(),
                Err(error) => {
                    tracing::error!(entry = %entry.name(), %error, "a staged entry is damaged and was set aside");
                    entry.set_aside();
                }
            }
        }
        Ok(sealed)
    }
}
