//! Reads samples: their places, as few ranges as make sense, one request to the node, every checksum
//! compared.
//!
//! Samples that lie close together in one shard are read as one range ([`LIMITS`]); each is a part of its
//! view. A field is compared with the CRC32C of the index, whatever the node has checked before: this is the
//! last place before the bytes are used.
//!
//! A loader holds pages of the windows ahead (`leased_pages.rs`); samples that lie in them are cut out of
//! them, without a request.
//!
//! One sample's fault is that sample's result. What no sample can help (the node is gone, the index is
//! damaged) is the error of the call.

use std::time::Instant;

use forebay_client::{Item, ItemRange, TierBytes, View, prefetch_cache_lines};
use forebay_core::{ByteRange, CoalesceLimits, Coalesced, Error, Kind, Result, Run, coalesce, crc32c};
use forebay_dataset::index::{Field, Sample, Value};
use forebay_dataset::raw::VERSION_COLUMN;
use forebay_dataset::shard::Layout;

use crate::dataset::{Access, Inner, ShardLocation};
use crate::leased_pages::LeasedPages;
use crate::rows;
use crate::sample::{FieldBytes, Memory, SampleBytes};
use crate::streams;

/// Limits of a joined range: headers of a tar are read along; a longer range would hold memory for the
/// slowest of its samples.
const LIMITS: CoalesceLimits = CoalesceLimits {
    gap_bytes_max: 4 << 10,
    run_bytes_max: 1 << 20,
};

/// Samples that were read, and their cost.
#[derive(Default)]
pub(crate) struct Fetched {
    /// In the order in which they were asked for.
    pub(crate) samples: Vec<Result<SampleBytes>>,
    /// Bytes by origin.
    pub(crate) sources: TierBytes,
    /// Time that the node took.
    pub(crate) read_ns: u64,
    /// Time for places, checksums and putting together.
    pub(crate) check_ns: u64,
}

/// A shard, and the number of the sample where every sample is an object of its own; runs never go across
/// two.
type RunKey = (u32, Option<u64>);

/// Location of the bytes of a sample.
#[derive(Clone, Copy)]
enum Bytes<'a> {
    /// It has none.
    None,
    /// In a view that begins at this byte of the shard.
    At(u64, &'a View),
    /// In what the node answered.
    Asked(ByteRange, &'a Result<View>),
}

impl Bytes<'_> {
    /// Says to the processor that a sample is about to be read.
    fn prefetch_cache_lines(&self, sample: &Sample<'_>) {
        let (start, view) = match *self {
            Self::At(start, view) => (start, view),
            Self::Asked(run, Ok(view)) => (run.start(), view),
            Self::None | Self::Asked(_, Err(_)) => return,
        };
        for field in &sample.fields {
            let first = field.offset.saturating_sub(start) as usize;
            let end = first.saturating_add(field.bytes as usize).min(view.len());
            prefetch_cache_lines(view.get(first..end).unwrap_or_default());
        }
    }
}

/// Reads these samples of a dataset; each has a result of its own.
pub(crate) fn fetch(
    dataset: &Inner,
    source: usize,
    numbers: &[u64],
    leased: Option<&LeasedPages>,
) -> Result<Fetched> {
    match dataset.access() {
        Access::Ranges => fetch_ranges(dataset, source, numbers, leased),
        Access::Rows => rows::fetch(dataset, source, numbers),
        Access::Streams => streams::fetch(dataset, source, numbers),
        Access::Mixed => fetch_mixed(dataset, source, numbers),
    }
}

/// Reads samples of which some lie in compressed shards.
fn fetch_mixed(dataset: &Inner, source: usize, numbers: &[u64]) -> Result<Fetched> {
    let (mut plain, mut packed) = (Vec::new(), Vec::new());
    for (at, number) in numbers.iter().enumerate() {
        let shard = dataset.index.sample(*number)?.shard;
        let list = if dataset.shard(shard)?.is_compressed() {
            &mut packed
        } else {
            &mut plain
        };
        list.push((at, *number));
    }
    let of = |list: &[(usize, u64)]| list.iter().map(|(_, number)| *number).collect::<Vec<_>>();
    let mut fetched = fetch_ranges(dataset, source, &of(&plain), None)?;
    let other = streams::fetch(dataset, source, &of(&packed))?;
    fetched.sources += other.sources;
    fetched.read_ns += other.read_ns;
    fetched.check_ns += other.check_ns;
    let places = plain.iter().chain(&packed).map(|(at, _)| *at);
    let samples = std::mem::take(&mut fetched.samples)
        .into_iter()
        .chain(other.samples);
    let mut samples: Vec<_> = places.zip(samples).collect();
    samples.sort_by_key(|(at, _)| *at);
    fetched.samples = samples.into_iter().map(|(_, sample)| sample).collect();
    Ok(fetched)
}

