//! Decoding on the way: packed columns, memory that is let go, bad samples that are settled before anybody
//! sees them.
#![allow(clippy::unwrap_used, reason = "a failure here is the failure of a test")]

mod fixture;

use fixture::{TestNode, member};
use forebay_core::Kind;
use forebay_dataset::order::Shuffle;
use forebay_loader::{Batch, Column, Dataset, FieldDecoder, Loader, LoaderOptions, OnError};

/// A shard of documents and numbers; those of some samples are damaged.
fn shard(samples: usize, bad: &[usize]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for number in 0..samples {
        let document = if bad.contains(&number) {
            "{".to_owned()
        } else {
            format!("{{\"n\": {number}}}")
        };
        member(&mut bytes, &format!("{number:06}.json"), document.as_bytes());
        member(
            &mut bytes,
            &format!("{number:06}.cls"),
            number.to_string().as_bytes(),
        );
    }
    bytes.extend_from_slice(&[0; 1024]);
    bytes
}

fn decoding(batch_size: u64) -> LoaderOptions {
    LoaderOptions {
        batch_size,
        decode: vec![
            FieldDecoder::parse("json", "json").unwrap(),
            FieldDecoder::parse("cls", "int").unwrap(),
        ],
        decode_threads: 3,
        ..LoaderOptions::default()
    }
}

fn numbers(batch: &Batch) -> Vec<i64> {
    let Column::Packed(packed) = &batch.columns[1] else {
        unreachable!("numbers are packed")
    };
    assert_eq!((&*packed.dtype, packed.shape[0]), ("<i8", batch.samples.len()));
    let (numbers, _) = packed.memory.as_chunks::<8>();
    numbers.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect()
}

fn epoch(dataset: &Dataset, options: LoaderOptions) -> Vec<Vec<i64>> {
    let mut loader = dataset.loader(options).unwrap();
    let mut found = Vec::new();
    while let Some(batch) = loader.next_batch().unwrap() {
        found.push(numbers(&batch));
    }
    found
}

#[test]
fn fields_are_decoded_in_order_and_their_bytes_let_go() {
    let node = TestNode::start();
    node.put("lake/set/0.tar", &shard(20, &[]));
    let mut loader = node.open("lake/set/").loader(decoding(8)).unwrap();
    let batch = loader.next_batch().unwrap().unwrap();
    assert_eq!(numbers(&batch), (0..8).collect::<Vec<_>>());
    assert!(batch.samples.iter().all(|sample| sample.fields.is_empty()));
    assert_eq!(batch.bytes(), 8 * ("{\"n\": 1}".len() as u64 + 1));
    assert!(loader.stats().work.decode_ns > 0);
}

#[test]
fn what_cannot_be_decoded_is_raised_left_out_or_replaced() {
    let node = TestNode::start();
    node.put("lake/set/0.tar", &shard(12, &[5, 6]));
    let dataset = node.open("lake/set/");
    let mut loader = dataset.loader(decoding(4)).unwrap();
    loader.next_batch().unwrap();
    let error = loader.next_batch().unwrap_err();
    assert_eq!(error.kind(), Kind::Corrupt);
    assert!(
        error
            .context()
            .any(|(name, value)| (name, value) == ("key", "000005"))
    );
    assert_eq!(loader.state().position, 4);
    let with = |on_error| LoaderOptions {
        on_error,
        ..decoding(4)
    };
    let skipped = epoch(&dataset, with(OnError::Skip));
    assert_eq!(skipped, [vec![0, 1, 2, 3], vec![4, 7], vec![8, 9, 10, 11]]);
    // Without shuffling a window is a shard: the next good sample of it.
    let replaced = epoch(&dataset, with(OnError::Substitute));
    assert_eq!(replaced[1], [4, 7, 7, 7]);
}

#[test]
fn a_replacement_does_not_depend_on_ranks_or_threads() {
    let node = TestNode::start();
    node.put("lake/set/0.tar", &shard(24, &[0, 7, 8, 20]));
    let dataset = node.open("lake/set/");
    let options = |rank, world_size, batch_size| LoaderOptions {
        rank,
        world_size,
        shuffle: Shuffle::Global,
        on_error: OnError::Substitute,
        decode_threads: 1 + rank as usize,
        ..decoding(batch_size)
    };
    let alone = epoch(&dataset, options(0, 1, 4)).concat();
    let ranks: Vec<Vec<Vec<i64>>> = (0..3).map(|rank| epoch(&dataset, options(rank, 3, 2))).collect();
    let together: Vec<i64> = (0..4)
        .flat_map(|step| ranks.iter().flat_map(move |rank| rank[step].clone()))
        .collect();
    assert_eq!(together, alone);
}

