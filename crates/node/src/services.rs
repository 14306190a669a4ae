//! Services of a running node, as the doors and the jobs share them.
//!
//! The reservoir, the lakes and the jobs are there from the start; the engine and the S3 edge come when every
//! lake has answered (what they may promise depends on the answer). Until then the node is up but not ready.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use forebay_checkpoint_node::{Saves, SavesOptions};
use forebay_core::{Clock, Result};
use forebay_engine::{Engine, EngineSource};
use forebay_ipc::{Access, Ipc, IpcServices};
use forebay_reservoir::staging_log::StagingLog;
use forebay_reservoir::{Reservoir, ReservoirOptions, Staging};
use forebay_s3::{InFlight, RequestEnd, S3Observer};
use tokio_util::sync::CancellationToken;

use crate::admin::api;
use crate::jobs::Jobs;
use crate::lakes::WatchedLake;
use crate::metrics::{self, Metrics, Snapshot};
use crate::options::NodeOptions;
use crate::readiness::Readiness;
use crate::socket;

/// Folder of the staging log, in the data folder of the node.
const SAVES_FOLDER: &str = "saves";

/// Everything that requests share.
#[derive(Debug)]
pub(crate) struct Services {
    pub(crate) options: NodeOptions,
    pub(crate) reservoir: Arc<Reservoir>,
    /// The default lake first.
    pub(crate) lakes: Vec<Arc<WatchedLake>>,
    pub(crate) jobs: Jobs,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) started: Duration,
    pub(crate) s3_url: Option<String>,
    pub(crate) ipc: Arc<Ipc>,
    /// The memory for what clients on this host write.
    pub(crate) staging: Arc<Staging>,
    pub(crate) saves: Arc<Saves>,
    /// Path of the socket, if there is one.
    pub(crate) socket: Option<PathBuf>,
    pub(crate) readiness: Arc<Readiness>,
    pub(crate) stop: CancellationToken,
}

/// Everything that services stand on.
#[derive(Debug)]
pub(crate) struct Foundations {
    pub(crate) clock: Arc<dyn Clock>,
    /// The default lake first.
    pub(crate) lakes: Vec<Arc<WatchedLake>>,
    /// The users of the socket.
    pub(crate) access: Arc<Access>,
    pub(crate) s3_url: Option<String>,
    pub(crate) socket: Option<PathBuf>,
}

impl Services {
    /// Composes the services; the engine comes later.
    pub(crate) async fn compose(options: NodeOptions, foundations: Foundations) -> Result<Self> {
        let Foundations {
            clock,
            lakes,
            access,
            s3_url,
            socket,
        } = foundations;
        let reservoir = Reservoir::open(reservoir_options(&options)).await?;
        let stop = CancellationToken::new();
        let readiness = Readiness::new(lakes.clone(), stop.clone());
        let staging = Staging::new(options.ipc.staging_bytes);
        let saves = Saves::new(saves_options(&options), Arc::clone(&clock));
        let ipc_services = IpcServices {
            engine: readiness.clone(),
            reservoir: Arc::clone(&reservoir),
            staging: Arc::clone(&staging),
            pressure: saves.clone(),
            clock: Arc::clone(&clock),
            stop: stop.clone(),
            version: env!("CARGO_PKG_VERSION"),
            s3_url: s3_url.clone(),
        };
        Ok(Self {
            ipc: socket::compose(&options, access, ipc_services, &saves)?,
            reservoir,
            lakes,
            jobs: Jobs::new(options.limits.jobs_running_max, Arc::clone(&clock)),
            metrics: Arc::new(Metrics::new()),
            started: clock.monotonic(),
            staging,
            saves,
            clock,
            s3_url,
            socket,
            readiness,
            stop,
            options,
        })
    }

    /// The engine, or `Unavailable` while a lake has not answered yet.
    pub(crate) fn engine(&self) -> Result<&Arc<Engine>> {
        self.readiness.engine()
    }

    /// Why the node is not ready; `None` if it is.
    pub(crate) fn why_not_ready(&self) -> Option<String> {
        self.readiness.why_not()
    }

    /// Returns what all counters say now.
    pub(crate) fn snapshot(&self) -> Snapshot {
        Snapshot {
            reservoir: self.reservoir.stats(),
            ipc: self.ipc.stats(),
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
        let ipc = self.ipc.stats();
        let from_cache = stats.served_ram_bytes + stats.served_nvme_bytes;
        let served = from_cache + stats.served_peer_bytes + stats.served_lake_bytes;
        let in_flight = self.readiness.serving().map_or(
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
            corrupt_blocks: stats.corrupt_ram_blocks
                + stats.corrupt_nvme_blocks
                + stats.corrupt_source_blocks,
            lakes: self.lakes.iter().map(|lake| lake.status()).collect(),
            clients: api::Clients {
                sessions: ipc.sessions,
                connections: ipc.connections,
                leases: ipc.leases,
                leased_bytes: ipc.leased_bytes,
                copied_bytes: stats.lease_copied_bytes,
                expired_leases: ipc.expired_leases,
                abandoned_bytes: stats.abandoned_bytes,
                staging_budget_bytes: ipc.staging_budget_bytes,
                staging_used_bytes: ipc.staging_lent_bytes,
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

fn saves_options(options: &NodeOptions) -> SavesOptions {
    SavesOptions {
        staging_bytes: options.ipc.staging_bytes,
        staging_log: options.data_is_kept.then(|| {
            let folder = options.data_dir.join(SAVES_FOLDER);
            StagingLog::new(folder, options.ipc.save_disk_bytes_max)
        }),
        age_max: options.ipc.save_age_max,
    }
}

fn reservoir_options(options: &NodeOptions) -> ReservoirOptions {
    ReservoirOptions {
        ram_bytes: options.ram_bytes,
        nvme_bytes: options.nvme_bytes,
        nvme_dir: options.nvme_dir(),
        scrub_period: options.limits.scrub_period,
        read_ahead_bytes_max: options.limits.read_ahead_bytes_max,
        write_fill_bytes_max: options.limits.write_fill_bytes_max,
        fill_silence_max: ReservoirOptions::FILL_SILENCE_DEFAULT,
    }
}