/// Reads samples that lie in their shards as they are.
fn fetch_ranges(
    dataset: &Inner,
    source: usize,
    numbers: &[u64],
    leased: Option<&LeasedPages>,
) -> Result<Fetched> {
    let started = Instant::now();
    let mut samples = Vec::with_capacity(numbers.len());
    for number in numbers {
        let mut sample = dataset.index.sample(*number)?;
        dataset.select(&mut sample);
        samples.push(sample);
    }
    let mut spans: Vec<_> = samples.iter().map(Sample::span).collect();
    let mut fetched = Fetched::default();
    let here = leased.map(|leased| find_leased(leased, source, &samples, &mut spans, &mut fetched.sources));
    let (runs, run_of) = join(dataset, numbers, &samples, &spans);
    let items = runs
        .iter()
        .map(|run| item(dataset, run))
        .collect::<Result<Vec<_>>>()?;
    let asked = Instant::now();
    let views = match items.is_empty() {
        true => Vec::new(),
        false => dataset.client.get_batch(items)?,
    };
    let answered = Instant::now();
    for view in views.iter().flatten() {
        fetched.sources += view.sources();
    }
    fetched.samples.reserve(numbers.len());
    let bytes_of = |at: usize| match here.as_ref().and_then(|here| here[at].as_ref()) {
        Some((start, view)) => Bytes::At(*start, view),
        None => run_of[at].map_or(Bytes::None, |run| Bytes::Asked(runs[run].range, &views[run])),
    };
    for (at, (number, sample)) in numbers.iter().zip(&samples).enumerate() {
        if let Some(next) = samples.get(at + 1) {
            bytes_of(at + 1).prefetch_cache_lines(next);
        }
        let bytes = bytes_of(at);
        fetched.samples.push(cut(dataset, source, *number, sample, bytes));
    }
    fetched.read_ns = nanoseconds(answered - asked);
    fetched.check_ns = nanoseconds(asked - started) + nanoseconds(answered.elapsed());
    Ok(fetched)
}

