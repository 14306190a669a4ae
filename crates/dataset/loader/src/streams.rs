//! Samples of shards that are compressed as a whole (`.tar.gz`, `.tar.zst`, GZIP TFRecord, compressed MDS).
//!
//! Such a shard can only be read from its start. A [`Stream`] goes through it once, and cuts what comes out
//! into chunks of [`CHUNK_BYTES`], which are kept while they are young (`decoded_bytes_max` in this process);
//! a sample points into chunks. Asked for a chunk that is ahead, a stream goes on from where it stands; for
//! one that is behind and was let go, it starts anew. So samples that come in the order of the shard, or
//! mixed inside of a window that fits, cost one decompression, whatever the size of the shard; a single
//! sample costs the decompression of all that lies before it.
//!
//! A shard that cannot be decompressed from some place on is the fault of the samples behind it: it is
//! remembered, not tried for each.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, MutexGuard, TryLockError};
use std::time::Instant;

use forebay_client::{Item, ItemRange};
use forebay_core::{Error, Kind, Result};
use forebay_dataset::index::{Field, Sample};
use forebay_dataset::order::{OrderOptions, Shuffle, Span};
use forebay_dataset::scan::Decompressor;

use crate::dataset::{Inner, ShardLocation};
use crate::fetch::{Fetched, about, check, explain, nanoseconds};
use crate::lru_cache::{LruCache, lock};
use crate::sample::{FieldBytes, Memory, SampleBytes};

/// Size of the chunks that a stream is cut into.
const CHUNK_BYTES: u64 = 4 << 20;
/// Size of one request for bytes of a shard.
const RANGE_BYTES: u64 = 4 << 20;
/// Streams that stand somewhere; each has the window of its codec.
const STREAMS_MAX: u64 = 32;

/// Caches for compressed shards.
#[derive(Default)]
pub(crate) struct Streams {
    streams: LruCache<u32, Stream>,
    chunks: LruCache<(u32, u64), Arc<Vec<u8>>>,
}

type Chunks = BTreeMap<u64, Arc<Vec<u8>>>;

/// A shard that is being decompressed.
struct Stream {
    decompressor: Option<Decompressor>,
    /// Stored bytes that were taken.
    offset: u64,
    /// The chunk that is being filled, and its number.
    open: Vec<u8>,
    next: u64,
    /// Why it does not go on.
    failed: Option<Error>,
}

/// Reads these samples, which lie in compressed shards; each has a result of its own.
pub(crate) fn fetch(dataset: &Inner, source: usize, numbers: &[u64]) -> Result<Fetched> {
    let started = Instant::now();
    let mut fetched = Fetched::default();
    let mut samples = Vec::with_capacity(numbers.len());
    let mut wanted: BTreeMap<u32, BTreeSet<u64>> = BTreeMap::new();
    for number in numbers {
        let mut sample = dataset.index.sample(*number)?;
        dataset.select(&mut sample);
        // An index can claim any size: what could never be held is not even counted out.
        if fits(dataset, &sample) {
            let chunks = sample.fields.iter().flat_map(|field| numbers_of(&span(field)));
            wanted.entry(sample.shard).or_default().extend(chunks);
        }
        samples.push(sample);
    }
    let chunks = read(dataset, &wanted, &mut fetched);
    for (number, sample) in numbers.iter().zip(&samples) {
        let found = match chunks.get(&sample.shard) {
            _ if !fits(dataset, sample) => Err(too_large(dataset)),
            Some(Ok(found)) => cut(dataset, (source, *number), sample, found),
            Some(Err(error)) => Err(error.share()),
            None => Err(Error::new(Kind::Internal, "a shard was not asked for")),
        };
        let place = dataset.shard(sample.shard)?;
        fetched
            .samples
            .push(found.map_err(|error| about(error, place, *number, sample)));
    }
    fetched.check_ns = nanoseconds(started.elapsed()).saturating_sub(fetched.read_ns);
    Ok(fetched)
}

