//! Reads from a remote node: batches whose bytes carry checksums; large ones as ranges over several
//! connections at once.

use std::sync::Mutex;
use std::thread::ScopedJoinHandle;
use std::time::Instant;

use forebay_core::{Error, Kind, Result};
use forebay_wire::batch::{
    BATCH_CONTENT_TYPE, BATCH_PATH, BatchDecoder, BatchEvent, BatchItem, BatchRequest,
};
use forebay_wire::objects::Found;
use forebay_wire::{self as wire, Item, ItemRange, ObjectName, TierBytes};

use super::Remote;
use super::request::Request;
use crate::scattered::Scattered;
use crate::stats::add;
use crate::view::{Bytes, View};
use crate::wait::{Wait, check_interrupt};
use crate::worker_scope::WorkerScope;

/// Bytes of one range of a large read.
const RANGE_BYTES: usize = 16 << 20;

/// Ranges of one read that are on their way at once.
const STREAMS_MAX: usize = 4;

/// Memory that a claim of the node alone may cost.
const TRUSTED_BYTES: u64 = 64 << 20;

/// Destination of the bytes of an item as they come.
trait Target {
    /// The item is there and will have so many bytes.
    fn start(&mut self, item: &BatchItem) -> Result<()>;
    /// The next of them.
    fn take(&mut self, bytes: &[u8]) -> Result<()>;
}

impl Target for Vec<u8> {
    fn start(&mut self, item: &BatchItem) -> Result<()> {
        let bytes = usize::try_from(item.bytes.min(TRUSTED_BYTES)).unwrap_or(0);
        self.try_reserve(bytes)
            .map_err(|why| no_memory(item.bytes).caused_by(why))
    }

    fn take(&mut self, bytes: &[u8]) -> Result<()> {
        self.try_reserve(bytes.len())
            .map_err(|why| no_memory(bytes.len() as u64).caused_by(why))?;
        self.extend_from_slice(bytes);
        Ok(())
    }
}

/// Memory of the caller.
struct Window<'a> {
    memory: &'a mut [u8],
    filled: usize,
}

impl Target for Window<'_> {
    fn start(&mut self, item: &BatchItem) -> Result<()> {
        if item.bytes > self.memory.len() as u64 {
            return Err(Error::new(
                Kind::Corrupt,
                "the node gave more bytes than were asked for",
            ));
        }
        Ok(())
    }

    fn take(&mut self, bytes: &[u8]) -> Result<()> {
        self.memory[self.filled..self.filled + bytes.len()].copy_from_slice(bytes);
        self.filled += bytes.len();
        Ok(())
    }
}

fn no_memory(bytes: u64) -> Error {
    Error::new(Kind::NoSpace, "no memory for the object; read it in ranges").with("bytes", bytes)
}

impl Remote {
    /// One answer or failure for each item, in order.
    pub(crate) fn read(&self, mut items: Vec<Item>) -> Result<Vec<Result<Scattered>>> {
        if items.len() == 1
            && let Some(item) = items.pop()
        {
            return Ok(vec![self.read_one(&item).map(Scattered::from)]);
        }
        let mut buffers: Vec<Vec<u8>> = items.iter().map(|_| Vec::new()).collect();
        let mut targets: Vec<&mut dyn Target> = buffers
            .iter_mut()
            .map(|buffer| buffer as &mut dyn Target)
            .collect();
        let fetched = self.fetch(&items, &mut targets)?;
        let named = items.into_iter().zip(fetched).zip(buffers);
        Ok(named
            .map(|((item, fetched), bytes)| Ok(Scattered::from(self.view(item.object, fetched?, bytes))))
            .collect())
    }

    fn view(&self, object: ObjectName, (item, sources): (BatchItem, TierBytes), bytes: Vec<u8>) -> View {
        self.counters.count_sources(&sources);
        add(&self.counters.copied_bytes, bytes.len() as u64);
        let found = Found {
            version: item.version,
            object_bytes: item.object_bytes,
            offset: item.offset,
            view: None,
            sources,
        };
        View::new(object, found, Bytes::Owned(bytes), None)
    }

    /// One item; large ones in ranges. Once more from the start if the object is replaced between two of
    /// them.
    fn read_one(&self, item: &Item) -> Result<View> {
        match self.try_read_one(item) {
            Err(error) if is_change(&error) && item.version.is_none() => self.try_read_one(item),
            other => other,
        }
    }

