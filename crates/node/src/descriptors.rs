//! Descriptors: the limit of open files, raised at start and shared out between the doors.
//!
//! Every connection is a descriptor, and so are files and connections to the lake. If one door could take
//! them all, the others could accept nothing and the node could open nothing. So each door gets a limit of
//! connections that fits into the process's limit together with all the others, and a quarter stays for the
//! node itself.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::options::NodeOptions;

/// The admin API's connections, where descriptors allow it.
const ADMIN_CONNECTIONS_MAX: usize = 256;

/// Connections of each door.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Connections {
    pub(crate) s3: usize,
    pub(crate) admin: usize,
    pub(crate) socket: usize,
}

/// Raises the limit of open files to what the process may have. For a program of our own: one that embeds a
/// node keeps its limit.
pub fn raise_limit() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current == maximum {
        return;
    }
    let raised = Rlimit {
        current: maximum,
        maximum,
    };
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => tracing::debug!(from = current, to = maximum, "raised the limit of open files"),
        Err(error) => tracing::warn!(%error, limit = current, "cannot raise the limit of open files"),
    }
}

/// Makes the limits of the doors fit into the limit of open files; returns those of the admin API.
pub(crate) fn fit(options: &mut NodeOptions) -> usize {
    let wanted = Connections {
        s3: options.limits.connections_max,
        admin: ADMIN_CONNECTIONS_MAX,
        socket: options.ipc.connections_max,
    };
    let limit = getrlimit(Resource::Nofile)
        .current
        .map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
    let given = share_out(limit, wanted);
    if given != wanted {
        tracing::warn!(
            open_files = limit,
            s3_connections = given.s3,
            client_connections = given.socket,
            admin_connections = given.admin,
            "the limit of open files is too low for the configured connections; raise it (ulimit -n, LimitNOFILE=)"
        );
    }
    options.limits.connections_max = given.s3;
    options.ipc.connections_max = given.socket;
    given.admin
}

/// A quarter for files and the lake, a sixteenth for the admin API, up to a quarter for the socket; S3 has
/// the rest.
fn share_out(limit: usize, wanted: Connections) -> Connections {
    let admin = wanted.admin.min(limit / 16).max(1);
    let socket = wanted.socket.min(limit / 4).max(1);
    let rest = limit.saturating_sub(limit / 4 + admin + socket);
    Connections {
        s3: wanted.s3.min(rest).max(1),
        admin,
        socket,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WANTED: Connections = Connections {
        s3: 4096,
        admin: 256,
        socket: 1024,
    };

    #[test]
    fn enough_descriptors_change_nothing() {
        assert_eq!(share_out(usize::MAX, WANTED), WANTED);
        assert_eq!(share_out(65_536, WANTED), WANTED);
    }

    #[test]
    fn doors_never_have_more_together_than_there_is() {
        for limit in [64, 256, 1024, 4096, 8192] {
            let given = share_out(limit, WANTED);
            assert!(
                given.s3 + given.admin + given.socket <= limit - limit / 4,
                "{limit}: {given:?}"
            );
            assert!(given.s3 >= limit / 4 && given.admin >= 4, "{limit}: {given:?}");
        }
    }
}
