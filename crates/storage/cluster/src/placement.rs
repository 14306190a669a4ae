//! Placement: which node owns which stripe. Pure.
//!
//! A stripe is 16 MiB of one object version. Its owners are the members in the order of weighted rendezvous
//! hashing: every member gets a cost from a hash of its id, the object and the stripe, and the cheapest comes
//! first. A member that joins takes its share evenly from all others and a member that leaves gives its share
//! to all others; nothing moves between third ones.
//!
//! All of it is integer arithmetic, because every node (and, later, clients in other languages) has to find
//! the same owner from the same members: `ln` of floats differs in the last bit between C libraries. Golden
//! vectors hold the function still. A stripe costs one hash and 32 multiplications a member.

#[cfg(test)]
mod tests;

use forebay_reservoir::ObjectId;
use xxhash_rust::xxh3::xxh3_64;

use crate::{Member, NodeId};

/// Bytes of a stripe, the unit of ownership: 16 pages.
pub const STRIPE_BYTES: u64 = 16 << 20;

/// Fraction bits of logarithms and costs.
const FRACTION_BITS: u32 = 32;

/// Returns the stripe that a byte lies in.
#[must_use]
pub fn stripe_of(position: u64) -> u64 {
    position / STRIPE_BYTES
}

/// Returns the end of the stripe that a byte lies in.
#[must_use]
pub fn stripe_end(position: u64) -> u64 {
    (stripe_of(position) + 1).saturating_mul(STRIPE_BYTES)
}

/// Returns the first `count` owners of a stripe, the first owner first.
#[must_use]
pub fn owners(members: &[Member], object: ObjectId, stripe: u64, count: usize) -> Vec<&Member> {
    let mut costs: Vec<_> = members
        .iter()
        .map(|member| (cost(member.id, member.weight, object, stripe), member))
        .collect();
    costs.sort_unstable_by_key(|(cost, member)| (*cost, member.id));
    costs.into_iter().take(count).map(|(_, member)| member).collect()
}

/// The cost of a stripe at a member; the cheapest owns it. It is `-log2(h / 2^64) / weight` for a hash `h`.
fn cost(node: NodeId, weight: u32, object: ObjectId, stripe: u64) -> u128 {
    let mut input = [0; 40];
    input[..16].copy_from_slice(&node.0);
    input[16..32].copy_from_slice(&object.0);
    input[32..].copy_from_slice(&stripe.to_le_bytes());
    let hash = xxh3_64(&input) | 1; // Zero has no logarithm.
    let exponent = u128::from((64 << FRACTION_BITS) - log2_q32(hash));
    (exponent << FRACTION_BITS) / u128::from(weight.max(1))
}

/// The logarithm to base 2 of a number that is not zero, with 32 bits behind the point, rounded down.
fn log2_q32(number: u64) -> u64 {
    let zeros = number.leading_zeros();
    let mut logarithm = u64::from(63 - zeros);
    // The mantissa, from 1 up to 2, with 63 bits behind the point. Its square is 2 or more if the next bit of
    // the logarithm is set.
    let mut mantissa = number << zeros;
    for _ in 0..FRACTION_BITS {
        let square = u128::from(mantissa) * u128::from(mantissa);
        let bit = u64::from(square >> 127 == 1);
        mantissa = u64::try_from(square >> (63 + bit)).unwrap_or(u64::MAX);
        logarithm = logarithm << 1 | bit;
    }
    logarithm
}
