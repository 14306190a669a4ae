//! Round trips, golden bytes, hostile frames, and when a difference is worth it.

use proptest::prelude::*;

use super::*;
use crate::manifest::{Encoding, EncodingKind};
use crate::table::BLOCK_BYTES;

fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    (0..bytes).map(|_| (next() >> 32) as u8).collect()
}

fn encoded(bytes: &[u8], base: &[u8], element_bytes: u8) -> (Vec<u8>, Vec<Frame>) {
    let mut encoder = Encoder::new().unwrap();
    let mut stored = Vec::new();
    let frame_bytes = FRAME_BYTES as usize;
    let pairs = bytes.chunks(frame_bytes).zip(base.chunks(frame_bytes));
    let frames = pairs.map(|(bytes, base)| encoder.frame(bytes, base, element_bytes, &mut stored).unwrap());
    let frames = frames.collect();
    (stored, frames)
}

fn extent(range: [u64; 2], encoding: Option<Box<Encoding>>) -> Extent {
    Extent {
        file: 0,
        range,
        blake3: "0".repeat(64),
        table: 0,
        first_block: 0,
        encoding,
    }
}

fn on(base: Extent, stored_bytes: u64) -> Extent {
    let encoding = Encoding {
        kind: EncodingKind::XorGroupZstd,
        bytes: base.bytes(),
        element_bytes: 4,
        base,
    };
    extent([0, stored_bytes], Some(Box::new(encoding)))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn what_is_encoded_comes_out_again(
        bytes in 0usize..9000,
        seed in any::<u64>(),
        changed in 0usize..9000,
        element_bytes in prop::sample::select(vec![1u8, 2, 4, 8]),
    ) {
        let base = noise(seed, bytes);
        let mut new = base.clone();
        let changed = changed.min(bytes);
        new[..changed].copy_from_slice(&noise(!seed, changed));
        let (stored, frames) = encoded(&new, &base, element_bytes);
        prop_assert!(stored.len() <= bytes);
        let mut target = base;
        let mut decoder = Decoder::new().unwrap();
        for frame in &frames {
            prop_assert_eq!(frame.crc, crc32c::crc32c(&stored));
            decoder.frame(&stored, element_bytes, &mut target).unwrap();
        }
        prop_assert_eq!(target, new);
    }

    #[test]
    fn any_bytes_are_a_frame_or_an_error(
        stored in prop::collection::vec(any::<u8>(), 0..200),
        target_bytes in 0usize..3000,
        element_bytes in any::<u8>(),
    ) {
        let mut target = vec![7; target_bytes];
        let _ = Decoder::new().unwrap().frame(&stored, element_bytes, &mut target);
        prop_assert_eq!(target.len(), target_bytes);
    }
}

#[test]
fn frames_are_found_by_what_the_side_table_says() {
    let bytes = 2 * FRAME_BYTES + 4096;
    let base = noise(3, bytes as usize);
    let mut new = base.clone();
    // The second frame is noise and is stored as it is.
    new[FRAME_BYTES as usize..2 * FRAME_BYTES as usize].copy_from_slice(&noise(9, FRAME_BYTES as usize));
    let (stored, frames) = encoded(&new, &base, 4);
    assert_eq!(u64::from(frames[1].stored_bytes), FRAME_BYTES);
    let crcs: Vec<u32> = new.chunks(BLOCK_BYTES as usize).map(crc32c::crc32c).collect();
    let mut table = Table::default();
    table.add(&[1, 2, 3]);
    let mut part = on(extent([0, bytes], None), stored.len() as u64);
    part.first_block = table.add_encoded(&crcs, &frames);
    assert_eq!(table.part(part.first_block, part.bytes()).unwrap(), crcs);
    let found = Frames::of(&table, &part).unwrap();
    assert_eq!(found.iter(&(0..9)).collect::<Vec<_>>(), frames);
    let range = found.stored(&(1..2));
    assert_eq!(range.end - range.start, FRAME_BYTES);
    let mut target = vec![0; FRAME_BYTES as usize];
    let second = &stored[range.start as usize..range.end as usize];
    Decoder::new().unwrap().frame(second, 4, &mut target).unwrap();
    assert_eq!(target, new[FRAME_BYTES as usize..2 * FRAME_BYTES as usize]);
    assert_eq!(found.stored(&(0..3)), 0..stored.len() as u64);
}

