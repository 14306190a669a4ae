//! One save of one rank: what was asked for, how far it is, and who may end it.
//!
//! Life cycle: open while the client fills it; staged from `StageSave` on, which is the node's promise to go on alone; then durable or failed, which never
//! changes. The client's end is an [`OpenSave`] in its session: dropped before it was staged, the save is given up. The work itself is in `work.rs`.
//!
//! Limits: parts, bytes of objects, and the queue between client and task.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use forebay_checkpoint::manifest::{Alarm, AlarmKind, ObjectKind, Record, StepRef};
use forebay_checkpoint::names;
use forebay_core::wire::{BeginSave, Failure, SaveFile, SavePhase, SaveState};
use forebay_core::{Clock, Error, Kind, Result};
use parking_lot::Mutex;
use serde_json::{Map, Value};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::file::StagedFile;
use super::record::StagedObject;
use super::run_lake::RunLake;

/// Files and objects that wait for the task; who brings more waits as well.
pub(super) const QUEUE_MAX: usize = 64;
/// Parts of one save.
const PARTS_MAX: usize = 1 << 20;
/// Small objects leave the arena at once.
const COPIED_BYTES_MAX: usize = 1 << 20;
/// How long to wait before the lake is asked again, at first and at most.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// What the client brings.
#[derive(Debug)]
pub(super) enum Work {
    /// A data file.
    File(StagedFile),
    /// State that is not a tensor.
    Object(String, StagedObject),
}

/// See the top of this file.
#[derive(Debug)]
pub(crate) struct Save {
    pub(crate) id: String,
    pub(crate) begin: BeginSave,
    pub(crate) attempt: String,
    pub(super) lake: RunLake,
    pub(super) metadata: Map<String, Value>,
    pub(super) tree: Value,
    /// Bytes of objects, at most: they are kept together until the end.
    pub(super) object_bytes_max: u64,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) begun: Duration,
    pub(super) deadline: Instant,
    progress: Mutex<Progress>,
    /// Goes up with each change of the phase.
    changed: watch::Sender<u64>,
    stop: CancellationToken,
}

#[derive(Debug)]
struct Progress {
    phase: SavePhase,
    /// Closed when the client has brought all.
    work: Option<mpsc::Sender<Work>>,
    generation: u32,
    bytes: u64,
    written_bytes: u64,
    reused_bytes: u64,
    encoded_bytes: u64,
    encoded_stored_bytes: u64,
    parent: Option<StepRef>,
    alarms: Vec<(String, String, String)>,
    parts: usize,
    next_file: u32,
    files: u32,
    object_bytes: u64,
    object_names: BTreeSet<String>,
    staged_at: Option<Duration>,
    ended_at: Option<Duration>,
    /// Ranks whose records are not there, while that is what is waited for.
    missing_ranks: Option<String>,
    trouble: Option<Failure>,
    why_stopped: Option<Error>,
    record: Option<Arc<Record>>,
}

/// What a save is made of.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) id: String,
    pub(super) begin: BeginSave,
    pub(super) attempt: String,
    pub(super) lake: RunLake,
    pub(super) metadata: Map<String, Value>,
    pub(super) tree: Value,
    pub(super) object_bytes_max: u64,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) deadline: Instant,
}

impl Save {
    pub(super) fn new(parts: Parts) -> (Arc<Self>, mpsc::Receiver<Work>) {
        let (work, queue) = mpsc::channel(QUEUE_MAX);
        let progress = Progress {
            phase: SavePhase::Open,
            work: Some(work),
            generation: 0,
            bytes: 0,
            written_bytes: 0,
            reused_bytes: 0,
            encoded_bytes: 0,
            encoded_stored_bytes: 0,
            parent: None,
            alarms: Vec::new(),
            parts: 0,
            next_file: 0,
            files: 0,
            object_bytes: 0,
            object_names: BTreeSet::new(),
            staged_at: None,
            ended_at: None,
            missing_ranks: None,
            trouble: None,
            why_stopped: None,
            record: None,
        };
        let save = Self {
            id: parts.id,
            begin: parts.begin,
            attempt: parts.attempt,
            lake: parts.lake,
            metadata: parts.metadata,
            tree: parts.tree,
            object_bytes_max: parts.object_bytes_max,
            begun: parts.clock.monotonic(),
            clock: parts.clock,
            deadline: parts.deadline,
            progress: Mutex::new(progress),
            changed: watch::Sender::new(0),
            stop: CancellationToken::new(),
        };
        (Arc::new(save), queue)
    }

