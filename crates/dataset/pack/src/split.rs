//! Divides a dataset into named parts, as lists of sample numbers or of shards.
//!
//! The samples (or shards) are shuffled as a loader shuffles globally, by the seed, and cut at the shares: so
//! the same dataset, seed and shares give the same parts everywhere, no sample is in two of them, and no key
//! has to be hashed. A list is sorted, and says which data it is of: a dataset that is opened with it (`part=`
//! in Python) refuses it for other versions of the data. What the shares leave is in no part. Memory: one list
//! at a time.

use std::sync::Arc;

use forebay_core::{Error, Kind, Result};
use forebay_dataset::order::{Fingerprint, OrderOptions, Plan, Shape, ShardSize, Shuffle};
use forebay_dataset::part::{Members, PartList};
use forebay_loader::Dataset;

/// More parts are a slip of the finger.
const PARTS_MAX: usize = 1000;
/// Rounding error that sums of shares may have.
const ROUNDING: f64 = 1e-9;

/// A part, and its share of the dataset.
#[derive(Debug, Clone, PartialEq)]
pub struct PartShare {
    /// The name of the part: letters, digits, `-` and `_`.
    pub name: String,
    /// Its share, above 0 and at most 1.
    pub share: f64,
}

/// Unit that parts are made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SplitUnit {
    /// Samples by number.
    Samples,
    /// Whole shards by name: parts share no shard.
    Shards,
}

/// Options of a split.
#[derive(Debug, Clone, PartialEq)]
pub struct SplitOptions {
    /// Parts in their order; the shares add up to 1 at most.
    pub parts: Vec<PartShare>,
    /// Another seed, another split.
    pub seed: u64,
    /// Unit that parts are made of.
    pub unit: SplitUnit,
}

/// Divides a dataset, and hands each part on.
pub fn split(
    dataset: &Dataset,
    options: &SplitOptions,
    mut take: impl FnMut(&PartShare, PartList) -> Result<()>,
) -> Result<()> {
    let shape = match options.unit {
        SplitUnit::Samples => Arc::clone(dataset.shape()),
        SplitUnit::Shards => shards(dataset)?,
    };
    let total = shape.samples();
    let order = OrderOptions {
        seed: options.seed,
        shuffle: Shuffle::Global,
        ..OrderOptions::default()
    };
    let order = Plan::new(shape, order)?.epoch(0);
    let mut share = 0.0;
    let mut first = 0;
    for part in &options.parts {
        share += part.share;
        let end = ((total as f64 * share).round() as u64).min(total);
        let mut numbers: Vec<u64> = order.iter(first..end).collect();
        numbers.sort_unstable();
        first = end;
        let list = PartList {
            name: part.name.clone(),
            fingerprint: dataset.shape().fingerprint(),
            members: members(dataset, options.unit, numbers)?,
        };
        take(part, list)?;
    }
    Ok(())
}

/// Every shard as one sample.
fn shards(dataset: &Dataset) -> Result<Arc<Shape>> {
    let one = ShardSize { samples: 1, bytes: 0 };
    let count = dataset.shape().shards();
    Shape::new((0..count).map(|_| one), Fingerprint::of([])).map(Arc::new)
}

fn members(dataset: &Dataset, unit: SplitUnit, numbers: Vec<u64>) -> Result<Members> {
    if unit == SplitUnit::Samples {
        return Ok(Members::Samples(numbers));
    }
    let name = |number: &u64| {
        let number = u32::try_from(*number).unwrap_or(u32::MAX);
        Ok(dataset.index().shard(number)?.name().to_owned())
    };
    numbers
        .iter()
        .map(name)
        .collect::<Result<_>>()
        .map(Members::Shards)
}

impl PartShare {
    /// Reads `train=0.9,val=0.1`. Errors: `InvalidInput` if there is more to divide than all of it.
    pub fn parse_list(text: &str) -> Result<Vec<Self>> {
        let wrong = |message: String| Error::new(Kind::InvalidInput, message);
        let mut parts: Vec<Self> = Vec::new();
        for one in text.split(',') {
            let part = Self::parse(one).map_err(wrong)?;
            if parts.iter().any(|other| other.name == part.name) {
                return Err(wrong(format!("there are two parts called {}", part.name)));
            }
            parts.push(part);
        }
        let sum: f64 = parts.iter().map(|part| part.share).sum();
        if sum > 1.0 + ROUNDING || parts.len() > PARTS_MAX {
            let message = format!("the shares add up to {sum}; at most 1 is there to divide");
            return Err(wrong(message));
        }
        Ok(parts)
    }

    fn parse(text: &str) -> Result<Self, String> {
        let (name, share) = text.split_once('=').ok_or("write parts as train=0.9,val=0.1")?;
        let is_name = |one: char| one.is_ascii_alphanumeric() || matches!(one, '-' | '_');
        if name.is_empty() || !name.chars().all(is_name) {
            return Err(format!(
                "'{name}' is no name of a part: use letters, digits, - and _"
            ));
        }
        let share: f64 = share
            .parse()
            .map_err(|_| format!("'{share}' is no share; write a number such as 0.9"))?;
        if !(share > 0.0 && share <= 1.0) {
            return Err(format!("a share is above 0 and at most 1, not {share}"));
        }
        Ok(Self {
            name: name.to_owned(),
            share,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_read_and_nonsense_is_refused() {
        let parts = PartShare::parse_list("train=0.9,val=0.1").unwrap();
        assert_eq!(parts[1].name, "val");
        assert!((parts[1].share - 0.1).abs() < ROUNDING);
        assert_eq!(PartShare::parse_list("a=0.3,b=0.3,c=0.4").unwrap().len(), 3);
        for bad in [
            "",
            "train",
            "a=0",
            "a=1.5",
            "a=x",
            "a=0.6,b=0.6",
            "a=0.1,a=0.1",
            "../a=0.5",
            "=0.5",
            "a=NaN",
        ] {
            assert!(PartShare::parse_list(bad).is_err(), "{bad}");
        }
    }
}
