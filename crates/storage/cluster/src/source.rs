//! Peers as the source of missing blocks: the owner of a stripe, then the next owner, then the lake.
//!
//! [`ClusterSource`] is the source of a bucket. It gives each stripe to its owner (`route`): a stripe of this node
//! comes from the lake, which is a last resort and never changes; a stripe of another node comes from a
//! [`StripeSource`], whose fallback is the lake. So the kind of source belongs to the claim: a request of a peer,
//! which is answered from the lake alone, turns a fill from another peer into a read of the lake, and leaves fills
//! from the lake alone.
//!
//! A peer that fails in the middle is followed by the next from the last good block on. Every block is compared
//! with the checksum that it came with before it goes on.

use std::collections::VecDeque;
use std::sync::Arc;

use async_trait::async_trait;
use forebay_core::{BLOCK_BYTES, ByteRange, Error, Kind, Result, Tier, crc32c};
use forebay_reservoir::{ObjectId, ObjectVersion, Route, Source, SourceBlock, SourceStream, Urgency};
use futures::StreamExt;

use crate::Member;
use crate::cluster::Cluster;
use crate::meaning::BucketMeaning;
use crate::peers::{Answer, FallbackReason, Peer, PeerFailure};
use crate::placement::{self, stripe_end, stripe_of};
use crate::protocol::BlocksRequest;

/// Owners that are looked at, and those of them that are asked.
const OWNERS_SEEN: usize = 3;
const OWNERS_ASKED_MAX: usize = 2;

/// The source of a bucket that is shared by the cluster.
#[derive(Debug)]
pub(crate) struct ClusterSource {
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) meaning: Arc<BucketMeaning>,
    pub(crate) lake: Arc<dyn Source>,
}

impl ClusterSource {
    /// The members to ask for a stripe, in order; none if it is this node's own, or if nobody can be asked.
    fn askable(&self, object: &ObjectVersion, at: u64) -> VecDeque<(Arc<Peer>, Member)> {
        let view = self.cluster.membership.view();
        if view.owners().len() < 2 {
            return VecDeque::new();
        }
        let owners = placement::owners(view.owners(), ObjectId::of(object), stripe_of(at), OWNERS_SEEN);
        let mut asked = VecDeque::new();
        for member in owners {
            if member.id == view.own() || asked.len() == OWNERS_ASKED_MAX {
                break;
            }
            let peer = self.cluster.peers.peer(member.id);
            if peer.admits(member, &object.bucket) {
                asked.push_back((peer, member.clone()));
            }
        }
        asked
    }
}

#[async_trait]
impl Source for ClusterSource {
    async fn fetch(
        &self,
        object: &ObjectVersion,
        range: ByteRange,
        urgency: &Urgency,
    ) -> Result<SourceStream> {
        // Fills go to the sources of the routes; whoever does not ask for routes gets the last resort.
        self.lake.fetch(object, range, urgency).await
    }

    fn route(&self, object: &ObjectVersion, at: u64) -> Option<Route> {
        let members = self.askable(object, at);
        let source = match members.is_empty() {
            true => Arc::clone(&self.lake),
            false => Arc::new(StripeSource {
                cluster: Arc::clone(&self.cluster),
                meaning: Arc::clone(&self.meaning),
                lake: Arc::clone(&self.lake),
                members,
            }),
        };
        Some(Route {
            source,
            end: stripe_end(at),
        })
    }
}

/// The source of one stripe that another node owns.
#[derive(Debug)]
struct StripeSource {
    cluster: Arc<Cluster>,
    meaning: Arc<BucketMeaning>,
    lake: Arc<dyn Source>,
    members: VecDeque<(Arc<Peer>, Member)>,
}

