//! All saves that this node knows: those under way, and the last ones that ended.
//!
//! Ranks of one attempt are siblings: when one fails, no commit can come of the others, so they end at once
//! and name it. A stopping node takes no new saves and waits for those that were staged.
//!
//! Limits: saves under way, ended ones that are remembered, files that are hashed at once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use forebay_checkpoint::manifest::Tree;
use forebay_core::{Clock, Error, Kind, Result};
use forebay_reservoir::staging_log::StagingLog;
use forebay_wire::saves::{BeginSave, SavePhase, SaveState, StagedIn};
use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit, mpsc, watch};
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::Instant;

use super::copy_gate::CopyGate;
use super::new_save::{NewSave, Writer};
use super::run_lake::RunLake;
use super::save::{OpenSave, Save, SaveSpec, Work};
use super::staged_save::{FoundSave, SavedPiece, StagedSave};
use super::stats::{self, Counters, SaveStats};
use super::work;

/// Saves under way.
const SAVES_MAX: usize = 256;
/// Saves that ended and are remembered.
const ENDED_MAX: usize = 256;
/// The largest data file …
const FILE_BYTES_MAX: u64 = 256 << 20;
/// … and how many of them the arena should hold: one is filled while others are hashed and written.
const FILES_IN_ARENA: u64 = 4;
/// Deadlines, at most: a lease must end some day.
const DEADLINE_MAX: Duration = Duration::from_secs(7 * 24 * 3600);

/// See the top of this file.
#[derive(Debug)]
pub struct Saves {
    clock: Arc<dyn Clock>,
    options: SavesOptions,
    counters: Counters,
    state: Mutex<SavesTable>,
    hashing: Semaphore,
    /// One save of an earlier incarnation at a time has memory beside the arena.
    pub(super) overflow: Arc<Semaphore>,
    copy_gate: Arc<CopyGate>,
    /// Goes up when a record is written or a save ends.
    news: watch::Sender<u64>,
}

/// Options and budgets of the saver.
#[derive(Debug, Clone)]
pub struct SavesOptions {
    /// The staging memory of clients.
    pub staging_bytes: u64,
    /// Log for saves staged on disk; `None` if the data folder does not outlive the node.
    pub staging_log: Option<Arc<StagingLog>>,
    /// While a save is staged longer, no further ones are taken; zero is never.
    pub age_max: Duration,
}

#[derive(Debug, Default)]
struct SavesTable {
    by_id: BTreeMap<String, Arc<Save>>,
    /// Ids in the order in which they began.
    order: Vec<String>,
    /// Names of saves that are about to begin.
    beginning: BTreeSet<String>,
    running: JoinSet<()>,
    is_closed: bool,
}

impl Saves {
    /// A saver without saves.
    pub fn new(options: SavesOptions, clock: Arc<dyn Clock>) -> Arc<Self> {
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        Arc::new(Self {
            clock,
            counters: Counters::default(),
            state: Mutex::default(),
            hashing: Semaphore::new(cores),
            overflow: Arc::new(Semaphore::new(1)),
            options,
            copy_gate: CopyGate::new(),
            news: watch::Sender::new(0),
        })
    }

    /// Bytes of one data file, at most.
    pub fn file_bytes_max(&self) -> u64 {
        FILE_BYTES_MAX
            .min(self.options.staging_bytes / FILES_IN_ARENA)
            .max(1)
    }

    /// Begins a save. Whether its step is there already is looked up by its task, while the client copies:
    /// [`Save::stage`] says so.
    pub async fn begin(self: &Arc<Self>, new: NewSave) -> Result<Arc<Save>> {
        let NewSave {
            begin,
            lake,
            attempt,
            metadata,
            tree,
            writer,
        } = new;
        let id = format!("{attempt}.{}", begin.rank);
        let deadline = Duration::from_millis(begin.deadline_ms).min(DEADLINE_MAX);
        self.check_age()?;
        // Two of one name must not share a folder.
        let _name = self.reserve(&id)?;
        let disk = self.stage_on_disk(&id, &attempt, &begin).await?;
        let (save, queue) = Save::new(SaveSpec {
            id,
            begin,
            attempt,
            lake,
            metadata,
            tree,
            object_bytes_max: self.file_bytes_max(),
            clock: Arc::clone(&self.clock),
            deadline: Instant::now() + deadline,
            disk,
            base: None,
            is_resumed: false,
            writer,
        });
        if let Err(error) = self.admit(&save, queue) {
            save.clear_disk();
            return Err(error);
        }
        Ok(save)
    }

