//! A source whose content is a function of name, version and offset, and that misbehaves as it is told.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use forebay_core::{ByteRange, Error, Kind, Result};
use futures::StreamExt;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::{ObjectId, ObjectVersion, Priority, Source, SourceBlock, SourceStream, Urgency};

/// The bytes of a range. Every eight say whose they are: which object version, and which eight of it.
pub(super) fn content(object: &ObjectVersion, range: ByteRange) -> Vec<u8> {
    let tag = u64::from(tag(object)) << 32;
    let first_word = range.start() / 8;
    let words = first_word..range.end().div_ceil(8);
    let mut bytes = Vec::with_capacity((range.len() + 16) as usize);
    for word in words {
        bytes.extend_from_slice(&(tag | word).to_le_bytes());
    }
    let skip = (range.start() - first_word * 8) as usize;
    bytes.truncate(skip + range.len() as usize);
    bytes.drain(..skip);
    bytes
}

/// Returns what stands in the content for the object version.
pub(super) fn tag(object: &ObjectVersion) -> u32 {
    let [a, b, c, d, ..] = ObjectId::of(object).0;
    u32::from_le_bytes([a, b, c, d])
}

#[derive(Debug)]
pub(super) struct FakeSource {
    /// Bytes that were sent.
    pub(super) sent_bytes: AtomicU64,
    pub(super) requests: Mutex<Vec<(ByteRange, Priority)>>,
    pub(super) urgencies: Mutex<Vec<Urgency>>,
    /// The next so many requests fail with this kind.
    pub(super) failures: AtomicU32,
    pub(super) failure_kind: Kind,
    /// Every body ends after this many bytes.
    pub(super) body_bytes_max: AtomicU64,
    /// A body panics instead of going on.
    pub(super) panics: AtomicBool,
    chunk_bytes: u64,
    open: watch::Sender<bool>,
}

impl FakeSource {
    pub(super) fn new() -> std::sync::Arc<Self> {
        Self::failing(0, Kind::Unavailable)
    }

    pub(super) fn failing(failures: u32, failure_kind: Kind) -> std::sync::Arc<Self> {
        std::sync::Arc::new(Self {
            sent_bytes: AtomicU64::new(0),
            requests: Mutex::default(),
            urgencies: Mutex::default(),
            failures: AtomicU32::new(failures),
            failure_kind,
            body_bytes_max: AtomicU64::new(u64::MAX),
            panics: AtomicBool::new(false),
            chunk_bytes: 100_000,
            open: watch::Sender::new(true),
        })
    }

    /// Bodies stall until the gate is opened.
    pub(super) fn close_gate(&self) {
        self.open.send_replace(false);
    }

    pub(super) fn open_gate(&self) {
        self.open.send_replace(true);
    }

    pub(super) fn sent(&self) -> u64 {
        self.sent_bytes.load(Ordering::SeqCst)
    }

    pub(super) fn request_count(&self) -> usize {
        self.requests.lock().len()
    }

    /// Bytes that were asked for with this priority.
    pub(super) fn asked(&self, priority: Priority) -> u64 {
        self.requests
            .lock()
            .iter()
            .filter(|request| request.1 == priority)
            .map(|request| request.0.len())
            .sum()
    }
}

#[async_trait]
impl Source for FakeSource {
    async fn fetch(
        &self,
        object: &ObjectVersion,
        range: ByteRange,
        urgency: &Urgency,
    ) -> Result<SourceStream> {
        self.requests.lock().push((range, urgency.now()));
        self.urgencies.lock().push(urgency.clone());
        let is_failure = |left: u32| left.checked_sub(1);
        if self
            .failures
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, is_failure)
            .is_ok()
        {
            return Err(Error::new(self.failure_kind, "the fake lake was told to fail"));
        }
        assert!(
            !self.panics.load(Ordering::SeqCst),
            "the fake lake was told to panic"
        );
        let mut gate = self.open.subscribe();
        let _ = gate.wait_for(|open| *open).await;
        let body_bytes = range.len().min(self.body_bytes_max.load(Ordering::SeqCst));
        self.sent_bytes.fetch_add(body_bytes, Ordering::SeqCst);
        let body = Bytes::from(content(object, range)).slice(..body_bytes as usize);
        let chunk_bytes = self.chunk_bytes as usize;
        let starts = (0..body.len()).step_by(chunk_bytes);
        let chunks: Vec<_> = starts
            .map(|start| body.slice(start..body.len().min(start + chunk_bytes)))
            .map(|chunk| Ok(SourceBlock::from_lake(chunk)))
            .collect();
        let chunks = futures::stream::iter(chunks).then(move |chunk| {
            let mut gate = gate.clone();
            async move {
                let _ = gate.wait_for(|open| *open).await;
                tokio::task::yield_now().await;
                chunk
            }
        });
        Ok(chunks.boxed())
    }
}
