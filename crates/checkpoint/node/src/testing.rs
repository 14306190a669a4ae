//! Fixture of the saver's tests: nodes without sockets, over one lake that fails on purpose. A node that
//! dies drops its tasks where they are, as kill -9 would; the next one on its folder goes on.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use forebay_checkpoint::manifest::Tree;
use forebay_checkpoint::{Manifest, names};
use forebay_core::{BucketName, Clock, Result, SystemClock};
use forebay_engine::Engine;
use forebay_lake::{Faulty, MemoryLake};
use forebay_reservoir::Staging;
use forebay_reservoir::staging_log::StagingLog;
use forebay_wire::ObjectName;
use forebay_wire::saves::{
    AlarmPolicy, BeginSave, Differential, SaveFile, SavePart, SavePhase, SaveState, StagedIn,
};
use forebay_wire::writes::StagedBytes;
use serde_json::Map;
use tokio::time::Instant;

use super::new_save::{NewSave, Writer};
use super::resume::{LeftBehind, resume};
use super::run_lake::RunLake;
use super::save::Save;
use super::saves::{Saves, SavesOptions};
use crate::test_engine::engine_over;

/// Long enough for any machine.
pub(super) const LONG: Duration = Duration::from_secs(60);
const STAGING_BYTES: u64 = 64 << 20;

/// A lake, and folders of nodes.
pub(super) struct World {
    pub(super) faulty: Faulty,
    pub(super) engine: Arc<Engine>,
    clock: Arc<dyn Clock>,
    dir: tempfile::TempDir,
}

fn bucket() -> BucketName {
    BucketName::new("lake").unwrap()
}

impl World {
    pub(super) async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let faulty = Faulty::new(Arc::new(MemoryLake::new()), 1);
        let lake = Arc::new(faulty.clone());
        let engine = engine_over(lake, dir.path(), &bucket(), Arc::clone(&clock)).await;
        Self {
            faulty,
            engine,
            clock,
            dir,
        }
    }

    pub(super) fn lake(&self) -> RunLake {
        RunLake::new(Arc::clone(&self.engine), bucket(), "run").unwrap()
    }

    /// The data folder of a node.
    pub(super) fn folder(&self, node: &str) -> PathBuf {
        let folder = self.dir.path().join(node);
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }

    /// A node that has forgotten everything but does not take up what lies in its folder.
    pub(super) fn node(&self, node: &str) -> Arc<Saves> {
        self.saves(self.options(node))
    }

    /// One that takes nothing new while a save is older than that.
    pub(super) fn node_with(&self, node: &str, age_max: Duration) -> Arc<Saves> {
        self.saves(SavesOptions {
            age_max,
            ..self.options(node)
        })
    }

    /// One that has so much room for saves on its disk.
    pub(super) fn node_with_disk(&self, node: &str, disk_bytes_max: u64) -> Arc<Saves> {
        self.saves(SavesOptions {
            staging_log: Some(self.staging_log(node, disk_bytes_max)),
            ..self.options(node)
        })
    }

    fn options(&self, node: &str) -> SavesOptions {
        SavesOptions {
            staging_bytes: STAGING_BYTES,
            staging_log: Some(self.staging_log(node, u64::MAX)),
            age_max: Duration::ZERO,
        }
    }

    /// The staging log of a node, as it opens it after a start.
    pub(super) fn staging_log(&self, node: &str, bytes_max: u64) -> Arc<StagingLog> {
        StagingLog::new(self.folder(node).join("saves"), bytes_max)
    }

    fn saves(&self, options: SavesOptions) -> Arc<Saves> {
        Saves::new(options, Arc::clone(&self.clock))
    }

    /// The next incarnation of a node.
    pub(super) async fn restarted(&self, node: &str) -> Arc<Saves> {
        let saves = self.node(node);
        self.take_up(&saves, &Staging::new(STAGING_BYTES)).await;
        saves
    }

    /// Lets a node take up what lies in its folder, through this arena.
    pub(super) async fn take_up(&self, saves: &Arc<Saves>, staging: &Arc<Staging>) {
        let left_behind = LeftBehind::scan(saves).await.unwrap();
        resume(saves, &self.engine, staging, left_behind);
    }

    /// The newest commit of a step, after a look at every byte that it names.
    pub(super) async fn whole_step(&self, step: u64) -> Manifest {
        let lake = self.lake();
        let generation = *lake.generations(step).await.unwrap().last().unwrap();
        let bytes = lake.read(&names::manifest(step, generation)).await.unwrap();
        let manifest = Manifest::decode(&bytes.unwrap()).unwrap();
        let content = &manifest.content;
        for file in &content.files {
            let info = lake.head(&file.path).await.unwrap().expect(&file.path);
            assert_eq!(info.bytes, file.bytes, "{}", file.path);
        }
        for table in &content.tables {
            let bytes = lake.read(&table.path).await.unwrap().expect(&table.path);
            assert_eq!(blake3::hash(&bytes).to_hex().as_str(), table.blake3);
        }
        for (name, tensor) in &content.tensors {
            for part in &tensor.parts {
                let [first, end] = part.bytes.range;
                let path = &content.files[part.bytes.file as usize].path;
                let bytes = lake.read_range(path, first..end).await.unwrap();
                let digest = blake3::hash(&bytes).to_hex().to_string();
                assert_eq!(digest, part.bytes.blake3, "{name} in {path}");
            }
        }
        manifest
    }

    /// Returns whether any commit of the step is there.
    pub(super) async fn is_visible(&self, step: u64) -> bool {
        !self.lake().generations(step).await.unwrap().is_empty()
    }
}

