//! A node: how the parts are put together and taken down.
//!
//! [`Node::start`] checks everything that can be wrong with a configuration (folders, keys, ports, lake URLs and
//! credentials) and fails with one clear error; a lake that merely does not answer is no such error: the node
//! comes up, says so at `/readyz`, answers S3 with 503, and goes on asking. [`Node::shutdown`] stops taking
//! connections, lets requests finish within a deadline, then stops jobs and the reservoir. The node owns all its
//! tasks; dropping it without `shutdown` aborts them.

use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use forebay_core::{Clock, Error, Kind, Result, SystemClock};
use forebay_engine::{BucketOptions, Engine, EngineOptions};
use forebay_reservoir::{Reservoir, ReservoirOptions};
use forebay_s3::{Access, AccessKey, AccessKeys, Buckets, S3Edge, S3Options};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::admin::{self, Protection};
use crate::checkpoint::{self, LeftBehind, Saves, SavesOptions};
use crate::config::KeyAccess;
use crate::jobs::Jobs;
use crate::keys::{KeyFile, NeedsAccessKey};
use crate::lakes::{self, WatchedLake};
use crate::metrics::Metrics;
use crate::native::{self, Native, NativeStats};
use crate::options::{KeySettings, LakePlace, NodeOptions};
use crate::parts::{Observer, Parts, Serving};
use crate::waiting_room;

#[cfg(test)]
mod tests;

/// Objects whose metadata is remembered.
const METADATA_ENTRIES_MAX: usize = 1 << 20;
/// What the reservoir gets to stop when requests have used up the deadline.
const LAST_MOMENT: Duration = Duration::from_secs(1);
/// How often a lake is asked whether it is there.
const WATCH_PERIOD: Duration = Duration::from_secs(15);

/// A running node.
#[derive(Debug)]
pub struct Node {
    parts: Arc<Parts>,
    s3_addr: Option<SocketAddr>,
    admin_addr: Option<SocketAddr>,
    key_file: KeyFile,
    tasks: JoinSet<Result<()>>,
    ready: watch::Receiver<bool>,
}

impl Node {
    /// Starts a node. It may not be ready yet: see [`Node::wait_ready`].
    pub async fn start(options: NodeOptions) -> Result<Self> {
        make_folders(&options)?;
        let needs = if options.keys.is_empty() && options.s3_addr.is_some() {
            NeedsAccessKey::Yes
        } else {
            NeedsAccessKey::No
        };
        let key_file = KeyFile::ensure(&options.data_dir, needs)?;
        let s3_listener = bind(options.s3_addr, "s3").await?;
        let admin_listener = bind(options.admin_addr, "admin").await?;
        let (s3_addr, admin_addr) = (
            local_addr(s3_listener.as_ref())?,
            local_addr(admin_listener.as_ref())?,
        );
        let native = Native::new(&options)?;
        let socket = native::Listener::open(&options.native.socket, &native)?;
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let lakes = lakes::open_all(&options).await?;
        let is_answered = lakes::ask_all(&lakes).await?;
        let reservoir = Reservoir::open(reservoir_options(&options, &clock)).await?;
        let parts = Arc::new(Parts {
            reservoir,
            lakes,
            jobs: Jobs::new(options.limits.jobs_running_max, Arc::clone(&clock)),
            metrics: Arc::new(Metrics::new()),
            started: clock.monotonic(),
            saves: Saves::new(saves_options(&options), Arc::clone(&clock)),
            clock,
            s3_url: s3_addr.map(|addr| format!("http://{addr}")),
            native,
            socket: socket.as_ref().map(|socket| socket.path().to_path_buf()),
            serving: OnceLock::new(),
            stop: CancellationToken::new(),
            options,
        });
        let (ready_sender, ready) = watch::channel(false);
        let mut tasks = JoinSet::new();
        if let (Some(listener), Some(addr)) = (admin_listener, admin_addr) {
            let router = admin::router(Arc::clone(&parts), protection(addr, &key_file));
            tasks.spawn(admin::serve(listener, router, parts.stop.clone()));
        }
        let left_behind = find_left_behind(&parts).await;
        if let Some(socket) = socket {
            tasks.spawn(native::run(Arc::clone(&parts), socket));
        }
        let keys = Arc::new(access_keys(&parts.options.keys, &key_file));
        if is_answered {
            open_door(&parts, Arc::clone(&keys))?;
            ready_sender.send_replace(true);
        }
        tasks.spawn(serve_s3(Arc::clone(&parts), s3_listener, keys, ready_sender));
        tasks.spawn(watch_lakes(Arc::clone(&parts)));
        tasks.spawn(resume_saves(Arc::clone(&parts), left_behind, ready.clone()));
        Ok(Self {
            parts,
            s3_addr,
            admin_addr,
            key_file,
            tasks,
            ready,
        })
    }

