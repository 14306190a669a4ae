//! Messages of the admin API. The command line reads the same types.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Status of the node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Status {
    /// Version of Forebay.
    pub version: String,
    /// Process id.
    pub pid: u32,
    /// Seconds since it started.
    pub uptime_seconds: u64,
    /// True when every lake has answered.
    pub ready: bool,
    /// Endpoint of the S3 endpoint; `off` if there is none.
    pub s3: String,
    /// Path of the socket for clients on this host, if there is one.
    pub socket: Option<String>,
    /// The RAM tier.
    pub ram: Tier,
    /// The NVMe tier.
    pub nvme: Tier,
    /// Bytes that are pinned.
    pub pinned_bytes: u64,
    /// Bytes handed to readers.
    pub served: Served,
    /// Blocks whose checksum did not match; each was fetched again.
    pub corrupt_blocks: u64,
    /// The lakes.
    pub lakes: Vec<Lake>,
    /// Processes on this host that use the socket.
    pub clients: Clients,
    /// Work under way.
    pub in_flight: InFlight,
}

/// Processes on this host that use the socket, and what they hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Clients {
    /// Processes.
    pub sessions: u64,
    /// Their connections.
    pub connections: u64,
    /// Views that they hold.
    pub leases: u64,
    /// Bytes of these.
    pub leased_bytes: u64,
    /// Bytes that had to be copied for a view since the start.
    pub copied_bytes: u64,
    /// Views that were held too long since the start.
    pub expired_leases: u64,
    /// Bytes of memory that were given up for them.
    pub abandoned_bytes: u64,
    /// The most that the staging memory may hold.
    pub staging_budget_bytes: u64,
    /// Bytes of it that clients have.
    pub staging_used_bytes: u64,
}

/// A tier of the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Tier {
    /// The most it may hold; 0 if it is off.
    pub budget_bytes: u64,
    /// Bytes that it holds.
    pub used_bytes: u64,
    /// Pages in it.
    pub pages: u64,
    /// Pages that had to go.
    pub evicted_pages: u64,
}

/// Bytes handed to readers since the start.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Served {
    /// From RAM.
    pub ram_bytes: u64,
    /// From NVMe.
    pub nvme_bytes: u64,
    /// From other nodes, for a reader that waited.
    pub peer_bytes: u64,
    /// From the lake, for a reader that waited.
    pub lake_bytes: u64,
    /// The share that did not wait for the lake, 0 to 1; absent before the first read.
    pub hit_ratio: Option<f64>,
}

/// A node of the cluster, as the one that answers sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClusterNode {
    /// Its id.
    pub id: String,
    /// True for the node that answers.
    pub is_self: bool,
    /// Where other nodes reach it.
    pub peer: String,
    /// `serving` or `leaving`.
    pub state: String,
    /// Its share of the stripes, against the weights of the others.
    pub weight: u32,
    /// The number of its start.
    pub incarnation: u64,
    /// Version that it speaks between nodes.
    pub wire: u32,
    /// True if it has failed since it last answered, and is passed by but for a probe now and then.
    pub is_passed_by: bool,
    /// Bytes of blocks that it sent to the node that answers.
    pub received_bytes: u64,
    /// Bytes of blocks that the node that answers sent to it.
    pub sent_bytes: u64,
    /// Requests to it that did not get what they asked for.
    pub fallbacks: u64,
}

/// One lake.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Lake {
    /// Its URL.
    pub url: String,
    /// The bucket that lies in it alone; absent for the default lake.
    pub bucket: Option<String>,
    /// True if it answered when it was last asked.
    pub up: bool,
    /// Finding of the self-test, or why that failed.
    pub finding: String,
    /// True if a conditional create has exactly one winner.
    pub conditional_create: bool,
    /// True if a conditional update has exactly one winner.
    pub conditional_update: bool,
    /// True if a conditional delete removes only the object that it names.
    pub conditional_delete: bool,
    /// Requests sent to it.
    pub requests: u64,
    /// Requests that failed.
    pub failed_requests: u64,
    /// Bytes it sent us.
    pub read_bytes: u64,
    /// Bytes we sent it.
    pub written_bytes: u64,
}

/// Work under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct InFlight {
    /// S3 requests.
    pub s3_requests: u64,
    /// Their bytes, as the limit counts them.
    pub s3_bytes: u64,
    /// Pages that readers hold.
    pub leased_pages: u64,
    /// Jobs.
    pub jobs: u64,
}

/// A step on its way to the lake.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Save {
    /// Its name in this node: attempt and rank.
    pub id: String,
    /// Bucket of the run.
    pub bucket: String,
    /// Folder of the run.
    pub root: String,
    /// The step.
    pub step: u64,
    /// The attempt.
    pub attempt: String,
    /// Whose save it is.
    pub rank: u32,
    /// Ranks that save together.
    pub world_size: u32,
    /// `open`, `staged`, `durable` or `failed`.
    pub phase: String,
    /// Tier of the bytes while they are not durable: `ram` or `nvme`.
    pub staged: String,
    /// The generation of the commit; 0 before it.
    pub generation: u32,
    /// The step whose files may be reused.
    pub parent_step: Option<u64>,
    /// Bytes of tensors and objects.
    pub bytes: u64,
    /// Of these, bytes that were written to the lake.
    pub written_bytes: u64,
    /// Of these, bytes that the parent had already.
    pub reused_bytes: u64,
    /// Data files that were written.
    pub files: u32,
    /// Milliseconds since it was begun.
    pub age_ms: u64,
    /// Milliseconds from the beginning until it was staged.
    pub staged_ms: Option<u64>,
    /// Milliseconds from the beginning until it was over.
    pub ended_ms: Option<u64>,
    /// Alarms: things that looked wrong.
    pub alarms: Vec<SaveAlarm>,
    /// Why it failed, or the last trouble with the lake while it is tried again.
    pub trouble: Option<Failure>,
}

/// Something that looked wrong in a step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SaveAlarm {
    /// `zeroed`, `stale` or `not_finite`.
    pub kind: String,
    /// The tensor; empty for all of them.
    pub tensor: String,
    /// For a person.
    pub message: String,
}

/// Target of a cache command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CacheRequest {
    /// The bucket.
    pub bucket: String,
    /// Keys that start with this; empty means all.
    #[serde(default)]
    pub prefix: String,
}

/// A bucket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Bucket {
    /// Its name.
    pub name: String,
    /// Time of creation, as far as is known (RFC 3339).
    pub created: String,
}

/// A bucket to make.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateBucket {
    /// Its name.
    pub name: String,
}

/// Health or readiness of the node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Health {
    /// True if it is.
    pub ok: bool,
    /// Why not.
    pub reason: Option<String>,
}

/// Every error of the admin API.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Failure {
    /// The category, for programs.
    pub kind: String,
    /// The message, for people.
    pub message: String,
}
