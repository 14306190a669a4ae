//! The behaviour suite on lakes in memory, bare and behind the decorators.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use forebay_core::ObjectKey;
use forebay_lake::{Counted, Faulty, Lake, MemoryLake, Prefixed, PutOptions, ThrottleOptions, Throttled};
use forebay_testkit::{LakeTraits, lake_suite};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_behaves_like_a_lake() {
    lake_suite(Arc::new(MemoryLake::new()), LakeTraits::exact()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prefixed_memory_behaves_like_a_lake() {
    let prefixed = Prefixed::new(Arc::new(MemoryLake::new()), "bucket/");
    lake_suite(Arc::new(prefixed), LakeTraits::exact()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn decorators_without_effect_change_nothing() {
    let options = ThrottleOptions {
        latency: Duration::ZERO,
        bytes_per_s: Some(1 << 40),
    };
    let lake: Arc<dyn Lake> = Arc::new(MemoryLake::new());
    let lake = Faulty::new(Arc::new(Throttled::new(Arc::new(Counted::new(lake)), options)), 1);
    lake_suite(Arc::new(lake), LakeTraits::exact()).await;
}

#[tokio::test]
async fn prefixed_keys_lie_below_the_prefix_and_errors_show_them() {
    let memory = MemoryLake::new();
    let lake = Prefixed::new(Arc::new(memory.clone()), "bucket/");
    let key = ObjectKey::new("k").unwrap();
    lake.put(&key, Bytes::from_static(b"x"), PutOptions::default())
        .await
        .unwrap();
    assert!(memory.head(&ObjectKey::new("bucket/k").unwrap()).await.is_ok());
    assert_eq!(lake.head(&key).await.unwrap().key, key);
    let error = lake.head(&ObjectKey::new("absent").unwrap()).await.unwrap_err();
    assert!(error.to_string().contains("bucket/absent"), "{error}");
    assert!(
        lake.head(&ObjectKey::new(&"x".repeat(1020)).unwrap())
            .await
            .is_err(),
        "too long together"
    );
}
