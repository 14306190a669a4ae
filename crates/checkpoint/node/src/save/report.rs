//! Progress of a save: bytes, files, alarms, and ranks that it waits for.

use std::time::Duration;

use forebay_checkpoint::manifest::{Alarm, AlarmKind, StepRef};
use forebay_wire::saves::{SavePhase, SaveState, Survives};

use super::Save;
use crate::new_save::Writer;

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
        self.progress.lock().missing_ranks = missing;
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
            last_error: progress
                .no_room
                .as_ref()
                .or(progress.last_error.as_ref())
                .cloned(),
        }
    }
}
