//! One epoch: each sample once, both directions, filters, parts, mixing, and a definition that does not
//! change.

use std::collections::BTreeSet;

use super::*;

proptest! {
    #[test]
    fn every_sample_comes_exactly_once(shape in shapes(), shuffle in shuffles(), seed: u64, epoch: u64) {
        let samples = shape.samples();
        let plan = Plan::new(shape, OrderOptions { seed, shuffle, take: Take::All }).unwrap();
        let mut sequence = all(&plan.epoch(epoch));
        sequence.sort_unstable();
        prop_assert!(sequence.iter().copied().eq(0..samples));
    }

    #[test]
    fn position_and_sample_are_inverse(plan in plans(), epoch: u64) {
        let order = plan.epoch(epoch);
        let sequence = all(&order);
        prop_assert_eq!(sequence.len() as u64, order.samples());
        for (position, sample) in sequence.iter().enumerate() {
            prop_assert_eq!(order.at(position as u64), Some(*sample));
            prop_assert_eq!(order.position_of(*sample), Some(position as u64));
        }
        let taken: BTreeSet<u64> = sequence.into_iter().collect();
        for sample in (0..=plan.shape().samples()).filter(|sample| !taken.contains(sample)) {
            prop_assert_eq!(order.position_of(sample), None);
        }
        prop_assert_eq!(order.at(order.samples()), None);
    }

    #[test]
    fn a_filter_lets_through_exactly_its_samples(shape in shapes(), shuffle in shuffles(), step in 1_u64..9) {
        let subset = Subset::filter(&shape, |sample| sample % step == 0);
        let expected: Vec<u64> = (0..shape.samples()).filter(|sample| sample % step == 0).collect();
        let plan = Plan::filtered(shape, subset, OrderOptions { seed: 1, shuffle, take: Take::All }).unwrap();
        let mut sequence = all(&plan.epoch(0));
        sequence.sort_unstable();
        prop_assert_eq!(sequence, expected);
    }
}

#[test]
fn epochs_and_seeds_have_different_orders() {
    for shuffle in [Shuffle::Global, Shuffle::Window(Window::samples(200))] {
        let plan = plan(&[100; 10], shuffle);
        let other = plan
            .with_options(OrderOptions {
                seed: 8,
                ..*plan.options()
            })
            .unwrap();
        assert_ne!(all(&plan.epoch(0)), all(&plan.epoch(1)));
        assert_ne!(all(&plan.epoch(0)), all(&other.epoch(0)));
        assert_eq!(all(&plan.epoch(3)), all(&plan.epoch(3)));
    }
}

#[test]
fn without_shuffling_the_order_is_that_of_the_dataset() {
    assert_eq!(all(&plan(&[3, 0, 2], Shuffle::None).epoch(5)), [0, 1, 2, 3, 4]);
}

#[test]
fn an_epoch_may_take_a_part_and_another_one_each_time() {
    for shuffle in [
        Shuffle::None,
        Shuffle::Global,
        Shuffle::Window(Window::samples(200)),
    ] {
        let options = OrderOptions {
            seed: 7,
            shuffle,
            take: Take::Fraction(0.1),
        };
        let plan = Plan::new(shape(&[100; 10]), options).unwrap();
        assert_eq!(plan.epoch_samples(), 100);
        let epochs: Vec<BTreeSet<u64>> = (0..4)
            .map(|epoch| all(&plan.epoch(epoch)).into_iter().collect())
            .collect();
        assert!(epochs.iter().all(|epoch| epoch.len() == 100), "{shuffle:?}");
        assert!(epochs[1..].iter().any(|epoch| *epoch != epochs[0]), "{shuffle:?}");
    }
}

#[test]
fn an_unshuffled_part_is_spread_evenly() {
    let options = OrderOptions {
        take: Take::Fraction(0.25),
        ..OrderOptions::default()
    };
    let sequence = all(&Plan::new(shape(&[100; 10]), options).unwrap().epoch(0));
    assert!(sequence.windows(2).all(|pair| pair[1] - pair[0] == 4));
}

#[test]
fn windows_are_bounded_and_none_is_a_small_rest() {
    // Shards of 1000, one far larger than the window, and windows that do not divide the whole.
    for (window, limit) in [
        (Window::samples(700), 700),
        (Window::bytes(7000).whole_shards(), 701),
    ] {
        let order = plan(&[1000, 10, 5000, 333, 0, 21], Shuffle::Window(window)).epoch(0);
        assert_eq!(order.windows(), 10);
        for window in 0..10 {
            let positions = order.window_positions(window);
            let samples = positions.end - positions.start;
            assert!((600..=limit).contains(&samples), "{samples}");
        }
    }
}

