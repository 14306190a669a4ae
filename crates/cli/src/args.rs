//! Arguments of the command. Help texts are the first lines of the comments here.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use forebay_net::ClientTls;
use forebay_node::config::LogFormat;
use forebay_node::value::{Freshness, Period, Size, Uid};

use crate::ckpt::args::CkptArgs;
use crate::dataset::args::DatasetArgs;
use crate::mount::args::{MountArgs, UmountArgs};
use crate::objects::location::Location;

/// The storage layer between a data lake and AI accelerators
#[derive(Debug, Parser)]
#[command(
    name = "forebay",
    version,
    propagate_version = true,
    disable_help_subcommand = true,
    arg_required_else_help = true
)]
#[command(
    after_help = "Exit codes: 0 ok, 1 failure, 2 wrong usage or configuration.\nColours are off with NO_COLOR=1."
)]
pub(crate) struct Cli {
    /// Print JSON instead of text
    #[arg(long, global = true)]
    pub(crate) json: bool,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// All commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a node
    Serve(ServeArgs),
    /// Show how a node is: tiers, hit rates, lake traffic, what is in flight
    Status(NodeArgs),
    /// Show the effective configuration
    Config(ConfigArgs),
    /// List and make buckets
    Bucket(BucketArgs),
    /// Warm, evict, pin and unpin what is cached
    Cache(CacheArgs),
    /// List jobs, show, wait for and stop one
    Jobs(JobsArgs),
    /// Index, look into, sign, verify, pack and split datasets
    Dataset(DatasetArgs),
    /// List, look into, verify, compare, export and remove steps of training runs
    Ckpt(CkptArgs),
    /// Show the nodes of the cluster, as one of them sees them
    Nodes(NodeArgs),
    /// Make the keys of a cluster
    Cluster(ClusterArgs),
    /// Show a bucket as a folder
    Mount(MountArgs),
    /// Unmount a folder, also one whose process is dead
    Umount(UmountArgs),
    /// Check this machine and the lake, and say what each finding means
    Doctor(DoctorArgs),
    /// List objects
    Ls(LsArgs),
    /// Copy objects
    Cp(CpArgs),
    /// Write objects to standard output
    Cat(CatArgs),
    /// Remove objects
    Rm(RmArgs),
    /// Show everything known about an object
    Stat(StatArgs),
    /// Add up sizes
    Du(DuArgs),
    /// Write the reference pages
    #[command(hide = true)]
    Docs(DocsArgs),
}

