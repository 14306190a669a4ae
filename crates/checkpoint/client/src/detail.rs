//! Sizes, ages and durations of steps, for people who look at a run.

use std::collections::BTreeMap;

use forebay_checkpoint::Manifest;
use forebay_checkpoint::attempt_lease::AttemptLease;
use forebay_checkpoint::manifest::{Extent, StepRef};
use forebay_checkpoint::names;
use forebay_client::ItemRange;
use forebay_core::{Kind, Result};

use crate::Root;

/// Details of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepDetail {
    /// The step and the generation that holds.
    pub commit: StepRef,
    /// Time of its commit, milliseconds since 1970 UTC.
    pub created_ms: u64,
    /// From the beginning of the save to the commit, milliseconds, if the lease is still there.
    pub save_ms: Option<u64>,
    /// Ranks that saved together.
    pub world_size: u32,
    /// The step whose files are reused.
    pub parent: Option<StepRef>,
    /// Tensors.
    pub tensors: u64,
    /// Objects.
    pub objects: u64,
    /// Bytes of all tensors and objects, each part once.
    pub bytes: u64,
    /// Of these, bytes that lie in files of other attempts.
    pub reused_bytes: u64,
    /// Of these, bytes that this step stores as differences.
    pub encoded_bytes: u64,
    /// Bytes that these take in its files.
    pub encoded_stored_bytes: u64,
    /// Alarms that were let pass when it was committed.
    pub alarms: u64,
}

impl StepDetail {
    /// From the commit alone.
    #[must_use]
    pub fn of(manifest: &Manifest) -> Self {
        let content = &manifest.content;
        let parts = content
            .tensors
            .values()
            .flat_map(|tensor| tensor.parts.iter().map(|part| &part.bytes));
        let objects = content
            .objects
            .values()
            .flat_map(|objects| objects.iter().map(|object| &object.bytes));
        // Tied tensors may share their bytes.
        let extents: BTreeMap<(u32, [u64; 2]), &Extent> = parts
            .chain(objects)
            .map(|extent| ((extent.file, extent.range), extent))
            .collect();
        let own = names::attempt_file(manifest.step, &manifest.attempt, "");
        let is_own = |extent: &Extent| {
            let file = content.files.get(extent.file as usize);
            file.is_some_and(|file| file.path.starts_with(&own))
        };
        let (own, other): (Vec<&Extent>, Vec<&Extent>) =
            extents.into_values().partition(|extent| is_own(extent));
        let encoded = || own.iter().filter(|extent| extent.encoding.is_some());
        let bytes = |extents: &[&Extent]| extents.iter().map(|extent| extent.bytes()).sum::<u64>();
        Self {
            commit: StepRef {
                step: manifest.step,
                generation: manifest.generation,
            },
            created_ms: manifest.created_ms,
            save_ms: None,
            world_size: manifest.world_size,
            parent: manifest.parent,
            tensors: content.tensors.len() as u64,
            objects: content.objects.len() as u64,
            bytes: bytes(&own) + bytes(&other),
            reused_bytes: bytes(&other),
            encoded_bytes: encoded().map(|extent| extent.bytes()).sum(),
            encoded_stored_bytes: encoded().map(|extent| extent.stored_bytes()).sum(),
            alarms: content.alarms.len() as u64,
        }
    }

    /// Returns how many times larger the bytes are that are stored as differences; `None` if none are.
    #[must_use]
    pub fn encoded_ratio(&self) -> Option<f64> {
        (self.encoded_stored_bytes > 0).then(|| self.encoded_bytes as f64 / self.encoded_stored_bytes as f64)
    }

    /// The part of the bytes that was not written again.
    #[must_use]
    pub fn reuse_ratio(&self) -> f64 {
        if self.bytes == 0 {
            return 0.0;
        }
        self.reused_bytes as f64 / self.bytes as f64
    }
}

impl Root {
    /// Returns what every committed step is like, oldest first. Reads every manifest.
    pub fn steps_detail(&self) -> Result<Vec<StepDetail>> {
        let mut details = Vec::new();
        for (step, generation) in self.steps()? {
            match self.manifest_of(step, generation) {
                Ok(manifest) => details.push(self.detail(&manifest)?),
                // Pruned since it was listed.
                Err(error) if error.kind() == Kind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(details)
    }

    /// Returns what the step of this manifest is like.
    pub fn detail(&self, manifest: &Manifest) -> Result<StepDetail> {
        let mut detail = StepDetail::of(manifest);
        let path = names::attempt_file(manifest.step, &manifest.attempt, names::OPEN);
        let open = self
            .client()
            .get(&self.name(&path)?, ItemRange::Whole, None)
            .and_then(|view| AttemptLease::decode(&view));
        detail.save_ms = open
            .ok()
            .and_then(|open| manifest.created_ms.checked_sub(open.begun_ms));
        Ok(detail)
    }
}
