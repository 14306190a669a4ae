//! The batch of a step: its samples, read, checked and decoded, with bad ones treated as the options say.
//!
//! The samples of a batch depend on the sampler and on the data alone, never on who asks or when: a
//! substitute is the next good sample of the window, found the same way on every rank. Errors that are
//! nobody's fault but the lake's are raised.

use std::sync::Arc;
use std::time::Instant;

use forebay_core::{Error, Kind, Result};
use forebay_dataset::order;

use crate::dataset::Inner;
use crate::decoding::{self, Column, Decoding, Row};
use crate::fetch::{Fetched, fetch, nanoseconds};
use crate::leased_pages::LeasedPages;
use crate::options::OnError;
use crate::sample::SampleBytes;
use crate::sampler::{SampleRef, Sampler, SamplerCursor};
use crate::stats::{BadSample, BatchStats, Times};

/// Substitutes that are tried for one sample.
const SUBSTITUTES_MAX: usize = 64;

/// Some samples in order.
#[derive(Debug)]
pub struct Batch {
    /// The epoch.
    pub epoch: u64,
    /// The step of this run in the epoch: counted from where the loader started in it.
    pub step: u64,
    /// The samples; fewer than the batch size if some were skipped.
    pub samples: Vec<SampleBytes>,
    /// Fields that were decoded, in the order of [`crate::LoaderOptions::decode`]; their bytes are gone from
    /// the samples unless a value looks at them.
    pub columns: Vec<Column>,
    /// Number of padded samples: those of the epoch's beginning that come a second time.
    pub padded: u64,
    /// Samples that could not be used.
    pub bad: Vec<BadSample>,
    /// Its cost.
    pub stats: BatchStats,
    /// Bytes of all fields as they were read.
    pub(crate) read_bytes: u64,
    /// Memory that it holds until it is handed over: samples and what was decoded.
    pub(crate) memory_bytes: u64,
    /// Samples that all ranks have consumed after it.
    pub(crate) position_after: u64,
}

impl Batch {
    /// Adds a sample and returns its row.
    fn push(&mut self, (sample, row): (SampleBytes, Row)) -> Row {
        self.read_bytes += sample.bytes();
        self.samples.push(sample);
        row
    }

    /// All bytes of all samples, as they were read.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.read_bytes
    }
}

/// Makes batches; one per thread.
pub(crate) struct Assembler {
    pub(crate) sampler: Arc<Sampler>,
    pub(crate) datasets: Arc<[Arc<Inner>]>,
    pub(crate) on_error: OnError,
    pub(crate) decoding: Arc<Decoding>,
    pub(crate) leased: Arc<LeasedPages>,
    /// The current epoch and its cursor.
    pub(crate) cursor: Option<(u64, SamplerCursor)>,
}

/// A sample, or what is wrong with it.
struct Slot {
    position: u64,
    sample_ref: SampleRef,
    sample: Option<Result<(SampleBytes, Row)>>,
}

impl Assembler {
    /// The batch of a step.
    pub(crate) fn batch(&mut self, epoch: u64, step: &order::Batch, position_after: u64) -> Result<Batch> {
        let mut batch = Batch {
            epoch,
            step: step.step,
            samples: Vec::new(),
            columns: Vec::new(),
            padded: step.padded(),
            bad: Vec::new(),
            stats: BatchStats::default(),
            read_bytes: 0,
            memory_bytes: 0,
            position_after,
        };
        let mut slots = self.slots(epoch, step)?;
        self.read(epoch, &mut slots, &mut batch.stats)?;
        self.decode(&mut slots, &mut batch.stats);
        batch.samples.reserve(slots.len());
        let mut rows = Vec::with_capacity(slots.len());
        let mut left_out = None;
        for slot in slots {
            let good = match slot.sample {
                Some(Ok(good)) => Some(good),
                Some(Err(error)) => {
                    left_out = Some((slot.position, error.share()));
                    self.bad(&mut batch, slot.position, slot.sample_ref, error)?
                }
                None => return Err(Error::new(Kind::Internal, "a sample was not asked for")),
            };
            rows.extend(good.map(|good| batch.push(good)));
        }
        if let Some((position, error)) = left_out.filter(|_| batch.samples.is_empty()) {
            rows.push(self.only_sample(&mut batch, position, error)?);
        }
        let started = Instant::now();
        batch.columns = self.decoding.columns(&mut batch.samples, rows);
        let samples: u64 = batch.samples.iter().map(SampleBytes::bytes).sum();
        batch.memory_bytes = samples + batch.columns.iter().map(Column::memory_bytes).sum::<u64>();
        batch.stats.work.decode_ns += nanoseconds(started.elapsed());
        Ok(batch)
    }

    fn slots(&mut self, epoch: u64, step: &order::Batch) -> Result<Vec<Slot>> {
        let cursor = match &mut self.cursor {
            Some((walked, cursor)) if *walked == epoch => cursor,
            other => &mut other.insert((epoch, self.sampler.cursor(epoch))).1,
        };
        let slot = |position| {
            let sample_ref = cursor.at(position)?;
            Ok(Slot {
                position,
                sample_ref,
                sample: None,
            })
        };
        step.positions().map(slot).collect()
    }