/// The order for a dataset: compressed shards stay whole, and what is mixed must fit.
///
/// Errors: `Unsupported` if shards would be decompressed again and again, with what to do instead.
pub(crate) fn order(dataset: &Inner, mut order: OrderOptions) -> Result<OrderOptions> {
    let bytes = dataset.compressed_bytes();
    if bytes == 0 {
        return Ok(order);
    }
    let needed = match &mut order.shuffle {
        Shuffle::None => 0,
        Shuffle::Global => bytes,
        Shuffle::Window(window) => {
            *window = window.whole_shards();
            // The window in which the consumer stands, and the next one.
            let mixed = bytes.min(match window.span {
                Span::Bytes(span) => span,
                Span::Samples(samples) => {
                    let all = dataset.index.len().max(1);
                    (u128::from(bytes) * u128::from(samples) / u128::from(all)) as u64
                }
            });
            mixed.saturating_mul(2)
        }
    };
    if needed <= dataset.decoded_bytes_max {
        return Ok(order);
    }
    let message = "the shards are compressed as a whole, and more of them is mixed than may be kept decompressed; \
                   choose shuffle=\"window\" with a smaller window, or pack them anew (forebay dataset pack)";
    let error = Error::new(Kind::Unsupported, message).with("bytes", needed);
    Err(error.with("bytes_max", dataset.decoded_bytes_max))
}

/// The bytes of a shard as they are stored that these bytes of its stream come from; of compressed ones
/// about.
pub(crate) fn ahead(place: &ShardLocation, stream: Range<u64>) -> Range<u64> {
    if !place.is_compressed() {
        return stream;
    }
    let share = |at: u64| {
        let at = u128::from(at.min(place.stream_bytes())) * u128::from(place.bytes());
        (at / u128::from(place.stream_bytes().max(1))) as u64
    };
    share(stream.start)..share(stream.end)
}

/// The chunks of all shards. Shards that nobody else is decompressing come first, so that threads share the
/// work.
fn read(
    dataset: &Inner,
    wanted: &BTreeMap<u32, BTreeSet<u64>>,
    fetched: &mut Fetched,
) -> BTreeMap<u32, Result<Chunks>> {
    let streams = dataset.streams.get();
    let mut found = BTreeMap::new();
    let mut busy = Vec::new();
    for (shard, numbers) in wanted {
        let mut chunks = Chunks::new();
        if take_kept(streams, *shard, numbers, &mut chunks) {
            found.insert(*shard, Ok(chunks));
            continue;
        }
        let cell = streams.streams.cell(shard);
        match cell.try_lock() {
            Ok(slot) => {
                let more = advance(dataset, *shard, numbers, slot, chunks, fetched);
                found.insert(*shard, more);
            }
            Err(TryLockError::Poisoned(poisoned)) => {
                let mut slot = poisoned.into_inner();
                *slot = None;
                let more = advance(dataset, *shard, numbers, slot, chunks, fetched);
                found.insert(*shard, more);
            }
            Err(TryLockError::WouldBlock) => busy.push((*shard, numbers, chunks)),
        }
    }
    for (shard, numbers, mut chunks) in busy {
        let cell = streams.streams.cell(&shard);
        let slot = lock(&cell);
        let more = if take_kept(streams, shard, numbers, &mut chunks) {
            Ok(chunks)
        } else {
            advance(dataset, shard, numbers, slot, chunks, fetched)
        };
        found.insert(shard, more);
    }
    found
}

/// Takes what is kept; whether that is all.
fn take_kept(streams: &Streams, shard: u32, wanted: &BTreeSet<u64>, chunks: &mut Chunks) -> bool {
    for number in wanted {
        if !chunks.contains_key(number)
            && let Some(chunk) = &*lock(&streams.chunks.cell(&(shard, *number)))
        {
            chunks.insert(*number, Arc::clone(chunk));
        }
    }
    wanted.len() == chunks.len()
}

