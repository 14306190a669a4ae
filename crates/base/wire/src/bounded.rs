//! Lists in requests, read only up to a length.
//!
//! An empty item is four bytes of a frame and a hundred in memory, so that one frame of 16 MiB could cost its
//! reader half a GiB before anybody counts its items. The limits here are far above what is answered
//! ([`crate::BATCH_ITEMS_MAX`]): who asks for a few too many is told so by an answer, who asks for millions
//! has his connection ended.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};

/// Items, or pairs of metadata, of one request.
pub(crate) const ITEMS_MAX: usize = 64 << 10;
/// Leases or handles of one request.
pub(crate) const NUMBERS_MAX: usize = 1 << 20;
/// Dimensions of a tensor; more than is answered.
const DIMENSIONS_MAX: usize = 16;

/// A list of things that have names.
pub(crate) fn items<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Vec<T>, D::Error> {
    from.deserialize_seq(Bounded::<T, ITEMS_MAX>(PhantomData))
}

/// A list of numbers.
pub(crate) fn numbers<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Vec<T>, D::Error> {
    from.deserialize_seq(Bounded::<T, NUMBERS_MAX>(PhantomData))
}

/// A shape.
pub(crate) fn dimensions<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u64>, D::Error> {
    from.deserialize_seq(Bounded::<u64, DIMENSIONS_MAX>(PhantomData))
}

struct Bounded<T, const MAX: usize>(PhantomData<T>);

impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for Bounded<T, MAX> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of at most {MAX}")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<T>, A::Error> {
        let mut taken = Vec::new();
        while let Some(one) = list.next_element()? {
            if taken.len() == MAX {
                return Err(A::Error::custom("a list is longer than it may be"));
            }
            taken.push(one);
        }
        Ok(taken)
    }
}