    /// Keeps a name for a save that is about to begin; `Conflict` if it is taken.
    fn reserve(&self, id: &str) -> Result<Reserved<'_>> {
        let mut state = self.state.lock();
        state.check_is_new(id)?;
        state.beginning.insert(id.to_owned());
        Ok(Reserved {
            saves: self,
            id: id.to_owned(),
        })
    }

    /// Starts the task.
    fn admit(self: &Arc<Self>, save: &Arc<Save>, queue: mpsc::Receiver<Work>) -> Result<()> {
        let mut state = self.state.lock();
        state.check_may_begin(save)?;
        state.add(save);
        let task = work::run(Arc::clone(self), Arc::clone(save), queue);
        state.running.spawn(task);
        Ok(())
    }

    /// Makes the entry of a save in the staging log, unless it is staged in memory.
    async fn stage_on_disk(&self, id: &str, attempt: &str, begin: &BeginSave) -> Result<Option<StagedSave>> {
        let log = match (begin.staged, &self.options.staging_log) {
            (StagedIn::Ram, _) => return Ok(None),
            (StagedIn::Nvme, Some(log)) => Arc::clone(log),
            (StagedIn::Nvme, None) => {
                let message = "the data folder of this node goes with it, so nothing can be staged there; give the node a data folder, or stage in ram";
                return Err(Error::new(Kind::Unsupported, message));
            }
        };
        let (id, attempt, begin) = (id.to_owned(), attempt.to_owned(), begin.clone());
        let made = spawn_blocking(move || StagedSave::create(&log, &id, &attempt, &begin)).await;
        made.map_err(|why| Error::new(Kind::Internal, "an entry was not made").caused_by(why))?
            .map(Some)
    }

    /// Saves that an earlier incarnation staged.
    pub(super) async fn replay(&self) -> Result<Vec<FoundSave>> {
        let Some(log) = self.options.staging_log.clone() else {
            return Ok(Vec::new());
        };
        let found = spawn_blocking(move || StagedSave::replay(&log)).await;
        found.map_err(|why| Error::new(Kind::Internal, "a scan was stopped").caused_by(why))?
    }

    /// Goes on with a save that an earlier incarnation of the node had staged; `feed` brings its pieces.
    /// `Conflict`, and nothing is done, if a client has begun one of this name meanwhile.
    pub(super) fn take_up<F>(
        self: &Arc<Self>,
        found: FoundSave,
        lake: RunLake,
        feed: impl FnOnce(Arc<Save>, mpsc::Sender<Work>, Vec<SavedPiece>) -> F,
    ) -> Result<()>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let FoundSave {
            staged,
            document,
            pieces,
        } = found;
        let damaged = |why| Error::new(Kind::Corrupt, "a staged save cannot be read").caused_by(why);
        let deadline = Duration::from_millis(document.begin.deadline_ms).min(DEADLINE_MAX);
        let (save, queue) = Save::new(SaveSpec {
            metadata: serde_json::from_str(&document.begin.metadata).map_err(damaged)?,
            tree: Tree::parse(&document.begin.tree)?,
            id: document.id,
            begin: document.begin,
            attempt: document.attempt,
            lake,
            object_bytes_max: self.file_bytes_max(),
            clock: Arc::clone(&self.clock),
            deadline: Instant::now() + deadline,
            disk: Some(staged),
            base: document.base,
            is_resumed: true,
            writer: Writer::OtherProcess,
        });
        save.count_staged(pieces.iter().map(SavedPiece::bytes).sum());
        let Some(work) = save.take_up() else {
            return Err(Error::new(Kind::Internal, "a save cannot be taken up twice"));
        };
        let mut state = self.state.lock();
        if state.is_closed {
            return Ok(());
        }
        state.check_is_new(&save.id)?;
        state.add(&save);
        let feeding = feed(Arc::clone(&save), work, pieces);
        let running = work::run(Arc::clone(self), save, queue);
        state.running.spawn(async move {
            tokio::join!(feeding, running);
        });
        Ok(())
    }

    /// `Busy` while a save is overdue: more would only make it worse.
    fn check_age(&self) -> Result<()> {
        let age_max = self.options.age_max;
        let age = |save: &Save| {
            let state = save.state();
            let age_ms = state.age_ms.saturating_sub(state.staged_ms.unwrap_or(0));
            (state.phase == SavePhase::Staged).then(|| Duration::from_millis(age_ms))
        };
        let oldest = self.all().into_iter().find(|save| age(save) > Some(age_max));
        let Some(oldest) = oldest.filter(|_| !age_max.is_zero()) else {
            return Ok(());
        };
        stats::add(&self.counters.refusals, 1);
        let message = "an older save has been staged too long without becoming durable; wait for it, give it up, or raise limits.save_age";
        Err(Error::new(Kind::Busy, message)
            .with("save", &oldest.id)
            .with("step", oldest.begin.step)
            .with("age_max_s", age_max.as_secs()))
    }

    /// Counters and gauges now.
    pub fn stats(&self) -> SaveStats {
        let disk = self.options.staging_log.as_ref().map(|log| log.stats());
        let states: Vec<SaveState> = self.all().iter().map(|save| save.state()).collect();
        SaveStats {
            disk_bytes: disk.map_or(0, |disk| disk.held_bytes),
            disk_bytes_max: disk.map_or(0, |disk| disk.bytes_max),
            ..self.counters.stats(states.iter())
        }
    }

    /// Says which staged saves a node that stops did not finish.
    pub fn say_what_is_left(&self) {
        for save in self.all() {
            let state = save.state();
            if state.phase != SavePhase::Staged {
                continue;
            }
            let (save, step, bytes) = (state.id, state.step, state.bytes);
            match state.staged {
                StagedIn::Ram => {
                    tracing::error!(
                        save,
                        step,
                        bytes,
                        "a staged save is lost: the node stops before it is durable"
                    );
                }
                StagedIn::Nvme => {
                    tracing::warn!(
                        save,
                        step,
                        bytes,
                        "a staged save is not durable yet; it goes on when the node is started again"
                    );
                }
            }
        }
    }

    /// The save of this name.
    pub fn find(&self, id: &str) -> Result<Arc<Save>> {
        let found = self.state.lock().by_id.get(id).map(Arc::clone);
        found.ok_or_else(|| {
            let message = "the node does not know this save (any more); look for the step in the lake";
            Error::new(Kind::NotFound, message).with("save", id)
        })
    }

    /// All saves, oldest first.
    pub fn all(&self) -> Vec<Arc<Save>> {
        let state = self.state.lock();
        let known = state.order.iter().filter_map(|id| state.by_id.get(id));
        known.map(Arc::clone).collect()
    }

    /// Other ranks of the same attempt in this node.
    pub(super) fn siblings(&self, save: &Save) -> Vec<Arc<Save>> {
        let prefix = format!("{}.", save.attempt);
        let state = self.state.lock();
        let same = state
            .by_id
            .range(prefix.clone()..)
            .take_while(|(id, _)| id.starts_with(&prefix));
        same.map(|(_, sibling)| Arc::clone(sibling))
            .filter(|sibling| is_sibling(sibling, save))
            .collect()
    }

    /// A save has ended: if it failed, its siblings cannot be committed either.
    pub(super) fn ended(&self, save: &Save) {
        let state = save.state();
        self.counters.ended(&state);
        if state.phase == SavePhase::Failed {
            for sibling in self.siblings(save) {
                // The next incarnation needs the shares of all ranks.
                if save.is_left() {
                    sibling.leave(failed_rank(save));
                } else {
                    sibling.give_up(failed_rank(save));
                }
            }
        }
        self.tell();
    }

    pub(super) fn tell(&self) {
        self.news.send_modify(|news| *news += 1);
    }

    pub(super) fn news(&self) -> watch::Receiver<u64> {
        self.news.subscribe()
    }

    /// The client's end of a save that has begun; as long as it fills the save, files wait.
    pub fn opened(&self, save: Arc<Save>) -> OpenSave {
        OpenSave::new(save, self.copy_gate.begin())
    }

    /// Somebody waits for files to leave the arena.
    pub fn open_early(&self) {
        self.copy_gate.open_early();
    }

    /// Waits for a permit to keep a core busy.
    pub(super) async fn hashing_permit(&self) -> Result<SemaphorePermit<'_>> {
        self.copy_gate.passed().await;
        let permit = self.hashing.acquire().await;
        permit.map_err(|why| Error::new(Kind::Internal, "the saver has ended").caused_by(why))
    }

    /// Waits for the saves that were staged; no further ones are taken. Those that are open were given up
    /// with their sessions.
    pub async fn finish(&self) {
        let mut running = {
            let mut state = self.state.lock();
            state.is_closed = true;
            std::mem::take(&mut state.running)
        };
        while running.join_next().await.is_some() {}
    }
}

