//! Saves over a lake that fails on purpose, without a socket.

use forebay_core::wire::{AlarmPolicy, Differential, ObjectName, SaveFile, SavePart, WrittenFrom};
use forebay_core::{BucketName, SystemClock};
use forebay_engine::{Consistency, Engine, EngineOptions, LakeOptions};
use forebay_lake::{Fault, Faulty, Lake, MemoryLake, Operation, SchedulerOptions};
use forebay_reservoir::{Reservoir, ReservoirOptions};

use super::*;

/// Long enough for any machine.
const LONG: Duration = Duration::from_secs(60);

struct World {
    saves: Arc<Saves>,
    faulty: Faulty,
    engine: Arc<Engine>,
    _dir: tempfile::TempDir,
}

async fn world(age_max: Duration) -> World {
    let dir = tempfile::tempdir().unwrap();
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let reservoir = Reservoir::open(ReservoirOptions {
        ram_bytes: 64 << 20,
        nvme_bytes: 0,
        nvme_dir: dir.path().join("nvme"),
        scrub_period: Duration::ZERO,
        read_ahead_bytes_max: 0,
        write_fill_bytes_max: 0,
        clock: Arc::clone(&clock),
    });
    let faulty = Faulty::new(Arc::new(MemoryLake::new()), 1);
    let lake: Arc<dyn Lake> = Arc::new(faulty.clone());
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
        reservoir: reservoir.await.unwrap(),
        clock: Arc::clone(&clock),
    });
    engine.create_bucket(&bucket()).await.unwrap();
    let options = SavesOptions {
        staging_bytes: 64 << 20,
        data_dir: None,
        age_max,
    };
    World {
        saves: Saves::new(options, clock),
        faulty,
        engine,
        _dir: dir,
    }
}

fn bucket() -> BucketName {
    BucketName::new("lake").unwrap()
}

impl World {
    fn new_save(&self, step: u64) -> NewSave {
        let begin = BeginSave {
            root: ObjectName {
                bucket: "lake".into(),
                key: "run".into(),
            },
            step,
            attempt: None,
            rank: 0,
            world_size: 1,
            supersede: false,
            staged: StagedIn::Ram,
            sha256: false,
            alarms: AlarmPolicy::Warn,
            reuse: true,
            differential: Differential::Off,
            deadline_ms: 60_000,
            metadata: "{}".into(),
            tree: "null".into(),
        };
        NewSave {
            begin,
            lake: self.lake(),
            attempt: names::attempt(step),
            metadata: Map::new(),
            tree: Value::Null,
        }
    }

    fn lake(&self) -> RunLake {
        RunLake::new(Arc::clone(&self.engine), bucket(), "run").unwrap()
    }

    async fn staged(&self, step: u64) -> Arc<Save> {
        let save = self.filled(step).await;
        assert_eq!(save.stage().await.unwrap().phase, SavePhase::Staged);
        save
    }

    /// A save that has a file.
    async fn filled(&self, step: u64) -> Arc<Save> {
        let save = self.saves.begin(self.new_save(step)).await.unwrap();
        let bytes = vec![step as u8; 1000];
        let part = SavePart {
            name: "w".into(),
            dtype: "U8".into(),
            tensor_shape: vec![1000],
            offset: vec![0],
            shape: vec![1000],
        };
        let file = SaveFile {
            save: save.id.clone(),
            from: WrittenFrom {
                buffer: 0,
                bytes: 1000,
                crc32c: None,
            },
            parts: vec![part],
        };
        save.add_file(file, bytes.into()).await.unwrap();
        save
    }
}

