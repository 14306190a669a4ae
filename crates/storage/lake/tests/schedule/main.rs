//! The read scheduler on lakes that misbehave.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test may panic, also outside its test function"
)]

mod permits;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use forebay_core::{ByteRange, Kind, ObjectKey, Result, Version};
use forebay_lake::{
    ByteStream, Counted, Fault, Faulty, FetchPriority, Lake, MemoryLake, Operation, PutOptions,
    ReadScheduler, RetryPolicy, SchedulerOptions,
};
use forebay_testkit::{patterned, read_all};
use futures::StreamExt;

const PART: u64 = 1 << 20;

/// An object in a lake that can misbehave, and a scheduler in front of it.
struct Bench {
    faulty: Faulty,
    memory: MemoryLake,
    scheduler: Arc<ReadScheduler>,
    key: ObjectKey,
    version: Version,
    body: Bytes,
}

fn options() -> SchedulerOptions {
    let retry = RetryPolicy {
        attempts_max: 5,
        backoff_first: Duration::from_millis(1),
        backoff_max: Duration::from_millis(4),
        deadline: Duration::from_secs(30),
    };
    SchedulerOptions {
        part_bytes: PART,
        retry,
        stall_max: Duration::from_secs(60),
        ..SchedulerOptions::default()
    }
}

/// For lakes that stall: the time after which the scheduler asks again is waited for in full.
fn impatient() -> SchedulerOptions {
    SchedulerOptions {
        stall_max: Duration::from_secs(1),
        ..options()
    }
}

impl Bench {
    async fn new(bytes: usize, options: SchedulerOptions) -> Self {
        let memory = MemoryLake::new();
        let body = patterned(bytes, 42);
        let key = ObjectKey::new("k").unwrap();
        let version = memory
            .put(&key, body.clone(), PutOptions::default())
            .await
            .unwrap()
            .version;
        let faulty = Faulty::new(Arc::new(memory.clone()), 7);
        let scheduler = ReadScheduler::new(Arc::new(faulty.clone()), options);
        Self {
            faulty,
            memory,
            scheduler,
            key,
            version,
            body,
        }
    }

    fn fetch_as(&self, start: u64, end: u64, priority: FetchPriority) -> ByteStream {
        let range = ByteRange::new(start, end).unwrap();
        self.scheduler
            .fetch(&self.key, &self.version, self.body.len() as u64, range, priority)
            .unwrap()
    }

    async fn read(&self, start: u64, end: u64) -> Result<Bytes> {
        read_all(self.fetch_as(start, end, FetchPriority::Demand)).await
    }

    async fn assert_reads(&self, start: u64, end: u64) {
        let found = self.read(start, end).await.unwrap();
        assert!(
            found == self.body.slice(start as usize..end as usize),
            "{start}..{end}"
        );
    }
}

#[tokio::test]
async fn any_range_comes_back_exact_and_in_order() {
    let bench = Bench::new(10 * PART as usize + 17, options()).await;
    let end = bench.body.len() as u64;
    for (start, end) in [
        (0, end),
        (0, 1),
        (end - 1, end),
        (PART - 1, PART + 1),
        (PART / 2, 7 * PART + 3),
        (3, end - 3),
    ] {
        bench.assert_reads(start, end).await;
    }
    let stats = bench.scheduler.stats();
    assert_eq!(
        (stats.in_flight, stats.retries, stats.throttled),
        (0, 0, 0),
        "{stats:?}"
    );
}

#[tokio::test]
async fn a_range_past_the_end_is_out_of_range() {
    let bench = Bench::new(100, options()).await;
    let range = ByteRange::new(50, 101).unwrap();
    let refused = bench
        .scheduler
        .fetch(&bench.key, &bench.version, 100, range, FetchPriority::Demand);
    assert_eq!(refused.err().map(|error| error.kind()), Some(Kind::OutOfRange));
}

