//! The cluster as one node uses it: sources that ask peers, and what has been counted about it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forebay_reservoir::Source;

use crate::meaning::BucketMeaning;
use crate::peers::{Dial, FallbackReason, Peer, PeerStats, Peers};
use crate::source::ClusterSource;
use crate::{Membership, NodeId};

/// The parts of a cluster.
#[derive(Debug)]
pub struct ClusterOptions {
    /// The name of the cluster.
    pub name: String,
    /// The node.
    pub own: NodeId,
    /// Knows who is there.
    pub membership: Arc<dyn Membership>,
    /// Opens connections.
    pub dial: Arc<dyn Dial>,
    /// Silence of a peer after which the next source is asked.
    pub silence_max: Duration,
}

impl ClusterOptions {
    /// Silence that a reader puts up with, unless there is a reason for another.
    pub const SILENCE_DEFAULT: Duration = Duration::from_millis(500);
}

/// Counters of the cluster on this node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClusterStats {
    /// Bytes of blocks that peers sent.
    pub received_bytes: u64,
    /// Bytes of blocks that were sent to peers.
    pub sent_bytes: u64,
    /// Requests of peers that were answered with blocks.
    pub answered_requests: u64,
    /// Requests of peers that were refused.
    pub refused_requests: u64,
    /// Requests to peers that did not get what they asked for, in the order of [`FallbackReason::ALL`].
    pub fallbacks: [u64; FallbackReason::ALL.len()],
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    received_bytes: AtomicU64,
    pub(crate) sent_bytes: AtomicU64,
    pub(crate) answered_requests: AtomicU64,
    pub(crate) refused_requests: AtomicU64,
    fallbacks: [AtomicU64; FallbackReason::ALL.len()],
}

/// The cluster as one node uses it. Shared by `Arc`.
#[derive(Debug)]
pub struct Cluster {
    pub(crate) name: String,
    pub(crate) own: NodeId,
    pub(crate) membership: Arc<dyn Membership>,
    pub(crate) peers: Peers,
    pub(crate) counters: Counters,
}

impl Cluster {
    /// A cluster that asks nobody before somebody reads.
    #[must_use]
    pub fn new(options: ClusterOptions) -> Arc<Self> {
        let ClusterOptions {
            name,
            own,
            membership,
            dial,
            silence_max,
        } = options;
        Arc::new(Self {
            peers: Peers::new(name.clone(), own, dial, silence_max),
            name,
            own,
            membership,
            counters: Counters::default(),
        })
    }

    /// The source of a bucket: the owner of each stripe, then the next owner, then `lake`.
    #[must_use]
    pub fn source(self: &Arc<Self>, meaning: BucketMeaning, lake: Arc<dyn Source>) -> Arc<dyn Source> {
        Arc::new(ClusterSource {
            cluster: Arc::clone(self),
            meaning: Arc::new(meaning),
            lake,
        })
    }

    /// The members that this node sees.
    #[must_use]
    pub fn membership(&self) -> &Arc<dyn Membership> {
        &self.membership
    }

    /// Counters of each other member.
    #[must_use]
    pub fn peer_stats(&self) -> Vec<PeerStats> {
        self.peers.stats(&self.membership.view())
    }

    /// Counters now.
    #[must_use]
    pub fn stats(&self) -> ClusterStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ClusterStats {
            received_bytes: read(&self.counters.received_bytes),
            sent_bytes: read(&self.counters.sent_bytes),
            answered_requests: read(&self.counters.answered_requests),
            refused_requests: read(&self.counters.refused_requests),
            fallbacks: std::array::from_fn(|reason| read(&self.counters.fallbacks[reason])),
        }
    }

    /// The number of this start of the node; 0 while it does not see itself.
    pub(crate) fn incarnation(&self) -> u64 {
        let view = self.membership.view();
        let own = view.members().iter().find(|member| member.id == self.own);
        own.map_or(0, |member| member.incarnation)
    }

    pub(crate) fn received(&self, peer: &Peer, bytes: usize) {
        peer.received_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        self.counters
            .received_bytes
            .fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn sent(&self, peer: Option<&Peer>, bytes: usize) {
        if let Some(peer) = peer {
            peer.sent_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        }
        self.counters
            .sent_bytes
            .fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn fell_back(&self, reason: FallbackReason) {
        let number = FallbackReason::ALL.iter().position(|known| *known == reason);
        if let Some(counter) = number.and_then(|number| self.counters.fallbacks.get(number)) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }
}