/// A name that is kept for a save that is about to begin.
struct Reserved<'a> {
    saves: &'a Saves,
    id: String,
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        self.saves.state.lock().beginning.remove(&self.id);
    }
}

fn is_sibling(other: &Save, save: &Save) -> bool {
    other.begin.rank != save.begin.rank
        && other.attempt == save.attempt
        && other.begin.root == save.begin.root
}

fn failed_rank(save: &Save) -> Error {
    let why = save.failure();
    Error::new(
        why.kind(),
        format!("another rank of this save failed: {}", why.message()),
    )
    .with("failed_rank", save.begin.rank)
}

impl SavesTable {
    fn add(&mut self, save: &Arc<Save>) {
        self.forget_ended();
        self.by_id.insert(save.id.clone(), Arc::clone(save));
        self.order.push(save.id.clone());
        while self.running.try_join_next().is_some() {}
    }

    /// `Conflict` if a save of this name is known or about to begin.
    fn check_is_new(&self, id: &str) -> Result<()> {
        if !self.by_id.contains_key(id) && !self.beginning.contains(id) {
            return Ok(());
        }
        let message =
            "this rank saves or saved with this attempt already; every save needs an attempt of its own";
        Err(Error::new(Kind::Conflict, message).with("save", id))
    }

    fn check_may_begin(&self, save: &Save) -> Result<()> {
        if self.is_closed {
            let message = "the node is stopping; try again later";
            return Err(Error::new(Kind::Unavailable, message));
        }
        let known = self.by_id.values();
        let failed = known.filter(|other| is_sibling(other, save));
        let mut failed = failed.filter(|other| other.state().phase == SavePhase::Failed);
        if let Some(failed) = failed.next() {
            return Err(failed_rank(failed));
        }
        let under_way = self.by_id.values().filter(|save| !save.state().phase.is_over());
        if under_way.count() >= SAVES_MAX {
            let message = "too many saves are under way in this node; wait for some to become durable";
            return Err(Error::new(Kind::Busy, message).with("saves_max", SAVES_MAX));
        }
        Ok(())
    }

    /// Makes room for one more that will end some day.
    fn forget_ended(&mut self) {
        let is_over = |id: &String| {
            let save = self.by_id.get(id);
            save.is_none_or(|save| save.state().phase.is_over())
        };
        let ended = self.order.iter().filter(|id| is_over(id)).count();
        let mut surplus = (ended + 1).saturating_sub(ENDED_MAX);
        let forgotten: Vec<String> = self
            .order
            .iter()
            .filter(|id| {
                let goes = surplus > 0 && is_over(id);
                surplus -= usize::from(goes);
                goes
            })
            .cloned()
            .collect();
        for id in &forgotten {
            self.by_id.remove(id);
        }
        self.order.retain(|id| self.by_id.contains_key(id));
    }
}

#[cfg(test)]
mod tests;
