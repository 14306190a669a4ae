//! The schema of `forebay.toml`, and one layer of settings.
//!
//! A [`Config`] is what somebody said, nothing more: every field is optional. The file, the environment and
//! the flags are each a `Config`; [`Config::over`] lays one on top of another; `NodeOptions::resolve` fills
//! in the defaults and checks. Unknown keys are errors, because a typo that is ignored is a setting that
//! silently does not hold. The names, environment variables and descriptions are in `config/reference.rs`.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use forebay_core::{Error, Kind, Result, Secret};
use serde::{Deserialize, Serialize};

use crate::value::{Freshness, Period, Size, Uid};

pub mod reference;
#[cfg(test)]
mod tests;

/// One layer of settings.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The lake whose top-level folders are buckets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lake: Option<String>,
    /// Folder for the tiers, the keys and, by default, the lake.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<PathBuf>,
    /// Budget of the RAM tier.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ram: Option<Size>,
    /// Budget of the NVMe tier.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nvme: Option<Size>,
    /// Address of the S3 endpoint, or `off`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub s3: Option<String>,
    /// Address of the admin API, or `off`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admin: Option<String>,
    /// Socket for clients on this host, or `off`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub socket: Option<String>,
    /// Other users whose processes may use the socket.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_uid: Option<Vec<Uid>>,
    /// Memory for what clients on this host write.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub staging: Option<Size>,
    /// Host name of the S3 endpoint, for virtual-hosted requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub s3_domain: Option<String>,
    /// Region that clients sign for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
    /// Freshness of reads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consistency: Option<Freshness>,
    /// Longest shutdown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shutdown: Option<Period>,
    /// Certificate of the endpoints.
    #[serde(default)]
    pub tls: TlsConfig,
    /// Other nodes.
    #[serde(default, skip_serializing_if = "ClusterConfig::is_empty")]
    pub cluster: ClusterConfig,
    /// Logging.
    #[serde(default)]
    pub log: LogConfig,
    /// Limits.
    #[serde(default)]
    pub limits: LimitsConfig,
    /// Browser access.
    #[serde(default)]
    pub cors: CorsConfig,
    /// Buckets with settings of their own.
    #[serde(default, rename = "bucket", skip_serializing_if = "Vec::is_empty")]
    pub buckets: Vec<BucketConfig>,
    /// Access keys.
    #[serde(default, rename = "key", skip_serializing_if = "Vec::is_empty")]
    pub keys: Vec<KeyConfig>,
}

/// `[tls]`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsConfig {
    /// Certificate chain of the node, a PEM file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cert: Option<PathBuf>,
    /// Its private key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<PathBuf>,
    /// Authorities of client certificates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_ca: Option<PathBuf>,
}

/// `[cluster]`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterConfig {
    /// Name of the cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Address at which other nodes reach this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// Nodes to begin with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub join: Option<Vec<String>>,
    /// Share of the stripes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
    /// Folder with the keys of the cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keys: Option<PathBuf>,
    /// Silence of a peer after which the next source is asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub silence: Option<Period>,
}

impl ClusterConfig {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    fn over(self, below: Self) -> Self {
        Self {
            name: self.name.or(below.name),
            peer: self.peer.or(below.peer),
            join: self.join.or(below.join),
            weight: self.weight.or(below.weight),
            keys: self.keys.or(below.keys),
            silence: self.silence.or(below.silence),
        }
    }
}

/// `[log]`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogConfig {
    /// `human` or `json`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub format: Option<LogFormat>,
    /// Filter of lines: `info`, `debug`, `forebay_lake=debug,info`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filter: Option<String>,
    /// True if every request gets a line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access: Option<bool>,
}

/// Format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    Human,
    /// One JSON object per line.
    Json,
}