/// Waits until the state is as wanted.
async fn until(save: &Save, what: &str, is_so: impl Fn(&SaveState) -> bool) -> SaveState {
    let deadline = Instant::now() + LONG;
    loop {
        let state = save.state();
        if is_so(&state) {
            return state;
        }
        assert!(Instant::now() < deadline, "never: {what}; {state:?}");
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_lake_that_is_down_for_a_while_is_waited_for() {
    let world = world(Duration::ZERO).await;
    world
        .faulty
        .random(Operation::Put, 1.0, Fault::Error(Kind::Unavailable));
    let save = world.staged(1).await;
    let state = until(&save, "the trouble is seen", |state| state.trouble.is_some()).await;
    assert_eq!(state.phase, SavePhase::Staged);
    assert_eq!(world.saves.stats().staged_bytes, 1000);
    world.faulty.heal();
    let state = save.wait(LONG).await;
    assert_eq!(state.phase, SavePhase::Durable, "{state:?}");
    assert_eq!(state.trouble, None);
    assert_eq!(world.saves.stats().durable, 1);
}

#[tokio::test]
async fn an_error_that_cannot_get_better_ends_the_save() {
    let world = world(Duration::ZERO).await;
    world
        .faulty
        .random(Operation::Put, 1.0, Fault::Error(Kind::Denied));
    let save = world.staged(1).await;
    let state = save.wait(LONG).await;
    assert_eq!(state.phase, SavePhase::Failed);
    assert_eq!(state.trouble.unwrap().kind, "denied");
    assert!(world.lake().generations(1).await.unwrap().is_empty());
    assert_eq!(world.saves.stats().failed, 1);
}

#[tokio::test]
async fn a_commit_whose_answer_is_lost_is_found_to_be_ones_own() {
    let world = world(Duration::ZERO).await;
    // Every put is done and then said to have failed: also that of the manifest.
    for _ in 0..8 {
        world
            .faulty
            .script(Operation::Put, Fault::ErrorAfter(Kind::Unavailable));
    }
    let save = world.staged(1).await;
    let state = save.wait(LONG).await;
    assert_eq!(
        (state.phase, state.generation),
        (SavePhase::Durable, 1),
        "{state:?}"
    );
    assert!(world.faulty.hits() > 0);
}

#[tokio::test]
async fn no_save_is_taken_while_an_older_one_is_overdue() {
    let world = world(Duration::from_millis(1)).await;
    world
        .faulty
        .random(Operation::Put, 1.0, Fault::Error(Kind::Unavailable));
    let save = world.staged(1).await;
    until(&save, "it is old", |state| {
        state.age_ms > state.staged_ms.unwrap_or(0) + 1
    })
    .await;
    let error = world.saves.begin(world.new_save(2)).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Busy, "{error}");
    assert_eq!(world.saves.stats().refusals, 1);
    world.faulty.heal();
    assert_eq!(save.wait(LONG).await.phase, SavePhase::Durable);
    assert!(world.saves.begin(world.new_save(2)).await.is_ok());
}

#[tokio::test]
async fn a_stopping_node_finishes_what_is_staged_and_takes_nothing_more() {
    let world = world(Duration::ZERO).await;
    let save = world.staged(1).await;
    world.saves.finish().await;
    assert_eq!(save.state().phase, SavePhase::Durable);
    let error = world.saves.begin(world.new_save(2)).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable);
}

#[tokio::test]
async fn files_wait_until_nobody_copies_any_more() {
    let world = world(Duration::ZERO).await;
    let trainer = world.saves.opened(world.filled(1).await);
    // Another save is handed over meanwhile; its files wait as well.
    let save = world.staged(2).await;
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
    assert_eq!((trainer.save.state().files, save.state().files), (0, 0));
    trainer.save.stage().await.unwrap();
    let first = Arc::clone(&trainer.save);
    drop(trainer);
    assert_eq!(save.wait(LONG).await.phase, SavePhase::Durable);
    assert_eq!(first.wait(LONG).await.phase, SavePhase::Durable);
}

#[tokio::test]
async fn files_of_an_open_save_leave_a_full_arena() {
    let world = world(Duration::ZERO).await;
    let trainer = world.saves.opened(world.filled(1).await);
    world.saves.press();
    let state = until(&trainer.save, "the file is in the lake", |state| state.files == 1).await;
    assert_eq!(state.phase, SavePhase::Open);
}