#[test]
fn frames_that_claim_more_than_they_may_are_refused() {
    let part = on(extent([0, 100_000], None), 500);
    let refusal = |frames: &[Frame]| {
        let mut table = Table::default();
        table.add_encoded(&[0, 0], frames);
        Frames::of(&table, &part).map(|_| ()).unwrap_err().to_string()
    };
    let frame = |stored_bytes| Frame { stored_bytes, crc: 0 };
    assert!(refusal(&[]).contains("too short"));
    assert!(refusal(&[frame(0)]).contains("length"));
    assert!(refusal(&[frame(100_001)]).contains("length"));
    assert!(refusal(&[frame(u32::MAX)]).contains("length"));
    assert!(refusal(&[frame(499)]).contains("fill"));
}

#[test]
fn a_frame_cannot_make_more_bytes_than_it_stands_for() {
    let bomb = zstd::bulk::compress(&vec![0; 64 << 20], 1).unwrap();
    assert!(bomb.len() < 1 << 20);
    let mut decoder = Decoder::new().unwrap();
    let error = decoder.frame(&bomb, 4, &mut vec![0; 1 << 20]).unwrap_err();
    assert_eq!(error.kind(), Kind::Corrupt);
    let short = zstd::bulk::compress(&[0; 100], 1).unwrap();
    let error = decoder.frame(&short, 4, &mut [0; 101]).unwrap_err();
    assert!(error.to_string().contains("fewer"), "{error}");
    assert!(decoder.frame(&[0; 9], 4, &mut [0; 8]).is_err());
    assert!(decoder.frame(&[], 4, &mut [0; 8]).is_err());
    assert!(decoder.frame(&[], 4, &mut vec![0; (1 << 20) + 1]).is_err());
}

/// Four numbers of four bytes on a base of ones: made with the `zstd` command, level 1, from the grouped
/// bytes.
#[test]
fn the_bytes_are_these() {
    let base: Vec<u8> = (0..64).collect();
    let mut new = base.clone();
    new[0] ^= 0x0f;
    new[5] ^= 0xf0;
    let mut grouped = [0u8; 64];
    (grouped[0], grouped[16 + 1]) = (0x0f, 0xf0);
    let mut found = [0; 64];
    group::apart(&new, &base, 4, &mut found);
    assert_eq!(found, grouped);
    let stored = include_bytes!("../../testdata/delta-frame.zst");
    assert_eq!(zstd::bulk::decompress(stored, 64).unwrap(), grouped);
    let mut target = base;
    Decoder::new().unwrap().frame(stored, 4, &mut target).unwrap();
    assert_eq!(target, new);
}

#[test]
fn small_changes_of_numbers_shrink_and_noise_is_not_worth_it() {
    let count = 1 << 16;
    let noisy = noise(5, 4 * count);
    let (words, _) = noisy.as_chunks::<4>();
    let floats: Vec<f32> = words
        .iter()
        .map(|word| (u32::from_le_bytes(*word) as f32 / 4e9) - 0.5)
        .collect();
    let all = |factor: f32| -> Vec<u8> {
        floats
            .iter()
            .flat_map(|float| (float * factor).to_le_bytes())
            .collect()
    };
    let (base, new) = (all(1.0), all(1.000_01));
    let (stored, _) = encoded(&new, &base, 4);
    assert!(
        is_worth(new.len() as u64, stored.len() as u64),
        "{}",
        stored.len()
    );
    let (ungrouped, _) = encoded(&new, &base, 1);
    assert!(stored.len() < ungrouped.len());
    let (stored, _) = encoded(&noise(6, base.len()), &base, 4);
    assert!(!is_worth(base.len() as u64, stored.len() as u64));
}

#[test]
fn a_chain_is_short_and_reads_at_most_twice_the_bytes() {
    let bytes = PART_BYTES_MIN;
    let mut part = extent([0, bytes], None);
    assert!(!may_follow(&part, bytes - 1), "another size");
    assert!(!may_follow(&extent([0, 10], None), 10), "too small");
    for depth in 0..DEPTH_MAX {
        assert_eq!(part.depth(), depth);
        assert!(may_follow(&part, bytes));
        part = on(part, bytes / 5);
    }
    assert!(!may_follow(&part, bytes));
    assert!(is_cheap_to_read(&part, bytes / 5));
    assert!(!is_cheap_to_read(&part, bytes / 4));
}
