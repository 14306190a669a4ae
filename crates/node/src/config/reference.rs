//! Every setting: key in the file, environment variable, default, meaning. The reference page is made from
//! this table, and tests compare it with the schema, so none can be forgotten.

use forebay_core::{Error, Kind, Result};

/// Sets the id of the first access key.
pub const ACCESS_KEY_ID: &str = "FOREBAY_ACCESS_KEY_ID";
/// Sets the secret of the first access key.
pub const SECRET_ACCESS_KEY: &str = "FOREBAY_SECRET_ACCESS_KEY";

/// One setting.
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    /// Its key in `forebay.toml`, with the table in front.
    pub key: &'static str,
    /// Its environment variable; empty if it has none.
    pub env: &'static str,
    /// Form of a value.
    pub shape: Shape,
    /// Value when nothing is set.
    pub default: &'static str,
    /// Effect.
    pub help: &'static str,
}

/// Form of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// Any text, also sizes (`4GiB`) and times (`5s`).
    Text,
    /// A whole number.
    Number,
    /// `true` or `false`.
    Switch,
    /// A list; in the environment separated by commas.
    List,
}

impl Shape {
    /// The value of an environment variable as the file would have it.
    pub(super) fn value(self, text: &str, variable: &'static str) -> Result<toml::Value> {
        let wrong = |what: &str| {
            Error::new(Kind::InvalidInput, format!("'{text}' is not {what}")).with("variable", variable)
        };
        match self {
            Self::Text => Ok(text.into()),
            Self::Number => text
                .parse::<i64>()
                .map(Into::into)
                .map_err(|_| wrong("a whole number")),
            Self::Switch => text
                .parse::<bool>()
                .map(Into::into)
                .map_err(|_| wrong("true or false")),
            Self::List => Ok(text
                .split(',')
                .map(|item| item.trim().to_owned())
                .collect::<Vec<_>>()
                .into()),
        }
    }
}

macro_rules! settings {
    ($($key:literal, $env:literal, $shape:ident, $default:literal, $help:literal;)+) => {
        &[$(Setting { key: $key, env: $env, shape: Shape::$shape, default: $default, help: $help }),+]
    };
}

