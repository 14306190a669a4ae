//! Saves that a node knows, rank by rank, as one line for each attempt.

use std::collections::BTreeMap;

use forebay_client::{SavePhase, SaveState, StagedIn};

/// One attempt, as a node knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Attempt {
    pub(crate) step: u64,
    pub(crate) name: String,
    pub(crate) world_size: u32,
    /// Ranks that this node has, of `world_size`.
    pub(crate) ranks: u32,
    /// The phase of the rank that is least far; failed if one has.
    pub(crate) phase: SavePhase,
    /// Medium of the staged bytes, while there are any.
    pub(crate) staged: StagedIn,
    pub(crate) bytes: u64,
    pub(crate) reused_bytes: u64,
    /// Of the oldest rank.
    pub(crate) age_ms: u64,
    /// Why it failed, or what hinders it.
    pub(crate) last_error: Option<String>,
    /// Names of its saves in the node.
    pub(crate) ids: Vec<String>,
}

impl Attempt {
    /// Attempts of these saves, by step.
    pub(crate) fn all(states: Vec<SaveState>) -> Vec<Self> {
        let mut attempts: BTreeMap<(u64, String), Self> = BTreeMap::new();
        for state in states {
            match attempts.get_mut(&(state.step, state.attempt.clone())) {
                Some(attempt) => attempt.add(&state),
                None => {
                    attempts.insert((state.step, state.attempt.clone()), Self::of(&state));
                }
            }
        }
        attempts.into_values().collect()
    }

    fn of(state: &SaveState) -> Self {
        Self {
            step: state.step,
            name: state.attempt.clone(),
            world_size: state.world_size,
            ranks: 1,
            phase: state.phase,
            staged: state.staged,
            bytes: state.bytes,
            reused_bytes: state.reused_bytes,
            age_ms: state.age_ms,
            last_error: last_error(state),
            ids: vec![state.id.clone()],
        }
    }

    fn add(&mut self, state: &SaveState) {
        self.ranks += 1;
        self.phase = least(self.phase, state.phase);
        self.bytes += state.bytes;
        self.reused_bytes += state.reused_bytes;
        self.age_ms = self.age_ms.max(state.age_ms);
        if self.last_error.is_none() {
            self.last_error = last_error(state);
        }
        self.ids.push(state.id.clone());
    }

    /// Returns how far it is, in a word or two.
    pub(crate) fn state(&self) -> String {
        match (self.phase, self.staged) {
            (SavePhase::Staged, StagedIn::Ram) => "staged in ram".into(),
            (SavePhase::Staged, StagedIn::Nvme) => "staged on nvme".into(),
            (phase, _) => phase.as_str().into(),
        }
    }
}

fn last_error(state: &SaveState) -> Option<String> {
    let failure = state.last_error.as_ref()?;
    Some(format!("rank {}: {}", state.rank, failure.message))
}

/// Of two ranks the one that decides how the step stands.
fn least(a: SavePhase, b: SavePhase) -> SavePhase {
    let rank = |phase: SavePhase| match phase {
        SavePhase::Failed => 0,
        SavePhase::Open => 1,
        SavePhase::Staged => 2,
        SavePhase::Durable => 3,
    };
    if rank(a) <= rank(b) { a } else { b }
}

#[cfg(test)]
mod tests {
    use forebay_client::ObjectName;

    use super::*;

    fn state(rank: u32, phase: SavePhase) -> SaveState {
        SaveState {
            id: format!("a-{rank}"),
            root: ObjectName {
                bucket: "lake".into(),
                key: "run".into(),
            },
            step: 7,
            attempt: "a".into(),
            rank,
            world_size: 3,
            phase,
            staged: StagedIn::Ram,
            survives: forebay_client::Survives::Nothing,
            generation: 0,
            parent: None,
            bytes: 100,
            written_bytes: 0,
            reused_bytes: 10,
            encoded_bytes: 0,
            encoded_stored_bytes: 0,
            files: 0,
            age_ms: u64::from(rank),
            staged_ms: None,
            ended_ms: None,
            alarms: Vec::new(),
            last_error: None,
        }
    }

    #[test]
    fn an_attempt_is_as_far_as_its_slowest_rank() {
        let found = Attempt::all(vec![state(0, SavePhase::Durable), state(1, SavePhase::Staged)]);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].state().as_str(), found[0].ranks), ("staged in ram", 2));
        assert_eq!(
            (found[0].bytes, found[0].reused_bytes, found[0].age_ms),
            (200, 20, 1)
        );
        let failed = Attempt::all(vec![state(0, SavePhase::Open), state(1, SavePhase::Failed)]);
        assert_eq!(failed[0].state(), "failed");
    }
}
