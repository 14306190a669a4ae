//! Manifests that vouch for a dataset: a function of what was named, not of what lies there.
//!
//! A folder that was named has its own; a shard that was named, and a document that lists shards, that of the
//! folder they lie in. What lies inside of another such folder belongs to that one. Several folders of a
//! bucket may have one manifest together, in the folder that they have in common.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::source::{Origins, Source, folder_of};

/// A folder of a bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Folder {
    pub(super) bucket: String,
    /// With its slash; empty for the whole bucket.
    pub(super) prefix: String,
}

impl Folder {
    /// Returns whether an object lies in it.
    pub(super) fn holds(&self, bucket: &str, key: &str) -> bool {
        self.bucket == bucket && key.starts_with(&self.prefix)
    }
}

impl fmt::Display for Folder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.bucket, self.prefix)
    }
}

/// Candidate folders for the manifests of one bucket.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Choice {
    /// One for all: what the folders have in common; `None` if there is only one folder.
    pub(super) shared: Option<Folder>,
    /// Else one in each of these, sorted; none lies in another.
    pub(super) folders: Vec<Folder>,
}

/// Returns where the manifests of a dataset may be, by bucket.
pub(super) fn choices(source: &Source, origins: &Origins) -> Vec<Choice> {
    let mut buckets: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (bucket, prefix) in &origins.folders {
        buckets.entry(bucket).or_default().insert(prefix);
    }
    let documents = origins.documents.iter().map(|(name, _)| name);
    let shards = match source {
        Source::Shards { shards, .. } => shards.as_slice(),
        Source::Raw(_) => &[],
    };
    for name in documents.chain(shards.iter().map(|shard| &shard.name)) {
        let folders = buckets.entry(name.bucket()).or_default();
        folders.insert(folder_of(name.key()));
    }
    buckets
        .into_iter()
        .map(|(bucket, prefixes)| choice(bucket, prefixes))
        .collect()
}

fn choice(bucket: &str, prefixes: BTreeSet<&str>) -> Choice {
    let mut outermost: Vec<&str> = Vec::new();
    for prefix in prefixes {
        // What starts with a prefix comes right behind it.
        if outermost.last().is_none_or(|last| !prefix.starts_with(last)) {
            outermost.push(prefix);
        }
    }
    let mut shared = outermost.first().copied().unwrap_or_default();
    for prefix in &outermost {
        while !prefix.starts_with(shared) {
            shared = folder_of(shared.trim_end_matches('/'));
        }
    }
    let folder = |prefix: &str| Folder {
        bucket: bucket.to_owned(),
        prefix: prefix.to_owned(),
    };
    Choice {
        shared: (outermost.len() > 1).then(|| folder(shared)),
        folders: outermost.into_iter().map(folder).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(prefixes: &[&str]) -> (Option<String>, Vec<String>) {
        let choice = choice("bkt", prefixes.iter().copied().collect());
        let shared = choice.shared.map(|folder| folder.prefix);
        (
            shared,
            choice.folders.into_iter().map(|folder| folder.prefix).collect(),
        )
    }

    #[test]
    fn a_folder_vouches_for_what_lies_in_it_and_several_may_have_one_manifest_together() {
        for (prefixes, shared, folders) in [
            (&["a/"][..], None, &["a/"][..]),
            (&[""], None, &[""]),
            (&["a/", "a/b/", "a/c/"], None, &["a/"]),
            (&["a/x/", "a/y/"], Some("a/"), &["a/x/", "a/y/"]),
            (&["a/b/", "ab/", "a/b/c/"], Some(""), &["a/b/", "ab/"]),
            (&["", "a/"], None, &[""]),
            (&["a-/", "a/", "a/b/"], Some(""), &["a-/", "a/"]),
        ] {
            let expected = folders.iter().map(|&folder| folder.to_owned()).collect();
            assert_eq!(chosen(prefixes), (shared.map(str::to_owned), expected));
        }
    }
}
