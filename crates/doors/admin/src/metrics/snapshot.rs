//! Counters of all services at one moment: the values that a scrape turns into samples.

use std::time::Duration;

use forebay_checkpoint_node::SaveStats;
use forebay_ipc::IpcStats;
use forebay_reservoir::ReservoirStats;

/// Counters of all services at one moment.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    /// Both tiers.
    pub reservoir: ReservoirStats,
    /// Clients on this host.
    pub ipc: IpcStats,
    /// Steps on their way to the lake.
    pub saves: SaveStats,
    /// Budgets of the tiers.
    pub ram_budget_bytes: u64,
    /// See above.
    pub nvme_budget_bytes: u64,
    /// Lakes, each under its URL.
    pub lakes: Vec<LakeSnapshot>,
    /// The cluster, if the node is in one.
    pub cluster: ClusterSnapshot,
    /// Jobs at work.
    pub jobs_running: u64,
    /// Log lines dropped because nobody took them.
    pub log_lines_dropped: u64,
    /// Time since the node started.
    pub uptime: Duration,
    /// True if the node is ready.
    pub ready: bool,
}

/// Traffic between nodes.
#[derive(Debug, Clone, Default)]
pub struct ClusterSnapshot {
    /// Nodes that are seen, this one included; 0 without a cluster.
    pub nodes: u64,
    /// Bytes of blocks that peers sent.
    pub received_bytes: u64,
    /// Bytes of blocks that were sent to peers.
    pub sent_bytes: u64,
    /// Requests to peers that did not get what they asked for, by reason.
    pub fallbacks: Vec<(&'static str, u64)>,
}

/// Requests to one lake.
#[derive(Debug, Clone, Default)]
pub struct LakeSnapshot {
    /// Its URL.
    pub url: String,
    /// True if it answered last time.
    pub up: bool,
    /// Requests that it refused because there were too many.
    pub refused: u64,
    /// Times that it went away.
    pub outages: u64,
    /// Requests that wait for it now.
    pub waiting: u64,
    /// Requests: operation, outcome, how many.
    pub requests: Vec<(&'static str, &'static str, u64)>,
    /// Bytes read from it.
    pub read_bytes: u64,
    /// Bytes written to it.
    pub written_bytes: u64,
}
