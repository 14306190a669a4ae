//! The behaviour suite on lakes in memory, bare and behind the decorators.

use std::sync::Arc;
use std::time::Duration;

use forebay_lake::{Counted, Faulty, Lake, MemoryLake, Prefixed, ThrottleOptions, Throttled};
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
