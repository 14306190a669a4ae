use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn golden_members() -> Vec<Member> {
    let weights = [1000, 1000, 1000, 1000, 2000, 2000, 500, 500];
    (1..)
        .zip(weights)
        .map(|(i, weight)| Member::for_test(i, weight))
        .collect()
}

fn first_three(object: [u8; 16], stripe: u64) -> Vec<u8> {
    let members = golden_members();
    let owners = owners(&members, ObjectId(object), stripe, 3);
    owners.iter().map(|member| member.id.0[0]).collect()
}

#[test]
fn owners_match_the_golden_vectors() {
    let counted: [u8; 16] = std::array::from_fn(|i| i as u8);
    assert_eq!(log2_q32(3), 6_807_362_105);
    assert_eq!(first_three([0; 16], 0), [4, 5, 2]);
    assert_eq!(first_three([0; 16], 1), [2, 1, 4]);
    assert_eq!(first_three([0xff; 16], 1_048_575), [4, 5, 2]);
    assert_eq!(first_three(counted, 7), [1, 6, 2]);
}

#[test]
fn logarithms_of_the_smallest_and_largest_numbers_are_right() {
    assert_eq!(log2_q32(1), 0);
    assert_eq!(log2_q32(2), 1 << 32);
    assert_eq!(log2_q32(1 << 63), 63 << 32);
    assert_eq!(log2_q32(u64::MAX), (64 << 32) - 1);
}

#[test]
fn stripes_are_sixteen_pages() {
    assert_eq!(STRIPE_BYTES, 16 * forebay_core::PAGE_BYTES);
    assert_eq!(stripe_of(STRIPE_BYTES - 1), 0);
    assert_eq!(stripe_of(STRIPE_BYTES), 1);
    assert_eq!(stripe_end(0), STRIPE_BYTES);
    assert_eq!(stripe_end(STRIPE_BYTES), 2 * STRIPE_BYTES);
    assert_eq!(stripe_end(u64::MAX), u64::MAX);
}

#[test]
fn shares_follow_the_weights() {
    let members = golden_members();
    let total: u64 = members.iter().map(|member| u64::from(member.weight)).sum();
    let stripes = 20_000;
    let mut owned = BTreeMap::<u8, u64>::new();
    for stripe in 0..stripes {
        *owned
            .entry(owners(&members, ObjectId([7; 16]), stripe, 1)[0].id.0[0])
            .or_default() += 1;
    }
    for member in &members {
        let fair = stripes * u64::from(member.weight) / total;
        let found = owned[&member.id.0[0]];
        assert!(
            found.abs_diff(fair) * 100 <= fair * 8,
            "{found} for a share of {fair}"
        );
    }
}

#[test]
fn no_members_own_nothing() {
    assert!(owners(&[], ObjectId([0; 16]), 0, 2).is_empty());
}

/// Members with ids and weights of any kind.
fn members() -> impl Strategy<Value = Vec<Member>> {
    prop::collection::btree_map(any::<[u8; 16]>(), 1..=10_000_u32, 1..12).prop_map(|nodes| {
        let member = |(id, weight)| Member {
            id: NodeId(id),
            ..Member::for_test(0, weight)
        };
        nodes.into_iter().map(member).collect()
    })
}

proptest! {
    #[test]
    fn a_member_that_leaves_moves_only_its_own_stripes(
        mut members in members(), object in any::<[u8; 16]>(), stripe in any::<u64>(), gone in any::<prop::sample::Index>(),
    ) {
        let before: Vec<_> = owners(&members, ObjectId(object), stripe, 12).iter().map(|m| m.id).collect();
        let gone = members.remove(gone.index(members.len())).id;
        let after: Vec<_> = owners(&members, ObjectId(object), stripe, 12).iter().map(|m| m.id).collect();
        let left: Vec<_> = before.into_iter().filter(|id| *id != gone).collect();
        prop_assert_eq!(left, after);
    }

    #[test]
    fn more_weight_only_attracts(
        mut members in members(), object in any::<[u8; 16]>(), stripe in any::<u64>(), heavier in any::<prop::sample::Index>(),
    ) {
        let before = owners(&members, ObjectId(object), stripe, 1)[0].id;
        let number = heavier.index(members.len());
        members[number].weight *= 2;
        let after = owners(&members, ObjectId(object), stripe, 1)[0].id;
        prop_assert!(after == before || after == members[number].id);
    }

    #[test]
    fn the_order_of_members_does_not_matter(
        members in members(), object in any::<[u8; 16]>(), stripe in any::<u64>(),
    ) {
        let mut reversed = members.clone();
        reversed.reverse();
        let ids = |members: &[Member]| -> Vec<NodeId> {
            owners(members, ObjectId(object), stripe, 12).iter().map(|m| m.id).collect()
        };
        prop_assert_eq!(ids(&members), ids(&reversed));
    }

    #[test]
    fn the_logarithm_agrees_with_floats(number in 1..u64::MAX) {
        let exact = (number as f64).log2();
        let found = log2_q32(number) as f64 / 2_f64.powi(32);
        prop_assert!((exact - found).abs() < 1e-9, "{exact} {found}");
    }
}