#[test]
fn a_loader_that_is_dropped_in_the_middle_ends_its_threads() {
    let node = TestNode::start();
    node.put("lake/set/0.tar", &shard(200, &[]));
    let dataset = node.open("lake/set/");
    for _ in 0..5 {
        let mut loader = dataset.loader(decoding(2)).unwrap();
        assert_eq!(numbers(&loader.next_batch().unwrap().unwrap()), [0, 1]);
    }
}

/// A grey PNG of 8 x 8 pixels with the values 0 to 63.
const IMAGE: &[u8] = &[
    0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a, 0x00, 0x00, 0x00, 0x0d, 0x49, 0x48, 0x44, 0x52, 0x00,
    0x00, 0x00, 0x08, 0x00, 0x00, 0x00, 0x08, 0x08, 0x00, 0x00, 0x00, 0x00, 0xe1, 0x64, 0xe1, 0x57, 0x00,
    0x00, 0x00, 0x50, 0x49, 0x44, 0x41, 0x54, 0x78, 0xda, 0x63, 0x60, 0x60, 0x64, 0x62, 0x66, 0x61, 0x65,
    0x63, 0x67, 0xe0, 0xe0, 0xe4, 0xe2, 0xe6, 0xe1, 0xe5, 0xe3, 0x67, 0x10, 0x10, 0x14, 0x12, 0x16, 0x11,
    0x15, 0x13, 0x67, 0x90, 0x90, 0x94, 0x92, 0x96, 0x91, 0x95, 0x93, 0x67, 0x50, 0x50, 0x54, 0x52, 0x56,
    0x51, 0x55, 0x53, 0x67, 0xd0, 0xd0, 0xd4, 0xd2, 0xd6, 0xd1, 0xd5, 0xd3, 0x67, 0x30, 0x30, 0x34, 0x32,
    0x36, 0x31, 0x35, 0x33, 0x67, 0xb0, 0xb0, 0xb4, 0xb2, 0xb6, 0xb1, 0xb5, 0xb3, 0x07, 0x00, 0xbb, 0xf8,
    0x07, 0xe1, 0x4e, 0xa0, 0x12, 0x48, 0x00, 0x00, 0x00, 0x00, 0x49, 0x45, 0x4e, 0x44, 0xae, 0x42, 0x60,
    0x82,
];

fn cuts(loader: &mut Loader) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    while let Some(batch) = loader.next_batch().unwrap() {
        let Column::Packed(packed) = &batch.columns[0] else {
            unreachable!("images of one size are packed")
        };
        assert_eq!(*packed.shape, [batch.samples.len(), 4, 4]);
        found.extend(packed.memory.chunks(16).map(<[u8]>::to_vec));
    }
    found
}

#[test]
fn random_cuts_are_the_same_on_any_ranks_and_after_a_resume() {
    let node = TestNode::start();
    let mut bytes = Vec::new();
    for number in 0..48 {
        member(&mut bytes, &format!("{number:06}.png"), IMAGE);
    }
    bytes.extend_from_slice(&[0; 1024]);
    node.put("lake/set/0.tar", &bytes);
    let dataset = node.open("lake/set/");
    let loader = |seed, rank, world_size| {
        let options = LoaderOptions {
            batch_size: 12 / world_size,
            seed,
            rank,
            world_size,
            shuffle: Shuffle::Global,
            decode: vec![FieldDecoder::parse("png", "gray:random_crop=4,random_flip").unwrap()],
            ..LoaderOptions::default()
        };
        dataset.loader(options).unwrap()
    };
    let mut whole = loader(7, 0, 1);
    let first = cuts(&mut whole);
    let distinct: std::collections::BTreeSet<_> = first.iter().collect();
    assert!(first.len() == 48 && distinct.len() > 12, "{}", distinct.len());
    assert_ne!(cuts(&mut whole), first, "the next epoch has cuts of its own");
    assert_ne!(cuts(&mut loader(8, 0, 1)), first, "another seed too");
    let ranks = [cuts(&mut loader(7, 0, 2)), cuts(&mut loader(7, 1, 2))];
    let steps = ranks[0].chunks(6).zip(ranks[1].chunks(6));
    assert_eq!(
        steps
            .flat_map(|(one, other)| [one, other].concat())
            .collect::<Vec<_>>(),
        first
    );
    let mut before = loader(7, 0, 1);
    before.next_batch().unwrap();
    // The seed is that of the state.
    let mut after = loader(99, 0, 1);
    after.resume(&before.state()).unwrap();
    assert_eq!(cuts(&mut after), first[12..]);
    // By number there is no epoch: the middle, as it is.
    let (_, columns) = dataset
        .decoded(
            &[0],
            &[FieldDecoder::parse("png", "gray:random_crop=4,random_flip").unwrap()],
            None,
        )
        .unwrap();
    let Column::Packed(packed) = &columns[0] else {
        unreachable!("one image is packed")
    };
    assert_eq!(packed.memory[..4], [18, 19, 20, 21]);
}
