//! One save of one rank: what was asked for, how far it is, and who may end it.
//!
//! Life cycle: open while the client fills it; staged from `StageSave` on, which is the node's promise to go
//! on alone; then durable or failed, which never changes. The client's end is an [`OpenSave`] in its session:
//! dropped before it was staged, the save is given up. The work itself is in `work.rs`.
//!
//! Limits: parts, bytes of objects, and the queue between client and task.

mod bring;
mod open;
mod report;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use forebay_checkpoint::manifest::{Record, StepRef, Tree};
use forebay_checkpoint::names;
use forebay_core::{Clock, Error, Kind, Result};
use forebay_wire::Failure;
use forebay_wire::saves::{BeginSave, SavePhase, SaveState};
use parking_lot::Mutex;
use serde_json::{Map, Value};
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::fail_point::fail_point;
use super::file::StagedFile;
use super::new_save::Writer;
use super::record::StagedObject;
use super::run_lake::RunLake;
use super::staged_save::StagedSave;

pub(super) use bring::{object_kind, out_of_arena};
pub use open::OpenSave;

/// Files and objects that wait for the task; who brings more waits as well.
pub(super) const QUEUE_MAX: usize = 64;
/// A client that has copied everything waits no longer than this, counted from the beginning of the save, to
/// hear that its step is there already; after that the end of the save says so.
const LOOK_MAX: Duration = Duration::from_secs(1);
/// Pause before the lake is asked again, at first and at most.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Piece that the client brings.
#[derive(Debug)]
pub(super) enum Work {
    /// A data file.
    File(StagedFile),
    /// State that is not a tensor.
    Object(String, StagedObject),
}

/// See the top of this file.
#[derive(Debug)]
pub struct Save {
    /// Attempt, dot, rank.
    pub id: String,
    /// Request of the client.
    pub begin: BeginSave,
    /// Attempt, the same on all ranks.
    pub attempt: String,
    pub(super) lake: RunLake,
    pub(super) metadata: Map<String, Value>,
    pub(super) tree: Tree,
    /// Bytes of objects, at most: they are kept together until the end.
    pub(super) object_bytes_max: u64,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) begun: Duration,
    pub(super) deadline: Instant,
    /// Entry in the staging log, if it is not in memory alone.
    disk: Option<StagedSave>,
    /// True if an earlier incarnation of the node staged it.
    pub(super) is_resumed: bool,
    /// Process that filled it.
    writer: Writer,
    /// Told when what an earlier incarnation staged is needed: it may be in the lake already.
    pieces_wanted: Notify,
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
    base: Option<u32>,
    at_end: AtEnd,
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
    /// Time since which they are waited for.
    missing_since: Option<Duration>,
    last_error: Option<Failure>,
    /// Error to show while it waits for room on disk.
    no_room: Option<Failure>,
    why_stopped: Option<Error>,
    record: Option<Arc<Record>>,
}

/// Fate of the folder when the save has ended; the later variant wins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum AtEnd {
    Removed,
    /// The next incarnation of the node tries again.
    Left,
    /// It is damaged; a person may look at it.
    SetAside,
}

/// Immutable facts of a save.
#[derive(Debug)]
pub(super) struct SaveSpec {
    pub(super) id: String,
    pub(super) begin: BeginSave,
    pub(super) attempt: String,
    pub(super) lake: RunLake,
    pub(super) metadata: Map<String, Value>,
    pub(super) tree: Tree,
    pub(super) object_bytes_max: u64,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) deadline: Instant,
    pub(super) disk: Option<StagedSave>,
    /// The generation that was there when it began, if that is known.
    pub(super) base: Option<u32>,
    pub(super) is_resumed: bool,
    pub(super) writer: Writer,
}

