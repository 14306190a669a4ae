//! The family of groups on the socket: all-gathers between the ranks of a host.

use std::sync::Arc;

use forebay_core::Result;
use forebay_ipc::{Family, Handling, Reply, Session};
use forebay_wire::group::{Answer, Request};
use forebay_wire::{FamilyId, Message, Request as _};

use super::all_gather::AllGathers;

/// The family of groups.
#[derive(Debug, Default)]
pub struct GroupFamily {
    all_gathers: AllGathers,
}

impl GroupFamily {
    async fn answer(&self, session: &Session, request: Request) -> Result<Answer> {
        let Request::AllGather(wanted) = request;
        let payloads = self.all_gathers.all_gather(session.uid(), wanted).await?;
        Ok(Answer::AllGathered(payloads))
    }
}

impl Family for GroupFamily {
    fn id(&self) -> FamilyId {
        Request::FAMILY
    }

    fn kinds(&self) -> &'static [&'static str] {
        Request::KINDS
    }

    fn handle<'a>(&'a self, session: &'a Arc<Session>, request: &[u8], reply: &'a mut Reply) -> Handling<'a> {
        Handling::wait(request, reply, |request| self.answer(session, request))
    }
}
