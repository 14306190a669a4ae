//! A save that is staged on disk: an entry of the node's staging log, and the document that says what its
//! pieces are.
//!
//! The document is the payload of the entry's commit marker. It has everything that the next incarnation of
//! the node needs to finish the save (`resume.rs`). docs/formats/staged-saves.md describes it.

use std::sync::Arc;

use bytes::Bytes;
use forebay_core::{Error, Kind, Result};
use forebay_reservoir::staging_log::{
    EntryName, Reservation, SealedEntry, StagedEntry, StagedPiece, StagingLog,
};
use forebay_wire::saves::{BeginSave, SavePart};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::fail_point::fail_point;

const FORMAT: &str = "forebay-staged-save";
const VERSION: u32 = 2;

/// See the top of this file.
#[derive(Debug)]
pub(super) struct StagedSave {
    entry: StagedEntry,
    document: Arc<Mutex<StagedDocument>>,
}

/// Facts of a save that its next incarnation needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StagedDocument {
    format: String,
    version: u32,
    /// Attempt, dot, rank.
    pub(super) id: String,
    pub(super) attempt: String,
    /// Request of the client.
    pub(super) begin: BeginSave,
    /// The generation that was there when it began, if it was known.
    pub(super) base: Option<u32>,
    /// Content of each piece.
    pieces: Vec<PieceContent>,
}

/// Content of one piece of the entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct PieceContent {
    piece: u32,
    kind: PieceKind,
}

/// Kind of a piece.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum PieceKind {
    /// A data file of these parts.
    File { number: u32, parts: Vec<SavePart> },
    /// An object.
    Object { name: String, kind: String },
}

/// A piece that an earlier incarnation staged.
#[derive(Debug, Clone)]
pub(super) struct SavedPiece {
    pub(super) piece: StagedPiece,
    pub(super) kind: PieceKind,
}

/// A save that an earlier incarnation staged.
#[derive(Debug)]
pub(super) struct FoundSave {
    pub(super) staged: StagedSave,
    pub(super) document: StagedDocument,
    pub(super) pieces: Vec<SavedPiece>,
}

impl StagedSave {
    /// Makes the entry of a save. Blocks. `Conflict` if there is one: then it is another save that may have
    /// been acknowledged.
    pub(super) fn create(log: &Arc<StagingLog>, id: &str, attempt: &str, begin: &BeginSave) -> Result<Self> {
        let name = EntryName::new(attempt, &begin.rank.to_string())?;
        let entry = log.create(name).map_err(|error| match error.kind() {
            Kind::Conflict => taken(id),
            _ => error,
        })?;
        let document = StagedDocument {
            format: FORMAT.into(),
            version: VERSION,
            id: id.to_owned(),
            attempt: attempt.to_owned(),
            begin: begin.clone(),
            base: None,
            pieces: Vec::new(),
        };
        Ok(Self {
            entry,
            document: Arc::new(Mutex::new(document)),
        })
    }

    /// Saves that an earlier incarnation staged; damaged ones are set aside. Blocks, and has to end before
    /// clients can begin saves.
    pub(super) fn replay(log: &Arc<StagingLog>) -> Result<Vec<FoundSave>> {
        let mut found = Vec::new();
        for sealed in log.replay()? {
            match parse(&sealed) {
                Ok((document, pieces)) => found.push(FoundSave {
                    staged: Self {
                        entry: sealed.entry,
                        document: Arc::new(Mutex::new(document.clone())),
                    },
                    document,
                    pieces,
                }),
                Err(error) => {
                    tracing::error!(save = %sealed.entry.name(), %error, "a staged save is damaged and was set aside");
                    sealed.entry.set_aside();
                }
            }
        }
        Ok(found)
    }

    /// Reserves room on disk for a piece; `false` if there is none now, `NoSpace` if there never will be.
    pub(super) fn try_reserve(&self, bytes: u64) -> Result<bool> {
        self.answered(self.entry.try_reserve(bytes))
    }

    /// Waits for room on disk for a piece. Cancel-safe.
    pub(super) async fn reserve(&self, bytes: u64) -> Result<bool> {
        self.answered(self.entry.reserve(bytes).await)
    }