/// `[limits]`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LimitsConfig {
    /// Bytes of requests and answers in flight at the S3 edge.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inflight_bytes: Option<Size>,
    /// Requests in flight at the S3 edge.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inflight_requests: Option<usize>,
    /// Connections of the S3 edge.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connections: Option<usize>,
    /// Bytes a second that a client of the S3 edge has to send or take of a body.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body_rate: Option<Size>,
    /// Requests in flight to one lake.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lake_requests: Option<usize>,
    /// Longest wait of a request for a lake that throttles or is away.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lake_patience: Option<Period>,
    /// The same for a request at the S3 edge, which is then told to come back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_patience: Option<Period>,
    /// Bytes of read-ahead in front of one reader.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_ahead: Option<Size>,
    /// The largest object that a write puts into the cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_fill: Option<Size>,
    /// Every block in RAM is checked again within this time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scrub_period: Option<Period>,
    /// Objects that a warm job reads at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warm_parallel: Option<usize>,
    /// Jobs that run at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jobs: Option<usize>,
    /// Longest hold of a view before its memory leaves the cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_timeout: Option<Period>,
    /// Bytes that one client may hold without a copy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_lease_bytes: Option<Size>,
    /// Open connections of the socket.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_connections: Option<usize>,
    /// Longest wait of a staged save for the lake before further saves are refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub save_age: Option<Period>,
    /// Bytes of saves that are staged on disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub save_disk: Option<Size>,
}

/// `[cors]`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CorsConfig {
    /// Origins whose pages may use the S3 endpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub origins: Option<Vec<String>>,
}

/// `[[bucket]]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BucketConfig {
    /// The name that clients use.
    pub name: String,
    /// The lake whose root is the bucket.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lake: Option<String>,
    /// Freshness of reads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consistency: Option<Freshness>,
    /// True if anybody may read it without a key.
    #[serde(default)]
    pub public_read: bool,
    /// The users who may read it through the socket; all that the node lets in if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_uids: Option<Vec<Uid>>,
}

/// `[[key]]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyConfig {
    /// The access key id.
    pub id: String,
    /// The secret itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret: Option<Secret>,
    /// A file with the secret.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret_file: Option<PathBuf>,
    /// Rights of the key.
    #[serde(default)]
    pub access: KeyAccess,
    /// The buckets it may use; all if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub buckets: Option<Vec<String>>,
}

/// Rights of a key.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KeyAccess {
    /// Read and list.
    ReadOnly,
    /// Everything.
    #[default]
    ReadWrite,
}

impl Config {
    /// Reads a file. The error is one line that names the file and the line in it.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).map_err(|why| {
            Error::io(format!("cannot read the configuration: {why}"), why).with("file", path.display())
        })?;
        Self::parse(&text).map_err(|error| error.with("file", path.display()))
    }

    /// The mode of a file that has secrets in it and that every user of the host can read.
    #[must_use]
    pub fn open_secrets(path: &Path) -> Option<u32> {
        let mode = std::fs::metadata(path).ok()?.permissions().mode() & 0o777;
        let has_secret = |config: Self| config.keys.iter().any(|key| key.secret.is_some());
        (mode & 0o004 != 0 && Self::read(path).is_ok_and(has_secret)).then_some(mode)
    }

    /// Reads the text of a file.
    pub fn parse(text: &str) -> Result<Self> {
        toml::from_str(text).map_err(|why| {
            let message = why.message().lines().collect::<Vec<_>>().join(" ");
            let error = Error::new(Kind::InvalidInput, format!("wrong configuration: {message}"));
            match why.span() {
                Some(span) => error.with(
                    "line",
                    text[..span.start.min(text.len())].matches('\n').count() + 1,
                ),
                None => error,
            }
        })
    }

    /// Reads the environment: `FOREBAY_LAKE`, `FOREBAY_RAM` … (see `config/reference.rs`).
    ///
    /// `variable` answers for one name, so that tests need no real environment.
    pub fn from_env(variable: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let mut document = toml::Table::new();
        for setting in reference::SETTINGS {
            let Some(text) = variable(setting.env).filter(|text| !setting.env.is_empty() && !text.is_empty())
            else {
                continue;
            };
            let (table, name) = setting
                .key
                .rsplit_once('.')
                .map_or((None, setting.key), |(t, n)| (Some(t), n));
            let target = match table {
                None => &mut document,
                Some(table) => document
                    .entry(table)
                    .or_insert_with(|| toml::Table::new().into())
                    .as_table_mut()
                    .ok_or_else(|| {
                        Error::new(Kind::Internal, "a setting lies below a value").with("key", setting.key)
                    })?,
            };
            target.insert(name.into(), setting.shape.value(&text, setting.env)?);
            // Checked one by one, so that the message can name the variable.
            Self::deserialize(toml::Value::Table(document.clone())).map_err(|why| {
                let message = why.message().lines().collect::<Vec<_>>().join(" ");
                Error::new(
                    Kind::InvalidInput,
                    format!("wrong value in the environment: {message}"),
                )
                .with("variable", setting.env)
            })?;
        }
        let mut config = Self::deserialize(document).map_err(|why| {
            Error::new(
                Kind::InvalidInput,
                format!("wrong value in the environment: {}", why.message()),
            )
        })?;
        config.keys.extend(key_from_env(&variable)?);
        Ok(config)
    }

    /// Lays `self` on top of `below`: what is said here wins, lists are replaced whole, the key of the
    /// environment goes in front of those of the file.
    #[must_use]
    pub fn over(self, below: Self) -> Self {
        let mut keys = self.keys;
        for key in below.keys {
            if !keys.iter().any(|mine| mine.id == key.id) {
                keys.push(key);
            }
        }
        Self {
            lake: self.lake.or(below.lake),
            data: self.data.or(below.data),
            ram: self.ram.or(below.ram),
            nvme: self.nvme.or(below.nvme),
            s3: self.s3.or(below.s3),
            admin: self.admin.or(below.admin),
            socket: self.socket.or(below.socket),
            allow_uid: self.allow_uid.or(below.allow_uid),
            staging: self.staging.or(below.staging),
            s3_domain: self.s3_domain.or(below.s3_domain),
            region: self.region.or(below.region),
            consistency: self.consistency.or(below.consistency),
            shutdown: self.shutdown.or(below.shutdown),
            tls: TlsConfig {
                cert: self.tls.cert.or(below.tls.cert),
                key: self.tls.key.or(below.tls.key),
                client_ca: self.tls.client_ca.or(below.tls.client_ca),
            },
            cluster: self.cluster.over(below.cluster),
            log: LogConfig {
                format: self.log.format.or(below.log.format),
                filter: self.log.filter.or(below.log.filter),
                access: self.log.access.or(below.log.access),
            },
            limits: self.limits.over(below.limits),
            cors: CorsConfig {
                origins: self.cors.origins.or(below.cors.origins),
            },
            buckets: if self.buckets.is_empty() {
                below.buckets
            } else {
                self.buckets
            },
            keys,
        }
    }
}

