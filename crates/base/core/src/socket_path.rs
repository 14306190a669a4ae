//! Path of a node's socket when nobody says it: one rule for the node that makes it and the clients
//! that look for it.
//!
//! `$XDG_RUNTIME_DIR/forebay.sock`, else `/run/user/UID/forebay.sock` if that folder is there, else
//! `$TMPDIR/forebay-UID/forebay.sock`. The last one lies where everybody may write, so its folder must be the
//! user's own and closed to others ([`check_socket_folder`]); whoever else made it first could otherwise play
//! the node.

use std::ffi::OsString;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::{Error, Kind, Result};

/// The file name of a node's socket.
pub const SOCKET_FILE: &str = "forebay.sock";

/// The socket of this user's node on this host.
#[must_use]
pub fn default_socket() -> PathBuf {
    let uid = rustix::process::getuid().as_raw();
    let folder = |name: &str| {
        std::env::var_os(name)
            .filter(|value: &OsString| Path::new(value).is_absolute())
            .map(PathBuf::from)
    };
    let run_user = PathBuf::from(format!("/run/user/{uid}"));
    choose(
        folder("XDG_RUNTIME_DIR"),
        Some(run_user).filter(|path| path.is_dir()),
        folder("TMPDIR"),
        uid,
    )
}

fn choose(
    runtime: Option<PathBuf>,
    run_user: Option<PathBuf>,
    temporary: Option<PathBuf>,
    uid: u32,
) -> PathBuf {
    let private = || {
        let temporary = temporary.unwrap_or_else(|| PathBuf::from("/tmp"));
        temporary.join(format!("forebay-{uid}"))
    };
    runtime.or(run_user).unwrap_or_else(private).join(SOCKET_FILE)
}

/// Makes the folder of the default socket if it is missing (mode 0700) and checks it; for the node.
pub fn make_socket_folder(socket: &Path) -> Result<()> {
    let Some(folder) = socket.parent() else {
        return Ok(());
    };
    if !folder.exists() {
        let made = std::fs::DirBuilder::new().mode(0o700).create(folder);
        if let Err(why) = made
            && why.kind() != std::io::ErrorKind::AlreadyExists
        {
            let error = Error::io(
                "cannot make the folder of the socket; name one with --socket",
                why,
            );
            return Err(error.with("folder", folder.display()));
        }
    }
    check_socket_folder(socket)
}

/// Returns whether the folder of the default socket is the user's own: owner right, closed to others, no
/// link. A missing one is fine, there is just no node.
pub fn check_socket_folder(socket: &Path) -> Result<()> {
    let Some(folder) = socket.parent() else {
        return Ok(());
    };
    let Ok(found) = std::fs::symlink_metadata(folder) else {
        return Ok(());
    };
    let uid = rustix::process::getuid().as_raw();
    let own = found.uid() == uid || found.uid() == 0;
    let closed = found.mode() & 0o022 == 0;
    if found.is_dir() && own && closed {
        return Ok(());
    }
    let error = Error::new(
        Kind::Denied,
        "the folder of the default socket belongs to somebody else or is open to others; name a socket with FOREBAY_NODE or --socket",
    );
    Err(error.with("folder", folder.display()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_runtime_folder_wins_then_run_user_then_a_private_one() {
        let path = |text: &str| Some(PathBuf::from(text));
        let all = choose(path("/xdg"), path("/run/user/7"), path("/t"), 7);
        assert_eq!(all, Path::new("/xdg/forebay.sock"));
        let run = choose(None, path("/run/user/7"), path("/t"), 7);
        assert_eq!(run, Path::new("/run/user/7/forebay.sock"));
        assert_eq!(
            choose(None, None, path("/t"), 7),
            Path::new("/t/forebay-7/forebay.sock")
        );
        assert_eq!(
            choose(None, None, None, 7),
            Path::new("/tmp/forebay-7/forebay.sock")
        );
    }

    #[test]
    fn a_folder_that_others_may_write_to_is_refused() {
        let folder = std::env::temp_dir().join(format!("forebay-socket-test-{}", std::process::id()));
        let socket = folder.join(SOCKET_FILE);
        make_socket_folder(&socket).unwrap();
        assert_eq!(std::fs::metadata(&folder).unwrap().mode() & 0o777, 0o700);
        std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o777)).unwrap();
        assert_eq!(check_socket_folder(&socket).unwrap_err().kind(), Kind::Denied);
        std::fs::remove_dir(&folder).unwrap();
        assert!(
            check_socket_folder(&socket).is_ok(),
            "a missing folder is no danger"
        );
    }
}