/// Decompresses a shard until all chunks that are wanted have come.
fn advance(
    dataset: &Inner,
    shard: u32,
    wanted: &BTreeSet<u64>,
    mut slot: MutexGuard<'_, Option<Stream>>,
    mut chunks: Chunks,
    fetched: &mut Fetched,
) -> Result<Chunks> {
    let streams = dataset.streams.get();
    let place = dataset.shard(shard)?;
    let missing = || wanted.iter().filter(|number| !chunks.contains_key(*number));
    let (Some(first), Some(last)) = (missing().min().copied(), missing().max().copied()) else {
        return Ok(chunks);
    };
    if wanted.len() as u64 > chunks_max(dataset) {
        return Err(too_large(dataset));
    }
    // What is behind a stream comes with a new one.
    if slot.as_ref().is_some_and(|stream| stream.next > first) {
        *slot = None;
    }
    let stream = match &mut *slot {
        Some(stream) => stream,
        none => none.insert(Stream::new(place)?),
    };
    streams.streams.filled(&shard, 1, STREAMS_MAX);
    while stream.next <= last {
        let asked = Instant::now();
        let mut keep = |number: u64, chunk: Vec<u8>| {
            let bytes = chunk.len() as u64;
            let chunk = Arc::new(chunk);
            if wanted.contains(&number) {
                chunks.insert(number, Arc::clone(&chunk));
            }
            *lock(&streams.chunks.cell(&(shard, number))) = Some(chunk);
            streams
                .chunks
                .filled(&(shard, number), bytes, dataset.decoded_bytes_max);
        };
        stream.step(dataset, place, &mut keep, fetched, asked)?;
    }
    Ok(chunks)
}

impl Stream {
    fn new(place: &ShardLocation) -> Result<Self> {
        Ok(Self {
            decompressor: Decompressor::new(place.codec())?,
            offset: 0,
            open: Vec::new(),
            next: 0,
            failed: None,
        })
    }

    /// Takes the next stored bytes and hands on the chunks that they complete.
    fn step(
        &mut self,
        dataset: &Inner,
        place: &ShardLocation,
        keep: &mut dyn FnMut(u64, Vec<u8>),
        fetched: &mut Fetched,
        asked: Instant,
    ) -> Result<()> {
        if let Some(failed) = &self.failed {
            return Err(failed.share());
        }
        let length = RANGE_BYTES.min(place.bytes() - self.offset);
        let result = if length == 0 {
            self.end(keep)
        } else {
            let item = Item {
                object: place.object.clone(),
                range: ItemRange::Range {
                    offset: self.offset,
                    length,
                },
                version: place.version.clone(),
            };
            let view = dataset.client.get_batch(vec![item])?.pop();
            let missing = || Error::new(Kind::Internal, "a request for a shard without an answer");
            let view = view.ok_or_else(missing)?.map_err(|error| explain(&error))?;
            fetched.read_ns += nanoseconds(asked.elapsed());
            fetched.sources += view.sources();
            self.offset += view.len() as u64;
            self.push(&view, keep)
        };
        if let Err(error) = &result {
            self.failed = Some(error.share());
        }
        result
    }

    fn push(&mut self, stored: &[u8], keep: &mut dyn FnMut(u64, Vec<u8>)) -> Result<()> {
        let (open, next) = (&mut self.open, &mut self.next);
        let mut each = |mut plain: &[u8]| {
            while !plain.is_empty() {
                let room = CHUNK_BYTES as usize - open.len();
                let (now, later) = plain.split_at(room.min(plain.len()));
                open.extend_from_slice(now);
                plain = later;
                if open.len() as u64 == CHUNK_BYTES {
                    keep(*next, std::mem::take(open));
                    *next += 1;
                }
            }
            Ok(())
        };
        match &mut self.decompressor {
            Some(decompressor) => decompressor.push(stored, &mut each),
            None => each(stored),
        }
    }

