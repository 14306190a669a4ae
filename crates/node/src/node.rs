//! A node: how the services are composed and taken down.
//!
//! [`Node::start`] checks everything that can be wrong with a configuration (folders, keys, ports, lake URLs
//! and credentials) and fails with one clear error; a lake that merely does not answer is no such error: the
//! node comes up, says so at `/readyz`, answers S3 with 503, and goes on asking. [`Node::shutdown`] stops
//! taking connections, lets requests finish within a deadline, then stops jobs and the reservoir. The node
//! owns all its tasks; dropping it without `shutdown` aborts them.

use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use forebay_admin::{self as admin, Protection};
use forebay_checkpoint_node::{LeftBehind, StepViews, resume};
use forebay_core::{Clock, Error, Kind, Result, SystemClock};
use forebay_engine::{BucketOptions, Engine, EngineOptions, LakeSources};
use forebay_ipc::{IpcStats, trust_domain};
use forebay_net::{Listener, ServerTls};
use forebay_s3::{Access, AccessKey, AccessKeys, Buckets, S3Edge, S3Options};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::config::KeyAccess;
use crate::descriptors;
use crate::keys::{KeyFile, NeedsAccessKey};
use crate::lakes::{self, WatchedLake};
use crate::not_ready;
use crate::options::{KeySettings, NodeOptions};
use crate::readiness::Serving;
use crate::services::{Foundations, Observer, Services};
use crate::socket::{self, BatchMembers};

mod endpoint;
mod folders;
#[cfg(test)]
mod tests;

use endpoint::Endpoint;

/// Objects whose metadata is remembered.
const METADATA_ENTRIES_MAX: usize = 1 << 20;
/// Time for the reservoir to stop when requests have used up the deadline.
const LAST_MOMENT: Duration = Duration::from_secs(1);
/// Period of the health check of a lake.
const WATCH_PERIOD: Duration = Duration::from_secs(15);

/// A running node.
#[derive(Debug)]
pub struct Node {
    services: Arc<Services>,
    s3_addr: Option<SocketAddr>,
    admin_addr: Option<SocketAddr>,
    key_file: KeyFile,
    tasks: JoinSet<Result<()>>,
    ready: watch::Receiver<bool>,
}

impl Node {
    /// Starts a node. It may not be ready yet: see [`Node::wait_ready`].
    pub async fn start(mut options: NodeOptions) -> Result<Self> {
        let admin_connections_max = descriptors::fit(&mut options);
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let listens = options.s3_addr.is_some() || options.admin_addr.is_some();
        let tls = options.tls.clone().filter(|_| listens);
        let tls = tls
            .map(|files| ServerTls::load(files, Arc::clone(&clock)))
            .transpose()?;
        folders::make(&options)?;
        let needs = if options.keys.is_empty() && options.s3_addr.is_some() {
            NeedsAccessKey::Yes
        } else {
            NeedsAccessKey::No
        };
        let key_file = KeyFile::ensure(&options.data_dir, needs)?;
        let s3 = Endpoint::bind(options.s3_addr, "s3", tls.as_ref()).await?;
        let admin = Endpoint::bind(options.admin_addr, "admin", tls.as_ref()).await?;
        let (s3_addr, admin_addr) = (
            s3.as_ref().map(|s3| s3.addr),
            admin.as_ref().map(|admin| admin.addr),
        );
        let access = socket::access(&options);
        let socket = socket::open(&options, &access)?;
        let lakes = lakes::open_all(&options).await?;
        let is_answered = lakes::ask_all(&lakes).await?;
        let foundations = Foundations {
            clock,
            lakes,
            access,
            s3_url: s3_addr.map(|addr| url(addr, &options)),
            socket: socket.as_ref().map(|socket| socket.path().to_path_buf()),
        };
        let services = Arc::new(Services::compose(options, foundations).await?);
        let (ready_sender, ready) = watch::channel(false);
        let mut tasks = JoinSet::new();
        if let Some(Endpoint { listener, addr }) = admin {
            let router = admin::router(services.clone(), protection(addr, &key_file)?);
            let stop = services.stop.clone();
            tasks.spawn(admin::serve(listener, router, admin_connections_max, stop));
        }
        let left_behind = find_left_behind(&services).await;
        if let Some(listener) = socket {
            tasks.spawn(socket::serve(Arc::clone(&services), listener));
        }
        let keys = Arc::new(access_keys(&services.options.keys, &key_file));
        if is_answered {
            open_engine(&services, Arc::clone(&keys))?;
            ready_sender.send_replace(true);
        }
        let s3 = s3.map(|s3| s3.listener);
        tasks.spawn(serve_s3(Arc::clone(&services), s3, keys, ready_sender));
        tasks.spawn(watch_lakes(Arc::clone(&services)));
        tasks.spawn(resume_saves(Arc::clone(&services), left_behind, ready.clone()));
        Ok(Self {
            services,
            s3_addr,
            admin_addr,
            key_file,
            tasks,
            ready,
        })
    }

