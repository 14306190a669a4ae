//! Every metric: name, unit, help, labels, and where its value comes from.
//!
//! Most values are read when somebody scrapes: the reservoir and the lakes count for themselves, and a
//! [`Snapshot`] of their counters becomes samples. Only what nobody else counts (S3 requests) is recorded
//! here. The names on the wire are `forebay_<name>[_<unit>][_total]`; `docs/reference/metrics.md` is made
//! from [`all`]. Labels have few values on purpose: no key, no client, no path is ever a label.

use std::fmt;
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

mod snapshot;
#[cfg(test)]
mod tests;

pub use snapshot::{ClusterSnapshot, LakeSnapshot, Snapshot};

const PREFIX: &str = "forebay";

/// Counter, gauge or histogram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricKind {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts by size class.
    Histogram,
}

/// One metric.
#[derive(Debug, Clone, Copy)]
pub struct Metric {
    /// Its name without prefix, unit and `_total`.
    pub name: &'static str,
    /// Type of the metric.
    pub kind: MetricKind,
    /// `bytes`, `seconds` or nothing.
    pub unit: &'static str,
    /// Its labels with their values.
    pub labels: &'static str,
    /// Help text.
    pub help: &'static str,
}

impl Metric {
    /// The name on the wire.
    #[must_use]
    pub fn wire_name(&self) -> String {
        let unit = if self.unit.is_empty() {
            String::new()
        } else {
            format!("_{}", self.unit)
        };
        let total = if self.kind == MetricKind::Counter {
            "_total"
        } else {
            ""
        };
        format!("forebay_{}{unit}{total}", self.name)
    }

    fn unit(&self) -> Option<Unit> {
        match self.unit {
            "bytes" => Some(Unit::Bytes),
            "seconds" => Some(Unit::Seconds),
            _ => None,
        }
    }
}

