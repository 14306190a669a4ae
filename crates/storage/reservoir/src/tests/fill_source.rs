//! Fills and their sources: checksums that bytes come with, tiers, silence, and the change to a fallback.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use forebay_core::{BLOCK_BYTES, Kind, Tier, crc32c};
use futures::{FutureExt, StreamExt};

use super::*;
use crate::{Priority, SourceBlock, SourceStream, Urgency};

/// A peer that sends whole blocks with their checksums, and misbehaves as it is told.
#[derive(Debug)]
struct Peer {
    tier: Tier,
    /// The next so many requests have one wrong bit in their second block.
    damaged: AtomicU32,
    /// Bodies end after so many blocks.
    blocks_max: AtomicUsize,
    /// Bodies never go on behind that.
    is_silent: AtomicBool,
    requests: AtomicUsize,
    fallback: Option<Arc<FakeSource>>,
}

impl Peer {
    fn new(fallback: Option<&Arc<FakeSource>>) -> Arc<Self> {
        Self::of(Tier::Peer, fallback)
    }

    fn of(tier: Tier, fallback: Option<&Arc<FakeSource>>) -> Arc<Self> {
        Arc::new(Self {
            tier,
            damaged: AtomicU32::new(0),
            blocks_max: AtomicUsize::new(usize::MAX),
            is_silent: AtomicBool::new(false),
            requests: AtomicUsize::new(0),
            fallback: fallback.map(Arc::clone),
        })
    }

    fn silent(fallback: Option<&Arc<FakeSource>>, after_blocks: usize) -> Arc<Self> {
        let peer = Self::new(fallback);
        peer.is_silent.store(true, Ordering::SeqCst);
        peer.blocks_max.store(after_blocks, Ordering::SeqCst);
        peer
    }

    fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }
}

#[async_trait]
impl Source for Peer {
    async fn fetch(&self, object: &ObjectVersion, range: ByteRange, _: &Urgency) -> Result<SourceStream> {
        self.requests.fetch_add(1, Ordering::SeqCst);
        let one_less = |left: u32| left.checked_sub(1);
        let damaged = &self.damaged;
        let is_damaged = damaged
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less)
            .is_ok();
        let body = content(object, range);
        let blocks = body
            .chunks(BLOCK_BYTES as usize)
            .enumerate()
            .map(|(number, block)| {
                let mut bytes = block.to_vec();
                let crc32c = Some(crc32c::crc32c(&bytes));
                if is_damaged && number == 1 {
                    bytes[7] ^= 1;
                }
                Ok(SourceBlock {
                    bytes: Bytes::from(bytes),
                    crc32c,
                    tier: self.tier,
                })
            });
        let blocks: Vec<_> = blocks.take(self.blocks_max.load(Ordering::SeqCst)).collect();
        let blocks = futures::stream::iter(blocks);
        Ok(match self.is_silent.load(Ordering::SeqCst) {
            true => blocks.chain(futures::stream::pending()).boxed(),
            false => blocks.boxed(),
        })
    }

    fn fallback(&self) -> Option<Arc<dyn Source>> {
        self.fallback.as_ref().map(shared)
    }
}

fn peers(peer: &Arc<Peer>) -> Arc<dyn Source> {
    Arc::clone(peer) as Arc<dyn Source>
}

async fn read(
    reservoir: &Arc<Reservoir>,
    object: &ObjectVersion,
    source: &Arc<dyn Source>,
) -> Result<Vec<Piece>> {
    reservoir.read(object, whole(object), source).try_collect().await
}

fn bytes_of(pieces: &[Piece]) -> Vec<u8> {
    pieces.iter().flat_map(|piece| piece.bytes.to_vec()).collect()
}

#[tokio::test]
async fn the_tier_that_a_source_names_is_reported() {
    let (reservoir, peer) = (reservoir(64 * MIB).await, Peer::new(None));
    let object = object("a", "1", 3 * MIB + 17);
    let first = read(&reservoir, &object, &peers(&peer)).await.unwrap();
    assert_eq!(bytes_of(&first), content(&object, whole(&object)));
    assert!(first.iter().all(|piece| piece.tier == Tier::Peer));
    let stats = reservoir.stats();
    assert_eq!(
        (stats.served_peer_bytes, stats.served_lake_bytes),
        (object.bytes, 0)
    );
    let again = read(&reservoir, &object, &peers(&peer)).await.unwrap();
    assert!(again.iter().all(|piece| piece.tier == Tier::Ram));
    let leased = reservoir
        .lease(&object, whole(&object), &peers(&peer))
        .await
        .unwrap();
    assert_eq!(leased.tiers().ram, object.bytes);
}