    fn try_read_one(&self, item: &Item) -> Result<View> {
        let (offset, length) = match item.range {
            ItemRange::Whole => (0, u64::MAX),
            ItemRange::Range { offset, length } => (offset, length),
            ItemRange::Last(_) | ItemRange::Member(_) => {
                let mut bytes = Vec::new();
                let fetched = self.fetch_one(item, &mut bytes)?;
                return Ok(self.view(item.object.clone(), fetched, bytes));
            }
        };
        let mut bytes = Vec::new();
        let first = range_of(item, offset, length.min(RANGE_BYTES as u64));
        let (mut found, mut sources) = self.fetch_one(&first, &mut bytes)?;
        let total = length.min(found.object_bytes.saturating_sub(offset));
        if total > bytes.len() as u64 && bytes.len() == RANGE_BYTES {
            let total = usize::try_from(total).map_err(|why| no_memory(total).caused_by(why))?;
            bytes
                .try_reserve_exact(total - RANGE_BYTES)
                .map_err(|why| no_memory(total as u64).caused_by(why))?;
            bytes.resize(total, 0);
            let rest = Item {
                version: Some(found.version.clone()),
                ..range_of(item, offset + RANGE_BYTES as u64, 0)
            };
            sources += self.fetch_ranges(&rest, &mut bytes[RANGE_BYTES..])?;
        }
        found.bytes = bytes.len() as u64;
        Ok(self.view(item.object.clone(), (found, sources), bytes))
    }

    /// Fills `target` from `offset` on; less only at the end of the object.
    pub(crate) fn read_into(&self, object: &ObjectName, offset: u64, target: &mut [u8]) -> Result<usize> {
        match self.try_read_into(object, offset, target) {
            Err(error) if is_change(&error) => self.try_read_into(object, offset, target),
            other => other,
        }
    }

    fn try_read_into(&self, object: &ObjectName, offset: u64, target: &mut [u8]) -> Result<usize> {
        let item = Item {
            object: object.clone(),
            range: ItemRange::Whole,
            version: None,
        };
        let first_bytes = target.len().min(RANGE_BYTES);
        let (first, rest) = target.split_at_mut(first_bytes);
        let mut window = Window {
            memory: first,
            filled: 0,
        };
        let fetched = self.fetch_one(&range_of(&item, offset, first_bytes as u64), &mut window);
        let (found, mut sources) = match fetched {
            Err(error) if error.kind() == Kind::OutOfRange => return Ok(0),
            other => other?,
        };
        let mut done = window.filled;
        if done == first_bytes {
            let left = found.object_bytes.saturating_sub(offset + done as u64);
            let left = rest.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            let item = Item {
                version: Some(found.version),
                ..range_of(&item, offset + done as u64, 0)
            };
            sources += self.fetch_ranges(&item, &mut rest[..left])?;
            done += left;
        }
        self.counters.count_sources(&sources);
        add(&self.counters.copied_bytes, done as u64);
        Ok(done)
    }

    /// Fills all of `memory` from the item's offset on, in ranges that come at once. The threads end with
    /// this call.
    fn fetch_ranges(&self, item: &Item, memory: &mut [u8]) -> Result<TierBytes> {
        let ItemRange::Range { offset, .. } = item.range else {
            return Err(Error::new(Kind::Internal, "ranges of what is no range"));
        };
        let streams = memory.len().div_ceil(RANGE_BYTES).min(STREAMS_MAX);
        let ranges = Mutex::new(memory.chunks_mut(RANGE_BYTES).enumerate());
        let workers = WorkerScope::default();
        let work = || {
            let mut sources = TierBytes::default();
            while !workers.is_stopped() {
                // A wait notices the interrupt by itself; bytes that keep coming do not.
                check_interrupt(self.options.interrupt.as_ref())?;
                let next = ranges
                    .lock()
                    .unwrap_or_else(std::sync::PoisonError::into_inner)
                    .next();
                let Some((index, memory)) = next else {
                    break;
                };
                let bytes = memory.len();
                let range = range_of(item, offset + (index * RANGE_BYTES) as u64, bytes as u64);
                let mut window = Window { memory, filled: 0 };
                let fetched = self.fetch_one(&range, &mut window)?;
                if window.filled != bytes {
                    return Err(Error::new(
                        Kind::Corrupt,
                        "the node gave fewer bytes than it said",
                    ));
                }
                sources += fetched.1;
            }
            Ok(sources)
        };
        let work = || work().inspect_err(|_| workers.stop());
        std::thread::scope(|scope| {
            // This thread works too, because only here an interrupt is noticed.
            let helpers: Vec<_> = (1..streams)
                .map(|_| {
                    let worker = workers.worker();
                    scope.spawn(|| worker.run(work))
                })
                .collect();
            let mut sources = work()?;
            workers.wait(|| check_interrupt(self.options.interrupt.as_ref()))?;
            let failure = || Error::new(Kind::Internal, "a reading thread failed");
            let join = |helper: ScopedJoinHandle<'_, _>| helper.join().unwrap_or_else(|_| Err(failure()));
            let (parts, mut errors): (Vec<_>, Vec<_>) =
                helpers.into_iter().map(join).partition(Result::is_ok);
            // One that was stopped because another has failed is not the reason.
            errors.sort_by_key(|error| error.as_ref().is_err_and(|error| error.kind() == Kind::Cancelled));
            for part in errors.into_iter().chain(parts) {
                sources += part?;
            }
            Ok(sources)
        })
    }

