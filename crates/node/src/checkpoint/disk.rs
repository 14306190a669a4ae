//! Saves that are staged on disk: what the client brought lies in a folder of the node's data, synced, before the save counts as staged.
//!
//! Life cycle of a folder: made when the save begins; every file and object is written and synced while the lake takes it too; `staged.json` is written
//! last, and is the promise. It goes when the save has ended. What all of them take together has a limit (`disk/room.rs`). After a restart a folder with a promise is read back and finished (`resume.rs`), one
//! without was never acknowledged and is removed, and one that does not prove itself is set aside. docs/formats/staged-saves.md describes the files.

mod room;

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use bytes::Bytes;
use forebay_core::wire::{BeginSave, SavePart};
use forebay_core::{Error, Kind, Result, crc32c};
use parking_lot::{Mutex, RwLock};
use serde::{Deserialize, Serialize};
use tokio::task::{JoinSet, spawn_blocking};

use super::fail_point::fail_point;

pub(super) use room::Room;

/// The folder of all of them, in the data folder of the node.
const SAVES: &str = "saves";
/// The promise.
const PROMISE: &str = "staged.json";
const FORMAT: &str = "forebay-staged-save";
const VERSION: u32 = 1;
/// The largest promise that is read.
const PROMISE_BYTES_MAX: u64 = 256 << 20;
/// What the name of a folder that was set aside ends with.
const ASIDE: &str = ".damaged";

/// The folder of one save.
#[derive(Debug)]
pub(super) struct Disk {
    id: String,
    folder: PathBuf,
    room: Arc<Room>,
    /// Whether the folder is gone; held while a piece is written, so that none appears in a folder that is being removed.
    is_gone: Arc<RwLock<bool>>,
    writing: Mutex<JoinSet<Result<Piece>>>,
    /// Pieces so far, for their names.
    count: AtomicU32,
    /// The generation that was there when the save began, if it was found late; held while the promise is written or taken back.
    late_base: Arc<Mutex<Option<u32>>>,
}

/// What lies in a folder, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Promise {
    format: String,
    version: u32,
    /// The name of the save.
    pub(super) id: String,
    pub(super) attempt: String,
    /// What was asked for.
    pub(super) begin: BeginSave,
    /// The generation that was there when it began, if it was known.
    pub(super) base: Option<u32>,
    /// What the client brought.
    pub(super) pieces: Vec<Piece>,
}

/// One file of a folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Piece {
    /// Its name in the folder.
    pub(super) name: String,
    pub(super) bytes: u64,
    pub(super) crc32c: u32,
    pub(super) what: What,
}

/// What a piece is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum What {
    /// A data file of these parts.
    File { number: u32, parts: Vec<SavePart> },
    /// An object.
    Object { name: String, kind: String },
}

impl Disk {
    /// Makes the folder of a save; `Conflict` if it is there, because then it is the promise of another one.
    pub(super) fn make(data_dir: &Path, id: &str, room: &Arc<Room>) -> Result<Self> {
        let all = data_dir.join(SAVES);
        match make_private(&all) {
            Err(why) if why.kind() != ErrorKind::AlreadyExists => {
                return Err(broken("cannot be made", &all, why));
            }
            _ => {}
        }
        let folder = all.join(id);
        make_private(&folder).map_err(|why| match why.kind() {
            ErrorKind::AlreadyExists => taken(id),
            _ => broken("cannot be made", &folder, why),
        })?;
        sync_folder(&all)?;
        sync_folder(data_dir)?;
        room.open(id, std::iter::empty());
        Ok(Self::at(folder, id, room))
    }

    /// A folder that is there.
    fn at(folder: PathBuf, id: &str, room: &Arc<Room>) -> Self {
        Self {
            id: id.to_owned(),
            folder,
            room: Arc::clone(room),
            is_gone: Arc::default(),
            writing: Mutex::default(),
            count: AtomicU32::new(0),
            late_base: Arc::default(),
        }
    }

    /// Takes room for a piece, if there is some now; `NoSpace` if there never will be.
    pub(super) fn try_take_room(&self, bytes: u64) -> Result<bool> {
        self.room.try_take(&self.id, bytes)
    }

    /// Waits for room for a piece; `false` if the folder is gone meanwhile.
    pub(super) async fn take_room(&self, bytes: u64) -> Result<bool> {
        self.room.take(&self.id, bytes).await
    }

    /// Starts to write a piece that has room; [`Self::promise`] waits for it.
    pub(super) fn write(&self, what: What, bytes: Bytes) {
        let name = format!("piece-{:05}", self.count.fetch_add(1, Ordering::Relaxed));
        let path = self.folder.join(&name);
        let is_gone = Arc::clone(&self.is_gone);
        self.writing.lock().spawn(async move {
            let written = spawn_blocking(move || {
                fail_point("nvme-piece");
                let is_gone = is_gone.read();
                if *is_gone {
                    return Err(Error::new(Kind::Cancelled, "the save has ended"));
                }
                write_synced(&path, &bytes)?;
                Ok(Piece {
                    name,
                    bytes: bytes.len() as u64,
                    crc32c: crc32c::crc32c(&bytes),
                    what,
                })
            });
            joined(written.await)
        });
    }

