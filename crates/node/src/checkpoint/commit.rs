//! The commit: rank 0 waits for the records of all ranks, merges them and creates the manifest; the others wait for it.
//!
//! Records come through the lake, so nodes need not know each other; ranks of this node are looked at in memory first. The manifest is created with the
//! generation after the one that was there when the save began: whoever committed in between wins, and this save is a conflict that names the winner. A
//! create whose answer was lost is settled by reading the manifest: an attempt has its name to itself.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use forebay_checkpoint::manifest::{Record, StepRef};
use forebay_checkpoint::merge::{Attempt, merge, missing_ranks};
use forebay_checkpoint::{Manifest, names};
use forebay_core::{Error, Kind, Result};

use super::fail_point::fail_point;
use super::save::Save;
use super::saves::Saves;
use super::work::unix_ms;

/// How often the lake is asked for what other ranks wrote, at first and at most.
const POLL: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(2));

/// What is left to do when everything else is in the lake.
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

/// What this rank has done.
#[derive(Debug)]
pub(super) struct Whole {
    pub(super) own: Record,
    pub(super) parent: Option<StepRef>,
    /// The generation that was there when the save began.
    pub(super) base: u32,
}

/// Waits for the other ranks.
pub(super) async fn prepare(saves: &Saves, save: &Save, whole: Whole) -> Result<Ready> {
    let Whole { own, parent, base } = whole;
    if save.begin.rank != 0 {
        return await_manifest(saves, save, base).await.map(Ready::Committed);
    }
    let records = await_records(saves, save, own).await?;
    let attempt = Attempt {
        step: save.begin.step,
        name: &save.attempt,
        world_size: save.begin.world_size,
    };
    let content = merge(attempt, records)?;
    let generation = base
        .checked_add(1)
        .ok_or_else(|| Error::new(Kind::InvalidInput, "a step has too many generations"))?;
    let mut manifest = Manifest::new(
        save.begin.step,
        generation,
        &save.attempt,
        save.begin.world_size,
        content,
    );
    manifest.created_ms = unix_ms(save.clock.wall());
    let own_folder = save.path("");
    let mut files = manifest.content.files.iter();
    if files.any(|file| !file.path.starts_with(&own_folder)) {
        manifest.parent = parent;
    }
    let bytes = Bytes::from(manifest.encode()?);
    Ok(Ready::ToCommit(Commit { generation, bytes }))
}

impl Commit {
    /// Creates the manifest. Returns the generation; `Conflict` if another was faster.
    pub(super) async fn make(self, save: &Save) -> Result<u32> {
        let path = names::manifest(save.begin.step, self.generation);
        fail_point("before-commit");
        let created = save
            .persist("commit the step", || save.lake.create(&path, self.bytes.clone()))
            .await;
        let error = match created {
            Ok(()) => {
                fail_point("after-commit");
                return Ok(self.generation);
            }
            Err(error) => error,
        };
        let found = match save.lake.read(&path).await {
            Ok(Some(found)) => Manifest::decode(&found),
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
            Ok(found) if found.attempt == save.attempt => Ok(self.generation),
            found => Err(lost(save, self.generation, found.ok().as_ref())),
        }
    }
}

/// The generation that this attempt has committed already, in a former life of the node.
pub(super) async fn own(save: &Save) -> Result<Option<u32>> {
    let step = save.begin.step;
    let generations = save
        .persist("look for the commit", || save.lake.generations(step))
        .await?;
    for generation in generations.into_iter().rev() {
        let path = names::manifest(step, generation);
        let found = save.persist("read the commit", || save.lake.read(&path)).await?;
        let manifest = found.as_deref().map(Manifest::decode);
        if let Some(Ok(manifest)) = manifest
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

/// The records of all ranks.
async fn await_records(saves: &Saves, save: &Save, own: Record) -> Result<Vec<Record>> {
    let mut news = saves.news();
    let mut records = BTreeMap::from([(own.rank, own)]);
    let world_size = save.begin.world_size;
    let (mut pause, pause_max) = POLL;
    loop {
        for sibling in saves.siblings(save) {
            if let Some(record) = sibling.record() {
                records
                    .entry(record.rank)
                    .or_insert_with(|| Record::clone(&record));
            }
        }
        if records.len() < world_size as usize {
            read_records(save, &mut records).await?;
        }
        if records.len() == world_size as usize {
            save.wait_for_ranks(None);
            return Ok(records.into_values().collect());
        }
        let there: BTreeSet<u32> = records.keys().copied().collect();
        save.wait_for_ranks(Some(missing_ranks(world_size, &there)));
        tokio::select! {
            _ = news.changed() => {}
            () = tokio::time::sleep(pause) => pause = (pause * 2).min(pause_max),
        }
    }
}

/// Reads the records that came to the lake since.
async fn read_records(save: &Save, records: &mut BTreeMap<u32, Record>) -> Result<()> {
    let (step, world_size) = (save.begin.step, save.begin.world_size);
    let there = save
        .persist("look for records", || {
            save.lake.recorded_ranks(step, &save.attempt, world_size)
        })
        .await?;
    for rank in there {
        if records.contains_key(&rank) {
            continue;
        }
        let path = save.path(&names::record_file(rank));
        let found = save.persist("read a record", || save.lake.read(&path)).await?;
        let Some(bytes) = found else { continue };
        let record = Record::decode(&bytes).map_err(|error| error.with("record", path))?;
        records.insert(rank, record);
    }
    Ok(())
}

/// Waits for the commit of rank 0.
async fn await_manifest(saves: &Saves, save: &Save, base: u32) -> Result<u32> {
    let mut news = saves.news();
    let mut looked_at = BTreeSet::new();
    let (mut pause, pause_max) = POLL;
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
            let manifest = Manifest::decode(&bytes).map_err(|error| error.with("manifest", path))?;
            return if manifest.attempt == save.attempt {
                Ok(generation)
            } else {
                Err(lost(save, generation, Some(&manifest)))
            };
        }
        name_missing(save).await?;
        tokio::select! {
            _ = news.changed() => {}
            () = tokio::time::sleep(pause) => pause = (pause * 2).min(pause_max),
        }
    }
}

/// Remembers who has not come, so that the deadline can name them.
async fn name_missing(save: &Save) -> Result<()> {
    let (step, world_size) = (save.begin.step, save.begin.world_size);
    let there = save
        .persist("look for records", || {
            save.lake.recorded_ranks(step, &save.attempt, world_size)
        })
        .await?;
    let missing = missing_ranks(world_size, &there);
    save.wait_for_ranks((!missing.is_empty()).then_some(missing));
    Ok(())
}
