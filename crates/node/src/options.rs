//! Options of a node: validated, every default filled in.
//!
//! `Config` is what was typed; [`NodeOptions`] is what holds. [`NodeOptions::resolve`] is the only way from
//! one to the other and raises every configuration error, each as one line that names the setting.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_core::{BucketName, Error, Kind, Result};
use forebay_engine::Consistency;
use forebay_net::TlsFiles;

use crate::config::{BucketConfig, Config, CorsConfig, LimitsConfig, LogConfig, LogFormat};
use crate::lake_url::LakeUrl;
use crate::machine::Machine;
use crate::value::{Freshness, Period, Size, Uid};

mod cluster;
mod endpoint;
mod ipc;
mod keys;

#[cfg(test)]
mod tests;

pub use cluster::ClusterSettings;
pub use forebay_ipc::SocketSetting;
pub use ipc::{IpcOptions, STAGING_BYTES_MIN};
pub use keys::KeySettings;

/// Switches a listener off.
const OFF: &str = "off";

/// The smallest RAM tier: below this a few large readers would starve each other.
pub const RAM_BYTES_MIN: u64 = 64 << 20;
/// The smallest NVMe tier, unless it is off.
pub const NVME_BYTES_MIN: u64 = 64 << 20;
const RAM_BYTES_DEFAULT_MAX: u64 = 4 << 30;
const NVME_BYTES_DEFAULT_MAX: u64 = 100 << 30;

/// Everything that `Node::start` needs.
#[derive(Debug, Clone)]
pub struct NodeOptions {
    /// The lake whose top-level folders are buckets.
    pub lake: LakeUrl,
    /// Origin of the lake: the default folder below the data folder is made by the node itself.
    pub lake_origin: LakeOrigin,
    /// Self-test of the lakes at start.
    pub self_test: SelfTest,
    /// Folder for the tiers and the keys.
    pub data_dir: PathBuf,
    /// True if that folder is there after a restart of the node.
    pub data_is_kept: bool,
    /// Budget of the RAM tier.
    pub ram_bytes: u64,
    /// Budget of the NVMe tier; 0 is off.
    pub nvme_bytes: u64,
    /// Address of the S3 endpoint, if there is one.
    pub s3_addr: Option<SocketAddr>,
    /// Address of the admin API, if there is one.
    pub admin_addr: Option<SocketAddr>,
    /// Limits and socket for clients on this host.
    pub ipc: IpcOptions,
    /// The cluster, if the node is in one.
    pub cluster: Option<ClusterSettings>,
    /// Certificate of both endpoints; `None` is plain HTTP.
    pub tls: Option<TlsFiles>,
    /// The host name of the S3 endpoint, in front of which stand the names of buckets.
    pub s3_domain: Option<String>,
    /// The region that clients sign for.
    pub region: String,
    /// Freshness of reads, unless a bucket says otherwise.
    pub consistency: Consistency,
    /// Longest shutdown.
    pub shutdown_deadline: Duration,
    /// Logging.
    pub log: LogOptions,
    /// Limits.
    pub limits: Limits,
    /// Origins whose pages may use the S3 endpoint.
    pub cors_origins: Vec<String>,
    /// Buckets with settings of their own.
    pub buckets: Vec<BucketSettings>,
    /// Configured access keys; if there is none, the one in the key file holds.
    pub keys: Vec<KeySettings>,
}

/// Self-test of lakes at start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SelfTest {
    /// By a few small objects that are written and removed, which shows what the lake promises.
    #[default]
    Full,
    /// By a listing: nothing is written, and no promise is proven. For a node that only reads.
    Listing,
}

/// Origin of the lake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LakeOrigin {
    /// Nobody: it is the folder below the data folder, made when missing.
    Default,
    /// The configuration: it has to be there.
    Chosen,
}

/// Logging, resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogOptions {
    /// Format of lines.
    pub format: LogFormat,
    /// Filter of lines.
    pub filter: String,
    /// True if each request gets a line.
    pub access: bool,
}