    /// URL of the S3 endpoint, if there is one.
    #[must_use]
    pub fn s3_url(&self) -> Option<String> {
        self.services.s3_url.clone()
    }

    /// Endpoint of the admin API, if there is one.
    #[must_use]
    pub fn admin_url(&self) -> Option<String> {
        self.admin_addr.map(|addr| url(addr, self.options()))
    }

    /// URLs of the endpoints that other machines can reach and whose traffic is not encrypted.
    #[must_use]
    pub fn exposed_urls(&self) -> Vec<String> {
        let addrs = self.s3_addr.into_iter().chain(self.admin_addr);
        let is_exposed = |addr: &SocketAddr| self.options().tls.is_none() && !addr.ip().is_loopback();
        addrs
            .filter(is_exposed)
            .map(|addr| url(addr, self.options()))
            .collect()
    }

    /// The socket for clients on this host, if there is one.
    #[must_use]
    pub fn socket(&self) -> Option<&Path> {
        self.services.socket.as_deref()
    }

    /// The node's ends of the sockets to clients on this host. A process that forks has to close them in the
    /// child: else the clients do not notice when the node dies.
    #[must_use]
    pub fn client_sockets(&self) -> Vec<RawFd> {
        self.services.ipc.sockets()
    }

    /// Returns what clients on this host do and hold.
    #[must_use]
    pub fn ipc_stats(&self) -> IpcStats {
        self.services.ipc.stats()
    }

    /// Returns what the node runs with.
    #[must_use]
    pub fn options(&self) -> &NodeOptions {
        &self.services.options
    }

    /// The key file of the node.
    #[must_use]
    pub fn key_file(&self) -> &KeyFile {
        &self.key_file
    }

    /// The engine, or `Unavailable` while a lake has not answered.
    pub fn engine(&self) -> Result<&Arc<Engine>> {
        self.services.engine()
    }

    /// Why the node is not ready; `None` if it is.
    #[must_use]
    pub fn why_not_ready(&self) -> Option<String> {
        self.services.why_not_ready()
    }

    /// Waits until every lake has answered and the S3 endpoint is open. Cancel-safe.
    pub fn wait_ready(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut ready = self.ready.clone();
        async move {
            // The sender lives in a task of the node; if that died, `failed` tells.
            let _ = ready.wait_for(|ready| *ready).await;
        }
    }

    /// Waits for a part of the node to fail; a healthy node never returns. Cancel-safe.
    pub async fn failed(&mut self) -> Error {
        let ended = self.tasks.join_next().await;
        match ended {
            Some(Ok(Err(error))) => error,
            Some(Err(why)) => Error::new(Kind::Internal, "a part of the node ended badly").caused_by(why),
            Some(Ok(Ok(()))) | None => Error::new(Kind::Internal, "a part of the node ended by itself"),
        }
    }

