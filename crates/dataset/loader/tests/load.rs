//! Loading: every sample once, in a fixed order, whatever the ranks; state, damage, changes.
#![allow(clippy::unwrap_used, reason = "a failure here is the failure of a test")]

mod fixture;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use fixture::{TestNode, content_at, numbers, rest, shard};
use forebay_core::Kind;
use forebay_dataset::order::{OrderState, Shuffle, Stop, Tail, Window};
use forebay_loader::{Dataset, Loader, LoaderOptions, OnError, Prefetch};

fn windowed(batch_size: u64) -> LoaderOptions {
    LoaderOptions {
        batch_size,
        shuffle: Shuffle::Window(Window::samples(32)),
        seed: 7,
        ..LoaderOptions::default()
    }
}

fn rank(rank: u64, world_size: u64, batch_size: u64) -> LoaderOptions {
    LoaderOptions {
        rank,
        world_size,
        tail: Tail::Pad,
        ..windowed(batch_size)
    }
}

/// The samples of all ranks, step by step.
fn epoch(dataset: &Dataset, world_size: u64, batch_size: u64, state: Option<&OrderState>) -> Vec<usize> {
    let ranks = (0..world_size).map(|number| {
        let mut loader = dataset.loader(rank(number, world_size, batch_size)).unwrap();
        if let Some(state) = state {
            loader.resume(state).unwrap();
        }
        let left = loader.steps_left();
        let batches = rest(&mut loader);
        assert_eq!(Some(batches.len() as u64), left);
        batches
    });
    let ranks: Vec<Vec<Vec<usize>>> = ranks.collect();
    let steps = ranks[0].len();
    let mut all = Vec::new();
    for step in 0..steps {
        for rank in &ranks {
            all.extend(&rank[step]);
        }
    }
    all
}

#[test]
fn every_sample_comes_exactly_once_in_the_same_order_on_any_number_of_ranks() {
    let node = TestNode::start();
    node.shards("set", &[40, 0, 33, 47]);
    let dataset = node.open("lake/set/");
    let alone = epoch(&dataset, 1, 4, None);
    assert_eq!(alone.iter().copied().collect::<BTreeSet<_>>(), (0..120).collect());
    assert_ne!(alone, (0..120).collect::<Vec<_>>());
    for (world, batch) in [(2, 4), (3, 5), (3, 1)] {
        let together = epoch(&dataset, world, batch, None);
        assert_eq!(together[..120], alone[..], "{world} ranks");
    }
}

#[test]
fn resuming_after_any_batch_on_another_number_of_ranks_gives_exactly_the_rest() {
    let node = TestNode::start();
    node.shards("set", &[24, 24]);
    let dataset = node.open("lake/set/");
    let whole = epoch(&dataset, 1, 4, None);
    let mut loader = dataset.loader(windowed(4)).unwrap();
    for step in 0..12 {
        let state = OrderState::from_json(&loader.state().to_json()).unwrap();
        let remaining = &whole[step * 4..];
        for (world, batch) in [(1, 4), (2, 3), (3, 1)] {
            let resumed = epoch(&dataset, world, batch, Some(&state));
            assert_eq!(
                &resumed[..remaining.len()],
                remaining,
                "step {step}, {world} ranks"
            );
        }
        loader.next_batch().unwrap().unwrap();
    }
}

#[test]
fn a_state_counts_what_was_handed_over_and_not_what_was_read_ahead() {
    let node = TestNode::start();
    node.shards("set", &[60]);
    let mut loader = node.open("lake/set/").loader(windowed(5)).unwrap();
    assert_eq!((loader.state().epoch, loader.state().position), (0, 0));
    for step in 1..=12 {
        loader.next_batch().unwrap().unwrap();
        assert_eq!(loader.state().position, step * 5);
    }
    assert!(loader.next_batch().unwrap().is_none());
    assert_eq!((loader.state().epoch, loader.state().position), (1, 0));
}

#[test]
fn epochs_follow_each_other_in_other_orders_and_can_be_chosen() {
    let node = TestNode::start();
    node.shards("set", &[30, 30]);
    let mut loader = node.open("lake/set/").loader(windowed(6)).unwrap();
    assert_eq!(loader.len(), Some(10));
    let first = rest(&mut loader);
    let second = rest(&mut loader);
    assert_ne!(first, second);
    assert_eq!(loader.epoch(), 2);
    loader.set_epoch(1);
    assert_eq!(rest(&mut loader), second);
    loader.set_epoch(0);
    loader.next_batch().unwrap();
    loader.set_epoch(0);
    assert_eq!(rest(&mut loader), first);
}