/// Limits, resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Bytes in flight at the S3 edge.
    pub inflight_bytes_max: u64,
    /// Requests in flight at the S3 edge.
    pub inflight_requests_max: usize,
    /// Connections of the S3 edge.
    pub connections_max: usize,
    /// Bytes a second that a client of the S3 edge has to send or take of a body; 0 is any.
    pub body_rate_min: u64,
    /// Requests in flight to one lake.
    pub lake_requests_max: usize,
    /// Longest wait of a request for a lake that throttles or is away.
    pub lake_patience: Duration,
    /// The same for a request at the S3 edge.
    pub request_patience: Duration,
    /// Read-ahead in front of one reader.
    pub read_ahead_bytes_max: u64,
    /// Largest object that a write puts into the cache.
    pub write_fill_bytes_max: u64,
    /// Every block in RAM is checked again within this time; zero is off.
    pub scrub_period: Duration,
    /// Objects that a warm job reads at once.
    pub warm_parallel_max: usize,
    /// Jobs that run at once.
    pub jobs_running_max: usize,
}

/// A bucket with settings of its own.
#[derive(Debug, Clone)]
pub struct BucketSettings {
    /// The name that clients use.
    pub name: BucketName,
    /// Its own lake; `None` is the folder of this name in the default lake.
    pub lake: Option<LakeUrl>,
    /// Freshness of reads.
    pub consistency: Consistency,
    /// True if anybody may read it.
    pub public_read: bool,
    /// The users who may use it through the socket; `None` is all that may use the socket.
    pub allow_uids: Option<Vec<u32>>,
}

impl NodeOptions {
    /// Checks a configuration and fills in what it does not say, asking the machine for memory and disk.
    pub fn resolve(config: Config) -> Result<Self> {
        let data_dir = config
            .data
            .clone()
            .unwrap_or_else(|| PathBuf::from("./forebay-data"));
        let machine = Machine::measure(&nvme_dir(&data_dir))?;
        Self::resolve_on(config, &machine)
    }

    /// As [`Self::resolve`], on a given machine.
    pub fn resolve_on(config: Config, machine: &Machine) -> Result<Self> {
        let data_dir = config
            .data
            .clone()
            .unwrap_or_else(|| PathBuf::from("./forebay-data"));
        let (lake, lake_origin) = match &config.lake {
            Some(text) => (
                LakeUrl::parse(text).map_err(|error| error.with("setting", "lake"))?,
                LakeOrigin::Chosen,
            ),
            None => (LakeUrl::folder(&data_dir.join("lake"))?, LakeOrigin::Default),
        };
        let consistency = config.consistency.map_or(
            Consistency::RevalidateAfter(Duration::from_secs(5)),
            |freshness| freshness.0,
        );
        let s3_addr = endpoint::address(config.s3.as_deref().unwrap_or("127.0.0.1:9000"), "s3")?;
        let admin_addr = endpoint::address(config.admin.as_deref().unwrap_or("127.0.0.1:9001"), "admin")?;
        if let (Some(s3), Some(admin)) = (s3_addr, admin_addr)
            && s3 == admin
            && s3.port() != 0
        {
            let message = format!("s3 and admin are both {s3}; give them different ports");
            return Err(Error::new(Kind::InvalidInput, message).with("setting", "admin"));
        }
        let ram_default = RAM_BYTES_DEFAULT_MAX.min(machine.memory_bytes / 4);
        let ram_bytes = budget("ram", config.ram, ram_default, RAM_BYTES_MIN)?;
        let ipc = IpcOptions::resolve(&config, ram_bytes, machine.disk_bytes)?;
        let nvme_bytes = nvme_budget(config.nvme, machine)?;
        Ok(Self {
            lake,
            lake_origin,
            self_test: SelfTest::Full,
            data_is_kept: true,
            ram_bytes,
            nvme_bytes,
            cluster: ClusterSettings::resolve(config.cluster, ram_bytes + nvme_bytes)?,
            data_dir,
            s3_addr,
            admin_addr,
            ipc,
            tls: endpoint::tls_files(config.tls)?,
            s3_domain: config.s3_domain.map(endpoint::domain).transpose()?,
            region: region(config.region)?,
            consistency,
            shutdown_deadline: config.shutdown.map_or(Duration::from_secs(10), |period| period.0),
            log: LogOptions {
                format: config.log.format.unwrap_or(LogFormat::Human),
                filter: config.log.filter.unwrap_or_else(|| "info".into()),
                access: config.log.access.unwrap_or(true),
            },
            limits: Limits::resolve(&config.limits)?,
            cors_origins: origins(config.cors)?,
            buckets: buckets(config.buckets, consistency)?,
            keys: keys::resolve(config.keys)?,
        })
    }

