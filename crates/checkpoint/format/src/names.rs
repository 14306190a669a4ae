//! Paths below the root of a run: builds and parses all of them.

use forebay_core::{Error, Kind, Result};

/// The folder of all steps.
pub const STEPS: &str = "steps/";

/// The folder of a step, with a slash at the end.
#[must_use]
pub fn step_folder(step: u64) -> String {
    format!("{STEPS}{step}/")
}

/// The commit of a step.
#[must_use]
pub fn manifest(step: u64, generation: u32) -> String {
    format!("{STEPS}{step}/manifest-{generation}.json")
}

/// A file of one attempt: `steps/<step>/<attempt>/<name>`.
#[must_use]
pub fn attempt_file(step: u64, attempt: &str, name: &str) -> String {
    format!("{STEPS}{step}/{attempt}/{name}")
}

/// The lease of an attempt.
pub const OPEN: &str = "open.json";

/// A data file of a rank.
#[must_use]
pub fn data_file(rank: u32, number: u32) -> String {
    format!("rank-{rank:05}-{number:03}.safetensors")
}

/// Parts of a rank that are stored as differences.
#[must_use]
pub fn delta_file(rank: u32, number: u32) -> String {
    format!("rank-{rank:05}-{number:03}.delta")
}

/// State of a rank that is not tensors.
#[must_use]
pub fn objects_file(rank: u32) -> String {
    format!("rank-{rank:05}.objects")
}

/// The side table of a rank.
#[must_use]
pub fn table_file(rank: u32) -> String {
    format!("rank-{rank:05}.crc")
}

/// The record of a rank.
#[must_use]
pub fn record_file(rank: u32) -> String {
    format!("rank-{rank:05}.json")
}

/// The name of an attempt, from eight random bytes.
#[must_use]
pub fn attempt(random: u64) -> String {
    format!("a-{random:016x}")
}

/// Returns whether this is the name of an attempt.
#[must_use]
pub fn is_attempt(name: &str) -> bool {
    let digits = name.strip_prefix("a-").unwrap_or_default();
    digits.len() == 16
        && digits
            .bytes()
            .all(|c| c.is_ascii_digit() || (b'a'..=b'f').contains(&c))
}

/// Path below the root of a run, parsed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StepPath {
    /// The commit of a step.
    Manifest {
        /// The step.
        step: u64,
        /// The generation.
        generation: u32,
    },
    /// A file of an attempt.
    Attempt {
        /// The step.
        step: u64,
        /// The attempt.
        attempt: String,
        /// Its name in the folder of the attempt.
        name: String,
    },
}

/// Returns what lies under this key, relative to the root; `None` for what is not ours.
#[must_use]
pub fn parse_path(key: &str) -> Option<StepPath> {
    let (step, rest) = key.strip_prefix(STEPS)?.split_once('/')?;
    let step = number(step)?;
    if let Some((attempt, name)) = rest.split_once('/') {
        let known = is_attempt(attempt) && !name.is_empty() && !name.contains('/');
        return known.then(|| StepPath::Attempt {
            step,
            attempt: attempt.to_owned(),
            name: name.to_owned(),
        });
    }
    let generation = rest.strip_prefix("manifest-")?.strip_suffix(".json")?;
    let generation = u32::try_from(number(generation)?).ok()?;
    (generation > 0).then_some(StepPath::Manifest { step, generation })
}

/// The folder of a step's view: whole files that no lake has (docs/flows/step-view.md).
pub const WHOLE: &str = "whole";

/// Returns where a key or prefix lies in the view of a step: the root of the run, empty or with its slash,
/// the step, and the name in the view.
#[must_use]
pub fn parse_whole_path(key: &str) -> Option<(&str, u64, &str)> {
    let (folder, name) = key.rsplit_once('/')?;
    let (folder, last) = folder.rsplit_once('/')?;
    let (steps, step) = folder.rsplit_once('/')?;
    let root = steps.strip_suffix(STEPS.trim_end_matches('/'))?;
    let is_view = last == WHOLE && (root.is_empty() || root.ends_with('/'));
    is_view.then(|| Some((root, number(step)?, name))).flatten()
}

/// The step whose folder this is, with a slash at the end and relative to the root.
#[must_use]
pub fn step_of_folder(folder: &str) -> Option<u64> {
    number(folder.strip_prefix(STEPS)?.strip_suffix('/')?)
}

/// A path from a manifest, which must be a file of an attempt.
pub fn checked_path(path: &str) -> Result<&str> {
    match parse_path(path) {
        Some(StepPath::Attempt { .. }) => Ok(path),
        _ => Err(Error::new(
            Kind::Corrupt,
            "a path in a manifest does not name a file of an attempt",
        )
        .with("path", path)),
    }
}

/// A decimal number without leading zeros or signs.
fn number(text: &str) -> Option<u64> {
    let plain = !text.is_empty()
        && text.bytes().all(|c| c.is_ascii_digit())
        && (text == "0" || !text.starts_with('0'));
    plain.then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back_as_what_they_are() {
        let step = 1000;
        assert_eq!(
            parse_path(&manifest(step, 2)),
            Some(StepPath::Manifest { step, generation: 2 })
        );
        let path = attempt_file(step, &attempt(7), &data_file(3, 1));
        assert_eq!(path, "steps/1000/a-0000000000000007/rank-00003-001.safetensors");
        assert!(matches!(
            parse_path(&path),
            Some(StepPath::Attempt { step: 1000, .. })
        ));
        assert!(checked_path(&path).is_ok());
        assert_eq!(step_of_folder(&step_folder(step)), Some(step));
        assert_eq!(step_of_folder("steps/x/"), None);
    }

    #[test]
    fn names_in_the_view_of_a_step_are_known() {
        assert_eq!(parse_whole_path("a/b/steps/10/whole/x"), Some(("a/b/", 10, "x")));
        assert_eq!(parse_whole_path("steps/0/whole/"), Some(("", 0, "")));
        for key in [
            "steps/10/whole",
            "asteps/10/whole/x",
            "steps/010/whole/x",
            "steps/10/whole/x/y",
            "steps/x/whole/x",
            "10/whole/x",
            "whole/x",
        ] {
            assert_eq!(parse_whole_path(key), None, "{key}");
        }
    }

    #[test]
    fn foreign_names_are_nobody() {
        for key in [
            "steps/1000/manifest-0.json",
            "steps/01000/manifest-1.json",
            "steps/1000/manifest-1.json.tmp",
            "steps/-1/manifest-1.json",
            "steps/1000/a-7/x",
            "steps/1000/a-0000000000000007/",
            "steps/1000/a-0000000000000007/../x",
            "steps/1000/notes.txt",
            "other/1000/manifest-1.json",
        ] {
            assert_eq!(parse_path(key), None, "{key}");
        }
        assert!(checked_path("steps/1/manifest-1.json").is_err());
    }
}