/// Settings of a node; each wins over its environment variable, which wins over the file.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct SettingsArgs {
    /// The lake: a folder, file:///path, s3://bucket[/prefix], gs://bucket, az://container, memory:// [env:
    /// FOREBAY_LAKE]
    #[arg(long, value_name = "URL")]
    pub(crate) lake: Option<String>,
    /// Folder for the tiers and the keys [env: FOREBAY_DATA] [default: ./forebay-data]
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
    /// Budget of the RAM tier [env: FOREBAY_RAM] [default: a quarter of the memory, at most 4GiB]
    #[arg(long, value_name = "SIZE")]
    pub(crate) ram: Option<Size>,
    /// Budget of the NVMe tier, 0 is off [env: FOREBAY_NVME] [default: half of the free disk, at most 100GiB]
    #[arg(long, value_name = "SIZE")]
    pub(crate) nvme: Option<Size>,
    /// Where the S3 endpoint listens, or off [env: FOREBAY_S3] [default: 127.0.0.1:9000]
    #[arg(long, value_name = "ADDR")]
    pub(crate) s3: Option<String>,
    /// Where the admin API listens, or off [env: FOREBAY_ADMIN] [default: 127.0.0.1:9001]
    #[arg(long, value_name = "ADDR")]
    pub(crate) admin: Option<String>,
    /// Certificate of both, a PEM file: they then speak TLS [env: FOREBAY_TLS_CERT]
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// Its private key [env: FOREBAY_TLS_KEY]
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Authorities of client certificates, which are then required [env: FOREBAY_TLS_CLIENT_CA]
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_client_ca: Option<PathBuf>,
    /// Socket for clients on this host, or off [env: FOREBAY_SOCKET] [default: $XDG_RUNTIME_DIR/forebay.sock]
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<String>,
    /// Another user whose processes may use the socket; may be given several times [env: FOREBAY_ALLOW_UID]
    #[arg(long, value_name = "UID", value_delimiter = ',')]
    pub(crate) allow_uid: Vec<Uid>,
    /// Memory for what clients on this host write [env: FOREBAY_STAGING] [default: half of the RAM tier]
    #[arg(long, value_name = "SIZE")]
    pub(crate) staging: Option<Size>,
    /// Region that clients sign for [env: FOREBAY_REGION] [default: us-east-1]
    #[arg(long, value_name = "NAME")]
    pub(crate) region: Option<String>,
    /// How fresh reads are: immutable, always or a time [env: FOREBAY_CONSISTENCY] [default: 5s]
    #[arg(long, value_name = "WHEN")]
    pub(crate) consistency: Option<Freshness>,
    /// How long a shutdown may take [env: FOREBAY_SHUTDOWN] [default: 10s]
    #[arg(long, value_name = "TIME")]
    pub(crate) shutdown: Option<Period>,
    /// Name of the cluster that this node is in [env: FOREBAY_CLUSTER]
    #[arg(long, value_name = "NAME")]
    pub(crate) cluster: Option<String>,
    /// Where other nodes reach this one [env: FOREBAY_PEER] [default: 127.0.0.1:9002]
    #[arg(long, value_name = "ADDR")]
    pub(crate) peer: Option<String>,
    /// A node to begin with, host:port or dns:name; may be given several times [env: FOREBAY_JOIN]
    #[arg(long, value_name = "NODE", value_delimiter = ',')]
    pub(crate) join: Vec<String>,
    /// Share of the cached data that this node owns [env: FOREBAY_WEIGHT] [default: by RAM and NVMe tier]
    #[arg(long, value_name = "NUMBER")]
    pub(crate) weight: Option<u32>,
    /// Folder with the keys of the cluster, needed beyond loopback [env: FOREBAY_CLUSTER_KEYS]
    #[arg(long, value_name = "DIR")]
    pub(crate) cluster_keys: Option<PathBuf>,
    /// How log lines look: human or json [env: FOREBAY_LOG_FORMAT] [default: human]
    #[arg(long, value_name = "FORMAT", value_parser = log_format)]
    pub(crate) log_format: Option<LogFormat>,
    /// What is logged [env: FOREBAY_LOG] [default: info]
    #[arg(long, value_name = "FILTER")]
    pub(crate) log: Option<String>,
    /// A configuration file; see docs/reference/config.md
    #[arg(long, value_name = "FILE", env = "FOREBAY_CONFIG", hide_env_values = true)]
    pub(crate) config: Option<PathBuf>,
}

/// Keys of a cluster.
#[derive(Debug, Args)]
pub(crate) struct ClusterArgs {
    #[command(subcommand)]
    pub(crate) verb: ClusterVerb,
}

/// Verbs of `forebay cluster`.
#[derive(Debug, Subcommand)]
pub(crate) enum ClusterVerb {
    /// Make the keys of a cluster in a new folder, and say what other hosts need
    Init {
        /// The folder
        #[arg(value_name = "DIR", default_value = "forebay-cluster-keys")]
        folder: PathBuf,
    },
}

fn log_format(text: &str) -> Result<LogFormat, String> {
    match text {
        "human" => Ok(LogFormat::Human),
        "json" => Ok(LogFormat::Json),
        _ => Err("write human or json".into()),
    }
}

