//! Next uses of shards.

use std::collections::{BTreeMap, BTreeSet};

use super::*;

proptest! {
    #[test]
    fn the_pieces_of_a_window_are_what_its_positions_need(plan in plans(), epoch: u64) {
        let order = plan.epoch(epoch);
        let mut next = 0;
        for window in 0..order.windows() {
            let positions = order.window_positions(window);
            let mut rows: BTreeSet<(usize, u64)> = BTreeSet::new();
            for piece in order.pieces(window) {
                rows.extend(piece.rows.map(|row| (piece.shard, row)));
            }
            if !positions.is_empty() {
                prop_assert_eq!(positions.start, next);
                next = positions.end;
            }
            for position in positions {
                prop_assert_eq!(order.window_at(position), Some(window));
                let place = plan.shape().place_of(order.at(position).unwrap()).unwrap();
                prop_assert!(rows.contains(&place));
            }
        }
        prop_assert_eq!(next, order.samples());
        prop_assert_eq!(order.window_at(next), None);
        prop_assert!(order.pieces(order.windows()).is_empty());
    }

    #[test]
    fn the_uses_of_a_shard_are_where_its_samples_come(plan in plans(), epoch: u64) {
        let order = plan.epoch(epoch);
        let mut positions: BTreeMap<usize, Vec<(u64, u64)>> = BTreeMap::new();
        for position in 0..order.samples() {
            let (shard, row) = plan.shape().place_of(order.at(position).unwrap()).unwrap();
            positions.entry(shard).or_default().push((position, row));
        }
        for shard in 0..=plan.shape().shards() {
            let uses = order.uses(shard);
            prop_assert!(uses.windows(2).all(|pair| pair[0].positions.start <= pair[1].positions.start));
            for (position, row) in positions.remove(&shard).unwrap_or_default() {
                let used = |it: &Use| it.positions.contains(&position) && it.piece.rows.contains(&row);
                prop_assert!(uses.iter().any(used));
            }
            prop_assert!(uses.iter().all(|it| it.piece.shard == shard));
        }
    }
}
