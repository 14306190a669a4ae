//! Questions whose answer is whole in itself: metadata, listings, deletes, buckets.

use forebay_core::Result;
use forebay_core::wire::{Answer, ListRequest, Listed, ObjectName, ObjectStat, Request};

use super::pool::Again;
use super::session::Local;

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
