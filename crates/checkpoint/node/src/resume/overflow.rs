//! Memory beside the arena, so that saves of an earlier incarnation are finished also while clients fill the
//! arena and wait.
//!
//! One save at a time has it, from its first piece that finds the arena full until the last byte that lies
//! here is dropped. That save has one data file here at a time, and its objects, which come last and are
//! together at most as large as a file. So it never waits for memory that waits for itself, and the limit is
//! twice the largest file.

use std::sync::{Arc, Weak};

use bytes::Bytes;
use forebay_core::{Error, Kind, Result};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::staged_save::{PieceKind, SavedPiece, StagedSave};

/// Memory that one save has or may get beside the arena.
pub(super) struct OverflowBudget {
    permits: Arc<Semaphore>,
    permit: Option<Arc<OwnedSemaphorePermit>>,
    /// The data file that lies here, as long as it does.
    file: Weak<()>,
}

/// Leave to read one piece.
pub(super) struct OverflowPermit {
    _permit: Arc<OwnedSemaphorePermit>,
    _file: Option<Arc<()>>,
}

/// A piece, with the permit of its save.
struct OverflowBytes {
    bytes: Vec<u8>,
    _permit: OverflowPermit,
}

impl OverflowBudget {
    pub(super) fn new(permits: Arc<Semaphore>) -> Self {
        Self {
            permits,
            permit: None,
            file: Weak::new(),
        }
    }

    /// Leave to read such a piece now; `None` while another save has the permit, or a file of this one lies
    /// here.
    pub(super) fn reserve(&mut self, kind: &PieceKind) -> Option<OverflowPermit> {
        if self.permit.is_none() {
            self.permit = Arc::clone(&self.permits).try_acquire_owned().ok().map(Arc::new);
        }
        let permit = Arc::clone(self.permit.as_ref()?);
        let file = match kind {
            PieceKind::Object { .. } => None,
            PieceKind::File { .. } if self.file.strong_count() > 0 => return None,
            PieceKind::File { .. } => {
                let file = Arc::new(());
                self.file = Arc::downgrade(&file);
                Some(file)
            }
        };
        Some(OverflowPermit {
            _permit: permit,
            _file: file,
        })
    }
}

impl OverflowPermit {
    /// Reads a piece. Blocks.
    pub(super) fn fill(self, disk: &StagedSave, piece: &SavedPiece) -> Result<Bytes> {
        let no_memory = || Error::new(Kind::NoSpace, "no memory for a piece of a staged save");
        let mut bytes = Vec::new();
        let wanted = usize::try_from(piece.bytes()).map_err(|why| no_memory().caused_by(why))?;
        bytes
            .try_reserve_exact(wanted)
            .map_err(|why| no_memory().caused_by(why))?;
        disk.read(piece, |_, some| {
            bytes.extend_from_slice(some);
            Ok(())
        })?;
        Ok(Bytes::from_owner(OverflowBytes { bytes, _permit: self }))
    }
}

impl AsRef<[u8]> for OverflowBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_save_at_a_time_has_one_file_and_its_objects() {
        let file = PieceKind::File {
            number: 0,
            parts: Vec::new(),
        };
        let object = PieceKind::Object {
            name: "state".into(),
            kind: "bytes".into(),
        };
        let permits = Arc::new(Semaphore::new(1));
        let (mut first, mut second) = (
            OverflowBudget::new(Arc::clone(&permits)),
            OverflowBudget::new(permits),
        );
        let lies_here = first.reserve(&file).unwrap();
        assert!(first.reserve(&file).is_none());
        assert!(second.reserve(&object).is_none());
        drop(lies_here);
        let another = first.reserve(&file).unwrap();
        let with_it = first.reserve(&object).unwrap();
        drop(first);
        drop(another);
        assert!(
            second.reserve(&file).is_none(),
            "an object of the first lies here"
        );
        drop(with_it);
        assert!(second.reserve(&file).is_some());
    }
}
