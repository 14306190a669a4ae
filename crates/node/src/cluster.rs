//! The node in its cluster: the port for peers, joining, and the traits that wire the cluster to the engine.
//!
//! Life cycle: [`PeerPort::bind`] takes the port when the node starts. When the lakes have answered,
//! [`NodeCluster::join`] registers the start in the lake (a twin is refused there), begins to gossip, and opens the
//! door for peers; the engine is made after that, with sources that ask peers. [`NodeCluster::leave`] tells the
//! others before the node stops.

use std::net::SocketAddr;
use std::sync::Arc;

use async_trait::async_trait;
use forebay_cluster::{
    BucketMeaning, Cluster, ClusterOptions, Dial, Gossip, GossipKey, GossipOptions, Member, MemberState,
    Membership, NodeId, PeerStore, SharedBucket, WIRE_VERSION, serve_peers,
};
use forebay_core::{BucketName, Clock, Error, Kind, Result};
use forebay_engine::{BucketLake, EngineSource, LakeSource, Sources};
use forebay_net::{Connector, Listener, Stream};
use forebay_reservoir::{Reservoir, Source};
use tokio::net::{TcpListener, UdpSocket};
use tokio::task::JoinHandle;

use crate::options::{ClusterSettings, NodeOptions};
use crate::readiness::Readiness;
use crate::services::Services;

mod identity;
mod registration;

pub use identity::make_cluster_keys;
use identity::{ClusterKeys, Identity, certificate_name};

/// Tries to find a port that is free for TCP and UDP, where any will do.
const PORT_TRIES_MAX: usize = 16;

/// The port for peers, taken and not yet served.
pub(crate) struct PeerPort {
    listener: TcpListener,
    gossip: UdpSocket,
    pub(crate) addr: SocketAddr,
    identity: Identity,
    keys: Option<ClusterKeys>,
}

impl PeerPort {
    /// Takes the port of the settings, and reads or makes the identity and the certificate of the node.
    pub(crate) async fn bind(options: &NodeOptions, clock: &Arc<dyn Clock>) -> Result<Option<Self>> {
        let Some(settings) = &options.cluster else {
            return Ok(None);
        };
        let identity = Identity::ensure(&options.data_dir)?;
        let keys = settings.keys.as_deref();
        let keys = keys
            .map(|folder| ClusterKeys::load(folder, &identity, clock))
            .transpose()?;
        let (listener, gossip) = bind_both(settings.peer).await?;
        let addr = listener
            .local_addr()
            .map_err(|why| Error::io("the port for peers has no address", why))?;
        Ok(Some(Self {
            listener,
            gossip,
            addr,
            identity,
            keys,
        }))
    }
}

/// One port number, for TCP and UDP.
async fn bind_both(addr: SocketAddr) -> Result<(TcpListener, UdpSocket)> {
    let cannot = |why: std::io::Error| {
        let message = format!("cannot listen for other nodes on {addr}: {why}; choose another with --peer");
        Error::io(message, why).with("setting", "cluster.peer")
    };
    let mut tries = 0;
    loop {
        let listener = TcpListener::bind(addr).await.map_err(cannot)?;
        let bound = listener.local_addr().map_err(cannot)?;
        match UdpSocket::bind(bound).await {
            Ok(gossip) => return Ok((listener, gossip)),
            Err(_) if addr.port() == 0 && tries < PORT_TRIES_MAX => tries += 1,
            Err(why) => return Err(cannot(why)),
        }
    }
}

/// Connects to members; with keys by TLS, where the certificate has to be the member's own.
#[derive(Debug)]
struct NodeDial(Connector);

#[async_trait]
impl Dial for NodeDial {
    async fn dial(&self, member: &Member) -> Result<Stream> {
        let host = member.addr.ip().to_string();
        self.0
            .connect_as(&host, member.addr.port(), &certificate_name(member.id))
            .await
    }
}

/// The meanings of the buckets of this node.
#[derive(Debug)]
struct Meanings {
    /// Identities of the default lake and of those that buckets have to themselves.
    lakes: Vec<(Option<BucketName>, String)>,
    options: NodeOptions,
}

impl Meanings {
    async fn gather(services: &Services) -> Result<Self> {
        let mut lakes = Vec::new();
        for lake in &services.lakes {
            let (handle, creates_once) = lake.for_documents();
            let identity = registration::lake_identity(&*handle, creates_once).await?;
            lakes.push((lake.bucket.clone(), identity));
        }
        Ok(Self {
            lakes,
            options: services.options.clone(),
        })
    }

    fn of(&self, bucket: &BucketName) -> BucketMeaning {
        let lake_of = |name: Option<&BucketName>| self.lakes.iter().find(|(known, _)| known.as_ref() == name);
        let mapped = lake_of(Some(bucket));
        let lake = mapped.or_else(|| lake_of(None));
        let own = self.options.buckets.iter().find(|own| own.name == *bucket);
        let consistency = own.map_or(self.options.consistency, |own| own.consistency);
        let users = own.and_then(|own| own.allow_uids.clone());
        BucketMeaning {
            lake: lake.map(|(_, identity)| identity.clone()).unwrap_or_default(),
            prefix: if mapped.is_some() {
                String::new()
            } else {
                format!("{bucket}/")
            },
            consistency: format!("{consistency:?}"),
            domain: users.map_or_else(|| "all".to_owned(), |users| format!("{users:?}")),
        }
    }
}