#[test]
fn the_tail_is_dropped_or_padded_and_counted() {
    let node = TestNode::start();
    node.shards("set", &[10]);
    let dataset = node.open("lake/set/");
    let mut loader = dataset.loader(windowed(4)).unwrap();
    assert_eq!((loader.len(), loader.dropped_and_padded()), (Some(2), (2, 0)));
    assert_eq!(rest(&mut loader).concat().len(), 8);
    let mut loader = dataset.loader(rank(0, 1, 4)).unwrap();
    assert_eq!((loader.len(), loader.dropped_and_padded()), (Some(3), (0, 2)));
    assert_eq!(rest(&mut loader).concat().len(), 12);
    let mut none = dataset.loader(windowed(11)).unwrap();
    assert!(none.is_empty());
    assert!(none.next_batch().unwrap().is_none());
    assert!(none.next_batch().unwrap().is_none());
}

/// A dataset of 40 samples whose sample 25 is damaged.
fn damaged(node: &TestNode) -> Dataset {
    node.shards("bad", &[20, 20]);
    node.open("lake/bad/");
    let mut bytes = shard(20..40);
    let at = content_at(&bytes, "000025.bin");
    bytes[at + 5] ^= 0x10;
    node.damage("bad", &[20, 20], 1, &bytes);
    node.open("lake/bad/")
}

#[test]
fn a_damaged_sample_is_raised_and_the_loader_stays_where_it_was() {
    let node = TestNode::start();
    let mut loader = damaged(&node)
        .loader(LoaderOptions {
            batch_size: 10,
            ..LoaderOptions::default()
        })
        .unwrap();
    for _ in 0..2 {
        loader.next_batch().unwrap().unwrap();
    }
    for _ in 0..2 {
        let error = loader.next_batch().unwrap_err();
        assert_eq!(error.kind(), Kind::Corrupt);
        assert!(
            error.to_string().contains("lake/bad/01.tar") && error.to_string().contains("000025"),
            "{error}"
        );
        assert_eq!(loader.state().position, 20);
    }
}

#[test]
fn a_skipped_sample_shortens_its_batch_and_keeps_the_steps() {
    let node = TestNode::start();
    let options = LoaderOptions {
        on_error: OnError::Skip,
        ..windowed(8)
    };
    let mut loader = damaged(&node).loader(options).unwrap();
    let batches = rest(&mut loader);
    assert_eq!(batches.len(), 5);
    let all: BTreeSet<usize> = batches.concat().into_iter().collect();
    assert_eq!(all, (0..40).filter(|number| *number != 25).collect());
    let stats = loader.stats();
    assert_eq!((stats.samples, stats.bad_samples), (39, 1));
    let bad = &stats.bad[0];
    assert_eq!(
        (bad.number, bad.shard.as_str(), bad.key.as_deref()),
        (25, "lake/bad/01.tar", Some("000025"))
    );
    assert!(
        bad.reason.contains("damaged") && bad.substitute.is_none(),
        "{bad:?}"
    );
}

#[test]
fn no_batch_is_empty_although_all_of_its_samples_are_skipped() {
    let node = TestNode::start();
    let options = LoaderOptions {
        on_error: OnError::Skip,
        ..windowed(1)
    };
    let mut loader = damaged(&node).loader(options).unwrap();
    let batches = rest(&mut loader);
    assert_eq!(batches.len(), 40);
    assert!(batches.iter().all(|batch| batch.len() == 1 && batch[0] != 25));
    let bad = &loader.stats().bad[0];
    let twice = usize::try_from(bad.substitute.unwrap()).unwrap();
    assert_eq!(
        batches.concat().iter().filter(|number| **number == twice).count(),
        2
    );
}

#[test]
fn a_substitute_is_the_same_on_every_number_of_ranks() {
    let node = TestNode::start();
    let dataset = damaged(&node);
    let mut seen = Vec::new();
    for (world, batch) in [(1, 8), (2, 4), (4, 2)] {
        let ranks = (0..world).map(|number| {
            let options = LoaderOptions {
                on_error: OnError::Substitute,
                ..rank(number, world, batch)
            };
            let mut loader = dataset.loader(options).unwrap();
            let batches = rest(&mut loader);
            (batches, loader.stats().bad)
        });
        let (batches, bad): (Vec<_>, Vec<_>) = ranks.unzip();
        let bad = bad.concat();
        assert_eq!(bad.len(), 1);
        let steps: Vec<Vec<usize>> = (0..5)
            .map(|step| batches.iter().flat_map(|rank| rank[step].clone()).collect())
            .collect();
        assert!(steps.iter().all(|step| step.len() == 8));
        seen.push((steps, bad[0].substitute.unwrap()));
    }
    assert!(seen.windows(2).all(|pair| pair[0] == pair[1]), "{seen:?}");
    let all = seen[0].0.concat();
    let twice = usize::try_from(seen[0].1).unwrap();
    assert_eq!(all.iter().filter(|number| **number == twice).count(), 2);
    assert!(!all.contains(&25));
}

