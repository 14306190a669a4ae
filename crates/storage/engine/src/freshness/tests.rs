use std::time::SystemTime;

use forebay_core::ManualClock;
use forebay_lake::{Attributes, UpdateToken};

use super::*;

pub(super) fn names() -> (BucketName, ObjectKey) {
    (BucketName::new("bucket").unwrap(), ObjectKey::new("key").unwrap())
}

pub(super) fn info(version: &str) -> Arc<ObjectInfo> {
    let (bucket, key) = names();
    Arc::new(ObjectInfo {
        bucket,
        key,
        domain: forebay_reservoir::TrustDomain::DEFAULT,
        bytes: 1,
        version: Version::new(version),
        modified: SystemTime::UNIX_EPOCH,
        attributes: Attributes::default(),
        token: UpdateToken {
            etag: None,
            version: None,
        },
        checksums: Vec::new(),
        part_bytes: Vec::new(),
        tag_count: 0,
        id: std::sync::OnceLock::new(),
        source: crate::object::SourceCell::default(),
    })
}

const FIVE_SECONDS: Consistency = Consistency::RevalidateAfter(Duration::from_secs(5));

#[test]
fn an_answer_is_believed_until_it_is_too_old() {
    let clock = Arc::new(ManualClock::default());
    let freshness = Arc::new(Freshness::new(10, clock.clone()));
    let (bucket, key) = names();
    freshness.begin_ask(&bucket, &key).answered(Some(&info("a")));
    clock.advance(Duration::from_secs(5));
    assert!(freshness.fresh(&bucket, &key, FIVE_SECONDS).is_some());
    clock.advance(Duration::from_secs(1));
    assert!(freshness.fresh(&bucket, &key, FIVE_SECONDS).is_none());
    assert!(freshness.fresh(&bucket, &key, Consistency::Immutable).is_some());
    assert!(freshness.fresh(&bucket, &key, Consistency::Always).is_none());
}

#[test]
fn an_answer_that_was_asked_for_before_a_write_is_not_kept() {
    let freshness = Arc::new(Freshness::new(10, Arc::new(ManualClock::default())));
    let (bucket, key) = names();
    let ask = freshness.begin_ask(&bucket, &key);
    freshness.begin_write(&bucket, &key).done(Some(info("new")));
    ask.answered(Some(&info("old")));
    let known = freshness
        .fresh(&bucket, &key, FIVE_SECONDS)
        .expect("the write is known");
    assert_eq!(known.version, Version::new("new"));
}

#[test]
fn a_listing_is_enough_for_its_version_until_it_is_too_old() {
    let clock = Arc::new(ManualClock::default());
    let freshness = Arc::new(Freshness::new(10, clock.clone()));
    let (bucket, key) = names();
    let (a, b) = (Version::new("a"), Version::new("b"));
    freshness.begin_list().found(ObjectInfo::clone(&info("a")));
    let is_fresh = |wanted| {
        let found = freshness.fresh_version(&bucket, &key, FIVE_SECONDS, wanted);
        found.is_some()
    };
    assert!(is_fresh(Some(&a)) && !is_fresh(Some(&b)) && !is_fresh(None));
    assert!(freshness.fresh(&bucket, &key, FIVE_SECONDS).is_none());
    let always = freshness.fresh_version(&bucket, &key, Consistency::Always, Some(&a));
    assert!(always.is_none());
    clock.advance(Duration::from_secs(6));
    assert!(!is_fresh(Some(&a)));
}

#[test]
fn a_listing_that_a_write_has_overtaken_is_not_believed() {
    let freshness = Arc::new(Freshness::new(10, Arc::new(ManualClock::default())));
    let (bucket, key) = names();
    let is_fresh = || {
        let found = freshness.fresh_version(&bucket, &key, FIVE_SECONDS, Some(&Version::new("old")));
        found.is_some()
    };
    let listing = freshness.begin_list();
    freshness.begin_write(&bucket, &key).done(Some(info("new")));
    listing.found(ObjectInfo::clone(&info("old")));
    assert_eq!(
        freshness
            .fresh_version(&bucket, &key, FIVE_SECONDS, None)
            .map(|info| info.version.clone()),
        Some(Version::new("new"))
    );
    freshness.begin_list().found(ObjectInfo::clone(&info("old")));
    let write = freshness.begin_write(&bucket, &key);
    freshness.begin_list().found(ObjectInfo::clone(&info("old")));
    drop(write);
    assert!(!is_fresh());
    freshness.begin_list().found(ObjectInfo::clone(&info("old")));
    assert!(is_fresh());
    freshness.outdate(&info("old"));
    assert!(!is_fresh());
}

#[test]
fn of_two_writes_at_once_neither_is_believed() {
    let freshness = Arc::new(Freshness::new(10, Arc::new(ManualClock::default())));
    let (bucket, key) = names();
    let first = freshness.begin_write(&bucket, &key);
    let second = freshness.begin_write(&bucket, &key);
    second.done(Some(info("second")));
    first.done(Some(info("first")));
    assert!(freshness.fresh(&bucket, &key, Consistency::Immutable).is_none());
}

#[test]
fn what_was_seen_during_a_write_that_failed_is_not_believed() {
    let freshness = Arc::new(Freshness::new(10, Arc::new(ManualClock::default())));
    let (bucket, key) = names();
    let write = freshness.begin_write(&bucket, &key);
    let late = freshness.begin_ask(&bucket, &key);
    freshness.begin_ask(&bucket, &key).answered(Some(&info("old")));
    drop(write);
    late.answered(Some(&info("old")));
    assert!(freshness.fresh(&bucket, &key, Consistency::Immutable).is_none());
}
