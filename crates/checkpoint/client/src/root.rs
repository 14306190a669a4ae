//! The root of a run: which steps there are, and the commit of each.
//!
//! A step exists when a manifest of it does. Of several generations the highest holds. What lies there
//! without a manifest is an attempt under way, or what a crash left; readers never see it.

use std::collections::BTreeMap;
use std::fmt;

use forebay_checkpoint::Manifest;
use forebay_checkpoint::names::{self, StepPath};
use forebay_client::{Client, Entry, ItemRange, ListOptions, ListedObject, Name};
use forebay_core::{Error, Kind, Result};

use crate::Step;

/// Steps that an error names, newest first.
const NAMED_STEPS_MAX: usize = 5;

/// The folder of a run in a bucket.
#[derive(Clone)]
pub struct Root {
    client: Client,
    bucket: String,
    /// Empty, or ends with a slash.
    prefix: String,
}

impl Root {
    /// The run at `bucket/prefix` or `forebay://bucket/prefix`.
    pub fn open(client: Client, url: &str) -> Result<Self> {
        let plain = url
            .strip_prefix("forebay://")
            .unwrap_or(url)
            .trim_end_matches('/');
        let (bucket, key) = plain.split_once('/').unwrap_or((plain, ""));
        let prefix = if key.is_empty() {
            String::new()
        } else {
            format!("{key}/")
        };
        // Checks both names.
        Name::new(bucket, &format!("{prefix}{}", names::STEPS))?;
        Ok(Self {
            client,
            bucket: bucket.to_owned(),
            prefix,
        })
    }

    /// The client that everything goes through.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The object at a path below the root.
    pub fn name(&self, path: &str) -> Result<Name> {
        Name::new(&self.bucket, &format!("{}{path}", self.prefix))
    }

    /// Committed steps with their highest generation, in order. Lists every file of the run.
    pub fn steps(&self) -> Result<BTreeMap<u64, u32>> {
        let mut steps = BTreeMap::new();
        self.for_each_below(names::STEPS, |path, _| {
            if let Some(StepPath::Manifest { step, generation }) = names::parse_path(path) {
                let highest = steps.entry(step).or_insert(generation);
                *highest = generation.max(*highest);
            }
            Ok(())
        })?;
        Ok(steps)
    }

    /// The newest committed step. Lists folders of steps and looks into the highest until one has a manifest.
    pub fn latest(&self) -> Result<Option<u64>> {
        let mut folders = Vec::new();
        for entry in self.listing(names::STEPS, Some("/"))? {
            let Entry::Prefix(folder) = entry? else { continue };
            folders.extend(names::step_of_folder(
                folder.strip_prefix(&self.prefix).unwrap_or_default(),
            ));
        }
        folders.sort_unstable();
        for step in folders.into_iter().rev() {
            if self.generation(step)?.is_some() {
                return Ok(Some(step));
            }
        }
        Ok(None)
    }

    /// The highest generation of a step, if it was committed.
    pub fn generation(&self, step: u64) -> Result<Option<u32>> {
        let mut highest = None;
        self.for_each_below(&format!("{}manifest-", names::step_folder(step)), |path, _| {
            if let Some(StepPath::Manifest { generation, .. }) = names::parse_path(path) {
                highest = highest.max(Some(generation));
            }
            Ok(())
        })?;
        Ok(highest)
    }

    /// The commit of a step, its highest generation.
    pub fn manifest(&self, step: u64) -> Result<Manifest> {
        match self.generation(step)? {
            Some(generation) => self.manifest_of(step, generation),
            None => Err(self.no_step(step)),
        }
    }

    /// One commit of a step.
    pub fn manifest_of(&self, step: u64, generation: u32) -> Result<Manifest> {
        let path = names::manifest(step, generation);
        let view = match self.client.get(&self.name(&path)?, ItemRange::Whole, None) {
            Err(error) if error.kind() == Kind::NotFound => return Err(self.no_step(step)),
            other => other?,
        };
        let manifest = Manifest::decode(&view).map_err(|error| error.with("manifest", &path))?;
        if (manifest.step, manifest.generation) != (step, generation) {
            let message = "a manifest is of another step or generation than its name says";
            let error = Error::new(Kind::Corrupt, message).with("manifest", path);
            return Err(error
                .with("step", manifest.step)
                .with("generation", manifest.generation));
        }
        Ok(manifest)
    }

    /// A committed step, ready to be read.
    pub fn step(&self, step: u64) -> Result<Step> {
        Ok(Step::new(self.clone(), self.manifest(step)?))
    }

    /// Every object whose path below the root starts so.
    pub(crate) fn for_each_below(
        &self,
        prefix: &str,
        mut see: impl FnMut(&str, &ListedObject) -> Result<()>,
    ) -> Result<()> {
        for entry in self.listing(prefix, None)? {
            let Entry::Object(object) = entry? else { continue };
            see(object.key.strip_prefix(&self.prefix).unwrap_or_default(), &object)?;
        }
        Ok(())
    }

    fn listing(&self, prefix: &str, delimiter: Option<&str>) -> Result<forebay_client::Listing> {
        let options = ListOptions {
            prefix: format!("{}{prefix}", self.prefix),
            delimiter: delimiter.map(str::to_owned),
            ..ListOptions::default()
        };
        self.client.list(&self.bucket, options)
    }

    /// Returns what to say when a step is not there.
    pub(crate) fn no_step(&self, step: u64) -> Error {
        let message = "there is no such step; nothing is loaded from what was never committed or was pruned";
        let error = Error::new(Kind::NotFound, message).with("step", step);
        let Ok(steps) = self.steps() else { return error };
        let newest = steps.keys().rev().take(NAMED_STEPS_MAX);
        let newest: Vec<_> = newest.map(u64::to_string).collect();
        error.with("newest_steps", newest.join(", "))
    }
}

impl fmt::Debug for Root {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Root(forebay://{}/{})", self.bucket, self.prefix)
    }
}

impl fmt::Display for Root {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let prefix = self.prefix.trim_end_matches('/');
        write!(f, "forebay://{}/{prefix}", self.bucket)
    }
}
