//! Removing steps, and what nobody needs any more.
//!
//! Order: look at everything; remove manifests of steps that go, older generations first, so that none comes
//! back to life; look again; then remove files that no remaining manifest names. A crash in between leaves
//! files without a manifest, which the next pruning collects by age. What may go is decided in
//! `forebay_checkpoint::retention`, which is pure.

use std::collections::{BTreeMap, BTreeSet};

use forebay_checkpoint::attempt_lease::AttemptLease;
use forebay_checkpoint::manifest::StepRef;
use forebay_checkpoint::names::{self, StepPath};
use forebay_checkpoint::retention::{Attempt, Commit, Inventory, Policy, garbage};
use forebay_client::ItemRange;
use forebay_core::{Error, Kind, Result};

use crate::Root;
use crate::parallel;

/// Files that are removed at a time.
const THREADS: usize = 8;

/// Options of a prune.
#[derive(Debug, Clone)]
pub struct PruneOptions {
    /// Steps that go.
    pub selection: PruneSelection,
    /// Age at which an attempt without a commit is collected, milliseconds.
    pub age_ms_min: u64,
    /// The time, milliseconds since 1970 UTC.
    pub now_ms: u64,
    /// Only say what would be removed.
    pub is_dry_run: bool,
}

/// Steps that go.
#[derive(Debug, Clone)]
pub enum PruneSelection {
    /// Those that the policy does not keep, and superseded generations of those that it keeps.
    ByPolicy(Policy),
    /// These.
    Steps(BTreeSet<u64>),
}

/// Report of what was removed, or would be.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Commits.
    pub commits: Vec<StepRef>,
    /// Commits that a save under way builds on; they go next time.
    pub in_use: Vec<StepRef>,
    /// Files, relative to the root.
    pub files: Vec<String>,
    /// Bytes of these files.
    pub bytes: u64,
    /// Steps that are left.
    pub kept: Vec<u64>,
}

/// Listing of everything below a root.
#[derive(Default)]
struct RootListing {
    commits: BTreeSet<StepRef>,
    attempts: BTreeMap<(u64, String), Attempt>,
    bytes: BTreeMap<String, u64>,
}

impl Root {
    /// Removes steps and garbage. Never breaks a step that stays: what it reuses of a step that goes is kept.
    pub fn prune(&self, options: &PruneOptions) -> Result<Pruned> {
        let seen = self.look()?;
        let doomed = doomed(&seen, &options.selection)?;
        let commits = self.read_commits(&seen, &doomed)?;
        let in_use = in_use(&seen, &commits, options.now_ms);
        let (in_use, doomed): (Vec<StepRef>, Vec<StepRef>) =
            doomed.into_iter().partition(|commit| in_use.contains(commit));
        let mut pruned = Pruned {
            commits: doomed,
            in_use,
            ..Pruned::default()
        };
        if !options.is_dry_run {
            for commit in &pruned.commits {
                let path = names::manifest(commit.step, commit.generation);
                self.client().delete(&self.name(&path)?)?;
            }
        }
        // Leases and commits that came meanwhile are in the second look.
        let seen = if options.is_dry_run { seen } else { self.look()? };
        let gone: BTreeSet<StepRef> = pruned.commits.iter().copied().collect();
        let left: BTreeSet<StepRef> = seen.commits.difference(&gone).copied().collect();
        pruned.kept = left
            .iter()
            .map(|commit| commit.step)
            .collect::<BTreeSet<_>>()
            .into_iter()
            .collect();
        let inventory = self.inventory(seen.attempts, &left, &gone, commits)?;
        pruned.files = garbage(&inventory, options.now_ms, options.age_ms_min);
        pruned.bytes = pruned.files.iter().filter_map(|file| seen.bytes.get(file)).sum();
        if !options.is_dry_run {
            parallel::each(
                Some(self.client()),
                pruned.files.iter().collect(),
                THREADS,
                |file| self.client().delete(&self.name(file)?),
            )?;
        }
        Ok(pruned)
    }

