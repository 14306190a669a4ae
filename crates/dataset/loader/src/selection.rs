//! A part of a dataset that was chosen beforehand: numbers of samples, or a list of `forebay dataset split`.

use forebay_core::{Error, Kind, Result};
use forebay_dataset::index::Index;
use forebay_dataset::order::{Shape, Subset};
use forebay_dataset::part::PartList;

/// Samples that were chosen beforehand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SampleSelection {
    /// Those with these numbers, in any order.
    Numbers(Vec<u64>),
    /// Those of a list.
    List(PartList),
}

impl SampleSelection {
    /// The samples in this dataset.
    ///
    /// Errors: `InvalidInput` if a number is not there or comes twice, `Changed` if a list is of other data.
    pub(crate) fn subset(self, index: &Index, shape: &Shape) -> Result<Subset> {
        let mut numbers = match self {
            Self::Numbers(numbers) => numbers,
            Self::List(list) => {
                let shards = (0..index.shard_count()).map(|number| {
                    let shard = index.shard(number)?;
                    let first = shard.first_sample();
                    Ok((shard.name().to_owned(), first..first + shard.samples()))
                });
                return list
                    .subset(shape.fingerprint(), shards)
                    .and_then(|subset| checked(subset, shape));
            }
        };
        numbers.sort_unstable();
        checked(Subset::from_sorted(numbers)?, shape)
    }
}

/// The subset, if the dataset has all of it.
fn checked(subset: Subset, shape: &Shape) -> Result<Subset> {
    let last = subset
        .samples()
        .checked_sub(1)
        .and_then(|last| subset.sample(last));
    match last.filter(|last| *last >= shape.samples()) {
        Some(last) => {
            let message = "the part names a sample that the dataset does not have";
            Err(Error::new(Kind::InvalidInput, message)
                .with("sample", last)
                .with("samples", shape.samples()))
        }
        None => Ok(subset),
    }
}
