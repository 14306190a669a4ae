//! Memory of the caller that the node fills: registered once, filled often, one copy by the node.
//!
//! A region is a memfd of the caller. It is registered with a session; after a fork, or when the node was replaced, the next
//! call registers it again.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use forebay_core::wire::{Answer, Fill, Filled, Item, Request};
use forebay_core::{Error, Result};

use super::pool::{Again, Taken};
use super::session::Local;
use crate::region::region_bytes;
use crate::stats::add;
use crate::wait::Wait;

/// Memory of the caller that the node fills.
pub(crate) struct LocalRegion {
    local: Arc<Local>,
    memfd: OwnedFd,
    bytes: u64,
    /// Our own number; the node's number is in the state and forgotten with the session.
    number: u64,
}

impl Local {
    /// Registers a memfd.
    pub(crate) fn register(self: &Arc<Self>, memfd: OwnedFd) -> Result<LocalRegion> {
        let bytes = region_bytes(&memfd)?;
        let number = {
            let mut state = self.state();
            state.region_next += 1;
            state.region_next
        };
        let region = LocalRegion {
            local: Arc::clone(self),
            memfd,
            bytes,
            number,
        };
        let wait = Wait::start(&self.options);
        self.with_connection(Again::Harmless, &wait, |taken| {
            region.number_at_node(taken, &wait)
        })?;
        Ok(region)
    }
}

impl LocalRegion {
    /// Its size.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Has items copied into the region, each to its offset; one result for each, in order.
    pub(crate) fn fill(&self, items: Vec<(Item, u64)>) -> Result<Vec<Result<Filled>>> {
        let wait = Wait::start(&self.local.options);
        let grace = wait.with_grace();
        let count = items.len();
        let mut fill = Fill {
            region: 0,
            items,
            timeout_ms: wait.left_ms(),
        };
        let filled = self.local.with_connection(Again::Harmless, &wait, |taken| {
            fill.region = self.number_at_node(taken, &wait)?;
            match taken.ask(&Request::Fill(fill.clone()), &grace)? {
                Answer::Filled(filled) if filled.len() == count => Ok(filled),
                other => Err(taken.connection().misunderstood(&other)),
            }
        })?;
        for filled in filled.iter().flatten() {
            self.local.counters.count_sources(&filled.sources);
            add(&self.local.counters.copied_bytes, filled.bytes);
        }
        Ok(filled
            .into_iter()
            .map(|filled| filled.map_err(Error::from))
            .collect())
    }

    fn number_at_node(&self, taken: &mut Taken<'_>, wait: &Wait) -> Result<u64> {
        let known = self.local.state().regions.get(&self.number).copied();
        if let Some(region) = known {
            return Ok(region);
        }
        let request = Request::Register { bytes: self.bytes };
        let connection = taken.connection();
        match connection.ask(&request, Some(self.memfd.as_fd()), wait)? {
            Answer::Region { region } => {
                let mut state = self.local.state();
                if state.life == taken.life {
                    state.regions.insert(self.number, region);
                }
                Ok(region)
            }
            other => Err(connection.misunderstood(&other)),
        }
    }
}

impl Drop for LocalRegion {
    fn drop(&mut self) {
        let region = self.local.state().regions.remove(&self.number);
        if let Some(region) = region {
            // The node forgets it with the session if this does not reach it.
            let _ = self.local.call(&Request::Unregister { region }, Again::No);
        }
    }
}
