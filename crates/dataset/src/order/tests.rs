//! Tests of orders: what each part promises, and properties of the whole.

mod order;

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
