//! The family of saves on the socket: requests of a trainer that saves.
//!
//! It holds the client's end of an open save for its session, so that the death of a process gives up what it
//! had not handed over. Everything else is the saver's. Who may use a bucket may see and end the saves below
//! it.

use std::collections::{BTreeMap, HashMap};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use forebay_core::{BucketName, Error, Kind, Result};
use forebay_engine::EngineSource;
use forebay_ipc::{Family, Handling, Reply, Session, StagingPressure};
use forebay_wire::saves::{Answer, BeginSave, Request, SaveFile, SaveObject};
use forebay_wire::{FamilyId, Message, Request as _, decode_message};
use parking_lot::Mutex;

use super::new_save::{NewSave, Writer};
use super::save::{OpenSave, Save};
use super::saves::Saves;

/// Longest wait of one request about the end of a save.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// Open saves that one session may have at a time.
const SESSION_SAVES_MAX: usize = 64;

/// The family of saves.
#[derive(Debug)]
pub struct SavesFamily {
    saves: Arc<Saves>,
    engine: Arc<dyn EngineSource>,
    /// The clients' ends of open saves, by session and name.
    open: Mutex<HashMap<u64, BTreeMap<String, OpenSave>>>,
}

/// A request and whose it is.
#[derive(Debug, Clone, Copy)]
struct Context<'a> {
    family: &'a SavesFamily,
    session: &'a Session,
}

impl SavesFamily {
    /// Serves these saves.
    #[must_use]
    pub fn new(saves: Arc<Saves>, engine: Arc<dyn EngineSource>) -> Self {
        Self {
            saves,
            engine,
            open: Mutex::default(),
        }
    }

    /// Remembers an open save; refused when the session is over, because nobody would end it.
    fn add(&self, session: &Session, save: OpenSave) -> Result<()> {
        let mut open = self.open.lock();
        session.check_open()?;
        let own = open.entry(session.number()).or_default();
        if own.len() >= SESSION_SAVES_MAX {
            let message = "this client has too many saves open; stage or abort some";
            return Err(Error::new(Kind::Busy, message).with("saves_max", SESSION_SAVES_MAX));
        }
        own.insert(save.save.id.clone(), save);
        Ok(())
    }

    /// An open save of this session.
    fn save(&self, session: &Session, id: &str) -> Result<Arc<Save>> {
        let open = self.open.lock();
        let save = open.get(&session.number()).and_then(|own| own.get(id));
        save.map(|open| Arc::clone(&open.save)).ok_or_else(|| {
            let message = "this client has no open save of this name; begin one, and stage it once";
            Error::new(Kind::NotFound, message).with("save", id)
        })
    }

    /// Forgets an open save, which gives it up unless it was staged.
    fn remove(&self, session: &Session, id: &str) {
        let mut open = self.open.lock();
        let save = open.get_mut(&session.number()).and_then(|own| own.remove(id));
        drop(open);
        drop(save);
    }
}

impl Family for SavesFamily {
    fn id(&self) -> FamilyId {
        Request::FAMILY
    }

    fn kinds(&self) -> &'static [&'static str] {
        Request::KINDS
    }

    fn handle<'a>(&'a self, session: &'a Arc<Session>, request: &[u8], reply: &'a mut Reply) -> Handling<'a> {
        let context = Context {
            family: self,
            session,
        };
        Handling::wait(request, reply, |request| answer(context, request))
    }

    fn take_back(&self, session: &Session, answer: &[u8]) {
        if let Ok(Answer::Saving { save, .. }) = decode_message(answer) {
            self.remove(session, &save);
        }
    }

    fn on_session_end(&self, session: &Session) {
        let open = self.open.lock().remove(&session.number());
        drop(open);
    }
}

impl StagingPressure for Saves {
    fn staging_is_full(&self) {
        self.open_early();
    }
}

