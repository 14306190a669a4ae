//! Nodes without a network: reservoirs, clusters and doors for peers, over one counted lake.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a failure here is the failure of a test"
)]

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use forebay_cluster::{
    BucketMeaning, Cluster, ClusterOptions, Dial, FallbackReason, FixedMembers, Member, NodeId, PeerStore,
    SharedBucket, placement, serve_peers,
};
use forebay_core::{BucketName, ByteRange, Error, Kind, ObjectKey, Result, Version};
use forebay_net::{Connector, Listener, Stream};
use forebay_reservoir::{
    ObjectId, ObjectVersion, Reservoir, ReservoirOptions, Source, SourceBlock, SourceStream, TrustDomain,
    Urgency,
};
use futures::{StreamExt, TryStreamExt};
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

mod hostile;

const MIB: u64 = 1 << 20;
/// A busy machine is no silent peer.
const PATIENT: Duration = Duration::from_secs(60);
/// For tests of silence.
const IMPATIENT: Duration = Duration::from_secs(2);

/// A lake whose objects are made of their key and offset; counts what it sends.
#[derive(Debug)]
struct Lake {
    sent_bytes: AtomicU64,
    requests: AtomicU32,
    /// Chunks wait for a permit here.
    gate: Semaphore,
    is_down: AtomicBool,
}

fn byte_at(position: u64) -> u8 {
    (position.wrapping_mul(2_654_435_761) >> 13) as u8
}

#[async_trait]
impl Source for Shared {
    async fn fetch(&self, _: &ObjectVersion, range: ByteRange, _: &Urgency) -> Result<SourceStream> {
        let lake = Arc::clone(&self.0);
        lake.requests.fetch_add(1, Ordering::SeqCst);
        if lake.is_down.load(Ordering::SeqCst) {
            return Err(Error::new(Kind::Unavailable, "the lake is down"));
        }
        let chunks = (range.start()..range.end()).step_by(256 << 10).map(move |start| {
            let lake = Arc::clone(&lake);
            async move {
                lake.gate.acquire().await.unwrap().forget();
                lake.gate.add_permits(1);
                let end = (start + (256 << 10)).min(range.end());
                let bytes: Vec<u8> = (start..end).map(byte_at).collect();
                lake.sent_bytes.fetch_add(bytes.len() as u64, Ordering::SeqCst);
                Ok(SourceBlock::from_lake(Bytes::from(bytes)))
            }
        });
        Ok(futures::stream::iter(chunks).then(|chunk| chunk).boxed())
    }
}

#[derive(Debug, Clone)]
struct Shared(Arc<Lake>);

/// Ways to the doors of the nodes, which can be cut or replaced.
#[derive(Debug, Default)]
struct Network {
    doors: Mutex<HashMap<NodeId, Connector>>,
}

#[async_trait]
impl Dial for Network {
    async fn dial(&self, member: &Member) -> Result<Stream> {
        let connector = self.doors.lock().get(&member.id).cloned();
        let connector = connector.ok_or_else(|| Error::new(Kind::Unavailable, "no way there"))?;
        connector.connect("node", 1).await
    }
}

#[derive(Debug)]
struct Store {
    lake: Arc<dyn Source>,
    meaning: BucketMeaning,
    reservoir: Arc<Reservoir>,
}

impl PeerStore for Store {
    fn bucket(&self, _: &BucketName) -> Result<SharedBucket> {
        Ok(SharedBucket {
            lake: Arc::clone(&self.lake),
            domain: TrustDomain::DEFAULT,
            meaning: self.meaning.clone(),
        })
    }

    fn reservoir(&self) -> &Arc<Reservoir> {
        &self.reservoir
    }
}

struct TestNode {
    reservoir: Arc<Reservoir>,
    cluster: Arc<Cluster>,
    members: Arc<FixedMembers>,
    source: Arc<dyn Source>,
    stop: CancellationToken,
}