    /// The effective configuration, as a file would say it, secrets hidden.
    #[must_use]
    pub fn to_config(&self) -> Config {
        let addr = |addr: Option<SocketAddr>| Some(addr.map_or_else(|| OFF.into(), |addr| addr.to_string()));
        let mut config = Config {
            lake: Some(self.lake.shown().to_owned()),
            data: Some(self.data_dir.clone()),
            ram: Some(Size(self.ram_bytes)),
            nvme: Some(Size(self.nvme_bytes)),
            s3: addr(self.s3_addr),
            admin: addr(self.admin_addr),
            tls: endpoint::tls_config(self.tls.as_ref()),
            s3_domain: self.s3_domain.clone(),
            region: Some(self.region.clone()),
            consistency: Some(Freshness(self.consistency)),
            shutdown: Some(Period(self.shutdown_deadline)),
            cluster: self
                .cluster
                .as_ref()
                .map(ClusterSettings::to_config)
                .unwrap_or_default(),
            log: LogConfig {
                format: Some(self.log.format),
                filter: Some(self.log.filter.clone()),
                access: Some(self.log.access),
            },
            limits: self.limits.to_config(),
            cors: CorsConfig {
                origins: Some(self.cors_origins.clone()),
            },
            buckets: self.buckets.iter().map(BucketSettings::to_config).collect(),
            keys: self.keys.iter().map(KeySettings::to_config).collect(),
            ..Config::default()
        };
        self.ipc.put_into(&mut config);
        config
    }

    /// Folder of the NVMe tier.
    #[must_use]
    pub fn nvme_dir(&self) -> PathBuf {
        nvme_dir(&self.data_dir)
    }
}

fn nvme_dir(data_dir: &Path) -> PathBuf {
    data_dir.join("nvme")
}

impl Limits {
    fn resolve(config: &LimitsConfig) -> Result<Self> {
        Ok(Self {
            inflight_bytes_max: budget("limits.inflight_bytes", config.inflight_bytes, 1 << 30, 16 << 20)?,
            inflight_requests_max: count("limits.inflight_requests", config.inflight_requests, 1024)?,
            connections_max: count("limits.connections", config.connections, 4096)?,
            body_rate_min: config.body_rate.map_or(4 << 10, |size| size.0),
            lake_requests_max: count("limits.lake_requests", config.lake_requests, 64)?,
            lake_patience: config
                .lake_patience
                .map_or(Duration::from_secs(300), |period| period.0),
            request_patience: config
                .request_patience
                .map_or(Duration::from_secs(10), |period| period.0),
            read_ahead_bytes_max: config.read_ahead.map_or(64 << 20, |size| size.0),
            write_fill_bytes_max: config.write_fill.map_or(1 << 30, |size| size.0),
            scrub_period: config
                .scrub_period
                .map_or(Duration::from_secs(3600), |period| period.0),
            warm_parallel_max: count("limits.warm_parallel", config.warm_parallel, 8)?,
            jobs_running_max: count("limits.jobs", config.jobs, 16)?,
        })
    }

    fn to_config(&self) -> LimitsConfig {
        LimitsConfig {
            inflight_bytes: Some(Size(self.inflight_bytes_max)),
            inflight_requests: Some(self.inflight_requests_max),
            connections: Some(self.connections_max),
            body_rate: Some(Size(self.body_rate_min)),
            lake_requests: Some(self.lake_requests_max),
            lake_patience: Some(Period(self.lake_patience)),
            request_patience: Some(Period(self.request_patience)),
            read_ahead: Some(Size(self.read_ahead_bytes_max)),
            write_fill: Some(Size(self.write_fill_bytes_max)),
            scrub_period: Some(Period(self.scrub_period)),
            warm_parallel: Some(self.warm_parallel_max),
            jobs: Some(self.jobs_running_max),
            ..LimitsConfig::default()
        }
    }
}