    /// Stops: no new connections, running requests may finish until the deadline, then everything ends. The
    /// reservoir gets what is left of the time, but always a moment to write down what it has.
    pub async fn shutdown(mut self, deadline: Duration) {
        let began = self.services.clock.monotonic();
        self.services.stop.cancel();
        let tasks = &mut self.tasks;
        let drained = async {
            while let Some(ended) = tasks.join_next().await {
                if let Ok(Err(error)) = ended {
                    tracing::warn!(?error, "a part of the node failed while stopping");
                }
            }
        };
        let jobs = self.services.jobs.shutdown(deadline);
        let (drained, ()) = tokio::join!(tokio::time::timeout(deadline, drained), jobs);
        if drained.is_err() {
            tracing::warn!(
                deadline_s = deadline.as_secs_f64(),
                "requests were cut: they did not finish in time"
            );
            self.tasks.shutdown().await;
        }
        self.services.saves.say_what_is_left();
        let left = deadline.saturating_sub(self.services.clock.monotonic().saturating_sub(began));
        self.services.reservoir.shutdown(left.max(LAST_MOMENT)).await;
    }
}

/// Serves S3: at once if the lakes have answered, else after telling clients to come back for a while.
async fn serve_s3(
    services: Arc<Services>,
    mut listener: Option<Listener>,
    keys: Arc<AccessKeys>,
    ready: watch::Sender<bool>,
) -> Result<()> {
    if services.readiness.serving().is_none() {
        let asking = lakes::ask_until_answered(&services.lakes);
        tokio::pin!(asking);
        loop {
            tokio::select! {
                () = services.stop.cancelled() => return Ok(()),
                answered = &mut asking => break answered?,
                () = answer_busy(listener.as_mut()) => {}
            }
        }
        open_engine(&services, keys)?;
    }
    ready.send_replace(true);
    let (Some(serving), Some(listener)) = (services.readiness.serving(), listener) else {
        services.stop.cancelled().await;
        return Ok(());
    };
    forebay_s3::serve(listener, Arc::clone(&serving.edge), services.stop.clone()).await
}

/// Tells S3 clients to come back, if there is a door they can come to.
async fn answer_busy(listener: Option<&mut Listener>) {
    match listener {
        Some(listener) => not_ready::answer_busy(listener).await,
        None => std::future::pending().await,
    }
}

/// Makes the engine and the S3 edge; the lakes have said what they can do.
fn open_engine(services: &Services, keys: Arc<AccessKeys>) -> Result<()> {
    let options = &services.options;
    let mapped = |name| {
        services
            .lakes
            .iter()
            .find(|lake| lake.bucket.as_ref() == Some(name))
    };
    let buckets = options
        .buckets
        .iter()
        .enumerate()
        .map(|(index, bucket)| BucketOptions {
            name: bucket.name.clone(),
            lake: mapped(&bucket.name).map(|lake| lake.engine_options(&options.limits)),
            consistency: bucket.consistency,
            domain: trust_domain(index, bucket.allow_uids.as_deref()),
        });
    let default = services
        .lakes
        .first()
        .ok_or_else(|| Error::new(Kind::Internal, "a node has no lake"))?;
    let engine = Engine::new(EngineOptions {
        lake: default.engine_options(&options.limits),
        consistency: options.consistency,
        buckets: buckets.collect(),
        metadata_entries_max: METADATA_ENTRIES_MAX,
        sources: Arc::new(LakeSources),
        derived: vec![Arc::new(StepViews::default())],
        reservoir: Arc::clone(&services.reservoir),
        clock: Arc::clone(&services.clock),
    });
    let mut s3 = S3Options::new(keys);
    s3.region.clone_from(&options.region);
    s3.domain.clone_from(&options.s3_domain);
    s3.public_read = options
        .buckets
        .iter()
        .filter(|b| b.public_read)
        .map(|b| b.name.clone())
        .collect();
    s3.cors_origins.clone_from(&options.cors_origins);
    s3.inflight_requests_max = options.limits.inflight_requests_max as u64;
    s3.inflight_bytes_max = options.limits.inflight_bytes_max;
    s3.connections_max = options.limits.connections_max;
    s3.body_rate_min = options.limits.body_rate_min;
    s3.shutdown_deadline = options.shutdown_deadline;
    s3.members = Some(Arc::new(BatchMembers(services.ipc.members())));
    s3.observer = Some(Arc::new(Observer(Arc::clone(&services.metrics))));
    let edge = Arc::new(S3Edge::new(Arc::clone(&engine), s3));
    services.readiness.set(Serving { engine, edge })
}

