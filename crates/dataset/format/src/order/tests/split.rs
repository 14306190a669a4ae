//! Ranks, workers and steps.

use super::*;

/// All batches of a rank.
fn batches(split: Split) -> impl Iterator<Item = Batch> {
    (0..).map_while(move |step| split.batch(step))
}

/// The positions that a rank takes, step by step.
fn steps(samples: u64, start: u64, ranks: Ranks) -> Vec<Vec<u64>> {
    let split = Split::new(Some(samples), start, ranks).unwrap();
    batches(split).map(|batch| batch.positions().collect()).collect()
}

fn tails() -> impl Strategy<Value = Tail> {
    prop_oneof![Just(Tail::Drop), Just(Tail::Pad)]
}

proptest! {
    #[test]
    fn all_ranks_have_equal_steps_and_the_counts_are_right(
        samples in 0_u64..200, start in 0_u64..200, world in 1_u64..9, batch in 1_u64..9, tail in tails(),
    ) {
        let start = start.min(samples);
        let mut taken: Vec<u64> = Vec::new();
        let mut own = 0;
        for rank in 0..world {
            let split = Split::new(Some(samples), start, Ranks { rank, world, batch, tail }).unwrap();
            let batches: Vec<Batch> = batches(split).collect();
            prop_assert_eq!(Some(batches.len() as u64), split.steps());
            prop_assert!(batches.iter().all(|it| it.positions().count() as u64 == batch));
            own += batches.iter().map(|it| it.own().end - it.own().start).sum::<u64>();
            taken.extend(batches.iter().flat_map(Batch::positions));
            prop_assert!(batches.iter().all(|it| it.padded() <= batch));
        }
        let split = Split::new(Some(samples), start, Ranks { rank: 0, world, batch, tail }).unwrap();
        prop_assert_eq!(own, samples - start - split.dropped());
        prop_assert_eq!(taken.len() as u64, own + split.padded());
        prop_assert!(split.dropped() < world * batch && split.padded() < world * batch);
        taken.sort_unstable();
        taken.dedup();
        // Nothing between start and the dropped rest is left out.
        let expected = start..samples - split.dropped();
        prop_assert!(expected.clone().all(|position| taken.binary_search(&position).is_ok()));
        if split.padded() == 0 {
            prop_assert!(taken.into_iter().eq(expected));
        }
    }

    #[test]
    fn a_step_depends_on_the_global_batch_alone(
        samples in 0_u64..300, start in 0_u64..50, world in 1_u64..6, batch in 1_u64..6, tail in tails(),
    ) {
        let start = start.min(samples);
        let alone = steps(samples, start, Ranks { rank: 0, world: 1, batch: world * batch, tail });
        let ranks: Vec<Vec<Vec<u64>>> =
            (0..world).map(|rank| steps(samples, start, Ranks { rank, world, batch, tail })).collect();
        for (step, expected) in alone.iter().enumerate() {
            let together: Vec<u64> = ranks.iter().flat_map(|rank| rank[step].clone()).collect();
            prop_assert_eq!(&together, expected);
        }
        prop_assert!(ranks.iter().all(|rank| rank.len() == alone.len()));
    }
}

#[test]
fn padding_repeats_the_first_samples_of_the_epoch() {
    let ranks = |rank| Ranks {
        rank,
        world: 2,
        batch: 3,
        tail: Tail::Pad,
    };
    assert_eq!(steps(8, 0, ranks(0)), [[0, 1, 2], [6, 7, 0]]);
    assert_eq!(steps(8, 0, ranks(1)), [[3, 4, 5], [1, 2, 3]]);
    // Even if there are fewer than one step.
    assert_eq!(steps(2, 0, ranks(1)), [[1, 0, 1]]);
    assert!(steps(0, 0, ranks(1)).is_empty());
}

#[test]
fn an_endless_epoch_has_batches_but_no_steps_to_count() {
    let split = Split::new(
        None,
        10,
        Ranks {
            rank: 1,
            world: 2,
            batch: 4,
            tail: Tail::Drop,
        },
    )
    .unwrap();
    assert_eq!(split.steps(), None);
    assert_eq!(split.batch(1_000_000).unwrap().own(), 8_000_014..8_000_018);
    assert_eq!(split.batch(u64::MAX), None);
    assert_eq!(split.position_after(3), 34);
}

#[test]
fn wrong_ranks_workers_and_starts_are_refused() {
    let split = |samples, start, rank, world, batch| {
        Split::new(
            samples,
            start,
            Ranks {
                rank,
                world,
                batch,
                tail: Tail::Drop,
            },
        )
        .map(|_| ())
    };
    assert_eq!(split(Some(9), 0, 2, 2, 1).unwrap_err().kind(), Kind::InvalidInput);
    assert_eq!(split(Some(9), 0, 0, 0, 1).unwrap_err().kind(), Kind::InvalidInput);
    assert_eq!(split(Some(9), 0, 0, 1, 0).unwrap_err().kind(), Kind::InvalidInput);
    assert_eq!(
        split(Some(9), 0, 0, 1, u64::MAX).unwrap_err().kind(),
        Kind::InvalidInput
    );
    assert_eq!(split(Some(9), 10, 0, 1, 1).unwrap_err().kind(), Kind::OutOfRange);
}