    /// Sends one request per dataset.
    fn read(&self, epoch: u64, slots: &mut [Slot], stats: &mut BatchStats) -> Result<()> {
        for (source, dataset) in self.datasets.iter().enumerate() {
            let mine = slots.iter_mut().filter(|slot| slot.sample_ref.source == source);
            let mine: Vec<&mut Slot> = mine.collect();
            if mine.is_empty() {
                continue;
            }
            let numbers: Vec<u64> = mine.iter().map(|slot| slot.sample_ref.number).collect();
            let fetched = fetch(dataset, source, &numbers, Some(&self.leased))?;
            count(stats, &fetched);
            for (slot, sample) in mine.into_iter().zip(fetched.samples) {
                slot.sample = Some(sample.map(|mut sample| {
                    sample.sample_seed = self.sampler.sample_seed(epoch, slot.position);
                    (sample, Row::new())
                }));
            }
        }
        Ok(())
    }

    /// Decodes what was read; what cannot be decoded is a bad sample.
    fn decode(&self, slots: &mut [Slot], stats: &mut BatchStats) {
        if self.decoding.is_empty() {
            return;
        }
        let started = Instant::now();
        let good: Vec<&mut Slot> = slots
            .iter_mut()
            .filter(|slot| matches!(slot.sample, Some(Ok(_))))
            .collect();
        let take = |slot: &mut &mut Slot| match slot.sample.take() {
            Some(Ok((sample, _))) => Some(sample),
            _ => None,
        };
        let mut good = good;
        let samples: Vec<SampleBytes> = good.iter_mut().filter_map(take).collect();
        for (slot, decoded) in good.into_iter().zip(self.decoding.decode(samples)) {
            slot.sample = Some(decoded);
        }
        stats.work.decode_ns += nanoseconds(started.elapsed());
    }

    /// Keeps a batch from being empty, of which every sample was left out: nobody expects one, and ranks must
    /// have equal steps. The next good sample of the window comes instead of the last: damage comes in runs, and what
    /// is behind it is good sooner.
    fn only_sample(&self, batch: &mut Batch, position: u64, error: Error) -> Result<Row> {
        let good = self.substitute(batch, position, error)?;
        if let Some(last) = batch.bad.last_mut() {
            last.substitute = Some(good.0.number);
        }
        Ok(batch.push(good))
    }

    /// Records a bad sample; what comes in its place, if anything does.
    fn bad(
        &self,
        batch: &mut Batch,
        position: u64,
        sample_ref: SampleRef,
        error: Error,
    ) -> Result<Option<(SampleBytes, Row)>> {
        if self.on_error == OnError::Raise || !is_samples_fault(&error) {
            return Err(error.with("epoch", batch.epoch));
        }
        let mut record = self.record(batch.epoch, sample_ref, &error)?;
        let substitute = match self.on_error {
            OnError::Substitute => Some(self.substitute(batch, position, error)?),
            _ => None,
        };
        record.substitute = substitute.as_ref().map(|(sample, _)| sample.number);
        tracing::warn!(
            shard = record.shard,
            key = record.key,
            sample = record.number,
            substitute = record.substitute,
            reason = record.reason,
            "bad sample"
        );
        batch.bad.push(record);
        Ok(substitute)
    }

    /// The next good sample of the window.
    fn substitute(&self, batch: &mut Batch, position: u64, mut error: Error) -> Result<(SampleBytes, Row)> {
        for sample_ref in self
            .sampler
            .substitutes(batch.epoch, position)
            .take(SUBSTITUTES_MAX)
        {
            let dataset = &self.datasets[sample_ref.source];
            let mut fetched = fetch(
                dataset,
                sample_ref.source,
                &[sample_ref.number],
                Some(&self.leased),
            )?;
            count(&mut batch.stats, &fetched);
            let decoded = fetched.samples.pop().map(|sample| {
                let mut sample = sample?;
                sample.sample_seed = self.sampler.sample_seed(batch.epoch, position);
                let row = decoding::decode(self.decoding.fields(), &sample)?;
                Ok((sample, row))
            });
            match decoded {
                Some(Ok(good)) => return Ok(good),
                Some(Err(other)) if is_samples_fault(&other) => error = other,
                Some(Err(other)) => return Err(other),
                None => {}
            }
        }
        let message =
            "no sample of the window can take the place of a bad one: too much of the data is damaged";
        Err(Error::new(Kind::Corrupt, message)
            .with("epoch", batch.epoch)
            .caused_by(error))
    }

    fn record(&self, epoch: u64, sample_ref: SampleRef, error: &Error) -> Result<BadSample> {
        let dataset = &self.datasets[sample_ref.source];
        let sample = dataset.index.sample(sample_ref.number)?;
        Ok(BadSample {
            epoch,
            source: sample_ref.source,
            number: sample_ref.number,
            shard: dataset.shard(sample.shard)?.name.to_string(),
            key: sample.key.map(|key| String::from_utf8_lossy(key).into_owned()),
            reason: error.to_string(),
            substitute: None,
        })
    }
}

/// Returns whether another try, or another node, would see the same.
fn is_samples_fault(error: &Error) -> bool {
    matches!(
        error.kind(),
        Kind::Corrupt | Kind::Checksum | Kind::OutOfRange | Kind::NotFound
    )
}

fn count(stats: &mut BatchStats, fetched: &Fetched) {
    stats.sources += fetched.sources;
    let from_lake = fetched.sources.lake > 0;
    stats.work.add(&Times {
        lake_ns: if from_lake { fetched.read_ns } else { 0 },
        cache_ns: if from_lake { 0 } else { fetched.read_ns },
        check_ns: fetched.check_ns,
        decode_ns: 0,
    });
}
