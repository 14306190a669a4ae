//! The pace against simulated lakes: what the lake accepts and refuses, by its own count.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use proptest::prelude::*;

use super::*;

/// Requests that the client has at the lake at once.
const WORKERS: usize = 64;

/// A lake that refuses what is too much for it.
enum SimulatedLake {
    /// So many a second, and so many at once after a pause.
    Bucket {
        per_s: f64,
        burst: f64,
        tokens: f64,
        at: f64,
    },
    /// So many in each second by the clock.
    Window { per_s: u32, second: u64, used: u32 },
}

impl SimulatedLake {
    fn bucket(per_s: f64, burst: f64) -> Self {
        Self::Bucket {
            per_s,
            burst,
            tokens: burst,
            at: 0.0,
        }
    }

    fn window(per_s: u32) -> Self {
        Self::Window {
            per_s,
            second: 0,
            used: 0,
        }
    }

    fn accepts(&mut self, now: Duration) -> bool {
        match self {
            Self::Bucket {
                per_s,
                burst,
                tokens,
                at,
            } => {
                let now = now.as_secs_f64();
                *tokens = (*tokens + (now - *at) * *per_s).min(*burst);
                *at = now;
                let is_accepted = *tokens >= 1.0;
                if is_accepted {
                    *tokens -= 1.0;
                }
                is_accepted
            }
            Self::Window { per_s, second, used } => {
                if now.as_secs() != *second {
                    (*second, *used) = (now.as_secs(), 0);
                }
                let is_accepted = *used < *per_s;
                *used += u32::from(is_accepted);
                is_accepted
            }
        }
    }
}

#[derive(Debug, Default)]
struct Seen {
    accepted: u32,
    accepted_late: u32,
    refused_late: u32,
}

impl Seen {
    fn refused_share(&self) -> f64 {
        f64::from(self.refused_late) / f64::from((self.refused_late + self.accepted_late).max(1))
    }
}

/// A client that always has work: each worker sends, waits for the answer, and sends again.
fn run(lake: &mut SimulatedLake, length: Duration, latency: Duration, seed: u64) -> Seen {
    let mut random = fastrand::Rng::with_seed(seed);
    let (mut rate, mut seen) = (Rate::default(), Seen::default());
    // (time, worker, refusals in a row); a request is at the lake at its time, its answer comes later.
    let mut ready: BinaryHeap<_> = (0..WORKERS)
        .map(|worker| Reverse((Duration::ZERO, worker, 0_u32)))
        .collect();
    let mut answers: BinaryHeap<Reverse<(Duration, usize, u32, bool)>> = BinaryHeap::new();
    loop {
        let next_ready = ready.peek().map(|Reverse((at, ..))| *at);
        let next_answer = answers.peek().map(|Reverse((at, ..))| *at);
        let now = next_ready
            .into_iter()
            .chain(next_answer)
            .min()
            .expect("work never ends");
        if now > length {
            return seen;
        }
        if next_answer == Some(now) {
            let Reverse((_, worker, refusals, is_accepted)) = answers.pop().expect("it was there");
            if is_accepted {
                rate.accepted(now);
                ready.push(Reverse((now, worker, 0)));
            } else {
                rate.refused(now, None);
                let backoff = Duration::from_millis(50 << refusals.min(5)).mul_f64(0.5 + random.f64() / 2.0);
                ready.push(Reverse((now + backoff, worker, refusals + 1)));
            }
            continue;
        }
        let Reverse((_, worker, refusals)) = ready.pop().expect("it was there");
        let at = rate.ready_at(now);
        if at > now {
            // Timers have a grain of a millisecond.
            let at = Duration::from_millis(u64::try_from(at.as_micros().div_ceil(1000)).expect("short"));
            ready.push(Reverse((
                at.max(now + Duration::from_micros(1)),
                worker,
                refusals,
            )));
            continue;
        }
        rate.take(now);
        let is_accepted = lake.accepts(now);
        let is_late = now >= Duration::from_secs(1);
        seen.accepted += u32::from(is_accepted);
        seen.accepted_late += u32::from(is_accepted && is_late);
        seen.refused_late += u32::from(!is_accepted && is_late);
        let latency = latency.mul_f64(0.5 + random.f64());
        answers.push(Reverse((now + latency, worker, refusals, is_accepted)));
    }
}

