//! Tells the node which shards a loader reads epoch after epoch, so that its cache keeps what it has of them instead of replacing it.
//!
//! All ranks of a job name the same plan, by a number made of the data and the order, so that what they have ahead counts once. Advice
//! only: a node that does not take it, or is elsewhere, serves as before. Raw files are left out: they may be millions.
//!
//! Life cycle: said when the threads of a loader start, ended when they end or with the process.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_client::{Client, Plan as Said, PlannedObject};
use forebay_core::Result;
use forebay_dataset::order::Plan;

use crate::dataset::Inner;

/// Shards that a node is told of, at most, and in one message.
const SHARDS_MAX: usize = 1 << 18;
const SHARDS_PER_MESSAGE: usize = 4096;

static NEXT_READER: AtomicU64 = AtomicU64::new(1);

/// A plan that the node knows; ended by dropping it.
pub(crate) struct Rounds {
    client: Client,
    reader: u64,
    plan: u64,
    pid: u32,
    /// The node's budget of RAM, if it said so.
    pub(crate) node_ram_bytes: Option<u64>,
}

impl Rounds {
    /// Begins the plan of a dataset in this order and learns how large the node is.
    pub(crate) fn begin(dataset: &Inner, order: &Plan) -> Self {
        let mut hasher = DefaultHasher::new();
        order.shape().fingerprint().to_string().hash(&mut hasher);
        format!("{:?}", order.options()).hash(&mut hasher);
        let mut rounds = Self {
            client: dataset.client.clone(),
            reader: NEXT_READER.fetch_add(1, Ordering::Relaxed),
            plan: hasher.finish(),
            pid: std::process::id(),
            node_ram_bytes: None,
        };
        match rounds.say(0, false, Vec::new()) {
            Ok(ram_bytes) => rounds.node_ram_bytes = ram_bytes,
            Err(error) => tracing::debug!(%error, "the node takes no plan"),
        }
        rounds
    }

    /// Names the shards, of which so many bytes are read ahead; `is_dense` if all of them is.
    pub(crate) fn name(&self, dataset: &Inner, ahead_bytes: u64, is_dense: bool) {
        if self.node_ram_bytes.is_none() {
            return;
        }
        let mut objects = dataset.planned_objects().take(SHARDS_MAX).peekable();
        while objects.peek().is_some() {
            let some = objects.by_ref().take(SHARDS_PER_MESSAGE).collect();
            if let Err(error) = self.say(ahead_bytes, is_dense, some) {
                tracing::debug!(%error, "the node takes no plan");
                return;
            }
        }
    }

    fn say(&self, ahead_bytes: u64, is_dense: bool, objects: Vec<PlannedObject>) -> Result<Option<u64>> {
        self.client.plan(Said {
            plan: self.plan,
            reader: self.reader,
            ahead_bytes,
            is_dense,
            objects,
        })
    }
}

impl Drop for Rounds {
    fn drop(&mut self) {
        // A forked child has another session, which knows nothing of it.
        if self.node_ram_bytes.is_some()
            && self.pid == std::process::id()
            && let Err(error) = self.client.end_plan(self.reader)
        {
            tracing::debug!(%error, "the end of a plan could not be said");
        }
    }
}
