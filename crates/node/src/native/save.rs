//! `BeginSave`, `SaveFile`, `SaveObject`, `StageSave`, `SaveStates`, `AbortSave` and `Gather`: the words of a trainer that saves.
//!
//! The session holds the client's end of an open save, so that the death of a process gives up what it had not handed over. Everything else is the saver's
//! (`crate::checkpoint`). Who may use a bucket may see and end the saves below it.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use forebay_checkpoint::manifest::Tree;
use forebay_core::wire::{Answer, BeginSave, Gather, SaveFile, SaveObject};
use forebay_core::{BucketName, Error, Kind, Result};
use serde_json::{Map, Value};

use super::connection::Context;
use super::sessions::random;
use super::write::body;
use crate::checkpoint::{NewSave, RunLake, Save, attempt_of};

/// Ranks that save together.
const WORLD_SIZE_MAX: u32 = 1 << 16;
/// What a user may want to remember with a step.
const METADATA_BYTES_MAX: usize = 1 << 20;
/// Numbers in JSON are exact up to here.
const STEP_MAX: u64 = 1 << 53;
/// How long one question about the end of a save waits.
const WAIT_MAX: Duration = Duration::from_secs(60);

pub(super) async fn begin(context: &Context, begin: BeginSave) -> Result<Answer> {
    let bucket = context.bucket(&begin.root.bucket)?;
    let engine = Arc::clone(context.parts.engine()?);
    let lake = RunLake::new(engine, bucket, &begin.root.key)?;
    check(&begin)?;
    let mut number = [0; 8];
    random(&mut number)?;
    let new = NewSave {
        attempt: attempt_of(&begin, u64::from_le_bytes(number))?,
        metadata: metadata(&begin.metadata)?,
        tree: Tree::parse(&begin.tree)?,
        lake,
        begin,
    };
    let saves = &context.parts.saves;
    let save = saves.begin(new).await?;
    let answer = Answer::Saving {
        save: save.id.clone(),
        attempt: save.attempt.clone(),
        file_bytes_max: saves.file_bytes_max(),
    };
    context.session.add_save(saves.opened(save))?;
    Ok(answer)
}

fn check(begin: &BeginSave) -> Result<()> {
    let wrong = |message: &str| Err(Error::new(Kind::InvalidInput, message));
    if begin.rank >= begin.world_size || begin.world_size > WORLD_SIZE_MAX {
        return wrong("ranks count from zero and are at most 65536");
    }
    if begin.step > STEP_MAX {
        return wrong("a step is a number up to 2^53");
    }
    if begin.deadline_ms == 0 {
        return wrong("a save needs a deadline; give it some milliseconds");
    }
    Ok(())
}

fn metadata(text: &str) -> Result<Map<String, Value>> {
    let wrong = || {
        Error::new(
            Kind::InvalidInput,
            "the metadata of a step is a JSON object of at most 1 MiB",
        )
    };
    if text.len() > METADATA_BYTES_MAX {
        return Err(wrong());
    }
    serde_json::from_str(text).map_err(|why| wrong().caused_by(why))
}

pub(super) async fn file(context: &Context, file: SaveFile) -> Result<Answer> {
    let save = context.session.save(&file.save)?;
    let bytes = body(context, file.from.buffer, file.from.bytes)?;
    brought(context, save.add_file(file, bytes)).await
}

pub(super) async fn object(context: &Context, object: SaveObject) -> Result<Answer> {
    let save = context.session.save(&object.save)?;
    let bytes = body(context, object.from.buffer, object.from.bytes)?;
    brought(context, save.add_object(object.name, &object.kind, bytes)).await
}

/// Adds something; where it has to wait for what was added before, that need not wait for the client any longer.
async fn brought(context: &Context, adding: impl Future<Output = Result<()>>) -> Result<Answer> {
    let mut adding = pin!(adding);
    tokio::select! {
        biased;
        added = &mut adding => return added.map(|()| Answer::Done),
        () = std::future::ready(()) => context.parts.saves.press(),
    }
    adding.await?;
    Ok(Answer::Done)
}

pub(super) async fn stage(context: &Context, id: &str) -> Result<Answer> {
    let staged = context.session.save(id)?.stage().await;
    // One that failed has ended too: nobody fills it any more.
    context.session.remove_save(id);
    Ok(Answer::Saves(vec![staged?]))
}

pub(super) async fn states(context: &Context, save: Option<&str>, wait_ms: u32) -> Result<Answer> {
    let states = match save {
        Some(id) => {
            let save = found(context, id)?;
            let wait = Duration::from_millis(wait_ms.into()).min(WAIT_MAX);
            vec![save.wait(wait).await]
        }
        None => {
            let saves = context.parts.saves.all();
            let seen = saves.iter().filter(|save| may_see(context, save));
            seen.map(|save| save.state()).collect()
        }
    };
    Ok(Answer::Saves(states))
}

pub(super) async fn abort(context: &Context, id: &str) -> Result<Answer> {
    let save = match found(context, id) {
        Err(error) if error.kind() == Kind::NotFound => return Ok(Answer::Done),
        other => other?,
    };
    context.session.remove_save(id);
    save.give_up(Error::new(
        Kind::Cancelled,
        "the save was given up on request; nothing was committed",
    ));
    save.wait(WAIT_MAX).await;
    Ok(Answer::Done)
}

pub(super) async fn gather(context: &Context, gather: Gather) -> Result<Answer> {
    let uid = context.session.peer.uid;
    let payloads = context.parts.native.gathers.gather(uid, gather).await?;
    Ok(Answer::Gathered(payloads))
}

fn found(context: &Context, id: &str) -> Result<Arc<Save>> {
    let save = context.parts.saves.find(id)?;
    if may_see(context, &save) {
        return Ok(save);
    }
    // Whether it is there is none of the business of whoever may not see it.
    context.parts.saves.find("")
}

fn may_see(context: &Context, save: &Save) -> bool {
    let bucket = BucketName::new(&save.begin.root.bucket);
    let uid = context.session.peer.uid;
    bucket.is_ok_and(|bucket| context.parts.native.access.may_use(uid, &bucket))
}
