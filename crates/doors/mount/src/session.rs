//! A mount from its start to its end.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use forebay_client::Client;
use forebay_core::{Error, Kind, Result};
use fuser::{BackgroundSession, Config, MountOption, Session, SessionACL};
use rustix::mount::UnmountFlags;
use tracing::{debug, info, warn};

use crate::counters::Counters;
use crate::filesystem::MountedBucket;
use crate::keeper::Keeper;
use crate::options::MountOptions;
use crate::probe::cannot_mount;
use crate::shared::Shared;

/// Large objects that wait to be copied whole, at most.
const COPY_ORDERS_MAX: usize = 64;
/// Read-ahead of the kernel, where it lets us say so.
const READ_AHEAD_KIB: u32 = 1024;
/// Pause between two looks at a session that is to end.
const END_PERIOD: Duration = Duration::from_millis(10);

/// A mounted bucket; unmounted when dropped.
pub struct Mount {
    shared: Arc<Shared>,
    session: Option<BackgroundSession>,
    keeper: Option<Keeper>,
    dir: PathBuf,
}

impl Mount {
    /// Mounts a bucket, or what lies below a prefix of it. Returns when the kernel answers at the folder.
    ///
    /// A mount that a dead process left at the folder is taken over. Errors: `NotFound` if there is no such bucket
    /// or folder; `Denied` or `Unsupported` if nothing can be mounted here, with what to do about it.
    pub fn start(client: Client, mut options: MountOptions) -> Result<Self> {
        if options.writable {
            if options.immutable {
                let message = "objects of a writable mount are replaced: it cannot be immutable";
                return Err(Error::new(Kind::InvalidInput, message));
            }
            // A file becomes another inode when it is opened for writing and when it is uploaded.
            options.names_ttl = Duration::ZERO;
        }
        let dir = take_over(&options.dir)?;
        let (orders, receiver) = sync_channel(COPY_ORDERS_MAX);
        let config = kernel_config(&options);
        let shared = Arc::new(Shared::new(client, options, orders));
        // A bucket that is not there is said now and not at the first look.
        shared.tree.has_keys(&shared.options.prefix)?;
        let session =
            Session::new(MountedBucket(Arc::clone(&shared)), &dir, &config).map_err(cannot_mount)?;
        let session = session.spawn().map_err(cannot_mount)?;
        let keeper = Keeper::start(&shared, receiver, session.notifier())?;
        set_read_ahead(&dir);
        info!(bucket = &*shared.tree.bucket, dir = %dir.display(), "mounted");
        Ok(Self {
            shared,
            session: Some(session),
            keeper: Some(keeper),
            dir,
        })
    }

    /// The rule by which files are read, in words.
    #[must_use]
    pub fn explain(&self) -> String {
        self.shared.rule.text(&self.shared.options)
    }

    /// Counts of what it did.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    /// Names that the kernel knows.
    #[must_use]
    pub fn inodes(&self) -> usize {
        self.shared.inodes.len()
    }

    /// Files and folders that are open here.
    #[must_use]
    pub fn handles(&self) -> usize {
        self.shared.handles.len()
    }

    /// Returns whether it is still mounted; `umount` by somebody else ends it too.
    #[must_use]
    pub fn is_mounted(&self) -> bool {
        self.session
            .as_ref()
            .is_some_and(|session| !session.guard.is_finished())
    }

    /// Unmounts it. What is still open then keeps it until the deadline; after that it reads `ENOTCONN`.
    pub fn unmount(mut self, deadline: Duration) -> Result<()> {
        self.end(deadline)
    }

    fn end(&mut self, deadline: Duration) -> Result<()> {
        let Some(session) = self.session.take() else {
            return Ok(());
        };
        self.keeper = None;
        if !session.guard.is_finished() {
            match unmount(&self.dir, Detach::No) {
                Err(error) if error.kind() == Kind::Busy => {
                    warn!(dir = %self.dir.display(), "still in use; it is unmounted when the last file is closed");
                    unmount(&self.dir, Detach::Yes)?;
                }
                other => other?,
            }
        }
        let start = Instant::now();
        while !session.guard.is_finished() {
            if start.elapsed() >= deadline {
                let message = "files were still open at the deadline; they get ENOTCONN from now on";
                self.end_writes(false);
                return Err(Error::new(Kind::Timeout, message).with("dir", self.dir.display()));
            }
            std::thread::sleep(END_PERIOD);
        }
        let joined = session.join();
        self.end_writes(true);
        joined.map_err(|why| Error::io("the mount ended with an error", why))
    }