    /// The path of a file of this attempt.
    pub(super) fn path(&self, name: &str) -> String {
        names::attempt_file(self.begin.step, &self.attempt, name)
    }

    /// Takes a full file from the client; waits while many wait already.
    pub(crate) async fn add_file(&self, file: SaveFile, bytes: Bytes) -> Result<()> {
        let number = {
            let mut progress = self.progress.lock();
            let number = progress.next_file;
            progress.next_file += 1;
            number
        };
        let staged = StagedFile::new(number, bytes, file.parts)?;
        {
            let mut progress = self.progress.lock();
            if progress.parts + staged.parts() > PARTS_MAX {
                let message =
                    "a rank saves more parts of tensors than a save takes; save fewer or larger tensors";
                return Err(Error::new(Kind::InvalidInput, message).with("parts_max", PARTS_MAX));
            }
            progress.parts += staged.parts();
            progress.bytes += staged.bytes();
        }
        self.bring(Work::File(staged)).await
    }

    /// Takes an object from the client.
    pub(crate) async fn add_object(&self, name: String, kind: &str, bytes: Bytes) -> Result<()> {
        let kind = match kind {
            "json" => ObjectKind::Json,
            "bytes" => ObjectKind::Bytes,
            "pickle" => ObjectKind::Pickle,
            _ => {
                let message = "an object is json, bytes or pickle";
                return Err(Error::new(Kind::InvalidInput, message).with("kind", kind));
            }
        };
        {
            let mut progress = self.progress.lock();
            let object_bytes = progress.object_bytes + bytes.len() as u64;
            if object_bytes > self.object_bytes_max {
                let message = "the objects of a rank are too large together; save the large ones as tensors of bytes, or raise the node's staging memory";
                return Err(Error::new(Kind::InvalidInput, message)
                    .with("object", name)
                    .with("bytes", object_bytes)
                    .with("bytes_max", self.object_bytes_max));
            }
            if progress.parts >= PARTS_MAX || !progress.object_names.insert(name.clone()) {
                let message = "an object was saved twice, or there are too many; give each its own name";
                return Err(Error::new(Kind::InvalidInput, message).with("object", name));
            }
            progress.parts += 1;
            progress.object_bytes = object_bytes;
            progress.bytes += bytes.len() as u64;
        }
        let bytes = match bytes.len() {
            0..=COPIED_BYTES_MAX => Bytes::copy_from_slice(&bytes),
            _ => bytes,
        };
        self.bring(Work::Object(name, StagedObject { kind, bytes })).await
    }

    async fn bring(&self, work: Work) -> Result<()> {
        let sender = self.progress.lock().work.clone();
        match sender {
            Some(sender) if sender.send(work).await.is_ok() => Ok(()),
            _ => Err(self.failure()),
        }
    }

    /// The promise: from here on the node goes on alone.
    pub(crate) fn stage(&self) -> Result<SaveState> {
        {
            let mut progress = self.progress.lock();
            match progress.phase {
                SavePhase::Open => {
                    progress.phase = SavePhase::Staged;
                    progress.staged_at = Some(self.clock.monotonic());
                    progress.work = None;
                }
                SavePhase::Failed => {
                    drop(progress);
                    return Err(self.failure());
                }
                SavePhase::Staged | SavePhase::Durable => {}
            }
        }
        self.tell();
        Ok(self.state())
    }