    /// Waits until every piece is synced, then makes the promise.
    pub(super) async fn promise(
        &self,
        id: &str,
        attempt: &str,
        begin: &BeginSave,
        base: Option<u32>,
    ) -> Result<()> {
        let mut writing = std::mem::take(&mut *self.writing.lock());
        let mut pieces = Vec::with_capacity(writing.len());
        while let Some(written) = writing.join_next().await {
            pieces.push(joined(written)?);
        }
        let mut promise = Promise {
            format: FORMAT.into(),
            version: VERSION,
            id: id.to_owned(),
            attempt: attempt.to_owned(),
            begin: begin.clone(),
            base,
            pieces,
        };
        let (folder, late_base) = (self.folder.clone(), Arc::clone(&self.late_base));
        let made = spawn_blocking(move || {
            fail_point("nvme-before-promise");
            let late_base = late_base.lock();
            promise.base = promise.base.or(*late_base);
            write_promise(&folder, &promise)?;
            fail_point("nvme-after-promise");
            Ok(())
        });
        joined(made.await)
    }

    /// Adds the generation that was there when the save began to a promise that was made without; one that is made later has it.
    pub(super) async fn add_base(&self, base: u32) -> Result<()> {
        let (folder, late_base) = (self.folder.clone(), Arc::clone(&self.late_base));
        let added = spawn_blocking(move || {
            let mut late_base = late_base.lock();
            *late_base = Some(base);
            match read_promise(&folder)? {
                Some(mut promise) if promise.base.is_none() => {
                    promise.base = Some(base);
                    write_promise(&folder, &promise)
                }
                _ => Ok(()),
            }
        });
        joined(added.await)
    }

    /// The bytes of a piece in steps, given to `take`; proved when it returns. Blocks.
    pub(super) fn read(&self, piece: &Piece, mut take: impl FnMut(u64, &[u8]) -> Result<()>) -> Result<()> {
        let path = self.folder.join(&piece.name);
        let mut file = File::open(&path).map_err(|why| match why.kind() {
            ErrorKind::NotFound => {
                Error::new(Kind::Corrupt, "a staged piece of a save is missing").with("file", path.display())
            }
            _ => broken("cannot be opened", &path, why),
        })?;
        let mut buffer = vec![0; 1 << 20];
        let (mut place, mut crc) = (0u64, 0);
        loop {
            let read = file
                .read(&mut buffer)
                .map_err(|why| broken("cannot be read", &path, why))?;
            if read == 0 {
                break;
            }
            crc = crc32c::crc32c_append(crc, &buffer[..read]);
            if place + read as u64 > piece.bytes {
                break;
            }
            take(place, &buffer[..read])?;
            place += read as u64;
        }
        if (place, crc) == (piece.bytes, piece.crc32c) {
            return Ok(());
        }
        let message = "a staged piece of a save is damaged";
        Err(Error::new(Kind::Corrupt, message).with("file", path.display()))
    }

    /// Removes the folder: the save has ended.
    pub(super) fn remove(&self) {
        *self.is_gone.write() = true;
        match self.take_back().and_then(|()| self.remove_all()) {
            Ok(()) => self.room.close(&self.id),
            Err(error) => {
                tracing::warn!(folder = %self.folder.display(), %error, "the folder of a save that has ended cannot be removed");
            }
        }
    }

    /// Takes the promise back before any piece goes: a crash in between leaves pieces without a promise, never the other way round.
    fn take_back(&self) -> Result<()> {
        let _nobody_writes_it = self.late_base.lock();
        let path = self.folder.join(PROMISE);
        match fs::remove_file(&path) {
            Err(why) if why.kind() == ErrorKind::NotFound => return Ok(()),
            Err(why) => return Err(broken("cannot be taken back", &path, why)),
            Ok(()) => {}
        }
        sync_folder(&self.folder)
    }

    fn remove_all(&self) -> Result<()> {
        match fs::remove_dir_all(&self.folder) {
            Err(why) if why.kind() != ErrorKind::NotFound => {
                Err(broken("cannot be removed", &self.folder, why))
            }
            _ => Ok(()),
        }
    }

    /// Keeps the folder for a person to look at; it is no save any more, and takes no room of others.
    pub(super) fn set_aside(&self) {
        self.room.close(&self.id);
        let mut aside = self.folder.clone().into_os_string();
        aside.push(ASIDE);
        if let Err(why) = fs::rename(&self.folder, &aside) {
            tracing::warn!(folder = %self.folder.display(), %why, "a damaged save cannot be set aside");
        }
    }
}

