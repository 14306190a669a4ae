//! Conditional deletes through the engine.

mod fixture;

use fixture::{Fixture, bucket, key};
use forebay_core::{Kind, Version};
use forebay_engine::{Consistency, DeleteCondition};

#[tokio::test]
async fn a_delete_asks_the_lake_and_not_the_cache() {
    let fixture = Fixture::new(Consistency::Immutable).await;
    fixture.put("a", fixture.random_bytes(10)).await;
    let seen = fixture.engine.head(&bucket(), &key("a")).await.unwrap().version;
    // Replaced behind the node's back: what the cache says would still fit.
    fixture.put_in_lake("a", fixture.random_bytes(11)).await;
    let condition = DeleteCondition::Version(seen);
    let refused = fixture.engine.delete_if(&bucket(), &key("a"), &condition).await;
    assert_eq!(refused.unwrap_err().kind(), Kind::PreconditionFailed);
    assert_eq!(fixture.get("a").await.len(), 11);
}

#[tokio::test]
async fn a_removed_object_is_gone_at_once() {
    let fixture = Fixture::new(Consistency::Immutable).await;
    for condition in [DeleteCondition::Exists, DeleteCondition::None] {
        fixture.put("a", fixture.random_bytes(10)).await;
        fixture
            .engine
            .delete_if(&bucket(), &key("a"), &condition)
            .await
            .unwrap();
        let head = fixture.engine.head(&bucket(), &key("a")).await;
        assert_eq!(head.unwrap_err().kind(), Kind::NotFound);
    }
}

#[tokio::test]
async fn a_condition_on_nothing_is_not_found() {
    let fixture = Fixture::new(Consistency::Immutable).await;
    for condition in [
        DeleteCondition::Exists,
        DeleteCondition::Version(Version::new("x")),
    ] {
        let refused = fixture
            .engine
            .delete_if(&bucket(), &key("nothing"), &condition)
            .await;
        assert_eq!(refused.unwrap_err().kind(), Kind::NotFound);
    }
    fixture.engine.delete(&bucket(), &key("nothing")).await.unwrap();
}

#[tokio::test]
async fn a_lake_that_cannot_decide_refuses_a_condition_and_keeps_the_object() {
    let fixture = Fixture::with_promises(Consistency::Immutable, false).await;
    fixture.put("a", fixture.random_bytes(10)).await;
    let version = fixture.engine.head(&bucket(), &key("a")).await.unwrap().version;
    for condition in [DeleteCondition::Exists, DeleteCondition::Version(version)] {
        let refused = fixture.engine.delete_if(&bucket(), &key("a"), &condition).await;
        assert_eq!(refused.unwrap_err().kind(), Kind::Unsupported);
    }
    assert_eq!(fixture.get("a").await.len(), 10);
    fixture.engine.delete(&bucket(), &key("a")).await.unwrap();
}
