//! Tests of orders: what each part promises, and properties of the whole.

mod mix;
mod order;
mod split;
mod state;
mod uses;

use proptest::prelude::*;

use super::*;

/// A shape with these counts, 10 bytes a sample.
fn shape(counts: &[u64]) -> Shape {
    let shards = counts.iter().map(|samples| ShardSize {
        samples: *samples,
        bytes: samples * 10,
    });
    Shape::new(shards, Fingerprint::of([("shards", "v1", counts.len() as u64)])).unwrap()
}

fn plan(counts: &[u64], shuffle: Shuffle) -> Plan {
    Plan::new(
        shape(counts),
        OrderOptions {
            seed: 7,
            shuffle,
            take: Take::All,
        },
    )
    .unwrap()
}

/// All of an epoch.
fn all(order: &Order) -> Vec<u64> {
    order.iter(0..order.samples()).collect()
}

fn shuffles() -> impl Strategy<Value = Shuffle> {
    let runs = prop_oneof![Just(1_u32), 1_u32..20];
    let samples = (1_u64..200, runs.clone());
    let bytes = (1_u64..2000, runs);
    prop_oneof![
        Just(Shuffle::None),
        Just(Shuffle::Global),
        samples.prop_map(|(size, runs_min)| Shuffle::Window(Window {
            span: Span::Samples(size),
            runs_min
        })),
        bytes.prop_map(|(size, runs_min)| Shuffle::Window(Window {
            span: Span::Bytes(size),
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

/// Plans of all kinds: shuffles, subsets, parts of the dataset.
fn plans() -> impl Strategy<Value = Plan> {
    let subset = prop::option::of(2_u64..5);
    (
        shapes(),
        shuffles(),
        any::<u64>(),
        subset,
        0.01_f64..=1.0,
        any::<bool>(),
    )
        .prop_map(|(shape, shuffle, seed, subset, fraction, whole)| {
            let take = if whole {
                Take::All
            } else {
                Take::Fraction(fraction)
            };
            let options = OrderOptions { seed, shuffle, take };
            match subset {
                Some(step) => {
                    let subset = Subset::filter(&shape, |sample| sample % step == 1);
                    Plan::filtered(shape, subset, options).unwrap()
                }
                None => Plan::new(shape, options).unwrap(),
            }
        })
}
