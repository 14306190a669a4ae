//! Resuming: what was not consumed, nothing else, in the same order.

use super::*;

/// Returns what all ranks see from a position on, in the order of steps; padding left out.
fn rest(order: &Order, start: u64, world: u64, batch: u64, tail: Tail) -> Vec<u64> {
    let ranks = |rank| Ranks {
        rank,
        world,
        batch,
        tail,
    };
    let splits: Vec<Split> = (0..world)
        .map(|rank| Split::new(Some(order.samples()), start, ranks(rank)).unwrap())
        .collect();
    let steps = splits[0].steps().unwrap();
    let batches = (0..steps).flat_map(|step| splits.iter().filter_map(move |split| split.batch(step)));
    batches.flat_map(|batch| order.iter(batch.own())).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn resuming_at_every_position_gives_exactly_the_rest(
        plan in plans(), epoch in 0_u64..5, world in 1_u64..5, batch in 1_u64..5, other_seed: u64,
    ) {
        let whole = all(&plan.epoch(epoch));
        let other = OrderOptions { seed: other_seed, ..OrderOptions::default() };
        // Another process, started with other options on the same data.
        let restarted = plan.with_options(other).unwrap();
        for position in 0..=plan.epoch_samples() {
            let state = OrderState::from_json(&plan.state(epoch, position).to_json()).unwrap();
            let order = restarted.resume(&state).unwrap().epoch(state.epoch);
            let left = &whole[position as usize..];
            prop_assert_eq!(&rest(&order, state.position, world, batch, Tail::Pad), left);
            let kept = left.len() - left.len() % (world * batch) as usize;
            prop_assert_eq!(&rest(&order, state.position, world, batch, Tail::Drop), &left[..kept]);
        }
    }

    #[test]
    fn whatever_a_state_says_is_an_order_or_an_error(
        shape in shapes(), seed: u64, epoch: u64, position: u64, size: u64, runs_min: u32, shift in 0_u32..64,
        in_bytes: bool, take in prop_oneof![any::<u64>(), 0_u64..20],
    ) {
        let size = size >> shift;
        let span = if in_bytes { Span::Bytes(size) } else { Span::Samples(size) };
        let plan = Plan::new(shape, OrderOptions::default()).unwrap();
        let mut state = plan.state(epoch, position.min(take));
        state.sources[0].seed = seed;
        state.sources[0].shuffle = Shuffle::Window(Window { span, runs_min: runs_min >> (shift / 2) });
        state.sources[0].epoch_samples = take;
        if let Ok(resumed) = plan.resume(&OrderState::from_json(&state.to_json()).unwrap()) {
            let order = resumed.epoch(state.epoch);
            for (position, sample) in all(&order).into_iter().enumerate() {
                prop_assert_eq!(order.position_of(sample), Some(position as u64));
            }
        }
    }

    #[test]
    fn a_change_of_ranks_in_mid_epoch_changes_nothing(
        plan in plans(), before in (1_u64..4, 1_u64..4), after in (1_u64..4, 1_u64..4), steps in 0_u64..30,
    ) {
        let order = plan.epoch(1);
        let split = Split::new(
            Some(order.samples()), 0, Ranks { rank: 0, world: before.0, batch: before.1, tail: Tail::Drop },
        ).unwrap();
        let steps = steps.min(split.steps().unwrap());
        let position = split.position_after(steps);
        let mut seen = rest(&order, 0, before.0, before.1, Tail::Drop);
        seen.truncate(position as usize);
        seen.extend(rest(&order, position, after.0, after.1, Tail::Pad));
        prop_assert_eq!(seen, all(&order));
    }
}

#[test]
fn a_state_is_a_few_hundred_bytes_that_a_person_can_read() {
    let shuffle = Shuffle::Window(Window::bytes(512 << 20));
    let json = plan(&[100, 100], shuffle).state(3, 12_345).to_json();
    assert_eq!(
        json,
        "{\"version\":1,\"epoch\":3,\"position\":12345,\"sources\":[{\"seed\":7,\
         \"shuffle\":{\"window\":{\"span\":{\"bytes\":536870912},\"runs_min\":16}},\
         \"epoch_samples\":200,\"fingerprint\":\"FINGERPRINT\"}]}"
            .replace("FINGERPRINT", &shape(&[100, 100]).fingerprint().to_string())
    );
    assert!(json.len() < 300);
}

#[test]
fn changed_data_is_refused_with_advice() {
    let old = plan(&[100, 100], Shuffle::Global);
    let state = old.state(0, 5);
    let shards = [ShardSize {
        samples: 100,
        bytes: 1000,
    }; 2];
    let changed = Shape::new(shards, Fingerprint::of([("shards", "v2", 2)])).unwrap();
    let error = Plan::new(changed, *old.options())
        .unwrap()
        .resume(&state)
        .unwrap_err();
    assert_eq!(error.kind(), Kind::Changed);
    assert!(error.message().contains("begin a new epoch"));
    let subset = Subset::from_sorted(vec![1, 2, 3]).unwrap();
    let filtered = Plan::filtered(shape(&[100, 100]), subset, *old.options()).unwrap();
    assert_eq!(filtered.resume(&state).unwrap_err().kind(), Kind::Changed);
}

#[test]
fn states_that_are_not_ours_are_refused() {
    let plan = plan(&[10], Shuffle::None);
    let mut state = plan.state(0, 11);
    assert_eq!(plan.resume(&state).unwrap_err().kind(), Kind::InvalidInput);
    state.version = 2;
    assert_eq!(plan.resume(&state).unwrap_err().kind(), Kind::Unsupported);
    assert_eq!(
        OrderState::from_json(&state.to_json()).unwrap_err().kind(),
        Kind::Unsupported
    );
    assert_eq!(
        OrderState::from_json("{\"version\":9,\"new\":1}")
            .unwrap_err()
            .kind(),
        Kind::Unsupported
    );
    for text in ["", "{}", "[]", "{\"version\":1}", "{\"version\":\"1\"}"] {
        assert_eq!(
            OrderState::from_json(text).unwrap_err().kind(),
            Kind::InvalidInput,
            "{text}"
        );
    }
    let hostile = plan.state(0, 0).to_json().replace(
        "\"none\"",
        "{\"window\":{\"span\":{\"samples\":0},\"runs_min\":0}}",
    );
    let hostile = OrderState::from_json(&hostile).unwrap();
    assert_eq!(plan.resume(&hostile).unwrap_err().kind(), Kind::InvalidInput);
}

#[test]
fn fingerprints_tell_names_versions_and_counts_apart() {
    let one = Fingerprint::of([("a", "b", 1), ("c", "d", 2)]);
    for other in [
        [("ab", "", 1), ("c", "d", 2)],
        [("c", "d", 2), ("a", "b", 1)],
        [("a", "b", 2), ("c", "d", 2)],
    ] {
        assert_ne!(one, Fingerprint::of(other));
    }
    assert_eq!(one.to_string().parse::<Fingerprint>().unwrap(), one);
    assert!("xyz".parse::<Fingerprint>().is_err());
}
