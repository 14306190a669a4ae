//! Mixing: exact proportions, independent epochs, resuming.

use std::collections::BTreeMap;

use super::super::choice::Choice;
use super::*;

fn mix(sources: &[(u64, f64)], stop: Stop) -> Mix {
    let sources = sources
        .iter()
        .map(|(samples, weight)| (plan(&[*samples], Shuffle::Global), *weight));
    Mix::new(sources.collect(), 5, stop).unwrap()
}

proptest! {
    #[test]
    fn proportions_are_exact_at_every_position(
        weights in prop::collection::vec(prop_oneof![1_u64..5, 1_u64..1000, 1_u64..1 << 32], 1..9), seed: u64,
    ) {
        let choice = Choice::new(seed, &weights);
        let total: f64 = weights.iter().map(|weight| *weight as f64).sum();
        let limit = (weights.len() as f64).log2() + 1.0;
        let mut counts = vec![0_u64; weights.len()];
        for position in 0..1500_u64 {
            let (source, number) = choice.at(position);
            prop_assert_eq!(number, counts[source]);
            prop_assert_eq!(choice.position(source, number), position);
            counts[source] += 1;
            for (source, weight) in weights.iter().enumerate() {
                prop_assert_eq!(choice.count(source, position + 1), counts[source]);
                let expected = (position + 1) as f64 * *weight as f64 / total;
                prop_assert!((counts[source] as f64 - expected).abs() < limit);
            }
        }
    }

    #[test]
    fn a_resumed_mix_goes_on_as_if_it_had_not_stopped(
        sources in prop::collection::vec((1_u64..40, 1_u64..10), 1..5), epoch in 0_u64..3,
        stop in prop_oneof![Just(Stop::FirstExhausted), Just(Stop::AllExhausted)],
    ) {
        let sources: Vec<(u64, f64)> = sources.into_iter().map(|(samples, weight)| (samples, weight as f64)).collect();
        let whole = mix(&sources, stop);
        let samples = whole.epoch_samples().unwrap();
        let mut cursor = whole.cursor(epoch);
        let sequence: Vec<_> = (0..samples).map(|position| cursor.at(position).unwrap()).collect();
        prop_assert_eq!(cursor.at(samples), None);
        // The same weights, written in another way.
        let scaled: Vec<(u64, f64)> = sources.iter().map(|(samples, weight)| (*samples, weight / 10.0)).collect();
        let restarted = mix(&scaled, stop);
        for position in (0..=samples).step_by(7) {
            let state = OrderState::from_json(&whole.state(epoch, position).to_json()).unwrap();
            let mut cursor = restarted.resume(&state).unwrap().cursor(state.epoch);
            let left: Vec<_> = (state.position..samples).map(|position| cursor.at(position).unwrap()).collect();
            prop_assert_eq!(&left, &sequence[position as usize..]);
        }
    }
}

#[test]
fn no_rank_gets_always_the_same_source() {
    // Equal weights and one sample per rank: a fixed pattern would give rank 0 the first source for ever.
    let choice = Choice::new(1, &[1, 1]);
    let first = (0..1000).filter(|step| choice.at(step * 2).0 == 0).count();
    assert!((400..600).contains(&first), "{first}");
}

#[test]
fn a_mix_ends_before_the_first_source_starts_again() {
    let mix = mix(&[(100, 3.0), (1000, 1.0)], Stop::FirstExhausted);
    let samples = mix.epoch_samples().unwrap();
    let given = mix.given(samples);
    assert_eq!(given[0], 100);
    assert!((32..=34).contains(&given[1]), "{given:?}");
    for position in 0..samples {
        assert_eq!(mix.pick(0, position).unwrap().epoch, 0);
    }
}

#[test]
fn a_mix_goes_on_until_every_source_came_whole() {
    let mix = mix(&[(10, 1.0), (100, 1.0)], Stop::AllExhausted);
    let mut cursor = mix.cursor(0);
    let mut seen: BTreeMap<(usize, u64), u64> = BTreeMap::new();
    for position in 0..mix.epoch_samples().unwrap() {
        *seen.entry(cursor.at(position).unwrap()).or_default() += 1;
    }
    assert_eq!(seen.len(), 110);
    assert!((0..100).all(|sample| seen[&(1, sample)] == 1));
    assert!(
        (0..10).all(|sample| (9..=10).contains(&seen[&(0, sample)])),
        "{seen:?}"
    );
}

