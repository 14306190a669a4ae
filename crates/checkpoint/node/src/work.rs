//! The task of a save: lease, files and objects as they come, then the rank's documents and the commit.
//!
//! Everything up to the commit is given up when the deadline passes, the client goes away before it has
//! staged, or somebody aborts. The commit itself is not: once the manifest is on its way to the lake, only
//! the lake can say what became of it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use forebay_checkpoint::attempt_lease::AttemptLease;
use forebay_checkpoint::manifest::Record;
use forebay_checkpoint::names;
use forebay_core::{Error, Kind, Result};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::attempt_lease;
use super::commit::{self, OwnShare, Ready};
use super::fail_point::fail_point;
use super::file::{self, WrittenFile};
use super::parent::{self, Parent};
use super::record::{self, StagedObject};
use super::records;
use super::save::{Save, Work};
use super::saves::Saves;

/// Files of one save that are hashed or written at once.
const FILES_AT_ONCE_MAX: usize = 4;

/// Runs a save to its end.
pub(super) async fn run(saves: Arc<Saves>, save: Arc<Save>, queue: mpsc::Receiver<Work>) {
    let ready = tokio::select! {
        biased;
        why = save.given_up() => Err(why),
        ready = tokio::time::timeout_at(save.deadline, prepare(&saves, &save, queue)) => {
            ready.unwrap_or_else(|_| Err(save.overdue()))
        }
    };
    let outcome = match ready {
        Ok(Ready::Committed(generation)) => Ok(generation),
        Ok(Ready::ToCommit(commit)) => commit.make(&save).await,
        Err(error) => Err(error),
    };
    match &outcome {
        Ok(generation) => {
            let state = save.state();
            tracing::info!(
                save = save.id,
                bucket = save.begin.root.bucket,
                root = save.begin.root.key,
                step = save.begin.step,
                generation,
                bytes = state.bytes,
                written_bytes = state.written_bytes,
                elapsed_ms = state.age_ms,
                "a step is durable"
            );
        }
        Err(error) if error.kind() == Kind::Cancelled => {
            tracing::info!(save = save.id, step = save.begin.step, %error, "a save was given up");
        }
        Err(error) => tracing::warn!(save = save.id, step = save.begin.step, %error, "a save failed"),
    }
    let ended = Arc::clone(&save);
    // Nothing is left to do about a folder that stays: the next incarnation looks at it again.
    let _ = tokio::task::spawn_blocking(move || ended.clear_disk()).await;
    save.end(outcome);
    saves.ended(&save);
}

/// Everything but the commit.
async fn prepare(saves: &Saves, save: &Save, queue: mpsc::Receiver<Work>) -> Result<Ready> {
    if save.is_resumed
        && let Some(generation) = commit::own(save).await?
    {
        return Ok(Ready::Committed(generation));
    }
    let base = find_base(save).await?;
    fail_point("before-lease");
    let wanted = parent::choose(save).await?;
    let open = attempt_lease::take(save, wanted).await?;
    // The lease of the attempt is the deadline of all its ranks.
    let left = open.deadline_ms.saturating_sub(unix_ms(save.clock.wall()));
    let end = Instant::now() + Duration::from_millis(left);
    let rest = finish(saves, save, queue, &open, base);
    let ready = tokio::time::timeout_at(end.min(save.deadline), rest).await;
    ready.unwrap_or_else(|_| Err(save.overdue()))
}

/// The generation that was there when the save began. It is remembered, so that a promise that is made later
/// has it.
async fn find_base(save: &Save) -> Result<u32> {
    if let Some(base) = save.base() {
        return Ok(base);
    }
    let base = look(save).await?;
    // Who committed it, before or after this save began, cannot be told any more.
    if save.is_resumed && base > 0 {
        let message = "the step was committed while the node was away, maybe after this save began; save it again to supersede it";
        return Err(Error::new(Kind::Conflict, message)
            .with("step", save.begin.step)
            .with("generation", base));
    }
    save.keep_base(base).await;
    Ok(base)
}

