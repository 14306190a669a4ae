//! Filling missing blocks: from NVMe where they are there, else from the source, each once.
//!
//! Whoever claims blocks hands the claims over here. Neighbouring blocks are joined into fetch ranges, over
//! pages too, so that the source sees few large ranges. Each fetch range is filled by a task that belongs to
//! the [`Filler`], not to the reader: a reader that goes away does not take the bytes from those who wait for
//! the same ones. Blocks become readable one by one.
//!
//! The source belongs to the fill, not to those who wait for it. If it fails, is silent for too long, sends damaged
//! bytes, or a reader joins that may not wait for it, what is left comes from its fallback (`control.rs`), once.
//! Without a fallback the fill ends with the error; only damaged bytes are asked for once more.
//!
//! Limits: what is in flight has memory in the RAM tier already, so its budget bounds it. Tasks end with
//! [`Filler::shutdown`] at the latest; blocks given up are missing again, and their waiters are told why.

mod block_writer;
mod control;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use forebay_core::{BLOCK_BYTES, BlockMask, ByteRange, Error, Kind, Result, Tier};
use futures::StreamExt;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::nvme::NvmeStore;
use crate::page::PageClaim;
use crate::stats::Counters;
use crate::{ObjectVersion, Priority, Source, SourceBlock, SourceStream};

use block_writer::BlockWriter;
pub(crate) use block_writer::checked;
pub(crate) use control::FillControl;

/// A fetch range is not longer than this, so that several are fetched side by side.
const FETCH_BYTES_MAX: u64 = 16 << 20;

const SHORT_BODY: &str = "a source sent fewer bytes than were asked for";

/// Owns the tasks that fill.
#[derive(Debug)]
pub(crate) struct Filler {
    tasks: TaskTracker,
    stop: CancellationToken,
    nvme: Option<Arc<NvmeStore>>,
    silence_max: Duration,
    counters: Arc<Counters>,
}

/// The object of a fill, and the control of how it comes.
#[derive(Debug, Clone)]
pub(crate) struct FillRequest {
    pub(crate) object: Arc<ObjectVersion>,
    pub(crate) control: FillControl,
    source: Arc<dyn Source>,
}

impl FillRequest {
    pub(crate) fn new(object: &Arc<ObjectVersion>, source: &Arc<dyn Source>, priority: Priority) -> Self {
        Self {
            object: Arc::clone(object),
            control: FillControl::new(source, priority),
            source: Arc::clone(source),
        }
    }

    /// A request for the bytes from `at` on, for fills that begin now, and the end of what its source gives.
    pub(crate) fn at(&self, at: u64, priority: Priority) -> (Self, u64) {
        let route = self.source.route(&self.object, at).filter(|route| route.end > at);
        let (source, end) = match &route {
            Some(route) => (&route.source, route.end),
            None => (&self.source, u64::MAX),
        };
        let request = Self {
            object: Arc::clone(&self.object),
            control: FillControl::new(source, priority),
            source: Arc::clone(&self.source),
        };
        (request, end)
    }
}

/// Claims on their way to the filler, each run of them with the source that gives its bytes.
pub(crate) struct RoutedClaims<'a> {
    filler: &'a Filler,
    request: &'a FillRequest,
    priority: Priority,
    /// The request of the claims below, and the end of its route.
    current: Option<(FillRequest, u64)>,
    claims: Vec<PageClaim>,
}

impl<'a> RoutedClaims<'a> {
    /// No claims yet.
    pub(crate) fn new(filler: &'a Filler, request: &'a FillRequest, priority: Priority) -> Self {
        Self {
            filler,
            request,
            priority,
            current: None,
            claims: Vec::new(),
        }
    }

    /// The control of a fill of the bytes at `at`, which lie behind those before.
    pub(crate) fn control(&mut self, at: u64) -> FillControl {
        if self.current.as_ref().is_none_or(|(_, end)| at >= *end) {
            self.hand_over();
            self.current = Some(self.request.at(at, self.priority));
        }
        let current = self.current.as_ref();
        current.map_or_else(
            || self.request.control.clone(),
            |(request, _)| request.control.clone(),
        )
    }

    /// Takes a claim that was made with the last control; it has memory.
    pub(crate) fn push(&mut self, claim: PageClaim) {
        self.claims.push(claim);
    }

    /// Starts the fills of all claims.
    pub(crate) fn start(mut self) {
        self.hand_over();
    }

    fn hand_over(&mut self) {
        if let Some((request, _)) = &self.current {
            self.filler.start(std::mem::take(&mut self.claims), request);
        }
    }
}