#[tokio::test]
async fn bytes_of_a_tier_that_is_no_source_are_refused() {
    for tier in [Tier::Ram, Tier::Nvme] {
        let (reservoir, peer) = (reservoir(64 * MIB).await, Peer::of(tier, None));
        let object = object("a", "1", MIB);
        let error = read(&reservoir, &object, &peers(&peer)).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Internal);
    }
}

#[tokio::test]
async fn damaged_bytes_are_asked_for_once_more() {
    let (reservoir, peer) = (reservoir(64 * MIB).await, Peer::new(None));
    peer.damaged.store(1, Ordering::SeqCst);
    let object = object("a", "1", MIB);
    let pieces = read(&reservoir, &object, &peers(&peer)).await.unwrap();
    assert_eq!(bytes_of(&pieces), content(&object, whole(&object)));
    assert_eq!(peer.requests(), 2);
    assert_eq!(reservoir.stats().corrupt_source_blocks, 1);
}

#[tokio::test]
async fn bytes_that_stay_damaged_are_an_error_with_a_name() {
    let (reservoir, peer) = (reservoir(64 * MIB).await, Peer::new(None));
    peer.damaged.store(u32::MAX, Ordering::SeqCst);
    let object = object("a", "1", MIB);
    let error = read(&reservoir, &object, &peers(&peer)).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Checksum);
    let text = error.to_string();
    assert!(
        text.contains("do not match the checksum that they came with"),
        "{text}"
    );
    assert!(text.contains("key: a") && text.contains("tier: Peer"), "{text}");
}

#[tokio::test]
async fn a_damaged_peer_is_a_miss_and_the_fallback_gives_the_rest() {
    let lake = FakeSource::new();
    let (reservoir, peer) = (reservoir(64 * MIB).await, Peer::new(Some(&lake)));
    peer.damaged.store(1, Ordering::SeqCst);
    let object = object("a", "1", MIB);
    let pieces = read(&reservoir, &object, &peers(&peer)).await.unwrap();
    assert_eq!(bytes_of(&pieces), content(&object, whole(&object)));
    assert_eq!((peer.requests(), lake.sent()), (1, MIB - BLOCK_BYTES));
    let stats = reservoir.stats();
    assert_eq!((stats.corrupt_source_blocks, stats.fill_fallbacks), (1, 1));
    assert!(stats.served_lake_bytes > 0);
}

#[tokio::test]
async fn a_short_body_of_a_peer_goes_on_from_the_fallback() {
    let lake = FakeSource::new();
    let (reservoir, peer) = (reservoir(64 * MIB).await, Peer::new(Some(&lake)));
    peer.blocks_max.store(5, Ordering::SeqCst);
    let object = object("a", "1", MIB);
    let pieces = read(&reservoir, &object, &peers(&peer)).await.unwrap();
    assert_eq!(bytes_of(&pieces), content(&object, whole(&object)));
    assert_eq!((peer.requests(), lake.sent()), (1, MIB - 5 * BLOCK_BYTES));
}

#[tokio::test]
async fn a_fallback_that_fails_too_is_the_error() {
    let lake = FakeSource::failing(u32::MAX, Kind::Changed);
    let (reservoir, peer) = (reservoir(64 * MIB).await, Peer::new(Some(&lake)));
    peer.blocks_max.store(0, Ordering::SeqCst);
    let object = object("a", "1", MIB);
    let error = read(&reservoir, &object, &peers(&peer)).await.unwrap_err();
    assert_eq!(
        (error.kind(), peer.requests(), lake.request_count()),
        (Kind::Changed, 1, 1)
    );
}

#[tokio::test(start_paused = true)]
async fn a_source_that_is_silent_ends_with_a_timeout_that_says_so() {
    let (reservoir, peer) = (reservoir(64 * MIB).await, Peer::silent(None, 3));
    let object = object("a", "1", MIB);
    let started = tokio::time::Instant::now();
    let error = read(&reservoir, &object, &peers(&peer)).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Timeout);
    assert!(error.is_retryable());
    let text = error.to_string();
    assert!(
        text.contains("waited in vain for the next bytes of its source"),
        "{text}"
    );
    assert!(
        text.contains("waited_ms: 120000") && text.contains("key: a"),
        "{text}"
    );
    // A read tries a fill that failed for a reason that may pass once more.
    let waited = started.elapsed();
    assert!(
        waited <= 2 * ReservoirOptions::FILL_SILENCE_DEFAULT + Duration::from_secs(1),
        "{waited:?}"
    );
    assert_eq!(reservoir.stats().fill_timeouts, 2);
}

