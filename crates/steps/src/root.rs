//! The root of a run: which steps there are, and the commit of each.
//!
//! A step exists when a manifest of it does. Of several generations the highest holds. What lies there without a manifest is an attempt under way, or
//! what a crash left; readers never see it.

use std::collections::BTreeMap;

use forebay_checkpoint::Manifest;
use forebay_checkpoint::names::{self, Place};
use forebay_client::{Client, Entry, ItemRange, ListOptions, Name};
use forebay_core::{Error, Kind, Result};

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

    /// The object at a path below the root.
    pub fn name(&self, path: &str) -> Result<Name> {
        Name::new(&self.bucket, &format!("{}{path}", self.prefix))
    }

    /// Committed steps with their highest generation, in order.
    pub fn steps(&self) -> Result<BTreeMap<u64, u32>> {
        let options = ListOptions {
            prefix: format!("{}{}", self.prefix, names::STEPS),
            ..ListOptions::default()
        };
        let mut steps = BTreeMap::new();
        for entry in self.client.list(&self.bucket, options)? {
            let Entry::Object(object) = entry? else { continue };
            let path = object.key.strip_prefix(&self.prefix).unwrap_or_default();
            if let Some(Place::Manifest { step, generation }) = names::place(path) {
                let highest = steps.entry(step).or_insert(generation);
                *highest = generation.max(*highest);
            }
        }
        Ok(steps)
    }

    /// The commit of a step, its highest generation.
    pub fn manifest(&self, step: u64) -> Result<Manifest> {
        let steps = self.steps()?;
        let Some(generation) = steps.get(&step) else {
            let left: Vec<_> = steps.keys().rev().take(5).map(u64::to_string).collect();
            let error = Error::new(
                Kind::NotFound,
                "there is no such step; nothing is loaded from what was never committed",
            );
            return Err(error.with("step", step).with("newest_steps", left.join(", ")));
        };
        let path = names::manifest(step, *generation);
        let view = self.client.get(&self.name(&path)?, ItemRange::Whole, None)?;
        Manifest::decode(&view).map_err(|error| error.with("manifest", path))
    }
}
