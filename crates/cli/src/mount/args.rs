//! Arguments of `forebay mount` and `forebay umount`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use forebay_mount::{Fsync, MountOptions, Passthrough};
use forebay_node::value::{Period, Size};

use crate::dataset::args::NodeArg;

/// Time at which large files are handed to the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PassthroughArg {
    /// When half of a file was read
    AfterRead,
    /// When a file is opened first, which then waits for all of it
    AtOpen,
    /// Never
    Off,
}

/// State of a file that an fsync waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum FsyncArg {
    /// The lake has it
    Lake,
    /// The mount has it: survives the death of the writer, not of the mount
    Staged,
}

#[derive(Debug, Args)]
pub(crate) struct MountArgs {
    /// What: forebay://bucket[/prefix], a lake URL, or a folder
    pub(crate) location: String,
    /// Folder to mount on
    pub(crate) dir: PathBuf,
    /// Let programs write: new files, whole files anew, and at the end of files
    #[arg(long)]
    pub(crate) writable: bool,
    /// What an fsync waits for
    #[arg(
        long,
        value_enum,
        value_name = "WHAT",
        default_value = "lake",
        requires = "writable"
    )]
    pub(crate) fsync: FsyncArg,
    /// Folder for what is being written [default: the folder for temporary files]
    #[arg(long, value_name = "DIR", requires = "writable")]
    pub(crate) staging_dir: Option<PathBuf>,
    /// Bytes that it may take there
    #[arg(long, value_name = "SIZE", default_value = "64GiB", requires = "writable")]
    pub(crate) staging: Size,
    /// Let other users in, as far as the modes of files allow
    #[arg(long)]
    pub(crate) allow_other: bool,
    /// Objects are never replaced: opens and closes cost nothing, and large files are not passed through
    #[arg(long)]
    pub(crate) immutable: bool,
    /// How long the kernel believes a name
    #[arg(long, value_name = "TIME", default_value = "1s")]
    pub(crate) names_ttl: Period,
    /// When files of 8 MiB and more are handed to the kernel, which then reads them by itself
    #[arg(long, value_enum, value_name = "WHEN", default_value = "after-read")]
    pub(crate) passthrough: PassthroughArg,
    /// Memory for files that are handed to the kernel
    #[arg(long, value_name = "SIZE", default_value = "4GiB")]
    pub(crate) passthrough_memory: Size,
    /// Names that the kernel may know
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(100..))]
    pub(crate) inodes: u32,
    /// Threads that answer the kernel
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) threads: u16,
    /// Print the rule by which files are read
    #[arg(long)]
    pub(crate) explain: bool,
    /// Go to the background when it is mounted
    #[arg(long)]
    pub(crate) daemon: bool,
    /// Log of the background [default: nowhere]
    #[arg(long, value_name = "FILE", requires = "daemon")]
    pub(crate) log_file: Option<PathBuf>,
    /// What is logged
    #[arg(long, value_name = "FILTER", default_value = "warn")]
    pub(crate) log: String,
    #[command(flatten)]
    pub(crate) node: NodeArg,
}

impl MountArgs {
    /// Writes what was typed over the defaults.
    pub(crate) fn apply(&self, options: &mut MountOptions) {
        options.allow_other = self.allow_other;
        options.immutable = self.immutable;
        options.writable = self.writable;
        options.fsync = match self.fsync {
            FsyncArg::Lake => Fsync::Lake,
            FsyncArg::Staged => Fsync::Staged,
        };
        if let Some(dir) = &self.staging_dir {
            options.staging_dir.clone_from(dir);
        }
        options.staging_bytes_max = self.staging.0;
        options.names_ttl = self.names_ttl.0;
        options.passthrough = match self.passthrough {
            PassthroughArg::AfterRead => Passthrough::AfterRead,
            PassthroughArg::AtOpen => Passthrough::AtOpen,
            PassthroughArg::Off => Passthrough::Off,
        };
        options.passthrough_bytes_max = self.passthrough_memory.0;
        options.inodes_max = self.inodes as usize;
        options.threads = usize::from(self.threads);
    }
}

#[derive(Debug, Args)]
pub(crate) struct UmountArgs {
    /// The folder
    pub(crate) dir: PathBuf,
    /// Also if files are open: gone for new uses at once, for good when the last is closed
    #[arg(long)]
    pub(crate) lazy: bool,
}
