//! Bijection at every size, and uniformity by chi-square at fixed keys. The bounds lie five standard
//! deviations above the mean, so only a broken network passes them, and always the same way.

use super::super::key::Purpose;
use super::*;

fn permutation(seed: u64, n: u64) -> Permutation {
    Permutation::new(Key::new(seed).derive(Purpose::Samples, 0), n)
}

/// Panics if the counts are not even.
fn assert_even(counts: &[u64], what: &str) {
    let cells = counts.len() as f64;
    let expected = counts.iter().sum::<u64>() as f64 / cells;
    let chi_square: f64 = counts
        .iter()
        .map(|count| (*count as f64 - expected).powi(2) / expected)
        .sum();
    let freedom = cells - 1.0;
    assert!(
        chi_square < freedom + 5.0 * (2.0 * freedom).sqrt(),
        "{what}: {chi_square} of {freedom}"
    );
    // Too even is as wrong as too uneven.
    assert!(
        chi_square > freedom - 5.0 * (2.0 * freedom).sqrt(),
        "{what}: {chi_square} of {freedom}"
    );
}

#[test]
fn every_size_is_a_bijection_with_its_inverse() {
    for n in (0..300).chain([1000, 4095, 4096, 4097, 65_537]) {
        let permutation = permutation(n ^ 0x55, n);
        let mut seen = vec![false; n as usize];
        for index in 0..n {
            let place = permutation.at(index);
            assert!(!std::mem::replace(&mut seen[place as usize], true), "{n} {index}");
            assert_eq!(permutation.inverse(place), index, "{n}");
        }
    }
}

#[test]
fn huge_sizes_invert() {
    for n in [1_u64 << 40, (1 << 62) - 1, 1 << 62] {
        let permutation = permutation(3, n);
        for index in (0..1000).map(|step| step * (n / 1000)) {
            let place = permutation.at(index);
            assert!(place < n);
            assert_eq!(permutation.inverse(place), index);
        }
    }
}

#[test]
fn all_orders_of_four_are_equally_likely() {
    let mut counts = vec![0; 256];
    for seed in 0..24_000 {
        let permutation = permutation(seed, 4);
        let code = (0..4).fold(0, |code, index| code * 4 + permutation.at(index));
        counts[code as usize] += 1;
    }
    counts.retain(|count| *count > 0);
    assert_eq!(counts.len(), 24);
    assert_even(&counts, "orders of four");
}

#[test]
fn each_element_goes_everywhere_equally_often() {
    for n in [5, 64, 65, 70, 72, 81, 100] {
        for index in [0, 1, n / 2, n - 1] {
            let mut counts = vec![0; n as usize];
            for seed in 0..n * 100 {
                counts[permutation(seed, n).at(index) as usize] += 1;
            }
            assert_even(&counts, &format!("element {index} of {n}"));
        }
    }
}

#[test]
fn neighbours_do_not_stay_neighbours() {
    for n in [65, 72, 81, 100] {
        let mut steps = vec![0; n as usize - 1];
        for seed in 0..n * 100 {
            let permutation = permutation(seed, n);
            let step = (permutation.at(8) + n - permutation.at(7)) % n;
            steps[step as usize - 1] += 1;
        }
        assert_even(&steps, &format!("steps between neighbours of {n}"));
    }
}

#[test]
fn under_one_key_every_stretch_is_spread_over_the_whole() {
    for (seed, n) in [(1, 100_000_u64), (2, 99_856), (3, 131_072), (4, 100_003)] {
        let permutation = permutation(seed, n);
        let mut counts = vec![0; 16 * 16];
        for index in 0..n {
            counts[(index * 16 / n * 16 + permutation.at(index) * 16 / n) as usize] += 1;
        }
        let expected = n as f64 / 256.0;
        let chi_square: f64 = counts
            .iter()
            .map(|count| (f64::from(*count) - expected).powi(2) / expected)
            .sum();
        // Rows and columns are full by construction, which leaves 15 x 15 degrees of freedom.
        assert!(
            (225.0 - chi_square).abs() < 5.0 * 450_f64.sqrt(),
            "{n}: {chi_square}"
        );
    }
}

#[test]
fn two_keys_agree_no_more_than_by_chance() {
    let n = 100_000;
    for seed in 0..5 {
        let (one, other) = (permutation(seed, n), permutation(seed + 1, n));
        let same = (0..n).filter(|index| one.at(*index) == other.at(*index)).count();
        assert!(same < 10, "{same}");
    }
}
