//! The client of a node on another host: the same calls over HTTP.
//!
//! Reads are batches (`POST /.forebay/v1/batch`), whose bytes carry checksums; a large one is cut into ranges
//! that come over several connections at once (`read.rs`). Everything else is S3 (`objects.rs`, `put.rs`,
//! `multipart.rs`), signed with the keys of an S3 user (`request.rs`) over connections that
//! may be TLS (`http.rs`, `stream.rs`).
//!
//! Connections are kept for the next call. A fork may come at any moment, so the list of kept connections is
//! only tried, never waited for: when it is taken (by another thread, or for ever, if a thread had it when
//! this process was forked), a call opens a connection of its own. Connections of the parent are closed by
//! the child, never used.

mod http;
mod multipart;
mod objects;
mod put;
mod read;
mod request;
mod stream;

use std::sync::{Arc, Mutex};

use forebay_core::{Result, SystemClock};

use self::http::HttpConnection;
pub(crate) use self::multipart::{PART_BYTES_MIN, RemoteWrite};
use self::stream::TlsTarget;
use crate::options::{ClientOptions, Credentials, Scheme};
use crate::stats::{ClientStats, Counters};

/// Connections that are kept, at most.
const IDLE_MAX: usize = 16;

/// The region that a node expects unless it was told otherwise.
const REGION: &str = "us-east-1";

/// A client of a remote node.
pub(crate) struct Remote {
    host: String,
    /// For a node at `https://`.
    tls: Option<TlsTarget>,
    region: String,
    pub(crate) options: ClientOptions,
    credentials: Option<Credentials>,
    clock: SystemClock,
    pub(crate) counters: Counters,
    idle: Mutex<IdleConnections>,
}

struct IdleConnections {
    process: u32,
    connections: Vec<HttpConnection>,
}

impl Remote {
    /// For `host:port`; nothing is opened yet. The files of TLS are read.
    pub(crate) fn new(host: String, scheme: Scheme, options: ClientOptions) -> Result<Arc<Self>> {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let from_environment = || {
            let pair = |id: &str, secret: &str| {
                Some(Credentials {
                    access_key_id: variable(id)?,
                    secret_access_key: variable(secret)?,
                })
            };
            pair("FOREBAY_ACCESS_KEY_ID", "FOREBAY_SECRET_ACCESS_KEY")
                .or_else(|| pair("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"))
        };
        let tls = match scheme {
            Scheme::Http => None,
            Scheme::Https => Some(TlsTarget::new(&host, &options.tls)?),
        };
        Ok(Arc::new(Self {
            host,
            tls,
            region: variable("FOREBAY_REGION")
                .or_else(|| variable("AWS_REGION"))
                .unwrap_or_else(|| REGION.into()),
            credentials: options.credentials.clone().or_else(from_environment),
            options,
            clock: SystemClock::new(),
            counters: Counters::default(),
            idle: Mutex::new(IdleConnections {
                process: std::process::id(),
                connections: Vec::new(),
            }),
        }))
    }

    /// Returns whether the node is there and takes our keys.
    pub(crate) fn ping(&self) -> Result<()> {
        self.buckets().map(drop)
    }

    /// Returns what was done so far.
    pub(crate) fn stats(&self) -> ClientStats {
        self.counters.snapshot()
    }

    /// A connection, and whether it is a fresh one.
    fn take(&self) -> Result<(HttpConnection, bool)> {
        let mut parents = Vec::new();
        if let Ok(mut idle) = self.idle.try_lock() {
            let process = std::process::id();
            if idle.process != process {
                idle.process = process;
                parents = std::mem::take(&mut idle.connections);
            }
            while let Some(connection) = idle.connections.pop() {
                if connection.is_reusable() {
                    return Ok((connection, false));
                }
            }
        }
        drop(parents);
        Ok((
            HttpConnection::open(&self.host, self.tls.as_ref(), &self.options)?,
            true,
        ))
    }

    /// Keeps a connection whose answer was read to its end.
    fn keep(&self, connection: HttpConnection) {
        if connection.is_reusable()
            && let Ok(mut idle) = self.idle.try_lock()
            && idle.process == std::process::id()
            && idle.connections.len() < IDLE_MAX
        {
            idle.connections.push(connection);
        }
    }
}
