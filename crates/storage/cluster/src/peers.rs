//! The other nodes as this one has found them: connections, breaker and counters of each.
//!
//! A request goes over HTTP/1.1: one request at a time on a connection, and the connections that are done are
//! kept for the next. A kept one may have been closed by the peer meanwhile, so a request that fails on it is
//! sent once more on a fresh one. An answer that is dropped before its end closes its connection.
//!
//! Limits: 16 kept connections a peer; 128 requests under way to a peer, beyond which requests wait. A peer that
//! is no member any more is forgotten, with its counters, when more than 4096 are known.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use forebay_core::{BucketName, Error, Kind, Result};
use forebay_net::Stream;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use crate::breaker::Breaker;
use crate::protocol::{self, BlocksRequest, Frame};
use crate::{Member, NodeId, View, WIRE_VERSION};

const IDLE_CONNECTIONS_MAX: usize = 16;
const REQUESTS_MAX: usize = 128;
const PEERS_MAX: usize = 4096;
/// Buckets that a peer is known not to share.
const UNSHARED_MAX: usize = 1024;
const REFUSAL_BYTES_MAX: usize = 16 << 10;
/// Bytes that hyper reads at a time, at most.
const READ_BYTES_MAX: usize = 512 << 10;
/// The longest time from the first byte of a frame to its last, in times of silence: a peer that sends a byte now
/// and then for ever is as bad as a silent one.
const FRAME_SILENCES_MAX: u32 = 10;

/// Opens connections to other nodes. Given by whoever composes the node; tests give one without a network.
#[async_trait]
pub trait Dial: std::fmt::Debug + Send + Sync + 'static {
    /// A connection to exactly this member. Cancel-safe.
    async fn dial(&self, member: &Member) -> Result<Stream>;
}

/// The reason why a peer did not give what it was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FallbackReason {
    /// It could not be reached, or the connection broke.
    Unreachable,
    /// It said nothing for too long.
    Silent,
    /// It sent bytes that do not match their checksum, or no protocol.
    Damaged,
    /// It said that it failed.
    Failed,
    /// It refused the request.
    Refused,
    /// The bucket means something else there.
    NotShared,
}

impl FallbackReason {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Unreachable,
        Self::Silent,
        Self::Damaged,
        Self::Failed,
        Self::Refused,
        Self::NotShared,
    ];

    /// Its word in metrics and logs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unreachable => "unreachable",
            Self::Silent => "silent",
            Self::Damaged => "damaged",
            Self::Failed => "failed",
            Self::Refused => "refused",
            Self::NotShared => "not_shared",
        }
    }
}

/// A peer that did not give what it was asked for.
#[derive(Debug)]
pub(crate) struct PeerFailure {
    pub(crate) reason: FallbackReason,
    pub(crate) error: Error,
}

impl PeerFailure {
    fn new(reason: FallbackReason, error: Error) -> Self {
        Self { reason, error }
    }

    fn unreachable(why: impl std::fmt::Display) -> Self {
        let error = Error::new(
            Kind::Unavailable,
            format!("the connection to a peer failed: {why}"),
        );
        Self::new(FallbackReason::Unreachable, error)
    }

    fn silent(silence: Duration) -> Self {
        let error = Error::new(Kind::Timeout, "a peer said nothing for too long");
        Self::new(
            FallbackReason::Silent,
            error.with("waited_ms", silence.as_millis()),
        )
    }

    fn damaged(error: Error) -> Self {
        Self::new(FallbackReason::Damaged, error)
    }
}

/// Counters of one peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerStats {
    /// The peer.
    pub id: NodeId,
    /// Bytes of blocks that it sent to this node.
    pub received_bytes: u64,
    /// Bytes of blocks that this node sent to it.
    pub sent_bytes: u64,
    /// Requests that did not get what they asked for.
    pub fallbacks: u64,
    /// True if it has failed since it last answered, and is passed by but for a probe now and then.
    pub is_passed_by: bool,
}

/// The state of one peer.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) id: NodeId,
    breaker: Mutex<Breaker>,
    idle: Mutex<Vec<(std::net::SocketAddr, SendRequest<Full<Bytes>>)>>,
    /// Buckets that mean something else there, in this start of the peer.
    unshared: Mutex<(u64, Vec<BucketName>)>,
    requests: Arc<Semaphore>,
    pub(crate) received_bytes: AtomicU64,
    pub(crate) sent_bytes: AtomicU64,
    fallbacks: AtomicU64,
}

impl Peer {
    fn new(id: NodeId) -> Self {
        Self {
            id,
            breaker: Mutex::default(),
            idle: Mutex::default(),
            unshared: Mutex::default(),
            requests: Arc::new(Semaphore::new(REQUESTS_MAX)),
            received_bytes: AtomicU64::new(0),
            sent_bytes: AtomicU64::new(0),
            fallbacks: AtomicU64::new(0),
        }
    }

    /// Returns whether it may be asked for blocks of a bucket now.
    pub(crate) fn admits(&self, member: &Member, bucket: &BucketName) -> bool {
        let unshared = self.unshared.lock();
        let is_shared = unshared.0 != member.incarnation || !unshared.1.contains(bucket);
        is_shared && self.breaker.lock().admit(Instant::now())
    }

