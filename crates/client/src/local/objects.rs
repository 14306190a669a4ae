//! Questions whose answer is whole in itself: metadata, listings, deletes, buckets.

use forebay_core::Result;
use forebay_core::wire::{
    Answer, Item, ListRequest, Listed, Loaded, ObjectName, ObjectStat, Plan, Request, Sources,
};

use super::pool::Again;
use super::session::Local;
use crate::wait::Wait;

/// An answer of the wrong kind, as an error.
fn misunderstood<T>(_: Answer) -> Result<T> {
    Err(forebay_core::Error::new(
        forebay_core::Kind::Corrupt,
        "the node gave an answer of another kind",
    ))
}

impl Local {
    pub(crate) fn stat(&self, object: ObjectName) -> Result<ObjectStat> {
        match self.call(&Request::Stat(object), Again::Harmless)? {
            Answer::Stat(stat) => Ok(stat),
            other => misunderstood(other),
        }
    }

    pub(crate) fn list(&self, request: ListRequest) -> Result<Listed> {
        match self.call(&Request::List(request), Again::Harmless)? {
            Answer::Listed(listed) => Ok(listed),
            other => misunderstood(other),
        }
    }

    pub(crate) fn delete(&self, object: ObjectName) -> Result<()> {
        self.done(&Request::Delete(object))
    }

    pub(crate) fn buckets(&self) -> Result<Vec<String>> {
        match self.call(&Request::Buckets, Again::Harmless)? {
            Answer::Buckets(names) => Ok(names),
            other => misunderstood(other),
        }
    }

    pub(crate) fn create_bucket(&self, name: &str) -> Result<()> {
        self.done(&Request::CreateBucket(name.into()))
    }

    pub(crate) fn prepare(&self, items: Vec<Item>) -> Result<Vec<Result<Sources>>> {
        let timeout_ms = Wait::start(&self.options).left_ms();
        let (count, request) = (items.len(), Request::Prepare { items, timeout_ms });
        match self.call(&request, Again::Harmless)? {
            Answer::Prepared(found) if found.len() == count => {
                Ok(found.into_iter().map(|one| one.map_err(Into::into)).collect())
            }
            other => misunderstood(other),
        }
    }

    pub(crate) fn plan(&self, plan: Plan) -> Result<u64> {
        match self.call(&Request::Plan(plan), Again::Harmless)? {
            Answer::Planned { ram_bytes } => Ok(ram_bytes),
            other => misunderstood(other),
        }
    }

    pub(crate) fn end_plan(&self, reader: u64) -> Result<()> {
        self.done(&Request::EndPlan { reader })
    }

    pub(crate) fn loaded(&self, loaded: Loaded) -> Result<()> {
        // Not again: it would count twice.
        match self.call(&Request::Loaded(loaded), Again::No)? {
            Answer::Done => Ok(()),
            other => misunderstood(other),
        }
    }

    pub(crate) fn ping(&self) -> Result<()> {
        self.done(&Request::Ping)
    }

    fn done(&self, request: &Request) -> Result<()> {
        match self.call(request, Again::Harmless)? {
            Answer::Done => Ok(()),
            other => misunderstood(other),
        }
    }
}
