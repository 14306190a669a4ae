//! What this kernel and these rights offer, found by mounting for a moment.

use std::io;
use std::sync::Arc;

use forebay_core::{Error, Kind, Result};
use fuser::{Config, Filesystem, InitFlags, KernelConfig, MountOption, Request, Session};
use parking_lot::Mutex;

/// Number of CAP_SYS_ADMIN among the capabilities of a process.
const CAP_SYS_ADMIN: u32 = 21;

/// Offers of the kernel to a mount of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offers {
    /// Version of the protocol.
    pub protocol: (u32, u32),
    /// Opens and closes that cost no request, on a mount whose objects are never replaced.
    pub no_open: bool,
    /// Reads of whole copies by the kernel itself; needs CAP_SYS_ADMIN too.
    pub passthrough: bool,
    /// Names and attributes of a folder in one go.
    pub readdirplus: bool,
}

struct Asker(Arc<Mutex<Option<Offers>>>);

impl Filesystem for Asker {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let offered = config.capabilities();
        let version = config.kernel_abi();
        *self.0.lock() = Some(Offers {
            protocol: (version.0, version.1),
            no_open: offered.contains(InitFlags::FUSE_NO_OPEN_SUPPORT),
            passthrough: offered.contains(InitFlags::FUSE_PASSTHROUGH) && has_sys_admin(),
            readdirplus: offered.contains(InitFlags::FUSE_DO_READDIRPLUS),
        });
        Ok(())
    }
}

/// Mounts an empty file system on a private folder, asks, and unmounts it. Blocks for a moment.
///
/// Errors: `Denied` or `Unsupported` that say why nothing can be mounted here.
pub fn probe() -> Result<Offers> {
    let folder = tempfile::tempdir().map_err(|why| Error::io("cannot make a folder to mount on", why))?;
    let found = Arc::new(Mutex::new(None));
    let mut config = Config::default();
    config.mount_options = vec![MountOption::RO, MountOption::FSName("forebay-probe".into())];
    let session = Session::new(Asker(Arc::clone(&found)), folder.path(), &config).map_err(cannot_mount)?;
    drop(session);
    let offers = found.lock().take();
    offers.ok_or_else(|| Error::new(Kind::Internal, "the kernel did not say what it offers"))
}

/// The error of a mount, with what to do about it.
pub(crate) fn cannot_mount(why: io::Error) -> Error {
    let message = match (why.raw_os_error(), why.kind()) {
        (Some(libc::ENODEV), _) => "this kernel has no FUSE; load it with 'modprobe fuse'",
        (_, io::ErrorKind::NotFound) => {
            "cannot mount: /dev/fuse or, without root rights, fusermount3 is not there; load the kernel module with \
             'modprobe fuse', install fuse3, or run as root"
        }
        (_, io::ErrorKind::PermissionDenied) => {
            "these rights do not allow a mount; run as root, or install fuse3 (for --allow-other also write \
             user_allow_other to /etc/fuse.conf)"
        }
        _ => "cannot mount",
    };
    let kind = match why.kind() {
        io::ErrorKind::NotFound => Kind::Unsupported,
        _ if why.raw_os_error() == Some(libc::ENODEV) => Kind::Unsupported,
        io::ErrorKind::PermissionDenied => Kind::Denied,
        _ => Kind::Io,
    };
    Error::new(kind, message).caused_by(why)
}

/// Returns whether this process has CAP_SYS_ADMIN, which registering backing files needs.
pub(crate) fn has_sys_admin() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let bits = effective.and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
    bits.is_some_and(|bits| bits & (1 << CAP_SYS_ADMIN) != 0)
}