#[tokio::test]
async fn an_error_storm_is_survived() {
    // Enough tries that a part hardly ever has only failures.
    let mut patient = options();
    patient.retry.attempts_max = 20;
    let bench = Bench::new(20 * PART as usize, patient).await;
    for kind in [Kind::Unavailable, Kind::Timeout, Kind::Throttled] {
        bench.faulty.random(Operation::Get, 0.1, Fault::Error(kind));
    }
    bench.assert_reads(0, 20 * PART).await;
    let stats = bench.scheduler.stats();
    assert_eq!(stats.retries as usize, bench.faulty.hits(), "{stats:?}");
    assert!(stats.retries > 0, "{stats:?}");
}

#[tokio::test]
async fn a_lake_that_stays_down_is_an_error_after_the_allowed_tries() {
    let bench = Bench::new(1000, options()).await;
    bench
        .faulty
        .random(Operation::Get, 1.0, Fault::Error(Kind::Unavailable));
    let error = bench.read(0, 1000).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable);
    assert_eq!(bench.scheduler.stats().requests, 5, "{error:?}");
}

#[tokio::test]
async fn an_empty_retry_budget_ends_reads_at_the_first_error() {
    let bench = Bench::new(
        1000,
        SchedulerOptions {
            retry_tokens_max: 2,
            ..options()
        },
    )
    .await;
    bench
        .faulty
        .random(Operation::Get, 1.0, Fault::Error(Kind::Unavailable));
    for _ in 0..4 {
        assert!(bench.read(0, 1000).await.is_err());
    }
    assert_eq!(bench.scheduler.stats().requests, 4 + 2);
}

#[tokio::test]
async fn short_bodies_resume_at_the_last_good_byte() {
    let memory = MemoryLake::new();
    let key = ObjectKey::new("k").unwrap();
    let body = patterned(PART as usize, 1);
    let version = memory
        .put(&key, body.clone(), PutOptions::default())
        .await
        .unwrap()
        .version;
    let counted = Counted::new(Arc::new(memory));
    let counters = Arc::clone(counted.counters());
    let faulty = Faulty::new(Arc::new(counted), 1);
    for after_bytes in [0, 1, 300_000, 400_000] {
        faulty.script(Operation::Get, Fault::ShortBody { after_bytes });
    }
    let scheduler = ReadScheduler::new(Arc::new(faulty), options());
    let range = ByteRange::whole(PART).unwrap();
    let stream = scheduler
        .fetch(&key, &version, PART, range, FetchPriority::Demand)
        .unwrap();
    assert!(read_all(stream).await.unwrap() == body);
    let stats = scheduler.stats();
    assert_eq!(
        (stats.requests, stats.retries, stats.bytes),
        (5, 4, PART),
        "{stats:?}"
    );
    assert_eq!(counters.snapshot().requests_of(Operation::Get), 5);
}

#[tokio::test]
async fn a_stalled_body_is_asked_for_again() {
    let bench = Bench::new(PART as usize, impatient()).await;
    bench
        .faulty
        .script(Operation::Get, Fault::StallBody { after_bytes: 1000 });
    bench.assert_reads(0, PART).await;
    assert_eq!(bench.scheduler.stats().retries, 1);
}

#[tokio::test]
async fn a_stalled_request_is_asked_again_and_shrinks_the_window() {
    let bench = Bench::new(PART as usize, impatient()).await;
    bench.faulty.script(Operation::Get, Fault::Stall);
    let window = bench.scheduler.stats().window;
    bench.assert_reads(0, PART).await;
    let stats = bench.scheduler.stats();
    assert!(stats.window < window, "{stats:?}");
    assert_eq!(stats.retries, 1);
}