impl LimitsConfig {
    fn over(self, below: Self) -> Self {
        Self {
            inflight_bytes: self.inflight_bytes.or(below.inflight_bytes),
            inflight_requests: self.inflight_requests.or(below.inflight_requests),
            connections: self.connections.or(below.connections),
            body_rate: self.body_rate.or(below.body_rate),
            lake_requests: self.lake_requests.or(below.lake_requests),
            lake_patience: self.lake_patience.or(below.lake_patience),
            request_patience: self.request_patience.or(below.request_patience),
            read_ahead: self.read_ahead.or(below.read_ahead),
            write_fill: self.write_fill.or(below.write_fill),
            scrub_period: self.scrub_period.or(below.scrub_period),
            warm_parallel: self.warm_parallel.or(below.warm_parallel),
            jobs: self.jobs.or(below.jobs),
            lease_timeout: self.lease_timeout.or(below.lease_timeout),
            client_lease_bytes: self.client_lease_bytes.or(below.client_lease_bytes),
            client_connections: self.client_connections.or(below.client_connections),
            save_age: self.save_age.or(below.save_age),
            save_disk: self.save_disk.or(below.save_disk),
        }
    }
}

/// The first key, set by `FOREBAY_ACCESS_KEY_ID` and `FOREBAY_SECRET_ACCESS_KEY`.
fn key_from_env(variable: &impl Fn(&str) -> Option<String>) -> Result<Option<KeyConfig>> {
    let set = |name| variable(name).filter(|text| !text.is_empty());
    match (set(reference::ACCESS_KEY_ID), set(reference::SECRET_ACCESS_KEY)) {
        (None, None) => Ok(None),
        (Some(id), Some(secret)) => Ok(Some(KeyConfig {
            id,
            secret: Some(Secret::new(secret)),
            secret_file: None,
            access: KeyAccess::ReadWrite,
            buckets: None,
        })),
        (id, _) => {
            let (there, missing) = match id {
                Some(_) => (reference::ACCESS_KEY_ID, reference::SECRET_ACCESS_KEY),
                None => (reference::SECRET_ACCESS_KEY, reference::ACCESS_KEY_ID),
            };
            Err(Error::new(
                Kind::InvalidInput,
                format!("{there} is set but {missing} is not; set both or none"),
            ))
        }
    }
}
