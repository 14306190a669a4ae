//! Decodes the fields of samples on a pool of threads, and packs what is alike into one array.
//!
//! A fetcher that has read a batch gives its samples to the pool and waits; threads take one sample after the
//! other, of the oldest batch first, so a batch is decoded by all of them together. Bounds: as many batches
//! as there are fetchers, as many threads as the options say. Where all decoders are quick (numbers, text,
//! tokens) there is no pool: the fetcher does it itself.
//!
//! Life cycle: threads start and end with the pipeline of their loader.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use forebay_core::{Error, Kind, Result};
use forebay_decode::{Decoder, Packed, Value, pack};

use crate::buffer_pool::{BufferPool, PooledBuffer};
use crate::dataset::Dataset;
use crate::sample::SampleBytes;

/// A field and how it is decoded.
#[derive(Debug, Clone, PartialEq)]
pub struct FieldDecoder {
    /// Its name.
    pub field: Arc<str>,
    /// Its decoder.
    pub decoder: Decoder,
}

impl FieldDecoder {
    /// `decoder` as in [`Decoder::parse`].
    pub fn parse(field: &str, decoder: &str) -> Result<Self> {
        let decoder = Decoder::parse(decoder).map_err(|error| error.with("field", field))?;
        Ok(Self {
            field: field.into(),
            decoder,
        })
    }
}

/// A decoded field of all samples of a batch.
#[derive(Debug)]
pub enum Column {
    /// One array for all of them.
    Packed(Packed<PooledBuffer>),
    /// A value for each. Those that say so look into the field of their sample.
    Values(Vec<Value>),
}

impl Column {
    /// Memory that it holds.
    pub(crate) fn memory_bytes(&self) -> u64 {
        match self {
            Self::Packed(packed) => packed.memory.len() as u64,
            Self::Values(values) => values.iter().map(Value::memory_bytes).sum::<usize>() as u64,
        }
    }
}

/// The values of one sample, in the order of the decoders.
pub(crate) type Row = Vec<Value>;

/// Decoders of a loader, and the threads that run them.
pub(crate) struct Decoding {
    fields: Arc<[FieldDecoder]>,
    /// `None` if everything is quick.
    pool: Option<Pool>,
    buffers: BufferPool,
}

impl Decoding {
    pub(crate) fn new(fields: &[FieldDecoder]) -> Self {
        let is_heavy = fields.iter().any(|field| field.decoder.is_heavy());
        Self {
            fields: fields.into(),
            pool: is_heavy.then(Pool::default),
            buffers: BufferPool::default(),
        }
    }

    pub(crate) fn fields(&self) -> &[FieldDecoder] {
        &self.fields
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }

    pub(crate) fn has_pool(&self) -> bool {
        self.pool.is_some()
    }

    /// Runs a thread of the pool until it is closed.
    pub(crate) fn run(&self) {
        if let Some(pool) = &self.pool {
            pool.run();
        }
    }

    /// Ends the threads of the pool.
    pub(crate) fn close(&self) {
        if let Some(pool) = &self.pool {
            pool.close();
        }
    }

    /// Each sample with its row, or what is wrong with it.
    pub(crate) fn decode(&self, samples: Vec<SampleBytes>) -> Vec<Result<(SampleBytes, Row)>> {
        let (samples, rows) = match &self.pool {
            Some(pool) => pool.decode(&self.fields, samples),
            None => {
                let rows = samples
                    .iter()
                    .map(|sample| decode(&self.fields, sample))
                    .collect();
                (samples, rows)
            }
        };
        let rows: Vec<Result<Row>> = rows;
        samples
            .into_iter()
            .zip(rows)
            .map(|(sample, row)| Ok((sample, row?)))
            .collect()
    }

    /// Columns of the rows of a batch.
    pub(crate) fn columns(&self, samples: &mut [SampleBytes], rows: Vec<Row>) -> Vec<Column> {
        columns(&self.fields, samples, rows, &self.buffers)
    }
}

/// Decodes the fields of a sample.
pub(crate) fn decode(fields: &[FieldDecoder], sample: &SampleBytes) -> Result<Row> {
    let one = |field: &FieldDecoder| {
        let value = match sample.field(&field.field) {
            Some(bytes) if bytes.is_null() => Ok(Value::Null),
            Some(bytes) => field.decoder.decode_seeded(bytes, sample.sample_seed),
            None => Err(Error::new(Kind::Corrupt, "the sample has no such field")),
        };
        value.map_err(|error| {
            let error = error.with("field", &field.field).with("shard", &sample.shard);
            let error = error.with("sample", sample.number);
            match &sample.key {
                Some(key) => error.with("key", String::from_utf8_lossy(key)),
                None => error,
            }
        })
    };
    fields.iter().map(one).collect()
}

