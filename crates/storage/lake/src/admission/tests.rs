//! Requests of many workers on the same way to a lake that throttles or goes away; the clock is tokio's.

use futures::future::join_all;

use super::*;
use crate::schedule::{FetchPriority, FetchUrgency};

fn options(patience: Duration) -> AdmissionOptions {
    AdmissionOptions {
        patience,
        ..AdmissionOptions::default()
    }
}

/// Sends one request until it succeeds or is given up.
async fn request(
    admission: &Arc<Admission>,
    key: &str,
    lake: impl Fn() -> Result<(), Error>,
) -> Result<(), Error> {
    let urgency = FetchUrgency::from(FetchPriority::Demand);
    let mut attempts = admission.attempts(key);
    loop {
        let permit = attempts.enter(&urgency).await?;
        tokio::time::sleep(Duration::from_millis(5)).await;
        let Err(error) = lake() else {
            attempts.answered();
            attempts.succeeded();
            return Ok(());
        };
        drop(permit);
        attempts.failed(error, Repeat::Yes)?;
        attempts.backoff().await;
    }
}

fn refusal() -> Error {
    Error::new(Kind::Throttled, "slow down")
}

fn absence() -> Error {
    Error::new(Kind::Unavailable, "cannot connect to the lake")
}

#[tokio::test(start_paused = true)]
async fn three_thousand_requests_to_a_throttled_lake_all_succeed_and_few_are_refused() {
    for per_s in [500_u64, 150] {
        let admission = Admission::new("test", options(Duration::from_secs(300)));
        let began = Instant::now();
        // Accepted in this second, and refused after the first one.
        let seen = Mutex::new((0_u64, 0_u64, 0_u64));
        let lake = || {
            let second = began.elapsed().as_secs();
            let mut seen = seen.lock();
            if seen.0 != second {
                (seen.0, seen.1) = (second, 0);
            }
            if seen.1 < per_s {
                seen.1 += 1;
                return Ok(());
            }
            seen.2 += u64::from(second > 0);
            Err(refusal())
        };
        let ends = join_all((0..3000).map(|_| request(&admission, "train/x", lake))).await;
        assert!(
            ends.iter().all(Result::is_ok),
            "{:?}",
            ends.iter().find(|end| end.is_err())
        );
        let (elapsed, refused) = (began.elapsed().as_secs_f64(), seen.lock().2);
        let used = 3000.0 / per_s as f64 / elapsed;
        assert!(
            used >= 0.85,
            "{per_s}/s: {used:.2} of the lake's rate in {elapsed:.1} s"
        );
        assert!(
            refused <= 150,
            "{per_s}/s: {refused} refused after the first second"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn an_outage_of_a_minute_is_waited_for() {
    let admission = Admission::new("test", options(Duration::from_secs(300)));
    let began = Instant::now();
    let requests = AtomicU64::new(0);
    let lake = || {
        if began.elapsed() < Duration::from_secs(60) {
            requests.fetch_add(
                u64::from(began.elapsed() > Duration::from_secs(1)),
                Ordering::Relaxed,
            );
            Err(absence())
        } else {
            Ok(())
        }
    };
    let look = async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert!(
            matches!(admission.condition(), LakeCondition::Away { .. }),
            "{:?}",
            admission.stats()
        );
        assert!(admission.stats().waiting > 0);
    };
    let (ends, ()) = tokio::join!(join_all((0..500).map(|_| request(&admission, "k", lake))), look);
    assert!(
        ends.iter().all(Result::is_ok),
        "{:?}",
        ends.iter().find(|end| end.is_err())
    );
    assert!(began.elapsed() < Duration::from_secs(65), "{:?}", began.elapsed());
    assert_eq!(
        (admission.stats().outages, admission.condition()),
        (1, LakeCondition::Well)
    );
    let probes = requests.load(Ordering::Relaxed);
    assert!(
        (20..100).contains(&probes),
        "{probes} requests while the lake was away"
    );
}

#[tokio::test(start_paused = true)]
async fn patience_ends() {
    let admission = Admission::new("test", options(Duration::from_secs(20)));
    let began = Instant::now();
    let error = request(&admission, "k", || Err(absence())).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable);
    let waited = began.elapsed().as_secs();
    assert!((18..=25).contains(&waited), "{waited} s: {error}");
    let refused = request(&admission, "k", || Err(refusal())).await.unwrap_err();
    assert_eq!(refused.kind(), Kind::Throttled, "{refused}");
}

#[tokio::test(start_paused = true)]
async fn an_error_of_one_request_does_not_use_up_the_patience_for_all() {
    let admission = Admission::new("test", options(Duration::from_secs(3600)));
    let began = Instant::now();
    let broken = || Err(Error::new(Kind::Unavailable, "internal error").with("status", 500));
    let error = request(&admission, "k", broken).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable);
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    assert_eq!(admission.condition(), LakeCondition::Well);
}

#[tokio::test(start_paused = true)]
async fn without_patience_an_open_breaker_fails_at_once() {
    let admission = Admission::new("test", options(Duration::ZERO));
    assert!(request(&admission, "k", || Err(absence())).await.is_err());
    let began = Instant::now();
    assert!(matches!(admission.condition(), LakeCondition::Away { .. }));
    let error = request(&admission, "k", || Ok(())).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable);
    assert_eq!(began.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn one_prefix_that_is_throttled_does_not_slow_another() {
    let admission = Admission::new("test", options(Duration::from_secs(60)));
    let other = (0..100)
        .map(|i| format!("p{i}/x"))
        .find(|key| admission.attempts(key).group() != admission.attempts("hot/x").group());
    let other = other.expect("there are several groups");
    let calls = AtomicU64::new(0);
    let first_refused = || match calls.fetch_add(1, Ordering::Relaxed) {
        0 => Err(refusal()),
        _ => Ok(()),
    };
    request(&admission, "hot/x", first_refused).await.unwrap();
    let began = Instant::now();
    join_all((0..1000).map(|_| request(&admission, &other, || Ok(())))).await;
    assert!(
        began.elapsed() < Duration::from_millis(200),
        "{:?}",
        began.elapsed()
    );
}
