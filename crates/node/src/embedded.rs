//! A node inside the process of its user: no endpoints, a private socket, a runtime of its own.
//!
//! [`EmbeddedNode`] is the same node as `forebay serve` runs, without S3 and admin listeners, so results are
//! the same by construction. The process that opened it talks to it through the socket like every other
//! client; forked and spawned processes can do so too. The folder of the socket is closed to other users, and
//! goes with the node; so does a data folder that nobody chose.
//!
//! Life cycle: [`EmbeddedNode::start`] blocks until the lake has answered, or fails;
//! [`EmbeddedNode::shutdown`] stops within a deadline, and dropping it does the same with a short one. A
//! forked child has the object but none of its threads: there both do nothing.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_core::{Error, Kind, Result, SOCKET_FILE};
use tokio::runtime::Runtime;

use crate::Node;
use crate::config::Config;
use crate::options::{NodeOptions, SelfTest};
use crate::value::Size;

/// Threads of the runtime: fills, checksums and answers; bulk data is moved by the clients themselves.
const THREADS_MAX: usize = 8;
/// Longest wait for the first answer of a lake.
const READY_DEADLINE: Duration = Duration::from_secs(60);
/// Period at which the caller is asked to go on waiting for it.
const STOP_PERIOD: Duration = Duration::from_millis(100);
/// Time that dropping gives to writes under way.
const DROP_DEADLINE: Duration = Duration::from_secs(5);
/// The longest folder in which a socket can still have a name.
const SOCKET_FOLDER_BYTES_MAX: usize = 80;

/// Options of an embedded node.
#[derive(Debug, Clone, Default)]
pub struct EmbeddedOptions {
    /// The lake; `None` is a folder below `data_dir`, which has to be given then.
    pub lake: Option<String>,
    /// Budget of the RAM tier; `None` is the default of a node.
    pub ram_bytes: Option<u64>,
    /// Budget of the NVMe tier; `None` switches it off.
    pub nvme_bytes: Option<u64>,
    /// Folder of the NVMe tier, kept for the next time; `None` is a private one that goes with the node.
    pub data_dir: Option<PathBuf>,
    /// Self-test of the lakes at start.
    pub self_test: SelfTest,
    /// Everything else, as a configuration file would say it. Listeners that it names are not opened.
    pub config: Config,
}

/// A node in this process.
#[derive(Debug)]
pub struct EmbeddedNode {
    /// There until the shutdown.
    running: Option<Running>,
    socket: PathBuf,
    pid: u32,
}

#[derive(Debug)]
struct Running {
    node: Node,
    runtime: Runtime,
    /// Removed when dropped, after the node.
    _folders: Vec<tempfile::TempDir>,
}

impl EmbeddedNode {
    /// Starts a node and waits until it is ready. Blocks; not for a thread of an async runtime.
    pub fn start(options: EmbeddedOptions) -> Result<Self> {
        Self::start_unless(options, || false)
    }

    /// As [`Self::start`], but gives up with `Cancelled` when `is_stopped` says so; asked on this thread
    /// about ten times a second.
    pub fn start_unless(options: EmbeddedOptions, is_stopped: impl Fn() -> bool) -> Result<Self> {
        let mut folders = Vec::new();
        let self_test = options.self_test;
        let data_is_kept = options.data_dir.is_some() || options.config.data.is_some();
        let (config, socket) = private_config(options, &mut folders)?;
        let node_options = NodeOptions {
            self_test,
            data_is_kept,
            ..NodeOptions::resolve(config)?
        };
        let threads = std::thread::available_parallelism().map_or(2, usize::from);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(threads.min(THREADS_MAX))
            .thread_name("forebay-node")
            .enable_all()
            .build()
            .map_err(|why| Error::io("cannot start the threads of the node", why))?;
        let node = runtime.block_on(async {
            // Before it has started there is nothing to stop: it asks the lake first.
            let node = tokio::select! {
                biased;
                node = Node::start(node_options) => node?,
                stopped = until_stopped(&is_stopped) => return Err(stopped),
            };
            let ready = tokio::select! {
                biased;
                ready = wait_ready(&node) => ready,
                stopped = until_stopped(&is_stopped) => Err(stopped),
            };
            match ready {
                Ok(()) => Ok(node),
                Err(error) => {
                    node.shutdown(Duration::ZERO).await;
                    Err(error)
                }
            }
        })?;
        Ok(Self {
            running: Some(Running {
                node,
                runtime,
                _folders: folders,
            }),
            socket,
            pid: std::process::id(),
        })
    }