    /// It sent what it was asked for.
    pub(crate) fn succeed(&self) {
        self.breaker.lock().succeed();
    }

    /// It did not; what follows depends on why.
    pub(crate) fn fail(&self, member: &Member, bucket: &BucketName, failure: &PeerFailure) {
        self.fallbacks.fetch_add(1, Ordering::Relaxed);
        match failure.reason {
            FallbackReason::Unreachable | FallbackReason::Silent | FallbackReason::Damaged => {
                self.idle.lock().clear();
                self.breaker.lock().fail(Instant::now());
            }
            FallbackReason::NotShared => {
                let mut unshared = self.unshared.lock();
                if unshared.0 != member.incarnation {
                    *unshared = (member.incarnation, Vec::new());
                }
                if unshared.1.len() < UNSHARED_MAX && !unshared.1.contains(bucket) {
                    unshared.1.push(bucket.clone());
                    tracing::warn!(
                        node = %self.id, addr = %member.addr, %bucket, why = %failure.error,
                        "a bucket is not shared with a node because it means something else there; \
                         give both the same lake, consistency and allow_uids"
                    );
                }
            }
            FallbackReason::Failed | FallbackReason::Refused => {}
        }
    }

    fn stats(&self) -> PeerStats {
        PeerStats {
            id: self.id,
            received_bytes: self.received_bytes.load(Ordering::Relaxed),
            sent_bytes: self.sent_bytes.load(Ordering::Relaxed),
            fallbacks: self.fallbacks.load(Ordering::Relaxed),
            is_passed_by: self.breaker.lock().has_failed(),
        }
    }
}

/// All peers.
#[derive(Debug)]
pub(crate) struct Peers {
    cluster: String,
    own: NodeId,
    dial: Arc<dyn Dial>,
    silence_max: Duration,
    known: Mutex<HashMap<NodeId, Arc<Peer>>>,
    connections: TaskTracker,
}

impl Peers {
    pub(crate) fn new(cluster: String, own: NodeId, dial: Arc<dyn Dial>, silence_max: Duration) -> Self {
        Self {
            cluster,
            own,
            dial,
            silence_max,
            known: Mutex::default(),
            connections: TaskTracker::new(),
        }
    }

    /// The state of a peer, which is a member.
    pub(crate) fn peer(&self, id: NodeId) -> Arc<Peer> {
        let mut known = self.known.lock();
        if known.len() >= PEERS_MAX && !known.contains_key(&id) {
            known.clear();
        }
        Arc::clone(known.entry(id).or_insert_with(|| Arc::new(Peer::new(id))))
    }

    /// Counters of the peers that are members.
    pub(crate) fn stats(&self, view: &View) -> Vec<PeerStats> {
        let others = view.members().iter().filter(|member| member.id != self.own);
        others.map(|member| self.peer(member.id).stats()).collect()
    }

    /// Asks a member for blocks; the answer has begun when this returns.
    pub(crate) async fn ask(
        &self,
        peer: &Arc<Peer>,
        member: &Member,
        request: &BlocksRequest,
    ) -> Result<Answer, PeerFailure> {
        // Waiting for one's turn is no silence of the peer; the fill has a deadline of its own.
        let permit = Arc::clone(&peer.requests).acquire_owned().await;
        let permit = permit.map_err(|_| PeerFailure::unreachable("this node is stopping"))?;
        let body = serde_json::to_vec(request).map_err(PeerFailure::unreachable)?;
        let kept = {
            let mut idle = peer.idle.lock();
            idle.retain(|(addr, sender)| *addr == member.addr && !sender.is_closed() && sender.is_ready());
            idle.pop().map(|(_, sender)| sender)
        };
        if let Some(sender) = kept
            && let Ok(answer) = self.send(sender, peer, member, &body).await
        {
            return Answer::begin(answer, permit, self.silence_max).await;
        }
        let sender = self.connect(member).await?;
        let answer = self.send(sender, peer, member, &body).await?;
        Answer::begin(answer, permit, self.silence_max).await
    }

    async fn connect(&self, member: &Member) -> Result<SendRequest<Full<Bytes>>, PeerFailure> {
        let connecting = async {
            let stream = self.dial.dial(member).await.map_err(PeerFailure::unreachable)?;
            let (sender, connection) = http1::Builder::new()
                .max_buf_size(READ_BYTES_MAX)
                .handshake(TokioIo::new(stream))
                .await
                .map_err(PeerFailure::unreachable)?;
            self.connections.spawn(async move {
                if let Err(error) = connection.await {
                    tracing::debug!(%error, "a connection to a peer ended early");
                }
            });
            Ok(sender)
        };
        let connected = tokio::time::timeout(self.silence_max, connecting).await;
        connected.unwrap_or_else(|_| Err(PeerFailure::silent(self.silence_max)))
    }

