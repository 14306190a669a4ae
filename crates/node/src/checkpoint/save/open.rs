//! The client's end of a save, kept by its session.

use std::sync::Arc;

use forebay_core::wire::SavePhase;
use forebay_core::{Error, Kind};

use super::Save;
use crate::checkpoint::copying::Filling;

/// Dropping it before the save was staged gives the save up. Files wait as long as it is there.
#[derive(Debug)]
pub(crate) struct OpenSave {
    pub(crate) save: Arc<Save>,
    _filling: Filling,
}

impl OpenSave {
    pub(in crate::checkpoint) fn new(save: Arc<Save>, filling: Filling) -> Self {
        Self {
            save,
            _filling: filling,
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