/// Returns what was staged on disk before the restart. A folder that cannot be read is no reason not to
/// start: it stays for the next start.
async fn find_left_behind(services: &Services) -> LeftBehind {
    let found = LeftBehind::scan(&services.saves).await;
    found.unwrap_or_else(|error| {
        tracing::error!(%error, "saves from before the restart cannot be read");
        LeftBehind::default()
    })
}

/// Finishes what was staged on disk before the restart, as soon as the lakes have answered.
async fn resume_saves(
    services: Arc<Services>,
    left_behind: LeftBehind,
    mut ready: watch::Receiver<bool>,
) -> Result<()> {
    tokio::select! {
        () = services.stop.cancelled() => return Ok(()),
        // The sender lives in a task of the node; if that died, `failed` tells.
        _ = ready.wait_for(|ready| *ready) => {}
    }
    if let Ok(engine) = services.engine() {
        resume(&services.saves, engine, &services.staging, left_behind);
    }
    services.stop.cancelled().await;
    Ok(())
}

/// Asks each lake now and then whether it is there, for status and metrics.
async fn watch_lakes(services: Arc<Services>) -> Result<()> {
    loop {
        tokio::select! {
            () = services.stop.cancelled() => return Ok(()),
            () = tokio::time::sleep(WATCH_PERIOD) => {}
        }
        if services.readiness.serving().is_none() {
            continue;
        }
        for lake in &services.lakes {
            // A lake that does not answer must not hold up a shutdown.
            tokio::select! {
                () = services.stop.cancelled() => return Ok(()),
                () = WatchedLake::look(lake) => {}
            }
        }
    }
}

fn url(addr: SocketAddr, options: &NodeOptions) -> String {
    let scheme = if options.tls.is_some() { "https" } else { "http" };
    format!("{scheme}://{addr}")
}

fn protection(addr: SocketAddr, key_file: &KeyFile) -> Result<Protection> {
    let Some(token) = key_file.admin_token.clone() else {
        return Err(Error::new(Kind::Internal, "the key file has no admin token"));
    };
    Ok(if addr.ip().is_loopback() {
        Protection::Loopback(token)
    } else {
        Protection::Everywhere(token)
    })
}

fn access_keys(settings: &[KeySettings], key_file: &KeyFile) -> AccessKeys {
    let configured = settings.iter().map(|key| AccessKey {
        id: key.id.clone(),
        secret: key.secret.reveal().to_owned(),
        access: match key.access {
            KeyAccess::ReadOnly => Access::ReadOnly,
            KeyAccess::ReadWrite => Access::ReadWrite,
        },
        buckets: key.buckets.as_ref().map_or(Buckets::All, |names| {
            Buckets::Only(names.iter().cloned().collect())
        }),
    });
    // The key of the file counts only while none is configured.
    let own = key_file
        .access_key_id
        .as_ref()
        .zip(key_file.secret_access_key.as_ref())
        .filter(|_| settings.is_empty());
    AccessKeys::new(configured.chain(own.map(|(id, secret)| AccessKey::full(id, secret.reveal()))))
}