#[tokio::test(start_paused = true)]
async fn leases_prefetches_and_reads_past_the_cache_do_not_wait_for_ever_either() {
    let object = object("a", "1", MIB);
    let (reservoir, peer) = (reservoir(64 * MIB).await, Peer::silent(None, 0));
    let source = peers(&peer);
    let error = reservoir
        .lease(&object, whole(&object), &source)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), Kind::Timeout);
    let error = reservoir
        .prefetch(&object, whole(&object), &source)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), Kind::Timeout);
    let without_ram = Reservoir::open(options(0)).await.unwrap();
    let error = read(&without_ram, &object, &source).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Timeout);
}

#[tokio::test(start_paused = true)]
async fn a_silent_peer_costs_one_deadline_however_many_wait() {
    let lake = FakeSource::new();
    let (reservoir, peer) = (reservoir(64 * MIB).await, Peer::silent(Some(&lake), 4));
    let object = object("a", "1", MIB);
    let started = tokio::time::Instant::now();
    let source = peers(&peer);
    let readers = (0..16).map(|_| read(&reservoir, &object, &source));
    for read in futures::future::join_all(readers).await {
        assert_eq!(bytes_of(&read.unwrap()), content(&object, whole(&object)));
    }
    let waited = started.elapsed();
    assert!(
        waited <= ReservoirOptions::FILL_SILENCE_DEFAULT + Duration::from_secs(1),
        "{waited:?}"
    );
    assert_eq!((peer.requests(), lake.request_count()), (1, 1));
}

#[tokio::test]
async fn a_reader_that_may_not_wait_for_a_peer_moves_the_fill_to_the_lake() {
    let lake = FakeSource::new();
    let (reservoir, peer) = (reservoir(64 * MIB).await, Peer::silent(Some(&lake), 2));
    let object = object("a", "1", MIB);
    let source = peers(&peer);
    let mut local = read(&reservoir, &object, &source).boxed();
    assert!(futures::poll!(&mut local).is_pending());
    eventually("the peer is asked", || peer.requests() == 1).await;
    // What another node asks for is answered from the lake, and both get the bytes of that one fetch.
    check(&reservoir, &object, whole(&object), &lake).await;
    assert_eq!(bytes_of(&local.await.unwrap()), content(&object, whole(&object)));
    assert_eq!((peer.requests(), lake.request_count()), (1, 1));
    assert!(lake.sent() >= MIB - 2 * BLOCK_BYTES);
}

#[tokio::test]
async fn a_reader_past_the_cache_that_may_not_wait_for_a_peer_moves_the_fetch_to_the_lake() {
    let lake = FakeSource::new();
    let peer = Peer::silent(Some(&lake), 0);
    let reservoir = Reservoir::open(options(0)).await.unwrap();
    let object = object("a", "1", MIB);
    let source = peers(&peer);
    let mut local = read(&reservoir, &object, &source).boxed();
    assert!(futures::poll!(&mut local).is_pending());
    eventually("the peer is asked", || peer.requests() == 1).await;
    let (local, ()) = futures::join!(local, check(&reservoir, &object, whole(&object), &lake));
    assert_eq!(bytes_of(&local.unwrap()), content(&object, whole(&object)));
    assert_eq!((peer.requests(), lake.request_count()), (1, 1));
}

#[tokio::test]
async fn a_reader_with_the_same_source_joins_and_changes_nothing() {
    let lake = FakeSource::new();
    let peer = Peer::new(Some(&lake));
    let reservoir = reservoir(64 * MIB).await;
    let object = object("a", "1", 4 * MIB);
    let source = peers(&peer);
    let readers = (0..8).map(|_| read(&reservoir, &object, &source));
    for read in futures::future::join_all(readers).await {
        assert_eq!(bytes_of(&read.unwrap()), content(&object, whole(&object)));
    }
    assert_eq!((peer.requests(), lake.request_count()), (1, 0));
    assert_eq!(lake.asked(Priority::Demand), 0);
}