#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    pub(crate) settings: SettingsArgs,
    /// Write the addresses as JSON to this file when the node is ready
    #[arg(long, value_name = "FILE")]
    pub(crate) ready_file: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct ConfigArgs {
    #[command(subcommand)]
    pub(crate) verb: ConfigVerb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigVerb {
    /// Print the effective configuration, secrets hidden
    Show(Box<SettingsArgs>),
}

/// Node to talk to.
#[derive(Debug, Clone, Args)]
pub(crate) struct NodeArgs {
    /// The node's admin API [default: http://127.0.0.1:9001]
    #[arg(long, value_name = "URL", env = "FOREBAY_ADMIN", hide_env_values = true)]
    pub(crate) admin: Option<String>,
    /// The node's data folder, where its key file lies
    #[arg(
        long,
        value_name = "DIR",
        env = "FOREBAY_DATA",
        hide_env_values = true,
        default_value = "./forebay-data"
    )]
    pub(crate) data: PathBuf,
    #[command(flatten)]
    pub(crate) tls: TlsArgs,
}

/// Trust and identity towards a node at `https://`.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct TlsArgs {
    /// Trust this CA (a PEM file) at https:// addresses, instead of those of the machine [env: FOREBAY_CA]
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Client certificate, for a node that asks for one [env: FOREBAY_CLIENT_CERT]
    #[arg(long, value_name = "FILE", requires = "client_key")]
    client_cert: Option<PathBuf>,
    /// Its private key [env: FOREBAY_CLIENT_KEY]
    #[arg(long, value_name = "FILE", requires = "client_cert")]
    client_key: Option<PathBuf>,
}

impl TlsArgs {
    /// Settings as typed, over those of the environment.
    pub(crate) fn client(&self) -> ClientTls {
        let typed = ClientTls {
            ca: self.ca.clone(),
            cert: self.client_cert.clone(),
            key: self.client_key.clone(),
        };
        typed.or_environment()
    }
}

#[derive(Debug, Args)]
pub(crate) struct BucketArgs {
    #[command(subcommand)]
    pub(crate) verb: BucketVerb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum BucketVerb {
    /// List the buckets of a node
    Ls(EndpointArgs),
    /// Make a bucket
    Create {
        /// Its name
        name: String,
        #[command(flatten)]
        endpoint: EndpointArgs,
    },
}

#[derive(Debug, Args)]
pub(crate) struct CacheArgs {
    #[command(subcommand)]
    pub(crate) verb: CacheVerb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum CacheVerb {
    /// Read everything below a prefix into the cache
    Warm(CacheTarget),
    /// Drop what is cached below a prefix
    Evict(CacheTarget),
    /// Keep what is and will be cached below a prefix
    Pin(CacheTarget),
    /// End a pin
    Unpin(CacheTarget),
}

#[derive(Debug, Args)]
pub(crate) struct CacheTarget {
    /// What: bucket, bucket/prefix or forebay://bucket/prefix
    pub(crate) prefix: String,
    /// Wait for the job to end
    #[arg(long)]
    pub(crate) wait: bool,
    #[command(flatten)]
    pub(crate) node: NodeArgs,
}

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct JobsArgs {
    #[command(subcommand)]
    pub(crate) verb: Option<JobsVerb>,
    #[command(flatten)]
    pub(crate) node: NodeArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum JobsVerb {
    /// Show one job
    Show(JobTarget),
    /// Wait for a job to end; fails if the job did
    Wait(JobTarget),
    /// Tell a job to stop
    Stop(JobTarget),
}

#[derive(Debug, Args)]
pub(crate) struct JobTarget {
    /// The id of the job
    pub(crate) id: String,
    #[command(flatten)]
    pub(crate) node: NodeArgs,
}

#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    pub(crate) settings: SettingsArgs,
}

/// Route from `forebay://` to its node.
#[derive(Debug, Clone, Args)]
pub(crate) struct EndpointArgs {
    /// The node for forebay:// locations and buckets: its socket, or http://host:port [env: FOREBAY_NODE]
    /// [default: this user's node on this host]
    #[arg(id = "node", long = "node", value_name = "ADDR", conflicts_with = "endpoint")]
    pub(crate) node_address: Option<String>,
    /// Go by the node's S3 endpoint, with keys of FOREBAY_ACCESS_KEY_ID and FOREBAY_SECRET_ACCESS_KEY or of
    /// its key file [env: FOREBAY_S3] [default: http://127.0.0.1:9000 if there is no socket]
    #[arg(long, value_name = "URL")]
    pub(crate) endpoint: Option<String>,
    /// The region to sign for
    #[arg(
        long,
        value_name = "NAME",
        env = "FOREBAY_REGION",
        hide_env_values = true,
        default_value = "us-east-1"
    )]
    pub(crate) region: String,
    #[command(flatten)]
    pub(crate) node: NodeArgs,
}

