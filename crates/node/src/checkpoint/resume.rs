//! After a restart: saves that were staged on disk are read back into the staging memory and finished.
//!
//! It does not matter how far the former life came. If it had committed, the manifest names the attempt. If its record is in the lake and everything that
//! the record names as well, the save goes on from there. Else the record goes before anything is written again, so that nobody commits from it
//! (`records.rs`); files have fixed names and puts can be repeated. Deadlines begin anew. A piece that does not prove itself ends its save, whose folder is set aside; what cannot be read
//! now, or finds no memory, is left to the next life.
//!
//! Where the arena is full of what clients bring, one save after the other goes on with a little memory beside it (`beside.rs`): clients may be waiting for
//! the very room on disk that these saves give back when they are finished.

mod beside;

use std::cmp::Reverse;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use forebay_core::{BucketName, Error, Kind, Result};
use forebay_engine::Engine;
use forebay_reservoir::Staging;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;

use super::disk::{self, Disk, Piece, Promise, What};
use super::file::StagedFile;
use super::record::StagedObject;
use super::run_lake::RunLake;
use super::save::{Save, Work, object_kind, out_of_arena};
use super::saves::Saves;
use beside::Beside;

/// How long to wait before a full arena is asked again.
const BUSY_PAUSE: Duration = Duration::from_millis(20);

/// What a former life promised and did not finish.
#[derive(Debug, Default)]
pub(crate) struct LeftBehind(Vec<(Disk, Promise)>);

impl LeftBehind {
    /// Looks at the folders of a former life. Has to end before clients can begin saves: folders of theirs would be taken for such.
    /// Their room on disk is taken from then on.
    pub(crate) async fn scan(data_dir: &Path, saves: &Saves) -> Result<Self> {
        let (folder, room) = (data_dir.to_path_buf(), Arc::clone(&saves.room));
        let found = spawn_blocking(move || disk::left_behind(&folder, &room)).await;
        found
            .map_err(|why| Error::new(Kind::Internal, "a scan was stopped").caused_by(why))?
            .map(Self)
    }
}

/// Takes up what a former life promised.
pub(crate) fn resume(
    saves: &Arc<Saves>,
    engine: &Arc<Engine>,
    staging: &Arc<Staging>,
    left_behind: LeftBehind,
) {
    let mut found = left_behind.0;
    // The rank that commits comes last: by then this node knows which others of it are written again.
    found.sort_by_key(|(_, promise)| Reverse(promise.begin.rank));
    for (disk, promise) in found {
        let id = promise.id.clone();
        if let Err(error) = take_up(saves, engine, staging, disk, promise) {
            tracing::error!(save = id, %error, "a staged save cannot be finished");
        }
    }
}

fn take_up(
    saves: &Arc<Saves>,
    engine: &Arc<Engine>,
    staging: &Arc<Staging>,
    disk: Disk,
    promise: Promise,
) -> Result<()> {
    let bucket = BucketName::new(&promise.begin.root.bucket)?;
    let lake = RunLake::new(Arc::clone(engine), bucket, &promise.begin.root.key)?;
    let memory = Memory {
        staging: Arc::clone(staging),
        beside: Beside::new(Arc::clone(&saves.beside)),
    };
    tracing::info!(
        save = promise.id,
        step = promise.begin.step,
        "finishing a save of a former life"
    );
    saves.take_up(promise, lake, disk, move |save, work, pieces| async move {
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
    mut pieces: Vec<Piece>,
) -> Result<()> {
    tokio::select! {
        () = save.pieces_wanted() => {}
        // What the former life brought to the lake is enough, or the save has ended.
        () = work.closed() => return Ok(()),
    }
    // Objects stay in memory until all files are in the lake.
    pieces.sort_by_key(|piece| matches!(piece.what, What::Object { .. }));
    for piece in pieces {
        let bytes = memory.load(save, &piece).await?;
        let brought = match piece.what {
            What::File { number, parts } => Work::File(StagedFile::new(number, bytes, parts)?),
            What::Object { name, kind } => {
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

/// Where pieces are read to.
struct Memory {
    staging: Arc<Staging>,
    beside: Beside,
}

impl Memory {
    /// A piece, proved; waits while there is no memory for it.
    async fn load(&mut self, save: &Arc<Save>, piece: &Piece) -> Result<Bytes> {
        loop {
            let (staging, of, wanted) = (Arc::clone(&self.staging), Arc::clone(save), piece.clone());
            match blocking(move || into_arena(&staging, &of, &wanted)).await {
                Err(error) if error.kind() == Kind::Busy => {}
                other => return other,
            }
            if let Some(place) = self.beside.place(&piece.what) {
                let (of, wanted) = (Arc::clone(save), piece.clone());
                return blocking(move || place.fill(disk_of(&of)?, &wanted)).await;
            }
            tokio::time::sleep(BUSY_PAUSE).await;
        }
    }
}

async fn blocking(read: impl FnOnce() -> Result<Bytes> + Send + 'static) -> Result<Bytes> {
    let read = spawn_blocking(read).await;
    read.map_err(|why| Error::new(Kind::Internal, "a read was stopped").caused_by(why))?
}

fn into_arena(staging: &Arc<Staging>, save: &Save, piece: &Piece) -> Result<Bytes> {
    let uid = rustix::process::geteuid().as_raw();
    let buffer = staging.allocate(uid, piece.bytes.max(1))?;
    disk_of(save)?.read(piece, |place, bytes| fill(&buffer, place, bytes))?;
    Ok(buffer.freeze(piece.bytes))
}

fn disk_of(save: &Save) -> Result<&Disk> {
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