    /// Whether the client has handed it over.
    pub(super) fn is_staged(&self) -> bool {
        self.progress.lock().phase == SavePhase::Staged
    }

    /// Ends the work for this reason, unless it has ended.
    pub(crate) fn give_up(&self, why: Error) {
        {
            let mut progress = self.progress.lock();
            if progress.phase.is_over() || progress.why_stopped.is_some() {
                return;
            }
            progress.why_stopped = Some(why);
            progress.work = None;
        }
        self.stop.cancel();
    }

    /// Returns when somebody gave the save up, and says why.
    pub(super) async fn given_up(&self) -> Error {
        self.stop.cancelled().await;
        let why = self.progress.lock().why_stopped.as_ref().map(Error::share);
        why.unwrap_or_else(given_up)
    }

    /// The end. Says whether it failed.
    pub(super) fn end(&self, outcome: Result<u32>) {
        {
            let mut progress = self.progress.lock();
            progress.work = None;
            progress.record = None;
            progress.object_names.clear();
            progress.missing_ranks = None;
            progress.ended_at = Some(self.clock.monotonic());
            match outcome {
                Ok(generation) => {
                    progress.phase = SavePhase::Durable;
                    progress.generation = generation;
                    progress.trouble = None;
                }
                Err(error) => {
                    progress.phase = SavePhase::Failed;
                    progress.trouble = Some(Failure::from(&error));
                }
            }
        }
        self.tell();
    }

    /// Time is up: what was missing.
    pub(super) fn overdue(&self) -> Error {
        let progress = self.progress.lock();
        let error = match (&progress.missing_ranks, progress.phase) {
            (Some(ranks), _) => {
                let message = "ranks did not save their share within the deadline; nothing was committed";
                Error::new(Kind::Timeout, message).with("ranks", ranks)
            }
            (None, SavePhase::Open) => Error::new(
                Kind::Timeout,
                "the save was not handed over within its deadline and was given up; save again, with a longer one",
            ),
            _ => Error::new(
                Kind::Timeout,
                "the save did not reach the lake within its deadline; nothing was committed",
            ),
        };
        match &progress.trouble {
            Some(trouble) => error.with("trouble", &trouble.message),
            None => error,
        }
    }

    /// Asks the lake again and again, until it answers or time is up; what cannot get better is an error at once.
    pub(super) async fn persist<T, F>(&self, what: &'static str, ask: impl Fn() -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let (mut pause, pause_max) = PAUSE;
        loop {
            let error = match ask().await {
                Ok(answer) => {
                    self.progress.lock().trouble = None;
                    return Ok(answer);
                }
                Err(error) if may_get_better(&error) && Instant::now() < self.deadline => error,
                Err(error) => return Err(error),
            };
            tracing::warn!(save = self.id, %error, what, "the lake failed a save; trying again");
            self.progress.lock().trouble = Some(Failure::from(&error));
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(pause_max);
        }
    }

    pub(super) fn count_file(&self, bytes: u64) {
        let mut progress = self.progress.lock();
        progress.files += 1;
        progress.written_bytes += bytes;
    }

    pub(super) fn count_written(&self, bytes: u64) {
        self.progress.lock().written_bytes += bytes;
    }

    pub(super) fn count_reused(&self, bytes: u64) {
        self.progress.lock().reused_bytes += bytes;
    }

    /// Counts a file of differences.
    pub(super) fn count_encoded(&self, bytes: u64, stored_bytes: u64) {
        self.count_file(stored_bytes);
        let mut progress = self.progress.lock();
        progress.encoded_bytes += bytes;
        progress.encoded_stored_bytes += stored_bytes;
    }

    pub(super) fn set_parent(&self, parent: StepRef) {
        self.progress.lock().parent = Some(parent);
    }

