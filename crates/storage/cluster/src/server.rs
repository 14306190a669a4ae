//! The door for peers: answers requests for blocks from this node's tiers or by its own read of the lake.
//!
//! A request of a peer is never forwarded: its source is the lake, which is a last resort, so it also turns a fill
//! that waits for another peer into a read of the lake (`forebay_reservoir`). Two nodes with different views would
//! else wait for each other for ever. While the read of the lake runs the answer says `filling`, at once and every
//! 50 ms: the asker's patience counts silence, not lateness.
//!
//! Limits: 1024 connections, 512 requests that read (others are told `filling` until it is their turn), requests of
//! 16 KiB, ranges of two stripes. A peer that takes nothing for 30 s is cut, so that it cannot hold pages.

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use forebay_core::{BLOCK_BYTES, BucketName, Error, Kind, Result, crc32c};
use forebay_net::{Listener, Stream};
use forebay_reservoir::{Piece, PieceStream, Reservoir, Source, TrustDomain};
use futures::StreamExt;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, Limited, StreamBody};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::cluster::Cluster;
use crate::meaning::BucketMeaning;
use crate::peers::Peer;
use crate::protocol::{self, BlocksRequest, Frame};
use crate::who::WhoAnswer;
use crate::{NodeId, WIRE_VERSION};

const CONNECTIONS_MAX: usize = 1024;
const READS_MAX: usize = 512;
/// The time between two words about a read that is still running.
const FILLING_PERIOD: Duration = Duration::from_millis(50);
/// The longest time for which a peer takes nothing.
const STALL_TIME_MAX: Duration = Duration::from_secs(30);
const HEADER_TIME_MAX: Duration = Duration::from_secs(30);
const BODY_TIME_MAX: Duration = Duration::from_secs(10);
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(50);
/// Frames on their way to one peer.
const FRAMES_QUEUED_MAX: usize = 8;

/// A bucket as this node's own configuration has it.
#[derive(Debug, Clone)]
pub struct SharedBucket {
    /// Its lake, which is a last resort.
    pub lake: Arc<dyn Source>,
    /// The clients of this host that may map its bytes.
    pub domain: TrustDomain,
    /// Meaning that has to be the same on the other node.
    pub meaning: BucketMeaning,
}

/// Store from which a node answers peers. Given by whoever composes the node.
pub trait PeerStore: fmt::Debug + Send + Sync + 'static {
    /// A bucket; `Unavailable` while the node is not ready.
    fn bucket(&self, name: &BucketName) -> Result<SharedBucket>;
    /// The tiers.
    fn reservoir(&self) -> &Arc<Reservoir>;
}

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// Serves peers until `stop` fires; running answers are cut then.
pub async fn serve_peers(
    mut listener: Listener,
    cluster: Arc<Cluster>,
    store: Arc<dyn PeerStore>,
    stop: CancellationToken,
) -> Result<()> {
    let connections = TaskTracker::new();
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let door = Arc::new(Door {
        cluster,
        store,
        reads: Arc::new(Semaphore::new(READS_MAX)),
        tasks: TaskTracker::new(),
        stop: stop.clone(),
    });
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else {
            break;
        };
        let accepted = tokio::select! {
            biased;
            () = stop.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok(stream) => {
                let serving = serve_connection(stream, Arc::clone(&door), stop.clone());
                connections.spawn(async move {
                    serving.await;
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "accept of a peer failed");
                tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
            }
        }
    }
    drop(listener);
    connections.close();
    connections.wait().await;
    door.tasks.close();
    door.tasks.wait().await;
    Ok(())
}