    /// Lists everything and reads the leases.
    fn look(&self) -> Result<RootListing> {
        let mut seen = RootListing::default();
        let mut opens = Vec::new();
        self.for_each_below(names::STEPS, |path, object| {
            match names::parse_path(path) {
                Some(StepPath::Manifest { step, generation }) => {
                    seen.commits.insert(StepRef { step, generation });
                }
                Some(StepPath::Attempt { step, attempt, name }) => {
                    if name == names::OPEN {
                        opens.push((step, attempt.clone(), path.to_owned()));
                    }
                    let found = seen.attempts.entry((step, attempt)).or_default();
                    found.files.push(path.to_owned());
                    found.youngest_ms = found.youngest_ms.max(object.modified.saturating_mul(1000));
                    seen.bytes.insert(path.to_owned(), object.bytes);
                }
                None => {}
            }
            Ok(())
        })?;
        for (step, attempt, path) in opens {
            // One that cannot be read or is gone by now counts as none: age alone decides then.
            let open = self
                .client()
                .get(&self.name(&path)?, ItemRange::Whole, None)
                .and_then(|view| AttemptLease::decode(&view));
            match open {
                Ok(open) => {
                    if let Some(found) = seen.attempts.get_mut(&(step, attempt)) {
                        found.open = Some(open);
                    }
                }
                Err(error) if matches!(error.kind(), Kind::Corrupt | Kind::NotFound) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(seen)
    }

    /// Returns what each commit needs. One that stays and cannot be read stops everything: nobody knows what
    /// it needs.
    fn read_commits(
        &self,
        seen: &RootListing,
        doomed: &BTreeSet<StepRef>,
    ) -> Result<BTreeMap<StepRef, Commit>> {
        let mut commits = BTreeMap::new();
        for commit in &seen.commits {
            match self.manifest_of(commit.step, commit.generation) {
                Ok(manifest) => {
                    commits.insert(*commit, Commit::of(&manifest));
                }
                Err(error) => unreadable(error, *commit, doomed.contains(commit))?,
            }
        }
        Ok(commits)
    }

    fn inventory(
        &self,
        attempts: BTreeMap<(u64, String), Attempt>,
        left: &BTreeSet<StepRef>,
        gone: &BTreeSet<StepRef>,
        mut known: BTreeMap<StepRef, Commit>,
    ) -> Result<Inventory> {
        let mut inventory = Inventory {
            attempts,
            ..Inventory::default()
        };
        for commit in gone {
            if let Some(found) = known.remove(commit) {
                inventory.retired.insert(*commit, found);
            }
        }
        for commit in left {
            let found = match known.remove(commit) {
                Some(found) => found,
                None => Commit::of(&self.manifest_of(commit.step, commit.generation)?),
            };
            inventory.commits.insert(*commit, found);
        }
        Ok(inventory)
    }
}

/// A manifest that cannot be read: whether pruning may go on without it.
fn unreadable(error: Error, commit: StepRef, is_doomed: bool) -> Result<()> {
    if error.kind() == Kind::NotFound || (is_doomed && is_broken(&error)) {
        return Ok(());
    }
    if is_doomed {
        // Whoever cannot be reached now may say later what the step needs.
        return Err(error);
    }
    let message = "nothing was removed, because a step that stays cannot be read and may need any file; \
                   repair it, or remove that step first: forebay ckpt rm";
    let error = Error::new(error.kind(), message).caused_by(error);
    Err(error.with("step", commit.step))
}

/// Returns whether a manifest can never be read, whoever asks and when.
fn is_broken(error: &Error) -> bool {
    matches!(error.kind(), Kind::Corrupt | Kind::Checksum | Kind::Unsupported)
}

/// Commits that go.
fn doomed(seen: &RootListing, selection: &PruneSelection) -> Result<BTreeSet<StepRef>> {
    let steps: BTreeSet<u64> = seen.commits.iter().map(|commit| commit.step).collect();
    let highest = |step: u64| {
        let of_step = seen.commits.iter().filter(|commit| commit.step == step);
        of_step.map(|commit| commit.generation).max()
    };
    match selection {
        PruneSelection::ByPolicy(policy) => {
            let kept = policy.kept(&steps);
            let goes = |commit: &&StepRef| {
                !kept.contains(&commit.step) || Some(commit.generation) != highest(commit.step)
            };
            Ok(seen.commits.iter().filter(goes).copied().collect())
        }
        PruneSelection::Steps(selection) => {
            if let Some(missing) = selection.iter().find(|step| !steps.contains(step)) {
                let error = Error::new(Kind::NotFound, "there is no such step; nothing was removed");
                return Err(error.with("step", missing));
            }
            let goes = |commit: &&StepRef| selection.contains(&commit.step);
            Ok(seen.commits.iter().filter(goes).copied().collect())
        }
    }
}

/// Commits that a save under way names as its parent.
fn in_use(seen: &RootListing, commits: &BTreeMap<StepRef, Commit>, now_ms: u64) -> BTreeSet<StepRef> {
    let committed: BTreeSet<_> = commits.values().map(|commit| &commit.attempt).collect();
    let opens = seen
        .attempts
        .iter()
        .filter(|(name, _)| !committed.contains(name))
        .filter_map(|(_, attempt)| attempt.open.as_ref());
    opens
        .filter(|open| open.is_live(now_ms))
        .filter_map(|open| open.parent)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lake_that_fails_stops_the_pruning_whatever_it_was_asked_for() {
        let commit = StepRef {
            step: 7,
            generation: 1,
        };
        for kind in Kind::ALL {
            for is_doomed in [true, false] {
                let passed = unreadable(Error::new(kind, "it is so"), commit, is_doomed);
                let is_broken = matches!(kind, Kind::Corrupt | Kind::Checksum | Kind::Unsupported);
                match kind {
                    Kind::NotFound => assert!(passed.is_ok()),
                    _ if is_doomed && is_broken => assert!(passed.is_ok(), "{kind}"),
                    _ => assert_eq!(passed.unwrap_err().kind(), kind),
                }
            }
        }
    }
}
