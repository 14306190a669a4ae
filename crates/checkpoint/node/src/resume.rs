//! After a restart: saves that were staged on disk are read back into the staging memory and finished.
//!
//! It does not matter how far the earlier incarnation came. If it had committed, the manifest names the
//! attempt. If its record is in the lake and everything that the record names as well, the save goes on from
//! there. Else the record goes before anything is written again, so that nobody commits from it
//! (`records.rs`); files have fixed names and puts can be repeated. Deadlines begin anew. A piece that does
//! not prove itself ends its save, whose folder is set aside; what cannot be read now, or finds no memory, is
//! left to the next incarnation.
//!
//! If the arena is full of what clients bring, one save after the other goes on with a little memory beside
//! it (`overflow.rs`): clients may be waiting for the very room on disk that these saves give back when they
//! are finished.

mod overflow;

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use forebay_core::{BucketName, Error, Kind, Result};
use forebay_engine::Engine;
use forebay_reservoir::Staging;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;

use super::file::StagedFile;
use super::record::StagedObject;
use super::run_lake::RunLake;
use super::save::{Save, Work, object_kind, out_of_arena};
use super::saves::Saves;
use super::staged_save::{FoundSave, PieceKind, SavedPiece, StagedSave};
use overflow::OverflowBudget;

/// Pause before a full arena is tried again.
const BUSY_PAUSE: Duration = Duration::from_millis(20);

/// Staged saves that an earlier incarnation did not finish.
#[derive(Debug, Default)]
pub struct LeftBehind(Vec<FoundSave>);

impl LeftBehind {
    /// Replays the staging log. Has to end before clients can begin saves: theirs would be taken for saves of
    /// an earlier incarnation. The bytes of these count against the budget from then on.
    pub async fn scan(saves: &Saves) -> Result<Self> {
        saves.replay().await.map(Self)
    }
}

/// Takes up what an earlier incarnation promised.
pub fn resume(saves: &Arc<Saves>, engine: &Arc<Engine>, staging: &Arc<Staging>, left_behind: LeftBehind) {
    let mut found = left_behind.0;
    // The rank that commits comes last: by then this node knows which others of it are written again.
    found.sort_by_key(|found| Reverse(found.document.begin.rank));
    for found in found {
        let id = found.document.id.clone();
        if let Err(error) = take_up(saves, engine, staging, found) {
            tracing::error!(save = id, %error, "a staged save cannot be finished");
        }
    }
}

fn take_up(saves: &Arc<Saves>, engine: &Arc<Engine>, staging: &Arc<Staging>, found: FoundSave) -> Result<()> {
    let begin = &found.document.begin;
    let bucket = BucketName::new(&begin.root.bucket)?;
    let lake = RunLake::new(Arc::clone(engine), bucket, &begin.root.key)?;
    let memory = Memory {
        staging: Arc::clone(staging),
        overflow: OverflowBudget::new(Arc::clone(&saves.overflow)),
    };
    tracing::info!(
        save = found.document.id,
        step = begin.step,
        "finishing a save of an earlier incarnation"
    );
    saves.take_up(found, lake, move |save, work, pieces| async move {
        if let Err(error) = feed(&save, memory, work, pieces).await {
            match error.kind() {
                Kind::Corrupt | Kind::Checksum => save.spoil(error),
                _ => save.leave(error),
            }
        }
    })
}

/// Brings all pieces to the task of the save, as their client did, if it needs them.
async fn feed(
    save: &Arc<Save>,
    mut memory: Memory,
    work: mpsc::Sender<Work>,
    mut pieces: Vec<SavedPiece>,
) -> Result<()> {
    tokio::select! {
        () = save.pieces_wanted() => {}
        // PieceKind the earlier incarnation brought to the lake is enough, or the save has ended.
        () = work.closed() => return Ok(()),
    }
    // Objects stay in memory until all files are in the lake.
    pieces.sort_by_key(|piece| matches!(piece.kind, PieceKind::Object { .. }));
    for piece in pieces {
        let bytes = memory.load(save, &piece).await?;
        let brought = match piece.kind {
            PieceKind::File { number, parts } => Work::File(StagedFile::new(number, bytes, parts)?),
            PieceKind::Object { name, kind } => {
                let kind = object_kind(&kind)?;
                let bytes = out_of_arena(bytes);
                Work::Object(name, StagedObject { kind, bytes })
            }
        };
        if work.send(brought).await.is_err() {
            return Ok(());
        }
    }
    Ok(())
}

/// Memory that pieces are read to.
struct Memory {
    staging: Arc<Staging>,
    overflow: OverflowBudget,
}

impl Memory {
    /// A piece, proved; waits while there is no memory for it.
    async fn load(&mut self, save: &Arc<Save>, piece: &SavedPiece) -> Result<Bytes> {
        loop {
            let (staging, of, wanted) = (Arc::clone(&self.staging), Arc::clone(save), piece.clone());
            match blocking(move || into_arena(&staging, &of, &wanted)).await {
                Err(error) if error.kind() == Kind::Busy => {}
                other => return other,
            }
            if let Some(reserved) = self.overflow.reserve(&piece.kind) {
                let (of, wanted) = (Arc::clone(save), piece.clone());
                return blocking(move || reserved.fill(disk_of(&of)?, &wanted)).await;
            }
            tokio::time::sleep(BUSY_PAUSE).await;
        }
    }
}

async fn blocking(read: impl FnOnce() -> Result<Bytes> + Send + 'static) -> Result<Bytes> {
    let read = spawn_blocking(read).await;
    read.map_err(|why| Error::new(Kind::Internal, "a read was stopped").caused_by(why))?
}

fn into_arena(staging: &Arc<Staging>, save: &Save, piece: &SavedPiece) -> Result<Bytes> {
    let uid = rustix::process::geteuid().as_raw();
    let buffer = staging.allocate(uid, piece.bytes().max(1))?;
    disk_of(save)?.read(piece, |place, bytes| fill(&buffer, place, bytes))?;
    Ok(buffer.freeze(piece.bytes()))
}

fn disk_of(save: &Save) -> Result<&StagedSave> {
    save.disk()
        .ok_or_else(|| Error::new(Kind::Internal, "a save has no folder"))
}

fn fill(buffer: &forebay_reservoir::StagingBuffer, place: u64, mut bytes: &[u8]) -> Result<()> {
    let mut place = place;
    while !bytes.is_empty() {
        let written = rustix::io::pwrite(buffer.fd(), bytes, place)
            .map_err(|why| Error::io("staging memory cannot be written", why.into()))?;
        place += written as u64;
        bytes = &bytes[written..];
    }
    Ok(())
}
