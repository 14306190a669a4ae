//! Requests whose answer is whole in itself: metadata, listings, deletes, buckets.

use forebay_core::Result;
use forebay_wire::loaders::LoaderReport;
use forebay_wire::objects::{ListRequest, Listed, ObjectStat, WorkingSet};
use forebay_wire::{Item, ObjectName, TierBytes};
use forebay_wire::{loaders, objects, session};

use super::pool::Retry;
use super::session::Local;
use crate::wait::Wait;

/// An answer of the wrong kind, as an error.
fn misunderstood<T>() -> Result<T> {
    Err(forebay_core::Error::new(
        forebay_core::Kind::Corrupt,
        "the node gave an answer of another kind",
    ))
}

impl Local {
    pub(crate) fn stat(&self, object: ObjectName) -> Result<ObjectStat> {
        match self.call(&objects::Request::Stat(object), Retry::Idempotent)? {
            objects::Answer::Stat(stat) => Ok(stat),
            _ => misunderstood(),
        }
    }

    pub(crate) fn list(&self, request: ListRequest) -> Result<Listed> {
        match self.call(&objects::Request::List(request), Retry::Idempotent)? {
            objects::Answer::Listed(listed) => Ok(listed),
            _ => misunderstood(),
        }
    }

    pub(crate) fn delete(&self, object: ObjectName) -> Result<()> {
        self.done(&objects::Request::Delete(object))
    }

    pub(crate) fn buckets(&self) -> Result<Vec<String>> {
        match self.call(&objects::Request::Buckets, Retry::Idempotent)? {
            objects::Answer::Buckets(names) => Ok(names),
            _ => misunderstood(),
        }
    }

    pub(crate) fn create_bucket(&self, name: &str) -> Result<()> {
        self.done(&objects::Request::CreateBucket(name.into()))
    }

    pub(crate) fn prefetch(&self, items: Vec<Item>) -> Result<Vec<Result<TierBytes>>> {
        let timeout_ms = Wait::start(&self.options).left_ms();
        let (count, request) = (items.len(), objects::Request::Prefetch { items, timeout_ms });
        match self.call(&request, Retry::Idempotent)? {
            objects::Answer::Prefetched(found) if found.len() == count => {
                Ok(found.into_iter().map(|one| one.map_err(Into::into)).collect())
            }
            _ => misunderstood(),
        }
    }

    pub(crate) fn keep_working_set(&self, set: WorkingSet) -> Result<u64> {
        match self.call(&objects::Request::WorkingSet(set), Retry::Idempotent)? {
            objects::Answer::WorkingSetKept { ram_bytes } => Ok(ram_bytes),
            _ => misunderstood(),
        }
    }

    pub(crate) fn drop_working_set(&self, reader: u64) -> Result<()> {
        self.done(&objects::Request::DropWorkingSet { reader })
    }

    pub(crate) fn report_loader(&self, report: LoaderReport) -> Result<()> {
        // Not again: it would count twice.
        let loaders::Answer::Done = self.call(&loaders::Request::Report(report), Retry::Never)?;
        Ok(())
    }

    pub(crate) fn ping(&self) -> Result<()> {
        match self.call(&session::Request::Ping, Retry::Idempotent)? {
            session::Answer::Ready => Ok(()),
            _ => misunderstood(),
        }
    }

    fn done(&self, request: &objects::Request) -> Result<()> {
        match self.call(request, Retry::Idempotent)? {
            objects::Answer::Done => Ok(()),
            _ => misunderstood(),
        }
    }
}
