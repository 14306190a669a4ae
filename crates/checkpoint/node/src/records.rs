//! Records of ranks: rank 0 waits for all of them, and looks whether everything that they name lies in the
//! lake before anything is committed from them.
//!
//! Records come through the lake, so nodes need not know each other; ranks of this node are believed in
//! memory alone, because what the lake has of them may be of an earlier incarnation. A record is the promise
//! that its files lie there as it says. A node that is started again may find that they do not (the step
//! whose files it reused was pruned, or files were lost); it removes its record *before* it writes anything
//! again. So rank 0 looks at files first and then once more at the records that it has read: one that is gone
//! or another by then is waited for anew.
//!
//! Limits: heads that are asked for at once.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use forebay_checkpoint::manifest::Record;
use forebay_checkpoint::names;
use forebay_core::{Error, Kind, Result, Version, missing_ranks};
use forebay_wire::saves::SavePhase;
use futures::{StreamExt, TryStreamExt};

use super::documents;
use super::fail_point::fail_point;
use super::parent::Parent;
use super::save::Save;
use super::saves::Saves;

/// Pause between looks for the records of other ranks, at first and at most.
pub(super) const POLL: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(2));
/// Files that are looked at at once.
const HEADS_MAX: usize = 16;

/// A record and, if it came through the lake, which version of it.
struct KnownRecord {
    record: Record,
    version: Option<Version>,
}

/// A file that is not as a record says.
#[derive(Debug)]
struct MissingFile {
    rank: u32,
    path: String,
    bytes: u64,
    found: Option<u64>,
}

/// The records of all ranks, after a look at everything that they name.
pub(super) async fn await_all(saves: &Saves, save: &Save, own: Record) -> Result<Vec<Record>> {
    let mut news = saves.news();
    let own = KnownRecord {
        record: own,
        version: None,
    };
    let mut known = BTreeMap::from([(own.record.rank, own)]);
    let world_size = save.begin.world_size;
    let (mut pause, pause_max) = POLL;
    loop {
        collect(saves, save, &mut known).await?;
        let there: BTreeSet<u32> = known.keys().copied().collect();
        let mut waits_for = missing_ranks(world_size, &there);
        if waits_for.is_empty() {
            match settle(save, &mut known).await? {
                Settled::Sound => {
                    save.wait_for_ranks(None);
                    return Ok(known.into_values().map(|known| known.record).collect());
                }
                Settled::Changed => continue,
                Settled::Awaited(ranks) => waits_for = ranks,
            }
        }
        save.wait_for_ranks(Some(waits_for));
        tokio::select! {
            _ = news.changed() => {}
            () = tokio::time::sleep(pause) => pause = (pause * 2).min(pause_max),
        }
    }
}

