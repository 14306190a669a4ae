//! Options of an S3 edge; every limit has a field here.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use forebay_core::BucketName;
use forebay_net::PaceLimits;

use crate::{AccessKeys, MemberIndex, S3Observer};

/// Settings of the S3 edge. Start from [`S3Options::new`] and change fields.
#[derive(Clone)]
pub struct S3Options {
    /// The region that signatures must name.
    pub region: String,
    /// The host name of the node: requests to `<bucket>.<domain>` are virtual-hosted.
    pub domain: Option<String>,
    /// Keys that may come in; may be changed while the edge runs.
    pub keys: Arc<AccessKeys>,
    /// Buckets that anybody may read and list.
    pub public_read: BTreeSet<BucketName>,
    /// Web origins that browsers may call from (`*` means any); empty switches CORS off.
    pub cors_origins: Vec<String>,
    /// Requests in flight beyond this are answered `503 SlowDown`.
    pub inflight_requests_max: u64,
    /// Bytes in flight beyond this are answered `503 SlowDown`; see `limits.rs` for what a request counts.
    pub inflight_bytes_max: u64,
    /// Connections. When all are there, the oldest idle one makes room; one address gets a share of them.
    pub connections_max: usize,
    /// A request head that takes longer, from its first byte on, closes the connection.
    pub head_timeout: Duration,
    /// An idle connection is kept for so long.
    pub idle_timeout: Duration,
    /// A body that makes no progress for so long, in either direction, ends its request.
    pub body_idle_timeout: Duration,
    /// Bytes a second that a client has to send or take of a body whenever we wait for it; 0 is any.
    pub body_rate_min: u64,
    /// A request head larger than this is refused.
    pub header_bytes_max: usize,
    /// After shutdown begins, requests get so long to finish before their connections are cut.
    pub shutdown_deadline: Duration,
    /// A request waits so long for a lake that throttles or is away; then it is answered `503`.
    pub lake_patience: Duration,
    /// Finds members of archives for batches; `None` refuses such items.
    pub members: Option<Arc<dyn MemberIndex>>,
    /// Told about every finished request.
    pub observer: Option<Arc<dyn S3Observer>>,
}

impl S3Options {
    /// Defaults that suit one host.
    #[must_use]
    pub fn new(keys: Arc<AccessKeys>) -> Self {
        Self {
            region: "us-east-1".to_owned(),
            domain: None,
            keys,
            public_read: BTreeSet::new(),
            cors_origins: Vec::new(),
            inflight_requests_max: 4096,
            inflight_bytes_max: 2 << 30,
            connections_max: 8192,
            head_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(75),
            body_idle_timeout: Duration::from_secs(60),
            body_rate_min: 4 << 10,
            header_bytes_max: 32 << 10,
            shutdown_deadline: Duration::from_secs(20),
            lake_patience: Duration::from_secs(10),
            members: None,
            observer: None,
        }
    }

    /// What is asked of a client that sends or takes a body.
    pub(crate) fn pace(&self) -> PaceLimits {
        PaceLimits {
            grace: self.body_idle_timeout,
            bytes_per_second_min: self.body_rate_min,
        }
    }
}

impl fmt::Debug for S3Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("S3Options")
            .field("region", &self.region)
            .field("domain", &self.domain)
            .field("keys", &self.keys)
            .field("public_read", &self.public_read)
            .field("cors_origins", &self.cors_origins)
            .field("inflight_requests_max", &self.inflight_requests_max)
            .field("inflight_bytes_max", &self.inflight_bytes_max)
            .finish_non_exhaustive()
    }
}