    fn fetch_one(&self, item: &Item, target: &mut dyn Target) -> Result<(BatchItem, TierBytes)> {
        let mut fetched = self.fetch(std::slice::from_ref(item), &mut [target])?;
        fetched
            .pop()
            .unwrap_or_else(|| Err(Error::new(Kind::Internal, "an answer without items")))
    }

    /// One batch: the bytes of each item go to its target.
    fn fetch(
        &self,
        items: &[Item],
        targets: &mut [&mut dyn Target],
    ) -> Result<Vec<Result<(BatchItem, TierBytes)>>> {
        let since = Instant::now();
        let mut frame = Vec::new();
        let read = BatchRequest {
            items: items.to_vec(),
            timeout_ms: Wait::start(&self.options).left_ms(),
        };
        wire::encode(&read, &mut frame)?;
        let request = Request::new("POST", BATCH_PATH)
            .header("content-type", BATCH_CONTENT_TYPE)
            .body(&frame);
        let (_, mut connection) = self.ask(&request)?;
        let mut answer = Arrival {
            decoder: BatchDecoder::new(items.len()),
            current: None,
            results: Vec::with_capacity(items.len()),
        };
        while connection.piece(&self.options, &mut |piece| answer.take(piece, targets))? {}
        if !answer.decoder.is_done() {
            return Err(
                Error::new(Kind::Unavailable, "the node broke off its answer").with("address", &self.host)
            );
        }
        self.keep(connection);
        self.counters.count_wait(since);
        Ok(answer.results)
    }
}

/// The answer to a batch as it comes.
struct Arrival {
    decoder: BatchDecoder,
    current: Option<BatchItem>,
    results: Vec<Result<(BatchItem, TierBytes)>>,
}

impl Arrival {
    fn take(&mut self, mut piece: &[u8], targets: &mut [&mut dyn Target]) -> Result<()> {
        while let Some(event) = self.decoder.next(&mut piece)? {
            let strange = || {
                Error::new(
                    Kind::Corrupt,
                    "the answer has another number of items than were asked for",
                )
            };
            match event {
                BatchEvent::Found(item) => {
                    targets
                        .get_mut(self.results.len())
                        .ok_or_else(strange)?
                        .start(&item)?;
                    self.current = Some(item);
                }
                BatchEvent::Bytes(bytes) => {
                    targets
                        .get_mut(self.results.len())
                        .ok_or_else(strange)?
                        .take(bytes)?;
                }
                BatchEvent::End(sources) => {
                    let item = self.current.take().ok_or_else(strange)?;
                    self.results.push(Ok((item, sources)));
                }
                BatchEvent::Failed(failure) => {
                    self.current = None;
                    self.results.push(Err(Error::from(failure)));
                }
                BatchEvent::Done => {}
            }
        }
        Ok(())
    }
}

fn range_of(item: &Item, offset: u64, length: u64) -> Item {
    Item {
        object: item.object.clone(),
        range: ItemRange::Range { offset, length },
        version: item.version.clone(),
    }
}

fn is_change(error: &Error) -> bool {
    matches!(error.kind(), Kind::Changed | Kind::PreconditionFailed)
}
