//! The client of a node on another host: the same calls over HTTP.
//!
//! Reads are batches (`POST /.forebay/v1/batch`), whose bytes carry checksums; a large one is cut into ranges that come over several
//! connections at once (`read.rs`). Everything else is S3 (`objects.rs`, `put.rs`, `multipart.rs`), signed with the keys of an S3 user (`request.rs`) over
//! plain connections (`http.rs`).
//!
//! Connections are kept for the next call. A fork may come at any moment, so the list of kept connections is only tried, never waited for: when it is
//! taken (by another thread, or for ever, if a thread had it when this process was forked), a call opens a connection of its own. Connections
//! of the parent are closed by the child, never used.

mod http;
mod multipart;
mod objects;
mod put;
mod read;
mod request;

use std::sync::{Arc, Mutex};

use forebay_core::{Result, SystemClock};

use self::http::HttpConnection;
pub(crate) use self::multipart::{PART_BYTES_MIN, RemoteWrite};
use crate::options::{ClientOptions, Credentials};
use crate::stats::{ClientStats, Counters};

/// Connections that are kept, at most.
const KEPT_MAX: usize = 16;

/// The region that a node expects unless it was told otherwise.
const REGION: &str = "us-east-1";

/// A client of a node elsewhere.
pub(crate) struct Remote {
    host: String,
    region: String,
    pub(crate) options: ClientOptions,
    credentials: Option<Credentials>,
    clock: SystemClock,
    pub(crate) counters: Counters,
    kept: Mutex<Kept>,
}

struct Kept {
    process: u32,
    connections: Vec<HttpConnection>,
}

impl Remote {
    /// For `host:port`; nothing is opened yet.
    pub(crate) fn new(host: String, options: ClientOptions) -> Arc<Self> {
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
        Arc::new(Self {
            host,
            region: variable("FOREBAY_REGION")
                .or_else(|| variable("AWS_REGION"))
                .unwrap_or_else(|| REGION.into()),
            credentials: options.credentials.clone().or_else(from_environment),
            options,
            clock: SystemClock::new(),
            counters: Counters::default(),
            kept: Mutex::new(Kept {
                process: std::process::id(),
                connections: Vec::new(),
            }),
        })
    }

    /// Whether the node is there and takes our keys.
    pub(crate) fn ping(&self) -> Result<()> {
        self.buckets().map(drop)
    }

    /// What was done so far.
    pub(crate) fn stats(&self) -> ClientStats {
        self.counters.snapshot()
    }

    /// A connection, and whether it is a fresh one.
    fn take(&self) -> Result<(HttpConnection, bool)> {
        let mut parents = Vec::new();
        if let Ok(mut kept) = self.kept.try_lock() {
            let process = std::process::id();
            if kept.process != process {
                kept.process = process;
                parents = std::mem::take(&mut kept.connections);
            }
            while let Some(connection) = kept.connections.pop() {
                if connection.is_reusable() {
                    return Ok((connection, false));
                }
            }
        }
        drop(parents);
        Ok((HttpConnection::open(&self.host, &self.options)?, true))
    }

    /// Keeps a connection whose answer was read to its end.
    fn keep(&self, connection: HttpConnection) {
        if connection.is_reusable()
            && let Ok(mut kept) = self.kept.try_lock()
            && kept.process == std::process::id()
            && kept.connections.len() < KEPT_MAX
        {
            kept.connections.push(connection);
        }
    }
}
