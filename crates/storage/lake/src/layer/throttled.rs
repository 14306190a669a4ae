//! A lake that is as slow as you like: a latency for every request, a rate for all bytes together.
//!
//! For tests and for trying out how a job behaves on a far lake. The rate is kept by a schedule: each piece
//! of a body is scheduled behind the one before and waits until its time has come, so many readers share one
//! rate. A reader that wakes up late finds its next bytes waiting, as behind a socket: the schedule goes on
//! while timers are coarse.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use forebay_core::{ObjectKey, Result};
use futures::{StreamExt, TryStreamExt};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep, sleep_until};

use crate::{
    Attributes, ByteStream, CopyOptions, GetOptions, GetResult, Lake, LakeWriter, ListOptions, ListPage,
    ObjectMeta, PartNumber, PartReceipt, PutOptions, PutReceipt, UpdateToken, UploadId,
};

/// The schedule restarts only if nobody came for so long. Timers are a millisecond late or two.
const LATE_MAX: Duration = Duration::from_millis(5);

/// Latency and rate of a slow lake.
#[derive(Debug, Clone, Copy, Default)]
pub struct ThrottleOptions {
    /// Before every request.
    pub latency: Duration,
    /// For the bytes of all bodies together, both ways; `None` is no limit.
    pub bytes_per_s: Option<u64>,
}

/// A lake that is slowed down.
#[derive(Debug, Clone)]
pub struct Throttled {
    inner: Arc<dyn Lake>,
    latency: Duration,
    limiter: Arc<RateLimiter>,
}

/// A byte rate that all bodies share, and the moment from which it is free.
#[derive(Debug)]
struct RateLimiter {
    bytes_per_s: Option<u64>,
    free_from: Mutex<Option<Instant>>,
}

impl RateLimiter {
    /// Waits until these bytes have had their time.
    async fn pass(&self, bytes: usize) {
        let Some(bytes_per_s) = self.bytes_per_s else {
            return;
        };
        let duration = Duration::from_secs_f64(bytes as f64 / bytes_per_s.max(1) as f64);
        let until = {
            let mut free_from = self.free_from.lock();
            let now = Instant::now();
            let is_busy = |free_from: &Instant| *free_from + LATE_MAX >= now;
            let until = free_from.filter(is_busy).unwrap_or(now) + duration;
            *free_from = Some(until);
            until
        };
        // A timer is late by up to a millisecond; for bytes that are due within one it would only be later.
        if until > Instant::now() + Duration::from_millis(1) {
            sleep_until(until).await;
        }
    }
}

impl Throttled {
    /// Slows `inner` down.
    #[must_use]
    pub fn new(inner: Arc<dyn Lake>, options: ThrottleOptions) -> Self {
        let limiter = RateLimiter {
            bytes_per_s: options.bytes_per_s,
            free_from: Mutex::new(None),
        };
        Self {
            inner,
            latency: options.latency,
            limiter: Arc::new(limiter),
        }
    }

    async fn wait(&self) {
        if !self.latency.is_zero() {
            sleep(self.latency).await;
        }
    }

    fn slow(&self, body: ByteStream) -> ByteStream {
        let limiter = Arc::clone(&self.limiter);
        body.and_then(move |bytes| {
            let limiter = Arc::clone(&limiter);
            async move {
                limiter.pass(bytes.len()).await;
                Ok(bytes)
            }
        })
        .boxed()
    }
}

#[async_trait]
impl Lake for Throttled {
    fn url(&self) -> &str {
        self.inner.url()
    }

    async fn head(&self, key: &ObjectKey) -> Result<ObjectMeta> {
        self.wait().await;
        self.inner.head(key).await
    }

    async fn get(&self, key: &ObjectKey, options: GetOptions) -> Result<GetResult> {
        self.wait().await;
        let result = self.inner.get(key, options).await?;
        Ok(GetResult {
            body: self.slow(result.body),
            ..result
        })
    }

    async fn writer(
        &self,
        key: &ObjectKey,
        options: PutOptions,
        bytes_hint: Option<u64>,
    ) -> Result<Box<dyn LakeWriter>> {
        self.wait().await;
        let inner = self.inner.writer(key, options, bytes_hint).await?;
        Ok(Box::new(ThrottledWriter {
            inner,
            limiter: Arc::clone(&self.limiter),
        }))
    }

    async fn put(&self, key: &ObjectKey, body: Bytes, options: PutOptions) -> Result<PutReceipt> {
        self.wait().await;
        self.limiter.pass(body.len()).await;
        self.inner.put(key, body, options).await
    }

    async fn delete(&self, key: &ObjectKey) -> Result<()> {
        self.wait().await;
        self.inner.delete(key).await
    }

