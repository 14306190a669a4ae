//! An engine over a lake of a test, with a bucket.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use forebay_core::{BucketName, Clock};
use forebay_engine::{Consistency, Engine, EngineOptions, LakeOptions, LakeSources};
use forebay_lake::{Lake, SchedulerOptions};
use forebay_reservoir::{Reservoir, ReservoirOptions};

/// Asks the lake for everything, and keeps what it reads in RAM.
pub(crate) async fn engine_over(
    lake: Arc<dyn Lake>,
    folder: &Path,
    bucket: &BucketName,
    clock: Arc<dyn Clock>,
) -> Arc<Engine> {
    let reservoir = Reservoir::open(ReservoirOptions {
        ram_bytes: 128 << 20,
        nvme_bytes: 0,
        nvme_dir: folder.join("nvme"),
        scrub_period: Duration::ZERO,
        read_ahead_bytes_max: 0,
        write_fill_bytes_max: 0,
        fill_silence_max: ReservoirOptions::FILL_SILENCE_DEFAULT,
    });
    let engine = Engine::new(EngineOptions {
        lake: LakeOptions {
            lake,
            conditional_create: true,
            conditional_update: true,
            conditional_delete: true,
            scheduler: SchedulerOptions::default(),
        },
        consistency: Consistency::Always,
        buckets: Vec::new(),
        metadata_entries_max: 1000,
        sources: Arc::new(LakeSources),
        derived: vec![Arc::new(crate::StepViews::default())],
        reservoir: reservoir.await.unwrap(),
        clock,
    });
    engine.create_bucket(bucket).await.unwrap();
    engine
}
