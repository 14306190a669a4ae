//! Order in which requests get the permits of the lake.

use std::time::Duration;

use forebay_core::{ByteRange, Kind};
use forebay_lake::{Fault, FetchPriority, FetchUrgency, Operation, SchedulerOptions};
use forebay_testkit::{read_all, until};
use futures::StreamExt;

use super::{Bench, PART, options};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_at_the_lake_never_exceed_the_limit() {
    let bench = Bench::new(
        16 * PART as usize,
        SchedulerOptions {
            in_flight_max: 3,
            ..options()
        },
    )
    .await;
    for _ in 0..3 {
        bench.faulty.script(Operation::Get, Fault::Stall);
    }
    let reads: Vec<_> = (0..6)
        .map(|_| tokio::spawn(read_all(bench.fetch_as(0, 16 * PART, FetchPriority::Demand))))
        .collect();
    until("three requests stall", || bench.faulty.stalled() == 3).await;
    let stats = bench.scheduler.stats();
    assert_eq!((stats.in_flight, stats.requests), (3, 3), "{stats:?}");
    bench.faulty.release();
    for read in reads {
        assert!(read.await.unwrap().unwrap() == bench.body);
    }
    assert_eq!(bench.scheduler.stats().in_flight, 0);
}

#[tokio::test]
async fn demand_overtakes_waiting_read_ahead() {
    let one_at_a_time = SchedulerOptions {
        in_flight_max: 1,
        ..options()
    };
    let bench = Bench::new(1000, one_at_a_time).await;
    bench.faulty.script(Operation::Get, Fault::Stall);
    let first = bench.fetch_as(0, 1, FetchPriority::Demand);
    until("the lake is busy", || bench.faulty.stalled() == 1).await;
    // The read-ahead waits first, and would stall if it were let in first.
    bench.faulty.script(Operation::Get, Fault::Error(Kind::NotFound));
    let ahead = bench.fetch_as(1, 2, FetchPriority::ReadAhead);
    tokio::task::yield_now().await;
    let demand = bench.fetch_as(2, 3, FetchPriority::Demand);
    tokio::task::yield_now().await;
    bench.faulty.release();
    assert!(read_all(first).await.is_ok());
    assert_eq!(
        read_all(demand).await.unwrap_err().kind(),
        Kind::NotFound,
        "demand is the next request"
    );
    assert!(read_all(ahead).await.is_ok(), "read-ahead comes after it");
}

#[tokio::test]
async fn read_ahead_that_somebody_waits_for_overtakes_other_read_ahead() {
    let one_at_a_time = SchedulerOptions {
        in_flight_max: 1,
        ..options()
    };
    let bench = Bench::new(1000, one_at_a_time).await;
    bench.faulty.script(Operation::Get, Fault::Stall);
    let first = bench.fetch_as(0, 1, FetchPriority::Demand);
    until("the lake is busy", || bench.faulty.stalled() == 1).await;
    bench.faulty.script(Operation::Get, Fault::Error(Kind::NotFound));
    let other = bench.fetch_as(1, 2, FetchPriority::ReadAhead);
    let (raise, raised) = tokio::sync::oneshot::channel::<()>();
    let wanted = FetchUrgency::read_ahead_until(async move { drop(raised.await) });
    let range = ByteRange::new(2, 3).unwrap();
    let wanted = bench
        .scheduler
        .fetch(&bench.key, &bench.version, 1000, range, wanted)
        .unwrap();
    tokio::task::yield_now().await;
    raise.send(()).unwrap();
    tokio::task::yield_now().await;
    bench.faulty.release();
    assert!(read_all(first).await.is_ok());
    assert_eq!(
        read_all(wanted).await.unwrap_err().kind(),
        Kind::NotFound,
        "what was raised is the next request"
    );
    assert!(read_all(other).await.is_ok(), "the other one comes after it");
    assert_eq!(bench.scheduler.stats().in_flight, 0);
}

#[tokio::test]
async fn dropping_the_stream_frees_its_places() {
    let bench = Bench::new(
        8 * PART as usize,
        SchedulerOptions {
            in_flight_max: 2,
            ..options()
        },
    )
    .await;
    bench.faulty.random(Operation::Get, 1.0, Fault::Stall);
    let stream = bench.fetch_as(0, 8 * PART, FetchPriority::ReadAhead);
    until("a request is at the lake", || {
        bench.scheduler.stats().in_flight > 0
    })
    .await;
    drop(stream);
    until("no request is at the lake", || {
        bench.scheduler.stats().in_flight == 0
    })
    .await;
    bench.faulty.heal();
    bench.assert_reads(0, 8 * PART).await;
}

#[tokio::test]
async fn a_slow_reader_holds_only_the_allowed_parts() {
    let bench = Bench::new(
        20 * PART as usize,
        SchedulerOptions {
            parts_ahead_max: 3,
            ..options()
        },
    )
    .await;
    let mut stream = bench.fetch_as(0, 20 * PART, FetchPriority::Demand);
    let first = stream.next().await.unwrap().unwrap();
    until("the parts ahead are read", || {
        bench.scheduler.stats().bytes >= 2 * PART
    })
    .await;
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
    let stats = bench.scheduler.stats();
    assert!(stats.requests <= 3 && stats.bytes <= 3 * PART, "{stats:?}");
    let rest = read_all(stream).await.unwrap();
    assert!([first, rest].concat() == bench.body);
}

#[tokio::test]
async fn a_full_waiting_room_is_busy() {
    let options = SchedulerOptions {
        in_flight_max: 1,
        waiting_max: 1,
        ..options()
    };
    let bench = Bench::new(100, options).await;
    bench.faulty.script(Operation::Get, Fault::Stall);
    let _first = bench.fetch_as(0, 1, FetchPriority::Demand);
    until("the lake is busy", || bench.faulty.stalled() == 1).await;
    let second = bench.fetch_as(1, 2, FetchPriority::Demand);
    tokio::task::yield_now().await;
    assert_eq!(bench.read(2, 3).await.unwrap_err().kind(), Kind::Busy);
    bench.faulty.release();
    assert!(read_all(second).await.is_ok());
}

/// It hung: the later parts held all permits while they waited for the reader, who waited for the first part.
#[tokio::test]
async fn parts_that_wait_for_their_reader_do_not_keep_an_earlier_part_from_the_lake() {
    let mut tight = options();
    (tight.part_bytes, tight.in_flight_max, tight.chunks_waiting_max) = (4 * PART, 1, 1);
    let bench = Bench::new(16 * PART as usize, tight).await;
    let after_bytes = PART + 1;
    bench
        .faulty
        .script(Operation::Get, Fault::ShortBody { after_bytes });
    let read = bench.assert_reads(0, 16 * PART);
    tokio::time::timeout(Duration::from_secs(20), read).await.unwrap();
}
