//! Progress of a save: bytes, files, alarms, and ranks that it waits for.

use std::time::Duration;

use forebay_checkpoint::manifest::{Alarm, AlarmKind, StepRef};
use forebay_core::{Error, Kind};
use forebay_wire::Failure;
use forebay_wire::saves::{SavePhase, SaveState, Survives};

use super::{Progress, Save};
use crate::new_save::Writer;

/// Ranks that come this much later than the others are named before the deadline.
const RANKS_LATE_AFTER: Duration = Duration::from_secs(5);

impl Save {
    /// Counts what an earlier incarnation had counted.
    pub(crate) fn count_staged(&self, bytes: u64) {
        self.progress.lock().bytes += bytes;
    }

    pub(crate) fn count_file(&self, bytes: u64) {
        let mut progress = self.progress.lock();
        progress.files += 1;
        progress.written_bytes += bytes;
    }

    pub(crate) fn count_written(&self, bytes: u64) {
        self.progress.lock().written_bytes += bytes;
    }

    pub(crate) fn count_reused(&self, bytes: u64) {
        self.progress.lock().reused_bytes += bytes;
    }

    /// Counts a file of differences.
    pub(crate) fn count_encoded(&self, bytes: u64, stored_bytes: u64) {
        self.count_file(stored_bytes);
        let mut progress = self.progress.lock();
        progress.encoded_bytes += bytes;
        progress.encoded_stored_bytes += stored_bytes;
    }

    pub(crate) fn set_parent(&self, parent: StepRef) {
        self.progress.lock().parent = Some(parent);
    }

    pub(crate) fn set_alarms(&self, alarms: &[Alarm]) {
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

    pub(crate) fn wait_for_ranks(&self, missing: Option<String>) {
        let mut progress = self.progress.lock();
        progress.missing_since = missing
            .as_ref()
            .map(|_| progress.missing_since.unwrap_or_else(|| self.clock.monotonic()));
        progress.missing_ranks = missing;
    }

    /// Failures that the save survives in this phase: never more than was synced, or is in the lake.
    fn survives(&self, phase: SavePhase) -> Survives {
        match (phase, &self.disk, self.writer) {
            (SavePhase::Open | SavePhase::Failed, _, _) => Survives::Nothing,
            (SavePhase::Durable, _, _) => Survives::Everything,
            (SavePhase::Staged, Some(_), _) => Survives::Node,
            (SavePhase::Staged, None, Writer::OtherProcess) => Survives::Writer,
            (SavePhase::Staged, None, Writer::ThisProcess) => Survives::Nothing,
        }
    }

    /// Returns what is known about it.
    pub fn state(&self) -> SaveState {
        let since =
            |time: Duration| u64::try_from(time.saturating_sub(self.begun).as_millis()).unwrap_or(u64::MAX);
        let progress = self.progress.lock();
        let trouble = progress
            .no_room
            .as_ref()
            .or(progress.last_error.as_ref())
            .cloned();
        let trouble = trouble.or_else(|| progress.late_ranks(self.clock.monotonic()));
        SaveState {
            id: self.id.clone(),
            root: self.begin.root.clone(),
            step: self.begin.step,
            attempt: self.attempt.clone(),
            rank: self.begin.rank,
            world_size: self.begin.world_size,
            phase: progress.phase,
            staged: self.begin.staged,
            survives: self.survives(progress.phase),
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
            last_error: trouble,
        }
    }
}

impl Progress {
    /// Ranks that have been waited for so long that somebody should hear of it before the deadline.
    fn late_ranks(&self, now: Duration) -> Option<Failure> {
        let since = self.missing_since.filter(|_| !self.phase.is_over())?;
        if now.saturating_sub(since) < RANKS_LATE_AFTER {
            return None;
        }
        let message = "ranks have not saved their share yet, and nothing is committed without them";
        let error = Error::new(Kind::Timeout, message).with("ranks", self.missing_ranks.as_deref()?);
        Some(Failure::from(&error))
    }
}
