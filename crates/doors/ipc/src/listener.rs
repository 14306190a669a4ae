//! The socket: where it lies, who may come in.
//!
//! The file has mode 0600. With other users allowed it has 0666, and the folder decides who can reach it: one
//! below `/run/user` or a private temporary folder is closed to them, so the node says that a `--socket`
//! elsewhere is needed. Neither is what protects the node: every connection is checked by the user that the
//! kernel names (`SO_PEERCRED`).
//!
//! Life cycle: a lock beside the socket (`<socket>.lock`) says whether its node lives, and the kernel gives
//! it back when the node dies. Who has the lock may replace the file of a dead node; the socket goes with the
//! listener. A default place that another node has is no error: this node goes on without a socket and says
//! so. Limits: connections; who is refused gets an answer that says why.

use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use forebay_core::{Error, Kind, Result, make_socket_folder};
use forebay_wire::Failure;
use rustix::fs::FlockOperation;
use rustix::net::SendFlags;
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;

use crate::access::Access;
use crate::sessions::Peer;
use crate::{Ipc, connection, counters};

/// Pause of accepting when the kernel has no descriptors left.
const REST: Duration = Duration::from_millis(50);

/// Path of the socket, and who chose it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SocketSetting {
    /// There is none.
    Off,
    /// The path that clients try first.
    Default(PathBuf),
    /// The configuration says so: it has to work.
    Chosen(PathBuf),
}

/// A socket that listens.
#[derive(Debug)]
pub struct Listener {
    listener: UnixListener,
    path: PathBuf,
    _lock: File,
}

impl Listener {
    /// Opens the socket where the options say. `None` if there is to be none, or if another node has the
    /// default place.
    pub fn open(setting: &SocketSetting, access: &Access) -> Result<Option<Self>> {
        match setting {
            SocketSetting::Off => Ok(None),
            SocketSetting::Chosen(path) => Self::bind(path, access).map(Some),
            SocketSetting::Default(path) => {
                match make_socket_folder(path).and_then(|()| Self::bind(path, access)) {
                    Ok(listener) => Ok(Some(listener)),
                    Err(error) => {
                        tracing::warn!(%error, "no socket for clients on this host");
                        Ok(None)
                    }
                }
            }
        }
    }

    fn bind(path: &Path, access: &Access) -> Result<Self> {
        let lock = lock(path)?;
        remove_stale(path)?;
        let failed = |what: &str, why: io::Error| {
            Error::io(format!("cannot {what} the socket: {why}"), why)
                .with("socket", path.display())
                .with("setting", "socket")
        };
        let listener = UnixListener::bind(path).map_err(|why| failed("make", why))?;
        let mode = if access.is_shared() { 0o666 } else { 0o600 };
        std::fs::set_permissions(path, Permissions::from_mode(mode)).map_err(|why| failed("protect", why))?;
        if access.is_shared() && is_closed_to_others(path) {
            tracing::warn!(
                socket = %path.display(),
                "other users are allowed but cannot enter the folder of the socket; choose another with --socket"
            );
        }
        Ok(Self {
            listener,
            path: path.to_path_buf(),
            _lock: lock,
        })
    }

    /// Returns where it listens.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Takes connections for ever. Cancel-safe: connections that were taken are in `connections`.
    pub(crate) async fn accept(&self, ipc: &Arc<Ipc>, connections: &mut JoinSet<()>) {
        loop {
            tokio::select! {
                accepted = self.listener.accept() => match accepted {
                    Ok((stream, _)) => admit(ipc, stream, connections),
                    Err(error) => {
                        tracing::warn!(%error, "cannot take a connection");
                        tokio::time::sleep(REST).await;
                    }
                },
                Some(ended) = connections.join_next() => {
                    if let Err(error) = ended {
                        tracing::error!(%error, "a connection ended badly");
                    }
                }
            }
        }
    }
}

impl AsRawFd for Listener {
    fn as_raw_fd(&self) -> RawFd {
        self.listener.as_raw_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // The lock is ours, so the file is.
        let _ = std::fs::remove_file(&self.path);
    }
}

fn admit(ipc: &Arc<Ipc>, stream: UnixStream, connections: &mut JoinSet<()>) {
    let peer = match rustix::net::sockopt::socket_peercred(&stream) {
        Ok(peer) => Peer {
            uid: peer.uid.as_raw(),
            pid: peer.pid.as_raw_pid(),
        },
        Err(error) => {
            tracing::warn!(%error, "a connection without credentials was refused");
            return;
        }
    };
    let connections_max = ipc.limits.connections_max;
    let refusal = if !ipc.access.admits(peer.uid) {
        tracing::warn!(
            uid = peer.uid,
            pid = peer.pid,
            "a user who is not allowed was refused"
        );
        let message = "this user may not use the node; start the node with --allow-uid";
        Some(Error::new(Kind::Denied, message).with("uid", peer.uid))
    } else if connections.len() >= connections_max {
        let message = "the node has too many connections; close some or raise limits.client_connections";
        Some(Error::new(Kind::Busy, message).with("connections_max", connections_max))
    } else {
        None
    };
    match refusal {
        Some(error) => {
            counters::add(&ipc.counters.refused, 1);
            refuse(&stream, &error);
        }
        None => {
            connections.spawn(connection::serve(Arc::clone(ipc), stream, peer));
        }
    }
}

/// Says why, if the socket takes it at once; nobody waits for somebody who may not come in.
fn refuse(stream: &UnixStream, error: &Error) {
    let mut frame = Vec::new();
    if forebay_wire::encode(&Failure::from(error), &mut frame).is_ok() {
        let _ = rustix::net::send(stream.as_fd(), &frame, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }
}

/// The lock that says that the node of this socket lives.
fn lock(socket: &Path) -> Result<File> {
    let mut path = socket.as_os_str().to_owned();
    path.push(".lock");
    let path = PathBuf::from(path);
    let mut options = OpenOptions::new();
    options.create(true).truncate(false).write(true).mode(0o600);
    let file = options.open(&path).map_err(|why| {
        Error::io(format!("cannot make the lock of the socket: {why}"), why)
            .with("file", path.display())
            .with("setting", "socket")
    })?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(taken(socket)),
        Err(why) => Err(Error::io("cannot lock the socket", why.into()).with("file", path.display())),
    }
}

fn taken(socket: &Path) -> Error {
    let message =
        "another node listens on this socket; stop it, or choose another with --socket (off for none)";
    Error::new(Kind::InvalidInput, message)
        .with("socket", socket.display())
        .with("setting", "socket")
}

/// Removes what a dead node left. Anything else stays.
fn remove_stale(path: &Path) -> Result<()> {
    let Ok(found) = std::fs::symlink_metadata(path) else {
        return Ok(());
    };
    if !found.file_type().is_socket() {
        let message = "something else has the name of the socket; remove it or choose another with --socket";
        return Err(Error::new(Kind::InvalidInput, message)
            .with("socket", path.display())
            .with("setting", "socket"));
    }
    // The lock is ours, but the listener need not be a node of this kind.
    if std::os::unix::net::UnixStream::connect(path).is_ok() {
        return Err(taken(path));
    }
    std::fs::remove_file(path).map_err(|why| {
        Error::io(format!("cannot remove the socket of a dead node: {why}"), why)
            .with("socket", path.display())
    })
}

fn is_closed_to_others(path: &Path) -> bool {
    let folder = path.parent().map(std::fs::metadata);
    matches!(folder, Some(Ok(meta)) if meta.permissions().mode() & 0o001 == 0)
}