impl Save {
    pub(super) fn new(spec: SaveSpec) -> (Arc<Self>, mpsc::Receiver<Work>) {
        let (work, queue) = mpsc::channel(QUEUE_MAX);
        let progress = Progress {
            phase: SavePhase::Open,
            work: Some(work),
            base: spec.base,
            at_end: AtEnd::Removed,
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
            missing_since: None,
            last_error: None,
            no_room: None,
            why_stopped: None,
            record: None,
        };
        let save = Self {
            id: spec.id,
            begin: spec.begin,
            attempt: spec.attempt,
            lake: spec.lake,
            metadata: spec.metadata,
            tree: spec.tree,
            object_bytes_max: spec.object_bytes_max,
            begun: spec.clock.monotonic(),
            clock: spec.clock,
            deadline: spec.deadline,
            disk: spec.disk,
            is_resumed: spec.is_resumed,
            writer: spec.writer,
            pieces_wanted: Notify::new(),
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

    /// The promise: from here on the node goes on alone. With a disk, what was brought is synced before.
    /// `AlreadyExists` if the step is there, as far as the lake has said so.
    pub async fn stage(&self) -> Result<SaveState> {
        self.looked().await;
        if let Some(disk) = self.disk.as_ref().filter(|_| !self.is_staged())
            && let Err(error) = disk.seal(self.base()).await
        {
            self.give_up(error.share());
            return Err(error);
        }
        fail_point("before-stage");
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

    /// Returns when the lake has said whether the step is there, the save has ended, or [`LOOK_MAX`] is over.
    async fn looked(&self) {
        let mut changed = self.changed.subscribe();
        let known = async {
            while self.base().is_none() && !self.has_stopped() {
                if changed.changed().await.is_err() {
                    return;
                }
            }
        };
        let since_begin = self.clock.monotonic().saturating_sub(self.begun);
        // A lake that does not answer is no reason to hold a trainer up.
        let _ = tokio::time::timeout(LOOK_MAX.saturating_sub(since_begin), known).await;
    }

    fn has_stopped(&self) -> bool {
        self.progress.lock().phase.is_over() || self.stop.is_cancelled()
    }

    /// Goes on where an earlier incarnation of the node had promised to; what was staged comes through the
    /// answer.
    pub(super) fn take_up(&self) -> Option<mpsc::Sender<Work>> {
        let mut progress = self.progress.lock();
        progress.phase = SavePhase::Staged;
        progress.staged_at = Some(self.begun);
        progress.work.take()
    }

    /// The generation that was there when it began, if that is known.
    pub(super) fn base(&self) -> Option<u32> {
        self.progress.lock().base
    }

    pub(super) fn set_base(&self, base: u32) {
        self.progress.lock().base = Some(base);
        self.tell();
    }

    /// Remembers a base that was found after the client may have handed the save over: the next incarnation
    /// needs it too.
    pub(super) async fn keep_base(&self, base: u32) {
        self.set_base(base);
        let Some(disk) = &self.disk else { return };
        if let Err(error) = disk.add_base(base).await {
            // The promise holds as it was; only a save that supersedes would have to be made again.
            tracing::warn!(save = self.id, %error, "what a staged save supersedes cannot be written down");
        }
    }

    /// Lets those who feed the save bring what an earlier incarnation staged.
    pub(super) fn want_pieces(&self) {
        self.pieces_wanted.notify_one();
    }

    /// Returns when the task asks for what an earlier incarnation staged.
    pub(super) async fn pieces_wanted(&self) {
        self.pieces_wanted.notified().await;
    }

    pub(super) fn disk(&self) -> Option<&StagedSave> {
        self.disk.as_ref()
    }

    /// Fails the save because its folder is damaged; the folder is set aside for a person.
    pub(super) fn spoil(&self, why: Error) {
        self.at_end(AtEnd::SetAside);
        self.give_up(why);
    }

    /// This incarnation of the node cannot finish it, but the promise holds: the next one tries again.
    pub(super) fn leave(&self, why: Error) {
        self.at_end(AtEnd::Left);
        self.give_up(why);
    }

    fn at_end(&self, at_end: AtEnd) {
        let mut progress = self.progress.lock();
        progress.at_end = progress.at_end.max(at_end);
    }

    pub(super) fn is_left(&self) -> bool {
        self.progress.lock().at_end == AtEnd::Left
    }

    /// Takes the folder away, because the save has ended. Blocks.
    pub(super) fn clear_disk(&self) {
        let at_end = self.progress.lock().at_end;
        match (&self.disk, at_end) {
            (Some(disk), AtEnd::Removed) => disk.remove(),
            (Some(disk), AtEnd::SetAside) => disk.set_aside(),
            (Some(_), AtEnd::Left) | (None, _) => {}
        }
    }

    /// Returns whether the client has handed it over.
    pub(super) fn is_staged(&self) -> bool {
        self.progress.lock().phase == SavePhase::Staged
    }

    /// Ends the work for this reason, unless it has ended.
    pub fn give_up(&self, why: Error) {
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
            progress.no_room = None;
            progress.ended_at = Some(self.clock.monotonic());
            match outcome {
                Ok(generation) => {
                    progress.phase = SavePhase::Durable;
                    progress.generation = generation;
                    progress.last_error = None;
                }
                Err(error) => {
                    progress.phase = SavePhase::Failed;
                    progress.last_error = Some(Failure::from(&error));
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
        match progress.no_room.as_ref().or(progress.last_error.as_ref()) {
            Some(last_error) => error.with(
                "last_error",
                format!("{}: {}", last_error.kind, last_error.message),
            ),
            None => error,
        }
    }

    /// Asks the lake again and again, until it answers or time is up; what cannot get better is an error at
    /// once.
    pub(super) async fn persist<T, F>(&self, what: &'static str, ask: impl Fn() -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let (mut pause, pause_max) = PAUSE;
        loop {
            let error = match ask().await {
                Ok(answer) => {
                    self.progress.lock().last_error = None;
                    return Ok(answer);
                }
                Err(error) if may_get_better(&error) && Instant::now() < self.deadline => error,
                Err(error) => return Err(error),
            };
            tracing::warn!(save = self.id, %error, what, "the lake failed a save; trying again");
            self.progress.lock().last_error = Some(Failure::from(&error));
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(pause_max);
        }
    }

    pub(super) fn set_record(&self, record: Record) {
        self.progress.lock().record = Some(Arc::new(record));
    }

    /// Returns what this rank wrote, while the commit has not been made.
    pub(super) fn record(&self) -> Option<Arc<Record>> {
        self.progress.lock().record.clone()
    }

    /// Why it failed.
    pub(super) fn failure(&self) -> Error {
        let progress = self.progress.lock();
        match (&progress.last_error, &progress.why_stopped, progress.phase) {
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
    pub async fn wait(&self, at_most: Duration) -> SaveState {
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
}

/// Returns whether trying again may help: it depends on the lake, not on what was asked.
fn may_get_better(error: &Error) -> bool {
    let is_told = error.kind() == Kind::Conflict;
    let is_local = matches!(error.kind(), Kind::Io | Kind::NoSpace | Kind::Changed);
    (error.is_retryable() && !is_told) || is_local
}

fn given_up() -> Error {
    Error::new(Kind::Cancelled, "the save was given up; nothing was committed")
}
