//! Retention: steps that are kept, and files that nobody needs any more. Pure.
//!
//! Pruning has two halves. [`Policy::kept`] says which steps stay; the manifests of the others are removed
//! first. Then [`garbage`] says which files may go, from what is in the lake *after* that: never a file that
//! a remaining manifest names, never one that a live lease may be about to reuse, never a young attempt.

use std::collections::{BTreeMap, BTreeSet};

use crate::Manifest;
use crate::attempt_lease::AttemptLease;
use crate::manifest::StepRef;

/// Policy of keeping steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// The newest so many; 0 counts as 1.
    pub keep_last: u32,
    /// Steps that are multiples of this as well.
    pub keep_every: Option<u64>,
}

impl Policy {
    /// The steps of these that stay.
    #[must_use]
    pub fn kept(&self, steps: &BTreeSet<u64>) -> BTreeSet<u64> {
        let newest = steps.iter().rev().take(self.keep_last.max(1) as usize);
        let every = self.keep_every.filter(|every| *every > 0);
        let rounds = steps
            .iter()
            .filter(|step| every.is_some_and(|every| *step % every == 0));
        newest.chain(rounds).copied().collect()
    }
}

/// An attempt by step and name.
pub type AttemptRef = (u64, String);

/// Files and steps that a commit needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Commit {
    /// The attempt that made it.
    pub attempt: AttemptRef,
    /// Files and tables that it names, also of other attempts.
    pub paths: BTreeSet<String>,
}

impl Commit {
    /// Returns what this manifest needs.
    #[must_use]
    pub fn of(manifest: &Manifest) -> Self {
        let files = manifest.content.files.iter().map(|file| file.path.clone());
        let tables = manifest.content.tables.iter().map(|table| table.path.clone());
        Self {
            attempt: (manifest.step, manifest.attempt.clone()),
            paths: files.chain(tables).collect(),
        }
    }
}

/// Content of the folder of an attempt.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Attempt {
    /// Every file, relative to the root.
    pub files: Vec<String>,
    /// Time of the youngest file, milliseconds since 1970 UTC.
    pub youngest_ms: u64,
    /// Its lease, if there is one that can be read.
    pub open: Option<AttemptLease>,
}

/// Inventory of a run, for the choice of files to remove.
#[derive(Debug, Clone, Default)]
pub struct Inventory {
    /// Commits that remain, all of them.
    pub commits: BTreeMap<StepRef, Commit>,
    /// Commits whose manifests were removed just now.
    pub retired: BTreeMap<StepRef, Commit>,
    /// Every attempt.
    pub attempts: BTreeMap<AttemptRef, Attempt>,
}

