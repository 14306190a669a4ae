//! The parts of a running node, as the admin API and the jobs see them.
//!
//! The reservoir, the lakes and the jobs are there from the start; the engine and the S3 edge come when every
//! lake has answered (what they may promise depends on the answer). Until then the node is up but not ready.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use forebay_core::{Clock, Error, Kind, Result};
use forebay_engine::Engine;
use forebay_reservoir::Reservoir;
use forebay_s3::{InFlight, RequestEnd, S3Edge, S3Observer};
use tokio_util::sync::CancellationToken;

use crate::admin::api;
use crate::checkpoint::Saves;
use crate::jobs::Jobs;
use crate::lakes::WatchedLake;
use crate::metrics::{self, Metrics, Snapshot};
use crate::native::Native;
use crate::options::NodeOptions;

/// Everything that requests share.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) options: NodeOptions,
    pub(crate) reservoir: Arc<Reservoir>,
    /// The default lake first.
    pub(crate) lakes: Vec<Arc<WatchedLake>>,
    pub(crate) jobs: Jobs,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) started: Duration,
    pub(crate) s3_url: Option<String>,
    pub(crate) native: Native,
    pub(crate) saves: Arc<Saves>,
    /// Where the socket lies, if there is one.
    pub(crate) socket: Option<PathBuf>,
    pub(crate) serving: OnceLock<Serving>,
    pub(crate) stop: CancellationToken,
}

/// What is there once every lake has answered.
#[derive(Debug)]
pub(crate) struct Serving {
    pub(crate) engine: Arc<Engine>,
    pub(crate) edge: Arc<S3Edge>,
}

impl Parts {
    /// The engine, or `Unavailable` while a lake has not answered yet.
    pub(crate) fn engine(&self) -> Result<&Arc<Engine>> {
        let serving = self.serving.get();
        serving
            .map(|serving| &serving.engine)
            .ok_or_else(|| Error::new(Kind::Unavailable, self.waiting_for()))
    }

    /// Why the node is not ready; `None` if it is.
    pub(crate) fn why_not_ready(&self) -> Option<String> {
        if self.stop.is_cancelled() {
            return Some("the node is stopping".into());
        }
        self.serving.get().is_none().then(|| self.waiting_for())
    }

    fn waiting_for(&self) -> String {
        let silent = self.lakes.iter().find(|lake| !lake.health().up);
        silent.map_or_else(
            || "the node is starting".into(),
            |lake| format!("the lake {} does not answer: {}", lake.url, lake.health().finding),
        )
    }

    /// What all counters say now.
    pub(crate) fn snapshot(&self) -> Snapshot {
        Snapshot {
            reservoir: self.reservoir.stats(),
            native: self.native.stats(),
            saves: self.saves.stats(),
            ram_budget_bytes: self.options.ram_bytes,
            nvme_budget_bytes: self.options.nvme_bytes,
            lakes: self.lakes.iter().map(|lake| lake.snapshot()).collect(),
            jobs_running: self.jobs.running() as u64,
            log_lines_dropped: crate::logging::dropped_lines(),
            uptime: self.uptime(),
            ready: self.why_not_ready().is_none(),
        }
    }

    fn uptime(&self) -> Duration {
        self.clock.monotonic().saturating_sub(self.started)
    }

    /// The status page.
    pub(crate) fn status(&self) -> api::Status {
        let stats = self.reservoir.stats();
        let native = self.native.stats();
        let from_cache = stats.served_ram_bytes + stats.served_nvme_bytes;
        let served = from_cache + stats.served_lake_bytes;
        let in_flight = self.serving.get().map_or(
            InFlight {
                requests: 0,
                bytes: 0,
            },
            |serving| serving.edge.in_flight(),
        );
        api::Status {
            version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            uptime_seconds: self.uptime().as_secs(),
            ready: self.why_not_ready().is_none(),
            s3: self.s3_url.clone().unwrap_or_else(|| "off".into()),
            socket: self.socket.as_ref().map(|path| path.display().to_string()),
            ram: api::Tier {
                budget_bytes: self.options.ram_bytes,
                used_bytes: stats.ram_used_bytes,
                pages: stats.ram_pages,
                evicted_pages: stats.evicted_ram_pages,
            },
            nvme: api::Tier {
                budget_bytes: self.options.nvme_bytes,
                used_bytes: stats.nvme_used_bytes,
                pages: stats.nvme_pages,
                evicted_pages: stats.evicted_nvme_pages,
            },
            pinned_bytes: stats.pinned_bytes,
            served: api::Served {
                ram_bytes: stats.served_ram_bytes,
                nvme_bytes: stats.served_nvme_bytes,
                lake_bytes: stats.served_lake_bytes,
                hit_ratio: (served > 0).then(|| from_cache as f64 / served as f64),
            },
            corrupt_blocks: stats.corrupt_ram_blocks + stats.corrupt_nvme_blocks,
            lakes: self.lakes.iter().map(|lake| lake.status()).collect(),
            clients: api::Clients {
                sessions: native.sessions,
                connections: native.connections,
                leases: native.leases,
                leased_bytes: native.leased_bytes,
                copied_bytes: stats.lease_copied_bytes,
                expired_leases: native.expired_leases,
                abandoned_bytes: stats.abandoned_bytes,
                staging_budget_bytes: native.staging_budget_bytes,
                staging_used_bytes: native.staging_lent_bytes,
            },
            in_flight: api::InFlight {
                s3_requests: in_flight.requests,
                s3_bytes: in_flight.bytes,
                leased_pages: stats.leased_pages,
                jobs: self.jobs.running() as u64,
            },
        }
    }
}

/// Takes the S3 edge's finished requests into the metrics.
#[derive(Debug)]
pub(crate) struct Observer(pub(crate) Arc<Metrics>);

impl S3Observer for Observer {
    fn on_request_end(&self, end: &RequestEnd) {
        self.0.record(metrics::RequestEnd {
            operation: end.op,
            status: end.status,
            received_bytes: end.bytes_in,
            sent_bytes: end.bytes_out,
            elapsed: end.duration,
        });
    }
}
