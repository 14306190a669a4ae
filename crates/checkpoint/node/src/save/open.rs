//! The client's end of a save, kept by its session.

use std::sync::Arc;

use forebay_core::{Error, Kind};
use forebay_wire::saves::SavePhase;

use super::Save;
use crate::copy_gate::CopyGuard;

/// Dropping it before the save was staged gives the save up. Files wait as long as it is there.
#[derive(Debug)]
pub struct OpenSave {
    /// The save that is being filled.
    pub save: Arc<Save>,
    _copy_guard: CopyGuard,
}

impl OpenSave {
    pub(crate) fn new(save: Arc<Save>, copy_guard: CopyGuard) -> Self {
        Self {
            save,
            _copy_guard: copy_guard,
        }
    }
}

impl Drop for OpenSave {
    fn drop(&mut self) {
        if self.save.state().phase == SavePhase::Open {
            self.save.give_up(Error::new(
                Kind::Cancelled,
                "the client ended before it handed the save over; nothing was committed",
            ));
        }
    }
}