impl Filler {
    /// A filler without tasks.
    pub(crate) fn new(nvme: Option<Arc<NvmeStore>>, silence_max: Duration, counters: Arc<Counters>) -> Self {
        Self {
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
            nvme,
            silence_max,
            counters,
        }
    }

    /// Returns whether it was told to stop.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.is_cancelled()
    }

    /// Starts filling the claimed blocks; they have memory and come in page order.
    pub(crate) fn start(&self, claims: Vec<PageClaim>, request: &FillRequest) {
        let mut from_source = Vec::with_capacity(claims.len());
        for mut claim in claims {
            if let Some(nvme) = &self.nvme
                && let Some(on_nvme) = nvme.lookup(&claim.page().key)
                && let Some(promoted) = claim.split_off(on_nvme)
            {
                self.spawn(promote(Arc::clone(nvme), promoted, self.fill(request)));
            }
            from_source.push(claim);
        }
        for fetch_range in fetch_ranges(from_source) {
            let fill = self.fill(request);
            self.spawn(async move { fill.claimed(fetch_range).await });
        }
    }

    /// A fill of this request.
    pub(crate) fn fill(&self, request: &FillRequest) -> Fill {
        Fill {
            request: request.clone(),
            silence_max: self.silence_max,
            counters: Arc::clone(&self.counters),
        }
    }

    /// Runs work in a task of its own, until it ends or the filler is stopped.
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        let stop = self.stop.clone();
        self.tasks.spawn(async move {
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                () = work => {}
            }
        });
    }

    /// Stops all fills and waits until they have ended.
    pub(crate) async fn shutdown(&self) {
        self.stop();
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// Tells all fills to stop.
    pub(crate) fn stop(&self) {
        self.stop.cancel();
    }
}

/// Missing blocks that lie next to each other in the object.
#[derive(Debug)]
struct FetchRange {
    range: ByteRange,
    claims: VecDeque<PageClaim>,
}

/// Joins claims, which come in page order, into fetch ranges.
fn fetch_ranges(claims: Vec<PageClaim>) -> Vec<FetchRange> {
    let mut ranges: Vec<FetchRange> = Vec::new();
    for mut claim in claims {
        while let Some(part) = split_first_run(&mut claim) {
            let Some(range) = claimed_range(&part) else {
                continue;
            };
            match ranges.last_mut() {
                Some(last) if last.range.end() == range.start() && last.range.len() < FETCH_BYTES_MAX => {
                    last.range = last.range.cover(range);
                    last.claims.push_back(part);
                }
                _ => ranges.push(FetchRange {
                    range,
                    claims: VecDeque::from([part]),
                }),
            }
        }
    }
    ranges
}

/// Takes the first blocks that lie together.
fn split_first_run(claim: &mut PageClaim) -> Option<PageClaim> {
    let mask = claim.blocks().0;
    let from_first = mask >> mask.trailing_zeros().min(15);
    let run = BlockMask::covering(0, u64::from(from_first.trailing_ones()) * BLOCK_BYTES);
    claim.split_off(BlockMask(run.0 << mask.trailing_zeros().min(15)))
}

/// The bytes of the object from the first to the last claimed block.
fn claimed_range(claim: &PageClaim) -> Option<ByteRange> {
    let page = claim.page();
    let (first, last) = (claim.blocks().blocks().next()?, claim.blocks().blocks().last()?);
    let start = page.key.page.start() + u64::from(first) * BLOCK_BYTES;
    let end = page.key.page.start() + u64::from(last) * BLOCK_BYTES + page.frame.block_bytes(last) as u64;
    ByteRange::new(start, end).ok()
}

/// Takes the bytes of a fill.
pub(crate) trait BlockSink: Send {
    /// Forgets a block that came in part, and returns the bytes that are missing from there on.
    fn restart(&mut self) -> Option<ByteRange>;
    /// Returns whether nothing is missing.
    fn is_done(&self) -> bool;
    /// Takes the next bytes; what comes after the last one is ignored.
    fn write(&mut self, block: SourceBlock) -> impl Future<Output = Result<()>> + Send;
}

/// One fill: the bytes of a request, from its source and maybe its fallback.
#[derive(Debug)]
pub(crate) struct Fill {
    request: FillRequest,
    silence_max: Duration,
    counters: Arc<Counters>,
}