/// Samples that lie in pages that are leased: the first byte of a view, and the view. Their spans need not be
/// asked for any more.
fn find_leased(
    leased: &LeasedPages,
    source: usize,
    samples: &[Sample<'_>],
    spans: &mut [Option<ByteRange>],
    sources: &mut TierBytes,
) -> Vec<Option<(u64, View)>> {
    let pages = leased.read();
    if pages.is_empty() {
        return vec![None; samples.len()];
    }
    let find = |(sample, span): (&Sample<'_>, &mut Option<ByteRange>)| {
        let bytes = (*span)?;
        let (start, view) = pages.find(source, sample.shard, bytes)?;
        sources.ram += bytes.end() - bytes.start();
        *span = None;
        Some((start, view.clone()))
    };
    samples.iter().zip(spans).map(find).collect()
}

pub(crate) fn nanoseconds(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Runs for all spans, and the one of each sample; none if it has no bytes.
fn join(
    dataset: &Inner,
    numbers: &[u64],
    samples: &[Sample<'_>],
    spans: &[Option<ByteRange>],
) -> (Vec<Run<RunKey>>, Vec<Option<usize>>) {
    let key = |at: usize| match dataset.layout(samples[at].shard) {
        Layout::OneObject => (samples[at].shard, None),
        Layout::ObjectPerSample => (samples[at].shard, Some(numbers[at])),
    };
    let wanted: Vec<(RunKey, ByteRange)> = (0..samples.len())
        .filter_map(|at| Some((key(at), spans[at]?)))
        .collect();
    let Coalesced { runs, run_of } = coalesce(&wanted, LIMITS);
    let mut run_of = run_of.into_iter();
    let run_of = spans.iter().map(|span| span.and_then(|_| run_of.next()));
    (runs, run_of.collect())
}

fn item(dataset: &Inner, run: &Run<RunKey>) -> Result<Item> {
    let (shard, number) = run.key;
    let place = dataset.shard(shard)?;
    let mut object = place.object.clone();
    let mut version = place.version.clone();
    if let Some(number) = number {
        let key = dataset.index.key(number)?.unwrap_or_default();
        object.key.push_str(&String::from_utf8_lossy(key));
        version = match dataset.index.value(VERSION_COLUMN, number)? {
            Some(Value::Text(version)) if !version.is_empty() => Some(version.to_owned()),
            _ => None,
        };
    }
    let range = ItemRange::Range {
        offset: run.range.start(),
        length: run.range.len(),
    };
    Ok(Item {
        object,
        range,
        version,
    })
}

/// Cuts a sample out of the view that it lies in, and checks it.
fn cut(
    dataset: &Inner,
    source: usize,
    number: u64,
    sample: &Sample<'_>,
    bytes: Bytes<'_>,
) -> Result<SampleBytes> {
    let place = dataset.shard(sample.shard)?;
    let about = |error: Error| about(error, place, number, sample);
    let (start, view) = match bytes {
        Bytes::None => (0, None),
        Bytes::At(start, view) => (start, Some(view)),
        Bytes::Asked(run, Ok(view)) if view.len() as u64 == run.len() => (run.start(), Some(view)),
        Bytes::Asked(run, Ok(view)) => {
            let message = "the shard ends before the sample does; upload it again, or index it again";
            let error = Error::new(Kind::Corrupt, message).with("offset", run.start());
            return Err(about(error.with("bytes", view.len()).with("expected", run.len())));
        }
        Bytes::Asked(_, Err(error)) => return Err(about(explain(error))),
    };
    let mut fields = Vec::with_capacity(sample.fields.len());
    for field in &sample.fields {
        let name = dataset.field_name(field.name);
        let range = match view {
            Some(_) if field.bytes > 0 => {
                let first = (field.offset - start) as usize;
                first..first + field.bytes as usize
            }
            _ => 0..0,
        };
        let memory = view.filter(|_| field.bytes > 0).cloned().map(Memory::View);
        let bytes = FieldBytes::new(name, memory, range);
        check(field, &bytes).map_err(about)?;
        fields.push(bytes);
    }
    Ok(SampleBytes {
        source,
        number,
        shard: place.name.clone(),
        key: sample.key.map(Into::into),
        fields,
        sample_seed: None,
    })
}

/// With the names that a person needs to find the sample.
pub(crate) fn about(error: Error, place: &ShardLocation, number: u64, sample: &Sample<'_>) -> Error {
    let error = error.with("shard", &place.name).with("sample", number);
    match sample.key {
        Some(key) => error.with("key", String::from_utf8_lossy(key)),
        None => error,
    }
}

/// Compares a field with what was indexed.
pub(crate) fn check(field: &Field<'_>, bytes: &[u8]) -> Result<()> {
    if field
        .crc32c
        .is_none_or(|expected| crc32c::crc32c(bytes) == expected)
    {
        return Ok(());
    }
    let message =
        "the bytes of the sample are not those that were indexed: the shard is damaged; upload it again";
    let error = Error::new(Kind::Corrupt, message).with("field", field.name);
    Err(error.with("offset", field.offset).with("bytes", field.bytes))
}

/// Returns what the error of a range means for a sample.
pub(crate) fn explain(error: &Error) -> Error {
    match error.kind() {
        Kind::Changed | Kind::PreconditionFailed => {
            let message = "the shard was replaced since it was indexed; open the dataset again to index it (forebay dataset index URL)";
            Error::new(Kind::Changed, message).caused_by(error.share())
        }
        Kind::OutOfRange => {
            let message = "the shard ends before the sample does; upload it again, or index it again";
            Error::new(Kind::Corrupt, message).caused_by(error.share())
        }
        _ => error.share(),
    }
}
