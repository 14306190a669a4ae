//! Options of a mount.

use std::path::PathBuf;
use std::time::Duration;

/// Moment at which a large object is copied whole into memory that the kernel reads by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Passthrough {
    /// When at least half of it was read through the mount and nobody has it open.
    #[default]
    AfterRead,
    /// When it is opened first: the open waits, and the descriptor is a snapshot whatever happens to the lake.
    AtOpen,
    /// Never.
    Off,
}

/// What an `fsync` waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fsync {
    /// The lake has the file as it is now; it stays open for more.
    #[default]
    Lake,
    /// The mount has it: that survives the death of the writer, not of the mount.
    Staged,
}

/// Options of a mount.
#[derive(Debug, Clone)]
pub struct MountOptions {
    /// The bucket.
    pub bucket: String,
    /// Keys below this are shown; empty, or ending with a slash.
    pub prefix: String,
    /// Folder to mount on.
    pub dir: PathBuf,
    /// Other users may use it too, as far as the shown modes allow.
    pub allow_other: bool,
    /// Files can be written, from start to end or at their end.
    pub writable: bool,
    /// What an `fsync` waits for.
    pub fsync: Fsync,
    /// Folder for what is being written.
    pub staging_dir: PathBuf,
    /// Bytes that it may take there.
    pub staging_bytes_max: u64,
    /// Objects are never replaced: opens and closes then cost no request (`no_open`).
    pub immutable: bool,
    /// Time that the kernel believes a name; 0 asks at every use.
    pub names_ttl: Duration,
    /// When large objects are handed to the kernel.
    pub passthrough: Passthrough,
    /// Memory for that.
    pub passthrough_bytes_max: u64,
    /// Period in which all of that memory is compared with its checksums.
    pub scrub_period: Duration,
    /// Names that the kernel may know.
    pub inodes_max: usize,
    /// Files and folders that may be open.
    pub handles_max: usize,
    /// Threads that answer the kernel.
    pub threads: usize,
    /// User and group that files show.
    pub owner: (u32, u32),
}

impl MountOptions {
    /// Defaults for a bucket at a folder.
    #[must_use]
    pub fn new(bucket: impl Into<String>, prefix: impl Into<String>, dir: impl Into<PathBuf>) -> Self {
        Self {
            bucket: bucket.into(),
            prefix: prefix.into(),
            dir: dir.into(),
            allow_other: false,
            writable: false,
            fsync: Fsync::default(),
            staging_dir: std::env::temp_dir(),
            staging_bytes_max: 64 << 30,
            immutable: false,
            names_ttl: Duration::from_secs(1),
            passthrough: Passthrough::default(),
            passthrough_bytes_max: 4 << 30,
            scrub_period: Duration::from_secs(3600),
            inodes_max: 1_000_000,
            handles_max: 1_000_000,
            threads: 8,
            owner: (
                rustix::process::getuid().as_raw(),
                rustix::process::getgid().as_raw(),
            ),
        }
    }
}
