//! Hints of a reader to its node about what it will need: bytes to bring in now, objects that are read in
//! rounds.
//!
//! Both are advice: a remote node, or one that has no room, reads later what it did not read now. A working
//! set that is not dropped ends with this process; a node that was restarted has forgotten it.

use forebay_core::Result;
use forebay_wire::loaders::LoaderReport;
use forebay_wire::objects::WorkingSet;
use forebay_wire::{Item, TierBytes};

use crate::client::{Client, Node};

impl Client {
    /// Has the node bring items into its RAM, as far as there is room, and returns when they are there; says
    /// where their bytes were. Of a remote node they are read and dropped.
    pub fn prefetch(&self, items: Vec<Item>) -> Result<Vec<Result<TierBytes>>> {
        match &self.node {
            Node::Local(local) => local.prefetch(items),
            Node::Remote(_) => {
                let views = self.get_batch(items)?;
                Ok(views
                    .into_iter()
                    .map(|view| view.map(|view| view.sources()))
                    .collect())
            }
        }
    }

    /// Says which objects this process reads in rounds, or more of them; returns the node's budget of RAM.
    /// `None` if the node is remote: it serves others too, and is not told.
    pub fn keep_working_set(&self, set: WorkingSet) -> Result<Option<u64>> {
        match &self.node {
            Node::Local(local) => local.keep_working_set(set).map(Some),
            Node::Remote(_) => Ok(None),
        }
    }

    /// Tells the node what a loader of this process did, for its metrics; a remote node is not told.
    pub fn report_loader(&self, report: LoaderReport) -> Result<()> {
        match &self.node {
            Node::Local(local) => local.report_loader(report),
            Node::Remote(_) => Ok(()),
        }
    }

    /// Drops the working set of a reader; fine if there is none.
    pub fn drop_working_set(&self, reader: u64) -> Result<()> {
        match &self.node {
            Node::Local(local) => local.drop_working_set(reader),
            Node::Remote(_) => Ok(()),
        }
    }
}