struct TestCluster {
    lake: Arc<Lake>,
    network: Arc<Network>,
    nodes: Vec<TestNode>,
    members: Vec<Member>,
}

fn meaning(lake: &str) -> BucketMeaning {
    BucketMeaning {
        lake: lake.into(),
        prefix: "bucket/".into(),
        consistency: "5s".into(),
        domain: String::new(),
    }
}

impl TestCluster {
    async fn start(count: u8) -> Self {
        Self::with(count, PATIENT, |_| meaning("lake")).await
    }

    async fn with(count: u8, silence_max: Duration, meaning: impl Fn(u8) -> BucketMeaning) -> Self {
        let lake = Arc::new(Lake {
            sent_bytes: AtomicU64::new(0),
            requests: AtomicU32::new(0),
            gate: Semaphore::new(1000),
            is_down: AtomicBool::new(false),
        });
        let network = Arc::new(Network::default());
        let members: Vec<_> = (1..=count).map(|number| Member::for_test(number, 1000)).collect();
        let mut nodes = Vec::new();
        for member in &members {
            let source: Arc<dyn Source> = Arc::new(Shared(Arc::clone(&lake)));
            nodes.push(
                node(
                    member,
                    &members,
                    &network,
                    source,
                    (meaning(member.id.0[0]), silence_max),
                )
                .await,
            );
        }
        Self {
            lake,
            network,
            nodes,
            members,
        }
    }

    fn lake_bytes(&self) -> u64 {
        self.lake.sent_bytes.load(Ordering::SeqCst)
    }

    /// The number of the node that owns the first stripe.
    fn owner(&self, object: &ObjectVersion) -> usize {
        let owners = placement::owners(&self.members, ObjectId::of(object), 0, 1);
        usize::from(owners[0].id.0[0]) - 1
    }

    fn fallbacks(&self, node: usize, reason: FallbackReason) -> u64 {
        let number = FallbackReason::ALL
            .iter()
            .position(|known| *known == reason)
            .unwrap();
        self.nodes[node].cluster.stats().fallbacks[number]
    }
}

async fn node(
    member: &Member,
    members: &[Member],
    network: &Arc<Network>,
    lake: Arc<dyn Source>,
    (meaning, silence_max): (BucketMeaning, Duration),
) -> TestNode {
    let reservoir = Reservoir::open(ReservoirOptions {
        ram_bytes: 256 * MIB,
        nvme_bytes: 0,
        nvme_dir: "unused".into(),
        scrub_period: Duration::ZERO,
        read_ahead_bytes_max: 8 * MIB,
        write_fill_bytes_max: MIB,
        fill_silence_max: Duration::from_secs(60),
    })
    .await
    .unwrap();
    let fixed = Arc::new(FixedMembers::new(member.id, members.to_vec()));
    let cluster = Cluster::new(ClusterOptions {
        name: "test".into(),
        own: member.id,
        membership: fixed.clone(),
        dial: network.clone(),
        silence_max,
    });
    let (listener, connector) = Listener::in_memory();
    network.doors.lock().insert(member.id, connector);
    let stop = CancellationToken::new();
    let store = Arc::new(Store {
        lake: Arc::clone(&lake),
        meaning: meaning.clone(),
        reservoir: Arc::clone(&reservoir),
    });
    tokio::spawn(serve_peers(listener, Arc::clone(&cluster), store, stop.clone()));
    TestNode {
        reservoir,
        source: cluster.source(meaning, lake),
        cluster,
        members: fixed,
        stop,
    }
}

fn object(key: &str, bytes: u64) -> ObjectVersion {
    ObjectVersion {
        bucket: BucketName::new("bucket").unwrap(),
        key: ObjectKey::new(key).unwrap(),
        version: Version::new("1"),
        bytes,
        domain: TrustDomain::DEFAULT,
    }
}

