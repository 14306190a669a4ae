//! Readers that share a `HEAD`, and those that must not.

use std::sync::atomic::AtomicUsize;
use std::task::{Context, Waker};

use forebay_core::{Error, Kind, ManualClock, Version};
use tokio::sync::oneshot;

use super::super::tests::{info, names};
use super::*;

const WINDOW: Demand = Demand::Within(Duration::from_secs(5));

struct Lake {
    freshness: Arc<Freshness>,
    clock: Arc<ManualClock>,
    heads: Arc<AtomicUsize>,
}

type Waiting = BoxFuture<'static, Result<Arc<ObjectInfo>>>;

impl Lake {
    fn new() -> Self {
        let clock = Arc::new(ManualClock::default());
        Self {
            freshness: Arc::new(Freshness::new(10, clock.clone())),
            clock,
            heads: Arc::default(),
        }
    }

    fn heads(&self) -> usize {
        self.heads.load(Ordering::Relaxed)
    }

    /// A reader whose own `HEAD`, if it sends one, is answered when the test says so.
    fn reader(&self, demand: Demand) -> (Waiting, oneshot::Sender<Result<Arc<ObjectInfo>>>) {
        let (answer, answered) = oneshot::channel();
        let (freshness, heads) = (Arc::clone(&self.freshness), Arc::clone(&self.heads));
        let waiting = async move {
            let (bucket, key) = names();
            let send = move |ask: Ask| async move {
                heads.fetch_add(1, Ordering::Relaxed);
                let info = answered.await.unwrap()?;
                ask.answered(Some(&info));
                Ok(info)
            };
            freshness.share_head(&bucket, &key, demand, send).await
        };
        (waiting.boxed(), answer)
    }
}

/// Polls so often that whatever can be sent was sent.
fn poll(waiting: &mut Waiting) {
    for _ in 0..3 {
        let polled = waiting.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(polled.is_pending());
    }
}

/// Polls once: a reader has come.
fn come(waiting: &mut Waiting) {
    let polled = waiting.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(polled.is_pending());
}

#[tokio::test]
async fn readers_within_the_window_join_a_head_that_was_sent() {
    let lake = Lake::new();
    let (mut first, answer) = lake.reader(WINDOW);
    poll(&mut first);
    let mut others: Vec<_> = (0..63).map(|_| lake.reader(WINDOW)).collect();
    others.iter_mut().for_each(|(waiting, _)| poll(waiting));
    answer.send(Ok(info("a"))).unwrap();
    assert_eq!(first.await.unwrap().version, Version::new("a"));
    for (waiting, _) in others {
        assert_eq!(waiting.await.unwrap().version, Version::new("a"));
    }
    assert_eq!(lake.heads(), 1);
}

#[tokio::test]
async fn a_head_that_is_older_than_the_window_is_not_joined() {
    let lake = Lake::new();
    let (mut first, _unanswered) = lake.reader(WINDOW);
    poll(&mut first);
    lake.clock.advance(Duration::from_secs(6));
    let (mut second, answer) = lake.reader(WINDOW);
    poll(&mut second);
    answer.send(Ok(info("b"))).unwrap();
    assert_eq!(second.await.unwrap().version, Version::new("b"));
    assert_eq!(lake.heads(), 2);
}

#[tokio::test]
async fn a_head_that_was_sent_before_a_write_never_answers_a_reader_after_it() {
    let lake = Lake::new();
    let (bucket, key) = names();
    let (mut early, old) = lake.reader(WINDOW);
    poll(&mut early);
    lake.freshness.begin_write(&bucket, &key).done(None);
    let (mut late, new) = lake.reader(WINDOW);
    poll(&mut late);
    old.send(Ok(info("old"))).unwrap();
    assert_eq!(early.await.unwrap().version, Version::new("old"));
    new.send(Ok(info("new"))).unwrap();
    assert_eq!(late.await.unwrap().version, Version::new("new"));
    let known = lake.freshness.fresh(&bucket, &key, Consistency::Immutable);
    assert_eq!(known.unwrap().version, Version::new("new"));
}