/// Remembers who has not come, so that the deadline can name them.
pub(super) async fn name_missing(save: &Save) -> Result<()> {
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

/// Takes the records that have come since.
async fn collect(saves: &Saves, save: &Save, known: &mut BTreeMap<u32, KnownRecord>) -> Result<()> {
    let mut here = BTreeSet::new();
    for sibling in saves.siblings(save) {
        let rank = sibling.begin.rank;
        if sibling.state().phase == SavePhase::Failed {
            continue;
        }
        here.insert(rank);
        if known.get(&rank).is_some_and(|known| known.version.is_none()) {
            continue;
        }
        // What was read before this node took the rank up is of its earlier incarnation.
        known.remove(&rank);
        if let Some(record) = sibling.record() {
            let record = Record::clone(&record);
            let version = None;
            known.insert(rank, KnownRecord { record, version });
        }
    }
    if known.len() < save.begin.world_size as usize {
        read_new(save, &here, known).await?;
    }
    Ok(())
}

/// Reads the records that came to the lake since, but for ranks of this node.
async fn read_new(save: &Save, here: &BTreeSet<u32>, known: &mut BTreeMap<u32, KnownRecord>) -> Result<()> {
    let (step, world_size) = (save.begin.step, save.begin.world_size);
    let there = save
        .persist("look for records", || {
            save.lake.recorded_ranks(step, &save.attempt, world_size)
        })
        .await?;
    for rank in there {
        if known.contains_key(&rank) || here.contains(&rank) {
            continue;
        }
        let path = save.path(&names::record_file(rank));
        let found = save
            .persist("read a record", || save.lake.read_version(&path))
            .await?;
        let Some((bytes, version)) = found else { continue };
        let record = documents::record(bytes)
            .await
            .map_err(|error| error.with("record", path))?;
        let version = Some(version);
        known.insert(rank, KnownRecord { record, version });
    }
    Ok(())
}

/// Outcome of a look at everything.
enum Settled {
    /// It is all there.
    Sound,
    /// A record is another by now.
    Changed,
    /// These ranks, and why, have to write again what was lost.
    Awaited(String),
}

/// Looks at all files, and then again at the records.
async fn settle(save: &Save, known: &mut BTreeMap<u32, KnownRecord>) -> Result<Settled> {
    fail_point("before-look");
    let unsound = first_unsound(save, known.values().map(|known| &known.record)).await?;
    let changed = changed_since(save, known).await?;
    known.retain(|rank, _| !changed.contains(rank));
    let unsound = match unsound {
        _ if !changed.is_empty() => return Ok(Settled::Changed),
        None => return Ok(Settled::Sound),
        Some(unsound) => unsound,
    };
    let came_by_lake = known
        .get(&unsound.rank)
        .is_some_and(|known| known.version.is_some());
    if !save.is_resumed || !came_by_lake {
        return Err(unsound.error());
    }
    // That rank may have been staged on the disk of another node, which writes it again when it is started.
    known.remove(&unsound.rank);
    Ok(Settled::Awaited(format!(
        "{} (its record names {}, which is not in the lake as it says)",
        unsound.rank, unsound.path
    )))
}

/// Ranks whose records are gone or others than those that were read.
async fn changed_since(save: &Save, known: &BTreeMap<u32, KnownRecord>) -> Result<BTreeSet<u32>> {
    let mut looks = Vec::new();
    for (rank, known) in known {
        if let Some(version) = &known.version {
            looks.push(is_changed(save, *rank, version));
        }
    }
    let looks = futures::stream::iter(looks).buffer_unordered(HEADS_MAX);
    let looked: Vec<Option<u32>> = looks.try_collect().await?;
    Ok(looked.into_iter().flatten().collect())
}

/// The rank, if its record is not this version of it.
async fn is_changed(save: &Save, rank: u32, version: &Version) -> Result<Option<u32>> {
    let path = save.path(&names::record_file(rank));
    let now = save.persist("look at a record", || save.lake.head(&path)).await?;
    let is_same = now.is_some_and(|now| now.version == *version);
    Ok((!is_same).then_some(rank))
}

impl MissingFile {
    fn error(self) -> Error {
        let message =
            "a file of this save is not in the lake as its rank wrote it; nothing was committed, save again";
        let found = self
            .found
            .map_or_else(|| "none".to_owned(), |bytes| bytes.to_string());
        Error::new(Kind::Corrupt, message)
            .with("rank", self.rank)
            .with("file", self.path)
            .with("bytes", self.bytes)
            .with("found", found)
    }
}

/// A file or side table that these records name and that is not in the lake with its size; `None` if there is
/// no such.
async fn first_unsound(save: &Save, records: impl Iterator<Item = &Record>) -> Result<Option<MissingFile>> {
    let mut named: HashMap<&str, (u32, u64)> = HashMap::new();
    for record in records {
        for (path, bytes) in files_of(record) {
            named.entry(path).or_insert((record.rank, bytes));
        }
    }
    let mut looks = Vec::with_capacity(named.len());
    for (path, (rank, bytes)) in named {
        looks.push(look(save, rank, path, bytes));
    }
    let mut looks = futures::stream::iter(looks).buffer_unordered(HEADS_MAX);
    while let Some(unsound) = looks.try_next().await? {
        if unsound.is_some() {
            return Ok(unsound);
        }
    }
    Ok(None)
}

async fn look(save: &Save, rank: u32, path: &str, bytes: u64) -> Result<Option<MissingFile>> {
    let info = save.persist("look at a file", || save.lake.head(path)).await?;
    let found = info.map(|info| info.bytes);
    let is_sound = found == Some(bytes);
    Ok((!is_sound).then(|| MissingFile {
        rank,
        path: path.to_owned(),
        bytes,
        found,
    }))
}

/// Files and side tables that a record names, with their sizes.
fn files_of(record: &Record) -> impl Iterator<Item = (&str, u64)> {
    let content = &record.content;
    let files = content.files.iter().map(|file| (file.path.as_str(), file.bytes));
    let tables = content
        .tables
        .iter()
        .map(|table| (table.path.as_str(), table.bytes));
    files.chain(tables)
}

/// Returns what an earlier incarnation of this rank recorded, if everything that it names is in the lake and
/// stays there. Else the record goes, before anything is written again.
pub(super) async fn left_before_restart(save: &Save, parent: Option<&Parent>) -> Result<Option<Record>> {
    let path = save.path(&names::record_file(save.begin.rank));
    let found = save.persist("read a record", || save.lake.read(&path)).await?;
    let Some(bytes) = found else { return Ok(None) };
    if let Ok(record) = documents::record(bytes).await
        && is_of(&record, save)
        && is_kept(&record, save, parent)
        && first_unsound(save, std::iter::once(&record)).await?.is_none()
    {
        return Ok(Some(record));
    }
    fail_point("before-withdrawal");
    save.persist("remove a record", || save.lake.delete(&path))
        .await?;
    fail_point("after-withdrawal");
    Ok(None)
}

fn is_of(record: &Record, save: &Save) -> bool {
    let begin = &save.begin;
    (record.step, record.rank, record.world_size) == (begin.step, begin.rank, begin.world_size)
        && record.attempt == save.attempt
}

/// Returns whether what it reuses is of the parent that the lease names now: nobody collects that.
fn is_kept(record: &Record, save: &Save, parent: Option<&Parent>) -> bool {
    let own_folder = save.path("");
    let kept = parent.map(Parent::paths).unwrap_or_default();
    files_of(record).all(|(path, _)| path.starts_with(&own_folder) || kept.contains(path))
}

#[cfg(test)]
mod tests;
