//! Plan of a pack: which units go into which shard, a pure function of the index and the options.
//!
//! One walk over all units in their new order; a shard is full when the next unit would make it longer than
//! it shall be. A unit that is longer alone gets a shard of its own. Nothing here depends on time, threads or
//! what is there already, so a pack that is started again has the same plan. Memory: 32 bytes a shard, and 8
//! bytes a unit if they are sorted.

use forebay_core::{Error, Kind, Result};
use forebay_dataset::order::{self, Fingerprint, OrderOptions, Shape, ShardSize, Shuffle};
use forebay_dataset::write::{PackFormat, SampleShape};

use super::options::SortBy;
use super::source::{Source, UnitShape};

/// The order of the units in the new shards.
pub(crate) enum Order {
    AsTheyAre,
    Shuffled(Box<order::Order>),
    Sorted(Vec<u64>),
}

/// A shard that is to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ShardPlan {
    pub(crate) number: u64,
    /// The position of its first unit.
    pub(crate) first: u64,
    pub(crate) units: u64,
    /// All of it, to the byte.
    pub(crate) bytes: u64,
}

/// Everything that is to be written.
pub(crate) struct Plan {
    pub(crate) order: Order,
    pub(crate) format: PackFormat,
    pub(crate) shards: Vec<ShardPlan>,
    /// Identity of data and options: the same for the same pack, 16 hex digits.
    pub(crate) id: String,
}

/// Options of a plan.
pub(crate) struct PlanOptions {
    pub(crate) format: PackFormat,
    pub(crate) shard_bytes: u64,
    pub(crate) shuffle: Option<u64>,
    pub(crate) sort_by: Option<SortBy>,
}

impl Plan {
    /// Cuts a source into shards.
    pub(crate) fn new(source: &Source, options: PlanOptions) -> Result<Self> {
        if source.units() == 0 {
            return Err(Error::new(Kind::InvalidInput, "there are no samples to pack"));
        }
        let id = id(source, &options);
        let order = Order::new(source, &options)?;
        let PlanOptions {
            format, shard_bytes, ..
        } = options;
        let shard_bytes = shard_bytes.min(format.shard_bytes_max());
        let mut shards: Vec<ShardPlan> = Vec::new();
        let mut open = ShardPlan {
            number: 0,
            first: 0,
            units: 0,
            bytes: 0,
        };
        let mut before = Vec::new();
        for position in 0..source.units() {
            let shape = source.shape(order.at(position)?)?;
            let bytes = unit_bytes(&format, &shape)?;
            let with = format
                .overhead_bytes(open.units + 1)
                .saturating_add(open.bytes)
                .saturating_add(bytes);
            if open.units > 0 && with > shard_bytes {
                shards.push(open);
                open = ShardPlan {
                    number: open.number + 1,
                    first: position,
                    units: 0,
                    bytes: 0,
                };
            } else if open.units > 0 {
                format.check_neighbours(&before, &shape.key)?;
            }
            before = shape.key;
            open.units += 1;
            open.bytes = open.bytes.saturating_add(bytes);
        }
        shards.push(open);
        for shard in &mut shards {
            shard.bytes = shard.bytes.saturating_add(format.overhead_bytes(shard.units));
        }
        Ok(Self {
            order,
            format,
            shards,
            id,
        })
    }

    /// Bytes of all shards.
    pub(crate) fn bytes(&self) -> u64 {
        self.shards.iter().map(|shard| shard.bytes).sum()
    }
}

/// Returns how long a unit will be in a shard.
pub(crate) fn unit_bytes(format: &PackFormat, unit: &UnitShape) -> Result<u64> {
    let fields: Vec<(&str, u64)> = unit
        .fields
        .iter()
        .map(|(name, bytes)| (name.as_str(), *bytes))
        .collect();
    format.sample_bytes(&SampleShape {
        key: &unit.key,
        fields: &fields,
    })
}

fn id(source: &Source, options: &PlanOptions) -> String {
    let how = format!(
        "{:?} shard_bytes={} shuffle={:?} sort_by={:?}",
        options.format, options.shard_bytes, options.shuffle, options.sort_by
    );
    let how = match &source.labels {
        Some(labels) => format!("{how} labels={}", labels.digest),
        None => how,
    };
    let data = source.dataset.shape().fingerprint().to_string();
    let mut id = Fingerprint::of([("forebay pack v1", "", 1), (&data, &how, source.units())]).to_string();
    id.truncate(16);
    id
}

impl Order {
    fn new(source: &Source, options: &PlanOptions) -> Result<Self> {
        if let Some(seed) = options.shuffle {
            let all = ShardSize {
                samples: source.units(),
                bytes: 0,
            };
            let shape = Shape::new([all], Fingerprint::of([]))?;
            let options = OrderOptions {
                seed,
                shuffle: Shuffle::Global,
                ..OrderOptions::default()
            };
            return Ok(Self::Shuffled(Box::new(
                order::Plan::new(shape, options)?.epoch(0),
            )));
        }
        match options.sort_by {
            None => Ok(Self::AsTheyAre),
            Some(by) => {
                source.check_order(by)?;
                let mut keyed = Vec::new();
                for unit in 0..source.units() {
                    let shape = source.shape(unit)?;
                    let bytes: u64 = shape.fields.iter().map(|(_, bytes)| *bytes).sum();
                    keyed.push(match by {
                        SortBy::Key => (0, shape.key, unit),
                        SortBy::Bytes => (bytes, Vec::new(), unit),
                    });
                }
                keyed.sort_unstable();
                Ok(Self::Sorted(keyed.into_iter().map(|(_, _, unit)| unit).collect()))
            }
        }
    }

    /// The unit at a position.
    pub(crate) fn at(&self, position: u64) -> Result<u64> {
        let unit = match self {
            Self::AsTheyAre => Some(position),
            Self::Shuffled(order) => order.at(position),
            Self::Sorted(units) => units.get(position as usize).copied(),
        };
        unit.ok_or_else(|| Error::new(Kind::Internal, "a shard reaches behind the last sample"))
    }
}