async fn answer(context: Context<'_>, request: Request) -> Result<Answer> {
    match request {
        Request::BeginSave(request) => begin(context, request).await,
        Request::SaveFile(request) => file(context, request).await,
        Request::SaveObject(request) => object(context, request).await,
        Request::StageSave { save } => stage(context, &save).await,
        Request::SaveStates { save, wait_ms } => states(context, save.as_deref(), wait_ms).await,
        Request::AbortSave { save } => abort(context, &save).await,
    }
}

async fn begin(context: Context<'_>, begin: BeginSave) -> Result<Answer> {
    let bucket = context.session.bucket(&begin.root.bucket)?;
    let engine = Arc::clone(context.family.engine.engine()?);
    let writer = if context.session.is_in_this_process() {
        Writer::ThisProcess
    } else {
        Writer::OtherProcess
    };
    let new = NewSave::parse(engine, bucket, begin, writer)?;
    let saves = &context.family.saves;
    let save = saves.begin(new).await?;
    let answer = Answer::Saving {
        save: save.id.clone(),
        attempt: save.attempt.clone(),
        file_bytes_max: saves.file_bytes_max(),
    };
    context.family.add(context.session, saves.opened(save))?;
    Ok(answer)
}

async fn file(context: Context<'_>, file: SaveFile) -> Result<Answer> {
    let save = context.family.save(context.session, &file.save)?;
    let bytes = context.session.take_bytes(file.from.buffer, file.from.bytes)?;
    brought(context, save.add_file(file, bytes)).await
}

async fn object(context: Context<'_>, object: SaveObject) -> Result<Answer> {
    let save = context.family.save(context.session, &object.save)?;
    let bytes = context
        .session
        .take_bytes(object.from.buffer, object.from.bytes)?;
    brought(context, save.add_object(object.name, &object.kind, bytes)).await
}

/// Enqueues one piece. If the queue is full, starts hashing now instead of after the client's copy.
async fn brought(context: Context<'_>, adding: impl Future<Output = Result<()>> + Send) -> Result<Answer> {
    let mut adding = pin!(adding);
    tokio::select! {
        biased;
        added = &mut adding => return added.map(|()| Answer::Done),
        () = std::future::ready(()) => context.family.saves.open_early(),
    }
    adding.await?;
    Ok(Answer::Done)
}

async fn stage(context: Context<'_>, id: &str) -> Result<Answer> {
    let staged = context.family.save(context.session, id)?.stage().await;
    // One that failed has ended too: nobody fills it any more.
    context.family.remove(context.session, id);
    Ok(Answer::Saves(vec![staged?]))
}

async fn states(context: Context<'_>, save: Option<&str>, wait_ms: u32) -> Result<Answer> {
    let states = match save {
        Some(id) => {
            let save = found(context, id)?;
            let wait = Duration::from_millis(wait_ms.into()).min(WAIT_MAX);
            vec![save.wait(wait).await]
        }
        None => {
            let saves = context.family.saves.all();
            let seen = saves.iter().filter(|save| may_see(context, save));
            seen.map(|save| save.state()).collect()
        }
    };
    Ok(Answer::Saves(states))
}

async fn abort(context: Context<'_>, id: &str) -> Result<Answer> {
    let save = match found(context, id) {
        Err(error) if error.kind() == Kind::NotFound => return Ok(Answer::Done),
        other => other?,
    };
    context.family.remove(context.session, id);
    save.give_up(Error::new(
        Kind::Cancelled,
        "the save was given up on request; nothing was committed",
    ));
    save.wait(WAIT_MAX).await;
    Ok(Answer::Done)
}

fn found(context: Context<'_>, id: &str) -> Result<Arc<Save>> {
    let save = context.family.saves.find(id)?;
    if may_see(context, &save) {
        return Ok(save);
    }
    // Whether it is there is none of the business of whoever may not see it.
    context.family.saves.find("")
}

fn may_see(context: Context<'_>, save: &Save) -> bool {
    let bucket = BucketName::new(&save.begin.root.bucket);
    bucket.is_ok_and(|bucket| context.session.may_use(&bucket))
}
