//! A lake that counts: requests by operation and outcome, and the bytes that pass.
//!
//! Bytes are counted as they pass, so a read that is dropped half-way counts half. A `get` counts when it
//! begins; a body that breaks later is counted apart. The node's lake metrics and the tests of "one read"
//! read the same counters.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use forebay_core::{Kind, ObjectKey, Result};
use futures::{StreamExt, TryStreamExt};

use crate::{
    Attributes, ByteStream, CopyOptions, GetOptions, GetResult, Lake, LakeWriter, ListOptions, ListPage,
    ObjectMeta, Operation, PartNumber, PartReceipt, PutOptions, PutReceipt, UpdateToken, UploadId,
};

/// `ok` and one for every kind of error.
const OUTCOMES: usize = 1 + Kind::ALL.len();

/// Counters that never go back; shared with whoever reports them.
#[derive(Debug)]
pub struct LakeCounters {
    requests: [[AtomicU64; OUTCOMES]; Operation::ALL.len()],
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
    broken_bodies: AtomicU64,
}

impl Default for LakeCounters {
    fn default() -> Self {
        Self {
            requests: std::array::from_fn(|_| std::array::from_fn(|_| AtomicU64::new(0))),
            read_bytes: AtomicU64::new(0),
            written_bytes: AtomicU64::new(0),
            broken_bodies: AtomicU64::new(0),
        }
    }
}

/// Number of times an operation has ended in a certain way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestCount {
    /// The operation.
    pub operation: Operation,
    /// `None` for success.
    pub error: Option<Kind>,
    /// Number of times.
    pub count: u64,
}

impl RequestCount {
    /// The outcome's name in metrics: `ok` or the kind of error.
    #[must_use]
    pub fn outcome(&self) -> &'static str {
        self.error.map_or("ok", Kind::as_str)
    }
}

/// The counters at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LakeCounts {
    /// Outcomes that happened at least once.
    pub requests: Vec<RequestCount>,
    /// Bytes of bodies that came from the lake.
    pub read_bytes: u64,
    /// Bytes of bodies that went to the lake, also of writes that failed later.
    pub written_bytes: u64,
    /// Bodies that ended with an error after their `get` had succeeded.
    pub broken_bodies: u64,
}

impl LakeCounts {
    /// All requests of one operation, whatever their outcome.
    #[must_use]
    pub fn requests_of(&self, operation: Operation) -> u64 {
        self.requests
            .iter()
            .filter(|request| request.operation == operation)
            .map(|request| request.count)
            .sum()
    }

    /// All requests.
    #[must_use]
    pub fn requests_total(&self) -> u64 {
        self.requests.iter().map(|request| request.count).sum()
    }
}

impl LakeCounters {
    /// The counters now. Each number is exact; together they are of nearly the same moment.
    #[must_use]
    pub fn snapshot(&self) -> LakeCounts {
        let mut requests = Vec::new();
        for (operation, outcomes) in Operation::ALL.into_iter().zip(&self.requests) {
            let errors = std::iter::once(None).chain(Kind::ALL.into_iter().map(Some));
            for (error, count) in errors.zip(outcomes) {
                let count = count.load(Ordering::Relaxed);
                if count > 0 {
                    requests.push(RequestCount {
                        operation,
                        error,
                        count,
                    });
                }
            }
        }
        LakeCounts {
            requests,
            read_bytes: self.read_bytes.load(Ordering::Relaxed),
            written_bytes: self.written_bytes.load(Ordering::Relaxed),
            broken_bodies: self.broken_bodies.load(Ordering::Relaxed),
        }
    }

    fn record<T>(&self, operation: Operation, result: Result<T>) -> Result<T> {
        let outcome = match &result {
            Ok(_) => 0,
            Err(error) => Kind::ALL
                .iter()
                .position(|kind| *kind == error.kind())
                .map_or(0, |index| index + 1),
        };
        self.requests[operation as usize][outcome].fetch_add(1, Ordering::Relaxed);
        result
    }

    fn wrote(&self, bytes: &Bytes) {
        self.written_bytes
            .fetch_add(bytes.len() as u64, Ordering::Relaxed);
    }
}

/// A lake whose use is counted.
#[derive(Debug, Clone)]
pub struct Counted {
    inner: Arc<dyn Lake>,
    counters: Arc<LakeCounters>,
}

impl Counted {
    /// Counts from zero.
    #[must_use]
    pub fn new(inner: Arc<dyn Lake>) -> Self {
        Self::with_counters(inner, Arc::default())
    }

    /// Counts on; several lakes may share counters.
    #[must_use]
    pub fn with_counters(inner: Arc<dyn Lake>, counters: Arc<LakeCounters>) -> Self {
        Self { inner, counters }
    }

    /// The counters.
    #[must_use]
    pub fn counters(&self) -> &Arc<LakeCounters> {
        &self.counters
    }

    fn count_read(&self, body: ByteStream) -> ByteStream {
        let (reads, failures) = (Arc::clone(&self.counters), Arc::clone(&self.counters));
        body.inspect_ok(move |bytes| {
            reads.read_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        })
        .inspect_err(move |_| {
            failures.broken_bodies.fetch_add(1, Ordering::Relaxed);
        })
        .boxed()
    }
}

#[async_trait]
impl Lake for Counted {
    fn url(&self) -> &str {
        self.inner.url()
    }

    async fn head(&self, key: &ObjectKey) -> Result<ObjectMeta> {
        self.counters.record(Operation::Head, self.inner.head(key).await)
    }

