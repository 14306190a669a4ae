//! Shares: everything once, by who has it, evenly, the same every time.

use proptest::prelude::*;

use super::*;

fn have(name: &str, rows: u64, columns: u64) -> Have {
    Have {
        name: name.to_owned(),
        dtype: Dtype::F32,
        at: TensorBox::whole(&[rows, columns]),
    }
}

fn bytes_of(shares: &[Share]) -> u64 {
    shares.iter().map(|share| share.slice.bytes).sum()
}

/// Every byte of every box is written by exactly one of its holders, and the slices are what they say.
fn check(haves: &[Vec<Have>], shares: &[Vec<Share>]) {
    let mut written: BTreeMap<(&str, &TensorBox), Vec<&Slice>> = BTreeMap::new();
    for (rank, shares) in shares.iter().enumerate() {
        for share in shares {
            let have = &haves[rank][share.have];
            let slice = &share.slice;
            assert_eq!(slice.at.elements().unwrap() * have.dtype.bytes(), slice.bytes);
            written.entry((&have.name, &have.at)).or_default().push(slice);
        }
    }
    for have in haves.iter().flatten() {
        let mut slices = written[&(have.name.as_str(), &have.at)].clone();
        slices.sort_by_key(|slice| slice.first);
        let mut end = 0;
        for slice in &slices {
            assert_eq!(slice.first, end, "{}", have.name);
            end += slice.bytes;
            for other in &slices {
                let is_apart = *other == *slice || other.at.intersection(&slice.at).is_none();
                assert!(is_apart, "{slice:?} {other:?}");
            }
        }
        assert_eq!(end, have.at.elements().unwrap() * have.dtype.bytes());
    }
}

#[test]
fn replicas_are_dealt_evenly_and_mostly_in_one_piece() {
    let list: Vec<Have> = (0..10).map(|n| have(&format!("t{n}"), 4096, 4096)).collect();
    let haves = vec![list; 4];
    let shares = assign(&haves).unwrap();
    check(&haves, &shares);
    for share in &shares {
        assert!(
            bytes_of(share).abs_diff(160 << 20) <= PART_BYTES,
            "{}",
            bytes_of(share)
        );
        let mut names: Vec<_> = share.iter().map(|share| share.have).collect();
        names.dedup();
        assert_eq!(names.len(), share.len(), "one piece of a tensor for each rank");
    }
}

#[test]
fn who_has_much_alone_gets_less_of_what_is_shared() {
    let common = have("common", 16 << 10, 1024);
    let own = have("own", 8 << 10, 1024);
    let haves = vec![vec![common.clone(), own], vec![common]];
    let shares = assign(&haves).unwrap();
    check(&haves, &shares);
    assert_eq!(bytes_of(&shares[0]), 48 << 20);
    assert_eq!(bytes_of(&shares[1]), 48 << 20);
}

#[test]
fn small_replicas_are_written_by_one_rank() {
    let haves = vec![vec![have("a", 1, 3), have("none", 0, 3)]; 3];
    let shares = assign(&haves).unwrap();
    check(&haves, &shares);
    assert_eq!(shares.iter().flatten().count(), 2);
}

#[test]
fn a_box_named_twice_is_refused() {
    let haves = vec![vec![have("a", 1, 3), have("a", 1, 3)]];
    assert!(assign(&haves).is_err());
}

fn worlds() -> impl Strategy<Value = Vec<Vec<Have>>> {
    let tensor = (1u64..9000, 1u64..9000, 0u8..=255);
    (1usize..5, prop::collection::vec(tensor, 0..12)).prop_map(|(ranks, tensors)| {
        let mut haves = vec![Vec::new(); ranks];
        for (number, (rows, columns, holders)) in tensors.into_iter().enumerate() {
            for (rank, list) in haves.iter_mut().enumerate() {
                if holders & (1 << rank) != 0 {
                    list.push(have(&format!("t{number}"), rows, columns));
                }
            }
        }
        haves
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn everything_is_written_once_by_one_of_its_holders(haves in worlds()) {
        let shares = assign(&haves).unwrap();
        check(&haves, &shares);
        prop_assert_eq!(&shares, &assign(&haves).unwrap());
    }

    #[test]
    fn what_all_have_is_even_up_to_a_part(
        ranks in 1usize..9,
        tensors in prop::collection::vec((1u64..5000, 1u64..2000), 1..20),
    ) {
        let list: Vec<Have> = tensors
            .into_iter()
            .enumerate()
            .map(|(number, (rows, columns))| have(&format!("t{number:02}"), rows, columns))
            .collect();
        let haves = vec![list; ranks];
        let shares = assign(&haves).unwrap();
        let loads: Vec<u64> = shares.iter().map(|share| bytes_of(share)).collect();
        let (least, most) = (loads.iter().min().unwrap(), loads.iter().max().unwrap());
        prop_assert!(most - least <= 2 * PART_BYTES, "{:?}", loads);
    }
}