/// Makes columns of the rows of a batch, and lets go of fields that are not needed any more.
fn columns(
    fields: &[FieldDecoder],
    samples: &mut [SampleBytes],
    rows: Vec<Row>,
    buffers: &BufferPool,
) -> Vec<Column> {
    let mut by_field: Vec<Vec<Value>> = fields.iter().map(|_| Vec::with_capacity(rows.len())).collect();
    for row in rows {
        for (values, value) in by_field.iter_mut().zip(row) {
            values.push(value);
        }
    }
    let mut columns = Vec::with_capacity(fields.len());
    for (field, values) in fields.iter().zip(by_field) {
        let bytes: Vec<&[u8]> = samples
            .iter()
            .map(|sample| sample.field(&field.field).map_or(&[][..], |bytes| bytes))
            .collect();
        let packed = pack(&field.decoder, &values, &bytes, |bytes| buffers.take(bytes));
        let column = match packed {
            Some(packed) => Column::Packed(Packed {
                dtype: packed.dtype,
                shape: packed.shape,
                memory: buffers.own(packed.memory),
            }),
            None => Column::Values(values),
        };
        let needs = |at: usize| match &column {
            Column::Packed(_) => false,
            Column::Values(values) => values.get(at).is_some_and(Value::needs_field),
        };
        for (at, sample) in samples.iter_mut().enumerate() {
            if !needs(at) {
                sample.fields.retain(|other| *other.name() != field.field);
                if sample.fields.is_empty() {
                    // Given back by the thread that took it: memory that another thread gives back is dear.
                    sample.fields = Vec::new();
                }
            }
        }
        columns.push(column);
    }
    columns
}

/// Samples of a batch that are being decoded.
struct DecodeJob {
    fields: Arc<[FieldDecoder]>,
    samples: Vec<SampleBytes>,
    next: AtomicUsize,
    done: Mutex<DecodeResults>,
    finished: Condvar,
}

struct DecodeResults {
    rows: Vec<Option<Result<Row>>>,
    left: usize,
}

/// The queue of batches that wait for the pool.
#[derive(Default)]
pub(crate) struct Pool {
    queue: Mutex<WorkQueue>,
    more: Condvar,
}

#[derive(Default)]
struct WorkQueue {
    waiting: VecDeque<Arc<DecodeJob>>,
    is_closed: bool,
}

impl Pool {
    fn queue(&self) -> MutexGuard<'_, WorkQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a thread of the pool until it is closed.
    pub(crate) fn run(&self) {
        while let Some(work) = self.take() {
            work.work();
        }
    }

    /// The oldest batch that has samples which nobody has begun; `None` when all is over.
    fn take(&self) -> Option<Arc<DecodeJob>> {
        let mut queue = self.queue();
        loop {
            if queue.is_closed {
                return None;
            }
            queue.waiting.retain(|work| work.has_more());
            if let Some(work) = queue.waiting.front() {
                return Some(Arc::clone(work));
            }
            queue = self.more.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Ends the threads.
    pub(crate) fn close(&self) {
        self.queue().is_closed = true;
        self.more.notify_all();
    }

    /// Decodes these samples on the threads of the pool; gives them back with a row, or an error, for each.
    pub(crate) fn decode(
        &self,
        fields: &Arc<[FieldDecoder]>,
        samples: Vec<SampleBytes>,
    ) -> (Vec<SampleBytes>, Vec<Result<Row>>) {
        let count = samples.len();
        let work = Arc::new(DecodeJob {
            fields: Arc::clone(fields),
            samples,
            next: AtomicUsize::new(0),
            done: Mutex::new(DecodeResults {
                rows: (0..count).map(|_| None).collect(),
                left: count,
            }),
            finished: Condvar::new(),
        });
        self.queue().waiting.push_back(Arc::clone(&work));
        self.more.notify_all();
        let mut done = work.done();
        while done.left > 0 {
            if self.is_closed() {
                // The threads are gone, or about to be; whatever is left is decoded here.
                drop(done);
                work.work();
                done = work.done();
                continue;
            }
            let (again, _) = work
                .finished
                .wait_timeout(done, std::time::Duration::from_millis(100))
                .unwrap_or_else(PoisonError::into_inner);
            done = again;
        }
        let rows = std::mem::take(&mut done.rows).into_iter();
        let rows = rows
            .map(|row| row.unwrap_or_else(|| Err(Error::new(Kind::Internal, "a sample was not decoded"))))
            .collect();
        drop(done);
        // Memory of the node that samples lie in is not held for longer than they are used.
        self.queue().waiting.retain(|work| work.has_more());
        (work.samples.clone(), rows)
    }

    fn is_closed(&self) -> bool {
        self.queue().is_closed
    }
}

impl DecodeJob {
    fn done(&self) -> MutexGuard<'_, DecodeResults> {
        self.done.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has_more(&self) -> bool {
        self.next.load(Ordering::Relaxed) < self.samples.len()
    }

    /// Decodes samples until none is left that nobody has begun.
    fn work(&self) {
        loop {
            let at = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(sample) = self.samples.get(at) else {
                return;
            };
            let row = decode(&self.fields, sample);
            let mut done = self.done();
            done.rows[at] = Some(row);
            done.left -= 1;
            if done.left == 0 {
                self.finished.notify_all();
            }
        }
    }
}

impl Dataset {
    /// These samples with some fields decoded, here and now; the first one that cannot be read or decoded is
    /// the error. Random steps are as `seeds` says, one for each sample; without them there are none.
    pub fn decoded(
        &self,
        numbers: &[u64],
        fields: &[FieldDecoder],
        seeds: Option<&[u64]>,
    ) -> Result<(Vec<SampleBytes>, Vec<Column>)> {
        let mut samples: Vec<SampleBytes> = self.samples(numbers)?.into_iter().collect::<Result<_>>()?;
        for (sample, seed) in samples.iter_mut().zip(seeds.unwrap_or_default()) {
            sample.sample_seed = Some(*seed);
        }
        let rows: Vec<Row> = samples
            .iter()
            .map(|sample| decode(fields, sample))
            .collect::<Result<_>>()?;
        let columns = columns(fields, &mut samples, rows, &BufferPool::default());
        Ok((samples, columns))
    }
}