    async fn delete_if(&self, key: &ObjectKey, token: &UpdateToken) -> Result<()> {
        self.wait().await;
        self.inner.delete_if(key, token).await
    }

    async fn copy(&self, from: &ObjectKey, to: &ObjectKey, options: CopyOptions) -> Result<PutReceipt> {
        self.wait().await;
        self.inner.copy(from, to, options).await
    }

    async fn list(&self, options: ListOptions) -> Result<ListPage> {
        self.wait().await;
        self.inner.list(options).await
    }

    async fn start_upload(&self, key: &ObjectKey, attributes: Attributes) -> Result<UploadId> {
        self.wait().await;
        self.inner.start_upload(key, attributes).await
    }

    async fn upload_part(
        &self,
        key: &ObjectKey,
        upload: &UploadId,
        number: PartNumber,
        bytes: u64,
        body: ByteStream,
    ) -> Result<PartReceipt> {
        self.wait().await;
        self.inner
            .upload_part(key, upload, number, bytes, self.slow(body))
            .await
    }

    async fn complete_upload(
        &self,
        key: &ObjectKey,
        upload: &UploadId,
        parts: &[PartReceipt],
        options: PutOptions,
    ) -> Result<PutReceipt> {
        self.wait().await;
        self.inner.complete_upload(key, upload, parts, options).await
    }

    async fn open_uploads(&self, key: &ObjectKey) -> Result<Vec<UploadId>> {
        self.wait().await;
        self.inner.open_uploads(key).await
    }

    async fn upload_parts(&self, key: &ObjectKey, upload: &UploadId) -> Result<Vec<PartReceipt>> {
        self.wait().await;
        self.inner.upload_parts(key, upload).await
    }

    async fn abort_upload(&self, key: &ObjectKey, upload: &UploadId) -> Result<()> {
        self.wait().await;
        self.inner.abort_upload(key, upload).await
    }
}

struct ThrottledWriter {
    inner: Box<dyn LakeWriter>,
    limiter: Arc<RateLimiter>,
}

#[async_trait]
impl LakeWriter for ThrottledWriter {
    async fn write(&mut self, bytes: Bytes) -> Result<()> {
        self.limiter.pass(bytes.len()).await;
        self.inner.write(bytes).await
    }

    fn takes_attributes_at_finish(&self) -> bool {
        self.inner.takes_attributes_at_finish()
    }

    async fn finish(self: Box<Self>, options: PutOptions) -> Result<PutReceipt> {
        self.inner.finish(options).await
    }

    async fn abort(self: Box<Self>) -> Result<()> {
        self.inner.abort().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryLake;

    /// Two readers of 4 MiB each at 4 MiB/s behind 100 ms: 100 ms and then two seconds, because they share
    /// the rate.
    #[tokio::test(start_paused = true)]
    async fn readers_share_one_rate() {
        let memory = MemoryLake::new();
        let key = ObjectKey::new("k").unwrap();
        memory
            .put(&key, Bytes::from(vec![1; 4 << 20]), PutOptions::default())
            .await
            .unwrap();
        let options = ThrottleOptions {
            latency: Duration::from_millis(100),
            bytes_per_s: Some(4 << 20),
        };
        let lake = Throttled::new(Arc::new(memory), options);
        let read = async || {
            let body = lake.get(&key, GetOptions::default()).await.unwrap().body;
            body.try_for_each(|_| async { Ok(()) }).await.unwrap();
        };
        let start = Instant::now();
        tokio::join!(read(), read());
        let taken = start.elapsed();
        assert!(
            (Duration::from_millis(2090)..Duration::from_millis(2150)).contains(&taken),
            "{taken:?}"
        );
    }

    /// Four times 1 MiB at 100 MiB/s; whoever is 3 ms late for the next is given what was sent
    /// meanwhile.
    #[tokio::test(start_paused = true)]
    async fn the_schedule_does_not_wait_for_a_reader_that_is_a_little_late() {
        let memory = MemoryLake::new();
        let key = ObjectKey::new("k").unwrap();
        let body = Bytes::from(vec![1; 1 << 20]);
        memory.put(&key, body, PutOptions::default()).await.unwrap();
        let options = ThrottleOptions {
            latency: Duration::ZERO,
            bytes_per_s: Some(100 << 20),
        };
        let lake = Throttled::new(Arc::new(memory), options);
        let start = Instant::now();
        for _ in 0..4 {
            let body = lake.get(&key, GetOptions::default()).await.unwrap().body;
            body.try_for_each(|_| async { Ok(()) }).await.unwrap();
            sleep(Duration::from_millis(3)).await;
        }
        let taken = start.elapsed();
        assert!(
            (Duration::from_millis(40)..Duration::from_millis(47)).contains(&taken),
            "{taken:?}"
        );
    }
}