    async fn get(&self, key: &ObjectKey, options: GetOptions) -> Result<GetResult> {
        let result = self
            .counters
            .record(Operation::Get, self.inner.get(key, options).await)?;
        Ok(GetResult {
            body: self.count_read(result.body),
            ..result
        })
    }

    async fn writer(
        &self,
        key: &ObjectKey,
        options: PutOptions,
        bytes_hint: Option<u64>,
    ) -> Result<Box<dyn LakeWriter>> {
        match self.inner.writer(key, options, bytes_hint).await {
            Ok(inner) => Ok(Box::new(CountedWriter {
                inner,
                counters: Arc::clone(&self.counters),
            })),
            error => self.counters.record(Operation::Put, error),
        }
    }

    async fn put(&self, key: &ObjectKey, body: Bytes, options: PutOptions) -> Result<PutReceipt> {
        self.counters.wrote(&body);
        self.counters
            .record(Operation::Put, self.inner.put(key, body, options).await)
    }

    async fn delete(&self, key: &ObjectKey) -> Result<()> {
        self.counters
            .record(Operation::Delete, self.inner.delete(key).await)
    }

    async fn delete_if(&self, key: &ObjectKey, token: &UpdateToken) -> Result<()> {
        self.counters
            .record(Operation::Delete, self.inner.delete_if(key, token).await)
    }

    async fn copy(&self, from: &ObjectKey, to: &ObjectKey, options: CopyOptions) -> Result<PutReceipt> {
        self.counters
            .record(Operation::Copy, self.inner.copy(from, to, options).await)
    }

    async fn list(&self, options: ListOptions) -> Result<ListPage> {
        self.counters
            .record(Operation::List, self.inner.list(options).await)
    }

    async fn start_upload(&self, key: &ObjectKey, attributes: Attributes) -> Result<UploadId> {
        self.counters.record(
            Operation::StartUpload,
            self.inner.start_upload(key, attributes).await,
        )
    }

    async fn upload_part(
        &self,
        key: &ObjectKey,
        upload: &UploadId,
        number: PartNumber,
        bytes: u64,
        body: ByteStream,
    ) -> Result<PartReceipt> {
        let counters = Arc::clone(&self.counters);
        let body = body.inspect_ok(move |bytes| counters.wrote(bytes)).boxed();
        let result = self.inner.upload_part(key, upload, number, bytes, body).await;
        self.counters.record(Operation::UploadPart, result)
    }

    async fn complete_upload(
        &self,
        key: &ObjectKey,
        upload: &UploadId,
        parts: &[PartReceipt],
        options: PutOptions,
    ) -> Result<PutReceipt> {
        let result = self.inner.complete_upload(key, upload, parts, options).await;
        self.counters.record(Operation::CompleteUpload, result)
    }

    async fn open_uploads(&self, key: &ObjectKey) -> Result<Vec<UploadId>> {
        self.counters
            .record(Operation::List, self.inner.open_uploads(key).await)
    }

    async fn upload_parts(&self, key: &ObjectKey, upload: &UploadId) -> Result<Vec<PartReceipt>> {
        self.counters
            .record(Operation::List, self.inner.upload_parts(key, upload).await)
    }

    async fn abort_upload(&self, key: &ObjectKey, upload: &UploadId) -> Result<()> {
        self.counters
            .record(Operation::AbortUpload, self.inner.abort_upload(key, upload).await)
    }
}

struct CountedWriter {
    inner: Box<dyn LakeWriter>,
    counters: Arc<LakeCounters>,
}

#[async_trait]
impl LakeWriter for CountedWriter {
    async fn write(&mut self, bytes: Bytes) -> Result<()> {
        self.counters.wrote(&bytes);
        self.inner.write(bytes).await
    }

    fn takes_attributes_at_finish(&self) -> bool {
        self.inner.takes_attributes_at_finish()
    }

    async fn finish(self: Box<Self>, options: PutOptions) -> Result<PutReceipt> {
        self.counters
            .record(Operation::Put, self.inner.finish(options).await)
    }

    async fn abort(self: Box<Self>) -> Result<()> {
        self.inner.abort().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryLake;

    #[tokio::test]
    async fn requests_are_counted_by_operation_and_outcome_and_bytes_as_they_pass() {
        let lake = Counted::new(Arc::new(MemoryLake::new()));
        let key = ObjectKey::new("k").unwrap();
        lake.put(&key, Bytes::from(vec![7; 3 << 20]), PutOptions::default())
            .await
            .unwrap();
        let mut body = lake.get(&key, GetOptions::default()).await.unwrap().body;
        let first = body.try_next().await.unwrap().unwrap();
        drop(body);
        assert!(lake.head(&ObjectKey::new("absent").unwrap()).await.is_err());

        let counts = lake.counters().snapshot();
        assert_eq!(counts.written_bytes, 3 << 20);
        assert_eq!(counts.read_bytes, first.len() as u64);
        assert_eq!(
            (counts.requests_of(Operation::Get), counts.requests_total()),
            (1, 3)
        );
        let failed: Vec<_> = counts
            .requests
            .iter()
            .filter(|request| request.error.is_some())
            .collect();
        assert_eq!(failed.len(), 1);
        assert_eq!(
            (failed[0].operation, failed[0].outcome(), failed[0].count),
            (Operation::Head, "not_found", 1)
        );
    }

    #[test]
    fn operations_index_their_own_row() {
        for (index, operation) in Operation::ALL.into_iter().enumerate() {
            assert_eq!(operation as usize, index);
        }
    }
}