#[derive(Debug, Args)]
pub(crate) struct LsArgs {
    /// forebay://[bucket[/prefix]], a lake URL, or a folder
    pub(crate) location: Location,
    /// Everything below, not one level
    #[arg(short, long)]
    pub(crate) recursive: bool,
    #[command(flatten)]
    pub(crate) endpoint: EndpointArgs,
}

#[derive(Debug, Args)]
pub(crate) struct CpArgs {
    /// From: forebay://bucket/key, a lake URL, or a path
    pub(crate) source: Location,
    /// To: forebay://bucket/key, a lake URL, or a path; one that ends with / keeps the name
    pub(crate) target: Location,
    /// Copy everything below the source
    #[arg(short, long)]
    pub(crate) recursive: bool,
    /// Say what would be done, do nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Copy also what is there already with the same size and date
    #[arg(long)]
    pub(crate) force: bool,
    /// How many objects (or parts of one large object) to copy at once
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) parallel: u16,
    #[command(flatten)]
    pub(crate) endpoint: EndpointArgs,
}

#[derive(Debug, Args)]
pub(crate) struct CatArgs {
    /// Objects or files
    #[arg(required = true)]
    pub(crate) locations: Vec<Location>,
    #[command(flatten)]
    pub(crate) endpoint: EndpointArgs,
}

#[derive(Debug, Args)]
pub(crate) struct RmArgs {
    /// What to remove
    pub(crate) location: Location,
    /// Remove everything below
    #[arg(short, long)]
    pub(crate) recursive: bool,
    /// Really do it; needed with --recursive
    #[arg(long)]
    pub(crate) yes: bool,
    /// Say what would be removed, do nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// How many objects to remove at once
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) parallel: u16,
    #[command(flatten)]
    pub(crate) endpoint: EndpointArgs,
}

#[derive(Debug, Args)]
pub(crate) struct StatArgs {
    /// An object or file
    pub(crate) location: Location,
    #[command(flatten)]
    pub(crate) endpoint: EndpointArgs,
}

#[derive(Debug, Args)]
pub(crate) struct DuArgs {
    /// What to add up
    pub(crate) location: Location,
    #[command(flatten)]
    pub(crate) endpoint: EndpointArgs,
}

#[derive(Debug, Args)]
pub(crate) struct DocsArgs {
    /// Folder of the reference pages
    pub(crate) dir: PathBuf,
    /// Write nothing; fail if a page is not current
    #[arg(long)]
    pub(crate) check: bool,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;
    use forebay_node::config::reference::SETTINGS;

    use super::*;

    #[test]
    fn the_arguments_make_sense_to_the_parser() {
        Cli::command().debug_assert();
    }

    /// A flag of `serve` says which variable it wins over, and that variable exists.
    #[test]
    fn every_setting_flag_names_its_variable() {
        let cli = Cli::command();
        let serve = cli.find_subcommand("serve").unwrap();
        for flag in serve.get_arguments().filter(|arg| {
            !matches!(
                arg.get_id().as_str(),
                "json" | "config" | "ready_file" | "help" | "version"
            )
        }) {
            let help = flag.get_help().unwrap().to_string();
            let variable = help
                .split("[env: ")
                .nth(1)
                .and_then(|rest| rest.split(']').next())
                .unwrap();
            assert!(
                SETTINGS.iter().any(|setting| setting.env == variable),
                "{variable}"
            );
        }
    }
}