    /// Endpoint of the S3 front door, if there is one.
    #[must_use]
    pub fn s3_url(&self) -> Option<String> {
        self.s3_addr.map(|addr| format!("http://{addr}"))
    }

    /// Endpoint of the admin API, if there is one.
    #[must_use]
    pub fn admin_url(&self) -> Option<String> {
        self.admin_addr.map(|addr| format!("http://{addr}"))
    }

    /// The socket for clients on this host, if there is one.
    #[must_use]
    pub fn socket(&self) -> Option<&Path> {
        self.parts.socket.as_deref()
    }

    /// The node's ends of the sockets to clients on this host. A process that forks has to close them in the child: else the clients do
    /// not notice when the node dies.
    #[must_use]
    pub fn client_sockets(&self) -> Vec<RawFd> {
        self.parts.native.sockets()
    }

    /// What clients on this host do and hold.
    #[must_use]
    pub fn native_stats(&self) -> NativeStats {
        self.parts.native.stats()
    }

    /// What the node runs with.
    #[must_use]
    pub fn options(&self) -> &NodeOptions {
        &self.parts.options
    }

    /// The key file of the node.
    #[must_use]
    pub fn key_file(&self) -> &KeyFile {
        &self.key_file
    }

    /// The engine, or `Unavailable` while a lake has not answered.
    pub fn engine(&self) -> Result<&Arc<Engine>> {
        self.parts.engine()
    }

    /// Why the node is not ready; `None` if it is.
    #[must_use]
    pub fn why_not_ready(&self) -> Option<String> {
        self.parts.why_not_ready()
    }

    /// Waits until every lake has answered and the front door is open. Cancel-safe.
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
        let began = self.parts.clock.monotonic();
        self.parts.stop.cancel();
        let tasks = &mut self.tasks;
        let drained = async {
            while let Some(ended) = tasks.join_next().await {
                if let Ok(Err(error)) = ended {
                    tracing::warn!(?error, "a part of the node failed while stopping");
                }
            }
        };
        let jobs = self.parts.jobs.shutdown(deadline);
        let (drained, ()) = tokio::join!(tokio::time::timeout(deadline, drained), jobs);
        if drained.is_err() {
            tracing::warn!(
                deadline_s = deadline.as_secs_f64(),
                "requests were cut: they did not finish in time"
            );
            self.tasks.shutdown().await;
        }
        self.parts.saves.say_what_is_left();
        let left = deadline.saturating_sub(self.parts.clock.monotonic().saturating_sub(began));
        self.parts.reservoir.shutdown(left.max(LAST_MOMENT)).await;
    }
}

/// Serves S3: at once if the lakes have answered, else after telling clients to come back for a while.
async fn serve_s3(
    parts: Arc<Parts>,
    listener: Option<TcpListener>,
    keys: Arc<AccessKeys>,
    ready: watch::Sender<bool>,
) -> Result<()> {
    if parts.serving.get().is_none() {
        let asking = lakes::ask_until_answered(&parts.lakes);
        tokio::pin!(asking);
        loop {
            tokio::select! {
                () = parts.stop.cancelled() => return Ok(()),
                answered = &mut asking => break answered?,
                () = answer_busy(listener.as_ref()) => {}
            }
        }
        open_door(&parts, keys)?;
    }
    ready.send_replace(true);
    let (Some(serving), Some(listener)) = (parts.serving.get(), listener) else {
        parts.stop.cancelled().await;
        return Ok(());
    };
    forebay_s3::serve(listener, Arc::clone(&serving.edge), parts.stop.clone()).await
}

