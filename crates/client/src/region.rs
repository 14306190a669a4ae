//! Memory of the caller that is filled with items: by the node itself, or by this process with what a node elsewhere sends.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use forebay_core::wire::{Filled, Item};
use forebay_core::{Error, Kind, Result};

use crate::View;
use crate::local::LocalRegion;
use crate::remote::Remote;

/// Memory of the caller that is filled with items; see [`crate::Client::register`].
pub struct Region(pub(crate) Filler);

/// Who fills it.
pub(crate) enum Filler {
    /// The node.
    Local(LocalRegion),
    /// This process.
    Remote {
        remote: Arc<Remote>,
        memfd: OwnedFd,
        bytes: u64,
    },
}

impl Region {
    pub(crate) fn remote(remote: Arc<Remote>, memfd: OwnedFd) -> Result<Self> {
        let bytes = region_bytes(&memfd)?;
        Ok(Self(Filler::Remote { remote, memfd, bytes }))
    }

    /// Its size.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        match &self.0 {
            Filler::Local(region) => region.bytes(),
            Filler::Remote { bytes, .. } => *bytes,
        }
    }

    /// Has items copied into the region, each to its offset; one result for each, in order.
    pub fn fill(&self, items: Vec<(Item, u64)>) -> Result<Vec<Result<Filled>>> {
        match &self.0 {
            Filler::Local(region) => region.fill(items),
            Filler::Remote { remote, memfd, bytes } => {
                let (items, offsets): (Vec<Item>, Vec<u64>) = items.into_iter().unzip();
                let views = remote.read(items)?.into_iter().zip(offsets);
                Ok(views
                    .map(|(view, offset)| write(memfd, *bytes, &view?, offset))
                    .collect())
            }
        }
    }
}

/// The size of a memfd that is to be filled.
pub(crate) fn region_bytes(memfd: &OwnedFd) -> Result<u64> {
    let found = rustix::fs::fstat(memfd).map_err(|why| Error::io("cannot look at the region", why.into()))?;
    match u64::try_from(found.st_size).unwrap_or(0) {
        0 => Err(Error::new(
            Kind::InvalidInput,
            "the region has no bytes; set its size before it is registered",
        )),
        bytes => Ok(bytes),
    }
}

fn write(memfd: &OwnedFd, region_bytes: u64, view: &View, offset: u64) -> Result<Filled> {
    let end = offset.checked_add(view.len() as u64);
    if end.is_none_or(|end| end > region_bytes) {
        let error = Error::new(Kind::InvalidInput, "the item does not fit into the region");
        return Err(error.with("bytes", view.len()).with("offset", offset));
    }
    let mut done = 0;
    while done < view.len() {
        match rustix::io::pwrite(memfd, &view[done..], offset + done as u64) {
            Ok(0) => return Err(Error::new(Kind::Io, "cannot write to the region")),
            Ok(written) => done += written,
            Err(rustix::io::Errno::INTR) => {}
            Err(why) => return Err(Error::io("cannot write to the region", why.into())),
        }
    }
    Ok(Filled {
        bytes: view.len() as u64,
        version: view.version().into(),
        sources: view.sources(),
    })
}