#[test]
fn a_small_source_is_shuffled_anew_each_time_it_repeats() {
    let mix = mix(&[(10, 1.0)], Stop::Forever);
    let mut cursor = mix.cursor(0);
    let mut round = |round: u64| {
        (0..10)
            .map(|place| cursor.at(round * 10 + place).unwrap().1)
            .collect::<Vec<_>>()
    };
    let (mut first, mut second) = (round(0), round(1));
    assert_ne!(first, second);
    first.sort_unstable();
    second.sort_unstable();
    assert_eq!(first, second);
    assert_eq!(mix.epoch_samples(), None);
    assert_eq!(mix.pick(1, 0), None);
}

#[test]
fn of_a_large_source_nothing_repeats_before_all_of_it_came() {
    let mix = mix(&[(10, 1.0), (55, 1.0)], Stop::FirstExhausted);
    let mut large: Vec<u64> = Vec::new();
    for epoch in 0.. {
        let mut cursor = mix.cursor(epoch);
        let picks = (0..mix.epoch_samples().unwrap()).filter_map(|position| cursor.at(position));
        large.extend(picks.filter(|(source, _)| *source == 1).map(|(_, sample)| sample));
        if large.len() >= 55 {
            break;
        }
    }
    large.truncate(55);
    large.sort_unstable();
    assert!(large.into_iter().eq(0..55));
}

#[test]
fn fractions_as_weights_are_scaled_and_extreme_ones_still_come() {
    let mixed = mix(&[(1000, 0.7), (1000, 0.3)], Stop::Forever);
    assert_eq!(mixed.given(1000), [700, 300]);
    let extreme = mix(&[(10, 1e-300), (10, 1e300)], Stop::AllExhausted);
    assert!(extreme.epoch_samples().unwrap() > 1 << 32);
}

#[test]
fn a_state_of_other_weights_or_another_end_is_refused_with_both() {
    let before = mix(&[(100, 7.0), (100, 3.0)], Stop::FirstExhausted);
    let state = before.state(0, 10);
    let other = mix(&[(100, 0.5), (100, 0.5)], Stop::FirstExhausted);
    let error = other.resume(&state).unwrap_err();
    assert_eq!(error.kind(), Kind::InvalidInput);
    let text = error.to_string();
    assert!(
        text.contains("70.0000 %, 30.0000 %") && text.contains("50.0000 %"),
        "{text}"
    );
    let endless = mix(&[(100, 0.7), (100, 0.3)], Stop::Forever);
    assert_eq!(endless.resume(&state).unwrap_err().kind(), Kind::InvalidInput);
    let same = mix(&[(100, 0.7), (100, 0.3)], Stop::FirstExhausted);
    assert_eq!(same.resume(&state).unwrap().state(0, 10), state);
}

#[test]
fn mixes_that_make_no_sense_are_refused() {
    let sources = |weights: &[f64]| {
        weights
            .iter()
            .map(|weight| (plan(&[10], Shuffle::None), *weight))
            .collect()
    };
    for weights in [&[][..], &[0.0], &[-1.0], &[f64::NAN], &[1.0, f64::INFINITY]] {
        let error = Mix::new(sources(weights), 0, Stop::Forever).unwrap_err();
        assert_eq!(error.kind(), Kind::InvalidInput, "{weights:?}");
    }
    assert!(Mix::new(vec![(plan(&[0], Shuffle::None), 1.0)], 0, Stop::Forever).is_err());
    let two = mix(&[(10, 1.0), (10, 1.0)], Stop::FirstExhausted);
    let single = plan(&[10], Shuffle::Global);
    assert_eq!(
        single.resume(&two.state(0, 0)).unwrap_err().kind(),
        Kind::InvalidInput
    );
    assert_eq!(
        two.resume(&single.state(0, 0)).unwrap_err().kind(),
        Kind::InvalidInput
    );
    let mut damaged = two.state(0, 0);
    damaged.mix.as_mut().unwrap().weights[0] = 0;
    assert_eq!(two.resume(&damaged).unwrap_err().kind(), Kind::InvalidInput);
    assert_eq!(
        two.resume(&two.state(0, 1000)).unwrap_err().kind(),
        Kind::InvalidInput
    );
    let other = mix(&[(10, 1.0), (11, 1.0)], Stop::FirstExhausted);
    let mut state = two.state(0, 0);
    state.sources[1].fingerprint = Fingerprint::of([]);
    assert_eq!(other.resume(&state).unwrap_err().kind(), Kind::Changed);
}
