//! The commit: rank 0 waits for the records of all ranks (`records.rs`), merges them and creates the
//! manifest; the others wait for it.
//!
//! The manifest is created with the generation after the one that was there when the save began: whoever
//! committed in between wins, and this save is a conflict that names the winner. A create whose answer was
//! lost is settled by reading the manifest: an attempt has its name to itself.

use std::collections::BTreeSet;

use bytes::Bytes;
use forebay_checkpoint::manifest::{Record, StepRef};
use forebay_checkpoint::merge::{Attempt, merge};
use forebay_checkpoint::{Manifest, names};
use forebay_core::{Error, Kind, Result};

use super::documents;
use super::fail_point::fail_point;
use super::records;
use super::save::Save;
use super::saves::Saves;
use super::work::unix_ms;

/// Last thing to do when everything else is in the lake.
#[derive(Debug)]
pub(super) enum Ready {
    /// Another rank made the commit.
    Committed(u32),
    /// This rank makes it.
    ToCommit(Commit),
}

/// A manifest that is ready to be created.
#[derive(Debug)]
pub(super) struct Commit {
    generation: u32,
    bytes: Bytes,
}

/// Share of this rank.
#[derive(Debug)]
pub(super) struct OwnShare {
    pub(super) own: Record,
    pub(super) parent: Option<StepRef>,
    /// The generation that was there when the save began.
    pub(super) base: u32,
}

/// Waits for the other ranks.
pub(super) async fn prepare(saves: &Saves, save: &Save, whole: OwnShare) -> Result<Ready> {
    let OwnShare { own, parent, base } = whole;
    if save.begin.rank != 0 {
        return await_manifest(saves, save, base).await.map(Ready::Committed);
    }
    let records = records::await_all(saves, save, own).await?;
    let generation = base
        .checked_add(1)
        .ok_or_else(|| Error::new(Kind::InvalidInput, "a step has too many generations"))?;
    let (step, world_size) = (save.begin.step, save.begin.world_size);
    let (name, own_folder) = (save.attempt.clone(), save.path(""));
    let created_ms = unix_ms(save.clock.wall());
    let bytes = documents::heavy(move || {
        let attempt = Attempt {
            step,
            name: &name,
            world_size,
        };
        let content = merge(attempt, records)?;
        let mut manifest = Manifest::new(step, generation, &name, world_size, content);
        manifest.created_ms = created_ms;
        let mut files = manifest.content.files.iter();
        if files.any(|file| !file.path.starts_with(&own_folder)) {
            manifest.parent = parent;
        }
        manifest.encode().map(Bytes::from)
    });
    let bytes = bytes.await?;
    Ok(Ready::ToCommit(Commit { generation, bytes }))
}

impl Commit {
    /// Creates the manifest. Returns the generation; `Conflict` if another was faster.
    ///
    /// Others may have committed the generation of this one and a higher one, and pruned the first: then the
    /// create goes through, but no reader would ever look at it. So a higher generation is looked for before
    /// and after.
    pub(super) async fn make(self, save: &Save) -> Result<u32> {
        let path = names::manifest(save.begin.step, self.generation);
        self.check_highest(save).await?;
        fail_point("before-commit");
        let created = save
            .persist("commit the step", || save.lake.create(&path, self.bytes.clone()))
            .await;
        match created {
            Ok(()) => fail_point("after-commit"),
            Err(error) => self.settle(save, &path, error).await?,
        }
        match self.check_highest(save).await {
            Err(error) if error.kind() == Kind::Conflict => {
                // Nobody looks at it, so one that stays is in nobody's way.
                let _ = save
                    .persist("take the commit back", || save.lake.delete(&path))
                    .await;
                Err(error)
            }
            // It is committed; a lake that fails now takes nothing back.
            _ => Ok(self.generation),
        }
    }

    /// After a create that failed: whether the manifest is there nevertheless, and one's own.
    async fn settle(&self, save: &Save, path: &str, error: Error) -> Result<()> {
        let found = match save.lake.read(path).await {
            Ok(Some(found)) => documents::manifest(found).await,
            Ok(None) => return Err(error),
            Err(_) => {
                let message =
                    "the lake does not say whether the step was committed; look for it when the lake is back";
                return Err(Error::new(error.kind(), message)
                    .with("manifest", path)
                    .caused_by(error));
            }
        };
        match found {
            Ok(found) if found.attempt == save.attempt => Ok(()),
            found => Err(lost(save, self.generation, found.ok().as_ref())),
        }
    }

    /// `Conflict` if a higher generation than this one is there.
    async fn check_highest(&self, save: &Save) -> Result<()> {
        let step = save.begin.step;
        let generations = save
            .persist("look for other commits", || save.lake.generations(step))
            .await?;
        let higher = generations.last().copied();
        let Some(higher) = higher.filter(|highest| *highest > self.generation) else {
            return Ok(());
        };
        let path = names::manifest(step, higher);
        let found = save.lake.read(&path).await.ok().flatten();
        let winner = match found {
            Some(found) => documents::manifest(found).await.ok(),
            None => None,
        };
        Err(lost(save, higher, winner.as_ref()))
    }
}

/// The generation that this attempt has committed already, in an earlier incarnation of the node.
pub(super) async fn own(save: &Save) -> Result<Option<u32>> {
    let step = save.begin.step;
    let generations = save
        .persist("look for the commit", || save.lake.generations(step))
        .await?;
    for generation in generations.into_iter().rev() {
        let path = names::manifest(step, generation);
        let found = save.persist("read the commit", || save.lake.read(&path)).await?;
        if let Some(found) = found
            && let Ok(manifest) = documents::manifest(found).await
            && manifest.attempt == save.attempt
        {
            return Ok(Some(generation));
        }
    }
    Ok(None)
}

/// Another committer was faster.
fn lost(save: &Save, generation: u32, winner: Option<&Manifest>) -> Error {
    let message = "another save of this step was committed first; nothing of this one is visible";
    let error = Error::new(Kind::Conflict, message)
        .with("step", save.begin.step)
        .with("generation", generation);
    match winner {
        Some(winner) => error.with("attempt", &winner.attempt),
        None => error,
    }
}

/// Waits for the commit of rank 0.
async fn await_manifest(saves: &Saves, save: &Save, base: u32) -> Result<u32> {
    let mut news = saves.news();
    let mut looked_at = BTreeSet::new();
    let (mut pause, pause_max) = records::POLL;
    loop {
        let step = save.begin.step;
        let generations = save
            .persist("look for the commit", || save.lake.generations(step))
            .await?;
        for generation in generations.into_iter().filter(|generation| *generation > base) {
            if !looked_at.insert(generation) {
                continue;
            }
            let path = names::manifest(step, generation);
            let found = save.persist("read the commit", || save.lake.read(&path)).await?;
            let Some(bytes) = found else { continue };
            let manifest = documents::manifest(bytes)
                .await
                .map_err(|error| error.with("manifest", path))?;
            return if manifest.attempt == save.attempt {
                Ok(generation)
            } else {
                Err(lost(save, generation, Some(&manifest)))
            };
        }
        records::name_missing(save).await?;
        tokio::select! {
            _ = news.changed() => {}
            () = tokio::time::sleep(pause) => pause = (pause * 2).min(pause_max),
        }
    }
}

#[cfg(test)]
mod tests;
