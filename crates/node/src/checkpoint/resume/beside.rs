//! Memory beside the arena, so that saves of a former life are finished also while clients fill the arena and wait.
//!
//! One save at a time has it, from its first piece that finds the arena full until the last byte that lies here is dropped. That save has one data file here
//! at a time, and its objects, which come last and are together at most as large as a file. So it never waits for memory that waits for itself, and the
//! limit is twice the largest file.

use std::sync::{Arc, Weak};

use bytes::Bytes;
use forebay_core::{Error, Kind, Result};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::checkpoint::disk::{Disk, Piece, What};

/// What one save has or may get beside the arena.
pub(super) struct Beside {
    turns: Arc<Semaphore>,
    turn: Option<Arc<OwnedSemaphorePermit>>,
    /// The data file that lies here, as long as it does.
    file: Weak<()>,
}

/// Leave to read one piece.
pub(super) struct Place {
    _turn: Arc<OwnedSemaphorePermit>,
    _file: Option<Arc<()>>,
}

/// A piece, with the turn of its save.
struct Held {
    bytes: Vec<u8>,
    _place: Place,
}

impl Beside {
    pub(super) fn new(turns: Arc<Semaphore>) -> Self {
        Self {
            turns,
            turn: None,
            file: Weak::new(),
        }
    }

    /// Leave to read such a piece now; `None` while another save has the turn, or a file of this one lies here.
    pub(super) fn place(&mut self, what: &What) -> Option<Place> {
        if self.turn.is_none() {
            self.turn = Arc::clone(&self.turns).try_acquire_owned().ok().map(Arc::new);
        }
        let turn = Arc::clone(self.turn.as_ref()?);
        let file = match what {
            What::Object { .. } => None,
            What::File { .. } if self.file.strong_count() > 0 => return None,
            What::File { .. } => {
                let file = Arc::new(());
                self.file = Arc::downgrade(&file);
                Some(file)
            }
        };
        Some(Place {
            _turn: turn,
            _file: file,
        })
    }
}

impl Place {
    /// Reads a piece. Blocks.
    pub(super) fn fill(self, disk: &Disk, piece: &Piece) -> Result<Bytes> {
        let no_memory = || Error::new(Kind::NoSpace, "no memory for a piece of a staged save");
        let mut bytes = Vec::new();
        let wanted = usize::try_from(piece.bytes).map_err(|why| no_memory().caused_by(why))?;
        bytes
            .try_reserve_exact(wanted)
            .map_err(|why| no_memory().caused_by(why))?;
        disk.read(piece, |_, some| {
            bytes.extend_from_slice(some);
            Ok(())
        })?;
        Ok(Bytes::from_owner(Held { bytes, _place: self }))
    }
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_save_at_a_time_has_one_file_and_its_objects() {
        let file = What::File {
            number: 0,
            parts: Vec::new(),
        };
        let object = What::Object {
            name: "state".into(),
            kind: "bytes".into(),
        };
        let turns = Arc::new(Semaphore::new(1));
        let (mut first, mut second) = (Beside::new(Arc::clone(&turns)), Beside::new(turns));
        let lies_here = first.place(&file).unwrap();
        assert!(first.place(&file).is_none());
        assert!(second.place(&object).is_none());
        drop(lies_here);
        let another = first.place(&file).unwrap();
        let with_it = first.place(&object).unwrap();
        drop(first);
        drop(another);
        assert!(second.place(&file).is_none(), "an object of the first lies here");
        drop(with_it);
        assert!(second.place(&file).is_some());
    }
}
