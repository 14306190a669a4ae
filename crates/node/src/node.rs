//! A node: how the services are composed and taken down.
//!
//! [`Node::start`] checks everything that can be wrong with a configuration (folders, keys, ports, lake URLs) and
//! fails with one clear error; a lake that does not answer or refuses us is no such error: the node comes up, its
//! other lakes are served, what the tiers have is served, and that lake's buckets answer with errors until it has
//! passed its self-test. [`Node::shutdown`] stops
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
use futures::future::join_all;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::cluster::{NodeCluster, PeerPort};
use crate::config::KeyAccess;
use crate::descriptors;
use crate::keys::{KeyFile, NeedsAccessKey};
use crate::lakes::{self, Look};
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
/// Period of the health check of a lake: an outage is told within two seconds.
const WATCH_PERIOD: Duration = Duration::from_secs(1);
/// Every so many checks list the lake.
const WATCHES_PER_LISTING: u32 = 15;

/// A running node.
#[derive(Debug)]
pub struct Node {
    services: Arc<Services>,
    s3_addr: Option<SocketAddr>,
    admin_addr: Option<SocketAddr>,
    peer_addr: Option<SocketAddr>,
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
        let port = PeerPort::bind(&options, &clock).await?;
        let peer_addr = port.as_ref().map(|port| port.addr);
        let access = socket::access(&options);
        let socket = socket::open(&options, &access)?;
        let lakes = lakes::open_all(&options).await?;
        lakes::ask_all(&lakes).await;
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
        if let Some(port) = port {
            join_cluster(&services, port).await?;
        }
        open_engine(&services, keys)?;
        let s3 = s3.map(|s3| s3.listener);
        tasks.spawn(serve_s3(Arc::clone(&services), s3));
        tasks.spawn(ask_lakes(Arc::clone(&services), ready_sender));
        tasks.spawn(watch_lakes(Arc::clone(&services)));
        tasks.spawn(resume_saves(Arc::clone(&services), left_behind, ready.clone()));
        Ok(Self {
            services,
            s3_addr,
            admin_addr,
            peer_addr,
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

    /// Address at which other nodes reach this one, if it is in a cluster.
    #[must_use]
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.peer_addr
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

    /// The lakes that cannot be used now, for people; `None` if all can.
    #[must_use]
    pub fn lake_trouble(&self) -> Option<String> {
        self.services.trouble()
    }

    /// Why a lake refuses us, if one does: wrong credentials, no such bucket.
    #[must_use]
    pub fn lake_refusal(&self) -> Option<Error> {
        self.services.lakes.iter().find_map(|lake| lake.refusal())
    }

    /// Waits until the S3 endpoint is open and at least one lake has passed its self-test. Cancel-safe.
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
        if let Some(cluster) = self.services.cluster.get() {
            cluster.leave().await;
        }
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
        if let Some(cluster) = self.services.cluster.get() {
            cluster.end();
        }
        self.services.saves.say_what_is_left();
        let left = deadline.saturating_sub(self.services.clock.monotonic().saturating_sub(began));
        self.services.reservoir.shutdown(left.max(LAST_MOMENT)).await;
    }
}

/// Serves S3, if there is a door for it.
async fn serve_s3(services: Arc<Services>, listener: Option<Listener>) -> Result<()> {
    let (Some(serving), Some(listener)) = (services.readiness.serving(), listener) else {
        services.stop.cancelled().await;
        return Ok(());
    };
    forebay_s3::serve(listener, Arc::clone(&serving.edge), services.stop.clone()).await
}

/// Asks the lakes that have not passed their self-test until they have; the node is ready with the first one.
async fn ask_lakes(services: Arc<Services>, ready: watch::Sender<bool>) -> Result<()> {
    let tell = || {
        ready.send_replace(services.readiness.why_not().is_none());
    };
    tell();
    let engine = Arc::clone(services.engine()?);
    tokio::select! {
        () = services.stop.cancelled() => return Ok(()),
        () = lakes::ask_until_passed(&services.lakes, &engine, tell) => {}
    }
    services.stop.cancelled().await;
    Ok(())
}

/// Joins the cluster. The lake numbers the starts of a node and names what its buckets share, so a node of a
/// cluster starts when its lakes have answered.
async fn join_cluster(services: &Services, port: PeerPort) -> Result<()> {
    if let Some(silent) = services.lakes.iter().find(|lake| !lake.has_passed()) {
        let message = "a node of a cluster registers its start in the lake, which has not answered; start it \
                       again when the lake is back, or without --cluster";
        let error = Error::new(Kind::Unavailable, message).with("lake", &silent.url);
        return Err(error.with("finding", silent.health().finding));
    }
    let cluster = NodeCluster::join(services, port).await?;
    services.cluster.get_or_init(|| cluster);
    Ok(())
}

/// Makes the engine and the S3 edge. What lakes promise that have not passed their self-test is not known yet.
fn open_engine(services: &Services, keys: Arc<AccessKeys>) -> Result<()> {
    let sources = services.cluster.get().map(NodeCluster::sources);
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
            lake: mapped(&bucket.name).map(|lake| lake.engine_options()),
            consistency: bucket.consistency,
            domain: trust_domain(index, bucket.allow_uids.as_deref()),
        });
    let default = services
        .lakes
        .first()
        .ok_or_else(|| Error::new(Kind::Internal, "a node has no lake"))?;
    let engine = Engine::new(EngineOptions {
        lake: default.engine_options(),
        consistency: options.consistency,
        buckets: buckets.collect(),
        metadata_entries_max: METADATA_ENTRIES_MAX,
        sources: sources.unwrap_or_else(|| Arc::new(LakeSources)),
        derived: vec![Arc::new(StepViews::default())],
        reservoir: Arc::clone(&services.reservoir),
        clock: Arc::clone(&services.clock),
    });
    for lake in services.lakes.iter().filter(|lake| !lake.has_passed()) {
        engine.set_promises(lake.bucket.as_ref(), None);
    }
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
    s3.lake_patience = options.limits.request_patience;
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

/// Finishes what was staged on disk before the restart, as soon as a lake has answered.
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
    for watch in (1..=WATCHES_PER_LISTING).cycle() {
        tokio::select! {
            () = services.stop.cancelled() => return Ok(()),
            () = tokio::time::sleep(WATCH_PERIOD) => {}
        }
        if services.readiness.serving().is_none() {
            continue;
        }
        let depth = if watch == WATCHES_PER_LISTING {
            Look::Long
        } else {
            Look::Short
        };
        // A lake that does not answer must hold up neither the others nor a shutdown.
        tokio::select! {
            () = services.stop.cancelled() => return Ok(()),
            _ = join_all(services.lakes.iter().map(|lake| lake.look(depth))) => {}
        }
    }
    Ok(())
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