/// Files that nobody needs, in order. An attempt without a commit has to be `age_ms_min` old as well, and its
/// lease over. None at all while a save is under way whose parent is not known: it may need any file.
#[must_use]
pub fn garbage(inventory: &Inventory, now_ms: u64, age_ms_min: u64) -> Vec<String> {
    let committed: BTreeSet<&AttemptRef> = inventory.commits.values().map(|commit| &commit.attempt).collect();
    let retired: BTreeSet<&AttemptRef> = inventory.retired.values().map(|commit| &commit.attempt).collect();
    let is_live = |attempt: &Attempt| attempt.open.as_ref().is_some_and(|open| open.is_live(now_ms));
    let mut needed: BTreeSet<&String> = inventory
        .commits
        .values()
        .flat_map(|commit| &commit.paths)
        .collect();
    for (name, attempt) in &inventory.attempts {
        let Some(parent) = attempt.open.as_ref().and_then(|open| open.parent) else {
            continue;
        };
        if committed.contains(name) || !is_live(attempt) {
            continue;
        }
        // A saver whose parent was retired in this moment may have begun to reuse it.
        if let Some(commit) = inventory.retired.get(&parent) {
            needed.extend(&commit.paths);
        } else if !inventory.commits.contains_key(&parent) && !retired.contains(name) {
            return Vec::new();
        }
    }
    let mut garbage = Vec::new();
    for (name, attempt) in &inventory.attempts {
        let is_young = attempt.youngest_ms.saturating_add(age_ms_min) > now_ms;
        let is_done = retired.contains(name);
        if committed.contains(name) || (!is_done && (is_young || is_live(attempt))) {
            continue;
        }
        garbage.extend(
            attempt
                .files
                .iter()
                .filter(|file| !needed.contains(file))
                .cloned(),
        );
    }
    garbage
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn set(steps: &[u64]) -> BTreeSet<u64> {
        steps.iter().copied().collect()
    }

    fn reference(step: u64) -> StepRef {
        StepRef { step, generation: 1 }
    }

    fn name(step: u64) -> AttemptRef {
        (step, crate::names::attempt(step))
    }

    fn path(step: u64, file: u32) -> String {
        crate::names::attempt_file(
            step,
            &crate::names::attempt(step),
            &crate::names::data_file(0, file),
        )
    }

    fn attempt(step: u64, youngest_ms: u64, open: Option<AttemptLease>) -> Attempt {
        Attempt {
            files: vec![path(step, 0), path(step, 1)],
            youngest_ms,
            open,
        }
    }

    fn commit(step: u64, paths: &[String]) -> Commit {
        Commit {
            attempt: name(step),
            paths: paths.iter().cloned().collect(),
        }
    }

    #[test]
    fn the_newest_and_round_steps_are_kept() {
        let steps = set(&[100, 150, 200, 1000, 1050, 1100]);
        let policy = |keep_last, keep_every| Policy {
            keep_last,
            keep_every,
        };
        assert_eq!(policy(2, None).kept(&steps), set(&[1050, 1100]));
        assert_eq!(policy(1, Some(1000)).kept(&steps), set(&[1000, 1100]));
        assert_eq!(policy(0, Some(0)).kept(&steps), set(&[1100]), "the newest stays");
        assert_eq!(policy(9, None).kept(&steps), steps);
        assert!(policy(1, None).kept(&set(&[])).is_empty());
    }

    #[test]
    fn a_child_keeps_what_it_reuses_of_a_step_that_is_gone() {
        let mut inventory = Inventory::default();
        inventory
            .commits
            .insert(reference(2), commit(2, &[path(2, 0), path(1, 1)]));
        inventory
            .retired
            .insert(reference(1), commit(1, &[path(1, 0), path(1, 1)]));
        inventory.attempts.insert(name(1), attempt(1, 0, None));
        inventory.attempts.insert(name(2), attempt(2, 0, None));
        assert_eq!(garbage(&inventory, u64::MAX / 2, 0), [path(1, 0)]);
    }

    #[test]
    fn an_attempt_goes_when_it_is_old_and_its_lease_is_over() {
        let day = 86_400_000;
        let mut inventory = Inventory::default();
        let open = AttemptLease::new(5, &name(5).1, None, 0, 10 * day);
        inventory
            .attempts
            .insert(name(5), attempt(5, 9 * day, Some(open)));
        assert!(garbage(&inventory, 9 * day, day).is_empty(), "young");
        assert!(garbage(&inventory, 10 * day, day).is_empty(), "leased");
        assert_eq!(garbage(&inventory, 11 * day, day).len(), 2);
        assert!(
            garbage(&inventory, 11 * day, 3 * day).is_empty(),
            "younger than asked for"
        );
    }

    #[test]
    fn a_live_save_keeps_the_files_of_the_parent_that_it_names() {
        let mut inventory = Inventory::default();
        let open = AttemptLease::new(2, &name(2).1, Some(reference(1)), 0, 1000);
        inventory.retired.insert(reference(1), commit(1, &[path(1, 0)]));
        inventory.attempts.insert(name(1), attempt(1, 0, None));
        inventory.attempts.insert(name(2), attempt(2, 0, Some(open)));
        assert_eq!(garbage(&inventory, 500, 0), [path(1, 1)]);
        let later = 2000 + crate::attempt_lease::CLOCK_SKEW_MS;
        assert_eq!(garbage(&inventory, later, 0).len(), 4);
    }

    #[test]
    fn nothing_is_garbage_while_a_live_save_names_a_parent_that_nobody_knows() {
        let mut inventory = Inventory::default();
        let open = AttemptLease::new(2, &name(2).1, Some(reference(1)), 0, 1000);
        inventory.attempts.insert(name(1), attempt(1, 0, None));
        inventory.attempts.insert(name(2), attempt(2, 0, Some(open)));
        assert!(garbage(&inventory, 500, 0).is_empty());
        let later = 2000 + crate::attempt_lease::CLOCK_SKEW_MS;
        assert_eq!(garbage(&inventory, later, 0).len(), 4, "its lease is over");
        inventory.retired.insert(reference(2), commit(2, &[path(2, 0)]));
        assert_eq!(
            garbage(&inventory, 500, 0).len(),
            4,
            "it was committed and needs no more"
        );
    }

    proptest! {
        #[test]
        fn nothing_that_a_commit_or_a_live_save_needs_is_garbage(
            links in prop::collection::vec((0u64..12, prop::bool::ANY, prop::bool::ANY, prop::bool::ANY), 1..12),
        ) {
            let mut inventory = Inventory::default();
            let mut needed = BTreeSet::new();
            for (step, (other, is_kept, is_retired, is_live)) in links.iter().enumerate() {
                let step = step as u64;
                let paths = [path(step, 0), path(*other, 1)];
                let open = AttemptLease::new(step, &name(step).1, Some(reference(*other)), 0, if *is_live { u64::MAX } else { 0 });
                inventory.attempts.insert(name(step), attempt(step, 0, Some(open)));
                if *is_kept {
                    inventory.commits.insert(reference(step), commit(step, &paths));
                    needed.extend(paths);
                } else if *is_retired {
                    inventory.retired.insert(reference(step), commit(step, &paths));
                }
            }
            let mut is_unknown = false;
            for (step, (other, is_kept, is_retired, is_live)) in links.iter().enumerate() {
                let is_open = !is_kept && !is_retired && *is_live;
                let parent = reference(*other);
                is_unknown |= is_open && !inventory.commits.contains_key(&parent) && !inventory.retired.contains_key(&parent);
                if !is_kept && *is_live && let Some(parent) = inventory.retired.get(&reference(*other)) {
                    needed.extend(parent.paths.iter().cloned());
                }
                if !is_kept && *is_live && !inventory.retired.contains_key(&reference(step as u64)) {
                    needed.extend([path(step as u64, 0), path(step as u64, 1)]);
                }
            }
            let gone = garbage(&inventory, 1 << 50, 0);
            for path in &gone {
                prop_assert!(!needed.contains(path), "{}", path);
            }
            prop_assert!(!is_unknown || gone.is_empty(), "{:?}", gone);
            for (name, attempt) in inventory.attempts.iter().filter(|_| !is_unknown) {
                if inventory.retired.values().any(|commit| commit.attempt == *name) {
                    for file in attempt.files.iter().filter(|file| !needed.contains(*file)) {
                        prop_assert!(gone.contains(file), "{} is left", file);
                    }
                }
            }
        }
    }
}