/// The node in its cluster.
#[derive(Debug)]
pub(crate) struct NodeCluster {
    pub(crate) cluster: Arc<Cluster>,
    gossip: Arc<Gossip>,
    meanings: Arc<Meanings>,
    door: JoinHandle<Result<()>>,
}

impl NodeCluster {
    /// Joins: the lake numbers this start, gossip begins, peers are served.
    pub(crate) async fn join(services: &Services, port: PeerPort) -> Result<Self> {
        let settings = services.options.cluster.clone();
        let settings = settings.ok_or_else(|| Error::new(Kind::Internal, "the node is in no cluster"))?;
        let PeerPort {
            listener,
            gossip,
            addr,
            identity,
            keys,
        } = port;
        let connector = keys
            .as_ref()
            .map_or_else(Connector::tcp, |keys| keys.connector.clone());
        let dial: Arc<dyn Dial> = Arc::new(NodeDial(connector));
        let own = Member {
            id: identity.id,
            incarnation: 0,
            addr,
            weight: settings.weight,
            wire: WIRE_VERSION,
            state: MemberState::Serving,
        };
        let own = Member {
            incarnation: incarnation(services, &settings, &own, &*dial).await?,
            ..own
        };
        let meanings = Arc::new(Meanings::gather(services).await?);
        let key = keys
            .as_ref()
            .map_or_else(|| GossipKey::of_name(&settings.name), |keys| keys.gossip.clone());
        let gossip_options = GossipOptions {
            cluster: settings.name.clone(),
            key,
            own: own.clone(),
            seeds: settings.join.clone(),
        };
        let gossip = Gossip::start(gossip_options, gossip).await?;
        let cluster = Cluster::new(ClusterOptions {
            name: settings.name.clone(),
            own: own.id,
            membership: gossip.clone(),
            dial,
            silence_max: settings.silence_max,
        });
        let listener = Listener::tcp(listener);
        let listener = match keys {
            Some(keys) => listener.with_tls(keys.server),
            None => listener,
        };
        let store = Arc::new(NodeStore {
            readiness: Arc::clone(&services.readiness),
            reservoir: Arc::clone(&services.reservoir),
            meanings: Arc::clone(&meanings),
        });
        let door = serve_peers(listener, Arc::clone(&cluster), store, services.stop.clone());
        let (node, incarnation) = (own.id, own.incarnation);
        tracing::info!(cluster = settings.name, %node, %addr, incarnation, weight = own.weight, "joined the cluster");
        Ok(Self {
            cluster,
            gossip,
            meanings,
            door: tokio::spawn(door),
        })
    }

    /// The sources of buckets that ask peers first.
    pub(crate) fn sources(&self) -> Arc<dyn Sources> {
        Arc::new(ClusterSources {
            cluster: Arc::clone(&self.cluster),
            meanings: Arc::clone(&self.meanings),
        })
    }

    /// Tells the others that this node is about to stop.
    pub(crate) async fn leave(&self) {
        self.gossip.leave().await;
    }

    /// Ends gossip and the door; the node is stopping.
    pub(crate) fn end(&self) {
        self.gossip.shutdown();
        self.door.abort();
    }

    /// The identity of this node.
    pub(crate) fn own(&self) -> NodeId {
        self.gossip.view().own()
    }
}

impl Drop for NodeCluster {
    fn drop(&mut self) {
        self.end();
    }
}

/// The number of this start. A lake that does not decide who was first cannot number starts; the clock does then.
async fn incarnation(
    services: &Services,
    settings: &ClusterSettings,
    own: &Member,
    dial: &dyn Dial,
) -> Result<u64> {
    let default = services.lakes.first();
    let default = default.ok_or_else(|| Error::new(Kind::Internal, "a node has no lake"))?;
    let (lake, creates_once) = default.for_documents();
    if creates_once {
        return registration::register(&*lake, &settings.name, own, dial).await;
    }
    tracing::warn!(
        "the lake has no conditional create: a second node with this node's identity would not be noticed"
    );
    let since_1970 = services
        .clock
        .wall()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap_or_default();
    Ok(u64::try_from(since_1970.as_millis()).unwrap_or(u64::MAX))
}

#[derive(Debug)]
struct ClusterSources {
    cluster: Arc<Cluster>,
    meanings: Arc<Meanings>,
}

impl Sources for ClusterSources {
    fn source_of(&self, bucket: &BucketLake) -> Arc<dyn Source> {
        let lake = Arc::new(LakeSource::new(bucket));
        self.cluster.source(self.meanings.of(bucket.name()), lake)
    }
}

/// Store that peers are answered from.
#[derive(Debug)]
struct NodeStore {
    readiness: Arc<Readiness>,
    reservoir: Arc<Reservoir>,
    meanings: Arc<Meanings>,
}

impl PeerStore for NodeStore {
    fn bucket(&self, name: &BucketName) -> Result<SharedBucket> {
        let (lake, domain) = self.readiness.engine()?.shared_bucket(name)?;
        Ok(SharedBucket {
            lake: Arc::new(LakeSource::new(&lake)),
            domain,
            meaning: self.meanings.of(name),
        })
    }

    fn reservoir(&self) -> &Arc<Reservoir> {
        &self.reservoir
    }
}