    /// Sends a request and waits for the head of its answer.
    async fn send(
        &self,
        mut sender: SendRequest<Full<Bytes>>,
        peer: &Arc<Peer>,
        member: &Member,
        body: &[u8],
    ) -> Result<Sent, PeerFailure> {
        let request = Request::builder()
            .method(Method::POST)
            .uri(protocol::BLOCKS_PATH)
            .header(hyper::header::HOST, member.addr.to_string())
            .header(hyper::header::CONTENT_TYPE, "application/json")
            .header(protocol::WIRE_HEADER, WIRE_VERSION)
            .header(protocol::CLUSTER_HEADER, &self.cluster)
            .header(protocol::NODE_HEADER, self.own.to_string())
            .body(Full::new(Bytes::copy_from_slice(body)))
            .map_err(PeerFailure::unreachable)?;
        let answered = tokio::time::timeout(self.silence_max, sender.send_request(request)).await;
        let response = answered
            .map_err(|_| PeerFailure::silent(self.silence_max))?
            .map_err(PeerFailure::unreachable)?;
        Ok(Sent {
            response,
            sender,
            addr: member.addr,
            peer: Arc::clone(peer),
        })
    }
}

/// A request whose answer has a head.
struct Sent {
    response: Response<Incoming>,
    sender: SendRequest<Full<Bytes>>,
    addr: std::net::SocketAddr,
    peer: Arc<Peer>,
}

/// An answer under way. Dropping it before its end closes the connection.
#[derive(Debug)]
pub(crate) struct Answer {
    body: Incoming,
    buffer: BytesMut,
    /// Start of the frame that is not all there.
    frame_began: Option<Instant>,
    sender: Option<SendRequest<Full<Bytes>>>,
    addr: std::net::SocketAddr,
    peer: Arc<Peer>,
    silence_max: Duration,
    _permit: OwnedSemaphorePermit,
}

impl Answer {
    async fn begin(
        sent: Sent,
        permit: OwnedSemaphorePermit,
        silence_max: Duration,
    ) -> Result<Self, PeerFailure> {
        let status = sent.response.status();
        let body = sent.response.into_body();
        if status == StatusCode::OK {
            return Ok(Self {
                body,
                buffer: BytesMut::new(),
                frame_began: None,
                sender: Some(sent.sender),
                addr: sent.addr,
                peer: sent.peer,
                silence_max,
                _permit: permit,
            });
        }
        let text = tokio::time::timeout(silence_max, Limited::new(body, REFUSAL_BYTES_MAX).collect()).await;
        let text = match text {
            Ok(Ok(text)) => String::from_utf8_lossy(&text.to_bytes()).trim().to_owned(),
            _ => String::new(),
        };
        let reason = if status == StatusCode::CONFLICT {
            FallbackReason::NotShared
        } else {
            FallbackReason::Refused
        };
        let error = Error::new(Kind::Unavailable, format!("a peer refused a request: {text}"));
        Err(PeerFailure::new(reason, error.with("status", status.as_u16())))
    }

    /// The next frame that is not about waiting; `None` after the last. Not cancel-safe.
    pub(crate) async fn next(&mut self) -> Result<Option<(Bytes, u32)>, PeerFailure> {
        loop {
            match Frame::decode(&mut self.buffer).map_err(PeerFailure::damaged)? {
                Some(Frame::Filling) => self.frame_began = None,
                Some(Frame::Block { bytes, crc32c }) => {
                    self.frame_began = None;
                    return Ok(Some((bytes, crc32c)));
                }
                Some(Frame::Failed { kind, message }) => {
                    let error = Error::new(Kind::Unavailable, format!("a peer failed: {message}"));
                    return Err(PeerFailure::new(FallbackReason::Failed, error.with("kind", kind)));
                }
                Some(Frame::End) => {
                    self.finish().await;
                    return Ok(None);
                }
                None => self.receive().await?,
            }
        }
    }

    /// Waits for more bytes of the body.
    async fn receive(&mut self) -> Result<(), PeerFailure> {
        let now = Instant::now();
        let began = match self.buffer.is_empty() {
            true => now,
            false => *self.frame_began.get_or_insert(now),
        };
        let until = (now + self.silence_max).min(began + self.silence_max * FRAME_SILENCES_MAX);
        let received = tokio::time::timeout_at(until, self.body.frame()).await;
        match received.map_err(|_| PeerFailure::silent(self.silence_max))? {
            Some(Ok(frame)) => {
                if let Ok(bytes) = frame.into_data() {
                    self.buffer.extend_from_slice(&bytes);
                }
                Ok(())
            }
            Some(Err(why)) => Err(PeerFailure::unreachable(why)),
            None => Err(PeerFailure::unreachable("it ended before the last block")),
        }
    }

    /// Keeps the connection for the next request.
    async fn finish(&mut self) {
        let is_over = tokio::time::timeout(self.silence_max, self.body.frame()).await;
        if let (Ok(None), Some(sender)) = (is_over, self.sender.take()) {
            let mut idle = self.peer.idle.lock();
            if idle.len() < IDLE_CONNECTIONS_MAX {
                idle.push((self.addr, sender));
            }
        }
    }
}