/// One rank of a save.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rank {
    pub(super) step: u64,
    pub(super) rank: u32,
    pub(super) world_size: u32,
    pub(super) staged: StagedIn,
    pub(super) supersede: bool,
    pub(super) deadline: Duration,
    /// The attempt is made from the step and this.
    pub(super) attempt: u64,
    /// Bytes of a tensor that is the same in every step.
    pub(super) frozen_bytes: usize,
}

/// Bytes of the tensor that each step has anew.
pub(super) const FRESH_BYTES: usize = 1000;

impl Rank {
    /// A world of one, in memory.
    pub(super) fn alone(step: u64) -> Self {
        Self {
            step,
            rank: 0,
            world_size: 1,
            staged: StagedIn::Ram,
            supersede: false,
            deadline: LONG,
            attempt: 0,
            frozen_bytes: 0,
        }
    }

    /// One of several, on disk.
    pub(super) fn of(step: u64, rank: u32, world_size: u32) -> Self {
        Self {
            rank,
            world_size,
            staged: StagedIn::Nvme,
            ..Self::alone(step)
        }
    }

    pub(super) fn attempt(&self) -> String {
        names::attempt(self.step * 1000 + self.attempt)
    }

    /// The path of a file of this attempt.
    pub(super) fn path(&self, name: &str) -> String {
        names::attempt_file(self.step, &self.attempt(), name)
    }

    pub(super) fn begin(&self) -> BeginSave {
        BeginSave {
            root: ObjectName {
                bucket: "lake".into(),
                key: "run".into(),
            },
            step: self.step,
            attempt: Some(self.attempt()),
            rank: self.rank,
            world_size: self.world_size,
            supersede: self.supersede,
            staged: self.staged,
            sha256: false,
            alarms: AlarmPolicy::Warn,
            reuse: true,
            differential: Differential::Off,
            deadline_ms: self.deadline.as_millis() as u64,
            metadata: "{}".into(),
            tree: "null".into(),
        }
    }

    pub(super) fn new_save(&self, world: &World) -> NewSave {
        NewSave {
            begin: self.begin(),
            lake: world.lake(),
            attempt: self.attempt(),
            metadata: Map::new(),
            tree: Tree::default(),
            writer: Writer::OtherProcess,
        }
    }

    /// Begins it and brings what it has.
    pub(super) async fn filled(&self, world: &World, saves: &Arc<Saves>) -> Arc<Save> {
        self.try_filled(world, saves).await.unwrap()
    }

    /// The same, if the node takes it.
    pub(super) async fn try_filled(&self, world: &World, saves: &Arc<Saves>) -> Result<Arc<Save>> {
        let save = saves.begin(self.new_save(world)).await?;
        let fresh = (format!("w{}", self.rank), vec![self.step as u8 + 1; FRESH_BYTES]);
        let frozen = (
            format!("frozen{}", self.rank),
            vec![self.rank as u8 + 1; self.frozen_bytes],
        );
        for (name, bytes) in [fresh, frozen] {
            if bytes.is_empty() {
                continue;
            }
            let part = SavePart {
                name,
                dtype: "U8".into(),
                tensor_shape: vec![bytes.len() as u64],
                offset: vec![0],
                shape: vec![bytes.len() as u64],
            };
            let file = SaveFile {
                save: save.id.clone(),
                from: StagedBytes {
                    buffer: 0,
                    bytes: bytes.len() as u64,
                    crc32c: None,
                },
                parts: vec![part],
            };
            save.add_file(file, bytes.into()).await?;
        }
        Ok(save)
    }

    /// Hands it over.
    pub(super) async fn staged(&self, world: &World, saves: &Arc<Saves>) -> Arc<Save> {
        let save = self.filled(world, saves).await;
        assert_eq!(save.stage().await.unwrap().phase, SavePhase::Staged);
        save
    }

    /// Hands it over, waits for its record in the lake, and lets its node die.
    pub(super) async fn recorded_and_dead(&self, world: &World, node: &str) {
        let saves = world.node(node);
        self.staged(world, &saves).await;
        let path = self.path(&names::record_file(self.rank));
        let lake = world.lake();
        eventually("the record is written", async || {
            lake.head(&path).await.unwrap().is_some()
        })
        .await;
        saves.die().await;
    }
}

/// Waits until the state is as wanted.
pub(super) async fn until(save: &Save, what: &str, is_so: impl Fn(&SaveState) -> bool) -> SaveState {
    eventually(what, async || is_so(&save.state())).await;
    save.state()
}

/// Waits until something is so.
pub(super) async fn eventually(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + LONG;
    while !is_so().await {
        assert!(Instant::now() < deadline, "never: {what}");
        tokio::task::yield_now().await;
    }
}

/// It has become durable.
pub(super) async fn durable(save: &Save) -> SaveState {
    let state = save.wait(LONG).await;
    assert_eq!(state.phase, SavePhase::Durable, "{state:?}");
    state
}