impl Fill {
    /// Fills claimed blocks; a failure goes to those who wait.
    async fn claimed(&self, range: FetchRange) {
        let priority = self.request.control.urgency.now();
        let _in_flight = InFlight::start(range.range.len(), priority, &self.counters);
        let mut writer = BlockWriter::new(range.claims);
        if let Err(error) = self.run(&mut writer).await {
            writer.fail(&error);
        }
    }

    /// Gives the sink what it is missing: from the source, then, if that is not the end, from its fallback.
    pub(crate) async fn run(&self, sink: &mut impl BlockSink) -> Result<()> {
        let source = &self.request.control.source;
        let mut was_damaged = false;
        while let Some(missing) = sink.restart() {
            let pulled = tokio::select! {
                biased;
                () = source.changed() => continue,
                pulled = self.pull(missing, &mut *sink) => pulled,
            };
            let Err(error) = pulled else { continue };
            let is_damaged = error.kind() == Kind::Checksum;
            if is_damaged {
                self.counters.corrupt_source_blocks.add(1);
            }
            if source.change() {
                self.counters.fill_fallbacks.add(1);
                tracing::warn!(%error, "a source failed, its fallback is asked");
            } else if !is_damaged || std::mem::replace(&mut was_damaged, true) {
                return Err(error);
            }
        }
        Ok(())
    }

    async fn pull(&self, range: ByteRange, sink: &mut impl BlockSink) -> Result<()> {
        let FillRequest { object, control, .. } = &self.request;
        let source = Arc::clone(control.source.now());
        let opened = self.within(range, source.fetch(object, range, &control.urgency));
        let mut stream: SourceStream = opened.await??;
        while !sink.is_done() {
            let Some(block) = self.within(range, stream.next()).await? else {
                return Err(self.at(range, Error::new(Kind::Unavailable, SHORT_BODY)));
            };
            let written = sink.write(block?).await;
            written.map_err(|error| self.at(range, error))?;
        }
        Ok(())
    }

    /// Waits for the source, but not for ever.
    async fn within<T>(&self, range: ByteRange, answer: impl Future<Output = T>) -> Result<T> {
        match tokio::time::timeout(self.silence_max, answer).await {
            Ok(answer) => Ok(answer),
            Err(_) => {
                self.counters.fill_timeouts.add(1);
                let error = Error::new(
                    Kind::Timeout,
                    "the fill of a range waited in vain for the next bytes of its source; try again",
                );
                let waited_ms = self.silence_max.as_millis();
                Err(self.at(range, error).with("waited_ms", waited_ms))
            }
        }
    }

    fn at(&self, range: ByteRange, error: Error) -> Error {
        error
            .with("range", range)
            .with("bucket", &self.request.object.bucket)
            .with("key", &self.request.object.key)
    }
}

/// Fills blocks from NVMe, and those that turn out to be bad or gone from the source.
async fn promote(nvme: Arc<NvmeStore>, mut claim: PageClaim, fill: Fill) {
    let read = nvme.read(&claim.page().key, claim.blocks());
    let read = tokio::time::timeout(fill.silence_max, read).await;
    match read {
        Ok(Ok(Some(read))) => {
            let good = read.blocks.intersect(claim.blocks());
            for block in good.blocks() {
                if let Some(bytes) = read.block(block)
                    && bytes.len() == claim.page().frame.block_bytes(block)
                {
                    claim.write(block, 0, &bytes);
                    claim.publish(block, read.checksums[block as usize], Tier::Nvme);
                }
            }
        }
        Ok(Ok(None)) => {}
        Ok(Err(error)) => tracing::warn!(%error, "page could not be read from nvme, taken from its source"),
        Err(_) => {
            let waited_ms = fill.silence_max.as_millis();
            tracing::warn!(waited_ms, "nvme gave no answer, page is taken from its source");
        }
    }
    for range in fetch_ranges(vec![claim]) {
        fill.claimed(range).await;
    }
}

/// Counts a fetch, and read-ahead as long as it is under way.
struct InFlight<'a> {
    bytes: u64,
    priority: Priority,
    counters: &'a Counters,
}

impl<'a> InFlight<'a> {
    fn start(bytes: u64, priority: Priority, counters: &'a Counters) -> Self {
        match priority {
            Priority::Demand => counters.fetched_demand_bytes.add(bytes),
            Priority::ReadAhead => {
                counters.fetched_read_ahead_bytes.add(bytes);
                counters.read_ahead_bytes.add(bytes);
            }
        }
        Self {
            bytes,
            priority,
            counters,
        }
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        if self.priority == Priority::ReadAhead {
            self.counters.read_ahead_bytes.sub(self.bytes);
        }
    }
}
