//! The node as its admin API sees it: counters and status gathered from the services.

use std::sync::Arc;
use std::time::Duration;

use forebay_admin::jobs::Jobs;
use forebay_admin::metrics::{ClusterSnapshot, Metrics, Snapshot};
use forebay_admin::{Administered, api};
use forebay_checkpoint_node::Saves;
use forebay_cluster::FallbackReason;
use forebay_core::Result;
use forebay_engine::Engine;
use forebay_s3::InFlight;

use super::Services;
use crate::cluster::NodeCluster;
use crate::logging;

impl Administered for Services {
    fn engine(&self) -> Result<Arc<Engine>> {
        Services::engine(self).map(Arc::clone)
    }

    fn why_not_ready(&self) -> Option<String> {
        Services::why_not_ready(self)
    }

    fn lake_trouble(&self) -> Option<String> {
        self.trouble()
    }

    fn config(&self) -> serde_json::Value {
        serde_json::to_value(self.options.to_config()).unwrap_or_default()
    }

    fn jobs(&self) -> &Jobs {
        &self.jobs
    }

    fn saves(&self) -> &Saves {
        &self.saves
    }

    fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    fn warm_parallel_max(&self) -> usize {
        self.options.limits.warm_parallel_max
    }

    fn nodes(&self) -> Vec<api::ClusterNode> {
        self.cluster.get().map(nodes_of).unwrap_or_default()
    }

    fn snapshot(&self) -> Snapshot {
        Snapshot {
            reservoir: self.reservoir.stats(),
            ipc: self.ipc.stats(),
            saves: self.saves.stats(),
            ram_budget_bytes: self.options.ram_bytes,
            nvme_budget_bytes: self.options.nvme_bytes,
            lakes: self.lakes.iter().map(|lake| lake.snapshot()).collect(),
            cluster: self.cluster.get().map(cluster_snapshot).unwrap_or_default(),
            jobs_running: self.jobs.running() as u64,
            log_lines_dropped: logging::dropped_lines(),
            uptime: self.uptime(),
            ready: self.why_not_ready().is_none(),
        }
    }

    fn status(&self) -> api::Status {
        let stats = self.reservoir.stats();
        let ipc = self.ipc.stats();
        let from_cache = stats.served_ram_bytes + stats.served_nvme_bytes;
        let served = from_cache + stats.served_peer_bytes + stats.served_lake_bytes;
        let in_flight = self.readiness.serving().map_or(
            InFlight {
                requests: 0,
                bytes: 0,
            },
            |serving| serving.edge.in_flight(),
        );
        api::Status {
            version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            uptime_seconds: self.uptime().as_secs(),
            ready: self.why_not_ready().is_none(),
            s3: self.s3_url.clone().unwrap_or_else(|| "off".into()),
            socket: self.socket.as_ref().map(|path| path.display().to_string()),
            ram: api::Tier {
                budget_bytes: self.options.ram_bytes,
                used_bytes: stats.ram_used_bytes,
                pages: stats.ram_pages,
                evicted_pages: stats.evicted_ram_pages,
            },
            nvme: api::Tier {
                budget_bytes: self.options.nvme_bytes,
                used_bytes: stats.nvme_used_bytes,
                pages: stats.nvme_pages,
                evicted_pages: stats.evicted_nvme_pages,
            },
            pinned_bytes: stats.pinned_bytes,
            served: api::Served {
                ram_bytes: stats.served_ram_bytes,
                nvme_bytes: stats.served_nvme_bytes,
                peer_bytes: stats.served_peer_bytes,
                lake_bytes: stats.served_lake_bytes,
                hit_ratio: (served > 0).then(|| from_cache as f64 / served as f64),
            },
            corrupt_blocks: stats.corrupt_ram_blocks
                + stats.corrupt_nvme_blocks
                + stats.corrupt_source_blocks,
            lakes: self.lakes.iter().map(|lake| lake.status()).collect(),
            clients: api::Clients {
                sessions: ipc.sessions,
                connections: ipc.connections,
                leases: ipc.leases,
                leased_bytes: ipc.leased_bytes,
                copied_bytes: stats.lease_copied_bytes,
                expired_leases: ipc.expired_leases,
                abandoned_bytes: stats.abandoned_bytes,
                staging_budget_bytes: ipc.staging_budget_bytes,
                staging_used_bytes: ipc.staging_lent_bytes,
            },
            in_flight: api::InFlight {
                s3_requests: in_flight.requests,
                s3_bytes: in_flight.bytes,
                leased_pages: stats.leased_pages,
                jobs: self.jobs.running() as u64,
            },
        }
    }
}

impl Services {
    fn uptime(&self) -> Duration {
        self.clock.monotonic().saturating_sub(self.started)
    }
}

/// The members that the node sees, each with what was counted about it.
fn nodes_of(node: &NodeCluster) -> Vec<api::ClusterNode> {
    let stats = node.cluster.peer_stats();
    let view = node.cluster.membership().view();
    let members = view.members().iter().map(|member| {
        let counted = stats.iter().find(|peer| peer.id == member.id);
        api::ClusterNode {
            id: member.id.to_string(),
            is_self: member.id == node.own(),
            peer: member.addr.to_string(),
            state: member.state.as_str().to_owned(),
            weight: member.weight,
            incarnation: member.incarnation,
            wire: member.wire,
            is_passed_by: counted.is_some_and(|peer| peer.is_passed_by),
            received_bytes: counted.map_or(0, |peer| peer.received_bytes),
            sent_bytes: counted.map_or(0, |peer| peer.sent_bytes),
            fallbacks: counted.map_or(0, |peer| peer.fallbacks),
        }
    });
    members.collect()
}

fn cluster_snapshot(node: &NodeCluster) -> ClusterSnapshot {
    let stats = node.cluster.stats();
    let reasons = FallbackReason::ALL.iter().map(|reason| reason.as_str());
    ClusterSnapshot {
        nodes: node.cluster.membership().view().members().len() as u64,
        received_bytes: stats.received_bytes,
        sent_bytes: stats.sent_bytes,
        fallbacks: reasons.zip(stats.fallbacks).collect(),
    }
}
