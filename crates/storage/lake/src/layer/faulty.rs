//! A lake that fails on purpose: scripted faults for tests of one case, seeded random ones for storms.
//!
//! A scripted fault waits for the next call that it fits and is used up; random faults hit each call of their
//! operation with a probability, in an order that the seed fixes. Faults of bodies (short, corrupt, a hook in
//! the middle) apply to what `get` returns, `Error` and `Stall` to any operation, before the lake below sees
//! it.

mod body;

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use forebay_core::{Error, Kind, ObjectKey, Result};
use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::{
    Attributes, ByteStream, CopyOptions, GetOptions, GetResult, Lake, LakeWriter, ListOptions, ListPage,
    ObjectMeta, Operation, PartNumber, PartReceipt, PutOptions, PutReceipt, UpdateToken, UploadId,
};

/// Runs when a body reaches an offset, for example to replace the object that is being read.
pub type FaultHook = Arc<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>;

/// A failure to inject.
#[derive(Clone)]
pub enum Fault {
    /// The operation fails with an error of this kind and is not done.
    Error(Kind),
    /// The operation is done, then fails with an error of this kind: the caller cannot know.
    ErrorAfter(Kind),
    /// The operation waits until [`Faulty::release`] is called, then goes on.
    Stall,
    /// The body of a `get` breaks off with `Unavailable` after so many bytes.
    ShortBody {
        /// Bytes that still come.
        after_bytes: u64,
    },
    /// The body of a `get` has one wrong byte at this offset.
    CorruptBody {
        /// Offset from the start of the body.
        at_byte: u64,
    },
    /// The body of a `get` waits for [`Faulty::release`] after so many bytes.
    StallBody {
        /// Bytes that come before.
        after_bytes: u64,
    },
    /// Runs when the body of a `get` has given so many bytes and is asked for more.
    Hook {
        /// Bytes that come before.
        after_bytes: u64,
        /// The hook.
        hook: FaultHook,
    },
}

impl fmt::Debug for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Error(kind) => write!(f, "Error({kind})"),
            Self::ErrorAfter(kind) => write!(f, "ErrorAfter({kind})"),
            Self::Stall => f.write_str("Stall"),
            Self::ShortBody { after_bytes } => write!(f, "ShortBody({after_bytes})"),
            Self::CorruptBody { at_byte } => write!(f, "CorruptBody({at_byte})"),
            Self::StallBody { after_bytes } => write!(f, "StallBody({after_bytes})"),
            Self::Hook { after_bytes, .. } => write!(f, "Hook({after_bytes})"),
        }
    }
}

/// A lake with faults. Clones share them.
#[derive(Debug, Clone)]
pub struct Faulty {
    inner: Arc<dyn Lake>,
    plan: Arc<Mutex<Plan>>,
    gate: Gate,
}

#[derive(Debug)]
struct Plan {
    scripted: VecDeque<(Operation, Fault)>,
    random: Vec<(Operation, f64, Fault)>,
    random_source: fastrand::Rng,
    hits: usize,
}

/// Barrier at which stalled operations wait.
#[derive(Debug, Clone)]
struct Gate {
    released: Arc<watch::Sender<u64>>,
    waiting: Arc<AtomicUsize>,
}

impl Gate {
    async fn wait(&self) {
        let mut released = self.released.subscribe();
        let _waiting = Waiting::new(&self.waiting);
        // The sender lives in the same gate, so the channel cannot close.
        let _ = released.changed().await;
    }
}

/// Counts one waiter, also when its future is dropped.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Faulty {
    /// Without faults at first; `seed` fixes the random ones.
    #[must_use]
    pub fn new(inner: Arc<dyn Lake>, seed: u64) -> Self {
        let random_source = fastrand::Rng::with_seed(seed);
        let plan = Plan {
            scripted: VecDeque::new(),
            random: Vec::new(),
            random_source,
            hits: 0,
        };
        let gate = Gate {
            released: Arc::new(watch::Sender::new(0)),
            waiting: Arc::default(),
        };
        Self {
            inner,
            plan: Arc::new(Mutex::new(plan)),
            gate,
        }
    }

    /// The next call of `operation` gets this fault; several queue up.
    pub fn script(&self, operation: Operation, fault: Fault) {
        self.plan.lock().scripted.push_back((operation, fault));
    }

    /// From now on each call of `operation` gets this fault with this probability (0 to 1).
    pub fn random(&self, operation: Operation, probability: f64, fault: Fault) {
        self.plan.lock().random.push((operation, probability, fault));
    }

    /// No more faults, scripted or random. What stalls goes on stalling until released.
    pub fn heal(&self) {
        let mut plan = self.plan.lock();
        plan.scripted.clear();
        plan.random.clear();
    }

    /// Lets everything that stalls now go on.
    pub fn release(&self) {
        self.gate.released.send_modify(|generation| *generation += 1);
    }

    /// Returns how many operations and bodies stall now.
    #[must_use]
    pub fn stalled(&self) -> usize {
        self.gate.waiting.load(Ordering::SeqCst)
    }

    /// Returns how many faults have hit so far.
    #[must_use]
    pub fn hits(&self) -> usize {
        self.plan.lock().hits
    }

    fn draw(&self, operation: Operation) -> Option<Fault> {
        let mut guard = self.plan.lock();
        let plan = &mut *guard;
        let scripted = plan.scripted.iter().position(|(wanted, _)| *wanted == operation);
        let fault = match scripted.and_then(|index| plan.scripted.remove(index)) {
            Some((_, fault)) => Some(fault),
            None => plan
                .random
                .iter()
                .find(|(wanted, probability, _)| {
                    *wanted == operation && plan.random_source.f64() < *probability
                })
                .map(|(_, _, fault)| fault.clone()),
        };
        plan.hits += usize::from(fault.is_some());
        fault
    }

    /// Runs an operation under the fault that it draws, if any. Returns a body fault for the caller to apply.
    async fn run<T>(
        &self,
        operation: Operation,
        work: impl Future<Output = Result<T>>,
    ) -> Result<(T, Option<Fault>)> {
        match self.draw(operation) {
            Some(Fault::Error(kind)) => Err(self.error(kind, operation)),
            Some(Fault::ErrorAfter(kind)) => {
                work.await?;
                Err(self.error(kind, operation))
            }
            Some(Fault::Stall) => {
                self.gate.wait().await;
                Ok((work.await?, None))
            }
            fault => Ok((work.await?, fault)),
        }
    }

    fn error(&self, kind: Kind, operation: Operation) -> Error {
        Error::new(kind, "injected fault")
            .with("operation", operation)
            .with("lake", self.inner.url())
    }
}

