//! Membership by gossip: chitchat over a socket whose datagrams are tagged (`tagged_socket.rs`).
//!
//! Life cycle: [`Gossip::start`] takes a bound UDP socket, tells the seeds who this node is and keeps the view
//! up to date in a task; [`Gossip::leave`] says that the node is about to stop, so that others skip it at once;
//! [`Gossip::shutdown`] ends it. A node that dies without a word is noticed after about four seconds, eight
//! when it had just come; until then readers pass it by on their own (the breaker of the peer).
//!
//! Limits: the state of a node is a handful of short words; what others say is checked word by word, and a
//! member that makes no sense is left out. Nodes that are gone are forgotten after ten minutes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use chitchat::{ChitchatConfig, ChitchatHandle, ChitchatId, FailureDetectorConfig, NodeState};
use forebay_core::{Error, Kind, Result};
use parking_lot::RwLock;
use tokio::net::UdpSocket;
use tokio::task::JoinHandle;

use crate::tagged_socket::TaggedTransport;
use crate::{GossipKey, Member, MemberState, Membership, View, WEIGHT_MAX};

/// Time between two rounds of gossip.
const GOSSIP_PERIOD: Duration = Duration::from_millis(500);
/// Members that are told at once that this node leaves.
const TOLD_OF_LEAVING_MAX: usize = 64;

const WEIGHT: &str = "weight";
const WIRE: &str = "wire";
const STATE: &str = "state";

/// The start of gossip.
#[derive(Debug, Clone)]
pub struct GossipOptions {
    /// The name of the cluster; nodes of another one are not heard.
    pub cluster: String,
    /// The secret of the cluster.
    pub key: GossipKey,
    /// This node.
    pub own: Member,
    /// Members to begin with, as `host:port`; names are resolved again every minute.
    pub seeds: Vec<String>,
}

/// The members that gossip knows.
#[derive(Debug)]
pub struct Gossip {
    view: Arc<RwLock<Arc<View>>>,
    handle: Handle,
    watcher: JoinHandle<()>,
    refused: Arc<AtomicU64>,
}

struct Handle(ChitchatHandle);

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Handle({:?})", self.0.chitchat_id())
    }
}

impl Gossip {
    /// Joins the cluster over a socket that is bound to the port of `options.own.addr`.
    pub async fn start(options: GossipOptions, socket: UdpSocket) -> Result<Arc<Self>> {
        let GossipOptions {
            cluster,
            key,
            own,
            seeds,
        } = options;
        let config = ChitchatConfig {
            chitchat_id: ChitchatId::new(own.id.to_string(), own.incarnation, own.addr),
            cluster_id: cluster,
            gossip_interval: GOSSIP_PERIOD,
            listen_addr: own.addr,
            seed_nodes: seeds,
            failure_detector_config: FailureDetectorConfig {
                initial_interval: Duration::from_secs(1),
                dead_node_grace_period: Duration::from_secs(600),
                ..FailureDetectorConfig::default()
            },
            marked_for_deletion_grace_period: Duration::from_secs(600),
            catchup_callback: None,
            extra_liveness_predicate: None,
        };
        let words = vec![
            (WEIGHT.to_owned(), own.weight.to_string()),
            (WIRE.to_owned(), own.wire.to_string()),
            (STATE.to_owned(), own.state.as_str().to_owned()),
        ];
        let refused = Arc::<AtomicU64>::default();
        let transport = TaggedTransport::new(socket, key, &refused);
        let handle = chitchat::spawn_chitchat(config, words, &transport)
            .await
            .map_err(|why| Error::new(Kind::Io, "gossip cannot be started").caused_by(why.to_string()))?;
        let view = Arc::new(RwLock::new(Arc::new(View::new(own.id, vec![own.clone()]))));
        let live = handle
            .with_chitchat(|chitchat| chitchat.live_nodes_watcher())
            .await;
        let watcher = tokio::spawn(watch(live, own, Arc::clone(&view)));
        Ok(Arc::new(Self {
            view,
            handle: Handle(handle),
            watcher,
            refused,
        }))
    }