/// Everything after the lease.
async fn finish(
    saves: &Saves,
    save: &Save,
    queue: mpsc::Receiver<Work>,
    open: &AttemptLease,
    base: u32,
) -> Result<Ready> {
    fail_point("after-lease");
    let parent = parent::find(save, open.parent).await?;
    if let Some(parent) = &parent {
        save.set_parent(parent.step());
    }
    let parent = parent.as_deref();
    let left = match save.is_resumed {
        true => records::left_before_restart(save, parent).await?,
        false => None,
    };
    let own = match left {
        Some(record) => {
            drop(queue);
            save.set_alarms(&record.content.alarms);
            record
        }
        None => {
            save.want_pieces();
            let (files, objects) = take_all(saves, save, parent, queue).await?;
            write_documents(save, parent, files, objects).await?
        }
    };
    save.set_record(own.clone());
    saves.tell();
    let whole = OwnShare {
        own,
        parent: parent.map(Parent::step),
        base,
    };
    commit::prepare(saves, save, whole).await
}

/// The highest generation of the step, 0 if there is none. `AlreadyExists` if there is one that is not to be
/// superseded.
async fn look(save: &Save) -> Result<u32> {
    let step = save.begin.step;
    let generations = save
        .persist("look for the step", || save.lake.generations(step))
        .await?;
    check_new(generations.last().copied().unwrap_or(0), save.begin.supersede)
        .map_err(|error| error.with("step", step))
}

/// Returns whether a step that has this generation may be saved.
pub(super) fn check_new(generation: u32, supersede: bool) -> Result<u32> {
    if generation == 0 || supersede {
        return Ok(generation);
    }
    let message =
        "the step is committed already; save another step, or say that this one is to be superseded";
    Err(Error::new(Kind::AlreadyExists, message).with("generation", generation))
}

pub(super) fn unix_ms(time: SystemTime) -> u64 {
    let since = time
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or(Duration::ZERO);
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Takes files and objects until the client has handed the save over, and all files are in the lake.
async fn take_all(
    saves: &Saves,
    save: &Save,
    parent: Option<&Parent>,
    mut queue: mpsc::Receiver<Work>,
) -> Result<(Vec<WrittenFile>, BTreeMap<String, StagedObject>)> {
    let mut running = FuturesUnordered::new();
    let mut files = Vec::new();
    let mut objects = BTreeMap::new();
    let mut is_all_there = false;
    loop {
        let may_take = !is_all_there && running.len() < FILES_AT_ONCE_MAX;
        tokio::select! {
            work = queue.recv(), if may_take => match work {
                Some(Work::File(staged)) => running.push(file::write(saves, save, parent, staged)),
                Some(Work::Object(name, object)) => drop(objects.insert(name, object)),
                None if save.is_staged() => is_all_there = true,
                None => return Err(save.given_up().await),
            },
            Some(written) = running.next() => files.push(written?),
            else => return Ok((files, objects)),
        }
    }
}

/// Objects, table and record, in this order: what is named lies there before it is named.
async fn write_documents(
    save: &Save,
    parent: Option<&Parent>,
    files: Vec<WrittenFile>,
    objects: BTreeMap<String, StagedObject>,
) -> Result<Record> {
    let written = record::build(save, parent, files, objects)?;
    if let Some((path, pieces)) = &written.objects {
        save.persist("write objects", || save.lake.put(path, pieces))
            .await?;
        save.count_written(pieces.iter().map(|piece| piece.len() as u64).sum());
    }
    fail_point("before-table");
    let (path, bytes) = &written.table;
    let pieces = [bytes.clone()];
    save.persist("write a side table", || save.lake.put(path, &pieces))
        .await?;
    fail_point("before-record");
    let path = save.path(&names::record_file(save.begin.rank));
    let pieces = [written.record_bytes.clone()];
    save.persist("write a record", || save.lake.put(&path, &pieces))
        .await?;
    Ok(written.record)
}
