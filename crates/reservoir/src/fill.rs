//! Filling missing blocks: from NVMe where they are there, else from the source, each once.
//!
//! Whoever claims blocks hands the claims over here. Neighbouring blocks are joined into stretches, over pages too, so that the
//! source sees few large ranges. Each stretch is filled by a task that belongs to the [`Filler`], not to the reader: a reader
//! that goes away does not take the bytes from those who wait for the same ones. Blocks become readable one by one.
//!
//! Limits: what is in flight has memory in the RAM tier already, so its budget bounds it. Tasks end with
//! [`Filler::shutdown`] at the latest; blocks given up are missing again, and their waiters are told why.

use std::collections::VecDeque;
use std::sync::Arc;

use forebay_core::{BLOCK_BYTES, BlockMask, ByteRange, Error, Kind, Result, crc32c};
use futures::StreamExt;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::nvme::NvmeStore;
use crate::page::PageClaim;
use crate::stats::Counters;
use crate::{ObjectVersion, Priority, Source, Urgency};

/// A stretch is not longer than this, so that several are fetched side by side.
const STRETCH_BYTES_MAX: u64 = 16 << 20;

/// Owns the tasks that fill.
#[derive(Debug)]
pub(crate) struct Filler {
    tasks: TaskTracker,
    stop: CancellationToken,
    nvme: Option<Arc<NvmeStore>>,
    counters: Arc<Counters>,
}

/// What a fill is for.
#[derive(Debug, Clone)]
pub(crate) struct Want {
    pub(crate) object: Arc<ObjectVersion>,
    pub(crate) source: Arc<dyn Source>,
    pub(crate) urgency: Urgency,
}

impl Filler {
    /// A filler without tasks.
    pub(crate) fn new(nvme: Option<Arc<NvmeStore>>, counters: Arc<Counters>) -> Self {
        Self {
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
            nvme,
            counters,
        }
    }

    /// Whether it was told to stop.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.is_cancelled()
    }

    /// Starts filling the claimed blocks; they have memory and come in page order.
    pub(crate) fn start(&self, claims: Vec<PageClaim>, want: &Want) {
        let mut from_source = Vec::with_capacity(claims.len());
        for mut claim in claims {
            if let Some(nvme) = &self.nvme
                && let Some(on_nvme) = nvme.lookup(&claim.page().key)
                && let Some(promoted) = claim.split_off(on_nvme)
            {
                self.spawn(promote(
                    Arc::clone(nvme),
                    promoted,
                    want.clone(),
                    Arc::clone(&self.counters),
                ));
            }
            from_source.push(claim);
        }
        for stretch in stretches(from_source) {
            self.spawn(fetch(stretch, want.clone(), Arc::clone(&self.counters)));
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
struct Stretch {
    range: ByteRange,
    claims: VecDeque<PageClaim>,
}

/// Joins claims, which come in page order, into stretches.
fn stretches(claims: Vec<PageClaim>) -> Vec<Stretch> {
    let mut stretches: Vec<Stretch> = Vec::new();
    for mut claim in claims {
        while let Some(part) = split_first_run(&mut claim) {
            let Some(range) = claimed_range(&part) else {
                continue;
            };
            match stretches.last_mut() {
                Some(last) if last.range.end() == range.start() && last.range.len() < STRETCH_BYTES_MAX => {
                    last.range = last.range.cover(range);
                    last.claims.push_back(part);
                }
                _ => stretches.push(Stretch {
                    range,
                    claims: VecDeque::from([part]),
                }),
            }
        }
    }
    stretches
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

/// Fills a stretch from the source; a failure goes to those who wait.
async fn fetch(mut stretch: Stretch, want: Want, counters: Arc<Counters>) {
    let bytes = stretch.range.len();
    let _in_flight = InFlight::start(bytes, want.urgency.now(), &counters);
    let Err(error) = copy_from_source(&mut stretch, &want).await else {
        return;
    };
    for claim in stretch.claims {
        claim.fail(&error);
    }
}

async fn copy_from_source(stretch: &mut Stretch, want: &Want) -> Result<()> {
    let mut stream = want
        .source
        .fetch(&want.object, stretch.range, &want.urgency)
        .await?;
    let mut writer = StretchWriter {
        claims: &mut stretch.claims,
        offset: 0,
        checksum: 0,
    };
    while !writer.claims.is_empty() {
        let Some(bytes) = stream.next().await else {
            return Err(short_body(stretch.range, &want.object));
        };
        writer.write(&bytes?);
    }
    Ok(())
}

fn short_body(range: ByteRange, object: &ObjectVersion) -> Error {
    Error::new(Kind::Unavailable, "the lake sent fewer bytes than were asked for")
        .with("range", range)
        .with("bucket", &object.bucket)
        .with("key", &object.key)
}

/// Copies bytes, in whatever chunks they come, into the claimed blocks, in order.
struct StretchWriter<'a> {
    claims: &'a mut VecDeque<PageClaim>,
    /// Bytes written of the block that is being filled.
    offset: usize,
    /// Their checksum, taken from the arriving bytes, so that a bad copy is found too.
    checksum: u32,
}

impl StretchWriter<'_> {
    /// Takes the next bytes; what comes after the last block is ignored.
    fn write(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let Some(claim) = self.claims.front_mut() else {
                return;
            };
            let Some(block) = claim.blocks().blocks().next() else {
                self.claims.pop_front();
                continue;
            };
            let block_bytes = claim.page().frame.block_bytes(block);
            let (part, after) = bytes.split_at(bytes.len().min(block_bytes - self.offset));
            claim.write(block, self.offset, part);
            self.checksum = crc32c::crc32c_append(self.checksum, part);
            self.offset += part.len();
            bytes = after;
            if self.offset == block_bytes {
                claim.publish(block, std::mem::take(&mut self.checksum));
                self.offset = 0;
                if claim.blocks().is_empty() {
                    self.claims.pop_front();
                }
            }
        }
    }
}

/// Fills blocks from NVMe, and those that turn out to be bad or gone from the source.
async fn promote(nvme: Arc<NvmeStore>, mut claim: PageClaim, want: Want, counters: Arc<Counters>) {
    match nvme.read(&claim.page().key, claim.blocks()).await {
        Ok(Some(read)) => {
            let good = read.blocks.intersect(claim.blocks());
            claim.mark_from_nvme(good);
            for block in good.blocks() {
                if let Some(bytes) = read.block(block)
                    && bytes.len() == claim.page().frame.block_bytes(block)
                {
                    claim.write(block, 0, &bytes);
                    claim.publish(block, read.checksums[block as usize]);
                }
            }
        }
        Ok(None) => {}
        Err(error) => tracing::warn!(%error, "page could not be read from nvme, taken from the lake"),
    }
    for stretch in stretches(vec![claim]) {
        fetch(stretch, want.clone(), Arc::clone(&counters)).await;
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