type Labels = Vec<(&'static str, String)>;
type Samples = Vec<(Labels, u64)>;

/// A metric that is read from a snapshot.
struct Read {
    metric: Metric,
    samples: fn(&Snapshot) -> Samples,
}

macro_rules! reads {
    ($($kind:ident $name:literal $unit:literal $labels:literal $help:literal = $samples:expr;)+) => {
        &[$(Read {
            metric: Metric { name: $name, kind: MetricKind::$kind, unit: $unit, labels: $labels, help: $help },
            samples: $samples,
        }),+]
    };
}

fn one(value: u64) -> Samples {
    vec![(Labels::new(), value)]
}

fn by<const N: usize>(label: &'static str, values: [(&str, u64); N]) -> Samples {
    values
        .into_iter()
        .map(|(name, value)| (vec![(label, name.to_owned())], value))
        .collect()
}

fn by_lake(snapshot: &Snapshot, value: impl Fn(&LakeSnapshot) -> u64) -> Samples {
    snapshot
        .lakes
        .iter()
        .map(|lake| (vec![("lake", lake.url.clone())], value(lake)))
        .collect()
}

fn lake_requests(snapshot: &Snapshot) -> Samples {
    let samples = snapshot.lakes.iter().flat_map(|lake| {
        lake.requests.iter().map(|(operation, outcome, count)| {
            let labels = vec![
                ("lake", lake.url.clone()),
                ("operation", (*operation).to_owned()),
                ("outcome", (*outcome).to_owned()),
            ];
            (labels, *count)
        })
    });
    samples.collect()
}

fn ipc_requests(snapshot: &Snapshot) -> Samples {
    let kinds = snapshot.ipc.requests.iter();
    kinds
        .map(|(kind, count)| (vec![("kind", (*kind).to_owned())], *count))
        .collect()
}

const READS: &[Read] = reads! {
    Counter "lake_read" "bytes" "lake" "Bytes that the lake sent us."
        = |s| by_lake(s, |lake| lake.read_bytes);
    Counter "lake_written" "bytes" "lake" "Bytes that we sent to the lake."
        = |s| by_lake(s, |lake| lake.written_bytes);
    Counter "lake_requests" "" "lake, operation, outcome" "Requests to the lake; the outcome is ok or the kind of error."
        = lake_requests;
    Gauge "lake_up" "" "lake" "1 if the lake answered when it was last asked."
        = |s| by_lake(s, |lake| u64::from(lake.up));
    Counter "lake_refused" "" "lake" "Requests that the lake refused because there were too many (429, SlowDown); they are sent again at a slower pace."
        = |s| by_lake(s, |lake| lake.refused);
    Counter "lake_outages" "" "lake" "Times that the lake could not be reached or did not answer anybody."
        = |s| by_lake(s, |lake| lake.outages);
    Gauge "lake_waiting_requests" "" "lake" "Requests that wait because the lake throttles or is away."
        = |s| by_lake(s, |lake| lake.waiting);
    Counter "served" "bytes" "source=ram|nvme|peer|lake" "Bytes handed to readers, by where they came from."
        = |s| by("source", [("ram", s.reservoir.served_ram_bytes), ("nvme", s.reservoir.served_nvme_bytes), ("peer", s.reservoir.served_peer_bytes), ("lake", s.reservoir.served_lake_bytes)]);
    Counter "fetched" "bytes" "reason=demand|read_ahead" "Bytes that the cache asked from the lake, by why."
        = |s| by("reason", [("demand", s.reservoir.fetched_demand_bytes), ("read_ahead", s.reservoir.fetched_read_ahead_bytes)]);
    Gauge "cluster_nodes" "" "" "Nodes of the cluster that this one sees, itself included; 0 without a cluster."
        = |s| one(s.cluster.nodes);
    Counter "peer_received" "bytes" "" "Bytes of blocks that other nodes sent to this one."
        = |s| one(s.cluster.received_bytes);
    Counter "peer_sent" "bytes" "" "Bytes of blocks that this node sent to others."
        = |s| one(s.cluster.sent_bytes);
    Counter "peer_fallbacks" "" "reason=unreachable|silent|damaged|failed|refused|not_shared" "Requests to other nodes that did not get what they asked for, by why; the next node or the lake was asked."
        = |s| s.cluster.fallbacks.iter().map(|(reason, count)| (vec![("reason", (*reason).to_owned())], *count)).collect();
    Gauge "tier_used" "bytes" "tier=ram|nvme" "Bytes of page data in a tier."
        = |s| by("tier", [("ram", s.reservoir.ram_used_bytes), ("nvme", s.reservoir.nvme_used_bytes)]);
    Gauge "tier_budget" "bytes" "tier=ram|nvme" "The most that a tier may hold."
        = |s| by("tier", [("ram", s.ram_budget_bytes), ("nvme", s.nvme_budget_bytes)]);
    Gauge "tier_pages" "" "tier=ram|nvme" "Pages in a tier."
        = |s| by("tier", [("ram", s.reservoir.ram_pages), ("nvme", s.reservoir.nvme_pages)]);
    Gauge "ram_held" "bytes" "" "Memory held by the segments of the RAM tier."
        = |s| one(s.reservoir.ram_held_bytes);
    Gauge "pinned" "bytes" "" "Bytes that may not be evicted because they are pinned."
        = |s| one(s.reservoir.pinned_bytes);
    Gauge "leased_pages" "" "" "Pages that a reader holds right now."
        = |s| one(s.reservoir.leased_pages);
    Counter "evicted_pages" "" "tier=ram|nvme" "Pages that had to go to make room."
        = |s| by("tier", [("ram", s.reservoir.evicted_ram_pages), ("nvme", s.reservoir.evicted_nvme_pages)]);
    Counter "bypassed" "bytes" "" "Bytes read past the cache because no room could be had."
        = |s| one(s.reservoir.bypassed_bytes);
    Counter "demotions_dropped" "" "" "Pages that left RAM without going to NVMe because the disk was behind."
        = |s| one(s.reservoir.demotions_dropped);
    Counter "corrupt_blocks" "" "tier=ram|nvme" "Blocks whose checksum did not match; each was fetched again."
        = |s| by("tier", [("ram", s.reservoir.corrupt_ram_blocks), ("nvme", s.reservoir.corrupt_nvme_blocks)]);
    Counter "scrubbed_blocks" "" "" "Blocks in RAM that the scrub has checked."
        = |s| one(s.reservoir.scrubbed_blocks);
    Counter "nvme_write_errors" "" "" "Pages that could not be written to the NVMe tier."
        = |s| one(s.reservoir.nvme_write_errors);
    Gauge "nvme_set_aside_files" "" "" "Files set aside because they were damaged or not ours."
        = |s| one(s.reservoir.nvme_set_aside_files);
    Gauge "native_sessions" "" "" "Processes on this host that use the socket."
        = |s| one(s.ipc.sessions);
    Gauge "native_connections" "" "" "Connections of the socket."
        = |s| one(s.ipc.connections);
    Counter "native_refused_connections" "" "" "Connections refused: a user who may not come in, or too many."
        = |s| one(s.ipc.refused_connections);
    Counter "native_requests" "" "kind" "Requests of clients on this host, by kind."
        = ipc_requests;
    Gauge "native_leases" "" "" "Views that clients on this host hold."
        = |s| one(s.ipc.leases);
    Gauge "native_leased" "bytes" "" "Bytes of the views that clients on this host hold."
        = |s| one(s.ipc.leased_bytes);
    Counter "native_copied" "bytes" "" "Bytes copied for a view because there was no memory or the client held its share."
        = |s| one(s.reservoir.lease_copied_bytes);
    Counter "native_expired_leases" "" "" "Views that were held too long."
        = |s| one(s.ipc.expired_leases);
    Counter "native_abandoned_segments" "" "" "Segments of the RAM tier given up because a view was held too long."
        = |s| one(s.reservoir.abandoned_segments);
    Counter "native_abandoned" "bytes" "" "Bytes of the segments given up because a view was held too long."
        = |s| one(s.reservoir.abandoned_bytes);
    Gauge "native_staging" "bytes" "state=lent|held|budget" "Memory for what clients on this host write: what they have, what the node holds for them, the most it may hold."
        = |s| by("state", [("lent", s.ipc.staging_lent_bytes), ("held", s.ipc.staging_held_bytes), ("budget", s.ipc.staging_budget_bytes)]);
    Counter "native_staging_refusals" "" "" "Times a client asked for staging memory and there was none."
        = |s| one(s.ipc.staging_refusals);
    Gauge "native_open_writes" "" "" "Writes in parts that clients have under way."
        = |s| one(s.ipc.open_writes);
    Counter "loader_batches" "" "" "Batches that loaders on this host handed over."
        = |s| one(s.ipc.loaded.batches);
    Counter "loader_samples" "" "" "Samples in the batches of loaders."
        = |s| one(s.ipc.loaded.samples);
    Counter "loader_read" "bytes" "" "Bytes of the samples that loaders handed over."
        = |s| one(s.ipc.loaded.bytes);
    Counter "loader_bad_samples" "" "" "Samples that loaders could not use."
        = |s| one(s.ipc.loaded.bad_samples);
    Counter "loader_wait" "seconds" "cause=lake|cache|check|decode|hand_over" "Time that consumers of loaders waited for a batch, by what they waited for."
        = |s| by("cause", [("lake", s.ipc.loaded.wait_lake_ns), ("cache", s.ipc.loaded.wait_cache_ns), ("check", s.ipc.loaded.wait_check_ns), ("decode", s.ipc.loaded.wait_decode_ns), ("hand_over", s.ipc.loaded.hand_over_ns)]);
    Counter "loader_user" "seconds" "" "Time that consumers of loaders took themselves between batches."
        = |s| one(s.ipc.loaded.user_ns);
    Gauge "checkpoint_saves" "" "phase=open|staged" "Saves of steps that clients fill, and those that were handed over and are not durable yet."
        = |s| by("phase", [("open", s.saves.open), ("staged", s.saves.staged)]);
    Gauge "checkpoint_staged" "bytes" "" "Bytes of saves that were handed over and are not durable yet."
        = |s| one(s.saves.staged_bytes);
    Gauge "checkpoint_disk" "bytes" "state=held|budget" "What saves that are staged on disk take there, and the most they may take (`limits.save_disk`)."
        = |s| by("state", [("held", s.saves.disk_bytes), ("budget", s.saves.disk_bytes_max)]);
    Gauge "checkpoint_oldest_staged" "seconds" "" "How long the oldest save that is not durable has been staged."
        = |s| one(s.saves.oldest_staged_seconds);
    Counter "checkpoint_saves_ended" "" "outcome=durable|failed|given_up" "Saves that ended, by how."
        = |s| by("outcome", [("durable", s.saves.durable), ("failed", s.saves.failed), ("given_up", s.saves.given_up)]);
    Counter "checkpoint_saved" "bytes" "how=written|reused" "Bytes of durable saves: written to the lake, or found in the parent."
        = |s| by("how", [("written", s.saves.written_bytes), ("reused", s.saves.reused_bytes)]);
    Counter "checkpoint_alarms" "" "" "Things that looked wrong in durable saves."
        = |s| one(s.saves.alarms);
    Counter "checkpoint_refusals" "" "" "Saves that were refused because an older one is overdue."
        = |s| one(s.saves.refusals);
    Gauge "jobs_running" "" "" "Jobs at work."
        = |s| one(s.jobs_running);
    Counter "log_lines_dropped" "" "" "Log lines dropped because whoever reads the log was behind."
        = |s| one(s.log_lines_dropped);
    Gauge "ready" "" "" "1 if the node is ready to serve."
        = |s| one(u64::from(s.ready));
    Gauge "uptime" "seconds" "" "How long the node has been running."
        = |s| one(s.uptime.as_secs());
};

const S3_REQUESTS: Metric = Metric {
    name: "s3_requests",
    kind: MetricKind::Counter,
    unit: "",
    labels: "operation, status",
    help: "S3 requests answered, by operation and HTTP status.",
};
const S3_REQUEST: Metric = Metric {
    name: "s3_request",
    kind: MetricKind::Histogram,
    unit: "seconds",
    labels: "operation",
    help: "Time from the head of an S3 request to the end of its answer.",
};
const S3_RECEIVED: Metric = Metric {
    name: "s3_received",
    kind: MetricKind::Counter,
    unit: "bytes",
    labels: "",
    help: "Bytes of request bodies taken from S3 clients.",
};
const S3_SENT: Metric = Metric {
    name: "s3_sent",
    kind: MetricKind::Counter,
    unit: "bytes",
    labels: "",
    help: "Bytes of answer bodies sent to S3 clients.",
};

/// All metrics, for the reference page.
pub fn all() -> impl Iterator<Item = Metric> {
    READS
        .iter()
        .map(|read| read.metric)
        .chain([S3_REQUESTS, S3_REQUEST, S3_RECEIVED, S3_SENT])
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    operation: &'static str,
    status: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OperationLabels {
    operation: &'static str,
}

/// An S3 request that has ended.
#[derive(Debug, Clone, Copy)]
pub struct RequestEnd {
    /// The operation's name, from the edge's own fixed list.
    pub operation: &'static str,
    /// The HTTP status.
    pub status: u16,
    /// Bytes of its body.
    pub received_bytes: u64,
    /// Bytes of the answer's body.
    pub sent_bytes: u64,
    /// Its duration.
    pub elapsed: Duration,
}

/// The registry of a node.
pub struct Metrics {
    registry: Registry,
    requests: Family<RequestLabels, Counter>,
    seconds: Family<OperationLabels, Histogram>,
    received: Counter,
    sent: Counter,
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// A registry where nothing has happened yet.
    #[must_use]
    pub fn new() -> Self {
        let mut registry = Registry::with_prefix(PREFIX);
        let requests = Family::<RequestLabels, Counter>::default();
        let seconds = Family::new_with_constructor((|| Histogram::new(SECONDS)) as fn() -> Histogram);
        let (received, sent) = (Counter::default(), Counter::default());
        register(&mut registry, S3_REQUESTS, requests.clone());
        register(&mut registry, S3_REQUEST, seconds.clone());
        register(&mut registry, S3_RECEIVED, received.clone());
        register(&mut registry, S3_SENT, sent.clone());
        Self {
            registry,
            requests,
            seconds,
            received,
            sent,
        }
    }

    /// Counts an S3 request that has ended.
    pub fn record(&self, request: RequestEnd) {
        let operation = request.operation;
        self.requests
            .get_or_create(&RequestLabels {
                operation,
                status: request.status,
            })
            .inc();
        self.seconds
            .get_or_create(&OperationLabels { operation })
            .observe(request.elapsed.as_secs_f64());
        self.received.inc_by(request.received_bytes);
        self.sent.inc_by(request.sent_bytes);
    }

    /// The text that Prometheus reads (OpenMetrics).
    #[must_use]
    pub fn encode(&self, snapshot: Snapshot) -> String {
        let mut read = Registry::with_prefix(PREFIX);
        read.register_collector(Box::new(Reader(snapshot)));
        let mut text = String::new();
        // Writing to a string cannot fail; if an encoder did, the missing end mark tells Prometheus.
        let _ = encode_registry(&mut text, &read)
            .and_then(|()| encode_registry(&mut text, &self.registry))
            .and_then(|()| encode_eof(&mut text));
        text
    }
}

/// From 0.5 ms to 33 s.
const SECONDS: [f64; 17] = [
    0.000_5, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.0, 2.0, 4.0, 8.0, 16.0,
    32.0,
];

fn register(registry: &mut Registry, definition: Metric, metric: impl prometheus_client::registry::Metric) {
    match definition.unit() {
        Some(unit) => registry.register_with_unit(
            definition.name,
            definition.help.trim_end_matches('.'),
            unit,
            metric,
        ),
        None => registry.register(definition.name, definition.help.trim_end_matches('.'), metric),
    }
}

/// Counters of seconds are kept in nanoseconds.
fn encode_sample(metric: &Metric, value: u64, encoder: MetricEncoder<'_>) -> fmt::Result {
    match metric.kind {
        MetricKind::Counter if metric.unit == "seconds" => {
            ConstCounter::new(value as f64 / 1e9).encode(encoder)
        }
        MetricKind::Counter => ConstCounter::new(value).encode(encoder),
        _ => ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX)).encode(encoder),
    }
}

/// Turns a snapshot into samples.
#[derive(Debug)]
struct Reader(Snapshot);

impl Collector for Reader {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        for Read { metric, samples } in READS {
            let unit = metric.unit();
            let kind = if metric.kind == MetricKind::Counter {
                MetricType::Counter
            } else {
                MetricType::Gauge
            };
            let mut family = encoder.encode_descriptor(metric.name, metric.help, unit.as_ref(), kind)?;
            let samples = samples(&self.0);
            if let [(labels, value)] = &samples[..]
                && labels.is_empty()
            {
                encode_sample(metric, *value, family)?;
                continue;
            }
            for (labels, value) in samples {
                encode_sample(metric, value, family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}
