//! Boxes of tensors: where a part lies in the whole, and which bytes of it somebody wants.
//!
//! A box is an offset and a shape, outermost dimension first, in elements. Bytes lie in C order. A scalar has
//! no dimensions and one element. Everything is checked against overflow, because boxes come from documents
//! and from users.

use std::fmt;

use forebay_core::{Error, Kind, Result};
use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

/// More dimensions than any tensor has.
pub const DIMENSIONS_MAX: usize = 8;
/// Numbers past this do not survive JSON everywhere.
pub const NUMBER_MAX: u64 = 1 << 53;

/// A part of a tensor: `shape` elements from `offset` in every dimension.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TensorBox {
    /// The first element in every dimension.
    #[serde(deserialize_with = "dimensions")]
    pub offset: Vec<u64>,
    /// Elements in every dimension.
    #[serde(deserialize_with = "dimensions")]
    pub shape: Vec<u64>,
}

/// One number for each dimension. A longer list than any tensor has is refused before it takes memory.
pub(crate) fn dimensions<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> std::result::Result<Vec<u64>, D::Error> {
    deserializer.deserialize_seq(Dimensions)
}

struct Dimensions;

impl<'de> Visitor<'de> for Dimensions {
    type Value = Vec<u64>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at most {DIMENSIONS_MAX} dimensions")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut numbers: A) -> std::result::Result<Vec<u64>, A::Error> {
        let mut all = Vec::new();
        while let Some(number) = numbers.next_element()? {
            if all.len() == DIMENSIONS_MAX {
                return Err(A::Error::invalid_length(DIMENSIONS_MAX + 1, &self));
            }
            all.push(number);
        }
        Ok(all)
    }
}

/// Bytes that lie together both in a part and in what is wanted of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// First byte in the part.
    pub part_byte: u64,
    /// First byte in the wanted box.
    pub wanted_byte: u64,
    /// Bytes.
    pub bytes: u64,
}

impl TensorBox {
    /// The whole of a tensor.
    #[must_use]
    pub fn whole(shape: &[u64]) -> Self {
        Self {
            offset: vec![0; shape.len()],
            shape: shape.to_vec(),
        }
    }

    /// Elements in it.
    pub fn elements(&self) -> Result<u64> {
        elements(&self.shape)
    }

    /// Returns whether it lies within a tensor of this shape.
    pub fn check_within(&self, whole: &[u64]) -> Result<()> {
        let fits = self.offset.len() == whole.len()
            && self.shape.len() == whole.len()
            && whole.len() <= DIMENSIONS_MAX
            && self
                .offset
                .iter()
                .zip(&self.shape)
                .zip(whole)
                .all(|((offset, length), size)| {
                    offset
                        .checked_add(*length)
                        .is_some_and(|end| end <= *size && end <= NUMBER_MAX)
                });
        if fits {
            return Ok(());
        }
        let error = Error::new(Kind::InvalidInput, "a part does not lie within its tensor");
        Err(error
            .with("offset", format!("{:?}", self.offset))
            .with("shape", format!("{:?}", self.shape))
            .with("tensor", format!("{whole:?}")))
    }

    /// Returns what both have, if anything.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Option<Self> {
        let mut both = Self {
            offset: Vec::with_capacity(self.offset.len()),
            shape: Vec::with_capacity(self.offset.len()),
        };
        for dimension in 0..self.offset.len() {
            let first = self.offset[dimension].max(other.offset[dimension]);
            let end = (self.offset[dimension] + self.shape[dimension])
                .min(other.offset[dimension] + other.shape[dimension]);
            if first >= end {
                return None;
            }
            both.offset.push(first);
            both.shape.push(end - first);
        }
        Some(both)
    }

    /// The rows of bytes of `common` (a box within both), as they lie in this part and in `wanted`; each as
    /// long as can be, in order of both.
    #[must_use]
    pub fn runs(&self, wanted: &Self, common: &Self, element_bytes: u64) -> Runs {
        Runs::new(self, wanted, common, element_bytes)
    }
}

/// Elements of a shape; `InvalidInput` where there are more than memory ever holds.
pub fn elements(shape: &[u64]) -> Result<u64> {
    let product = shape
        .iter()
        .try_fold(1u64, |product, size| product.checked_mul(*size));
    product.filter(|product| *product <= NUMBER_MAX).ok_or_else(|| {
        Error::new(Kind::InvalidInput, "a shape has too many elements").with("shape", format!("{shape:?}"))
    })
}

/// Iterator over [`Run`]s of a box.
#[derive(Debug, Clone)]
pub struct Runs {
    /// Sizes of the dimensions that are stepped through, outermost first.
    counts: Vec<u64>,
    /// Current position.
    at: Vec<u64>,
    part_strides: Vec<u64>,
    wanted_strides: Vec<u64>,
    part_first: u64,
    wanted_first: u64,
    run_bytes: u64,
    is_done: bool,
}

