use super::super::key::Purpose;
use super::*;

fn permutation(seed: u64, n: u64) -> Permutation {
    Permutation::new(Key::new(seed).derive(Purpose::Samples, 0), n)
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
