//! Assignment of parts that several ranks have to one writer each: replicas are written once, spread evenly.
//!
//! Pure, and the same answer on every rank: all of them call [`assign`] with the same list, the result of a
//! gather, and each writes its own share. A box that one rank has is its own business. A box that several
//! have is cut into parts of 16 MiB, and the parts of all boxes that the same ranks have are dealt to them in
//! one go, each rank getting neighbours, so that most tensors stay in one piece and no file has to hold two
//! parts of one. Ranks that write more by themselves get less of what is shared.
//!
//! Boxes are replicas when name, type and box are the same; boxes that overlap otherwise are refused when the
//! records are merged.

use std::collections::BTreeMap;

use forebay_core::{Error, Kind, Result};

use crate::pack::{Slice, cut};
use crate::{Dtype, TensorBox};

/// Bytes of a part that is dealt.
pub const PART_BYTES: u64 = 16 << 20;

/// A box that a rank has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Have {
    /// Full name of the tensor.
    pub name: String,
    /// Type of its elements.
    pub dtype: Dtype,
    /// Its box.
    pub at: TensorBox,
}

/// Share of a box that one rank writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Share {
    /// Index of the box in the rank's own list.
    pub have: usize,
    /// The bytes that lie together in its memory, and where they lie in the tensor.
    pub slice: Slice,
}

/// Returns what each rank writes, given what each has, by rank.
pub fn assign(haves: &[Vec<Have>]) -> Result<Vec<Vec<Share>>> {
    let mut shares: Vec<Vec<Share>> = haves.iter().map(|_| Vec::new()).collect();
    let mut loads = vec![0u64; haves.len()];
    let mut by_holders: BTreeMap<Vec<usize>, Vec<Shared<'_>>> = BTreeMap::new();
    for (have, holders) in holders(haves)? {
        if let [(rank, index)] = holders[..] {
            let slice = whole(have)?;
            loads[rank] += slice.bytes;
            shares[rank].push(Share { have: index, slice });
            continue;
        }
        let ranks = holders.iter().map(|(rank, _)| *rank).collect();
        let shared = by_holders.entry(ranks).or_default();
        shared.push(Shared { have, holders });
    }
    // Few holders first: they have the least choice.
    let mut groups: Vec<_> = by_holders.into_iter().collect();
    groups.sort_by_key(|(ranks, _)| ranks.len());
    for (ranks, shared) in groups {
        deal(&ranks, &shared, &mut loads, &mut shares)?;
    }
    for share in &mut shares {
        share.sort_by_key(|share| (share.have, share.slice.first));
        *share = joined(std::mem::take(share), PART_BYTES);
    }
    Ok(shares)
}

/// Ranks that have a box, each with its place in the rank's own list.
type Holders = Vec<(usize, usize)>;

/// A box that several ranks have.
struct Shared<'a> {
    have: &'a Have,
    holders: Holders,
}

/// Every box with those who have it, in the order of names.
fn holders(haves: &[Vec<Have>]) -> Result<Vec<(&Have, Holders)>> {
    let mut found: BTreeMap<(&str, &TensorBox, Dtype), (&Have, Holders)> = BTreeMap::new();
    for (rank, list) in haves.iter().enumerate() {
        for (index, have) in list.iter().enumerate() {
            let (_, holders) = found
                .entry((&have.name, &have.at, have.dtype))
                .or_insert((have, Vec::new()));
            if holders.last().is_some_and(|(last, _)| *last == rank) {
                let message = "a rank names the same part of a tensor twice";
                return Err(Error::new(Kind::InvalidInput, message)
                    .with("tensor", &have.name)
                    .with("rank", rank));
            }
            holders.push((rank, index));
        }
    }
    Ok(found.into_values().collect())
}

fn whole(have: &Have) -> Result<Slice> {
    let mut slices = cut(&have.at, have.dtype.bytes(), u64::MAX)?;
    slices
        .pop()
        .ok_or_else(|| Error::new(Kind::Internal, "a box was cut into nothing"))
}

/// Deals the parts of boxes that the same ranks have.
fn deal(ranks: &[usize], shared: &[Shared<'_>], loads: &mut [u64], shares: &mut [Vec<Share>]) -> Result<()> {
    let mut parts = Vec::new();
    for (number, shared) in shared.iter().enumerate() {
        let slices = cut(&shared.have.at, shared.have.dtype.bytes(), PART_BYTES)?;
        parts.extend(slices.into_iter().map(|slice| (number, slice)));
    }
    let bytes = parts.iter().map(|(_, slice)| slice.bytes).sum();
    let before: Vec<u64> = ranks.iter().map(|rank| loads[*rank]).collect();
    let ends = ends(&before, bytes);
    let (mut turn, mut dealt) = (0, 0u64);
    for (number, slice) in parts {
        // A part that reaches over the end of a quota belongs to the side on which most of it lies.
        while turn + 1 < ranks.len() && dealt + slice.bytes.div_ceil(2) > ends[turn] {
            turn += 1;
        }
        dealt += slice.bytes;
        let (rank, have) = shared[number].holders[turn];
        loads[rank] += slice.bytes;
        shares[rank].push(Share { have, slice });
    }
    Ok(())
}

/// Returns where each rank's quota of `bytes` ends, so that loads become as even as they can.
fn ends(loads: &[u64], bytes: u64) -> Vec<u64> {
    let mut sorted = loads.to_vec();
    sorted.sort_unstable();
    // The level up to which the lowest are filled.
    let (mut level, mut left) = (0, bytes);
    for (count, load) in sorted.iter().enumerate() {
        let room = (load - level) * count as u64;
        if count > 0 && room >= left {
            level += left / count as u64;
            left = 0;
            break;
        }
        left -= room;
        level = *load;
    }
    level += left.div_ceil(loads.len().max(1) as u64);
    let mut end = 0u64;
    let quota = |load: &u64| level.saturating_sub(*load);
    loads
        .iter()
        .map(|load| {
            end += quota(load);
            end
        })
        .collect()
}

/// Joins neighbours that are one box together.
fn joined(shares: Vec<Share>, part_bytes: u64) -> Vec<Share> {
    let mut joined: Vec<Share> = Vec::with_capacity(shares.len());
    for share in shares {
        let last = joined.last_mut().filter(|last| last.have == share.have);
        // Only what was cut at this size: a box of its own is whole already.
        if let Some(last) = last
            && share.slice.bytes <= part_bytes
            && let Some(slice) = join(&last.slice, &share.slice)
        {
            last.slice = slice;
            continue;
        }
        joined.push(share);
    }
    joined
}

/// Both together, if the second follows the first in memory and in one dimension.
fn join(first: &Slice, second: &Slice) -> Option<Slice> {
    let differs: Vec<usize> = (0..first.at.shape.len())
        .filter(|d| (first.at.offset[*d], first.at.shape[*d]) != (second.at.offset[*d], second.at.shape[*d]))
        .collect();
    let [dimension] = differs[..] else { return None };
    let follows = first.first + first.bytes == second.first
        && first.at.offset[dimension] + first.at.shape[dimension] == second.at.offset[dimension]
        && first.at.shape[..dimension].iter().all(|size| *size == 1);
    follows.then(|| {
        let mut slice = first.clone();
        slice.bytes += second.bytes;
        slice.at.shape[dimension] += second.at.shape[dimension];
        slice
    })
}

#[cfg(test)]
mod tests;
