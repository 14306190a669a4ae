//! The family of sessions after their hello: descriptors of shared memory, and whether the node is ready.

use std::sync::Arc;

use forebay_core::{Error, Kind, Result};
use forebay_reservoir::SegmentId;
use forebay_wire::session::{Answer, Request};
use forebay_wire::{FamilyId, Message, Request as _, decode_message};

use crate::IpcServices;
use crate::access::Access;
use crate::family::{Descriptor, Family, Handling, Reply};
use crate::sessions::Session;

/// Answers `MapSegment` and `Ping`.
#[derive(Debug)]
pub(crate) struct Memory {
    access: Arc<Access>,
    services: IpcServices,
}

impl Memory {
    pub(crate) fn new(access: Arc<Access>, services: IpcServices) -> Self {
        Self { access, services }
    }

    /// Sends the descriptor of a staging buffer of this session, or of a segment whose domain the user may
    /// see.
    fn map_segment(&self, session: &Session, number: u64, reply: &mut Reply) -> Result<()> {
        if let Some(buffer) = session.buffer_descriptor(number) {
            let (descriptor, bytes) = buffer?;
            reply.answer(&Answer::Segment { bytes })?;
            reply.attach(Descriptor::Owned(descriptor));
            return Ok(());
        }
        let found = self.services.reservoir.segment_fd(SegmentId(number));
        // Whether it is there is none of the business of whoever may not see it.
        let (segment, bytes, _) = found
            .filter(|(_, _, domain)| self.access.may_map(session.uid(), *domain))
            .ok_or_else(|| {
                let message = "there is no such segment (any more); read the object again";
                Error::new(Kind::NotFound, message).with("segment", number)
            })?;
        reply.answer(&Answer::Segment { bytes })?;
        reply.attach(Descriptor::Shared(segment));
        Ok(())
    }
}

impl Family for Memory {
    fn id(&self) -> FamilyId {
        Request::FAMILY
    }

    fn kinds(&self) -> &'static [&'static str] {
        Request::KINDS
    }

    fn handle<'a>(&'a self, session: &'a Arc<Session>, request: &[u8], reply: &'a mut Reply) -> Handling<'a> {
        let request = match decode_message(request) {
            Ok(request) => request,
            Err(error) => return Handling::Malformed(error),
        };
        Handling::Done(match request {
            Request::MapSegment { segment } => self.map_segment(session, segment, reply),
            Request::Ping => self
                .services
                .engine
                .engine()
                .and_then(|_| reply.answer(&Answer::Ready)),
            Request::Hello(_) => Err(Error::new(
                Kind::InvalidInput,
                "this connection has said hello already",
            )),
        })
    }
}