    fn end_writes(&self, nothing_is_open: bool) {
        if let Some(writes) = &self.shared.writes {
            writes.end(&self.shared.tree, nothing_is_open);
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if let Err(error) = self.end(Duration::from_secs(5)) {
            warn!(%error, "not unmounted cleanly");
        }
    }
}

/// Unmounting of a folder that is in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detach {
    /// Refused.
    No,
    /// Gone for new uses at once, and for good when the last file is closed.
    Yes,
}

/// Unmounts a folder, also one whose daemon is dead.
///
/// Errors: `Busy` if files are open; `InvalidInput` if nothing is mounted there.
pub fn unmount(dir: &Path, detach: Detach) -> Result<()> {
    let flags = match detach {
        Detach::No => UnmountFlags::NOFOLLOW,
        Detach::Yes => UnmountFlags::NOFOLLOW | UnmountFlags::DETACH,
    };
    let why = match rustix::mount::unmount(dir, flags) {
        Ok(()) => return Ok(()),
        Err(rustix::io::Errno::PERM) => return unmount_by_helper(dir, detach),
        Err(why) => why,
    };
    let error = match why {
        rustix::io::Errno::BUSY => {
            Error::new(Kind::Busy, "the mount is in use; close its files, or add --lazy")
        }
        rustix::io::Errno::INVAL => Error::new(Kind::InvalidInput, "nothing is mounted at this folder"),
        why => Error::io("cannot unmount", why.into()),
    };
    Err(error.with("dir", dir.display()))
}

/// Without root rights the helper of the package fuse3 does it.
fn unmount_by_helper(dir: &Path, detach: Detach) -> Result<()> {
    let mut helper = Command::new("fusermount3");
    helper.arg("-u");
    if detach == Detach::Yes {
        helper.arg("-z");
    }
    let done = helper.arg("--").arg(dir).output();
    let done =
        done.map_err(|why| Error::io("only root may unmount without fusermount3; install fuse3", why))?;
    if done.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&done.stderr).trim().to_owned();
    let kind = if said.contains("busy") {
        Kind::Busy
    } else {
        Kind::Io
    };
    Err(Error::new(kind, "fusermount3 cannot unmount")
        .with("said", said)
        .with("dir", dir.display()))
}

/// The folder, free of what a dead process left there.
fn take_over(dir: &Path) -> Result<PathBuf> {
    let dir = std::path::absolute(dir).map_err(|why| Error::io("cannot mount there", why))?;
    // The kernel may still believe the attributes of a dead mount, but opens nothing there.
    let found = std::fs::metadata(&dir).and_then(|found| match found.is_dir() {
        true => std::fs::read_dir(&dir).map(|_| found),
        false => Ok(found),
    });
    match found {
        Ok(found) if found.is_dir() => Ok(dir),
        Ok(_) => Err(Error::new(Kind::InvalidInput, "a mount needs a folder").with("dir", dir.display())),
        Err(why) if why.raw_os_error() == Some(libc::ENOTCONN) => {
            info!(dir = %dir.display(), "takes the place of a mount whose process is dead");
            unmount(&dir, Detach::Yes)?;
            Ok(dir)
        }
        Err(why) if why.kind() == io::ErrorKind::NotFound => {
            let error = Error::new(Kind::NotFound, "there is no folder to mount on; make it first");
            Err(error.with("dir", dir.display()))
        }
        Err(why) => Err(Error::io("cannot mount there", why).with("dir", dir.display())),
    }
}

fn kernel_config(options: &MountOptions) -> Config {
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName(format!("forebay://{}/{}", options.bucket, options.prefix)),
        MountOption::Subtype("forebay".into()),
        MountOption::DefaultPermissions,
        MountOption::NoAtime,
        MountOption::NoDev,
        MountOption::NoSuid,
        if options.writable {
            MountOption::RW
        } else {
            MountOption::RO
        },
    ];
    config.acl = if options.allow_other {
        SessionACL::All
    } else {
        SessionACL::Owner
    };
    config.n_threads = Some(options.threads.max(1));
    config
}

/// The kernel's own default is 128 KiB; not being allowed to change it costs a little speed and nothing else.
fn set_read_ahead(dir: &Path) {
    let Ok(found) = std::fs::metadata(dir) else {
        return;
    };
    let (major, minor) = (rustix::fs::major(found.dev()), rustix::fs::minor(found.dev()));
    let setting = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
    if let Err(why) = std::fs::write(&setting, READ_AHEAD_KIB.to_string()) {
        debug!(setting, %why, "read-ahead stays as it is");
    }
}
