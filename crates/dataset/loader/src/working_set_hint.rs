//! Tells the node which shards a loader reads epoch after epoch, so that its cache keeps what it has of them
//! instead of replacing it.
//!
//! All ranks of a job name the same working set, by a number made of the data and the order, so that what
//! they have ahead counts once. Advice only: a node that does not take it, or is remote, serves as before.
//! Raw files are left out: they may be millions.
//!
//! Life cycle: sent when the threads of a loader start, ended when they end or with the process.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_client::{Client, WorkingSet, WorkingSetObject};
use forebay_core::Result;
use forebay_dataset::order::Plan;

use crate::dataset::Inner;

/// Shards that a node is told of, at most, and in one message.
const SHARDS_MAX: usize = 1 << 18;
const SHARDS_PER_MESSAGE: usize = 4096;

static NEXT_READER: AtomicU64 = AtomicU64::new(1);

/// A working set that the node knows; dropped there with this value.
pub(crate) struct WorkingSetHint {
    client: Client,
    reader: u64,
    set: u64,
    pid: u32,
    /// The node's budget of RAM, if it said so.
    pub(crate) node_ram_bytes: Option<u64>,
}

impl WorkingSetHint {
    /// Begins the working set of a dataset in this order and learns how large the node is.
    pub(crate) fn begin(dataset: &Inner, order: &Plan) -> Self {
        let mut hasher = DefaultHasher::new();
        order.shape().fingerprint().to_string().hash(&mut hasher);
        format!("{:?}", order.options()).hash(&mut hasher);
        let mut hint = Self {
            client: dataset.client.clone(),
            reader: NEXT_READER.fetch_add(1, Ordering::Relaxed),
            set: hasher.finish(),
            pid: std::process::id(),
            node_ram_bytes: None,
        };
        match hint.send(0, false, Vec::new()) {
            Ok(ram_bytes) => hint.node_ram_bytes = ram_bytes,
            Err(error) => tracing::debug!(%error, "the node takes no working set"),
        }
        hint
    }

    /// Names the shards, of which so many bytes are read ahead; `is_dense` if all of them is.
    pub(crate) fn name(&self, dataset: &Inner, ahead_bytes: u64, is_dense: bool) {
        if self.node_ram_bytes.is_none() {
            return;
        }
        let mut objects = dataset.working_set_objects().take(SHARDS_MAX).peekable();
        while objects.peek().is_some() {
            let some = objects.by_ref().take(SHARDS_PER_MESSAGE).collect();
            if let Err(error) = self.send(ahead_bytes, is_dense, some) {
                tracing::debug!(%error, "the node takes no working set");
                return;
            }
        }
    }

    fn send(&self, ahead_bytes: u64, is_dense: bool, objects: Vec<WorkingSetObject>) -> Result<Option<u64>> {
        self.client.keep_working_set(WorkingSet {
            id: self.set,
            reader: self.reader,
            ahead_bytes,
            is_dense,
            objects,
        })
    }
}

impl Drop for WorkingSetHint {
    fn drop(&mut self) {
        // A forked child has another session, which knows nothing of it.
        if self.node_ram_bytes.is_some()
            && self.pid == std::process::id()
            && let Err(error) = self.client.drop_working_set(self.reader)
        {
            tracing::debug!(%error, "the end of a working set could not be sent");
        }
    }
}