#[tokio::test]
async fn a_head_that_is_still_to_be_sent_answers_also_after_a_write() {
    let lake = Lake::new();
    let (bucket, key) = names();
    let (mut early, answer) = lake.reader(WINDOW);
    come(&mut early);
    lake.freshness.begin_write(&bucket, &key).done(None);
    let (mut late, _unsent) = lake.reader(WINDOW);
    come(&mut late);
    poll(&mut early);
    answer.send(Ok(info("new"))).unwrap();
    assert_eq!(late.await.unwrap().version, Version::new("new"));
    assert_eq!(lake.heads(), 1);
    assert!(
        lake.freshness
            .fresh(&bucket, &key, Consistency::Immutable)
            .is_some()
    );
}

#[tokio::test]
async fn who_wants_the_word_of_the_lake_now_joins_only_what_is_still_to_be_sent() {
    let lake = Lake::new();
    let (mut first, answer) = lake.reader(Demand::Now);
    let (mut second, _unsent) = lake.reader(Demand::Now);
    come(&mut first);
    come(&mut second);
    poll(&mut first);
    assert_eq!(lake.heads(), 1);
    let (mut third, own) = lake.reader(Demand::Now);
    poll(&mut third);
    assert_eq!(lake.heads(), 2);
    answer.send(Ok(info("a"))).unwrap();
    own.send(Ok(info("b"))).unwrap();
    assert_eq!(first.await.unwrap().version, Version::new("a"));
    assert_eq!(second.await.unwrap().version, Version::new("a"));
    assert_eq!(third.await.unwrap().version, Version::new("b"));
}

#[tokio::test]
async fn a_first_reader_that_leaves_neither_fails_nor_delays_the_others() {
    let lake = Lake::new();
    for leaves in [come, poll] {
        let (mut first, answer) = lake.reader(WINDOW);
        leaves(&mut first);
        let (mut second, _unsent) = lake.reader(WINDOW);
        come(&mut second);
        drop(first);
        let heads = lake.heads();
        tokio::spawn(async move { answer.send(Ok(info("a"))) });
        assert_eq!(second.await.unwrap().version, Version::new("a"));
        assert!(lake.heads() <= heads + 1);
        lake.freshness.outdate(&info("a"));
    }
    assert_eq!(lake.heads(), 2);
}

#[tokio::test]
async fn a_head_that_nobody_waits_for_any_more_is_forgotten() {
    let lake = Lake::new();
    let (mut first, _unanswered) = lake.reader(WINDOW);
    poll(&mut first);
    drop(first);
    let (bucket, key) = names();
    let name = (bucket, key);
    assert!(lake.freshness.stripe(&name).lock().heads.is_empty());
    let (mut second, answer) = lake.reader(WINDOW);
    poll(&mut second);
    answer
        .send(Err(Error::new(Kind::Unavailable, "no lake")))
        .unwrap();
    assert_eq!(second.await.unwrap_err().kind(), Kind::Unavailable);
    assert!(lake.freshness.stripe(&name).lock().heads.is_empty());
}

#[tokio::test]
async fn readers_that_find_a_version_gone_share_the_head_of_the_first() {
    let lake = Lake::new();
    let (bucket, key) = names();
    lake.freshness.begin_ask(&bucket, &key).answered(Some(&info("a")));
    let (mut before, _unanswered) = lake.reader(WINDOW);
    poll(&mut before);
    lake.freshness.outdate(&info("a"));
    let (mut first, answer) = lake.reader(WINDOW);
    poll(&mut first);
    lake.freshness.outdate(&info("a"));
    let (mut second, _unsent) = lake.reader(WINDOW);
    poll(&mut second);
    answer.send(Ok(info("b"))).unwrap();
    assert_eq!(first.await.unwrap().version, Version::new("b"));
    assert_eq!(second.await.unwrap().version, Version::new("b"));
    assert_eq!(lake.heads(), 2);
}