    pub(super) fn set_alarms(&self, alarms: &[Alarm]) {
        let plain = |alarm: &Alarm| {
            let kind = match alarm.kind {
                AlarmKind::Zeroed => "zeroed",
                AlarmKind::Stale => "stale",
                AlarmKind::NotFinite => "not_finite",
            };
            (kind.to_owned(), alarm.name.clone(), alarm.message.clone())
        };
        self.progress.lock().alarms = alarms.iter().map(plain).collect();
    }

    pub(super) fn wait_for_ranks(&self, missing: Option<String>) {
        self.progress.lock().missing_ranks = missing;
    }

    pub(super) fn set_record(&self, record: Record) {
        self.progress.lock().record = Some(Arc::new(record));
    }

    /// What this rank wrote, while the commit has not been made.
    pub(super) fn record(&self) -> Option<Arc<Record>> {
        self.progress.lock().record.clone()
    }

    /// Why it failed.
    pub(super) fn failure(&self) -> Error {
        let progress = self.progress.lock();
        match (&progress.trouble, &progress.why_stopped, progress.phase) {
            (Some(failure), _, SavePhase::Failed) => Error::from(failure.clone()),
            (_, Some(why), _) => why.share(),
            _ => Error::new(
                Kind::InvalidInput,
                "the save was handed over already; begin another one",
            ),
        }
        .with("save", &self.id)
    }

    fn tell(&self) {
        self.changed.send_modify(|changes| *changes += 1);
    }

    /// Waits until it is over, at most so long.
    pub(crate) async fn wait(&self, at_most: Duration) -> SaveState {
        let mut changed = self.changed.subscribe();
        let over = async {
            while !self.progress.lock().phase.is_over() {
                if changed.changed().await.is_err() {
                    return;
                }
            }
        };
        // What it is by then is the answer in any case.
        let _ = tokio::time::timeout(at_most, over).await;
        self.state()
    }

    /// What is known about it.
    pub(crate) fn state(&self) -> SaveState {
        let since =
            |time: Duration| u64::try_from(time.saturating_sub(self.begun).as_millis()).unwrap_or(u64::MAX);
        let progress = self.progress.lock();
        SaveState {
            id: self.id.clone(),
            root: self.begin.root.clone(),
            step: self.begin.step,
            attempt: self.attempt.clone(),
            rank: self.begin.rank,
            world_size: self.begin.world_size,
            phase: progress.phase,
            staged: self.begin.staged,
            generation: progress.generation,
            parent: progress.parent.map(|parent| (parent.step, parent.generation)),
            bytes: progress.bytes,
            written_bytes: progress.written_bytes,
            reused_bytes: progress.reused_bytes,
            encoded_bytes: progress.encoded_bytes,
            encoded_stored_bytes: progress.encoded_stored_bytes,
            files: progress.files,
            age_ms: since(self.clock.monotonic()),
            staged_ms: progress.staged_at.map(since),
            ended_ms: progress.ended_at.map(since),
            alarms: progress.alarms.clone(),
            trouble: progress.trouble.clone(),
        }
    }
}

/// Whether trying again may help: it depends on the lake, not on what was asked.
fn may_get_better(error: &Error) -> bool {
    let is_told = error.kind() == Kind::Conflict;
    let is_local = matches!(error.kind(), Kind::Io | Kind::NoSpace | Kind::Changed);
    (error.is_retryable() && !is_told) || is_local
}

fn given_up() -> Error {
    Error::new(Kind::Cancelled, "the save was given up; nothing was committed")
}

/// The client's end of a save. Dropping it before the save was staged gives the save up.
#[derive(Debug)]
pub(crate) struct OpenSave(pub(crate) Arc<Save>);

impl Drop for OpenSave {
    fn drop(&mut self) {
        if self.0.state().phase == SavePhase::Open {
            self.0.give_up(Error::new(
                Kind::Cancelled,
                "the client ended before it handed the save over; nothing was committed",
            ));
        }
    }
}
