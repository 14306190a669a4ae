//! Decoding on the way: packed columns, memory that is let go, bad samples that are settled before anybody sees them.
#![allow(clippy::unwrap_used, reason = "a failure here is the failure of a test")]

mod fixture;

use fixture::{TestNode, member};
use forebay_core::Kind;
use forebay_dataset::order::Shuffle;
use forebay_loader::{Batch, Column, Dataset, FieldDecoder, LoaderOptions, OnError};

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
    assert_eq!(
        (packed.dtype.as_str(), packed.shape[0]),
        ("<i8", batch.samples.len())
    );
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