/// An object whose first stripe this node owns.
fn owned_by(cluster: &TestCluster, node: usize, bytes: u64) -> ObjectVersion {
    let mut objects = (0..1000).map(|number| object(&format!("key-{number}"), bytes));
    objects.find(|object| cluster.owner(object) == node).unwrap()
}

fn content(start: u64, end: u64) -> Vec<u8> {
    (start..end).map(byte_at).collect()
}

/// Reads a range and compares every byte.
async fn read(node: &TestNode, object: &ObjectVersion, start: u64, end: u64) {
    read_expecting(node, object, start, &content(start, end)).await;
}

async fn read_expecting(node: &TestNode, object: &ObjectVersion, start: u64, expected: &[u8]) {
    let range = ByteRange::new(start, start + expected.len() as u64).unwrap();
    let mut pieces = node.reservoir.read(object, range, &node.source);
    let mut position = 0;
    while let Some(piece) = pieces.try_next().await.unwrap() {
        assert_eq!(piece.start, start + position as u64);
        assert!(
            piece.bytes[..] == expected[position..position + piece.bytes.len()],
            "at {position}"
        );
        position += piece.bytes.len();
    }
    assert_eq!(position, expected.len());
}

async fn eventually(what: &str, condition: impl Fn() -> bool) {
    for _ in 0..3000 {
        if condition() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("never happened: {what}");
}

#[tokio::test(flavor = "multi_thread")]
async fn cold_readers_of_all_nodes_cost_the_lake_one_read() {
    let cluster = Arc::new(TestCluster::start(4).await);
    let object = object("model", 20 * MIB + 12_345);
    let expected = Arc::new(content(0, object.bytes));
    let readers: Vec<_> = (0..32)
        .map(|number| {
            let (cluster, object, expected) = (Arc::clone(&cluster), object.clone(), Arc::clone(&expected));
            tokio::spawn(
                async move { read_expecting(&cluster.nodes[number % 4], &object, 0, &expected).await },
            )
        })
        .collect();
    for reader in readers {
        reader.await.unwrap();
    }
    let fallbacks: Vec<_> = cluster
        .nodes
        .iter()
        .map(|node| node.cluster.stats().fallbacks)
        .collect();
    assert_eq!(cluster.lake_bytes(), object.bytes, "{fallbacks:?}");
    let received: u64 = cluster
        .nodes
        .iter()
        .map(|node| node.cluster.stats().received_bytes)
        .sum();
    assert_eq!(
        received,
        3 * object.bytes,
        "each other node has it from the owner"
    );
    let served: u64 = cluster
        .nodes
        .iter()
        .map(|node| node.reservoir.stats().served_peer_bytes)
        .sum();
    assert!(served > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_warm_stripe_of_another_node_costs_the_lake_nothing() {
    let cluster = TestCluster::start(2).await;
    let object = owned_by(&cluster, 0, 3 * MIB + 5);
    read(&cluster.nodes[0], &object, 0, object.bytes).await;
    let before = cluster.lake_bytes();
    read(&cluster.nodes[1], &object, 100_000, object.bytes).await;
    read(&cluster.nodes[1], &object, 100_000, object.bytes).await;
    assert_eq!(cluster.lake_bytes(), before);
    let stats = cluster.nodes[1].cluster.stats();
    assert!(
        stats.received_bytes <= object.bytes,
        "the second time it has them itself"
    );
    assert_eq!(cluster.nodes[0].cluster.stats().sent_bytes, stats.received_bytes);
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_each_think_the_other_owns_a_stripe_do_not_wait_for_each_other() {
    let cluster = Arc::new(TestCluster::start(2).await);
    let object = object("model", 8 * MIB);
    for (node, other) in [(0, 1), (1, 0)] {
        // Its own weight is so small in its own view that the other one owns everything.
        let mut members = cluster.members.clone();
        (members[node].weight, members[other].weight) = (1, 1_000_000);
        cluster.nodes[node].members.set(members);
    }
    let readers: Vec<_> = (0..8)
        .map(|number| {
            let (cluster, object) = (Arc::clone(&cluster), object.clone());
            tokio::spawn(async move { read(&cluster.nodes[number % 2], &object, 0, object.bytes).await })
        })
        .collect();
    for reader in readers {
        tokio::time::timeout(Duration::from_secs(50), reader)
            .await
            .expect("nobody waits for ever")
            .unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_lake_is_no_silent_owner() {
    let cluster = Arc::new(TestCluster::with(2, IMPATIENT, |_| meaning("lake")).await);
    let object = owned_by(&cluster, 0, 2 * MIB);
    cluster.lake.gate.forget_permits(1000);
    let reader = {
        let (cluster, object) = (Arc::clone(&cluster), object.clone());
        tokio::spawn(async move { read(&cluster.nodes[1], &object, 0, object.bytes).await })
    };
    eventually("the owner asks the lake", || {
        cluster.lake.requests.load(Ordering::SeqCst) > 0
    })
    .await;
    tokio::time::sleep(Duration::from_secs(3)).await; // Longer than the patience with a silent peer.
    assert_eq!(
        cluster.lake.requests.load(Ordering::SeqCst),
        1,
        "nobody hedges a read that is under way"
    );
    cluster.lake.gate.add_permits(1000);
    reader.await.unwrap();
    assert_eq!(cluster.lake_bytes(), object.bytes);
    assert_eq!(cluster.fallbacks(1, FallbackReason::Silent), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_that_is_gone_is_passed_by_and_counted() {
    let cluster = TestCluster::start(3).await;
    let object = owned_by(&cluster, 0, 4 * MIB);
    cluster.nodes[0].stop.cancel();
    cluster.network.doors.lock().remove(&cluster.members[0].id);
    for node in [1, 2] {
        read(&cluster.nodes[node], &object, 0, object.bytes).await;
    }
    assert_eq!(
        cluster.lake_bytes(),
        object.bytes,
        "the next owner reads the lake for both"
    );
    let unreachable = |node| cluster.fallbacks(node, FallbackReason::Unreachable);
    assert!(unreachable(1) + unreachable(2) > 0);
    let owner = cluster.members[0].id;
    let stats = cluster
        .nodes
        .iter()
        .skip(1)
        .flat_map(|node| node.cluster.peer_stats());
    assert!(
        stats
            .filter(|peer| peer.id == owner)
            .any(|peer| peer.is_passed_by && peer.fallbacks > 0)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_that_means_something_else_is_not_shared() {
    let cluster = TestCluster::with(2, PATIENT, |number| meaning(&format!("lake {number}"))).await;
    let object = owned_by(&cluster, 0, 2 * MIB);
    read(&cluster.nodes[0], &object, 0, object.bytes).await;
    read(&cluster.nodes[1], &object, 0, MIB).await;
    read(&cluster.nodes[1], &object, MIB, object.bytes).await;
    assert_eq!(cluster.nodes[1].cluster.stats().received_bytes, 0);
    assert_eq!(
        cluster.lake_bytes(),
        2 * object.bytes,
        "each node reads its own lake"
    );
    assert_eq!(
        cluster.fallbacks(1, FallbackReason::NotShared),
        1,
        "asked once, then known"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_whose_lake_fails_says_so_and_the_reader_asks_the_lake_itself() {
    let cluster = TestCluster::start(3).await;
    let object = owned_by(&cluster, 0, MIB);
    cluster.lake.is_down.store(true, Ordering::SeqCst);
    let source = &cluster.nodes[1].source;
    let whole = ByteRange::whole(object.bytes).unwrap();
    let read: Result<Vec<_>> = cluster.nodes[1]
        .reservoir
        .read(&object, whole, source)
        .try_collect()
        .await;
    assert_eq!(read.unwrap_err().kind(), Kind::Unavailable);
    assert!(cluster.fallbacks(1, FallbackReason::Failed) > 0);
    assert_eq!(cluster.fallbacks(1, FallbackReason::Silent), 0);
}