impl BucketSettings {
    fn to_config(&self) -> BucketConfig {
        BucketConfig {
            name: self.name.to_string(),
            lake: self.lake.as_ref().map(|lake| lake.shown().to_owned()),
            consistency: Some(Freshness(self.consistency)),
            public_read: self.public_read,
            allow_uids: self
                .allow_uids
                .as_ref()
                .map(|uids| uids.iter().copied().map(Uid).collect()),
        }
    }
}

fn wrong(setting: &'static str, message: impl Into<String>) -> Error {
    Error::new(Kind::InvalidInput, message).with("setting", setting)
}

fn budget(setting: &'static str, said: Option<Size>, default: u64, min: u64) -> Result<u64> {
    match said {
        None => Ok(default.max(min)),
        Some(size) if size.0 < min => Err(wrong(
            setting,
            format!("{size} is too little; give at least {}", Size(min)),
        )),
        Some(size) => Ok(size.0),
    }
}

fn nvme_budget(said: Option<Size>, machine: &Machine) -> Result<u64> {
    match said {
        Some(Size(0)) => Ok(0),
        Some(size) => budget("nvme", Some(size), 0, NVME_BYTES_MIN),
        // A nearly full disk gets no tier rather than an error: the node works without one.
        None => Ok(Some(NVME_BYTES_DEFAULT_MAX.min(machine.disk_bytes / 2))
            .filter(|b| *b >= NVME_BYTES_MIN)
            .unwrap_or(0)),
    }
}

fn count(setting: &'static str, said: Option<usize>, default: usize) -> Result<usize> {
    match said {
        Some(0) => Err(wrong(setting, "must be at least 1")),
        Some(count) if count > 1_000_000 => {
            Err(wrong(setting, format!("{count} is too many; at most 1000000")))
        }
        other => Ok(other.unwrap_or(default)),
    }
}

fn region(said: Option<String>) -> Result<String> {
    let region = said.unwrap_or_else(|| "us-east-1".into());
    let is_fine = !region.is_empty() && region.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'-');
    if is_fine {
        Ok(region)
    } else {
        Err(wrong(
            "region",
            format!("'{region}' is not a region; write for example us-east-1"),
        ))
    }
}

fn origins(cors: CorsConfig) -> Result<Vec<String>> {
    let origins = cors.origins.unwrap_or_default();
    for origin in &origins {
        let is_fine = origin == "*"
            || url::Url::parse(origin).is_ok_and(|url| {
                matches!(url.scheme(), "http" | "https") && url.path() == "/" && !origin.ends_with('/')
            });
        if !is_fine {
            let message = format!("'{origin}' is not an origin; write for example https://lab.example.org");
            return Err(wrong("cors.origins", message));
        }
    }
    Ok(origins)
}

fn buckets(said: Vec<BucketConfig>, consistency: Consistency) -> Result<Vec<BucketSettings>> {
    let mut buckets: Vec<BucketSettings> = Vec::new();
    for bucket in said {
        let name = BucketName::new(&bucket.name).map_err(|error| error.with("setting", "bucket.name"))?;
        if buckets.iter().any(|other| other.name == name) {
            return Err(wrong("bucket.name", "the same bucket is there twice").with("bucket", name));
        }
        let lake = bucket.lake.as_deref().map(LakeUrl::parse).transpose();
        buckets.push(BucketSettings {
            lake: lake.map_err(|error| error.with("setting", "bucket.lake").with("bucket", &name))?,
            consistency: bucket.consistency.map_or(consistency, |freshness| freshness.0),
            public_read: bucket.public_read,
            allow_uids: bucket
                .allow_uids
                .map(|uids| uids.iter().map(|uid| uid.0).collect()),
            name,
        });
    }
    Ok(buckets)
}