#[test]
fn a_shard_replaced_in_the_middle_of_an_epoch_is_an_error_and_never_other_bytes() {
    let node = TestNode::start();
    node.shards("set", &[20, 20]);
    let dataset = node.open("lake/set/");
    let options = LoaderOptions {
        batch_size: 5,
        batches_ahead: 1,
        prefetch: Prefetch::Off,
        on_error: OnError::Substitute,
        ..LoaderOptions::default()
    };
    let mut loader = dataset.loader(options).unwrap();
    assert_eq!(numbers(&loader.next_batch().unwrap().unwrap()), [0, 1, 2, 3, 4]);
    node.put("lake/set/01.tar", &shard(100..120));
    let error = loop {
        match loader.next_batch() {
            Ok(Some(batch)) => assert!(numbers(&batch).iter().all(|number| *number < 20)),
            Ok(None) => panic!("the epoch has ended"),
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), Kind::Changed);
    assert!(error.message().contains("index"), "{error}");
    let state = loader.state();
    let mut again = node.open("lake/set/").loader(windowed(5)).unwrap();
    assert_eq!(again.resume(&state).unwrap_err().kind(), Kind::Changed);
}

#[test]
fn datasets_are_mixed_by_weights_and_the_mix_resumes() {
    let node = TestNode::start();
    node.shards("a", &[30, 30]);
    node.shards("b", &[50]);
    let datasets = [(node.open("lake/a/"), 3.0), (node.open("lake/b/"), 1.0)];
    let mut loader = Loader::mix(&datasets, Stop::FirstExhausted, windowed(8)).unwrap();
    let batch = loader.next_batch().unwrap().unwrap();
    assert_eq!(
        batch.samples.iter().filter(|sample| sample.source == 1).count(),
        2
    );
    let state = loader.state();
    let left = rest(&mut loader);
    assert!(left.len() > 5);
    let mut resumed = Loader::mix(&datasets, Stop::FirstExhausted, windowed(8)).unwrap();
    resumed.resume(&state).unwrap();
    assert_eq!(rest(&mut resumed), left);
}

#[test]
fn a_waiting_consumer_can_be_interrupted_and_goes_on_after() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    let node = TestNode::start();
    node.shards("set", &[40]);
    let wanted = Arc::new(AtomicBool::new(true));
    let asked = Arc::clone(&wanted);
    let options = LoaderOptions {
        interrupt: Some(Arc::new(move || asked.load(Ordering::Relaxed))),
        ..windowed(40)
    };
    let mut loader = node.open("lake/set/").loader(options).unwrap();
    // A batch may be ready before the consumer looks; then there is nothing to interrupt.
    let first = loader.next_batch();
    wanted.store(false, Ordering::Relaxed);
    let batch = match first {
        Err(error) => {
            assert_eq!(error.kind(), Kind::Cancelled);
            loader.next_batch().unwrap()
        }
        Ok(batch) => batch,
    };
    assert_eq!(batch.unwrap().samples.len(), 40);
}

#[test]
fn time_and_bytes_are_accounted_for() {
    let node = TestNode::start();
    node.shards("set", &[60, 60]);
    let mut loader = node.open("lake/set/").loader(windowed(10)).unwrap();
    let mut bytes = 0;
    while let Some(batch) = loader.next_batch().unwrap() {
        bytes += batch.bytes();
        let stall = batch.stats.stall;
        assert!(stall.lake_ns + stall.cache_ns + stall.decode_ns + batch.stats.hand_over_ns > 0);
    }
    let stats = loader.stats();
    assert_eq!((stats.batches, stats.samples, stats.bytes), (12, 120, bytes));
    assert!(stats.work.cache_ns > 0 && stats.work.decode_ns > 0 && stats.user_ns > 0);
    assert!(stats.sources.ram + stats.sources.nvme + stats.sources.lake >= bytes);
}

#[test]
fn an_epoch_over_a_cold_cache_reads_the_lake_once() {
    let node = TestNode::start();
    for number in 0..4 {
        node.put(&format!("lake/big/{number}.tar"), &large_shard(number));
    }
    node.open("lake/big/");
    let node = node.restart();
    let dataset = node.open("lake/big/");
    let bytes: u64 = (0..4).map(|number| large_shard(number).len() as u64).sum();
    let options = LoaderOptions {
        batch_size: 4,
        shuffle: Shuffle::Window(Window::bytes(4 << 20)),
        ..LoaderOptions::default()
    };
    let mut loader = dataset.loader(options).unwrap();
    let mut samples = 0;
    while let Some(batch) = loader.next_batch().unwrap() {
        samples += batch.samples.len();
    }
    assert_eq!(samples, 64);
    let lake_bytes = node.lake_bytes();
    assert!(
        lake_bytes <= bytes + bytes / 50 + (64 << 10),
        "{lake_bytes} of {bytes}"
    );
}