    /// Datagrams that were refused because they do not carry the tag of this cluster.
    #[must_use]
    pub fn refused_datagrams(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Tells the others that this node is about to stop.
    pub async fn leave(&self) {
        let state = MemberState::Leaving.as_str();
        let tell = |chitchat: &mut chitchat::Chitchat| chitchat.self_node_state().set(STATE, state);
        self.handle.0.with_chitchat(tell).await;
        let view = self.view();
        let others = view.members().iter().filter(|member| member.id != view.own());
        for member in others.take(TOLD_OF_LEAVING_MAX) {
            // It ends only with the task of gossip, and then nobody can be told.
            let _ = self.handle.0.gossip(member.addr);
        }
    }

    /// Ends gossip; the others find out by its silence unless they were told by [`Self::leave`].
    pub fn shutdown(&self) {
        self.watcher.abort();
        // It fails only if gossip has ended already.
        let _ = self.handle.0.initiate_shutdown();
    }
}

impl Membership for Gossip {
    fn view(&self) -> Arc<View> {
        Arc::clone(&self.view.read())
    }
}

impl Drop for Gossip {
    fn drop(&mut self) {
        self.shutdown();
    }
}

type LiveNodes = std::collections::BTreeMap<ChitchatId, NodeState>;

/// Keeps the view up to date until gossip ends.
async fn watch(mut live: tokio::sync::watch::Receiver<LiveNodes>, own: Member, view: Arc<RwLock<Arc<View>>>) {
    loop {
        let mut members: Vec<Member> = live.borrow_and_update().iter().filter_map(member).collect();
        warn_of_twin(&own, &members);
        members.retain(|member| member.id != own.id || member.incarnation == own.incarnation);
        if !members.iter().any(|member| member.id == own.id) {
            members.push(own.clone());
        }
        let new = View::new(own.id, members);
        let old = std::mem::replace(&mut *view.write(), Arc::new(new.clone()));
        tell_changes(&old, &new);
        if live.changed().await.is_err() {
            return;
        }
    }
}

/// A member as gossip describes it; `None` if it makes no sense.
fn member((id, state): (&ChitchatId, &NodeState)) -> Option<Member> {
    let number = |word| state.get(word)?.parse::<u32>().ok();
    Some(Member {
        id: id.node_id.parse().ok()?,
        incarnation: id.generation_id,
        addr: checked(id.gossip_advertise_addr)?,
        weight: number(WEIGHT)?.clamp(1, WEIGHT_MAX),
        wire: number(WIRE)?,
        state: MemberState::parse(state.get(STATE)?),
    })
}

/// An address that can be connected to.
fn checked(addr: SocketAddr) -> Option<SocketAddr> {
    (addr.port() != 0 && !addr.ip().is_unspecified() && !addr.ip().is_multicast()).then_some(addr)
}

fn warn_of_twin(own: &Member, members: &[Member]) {
    let mut twins = members
        .iter()
        .filter(|member| member.id == own.id && member.incarnation > own.incarnation);
    if let Some(twin) = twins.next() {
        tracing::error!(
            node = %own.id,
            twin = %twin.addr,
            "another node has started with this node's identity; its data folder is a copy: stop one of them \
             and remove node.key from its data folder"
        );
    }
}

fn tell_changes(old: &View, new: &View) {
    for member in new.members() {
        if !old
            .members()
            .iter()
            .any(|known| known.id == member.id && known.incarnation == member.incarnation)
        {
            tracing::info!(node = %member.id, addr = %member.addr, weight = member.weight, "node joined");
            if member.wire != crate::WIRE_VERSION {
                tracing::warn!(
                    node = %member.id, addr = %member.addr, its_version = member.wire, our_version = crate::WIRE_VERSION,
                    "a node speaks another version between nodes and shares nothing with this one; run the same release on both"
                );
            }
        }
    }
    for member in old.members() {
        if !new.members().iter().any(|known| known.id == member.id) {
            tracing::warn!(node = %member.id, addr = %member.addr, "node is gone");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn node(number: u8, key: [u8; 32], seed: Option<SocketAddr>) -> (Arc<Gossip>, SocketAddr) {
        let socket = UdpSocket::bind(("127.0.0.1", 0)).await.unwrap();
        let addr = socket.local_addr().unwrap();
        let own = Member {
            addr,
            ..Member::for_test(number, 10)
        };
        let options = GossipOptions {
            cluster: "test".into(),
            key: GossipKey::new(key),
            own,
            seeds: seed.iter().map(ToString::to_string).collect(),
        };
        (Gossip::start(options, socket).await.unwrap(), addr)
    }

    async fn eventually(what: &str, condition: impl Fn() -> bool) {
        for _ in 0..3000 {
            if condition() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("never happened: {what}");
    }

    #[tokio::test]
    async fn nodes_find_each_other_through_one_seed_and_hear_who_leaves() {
        let (first, seed) = node(1, [9; 32], None).await;
        let (second, _) = node(2, [9; 32], Some(seed)).await;
        let (third, _) = node(3, [9; 32], Some(seed)).await;
        for gossip in [&first, &second, &third] {
            eventually("three members", || gossip.view().owners().len() == 3).await;
        }
        third.leave().await;
        let owners = |gossip: &Gossip| gossip.view().owners().len();
        eventually("the leaving node owns nothing", || {
            owners(&first) == 2 && owners(&second) == 2
        })
        .await;
        assert_eq!(first.view().members().len(), 3);
    }

    #[tokio::test]
    async fn a_node_with_another_key_is_not_heard() {
        let (first, seed) = node(1, [9; 32], None).await;
        let (stranger, _) = node(2, [8; 32], Some(seed)).await;
        eventually("a refused datagram", || first.refused_datagrams() > 1).await;
        assert_eq!(first.view().members().len(), 1);
        assert_eq!(stranger.view().members().len(), 1);
    }
}