    /// Returns where clients connect.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// The node itself; `None` after the shutdown.
    #[must_use]
    pub fn node(&self) -> Option<&Node> {
        self.running.as_ref().map(|running| &running.node)
    }

    /// Returns whether this process is the one that started the node. In a forked child only clients of it
    /// work.
    #[must_use]
    pub fn is_own_process(&self) -> bool {
        self.pid == std::process::id()
    }

    /// Stops the node: answers and writes under way may finish until the deadline. Blocks. Idempotent.
    pub fn shutdown(&mut self, deadline: Duration) {
        let Some(running) = self.running.take() else {
            return;
        };
        if !self.is_own_process() {
            // The threads of the runtime are in the parent, and so is everything that could be stopped.
            std::mem::forget(running);
            return;
        }
        let Running {
            node,
            runtime,
            _folders: folders,
        } = running;
        runtime.block_on(node.shutdown(deadline));
        runtime.shutdown_timeout(deadline);
        drop(folders);
    }
}

impl Drop for EmbeddedNode {
    fn drop(&mut self) {
        self.shutdown(DROP_DEADLINE);
    }
}

async fn wait_ready(node: &Node) -> Result<()> {
    // Nobody reads a log or a status page of this node: a lake that refuses us is an error at once.
    if let Some(refusal) = node.lake_refusal() {
        return Err(refusal);
    }
    let ready = tokio::time::timeout(READY_DEADLINE, node.wait_ready()).await;
    ready.map_err(|_| {
        let reason = node.why_not_ready();
        Error::new(
            Kind::Timeout,
            reason.unwrap_or_else(|| "the node is not ready".into()),
        )
    })
}

/// Waits until somebody wants to wait no longer.
async fn until_stopped(is_stopped: impl Fn() -> bool) -> Error {
    while !is_stopped() {
        tokio::time::sleep(STOP_PERIOD).await;
    }
    Error::new(Kind::Cancelled, "interrupted while waiting for the lake")
}

/// The configuration with listeners off, and a socket in a folder of its own.
fn private_config(
    options: EmbeddedOptions,
    folders: &mut Vec<tempfile::TempDir>,
) -> Result<(Config, PathBuf)> {
    let wrong = |message: &str| Error::new(Kind::InvalidInput, message);
    let socket = private_folder("forebay-", Path::is_absolute)?;
    let path = socket.path().join(SOCKET_FILE);
    folders.push(socket);
    let mut config = options.config;
    config.lake = options.lake.or(config.lake);
    config.data = options.data_dir.or(config.data);
    if config.lake.is_none() && config.data.is_none() {
        return Err(wrong("name a lake, or a data folder in which one can lie"));
    }
    if config.data.is_none() {
        let data = private_folder("forebay-data-", |_| true)?;
        config.data = Some(data.path().to_path_buf());
        folders.push(data);
    }
    config.ram = options.ram_bytes.map(Size).or(config.ram);
    config.nvme = Some(options.nvme_bytes.map_or(config.nvme.unwrap_or(Size(0)), Size));
    config.s3 = Some("off".into());
    config.admin = Some("off".into());
    config.socket = Some(path.display().to_string());
    Ok((config, path))
}

/// A folder for this user alone, where a socket's name is not too long.
fn private_folder(prefix: &str, is_fine: impl Fn(&Path) -> bool) -> Result<tempfile::TempDir> {
    let base = std::env::temp_dir();
    let is_short = base.as_os_str().len() <= SOCKET_FOLDER_BYTES_MAX && is_fine(&base);
    let base = if is_short { base } else { PathBuf::from("/tmp") };
    tempfile::Builder::new()
        .prefix(prefix)
        .permissions(std::fs::Permissions::from_mode(0o700))
        .tempdir_in(&base)
        .map_err(|why| {
            Error::io(format!("cannot make a private folder: {why}"), why).with("folder", base.display())
        })
}