/// Tells S3 clients to come back, if there is a door they can come to.
async fn answer_busy(listener: Option<&TcpListener>) {
    match listener {
        Some(listener) => waiting_room::answer_busy(listener).await,
        None => std::future::pending().await,
    }
}

/// Makes the engine and the S3 edge; the lakes have said what they can do.
fn open_door(parts: &Parts, keys: Arc<AccessKeys>) -> Result<()> {
    let options = &parts.options;
    let mapped = |name| parts.lakes.iter().find(|lake| lake.bucket.as_ref() == Some(name));
    let buckets = options
        .buckets
        .iter()
        .enumerate()
        .map(|(index, bucket)| BucketOptions {
            name: bucket.name.clone(),
            lake: mapped(&bucket.name).map(|lake| lake.engine_options(&options.limits)),
            consistency: bucket.consistency,
            domain: native::trust_domain(index, bucket.allow_uids.as_deref()),
        });
    let default = parts
        .lakes
        .first()
        .ok_or_else(|| Error::new(Kind::Internal, "a node has no lake"))?;
    let engine = Engine::new(EngineOptions {
        lake: default.engine_options(&options.limits),
        consistency: options.consistency,
        buckets: buckets.collect(),
        metadata_entries_max: METADATA_ENTRIES_MAX,
        reservoir: Arc::clone(&parts.reservoir),
        clock: Arc::clone(&parts.clock),
    });
    let mut s3 = S3Options::new(keys);
    s3.region.clone_from(&options.region);
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
    s3.shutdown_deadline = options.shutdown_deadline;
    s3.members = Some(parts.native.members.clone());
    s3.observer = Some(Arc::new(Observer(Arc::clone(&parts.metrics))));
    let edge = Arc::new(S3Edge::new(Arc::clone(&engine), s3));
    let opened = parts.serving.set(Serving { engine, edge });
    opened.map_err(|_| Error::new(Kind::Internal, "the front door was opened twice"))
}

fn saves_options(options: &NodeOptions) -> SavesOptions {
    SavesOptions {
        staging_bytes: options.native.staging_bytes,
        data_dir: options.data_is_kept.then(|| options.data_dir.clone()),
        disk_bytes_max: options.native.save_disk_bytes_max,
        age_max: options.native.save_age_max,
    }
}

/// What a former life had staged on disk. A folder that cannot be read is no reason not to start: it stays for the next life.
async fn find_left_behind(parts: &Parts) -> LeftBehind {
    let found = LeftBehind::scan(&parts.options.data_dir, &parts.saves).await;
    found.unwrap_or_else(|error| {
        tracing::error!(%error, "saves of a former life cannot be looked at");
        LeftBehind::default()
    })
}

/// Finishes what a former life had staged on disk, as soon as the lakes have answered.
async fn resume_saves(
    parts: Arc<Parts>,
    left_behind: LeftBehind,
    mut ready: watch::Receiver<bool>,
) -> Result<()> {
    tokio::select! {
        () = parts.stop.cancelled() => return Ok(()),
        // The sender lives in a task of the node; if that died, `failed` tells.
        _ = ready.wait_for(|ready| *ready) => {}
    }
    if let Ok(engine) = parts.engine() {
        checkpoint::resume(&parts.saves, engine, parts.native.staging(), left_behind);
    }
    parts.stop.cancelled().await;
    Ok(())
}

/// Asks each lake now and then whether it is there, for status and metrics.
async fn watch_lakes(parts: Arc<Parts>) -> Result<()> {
    loop {
        tokio::select! {
            () = parts.stop.cancelled() => return Ok(()),
            () = tokio::time::sleep(WATCH_PERIOD) => {}
        }
        if parts.serving.get().is_none() {
            continue;
        }
        for lake in &parts.lakes {
            // A lake that does not answer must not hold up a shutdown.
            tokio::select! {
                () = parts.stop.cancelled() => return Ok(()),
                () = WatchedLake::look(lake) => {}
            }
        }
    }
}

