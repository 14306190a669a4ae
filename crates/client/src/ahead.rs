//! What a reader tells its node about what it will need: bytes to bring in now, objects that are read in rounds.
//!
//! Both are advice: a node elsewhere, or one that has no room, reads later what it did not read now. A plan that is not ended ends with
//! this process; a node that was restarted has forgotten it.

use forebay_core::Result;
use forebay_core::wire::{Item, Loaded, Plan, Sources};

use crate::client::{Client, Node};

impl Client {
    /// Has the node bring items into its RAM, as far as there is room, and returns when they are there; says where their bytes were. Of a node
    /// elsewhere they are read and dropped.
    pub fn prepare(&self, items: Vec<Item>) -> Result<Vec<Result<Sources>>> {
        match &self.node {
            Node::Local(local) => local.prepare(items),
            Node::Remote(_) => {
                let views = self.get_batch(items)?;
                Ok(views
                    .into_iter()
                    .map(|view| view.map(|view| view.sources()))
                    .collect())
            }
        }
    }

    /// Says which objects this process reads in rounds, or more of them; returns the node's budget of RAM. `None` if the node is elsewhere: it
    /// serves others too, and is not told.
    pub fn plan(&self, plan: Plan) -> Result<Option<u64>> {
        match &self.node {
            Node::Local(local) => local.plan(plan).map(Some),
            Node::Remote(_) => Ok(None),
        }
    }

    /// Tells the node what a loader of this process did, for its metrics; a node elsewhere is not told.
    pub fn loaded(&self, loaded: Loaded) -> Result<()> {
        match &self.node {
            Node::Local(local) => local.loaded(loaded),
            Node::Remote(_) => Ok(()),
        }
    }

    /// Ends what a reader planned; fine if there is nothing.
    pub fn end_plan(&self, reader: u64) -> Result<()> {
        match &self.node {
            Node::Local(local) => local.end_plan(reader),
            Node::Remote(_) => Ok(()),
        }
    }
}