#[async_trait]
impl Source for StripeSource {
    async fn fetch(&self, object: &ObjectVersion, range: ByteRange, _: &Urgency) -> Result<SourceStream> {
        let reading = StripeRead {
            cluster: Arc::clone(&self.cluster),
            request: BlocksRequest::new(object, range, &self.meaning),
            object: object.clone(),
            range,
            position: range.start(),
            members: self.members.clone(),
            current: None,
        };
        let blocks = futures::stream::try_unfold(Box::new(reading), |mut reading| async move {
            let block = reading.next().await?;
            Ok(block.map(|block| (block, reading)))
        });
        Ok(blocks.boxed())
    }

    fn fallback(&self) -> Option<Arc<dyn Source>> {
        Some(Arc::clone(&self.lake))
    }
}

/// A read of blocks from the owners of a stripe.
struct StripeRead {
    cluster: Arc<Cluster>,
    object: ObjectVersion,
    request: BlocksRequest,
    range: ByteRange,
    position: u64,
    members: VecDeque<(Arc<Peer>, Member)>,
    current: Option<(Arc<Peer>, Member, Answer)>,
}

impl StripeRead {
    /// The next block, from whoever gives it; an error when nobody is left to ask.
    async fn next(&mut self) -> Result<Option<SourceBlock>> {
        while self.position < self.range.end() {
            let Some((peer, member, mut answer)) = self.current.take() else {
                self.ask_next().await?;
                continue;
            };
            match self.block_of(&mut answer).await {
                Ok(block) => {
                    peer.succeed();
                    self.cluster.received(&peer, block.bytes.len());
                    self.position += block.bytes.len() as u64;
                    self.current = Some((peer, member, answer));
                    return Ok(Some(block));
                }
                Err(failure) => self.after_failure(&peer, &member, &failure),
            }
        }
        if let Some((_, _, mut answer)) = self.current.take() {
            // The end of the answer, so that its connection serves the next request.
            let _ = answer.next().await;
        }
        Ok(None)
    }

    /// Asks the next member for what is missing.
    async fn ask_next(&mut self) -> Result<()> {
        let Some((peer, member)) = self.members.pop_front() else {
            let message = "no owner of a stripe gave its blocks; they come from the lake";
            return Err(Error::new(Kind::Unavailable, message));
        };
        self.request.start = self.position / BLOCK_BYTES * BLOCK_BYTES;
        match self.cluster.peers.ask(&peer, &member, &self.request).await {
            Ok(answer) => self.current = Some((peer, member, answer)),
            Err(failure) => self.after_failure(&peer, &member, &failure),
        }
        Ok(())
    }

    async fn block_of(&self, answer: &mut Answer) -> Result<SourceBlock, PeerFailure> {
        let damaged = |message: &'static str| PeerFailure {
            reason: FallbackReason::Damaged,
            error: Error::new(Kind::Checksum, message),
        };
        let Some((bytes, checksum)) = answer.next().await? else {
            return Err(damaged("a peer sent fewer blocks than were asked for"));
        };
        let expected = BLOCK_BYTES.min(self.object.bytes - self.position / BLOCK_BYTES * BLOCK_BYTES);
        if bytes.len() as u64 != expected {
            return Err(damaged("a peer sent a block of another size"));
        }
        if crc32c::crc32c(&bytes) != checksum {
            return Err(damaged("a peer sent a block that does not match its checksum"));
        }
        Ok(SourceBlock {
            bytes,
            crc32c: Some(checksum),
            tier: Tier::Peer,
        })
    }

    /// Notes what went wrong. A peer that failed itself has asked the lake: another peer would too.
    fn after_failure(&mut self, peer: &Arc<Peer>, member: &Member, failure: &PeerFailure) {
        self.current = None;
        peer.fail(member, &self.object.bucket, failure);
        self.cluster.fell_back(failure.reason);
        tracing::debug!(
            node = %member.id, addr = %member.addr, reason = failure.reason.as_str(), error = %failure.error,
            "a peer did not give blocks, the next source is asked"
        );
        if failure.reason == FallbackReason::Failed {
            self.members.clear();
        }
    }
}