    /// All stored bytes have come: the rest is the last chunk.
    fn end(&mut self, keep: &mut dyn FnMut(u64, Vec<u8>)) -> Result<()> {
        if let Some(decompressor) = &mut self.decompressor {
            decompressor.finish()?;
        }
        if self.open.is_empty() {
            let message = "the shard ends before the sample does; upload it again, or index it again";
            return Err(Error::new(Kind::Corrupt, message));
        }
        keep(self.next, std::mem::take(&mut self.open));
        self.next += 1;
        Ok(())
    }
}

fn span(field: &Field<'_>) -> Range<u64> {
    field.offset..field.offset.saturating_add(field.bytes)
}

/// The chunks that bytes of a stream lie in.
fn numbers_of(span: &Range<u64>) -> Range<u64> {
    if span.is_empty() {
        return 0..0;
    }
    span.start / CHUNK_BYTES..span.end.div_ceil(CHUNK_BYTES)
}

/// Chunks that may be wanted at once; one more at either end, because what is wanted begins and ends inside
/// of chunks.
fn chunks_max(dataset: &Inner) -> u64 {
    dataset.decoded_bytes_max / CHUNK_BYTES + 2
}

/// Returns whether each field of a sample could be held.
fn fits(dataset: &Inner, sample: &Sample<'_>) -> bool {
    let numbers = |field| numbers_of(&span(field));
    let chunks = |numbers: Range<u64>| numbers.end - numbers.start;
    let mut fields = sample.fields.iter();
    fields.all(|field| chunks(numbers(field)) <= chunks_max(dataset))
}

fn too_large(dataset: &Inner) -> Error {
    let message =
        "the samples are too large to be held decompressed; ask for fewer at once, or pack the shards anew";
    Error::new(Kind::Unsupported, message).with("bytes_max", dataset.decoded_bytes_max)
}

/// Puts a sample together, and checks it.
fn cut(
    dataset: &Inner,
    (source, number): (usize, u64),
    sample: &Sample<'_>,
    chunks: &Chunks,
) -> Result<SampleBytes> {
    let mut fields = Vec::with_capacity(sample.fields.len());
    for field in &sample.fields {
        let name = dataset.field_name(field.name);
        let bytes = match part(&span(field), chunks)? {
            Some((memory, range)) => FieldBytes::new(name, Some(memory), range),
            None => FieldBytes::new(name, None, 0..0),
        };
        check(field, &bytes)?;
        fields.push(bytes);
    }
    Ok(SampleBytes {
        source,
        number,
        shard: dataset.shard(sample.shard)?.name.clone(),
        key: sample.key.map(Into::into),
        fields,
        sample_seed: None,
    })
}

/// These bytes of a stream: a part of a chunk, or a copy where they lie in several.
fn part(span: &Range<u64>, chunks: &Chunks) -> Result<Option<(Memory, Range<usize>)>> {
    let numbers = numbers_of(span);
    if numbers.is_empty() {
        return Ok(None);
    }
    let short = || {
        let message = "the shard ends before the sample does; upload it again, or index it again";
        Error::new(Kind::Corrupt, message).with("offset", span.start)
    };
    let mut pieces = Vec::new();
    for number in numbers {
        let chunk = chunks.get(&number).ok_or_else(short)?;
        let first = span.start.max(number * CHUNK_BYTES) - number * CHUNK_BYTES;
        let end = span.end.min((number + 1) * CHUNK_BYTES) - number * CHUNK_BYTES;
        let range = first as usize..end as usize;
        if range.end > chunk.len() {
            return Err(short());
        }
        pieces.push((chunk, range));
    }
    if let [(chunk, range)] = pieces.as_slice() {
        return Ok(Some((Memory::Heap(Arc::clone(chunk) as _), range.clone())));
    }
    let mut joined = Vec::with_capacity((span.end - span.start) as usize);
    for (chunk, range) in pieces {
        joined.extend_from_slice(&chunk[range]);
    }
    let length = joined.len();
    Ok(Some((Memory::Heap(Arc::new(joined)), 0..length)))
}