async fn serve_connection(stream: Stream, door: Arc<Door>, stop: CancellationToken) {
    let service = service_fn(move |request| {
        let door = Arc::clone(&door);
        async move { Ok::<_, Infallible>(door.handle(request).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIME_MAX)
        .serve_connection(TokioIo::new(stream), service);
    tokio::select! {
        biased;
        () = stop.cancelled() => {}
        ended = connection => {
            if let Err(error) = ended {
                tracing::debug!(%error, "a connection of a peer ended early");
            }
        }
    }
}

struct Door {
    cluster: Arc<Cluster>,
    store: Arc<dyn PeerStore>,
    reads: Arc<Semaphore>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

/// A request that is not answered with blocks.
struct Refusal(StatusCode, Error);

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        let status = match error.kind() {
            Kind::InvalidInput | Kind::OutOfRange => StatusCode::BAD_REQUEST,
            _ => StatusCode::SERVICE_UNAVAILABLE,
        };
        Self(status, error)
    }
}

impl Door {
    async fn handle(self: &Arc<Self>, request: Request<Incoming>) -> Response<Body> {
        let answer = match (request.method(), request.uri().path()) {
            (&Method::GET, protocol::NODE_PATH) => Ok(self.who()),
            (&Method::POST, protocol::BLOCKS_PATH) => self.blocks(request).await,
            _ => {
                let error = Error::new(Kind::NotFound, "this port is for the nodes of a cluster");
                Err(Refusal(StatusCode::NOT_FOUND, error))
            }
        };
        answer.unwrap_or_else(|Refusal(status, error)| {
            self.cluster
                .counters
                .refused_requests
                .fetch_add(1, Ordering::Relaxed);
            tracing::debug!(%error, status = status.as_u16(), "refused a request of a peer");
            respond(status, Full::new(Bytes::from(error.to_string())).boxed_unsync())
        })
    }

    /// Which node answers here.
    fn who(&self) -> Response<Body> {
        let answer = WhoAnswer {
            cluster: self.cluster.name.clone(),
            node: self.cluster.own.to_string(),
            incarnation: self.cluster.incarnation(),
            wire: WIRE_VERSION,
        };
        let text = serde_json::to_string(&answer).unwrap_or_default();
        respond(StatusCode::OK, Full::new(Bytes::from(text)).boxed_unsync())
    }

    async fn blocks(self: &Arc<Self>, request: Request<Incoming>) -> Result<Response<Body>, Refusal> {
        let asker = self.check_headers(&request)?;
        let body = Limited::new(request.into_body(), protocol::REQUEST_BYTES_MAX).collect();
        let wrong = |why: String| Refusal::from(Error::new(Kind::InvalidInput, why));
        let body = tokio::time::timeout(BODY_TIME_MAX, body)
            .await
            .map_err(|_| wrong("the request did not come in time".into()))?
            .map_err(|why| wrong(format!("the request cannot be read: {why}")))?;
        let request: BlocksRequest = serde_json::from_slice(&body.to_bytes())
            .map_err(|why| wrong(format!("the request makes no sense: {why}")))?;
        let bucket = self.store.bucket(&request.bucket()?)?;
        let differences = bucket.meaning.differences(&request.meaning);
        if !differences.is_empty() {
            let message = format!(
                "the bucket {} differs in {}",
                request.bucket,
                differences.join(", ")
            );
            tracing::debug!(message, "a bucket is not shared with a node that asked for it");
            return Err(Refusal(StatusCode::CONFLICT, Error::new(Kind::Conflict, message)));
        }
        let (object, range) = request.object(request.bucket()?, bucket.domain)?;
        let pieces = self.store.reservoir().read_exactly(&object, range, &bucket.lake);
        self.cluster
            .counters
            .answered_requests
            .fetch_add(1, Ordering::Relaxed);
        let (frames, receiver) = mpsc::channel(FRAMES_QUEUED_MAX);
        let answer = BlocksAnswer {
            door: Arc::clone(self),
            asker,
            frames,
        };
        let stop = self.stop.clone();
        self.tasks.spawn(async move {
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                () = answer.run(pieces) => {}
            }
        });
        let frames = futures::stream::unfold(receiver, |mut receiver| async move {
            let bytes: Bytes = receiver.recv().await?;
            Some((Ok::<_, Infallible>(hyper::body::Frame::data(bytes)), receiver))
        });
        Ok(respond(
            StatusCode::OK,
            BodyExt::boxed_unsync(StreamBody::new(frames)),
        ))
    }

    /// The asker, if it is one of us. Its name is for counters alone.
    fn check_headers(&self, request: &Request<Incoming>) -> Result<Option<Arc<Peer>>, Refusal> {
        let header = |name: &str| request.headers().get(name).and_then(|value| value.to_str().ok());
        let wire = header(protocol::WIRE_HEADER);
        if wire != Some(WIRE_VERSION.to_string().as_str()) {
            let message = format!(
                "this node speaks version {WIRE_VERSION} between nodes, the asker {}; run the same release on both",
                wire.unwrap_or("none")
            );
            return Err(Refusal(
                StatusCode::UPGRADE_REQUIRED,
                Error::new(Kind::Unsupported, message),
            ));
        }
        if header(protocol::CLUSTER_HEADER) != Some(self.cluster.name.as_str()) {
            let error = Error::new(Kind::Denied, "this node belongs to another cluster");
            return Err(Refusal(StatusCode::FORBIDDEN, error));
        }
        let id = header(protocol::NODE_HEADER).and_then(|id| id.parse::<NodeId>().ok());
        let view = self.cluster.membership.view();
        let member = id.filter(|id| view.members().iter().any(|member| member.id == *id));
        Ok(member.map(|id| self.cluster.peers.peer(id)))
    }
}

fn respond(status: StatusCode, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response
}

/// An answer under way.
struct BlocksAnswer {
    door: Arc<Door>,
    asker: Option<Arc<Peer>>,
    frames: mpsc::Sender<Bytes>,
}

/// The asker is gone or takes nothing.
struct Gone;

impl BlocksAnswer {
    /// Sends all blocks, or why there are none.
    async fn run(self, pieces: PieceStream) {
        if let Ok(Err(error)) = self.send_pieces(pieces).await {
            let failed = Frame::Failed {
                kind: error.kind().as_str().to_owned(),
                message: error.to_string(),
            };
            // If nobody takes it, nobody has to know.
            let _ = self.send(failed).await;
        }
    }

    async fn send_pieces(&self, mut pieces: PieceStream) -> Result<Result<()>, Gone> {
        let reads = Arc::clone(&self.door.reads).acquire_owned();
        let Ok(_permit) = self.while_filling(reads).await? else {
            return Err(Gone);
        };
        loop {
            match self.while_filling(pieces.next()).await? {
                Some(Ok(piece)) => self.send_blocks(piece).await?,
                Some(Err(error)) => return Ok(Err(error)),
                None => break,
            }
        }
        self.send(Frame::End).await?;
        Ok(Ok(()))
    }

    /// Waits for something, and says so at once and every 50 ms.
    async fn while_filling<T>(&self, work: impl Future<Output = T>) -> Result<T, Gone> {
        let mut work = std::pin::pin!(work);
        let mut patience = Duration::ZERO;
        loop {
            if let Ok(done) = tokio::time::timeout(patience, work.as_mut()).await {
                return Ok(done);
            }
            self.send(Frame::Filling).await?;
            patience = FILLING_PERIOD;
        }
    }

    async fn send_blocks(&self, piece: Piece) -> Result<(), Gone> {
        let mut bytes = piece.bytes;
        let mut checksums = piece.checksums.into_iter();
        while !bytes.is_empty() {
            let block = bytes.split_to(bytes.len().min(BLOCK_BYTES as usize));
            // What went past the cache enters a node here.
            let crc32c = checksums.next().unwrap_or_else(|| crc32c::crc32c(&block));
            self.door.cluster.sent(self.asker.as_deref(), block.len());
            self.send(Frame::Block { bytes: block, crc32c }).await?;
        }
        Ok(())
    }

    async fn send(&self, frame: Frame) -> Result<(), Gone> {
        let (head, body) = frame.encode();
        for bytes in std::iter::once(head).chain(body) {
            let sent = tokio::time::timeout(STALL_TIME_MAX, self.frames.send(bytes)).await;
            sent.map_err(|_| Gone)?.map_err(|_| Gone)?;
        }
        Ok(())
    }
}