#[async_trait]
impl Lake for Faulty {
    fn url(&self) -> &str {
        self.inner.url()
    }

    async fn head(&self, key: &ObjectKey) -> Result<ObjectMeta> {
        self.run(Operation::Head, self.inner.head(key)).await.map(first)
    }

    async fn get(&self, key: &ObjectKey, options: GetOptions) -> Result<GetResult> {
        let (result, fault) = self.run(Operation::Get, self.inner.get(key, options)).await?;
        Ok(match fault {
            Some(fault) => GetResult {
                body: body::spoil(result.body, fault, self.gate.clone()),
                ..result
            },
            None => result,
        })
    }

    async fn writer(
        &self,
        key: &ObjectKey,
        options: PutOptions,
        bytes_hint: Option<u64>,
    ) -> Result<Box<dyn LakeWriter>> {
        let inner = self.inner.writer(key, options, bytes_hint).await?;
        Ok(Box::new(FaultyWriter {
            inner,
            lake: self.clone(),
        }))
    }

    async fn put(&self, key: &ObjectKey, body: Bytes, options: PutOptions) -> Result<PutReceipt> {
        self.run(Operation::Put, self.inner.put(key, body, options))
            .await
            .map(first)
    }

    async fn delete(&self, key: &ObjectKey) -> Result<()> {
        self.run(Operation::Delete, self.inner.delete(key))
            .await
            .map(first)
    }

    async fn delete_if(&self, key: &ObjectKey, token: &UpdateToken) -> Result<()> {
        self.run(Operation::Delete, self.inner.delete_if(key, token))
            .await
            .map(first)
    }

    async fn copy(&self, from: &ObjectKey, to: &ObjectKey, options: CopyOptions) -> Result<PutReceipt> {
        self.run(Operation::Copy, self.inner.copy(from, to, options))
            .await
            .map(first)
    }

    async fn list(&self, options: ListOptions) -> Result<ListPage> {
        self.run(Operation::List, self.inner.list(options))
            .await
            .map(first)
    }

    async fn start_upload(&self, key: &ObjectKey, attributes: Attributes) -> Result<UploadId> {
        self.run(Operation::StartUpload, self.inner.start_upload(key, attributes))
            .await
            .map(first)
    }

    async fn upload_part(
        &self,
        key: &ObjectKey,
        upload: &UploadId,
        number: PartNumber,
        bytes: u64,
        body: ByteStream,
    ) -> Result<PartReceipt> {
        let work = self.inner.upload_part(key, upload, number, bytes, body);
        self.run(Operation::UploadPart, work).await.map(first)
    }

    async fn complete_upload(
        &self,
        key: &ObjectKey,
        upload: &UploadId,
        parts: &[PartReceipt],
        options: PutOptions,
    ) -> Result<PutReceipt> {
        let work = self.inner.complete_upload(key, upload, parts, options);
        self.run(Operation::CompleteUpload, work).await.map(first)
    }

    async fn open_uploads(&self, key: &ObjectKey) -> Result<Vec<UploadId>> {
        self.run(Operation::List, self.inner.open_uploads(key))
            .await
            .map(first)
    }

    async fn upload_parts(&self, key: &ObjectKey, upload: &UploadId) -> Result<Vec<PartReceipt>> {
        self.run(Operation::List, self.inner.upload_parts(key, upload))
            .await
            .map(first)
    }

    async fn abort_upload(&self, key: &ObjectKey, upload: &UploadId) -> Result<()> {
        self.run(Operation::AbortUpload, self.inner.abort_upload(key, upload))
            .await
            .map(first)
    }
}

/// The result without a body fault, which means nothing outside of `get`.
fn first<T>((value, _): (T, Option<Fault>)) -> T {
    value
}

/// Faults of `Put` hit when the writer finishes.
struct FaultyWriter {
    inner: Box<dyn LakeWriter>,
    lake: Faulty,
}

#[async_trait]
impl LakeWriter for FaultyWriter {
    async fn write(&mut self, bytes: Bytes) -> Result<()> {
        self.inner.write(bytes).await
    }

    fn takes_attributes_at_finish(&self) -> bool {
        self.inner.takes_attributes_at_finish()
    }

    async fn finish(self: Box<Self>, options: PutOptions) -> Result<PutReceipt> {
        let Self { inner, lake } = *self;
        lake.run(Operation::Put, inner.finish(options)).await.map(first)
    }

    async fn abort(self: Box<Self>) -> Result<()> {
        self.inner.abort().await
    }
}

#[cfg(test)]
mod tests;