#[tokio::test]
async fn time_outs_shrink_the_window_and_successes_grow_it_back() {
    let bench = Bench::new(
        PART as usize,
        SchedulerOptions {
            in_flight_max: 8,
            ..options()
        },
    )
    .await;
    bench.faulty.script(Operation::Get, Fault::Error(Kind::Timeout));
    bench.assert_reads(0, PART).await;
    assert_eq!(bench.scheduler.stats().window, 5);
    for _ in 0..30 {
        bench.assert_reads(0, 10).await;
    }
    assert_eq!(bench.scheduler.stats().window, 8);
}

#[tokio::test]
async fn throttling_sets_a_pace_and_leaves_the_window() {
    let bench = Bench::new(PART as usize, options()).await;
    bench.faulty.script(Operation::Get, Fault::Error(Kind::Throttled));
    let window = bench.scheduler.stats().window;
    bench.assert_reads(0, PART).await;
    let stats = bench.scheduler.stats();
    assert_eq!((stats.window, stats.throttled), (window, 1));
    assert_eq!(bench.scheduler.admission().stats().refused, 1);
}

#[tokio::test]
async fn an_object_replaced_between_parts_is_changed_and_never_mixed() {
    let bench = Bench::new(
        8 * PART as usize,
        SchedulerOptions {
            parts_ahead_max: 1,
            ..options()
        },
    )
    .await;
    let (memory, key) = (bench.memory.clone(), bench.key.clone());
    let replace = move || {
        let (memory, key) = (memory.clone(), key.clone());
        let write = async move {
            memory
                .put(&key, patterned(8 << 20, 43), PutOptions::default())
                .await
                .map(drop)
                .unwrap();
        };
        Box::pin(write) as futures::future::BoxFuture<'static, ()>
    };
    bench.faulty.script(
        Operation::Get,
        Fault::Hook {
            after_bytes: 1000,
            hook: Arc::new(replace),
        },
    );
    let mut stream = bench.fetch_as(0, 8 * PART, FetchPriority::Demand);
    let mut read = 0;
    let error = loop {
        match stream
            .next()
            .await
            .expect("a replaced object does not end like a whole one")
        {
            Ok(chunk) => {
                assert!(
                    chunk == bench.body.slice(read..read + chunk.len()),
                    "mixed at {read}"
                );
                read += chunk.len();
            }
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), Kind::Changed, "{error:?}");
    assert!(stream.next().await.is_none(), "an error ends the stream");
}

#[tokio::test]
async fn a_wrong_object_size_is_changed() {
    let bench = Bench::new(1000, options()).await;
    let range = ByteRange::new(0, 10).unwrap();
    let stream = bench
        .scheduler
        .fetch(&bench.key, &bench.version, 999, range, FetchPriority::Demand)
        .unwrap();
    assert_eq!(read_all(stream).await.unwrap_err().kind(), Kind::Changed);
    assert_eq!(bench.scheduler.stats().requests, 1, "asking again would not help");
}

#[tokio::test]
async fn a_late_request_is_hedged_and_the_hedge_wins() {
    let bench = Bench::new(2 * PART as usize, options()).await;
    for _ in 0..64 {
        bench.assert_reads(0, PART).await;
    }
    bench.faulty.script(Operation::Get, Fault::Stall);
    bench.assert_reads(100, 1100).await;
    let stats = bench.scheduler.stats();
    assert_eq!(
        (stats.hedges, stats.hedges_won, stats.hedged_bytes),
        (1, 1, 1000),
        "{stats:?}"
    );
    assert_eq!((stats.retries, stats.in_flight), (0, 0));
}

#[tokio::test]
async fn nothing_is_hedged_beyond_a_hundredth_of_the_bytes() {
    let bench = Bench::new(PART as usize, impatient()).await;
    for _ in 0..64 {
        bench.assert_reads(0, 1000).await;
    }
    bench.faulty.script(Operation::Get, Fault::Stall);
    bench.assert_reads(0, 641).await;
    let stats = bench.scheduler.stats();
    assert_eq!((stats.hedges, stats.retries), (0, 1), "{stats:?}");
}
