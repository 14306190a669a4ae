//! One entry of a staging log, from its first piece to its end.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use bytes::Bytes;
use forebay_core::{Error, Kind, Result, crc32c};
use parking_lot::{Mutex, RwLock};
use tokio::task::{JoinError, JoinSet, spawn_blocking};

use super::budget::Reservation;
use super::disk::Disk;
use super::marker::{self, MARKER, StagedPiece};
use super::name::EntryName;
use super::{ASIDE, StagingLog};

/// An entry; see the top of `staging_log.rs`. Dropping it leaves the files as they are.
#[derive(Debug)]
pub struct StagedEntry {
    files: Arc<EntryFiles>,
    writing: Mutex<JoinSet<Result<StagedPiece>>>,
    pieces: AtomicU32,
}

/// The folder, shared with the threads that write to it.
#[derive(Debug)]
struct EntryFiles {
    log: Arc<StagingLog>,
    name: EntryName,
    folder: PathBuf,
    /// True when the folder is gone. Held while a piece or the marker is written, so that none appears in a
    /// folder that is being removed.
    is_gone: RwLock<bool>,
    /// Held while the marker is written or replaced.
    marker: Mutex<()>,
}

impl StagedEntry {
    pub(super) fn new(log: Arc<StagingLog>, name: EntryName) -> Self {
        let folder = log.folder.join(name.to_string());
        Self {
            files: Arc::new(EntryFiles {
                log,
                name,
                folder,
                is_gone: RwLock::default(),
                marker: Mutex::default(),
            }),
            writing: Mutex::default(),
            pieces: AtomicU32::new(0),
        }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &EntryName {
        &self.files.name
    }

    pub(super) fn folder(&self) -> &Path {
        &self.files.folder
    }

    /// Reserves bytes for a piece, if there is room now.
    #[must_use]
    pub fn try_reserve(&self, bytes: u64) -> Reservation {
        self.files.log.budget.try_reserve(&self.files.name, bytes)
    }

    /// Waits for room for a piece; never `Full`. Cancel-safe.
    pub async fn reserve(&self, bytes: u64) -> Reservation {
        self.files.log.budget.reserve(&self.files.name, bytes).await
    }

    /// Starts to write a piece whose bytes were reserved, and returns its number. [`Self::seal`] waits for it
    /// and tells its error.
    pub fn append(&self, bytes: Bytes) -> u32 {
        let number = self.pieces.fetch_add(1, Ordering::Relaxed);
        let files = Arc::clone(&self.files);
        self.writing.lock().spawn(async move {
            let written = spawn_blocking(move || files.write_piece(number, &bytes));
            joined(written.await)
        });
        number
    }

    /// Waits until every piece is synced, then writes the commit marker. From then on the entry survives kill
    /// -9 and power loss. `payload` is called last, off the runtime; [`Self::update_payload`] waits meanwhile.
    pub async fn seal(&self, payload: impl FnOnce() -> Result<Vec<u8>> + Send + 'static) -> Result<()> {
        let mut writing = std::mem::take(&mut *self.writing.lock());
        let mut pieces = Vec::with_capacity(writing.len());
        while let Some(written) = writing.join_next().await {
            pieces.push(joined(written)?);
        }
        pieces.sort_by_key(|piece| piece.number);
        let files = Arc::clone(&self.files);
        joined(spawn_blocking(move || files.seal(&pieces, payload)).await)
    }

    /// Replaces the payload of a sealed entry by what `change` makes of it; `None` leaves it. An entry that is
    /// not sealed, or not any more, stays as it is.
    pub async fn update_payload(
        &self,
        change: impl FnOnce(&[u8]) -> Result<Option<Vec<u8>>> + Send + 'static,
    ) -> Result<()> {
        let files = Arc::clone(&self.files);
        joined(spawn_blocking(move || files.update_payload(change)).await)
    }

    /// Pieces and payload of the marker; `None` if the entry is not sealed. Blocks.
    pub(super) fn read_marker(&self) -> Result<Option<(Vec<StagedPiece>, Vec<u8>)>> {
        let files = &self.files;
        marker::read(files.disk(), &files.folder, &files.name)
    }

    /// Reads a piece and proves it. `take` gets the first byte of each chunk and the chunk, before the piece
    /// is proved. Blocks.
    pub fn read(&self, piece: &StagedPiece, take: impl FnMut(u64, &[u8]) -> Result<()>) -> Result<()> {
        let path = self.files.folder.join(StagedPiece::file_name(piece.number));
        let proof = (piece.bytes, piece.crc32c);
        self.files.disk().read_proved(&path, proof, take)
    }

    /// Removes the entry and gives its bytes back. A crash in between leaves an unsealed entry. An error is
    /// logged: the next replay tries again. Blocks.
    pub fn remove(&self) {
        let files = &self.files;
        match files.remove() {
            Ok(()) => files.log.budget.close(&files.name),
            Err(error) => {
                tracing::warn!(entry = %files.name, %error, "a staged entry that has ended cannot be removed");
            }
        }
    }

    /// Keeps the folder for a person to look at. It is no entry any more, and its bytes are given back. Blocks.
    pub fn set_aside(&self) {
        let files = &self.files;
        *files.is_gone.write() = true;
        files.log.budget.close(&files.name);
        let mut aside = files.folder.clone().into_os_string();
        aside.push(ASIDE);
        if let Err(error) = files.disk().rename(&files.folder, Path::new(&aside)) {
            tracing::warn!(entry = %files.name, %error, "a damaged staged entry cannot be set aside");
        }
    }
}

impl EntryFiles {
    fn disk(&self) -> &Disk {
        &self.log.disk
    }

