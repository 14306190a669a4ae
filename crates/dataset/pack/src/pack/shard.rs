//! Writes one shard: reads its units in their order, a few at a time, and streams them out.
//!
//! The object appears when its last byte is in the lake; killed before, nothing is there. Memory: one batch
//! of units (views of the node's memory) and one part of the writer.

use forebay_client::PutOptions;
use forebay_core::{Error, Kind, Result};
use forebay_dataset::manifest::Hasher;
use forebay_dataset::write::{PackSample, SampleShape};

use super::plan::{Plan, ShardPlan, unit_bytes};
use super::record::{PackFolder, RawRecord, ShardRecord};
use super::source::{Source, Unit, UnitShape};
use crate::work::{StageProgress, Work};

/// Bytes of units that are read at once, if it is more than one unit.
const BATCH_BYTES: u64 = 8 << 20;
/// Units that are read at once.
const BATCH_UNITS: usize = 256;

/// Everything that the writing of shards needs.
pub(crate) struct Packing<'a> {
    pub(crate) source: &'a Source,
    pub(crate) plan: &'a Plan,
    pub(crate) target: &'a PackFolder<'a>,
    pub(crate) progress: &'a StageProgress<'a>,
    pub(crate) work: &'a Work<'a>,
}

impl Packing<'_> {
    /// Writes a shard and notes it.
    pub(crate) fn shard(&self, shard: &ShardPlan) -> Result<ShardRecord> {
        let name = self.plan.format.shard_name(shard.number);
        let object = self.target.folder.name(&name)?;
        let mut writer = self.plan.format.writer(self.sizes(shard)?);
        let mut object =
            self.target
                .folder
                .client
                .writer(&object, PutOptions::default(), self.bytes_known(shard));
        let mut hasher = Hasher::new();
        let is_planned = self.plan.format.is_exact();
        let mut out = |bytes: &[u8]| {
            hasher.push(bytes);
            if is_planned {
                self.progress.advance(bytes.len() as u64);
            }
            object.write(bytes)
        };
        writer.start(&mut out)?;
        let end = shard.first + shard.units;
        let mut position = shard.first;
        while position < end {
            self.check()?;
            let batch = self.batch(position, end)?;
            position += batch.len() as u64;
            self.each(&batch, &mut |unit| {
                let fields: Vec<(&str, &[u8])> = unit
                    .fields
                    .iter()
                    .map(|(name, bytes)| (&**name, &**bytes))
                    .collect();
                // Of rows the plan did not know whether the format can hold them; of what is compressed the
                // bar counts what goes in.
                if !self.source.is_exact() || !is_planned {
                    let bytes = self.size(&unit)?;
                    self.progress.advance(if is_planned { 0 } else { bytes });
                }
                writer.sample(
                    &PackSample {
                        key: &unit.key,
                        fields: &fields,
                    },
                    &mut out,
                )
            })?;
        }
        writer.finish(&mut out)?;
        let receipt = object.finish()?;
        let record = ShardRecord {
            name,
            bytes: receipt.bytes,
            samples: shard.units,
            sha256: hasher.finish().to_string(),
            version: receipt.version,
            raw: writer.raw().map(|raw| RawRecord {
                bytes: raw.bytes,
                sha256: raw.sha256.to_string(),
            }),
        };
        self.target.note(&self.plan.id, &record)?;
        Ok(record)
    }

    /// Returns how long the shard will be, if that is known.
    fn bytes_known(&self, shard: &ShardPlan) -> Option<u64> {
        (self.source.is_exact() && self.plan.format.is_exact()).then_some(shard.bytes)
    }

    /// The size of every sample, for formats that need it first.
    fn sizes(&self, shard: &ShardPlan) -> Result<Vec<u64>> {
        let positions = shard.first..shard.first + shard.units;
        if !self.plan.format.needs_sizes() {
            return Ok(Vec::new());
        }
        if !self.source.is_exact() {
            return self.sizes_read(shard);
        }
        let size = |position| {
            unit_bytes(
                &self.plan.format,
                &self.source.shape(self.plan.order.at(position)?)?,
            )
        };
        positions.map(size).collect()
    }

    /// The same by reading all of them.
    fn sizes_read(&self, shard: &ShardPlan) -> Result<Vec<u64>> {
        let mut sizes = Vec::new();
        let end = shard.first + shard.units;
        let mut position = shard.first;
        while position < end {
            self.check()?;
            let batch = self.batch(position, end)?;
            position += batch.len() as u64;
            self.each(&batch, &mut |unit| {
                sizes.push(self.size(&unit)?);
                Ok(())
            })?;
        }
        Ok(sizes)
    }

    /// The size of a unit that was read. Errors: if the format cannot hold it, which of rows is not known
    /// before.
    fn size(&self, unit: &Unit<'_>) -> Result<u64> {
        let fields = unit.fields.iter();
        let fields: Vec<_> = fields
            .map(|(name, bytes)| (&**name, bytes.len() as u64))
            .collect();
        self.plan.format.sample_bytes(&SampleShape {
            key: &unit.key,
            fields: &fields,
        })
    }

    fn check(&self) -> Result<()> {
        if self.work.is_interrupted() {
            let message = "interrupted; the same pack goes on from here";
            return Err(Error::new(Kind::Cancelled, message));
        }
        Ok(())
    }

    /// The next units that are read at once.
    fn batch(&self, first: u64, end: u64) -> Result<Vec<(u64, UnitShape)>> {
        let mut batch = Vec::new();
        let mut bytes = 0_u64;
        for position in first..end {
            let unit = self.plan.order.at(position)?;
            let shape = self.source.shape(unit)?;
            bytes = bytes.saturating_add(shape.fields.iter().map(|(_, bytes)| *bytes).sum());
            if !batch.is_empty() && (bytes > BATCH_BYTES || batch.len() >= BATCH_UNITS) {
                break;
            }
            batch.push((unit, shape));
        }
        Ok(batch)
    }

    /// Reads units and hands them on, in order.
    fn each(&self, batch: &[(u64, UnitShape)], take: &mut dyn FnMut(Unit<'_>) -> Result<()>) -> Result<()> {
        let numbers: Vec<u64> = batch
            .iter()
            .flat_map(|(unit, _)| self.source.samples_of(*unit))
            .collect();
        let samples = self.source.dataset.samples(&numbers)?;
        let samples = samples.into_iter().collect::<Result<Vec<_>>>()?;
        let mut first = 0;
        for (unit, shape) in batch {
            let range = self.source.samples_of(*unit);
            let count = (range.end - range.start) as usize;
            let unit = self.source.unit(&samples[first..first + count], shape)?;
            first += count;
            let is_whole = unit
                .fields
                .iter()
                .zip(&shape.fields)
                .all(|((_, bytes), (_, planned))| bytes.len() as u64 == *planned);
            if self.source.is_exact() && (unit.fields.len() != shape.fields.len() || !is_whole) {
                let message =
                    "a sample is not as the index says; index the source again: forebay dataset index URL";
                return Err(
                    Error::new(Kind::Changed, message).with("key", String::from_utf8_lossy(&shape.key))
                );
            }
            take(unit)?;
        }
        Ok(())
    }
}