/// Folders that a former life of the node left, each with its promise; those without one are removed, damaged ones set aside. Blocks.
///
/// It cannot tell a folder of this life from one that was never acknowledged, so it has to run before clients can begin saves.
pub(super) fn left_behind(data_dir: &Path, room: &Arc<Room>) -> Result<Vec<(Disk, Promise)>> {
    let all = data_dir.join(SAVES);
    let folders = match fs::read_dir(&all) {
        Err(why) if why.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        folders => folders.map_err(|why| broken("cannot be listed", &all, why))?,
    };
    let mut found = Vec::new();
    for folder in folders {
        let folder = folder
            .map_err(|why| broken("cannot be listed", &all, why))?
            .path();
        if folder.to_string_lossy().ends_with(ASIDE) {
            continue;
        }
        let id = folder.file_name().unwrap_or_default().to_string_lossy();
        let disk = Disk::at(folder.clone(), &id, room);
        match read_promise(&folder) {
            Ok(Some(promise)) => {
                room.open(&id, promise.pieces.iter().map(|piece| piece.bytes));
                found.push((disk, promise));
            }
            Ok(None) => disk.remove(),
            Err(error) => {
                tracing::error!(folder = %folder.display(), %error, "a staged save is damaged and was set aside");
                disk.set_aside();
            }
        }
    }
    Ok(found)
}

fn read_promise(folder: &Path) -> Result<Option<Promise>> {
    let path = folder.join(PROMISE);
    let bytes = match fs::metadata(&path) {
        Err(why) if why.kind() == ErrorKind::NotFound => return Ok(None),
        Err(why) => return Err(broken("cannot be read", &path, why)),
        Ok(metadata) if metadata.len() > PROMISE_BYTES_MAX => {
            return Err(Error::new(Kind::Corrupt, "a promise is larger than any is"));
        }
        Ok(_) => fs::read(&path).map_err(|why| broken("cannot be read", &path, why))?,
    };
    let damaged =
        || Error::new(Kind::Corrupt, "a promise does not match its checksum").with("file", path.display());
    let (digest, document) = bytes.split_first_chunk::<64>().ok_or_else(damaged)?;
    if blake3::hash(document).to_hex().as_bytes() != digest {
        return Err(damaged());
    }
    let promise: Promise = serde_json::from_slice(document).map_err(|why| damaged().caused_by(why))?;
    if promise.format != FORMAT || promise.version != VERSION {
        let message =
            "a staged save was written by another version of forebay; start that version to finish it";
        return Err(Error::new(Kind::Unsupported, message).with("file", path.display()));
    }
    Ok(Some(promise))
}

/// Replaces the promise as a whole; the old one holds until then.
fn write_promise(folder: &Path, promise: &Promise) -> Result<()> {
    let path = folder.join(PROMISE);
    let fresh = folder.join("staged.json.new");
    write_synced(&fresh, &sealed(promise)?)?;
    fs::rename(&fresh, &path).map_err(|why| broken("cannot be written", &path, why))?;
    sync_folder(folder)
}

/// The digest, then the document in a line of its own.
fn sealed(promise: &Promise) -> Result<Vec<u8>> {
    let mut document = vec![b'\n'];
    serde_json::to_writer(&mut document, promise)
        .map_err(|why| Error::new(Kind::Internal, "a promise could not be written").caused_by(why))?;
    let mut bytes = blake3::hash(&document).to_hex().as_bytes().to_vec();
    bytes.append(&mut document);
    Ok(bytes)
}

fn write_synced(path: &Path, bytes: &[u8]) -> Result<()> {
    let write = || {
        let mut file = File::create(path)?;
        file.write_all(bytes)?;
        file.sync_all()
    };
    write().map_err(|why| broken("cannot be written", path, why))
}

fn make_private(path: &Path) -> std::io::Result<()> {
    fs::DirBuilder::new().mode(0o700).create(path)
}

fn taken(id: &str) -> Error {
    let message = "a save of this rank and attempt lies on the disk of the node already; every save needs an attempt of its own";
    Error::new(Kind::Conflict, message).with("save", id)
}

fn sync_folder(path: &Path) -> Result<()> {
    let sync = || File::open(path)?.sync_all();
    sync().map_err(|why| broken("cannot be synced", path, why))
}

fn broken(what: &str, path: &Path, why: std::io::Error) -> Error {
    let message = format!("a staged save {what}: {why}");
    let error = if why.kind() == ErrorKind::StorageFull {
        Error::new(Kind::NoSpace, message).caused_by(why)
    } else {
        Error::io(message, why)
    };
    error.with("file", path.display())
}

fn joined<T>(ended: std::result::Result<Result<T>, tokio::task::JoinError>) -> Result<T> {
    ended.map_err(|why| Error::new(Kind::Internal, "a write to disk was stopped").caused_by(why))?
}

#[cfg(test)]
mod tests;
