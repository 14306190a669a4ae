//! Properties of one epoch.

use proptest::prelude::*;

use super::*;

fn shuffles() -> impl Strategy<Value = Shuffle> {
    let runs = prop_oneof![Just(1_u32), 1_u32..20];
    prop_oneof![
        Just(Shuffle::None),
        Just(Shuffle::Global),
        (1_u64..200, runs.clone()).prop_map(|(samples, runs_min)| Shuffle::Window(Window {
            span: Span::Samples(samples),
            runs_min
        })),
        (1_u64..2000, runs).prop_map(|(bytes, runs_min)| Shuffle::Window(Window {
            span: Span::Bytes(bytes),
            runs_min
        })),
    ]
}

fn shapes() -> impl Strategy<Value = Shape> {
    prop::collection::vec((0_u64..60, 0_u64..1000), 0..12).prop_map(|shards| {
        let shards = shards
            .into_iter()
            .map(|(samples, bytes)| ShardSize { samples, bytes });
        Shape::new(shards, Fingerprint::of([("a", "b", 1)])).unwrap()
    })
}

proptest! {
    #[test]
    fn every_sample_comes_exactly_once(shape in shapes(), shuffle in shuffles(), seed: u64, epoch: u64) {
        let samples = shape.samples();
        let plan = Plan::new(shape, OrderOptions { seed, shuffle, take: Take::All }).unwrap();
        let order = plan.epoch(epoch);
        let sequence = all(&order);
        let mut sorted = sequence.clone();
        sorted.sort_unstable();
        prop_assert!(sorted.iter().copied().eq(0..samples));
        for (position, sample) in sequence.iter().enumerate() {
            prop_assert_eq!(order.at(position as u64), Some(*sample));
            prop_assert_eq!(order.position_of(*sample), Some(position as u64));
        }
        prop_assert_eq!(order.at(samples), None);
        prop_assert_eq!(order.position_of(samples), None);
    }
}
