//! The settings of the socket for clients on this host, validated.
//!
//! A socket that nobody chose lies at the default place; if another node has that one already, this node goes
//! on without (see `crates/doors/ipc/src/listener.rs`). A chosen one has to work. `off` opens none.

use std::path::PathBuf;
use std::time::Duration;

use forebay_core::{Result, default_socket};
use forebay_ipc::SocketSetting;

use super::{budget, count, wrong};
use crate::config::Config;
use crate::value::{Period, Size, Uid};

/// The smallest staging arena: one buffer of a usable size.
pub const STAGING_BYTES_MIN: u64 = 1 << 20;
/// Floor of what `Default` gives.
const STAGING_BYTES_DEFAULT_MIN: u64 = 64 << 20;
/// The least that saves may take on disk: a small file.
const SAVE_DISK_BYTES_MIN: u64 = 1 << 20;
/// The longest path that fits a socket address, with its closing NUL.
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// Limits and socket for clients on this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IpcOptions {
    /// Path of the socket.
    pub socket: SocketSetting,
    /// Other users whose processes may come in.
    pub allow_uids: Vec<u32>,
    /// Memory for what clients write.
    pub staging_bytes: u64,
    /// A lease that is older gives its memory up; zero is never.
    pub lease_timeout: Duration,
    /// Bytes of the RAM tier that one client may hold.
    pub client_lease_bytes_max: u64,
    /// Open connections.
    pub connections_max: usize,
    /// While a save is staged longer, no further ones are taken; zero is never.
    pub save_age_max: Duration,
    /// Bytes that saves may take on disk together.
    pub save_disk_bytes_max: u64,
}

impl IpcOptions {
    pub(super) fn resolve(config: &Config, ram_bytes: u64, disk_bytes: u64) -> Result<Self> {
        let limits = &config.limits;
        let staging_default = (ram_bytes / 2).max(STAGING_BYTES_DEFAULT_MIN);
        Ok(Self {
            socket: socket(config.socket.as_deref())?,
            allow_uids: config.allow_uid.iter().flatten().map(|uid| uid.0).collect(),
            staging_bytes: budget("staging", config.staging, staging_default, STAGING_BYTES_MIN)?,
            lease_timeout: limits
                .lease_timeout
                .map_or(Duration::from_secs(3600), |period| period.0),
            client_lease_bytes_max: limits.client_lease_bytes.map_or(ram_bytes / 2, |size| size.0),
            connections_max: count("limits.client_connections", limits.client_connections, 1024)?,
            save_age_max: limits
                .save_age
                .map_or(Duration::from_secs(1800), |period| period.0),
            save_disk_bytes_max: budget(
                "limits.save_disk",
                limits.save_disk,
                disk_bytes / 2,
                SAVE_DISK_BYTES_MIN,
            )?,
        })
    }

    /// Writes the settings into a configuration, as a file would say them.
    pub(super) fn put_into(&self, config: &mut Config) {
        config.socket = Some(match &self.socket {
            SocketSetting::Off => super::OFF.into(),
            SocketSetting::Default(path) | SocketSetting::Chosen(path) => path.display().to_string(),
        });
        config.allow_uid = Some(self.allow_uids.iter().copied().map(Uid).collect());
        config.staging = Some(Size(self.staging_bytes));
        config.limits.lease_timeout = Some(Period(self.lease_timeout));
        config.limits.client_lease_bytes = Some(Size(self.client_lease_bytes_max));
        config.limits.client_connections = Some(self.connections_max);
        config.limits.save_age = Some(Period(self.save_age_max));
        config.limits.save_disk = Some(Size(self.save_disk_bytes_max));
    }
}

fn socket(said: Option<&str>) -> Result<SocketSetting> {
    let Some(text) = said else {
        return Ok(SocketSetting::Default(default_socket()));
    };
    match text.trim() {
        super::OFF => Ok(SocketSetting::Off),
        "" => Err(wrong("socket", "the path is empty; write a path or off")),
        path if path.len() > SOCKET_PATH_BYTES_MAX => {
            let message = format!(
                "the path has {} bytes, a socket may have {SOCKET_PATH_BYTES_MAX}; choose a shorter one",
                path.len()
            );
            Err(wrong("socket", message))
        }
        path => Ok(SocketSetting::Chosen(PathBuf::from(path))),
    }
}