#[test]
fn a_window_mixes_many_runs_unless_shards_stay_whole() {
    let counts = [1000; 50];
    let mixed = plan(&counts, Shuffle::Window(Window::samples(2000))).epoch(0);
    let whole = plan(&counts, Shuffle::Window(Window::samples(2000).whole_shards())).epoch(0);
    assert!((16..=18).contains(&mixed.pieces(3).len()));
    assert_eq!(whole.pieces(3).len(), 2);
}

#[test]
fn the_measured_quality_tells_shuffles_apart() {
    let counts = [1000; 100];
    let ratio = |shuffle| plan(&counts, shuffle).epoch(0).quality(10_000).ratio();
    assert!((0.95..1.05).contains(&ratio(Shuffle::Global)));
    assert!((0.80..1.05).contains(&ratio(Shuffle::Window(Window::samples(4000)))));
    assert!(ratio(Shuffle::Window(Window::samples(1000).whole_shards())) < 0.02);
    assert!(ratio(Shuffle::None) < 0.001);
    assert_eq!(plan(&[1], Shuffle::Global).epoch(0).quality(10).pairs, 0);
}

/// Computed from docs/flows/dataset-order.md by another program.
const GLOBAL: [u64; 8] = [58, 163, 284, 212, 138, 209, 118, 114];
const WINDOW: [u64; 8] = [268, 199, 187, 147, 198, 298, 238, 185];
const SMALL_WINDOW: [u64; 8] = [15, 240, 260, 205, 68, 180, 213, 231];

#[test]
fn the_definition_of_the_order_does_not_change() {
    // Whoever changes these numbers breaks the resuming of every run: raise STATE_VERSION and keep the old
    // definition.
    let first = |shuffle| {
        plan(&[100, 50, 150], shuffle)
            .epoch(2)
            .iter(0..8)
            .collect::<Vec<_>>()
    };
    assert_eq!(first(Shuffle::Global), GLOBAL);
    assert_eq!(first(Shuffle::Window(Window::samples(80))), WINDOW);
    assert_eq!(first(Shuffle::Window(Window::bytes(800))), WINDOW);
    assert_eq!(first(Shuffle::Window(Window::samples(40))), SMALL_WINDOW);
}

#[test]
fn options_that_make_no_sense_are_refused() {
    let refused = |shuffle, take| {
        Plan::new(
            shape(&[10]),
            OrderOptions {
                seed: 0,
                shuffle,
                take,
            },
        )
        .unwrap_err()
        .kind()
            == Kind::InvalidInput
    };
    assert!(refused(Shuffle::Window(Window::samples(0)), Take::All));
    assert!(refused(
        Shuffle::Window(Window {
            span: Span::Bytes(1),
            runs_min: 0
        }),
        Take::All
    ));
    for fraction in [0.0, -1.0, 1.1, f64::NAN, f64::INFINITY] {
        assert!(refused(Shuffle::None, Take::Fraction(fraction)));
    }
    assert!(refused(Shuffle::None, Take::Samples(0)));
    assert!(refused(Shuffle::None, Take::Samples(11)));
    let far = Subset::from_sorted(vec![3, 10]).unwrap();
    let error = Plan::filtered(shape(&[10]), far, OrderOptions::default()).unwrap_err();
    assert_eq!(error.kind(), Kind::InvalidInput);
    let huge = Shape::new(
        [ShardSize {
            samples: u64::MAX,
            bytes: 0,
        }; 2],
        Fingerprint::of([]),
    );
    assert_eq!(huge.unwrap_err().kind(), Kind::InvalidInput);
}

#[test]
fn an_order_of_a_thousand_million_samples_needs_memory_for_its_shards_only() {
    let shards = (0..100_000).map(|_| ShardSize {
        samples: 10_000,
        bytes: 500_000_000,
    });
    let shape = Shape::new(shards, Fingerprint::of([])).unwrap();
    let options = OrderOptions {
        seed: 1,
        shuffle: Shuffle::Window(Window::bytes(2 << 30)),
        take: Take::All,
    };
    let order = Plan::new(shape, options).unwrap().epoch(0);
    for position in [0, 1, 499_999_999, 999_999_999] {
        let sample = order.at(position).unwrap();
        assert_eq!(order.position_of(sample), Some(position));
    }
    assert_eq!(order.at(1_000_000_000), None);
}