#[test]
fn windows_are_read_ahead_of_the_consumer_in_long_stretches() {
    let node = TestNode::start();
    for number in 0..4 {
        node.put(&format!("lake/big/{number}.tar"), &large_shard(number));
    }
    node.open("lake/big/");
    let node = node.restart();
    let options = LoaderOptions {
        batch_size: 1,
        batches_ahead: 1,
        shuffle: Shuffle::Window(Window::bytes(5 << 20)),
        ..LoaderOptions::default()
    };
    let mut loader = node.open("lake/big/").loader(options).unwrap();
    loader.next_batch().unwrap().unwrap();
    // Two windows are the whole dataset.
    let deadline = Instant::now() + Duration::from_secs(60);
    let prefetched = |loader: &Loader| loader.stats().prefetched.lake + loader.stats().prefetched.ram;
    while prefetched(&loader) < 64 * (128 << 10) {
        assert!(Instant::now() < deadline, "{:?}", loader.stats());
        std::thread::yield_now();
    }
    // One batch was ready or under way by then.
    loader.next_batch().unwrap().unwrap();
    let before = loader.stats().sources.lake;
    while loader.next_batch().unwrap().is_some() {}
    let after = loader.stats().sources.lake;
    assert_eq!(after, before, "the fetchers found everything in RAM");
}

#[test]
fn samples_in_pages_that_were_read_ahead_cost_no_question() {
    let node = TestNode::start();
    node.shards("set", &[400, 400]);
    let dataset = node.open("lake/set/");
    let options = LoaderOptions {
        shuffle: Shuffle::Window(Window::samples(800)),
        batches_ahead: 1,
        fetch_threads: 1,
        ..windowed(4)
    };
    let mut loader = dataset.loader(options).unwrap();
    let mut all = numbers(&loader.next_batch().unwrap().unwrap());
    let bytes = (shard(0..400).len() + shard(400..800).len()) as u64;
    let deadline = Instant::now() + Duration::from_secs(60);
    // But for both ends of each archive, which no sample needs.
    while loader.stats().prefetched.lake + loader.stats().prefetched.ram < bytes - (16 << 10) {
        assert!(Instant::now() < deadline, "{:?}", loader.stats());
        std::thread::yield_now();
    }
    let before = node.client.stats();
    while all.len() < 700 {
        all.extend(numbers(&loader.next_batch().unwrap().unwrap()));
    }
    let after = node.client.stats();
    let requests = after.requests - before.requests;
    // What the loader says to the node once a second, and two batches that were begun before.
    assert!(requests < 40, "{requests} questions for 170 batches");
    assert_eq!(after.copied_bytes, before.copied_bytes);
    all.extend(rest(&mut loader).into_iter().flatten());
    all.sort_unstable();
    assert_eq!(all, (0..800).collect::<Vec<_>>());
}

/// 16 samples of 128 KiB.
fn large_shard(number: usize) -> Vec<u8> {
    let mut tar = Vec::new();
    for sample in 0..16 {
        let content: Vec<u8> = (0..128 << 10)
            .map(|at| ((at * (number * 16 + sample + 1)) >> 8) as u8)
            .collect();
        fixture::member(&mut tar, &format!("{:04}.bin", number * 16 + sample), &content);
    }
    tar.extend_from_slice(&[0; 1024]);
    tar
}

#[test]
fn without_shuffling_what_comes_next_is_read_ahead_up_to_the_bound() {
    let node = TestNode::start();
    for number in 0..4 {
        node.put(&format!("lake/big/{number}.tar"), &large_shard(number));
    }
    node.open("lake/big/");
    let node = node.restart();
    let options = LoaderOptions {
        batch_size: 2,
        prefetch: Prefetch::Bytes(5 << 20),
        ..LoaderOptions::default()
    };
    let mut loader = node.open("lake/big/").loader(options).unwrap();
    let mut seen = Vec::new();
    let deadline = Instant::now() + Duration::from_secs(60);
    while let Some(batch) = loader.next_batch().unwrap() {
        seen.extend(batch.samples.iter().map(|sample| sample.number));
        let prefetched = |loader: &Loader| loader.stats().prefetched.lake + loader.stats().prefetched.ram;
        // Two shards fit into the bound.
        while seen.len() == 2 && prefetched(&loader) < 4 << 20 {
            assert!(Instant::now() < deadline, "{:?}", loader.stats());
            std::thread::yield_now();
        }
        let bound = seen.len() as u64 * (129 << 10) + (5 << 20);
        assert!(
            prefetched(&loader) <= bound,
            "{:?} after {}",
            loader.stats(),
            seen.len()
        );
    }
    assert_eq!(seen, (0..64).collect::<Vec<_>>());
}