    fn answered(&self, reservation: Reservation) -> Result<bool> {
        match reservation {
            Reservation::Reserved => Ok(true),
            Reservation::Full => Ok(false),
            Reservation::TooLarge { bytes, bytes_max } => {
                let message = "the save does not fit into the room for saves on this node's disk; raise limits.save_disk, or stage in ram";
                Err(Error::new(Kind::NoSpace, message)
                    .with("save", self.entry.name())
                    .with("bytes", bytes)
                    .with("bytes_max", bytes_max))
            }
            Reservation::Removed => Err(Error::new(Kind::Cancelled, "the save has ended")),
        }
    }

    /// Starts to write a piece that has room; [`Self::seal`] waits for it.
    pub(super) fn append(&self, kind: PieceKind, bytes: Bytes) {
        fail_point("nvme-piece");
        let mut document = self.document.lock();
        let piece = self.entry.append(bytes);
        document.pieces.push(PieceContent { piece, kind });
    }

    /// Waits until every piece is synced, then makes the promise: the commit marker with the document.
    pub(super) async fn seal(&self, base: Option<u32>) -> Result<()> {
        let document = Arc::clone(&self.document);
        let sealed = self.entry.seal(move || {
            fail_point("nvme-before-marker");
            let mut document = document.lock();
            document.base = document.base.or(base);
            encode(&document)
        });
        sealed.await?;
        fail_point("nvme-after-marker");
        Ok(())
    }

    /// Adds the generation that was there when the save began to a promise that was made without; one that is
    /// made later has it.
    pub(super) async fn add_base(&self, base: u32) -> Result<()> {
        self.document.lock().base = Some(base);
        let updated = self.entry.update_payload(move |payload| {
            let mut document = decode(payload)?;
            if document.base.is_some() {
                return Ok(None);
            }
            document.base = Some(base);
            encode(&document).map(Some)
        });
        updated.await
    }

    /// Reads a piece and proves it. Blocks.
    pub(super) fn read(&self, piece: &SavedPiece, take: impl FnMut(u64, &[u8]) -> Result<()>) -> Result<()> {
        self.entry.read(&piece.piece, take)
    }

    /// Removes the entry: the save has ended. Blocks.
    pub(super) fn remove(&self) {
        self.entry.remove();
    }

    /// Keeps the entry for a person to look at. Blocks.
    pub(super) fn set_aside(&self) {
        self.entry.set_aside();
    }
}

impl SavedPiece {
    pub(super) fn bytes(&self) -> u64 {
        self.piece.bytes
    }
}

fn encode(document: &StagedDocument) -> Result<Vec<u8>> {
    serde_json::to_vec(document)
        .map_err(|why| Error::new(Kind::Internal, "a staged save could not be written down").caused_by(why))
}

fn decode(payload: &[u8]) -> Result<StagedDocument> {
    let document: StagedDocument = serde_json::from_slice(payload)
        .map_err(|why| Error::new(Kind::Corrupt, "a staged save cannot be read").caused_by(why))?;
    if document.format != FORMAT || document.version != VERSION {
        let message =
            "a staged save was written by another version of forebay; start that version to finish it";
        return Err(Error::new(Kind::Unsupported, message).with("version", document.version));
    }
    Ok(document)
}

/// The document, and what each piece of the entry is.
fn parse(sealed: &SealedEntry) -> Result<(StagedDocument, Vec<SavedPiece>)> {
    let document = decode(&sealed.payload)?;
    let numbers = document.pieces.iter().map(|content| content.piece);
    if !sealed.pieces.iter().map(|piece| piece.number).eq(numbers) {
        let message = "a staged save has other pieces than it says";
        return Err(Error::new(Kind::Corrupt, message));
    }
    let kinds = document.pieces.iter().map(|content| content.kind.clone());
    let pieces = sealed.pieces.iter().cloned().zip(kinds);
    let pieces = pieces.map(|(piece, kind)| SavedPiece { piece, kind }).collect();
    Ok((document, pieces))
}

fn taken(id: &str) -> Error {
    let message = "a save of this rank and attempt lies on the disk of the node already; every save needs an attempt of its own";
    Error::new(Kind::Conflict, message).with("save", id)
}

#[cfg(test)]
mod tests;
