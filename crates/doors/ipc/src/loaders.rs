//! The family of loaders: reports of what they did, summed for metrics.

use std::sync::Arc;

use forebay_wire::loaders::{Answer, LoaderReport, Request};
use forebay_wire::{FamilyId, Message, Request as _, decode_message};
use parking_lot::Mutex;

use crate::family::{Family, Handling, Reply};
use crate::sessions::Session;

/// Sum of the reports of all loaders.
#[derive(Debug, Default)]
pub(crate) struct Loaders {
    sum: Mutex<LoaderReport>,
}

impl Loaders {
    pub(crate) fn sum(&self) -> LoaderReport {
        *self.sum.lock()
    }
}

impl Family for Loaders {
    fn id(&self) -> FamilyId {
        Request::FAMILY
    }

    fn kinds(&self) -> &'static [&'static str] {
        Request::KINDS
    }

    fn handle<'a>(&'a self, _: &'a Arc<Session>, request: &[u8], reply: &'a mut Reply) -> Handling<'a> {
        match decode_message(request) {
            Ok(Request::Report(report)) => {
                let mut sum = self.sum.lock();
                *sum = sum.plus(&report);
                drop(sum);
                Handling::Done(reply.answer(&Answer::Done))
            }
            Err(error) => Handling::Malformed(error),
        }
    }
}