fn make_folders(options: &NodeOptions) -> Result<()> {
    let make = |path: &Path, setting: &'static str| {
        std::fs::create_dir_all(path).map_err(|why| {
            Error::io(format!("cannot make the folder: {why}"), why)
                .with("folder", path.display())
                .with("setting", setting)
        })
    };
    make(&options.data_dir, "data")?;
    make_private(&options.nvme_dir())?;
    keep_data_private(options)?;
    match (options.lake_place, options.lake.as_folder()) {
        (LakePlace::Default, Some(folder)) => make(&folder, "data"),
        (LakePlace::Chosen, Some(folder)) if !folder.is_dir() => {
            let message = "the lake folder is not there; make it first (mkdir -p) or correct the path";
            Err(Error::new(Kind::InvalidInput, message)
                .with("folder", folder.display())
                .with("setting", "lake"))
        }
        _ => Ok(()),
    }
}

/// A lake folder with the data folder inside would serve the keys and the cache to whoever may read a bucket.
fn keep_data_private(options: &NodeOptions) -> Result<()> {
    let whole = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    let data = whole(&options.data_dir);
    let buckets = options.buckets.iter().filter_map(|bucket| bucket.lake.as_ref());
    for lake in std::iter::once(&options.lake).chain(buckets) {
        if let Some(folder) = lake.as_folder().filter(|folder| data.starts_with(whole(folder))) {
            let message = "the data folder lies inside the lake, which would serve its keys to clients; \
                           choose another with --data";
            return Err(Error::new(Kind::InvalidInput, message)
                .with("data", data.display())
                .with("lake", folder.display()));
        }
    }
    Ok(())
}

/// What is cached may be secret on this host even if the lake's own rules would hide it.
fn make_private(path: &Path) -> Result<()> {
    match std::fs::DirBuilder::new().mode(0o700).create(path) {
        Err(why) if why.kind() != std::io::ErrorKind::AlreadyExists => {
            Err(Error::io(format!("cannot make the folder: {why}"), why)
                .with("folder", path.display())
                .with("setting", "data"))
        }
        _ => Ok(()),
    }
}

async fn bind(addr: Option<SocketAddr>, setting: &'static str) -> Result<Option<TcpListener>> {
    let Some(addr) = addr else { return Ok(None) };
    TcpListener::bind(addr).await.map(Some).map_err(|why| {
        let message = match why.kind() {
            std::io::ErrorKind::AddrInUse => {
                format!("{addr} is taken by another program; choose another with --{setting}")
            }
            std::io::ErrorKind::PermissionDenied => {
                format!("this user may not listen on {addr}; choose a port above 1023")
            }
            std::io::ErrorKind::AddrNotAvailable => {
                format!("{addr} is not an address of this machine; choose another with --{setting}")
            }
            _ => format!("cannot listen on {addr}: {why}"),
        };
        Error::io(message, why).with("setting", setting)
    })
}

fn local_addr(listener: Option<&TcpListener>) -> Result<Option<SocketAddr>> {
    listener
        .map(TcpListener::local_addr)
        .transpose()
        .map_err(|why| Error::io("a listening socket has no address", why))
}

fn protection(addr: SocketAddr, key_file: &KeyFile) -> Protection {
    match &key_file.admin_token {
        Some(token) if !addr.ip().is_loopback() => Protection::Token(token.clone()),
        _ => Protection::Loopback,
    }
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

fn reservoir_options(options: &NodeOptions, clock: &Arc<dyn Clock>) -> ReservoirOptions {
    ReservoirOptions {
        ram_bytes: options.ram_bytes,
        nvme_bytes: options.nvme_bytes,
        nvme_dir: options.nvme_dir(),
        scrub_period: options.limits.scrub_period,
        read_ahead_bytes_max: options.limits.read_ahead_bytes_max,
        write_fill_bytes_max: options.limits.write_fill_bytes_max,
        clock: Arc::clone(clock),
    }
}