#[test]
fn a_throttled_lake_is_used_to_the_full_and_hardly_ever_refuses() {
    for per_s in [500_u32, 150] {
        for latency_ms in [1, 5, 20, 80] {
            let full = f64::from(per_s);
            let lakes = [
                ("hardly a burst", SimulatedLake::bucket(full, full / 30.0)),
                ("a burst of 0.1 s", SimulatedLake::bucket(full, full / 10.0)),
                ("a burst of 1 s", SimulatedLake::bucket(full, full)),
                ("seconds by the clock", SimulatedLake::window(per_s)),
            ];
            for (name, mut lake) in lakes {
                let length = Duration::from_secs(20);
                let seen = run(&mut lake, length, Duration::from_millis(latency_ms), 7);
                let used = f64::from(seen.accepted) / (full * length.as_secs_f64());
                let refused = seen.refused_share();
                let what =
                    format!("{per_s}/s, {name}, {latency_ms} ms: used {used:.3}, refused {refused:.3}");
                assert!(used >= 0.85 && refused <= 0.05, "{what}");
            }
        }
    }
}

#[test]
fn a_lake_that_refuses_nothing_is_not_limited() {
    let mut lake = SimulatedLake::bucket(1e9, 1e9);
    let seen = run(&mut lake, Duration::from_secs(2), Duration::from_millis(1), 1);
    assert!(seen.accepted > 2 * 50_000, "{seen:?}");
}

#[test]
fn a_lake_that_is_closed_for_a_while_gets_probes_and_then_its_pace_again() {
    let mut rate = Rate::default();
    let ms = Duration::from_millis;
    for at in 0..1000 {
        rate.accepted(ms(at));
    }
    rate.refused(ms(1000), None);
    let pace = rate.per_s().expect("limited");
    assert!((900.0..1000.0).contains(&pace), "{pace}");
    let mut sent = 0;
    for at in 1001..6000 {
        if rate.ready_at(ms(at)) <= ms(at) {
            rate.take(ms(at));
            rate.refused(ms(at + 1), None);
            sent += u64::from(at > 1500);
        }
    }
    assert!(rate.is_closed());
    assert!((10..=30).contains(&sent), "{sent} probes in 4.5 s");
    rate.accepted(ms(6001));
    assert!(!rate.is_closed() && rate.per_s().expect("limited") > 0.8 * pace);
}

#[test]
fn retry_after_is_kept_to_by_a_closed_lake_but_not_without_end() {
    for (said_s, waited_s) in [(5, 5), (3600, 30)] {
        let mut rate = Rate::default();
        rate.refused(Duration::from_secs(1), None);
        rate.refused(Duration::from_secs(2), Some(Duration::from_secs(said_s)));
        assert_eq!(
            rate.ready_at(Duration::from_secs(2)),
            Duration::from_secs(2 + waited_s)
        );
    }
}

#[test]
fn an_idle_client_does_not_earn_a_faster_pace() {
    let mut rate = Rate::default();
    let ms = Duration::from_millis;
    for at in 0..200 {
        rate.accepted(ms(at * 5));
    }
    rate.refused(ms(1000), None);
    let pace = rate.per_s();
    for at in 3..100 {
        rate.accepted(Duration::from_secs(at));
    }
    assert_eq!(rate.per_s(), pace);
}

proptest! {
    /// Whatever happens, the pace is a number, in its limits, and somebody who waits gets a turn.
    #[test]
    fn the_pace_stays_within_its_limits(events in prop::collection::vec((0_u8..4, 0_u64..2_000), 1..400)) {
        let (mut rate, mut now) = (Rate::default(), Duration::ZERO);
        for (event, pause_ms) in events {
            now += Duration::from_millis(pause_ms);
            match event {
                0 => rate.accepted(now),
                1 => rate.refused(now, None),
                2 => rate.refused(now, Some(Duration::from_millis(pause_ms * 100))),
                _ => rate.take(now),
            }
            if let Some(per_s) = rate.per_s() {
                prop_assert!((PER_S_MIN..=PER_S_MAX).contains(&per_s), "{per_s}");
            }
        }
        prop_assert!(rate.ready_at(now) <= now + RETRY_AFTER_MAX + Duration::from_secs(400));
    }
}