    fn write_piece(&self, number: u32, bytes: &[u8]) -> Result<StagedPiece> {
        let is_gone = self.is_gone.read();
        if *is_gone {
            return Err(gone(&self.name));
        }
        let path = self.folder.join(StagedPiece::file_name(number));
        self.disk().write_synced(&path, bytes)?;
        Ok(StagedPiece {
            number,
            bytes: bytes.len() as u64,
            crc32c: crc32c::crc32c(bytes),
        })
    }

    fn seal(&self, pieces: &[StagedPiece], payload: impl FnOnce() -> Result<Vec<u8>>) -> Result<()> {
        let _marker = self.marker.lock();
        let is_gone = self.is_gone.read();
        if *is_gone {
            return Err(gone(&self.name));
        }
        marker::write(self.disk(), &self.folder, &self.name, pieces, &payload()?)
    }

    fn update_payload(&self, change: impl FnOnce(&[u8]) -> Result<Option<Vec<u8>>>) -> Result<()> {
        let _marker = self.marker.lock();
        let is_gone = self.is_gone.read();
        if *is_gone {
            return Ok(());
        }
        let Some((pieces, payload)) = marker::read(self.disk(), &self.folder, &self.name)? else {
            return Ok(());
        };
        match change(&payload)? {
            Some(payload) => marker::write(self.disk(), &self.folder, &self.name, &pieces, &payload),
            None => Ok(()),
        }
    }

    /// Takes the marker back before any piece goes: a crash in between leaves pieces without a marker, never
    /// the other way round.
    fn remove(&self) -> Result<()> {
        let mut is_gone = self.is_gone.write();
        *is_gone = true;
        if self.disk().remove_file(&self.folder.join(MARKER))? {
            self.disk().sync_folder(&self.folder)?;
        }
        self.disk().remove_folder(&self.folder)
    }
}

fn gone(name: &EntryName) -> Error {
    Error::new(Kind::Cancelled, "the staged entry has ended").with("entry", name)
}

fn joined<T>(ended: std::result::Result<Result<T>, JoinError>) -> Result<T> {
    ended.map_err(|why| Error::new(Kind::Internal, "a write to disk was stopped").caused_by(why))?
}