impl Runs {
    fn new(part: &TensorBox, wanted: &TensorBox, common: &TensorBox, element_bytes: u64) -> Self {
        let part_strides = strides(&part.shape, element_bytes);
        let wanted_strides = strides(&wanted.shape, element_bytes);
        let first = |outer: &TensorBox, strides: &[u64]| -> u64 {
            let places = common.offset.iter().zip(&outer.offset).zip(strides);
            places
                .map(|((inner, outer), stride)| (inner - outer) * stride)
                .sum()
        };
        // Inner dimensions that are whole in both lie together, and with them the next one out.
        let mut together = common.shape.len();
        let mut run_bytes = element_bytes;
        while together > 0 {
            let size = common.shape[together - 1];
            run_bytes *= size;
            together -= 1;
            if size != part.shape[together] || size != wanted.shape[together] {
                break;
            }
        }
        Self {
            counts: common.shape[..together].to_vec(),
            at: vec![0; together],
            part_first: first(part, &part_strides),
            wanted_first: first(wanted, &wanted_strides),
            part_strides,
            wanted_strides,
            run_bytes,
            is_done: run_bytes == 0 || common.shape.contains(&0),
        }
    }
}

impl Iterator for Runs {
    type Item = Run;

    fn next(&mut self) -> Option<Run> {
        if self.is_done {
            return None;
        }
        let place = |first: u64, strides: &[u64]| -> u64 {
            first
                + self
                    .at
                    .iter()
                    .zip(strides)
                    .map(|(at, stride)| at * stride)
                    .sum::<u64>()
        };
        let run = Run {
            part_byte: place(self.part_first, &self.part_strides),
            wanted_byte: place(self.wanted_first, &self.wanted_strides),
            bytes: self.run_bytes,
        };
        self.is_done = true;
        for dimension in (0..self.at.len()).rev() {
            self.at[dimension] += 1;
            if self.at[dimension] < self.counts[dimension] {
                self.is_done = false;
                break;
            }
            self.at[dimension] = 0;
        }
        Some(run)
    }
}

/// Bytes from one element to the next in every dimension.
fn strides(shape: &[u64], element_bytes: u64) -> Vec<u64> {
    let mut strides = vec![element_bytes; shape.len()];
    for dimension in (1..shape.len()).rev() {
        strides[dimension - 1] = strides[dimension] * shape[dimension];
    }
    strides
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn boxed(offset: &[u64], shape: &[u64]) -> TensorBox {
        TensorBox {
            offset: offset.to_vec(),
            shape: shape.to_vec(),
        }
    }

    #[test]
    fn a_scalar_is_one_run() {
        let scalar = TensorBox::whole(&[]);
        let runs: Vec<_> = scalar.runs(&scalar, &scalar, 4).collect();
        assert_eq!(
            runs,
            [Run {
                part_byte: 0,
                wanted_byte: 0,
                bytes: 4
            }]
        );
    }

    #[test]
    fn whole_rows_lie_together() {
        let part = boxed(&[10, 0], &[10, 8]);
        let wanted = boxed(&[12, 0], &[4, 8]);
        let common = part.intersection(&wanted).unwrap();
        let runs: Vec<_> = part.runs(&wanted, &common, 2).collect();
        assert_eq!(
            runs,
            [Run {
                part_byte: 32,
                wanted_byte: 0,
                bytes: 64
            }]
        );
    }

    #[test]
    fn a_box_outside_of_its_tensor_is_refused() {
        assert!(boxed(&[0], &[4]).check_within(&[4]).is_ok());
        assert!(boxed(&[1], &[4]).check_within(&[4]).is_err());
        assert!(boxed(&[u64::MAX], &[2]).check_within(&[4]).is_err());
        assert!(boxed(&[0, 0], &[4, 1]).check_within(&[4]).is_err());
        assert!(elements(&[1 << 40, 1 << 40]).is_err());
    }

    proptest! {
        #[test]
        fn runs_copy_exactly_what_both_have(
            dims in prop::collection::vec((0u64..4, 1u64..5, 0u64..4, 1u64..5), 0..4),
        ) {
            let part = boxed(&dims.iter().map(|d| d.0).collect::<Vec<_>>(), &dims.iter().map(|d| d.1).collect::<Vec<_>>());
            let wanted = boxed(&dims.iter().map(|d| d.2).collect::<Vec<_>>(), &dims.iter().map(|d| d.3).collect::<Vec<_>>());
            let Some(common) = part.intersection(&wanted) else { return Ok(()) };
            let value = |outer: &TensorBox, index: u64| -> Vec<u64> {
                let mut rest = index;
                let mut place = vec![0; outer.shape.len()];
                for dimension in (0..outer.shape.len()).rev() {
                    place[dimension] = outer.offset[dimension] + rest % outer.shape[dimension];
                    rest /= outer.shape[dimension];
                }
                place
            };
            let mut seen = std::collections::BTreeSet::new();
            for run in part.runs(&wanted, &common, 1) {
                for step in 0..run.bytes {
                    let place = value(&part, run.part_byte + step);
                    prop_assert_eq!(&place, &value(&wanted, run.wanted_byte + step));
                    prop_assert!(seen.insert(place));
                }
            }
            prop_assert_eq!(seen.len() as u64, common.elements().unwrap());
        }
    }
}
