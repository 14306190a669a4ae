//! Services of a running node, as the doors and the jobs share them.
//!
//! Everything is there from the start; the node is ready when a lake has passed its self-test.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use forebay_admin::jobs::Jobs;
use forebay_admin::metrics::{self, Metrics};
use forebay_checkpoint_node::{Saves, SavesOptions};
use forebay_core::{Clock, Result};
use forebay_engine::{Engine, EngineSource};
use forebay_ipc::{Access, Ipc, IpcServices};
use forebay_reservoir::staging_log::StagingLog;
use forebay_reservoir::{Reservoir, ReservoirOptions, Staging};
use forebay_s3::{RequestEnd, S3Observer};
use tokio_util::sync::CancellationToken;

use crate::cluster::NodeCluster;
use crate::lakes::WatchedLake;
use crate::options::NodeOptions;
use crate::readiness::Readiness;
use crate::socket;

mod administered;
#[cfg(test)]
mod tests;

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
    /// The cluster, once it was joined.
    pub(crate) cluster: OnceLock<NodeCluster>,
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
            cluster: OnceLock::new(),
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

    /// The lakes that are away now, for people; `None` if all are there.
    pub(crate) fn trouble(&self) -> Option<String> {
        let away = self.lakes.iter().filter_map(|lake| {
            let health = lake.health();
            (!health.up).then(|| format!("the lake {} cannot be used: {}", lake.url, health.finding))
        });
        let away: Vec<String> = away.collect();
        (!away.is_empty()).then(|| away.join("; "))
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
        // A fill that waits for its lake is not silent for good; the lake's patience ends first.
        fill_silence_max: options.limits.lake_patience + ReservoirOptions::FILL_SILENCE_DEFAULT,
    }
}