/// All settings that have one value.
pub const SETTINGS: &[Setting] = settings! {
    "lake", "FOREBAY_LAKE", Text, "<data>/lake",
        "The lake whose top-level folders are buckets: a folder, file:///path, s3://bucket[/prefix], gs://bucket, az://container or memory://. Credentials come from the usual environment variables and files, never from the URL.";
    "data", "FOREBAY_DATA", Text, "./forebay-data",
        "Folder for the NVMe tier, the key file and, unless `lake` is set, the lake.";
    "ram", "FOREBAY_RAM", Text, "a quarter of the memory, at most 4GiB",
        "Budget of the RAM tier.";
    "nvme", "FOREBAY_NVME", Text, "half of the free disk, at most 100GiB",
        "Budget of the NVMe tier; 0 switches it off.";
    "s3", "FOREBAY_S3", Text, "127.0.0.1:9000",
        "Address of the S3 endpoint; port 0 takes a free one, `off` opens none.";
    "admin", "FOREBAY_ADMIN", Text, "127.0.0.1:9001",
        "Address of the admin API; anywhere but on loopback it asks for the bearer token in `<data>/keys.toml`; `off` opens none.";
    "socket", "FOREBAY_SOCKET", Text, "$XDG_RUNTIME_DIR/forebay.sock",
        "Unix socket for clients on this host (shared memory, no copies); without XDG_RUNTIME_DIR it is `/run/user/<uid>/forebay.sock` or `$TMPDIR/forebay-<uid>/forebay.sock`; `off` opens none.";
    "allow_uid", "FOREBAY_ALLOW_UID", List, "none",
        "User ids, besides the node's own, whose processes may use the socket: they may read and write all buckets that have no `allow_uids` of their own.";
    "staging", "FOREBAY_STAGING", Text, "half of `ram`",
        "Memory for what clients on this host write; a full one makes them wait, and no object larger than it can be written through the socket.";
    "s3_domain", "FOREBAY_S3_DOMAIN", Text, "none: path-style requests only",
        "The host name of the S3 endpoint, without a port: requests to `<bucket>.<name>` are virtual-hosted. Without it, those whose host begins with the name of a bucket are refused.";
    "region", "FOREBAY_REGION", Text, "us-east-1",
        "The region that clients sign their requests for.";
    "consistency", "FOREBAY_CONSISTENCY", Text, "5s",
        "How fresh reads are: `immutable` (never asked again), a time like `5s` (asked again when older), or `always`.";
    "shutdown", "FOREBAY_SHUTDOWN", Text, "10s",
        "How long running requests may take to finish when the node is told to stop.";
    "tls.cert", "FOREBAY_TLS_CERT", Text, "none: plain HTTP",
        "PEM file with the certificate of the S3 endpoint and the admin API, then the intermediate ones; with `tls.key` both speak TLS. Taken anew when the file changes.";
    "tls.key", "FOREBAY_TLS_KEY", Text, "none",
        "PEM file with its private key, not encrypted.";
    "tls.client_ca", "FOREBAY_TLS_CLIENT_CA", Text, "none",
        "PEM file with the authorities of client certificates; where it is set, nobody connects to the S3 endpoint or the admin API without one.";
    "cluster.name", "FOREBAY_CLUSTER", Text, "none: the node is alone",
        "Name of the cluster: nodes of one name, one lake and the same keys share what they have cached. Lower case letters, digits and `-`.";
    "cluster.peer", "FOREBAY_PEER", Text, "127.0.0.1:9002",
        "Address at which other nodes reach this one, by TCP and UDP on one port number; port 0 takes a free one. Anywhere but on loopback it needs `cluster.keys`.";
    "cluster.join", "FOREBAY_JOIN", List, "none: the first node joins nobody",
        "Nodes to begin with, as `host:port`, or `dns:name[:port]` for all addresses of a name, which is asked again every minute.";
    "cluster.weight", "FOREBAY_WEIGHT", Number, "16 for each GiB of `ram` and `nvme` together",
        "Share of the cached data that this node owns, against the weights of the others.";
    "cluster.keys", "FOREBAY_CLUSTER_KEYS", Text, "none: loopback only",
        "Folder with the keys of the cluster, made by `forebay cluster init`. With it nodes speak TLS to each other and know each other by certificate.";
    "cluster.silence", "FOREBAY_PEER_SILENCE", Text, "500ms",
        "Silence of another node after which a reader asks the next one, then the lake. A node that waits for the lake is not silent.";
    "log.format", "FOREBAY_LOG_FORMAT", Text, "human",
        "`human` or `json`.";
    "log.filter", "FOREBAY_LOG", Text, "info",
        "What is logged, as in `info` or `forebay_lake=debug,info`.";
    "log.access", "FOREBAY_LOG_ACCESS", Switch, "true",
        "Whether every S3 request gets a line: who, what, how many bytes, from which tier.";
    "limits.inflight_bytes", "FOREBAY_LIMITS_INFLIGHT_BYTES", Text, "1GiB",
        "Bytes of request bodies and answers in flight at the S3 endpoint; beyond it clients get 503 SlowDown.";
    "limits.inflight_requests", "FOREBAY_LIMITS_INFLIGHT_REQUESTS", Number, "1024",
        "Requests in flight at the S3 endpoint; beyond it clients get 503 SlowDown. One key, and one address, gets three quarters of this and of the bytes at most, less while others are there.";
    "limits.connections", "FOREBAY_LIMITS_CONNECTIONS", Number, "4096",
        "Open connections of the S3 endpoint. When all are open the oldest idle one is closed; one address gets three quarters at most.";
    "limits.body_rate", "FOREBAY_LIMITS_BODY_RATE", Text, "4KiB",
        "Bytes a second that a client has to send or take of a body whenever the node waits for it, after a minute's grace; 0 is satisfied with any byte in a minute.";
    "limits.lake_requests", "FOREBAY_LIMITS_LAKE_REQUESTS", Number, "64",
        "Requests in flight to one lake, of every kind; bodies that a client sends part by part are not counted, because they come at its pace.";
    "limits.lake_patience", "FOREBAY_LIMITS_LAKE_PATIENCE", Text, "5m",
        "How long a request waits for a lake that throttles or is away before it fails: readers on this host, loaders, jobs, saves. They go on by themselves when the lake is back.";
    "limits.request_patience", "FOREBAY_LIMITS_REQUEST_PATIENCE", Text, "10s",
        "How long a request at the S3 endpoint waits for a lake that throttles or is away; then the client gets 503 with Retry-After.";
    "limits.read_ahead", "FOREBAY_LIMITS_READ_AHEAD", Text, "64MiB",
        "How far read-ahead may run in front of one sequential reader; 0 switches it off.";
    "limits.write_fill", "FOREBAY_LIMITS_WRITE_FILL", Text, "1GiB",
        "The largest object that a write also puts into the cache.";
    "limits.scrub_period", "FOREBAY_LIMITS_SCRUB_PERIOD", Text, "1h",
        "Every block in RAM is checked again within this time; 0s switches the scrub off.";
    "limits.warm_parallel", "FOREBAY_LIMITS_WARM_PARALLEL", Number, "8",
        "Objects that a warm job reads at once.";
    "limits.jobs", "FOREBAY_LIMITS_JOBS", Number, "16",
        "Jobs that run at once.";
    "limits.lease_timeout", "FOREBAY_LIMITS_LEASE_TIMEOUT", Text, "1h",
        "A view that a client on this host holds longer stays valid, but its memory leaves the cache and is no longer the node's; 0s never takes it away.";
    "limits.client_lease_bytes", "FOREBAY_LIMITS_CLIENT_LEASE_BYTES", Text, "half of `ram`",
        "Bytes of the RAM tier that one client on this host may hold; beyond it views are copies.";
    "limits.client_connections", "FOREBAY_LIMITS_CLIENT_CONNECTIONS", Number, "1024",
        "Open connections of the socket.";
    "limits.save_age", "FOREBAY_LIMITS_SAVE_AGE", Text, "30m",
        "While a save of a step has been staged longer than this and is not durable, further saves are answered with busy; 0s never refuses.";
    "limits.save_disk", "FOREBAY_LIMITS_SAVE_DISK", Text, "half of what the disk of `data` has free at start",
        "What saves with `staged=\"nvme\"` may take on disk together; a full one makes trainers wait until older saves are durable. The other half is left to the NVMe tier and the lake, where that is a folder here.";
    "cors.origins", "FOREBAY_CORS_ORIGINS", List, "none",
        "Origins whose web pages may use the S3 endpoint, for example https://lab.example.org.";
};

/// Keys of a `[[bucket]]`: key, default, meaning.
pub const BUCKET_KEYS: &[(&str, &str, &str)] = &[
    ("name", "required", "The name that clients use."),
    (
        "lake",
        "the folder of this name in the default lake",
        "The lake URL whose root is the bucket: many lakes behind one door.",
    ),
    ("consistency", "as above", "How fresh reads are in this bucket."),
    (
        "public_read",
        "false",
        "Whether anybody may read and list the bucket without a key.",
    ),
    (
        "allow_uids",
        "the node's user and `allow_uid`",
        "User ids that may use the bucket through the socket, besides the node's own. Its bytes lie in memory of their own, which no other process can map.",
    ),
];

/// Keys of a `[[key]]`: key, default, meaning.
pub const KEY_KEYS: &[(&str, &str, &str)] = &[
    ("id", "required", "The access key id."),
    ("secret", "this or `secret_file`", "The secret access key itself."),
    (
        "secret_file",
        "this or `secret`",
        "A file that holds the secret access key.",
    ),
    ("access", "read-write", "`read-only` or `read-write`."),
    ("buckets", "all", "A list of the buckets that the key may use."),
];
