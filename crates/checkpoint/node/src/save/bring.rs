//! Pieces that a client brings to its open save: checked, counted, put on disk where that was asked for, and
//! queued for the task.

use std::time::Duration;

use bytes::Bytes;
use forebay_checkpoint::manifest::ObjectKind;
use forebay_core::{Error, Kind, Result};
use forebay_wire::Failure;
use forebay_wire::saves::SaveFile;

use super::{Save, Work};
use crate::file::StagedFile;
use crate::record::StagedObject;
use crate::staged_save::{PieceKind, StagedSave};

/// Parts of one save.
const PARTS_MAX: usize = 1 << 20;
/// Time that a task which takes nothing more has to say why.
const ENDS_WITHIN: Duration = Duration::from_secs(5);
/// Small objects leave the arena at once.
const COPIED_BYTES_MAX: usize = 1 << 20;

impl Save {
    /// Takes a full file from the client; waits while many wait already.
    pub async fn add_file(&self, file: SaveFile, bytes: Bytes) -> Result<()> {
        let number = {
            let mut progress = self.progress.lock();
            let number = progress.next_file;
            progress.next_file += 1;
            number
        };
        let parts = self.disk.as_ref().map(|_| file.parts.clone());
        let staged = StagedFile::new(number, bytes.clone(), file.parts)?;
        {
            let mut progress = self.progress.lock();
            if progress.parts + staged.parts() > PARTS_MAX {
                let message =
                    "a rank saves more parts of tensors than a save takes; save fewer or larger tensors";
                return Err(Error::new(Kind::InvalidInput, message).with("parts_max", PARTS_MAX));
            }
            progress.parts += staged.parts();
            progress.bytes += staged.bytes();
        }
        if let (Some(disk), Some(parts)) = (&self.disk, parts) {
            self.take_room(disk, bytes.len()).await?;
            disk.append(PieceKind::File { number, parts }, bytes);
        }
        self.bring(Work::File(staged)).await
    }

    /// Takes an object from the client.
    pub async fn add_object(&self, name: String, kind: &str, bytes: Bytes) -> Result<()> {
        let word = kind;
        let kind = object_kind(word)?;
        {
            let mut progress = self.progress.lock();
            let object_bytes = progress.object_bytes + bytes.len() as u64;
            if object_bytes > self.object_bytes_max {
                let message = "the objects of a rank are too large together; save the large ones as tensors of bytes, or raise the node's staging memory";
                return Err(Error::new(Kind::InvalidInput, message)
                    .with("object", name)
                    .with("bytes", object_bytes)
                    .with("bytes_max", self.object_bytes_max));
            }
            if progress.parts >= PARTS_MAX || !progress.object_names.insert(name.clone()) {
                let message = "an object was saved twice, or there are too many; give each its own name";
                return Err(Error::new(Kind::InvalidInput, message).with("object", name));
            }
            progress.parts += 1;
            progress.object_bytes = object_bytes;
            progress.bytes += bytes.len() as u64;
        }
        let bytes = out_of_arena(bytes);
        if let Some(disk) = &self.disk {
            self.take_room(disk, bytes.len()).await?;
            let (name, kind) = (name.clone(), word.to_owned());
            disk.append(PieceKind::Object { name, kind }, bytes.clone());
        }
        self.bring(Work::Object(name, StagedObject { kind, bytes })).await
    }

    /// Room on disk for a piece, waited for until the deadline of the save: other saves give theirs back as
    /// they become durable.
    async fn take_room(&self, disk: &StagedSave, bytes: usize) -> Result<()> {
        let bytes = bytes as u64;
        if disk.try_reserve(bytes)? {
            return Ok(());
        }
        let message = "saves that are staged on this node's disk leave no room for this one; wait until older ones are durable, raise limits.save_disk, or stage in ram";
        let full = Error::new(Kind::Busy, message)
            .with("save", &self.id)
            .with("bytes", bytes);
        self.progress.lock().no_room = Some(Failure::from(&full));
        let is_taken = tokio::select! {
            biased;
            why = self.given_up() => return Err(why),
            taken = disk.reserve(bytes) => taken?,
            () = tokio::time::sleep_until(self.deadline) => false,
        };
        if !is_taken {
            return Err(full);
        }
        self.progress.lock().no_room = None;
        Ok(())
    }

    async fn bring(&self, work: Work) -> Result<()> {
        let sender = self.progress.lock().work.clone();
        if let Some(sender) = sender {
            if sender.send(work).await.is_ok() {
                return Ok(());
            }
            // The task has ended, because the step is there for example, and is about to say why.
            self.wait(ENDS_WITHIN).await;
        }
        Err(self.failure())
    }
}

/// A small object as a copy: each buffer of the arena is a file descriptor, and objects are kept until the
/// end.
pub(crate) fn out_of_arena(bytes: Bytes) -> Bytes {
    match bytes.len() {
        0..=COPIED_BYTES_MAX => Bytes::copy_from_slice(&bytes),
        _ => bytes,
    }
}

/// The kind of an object in the words of the format.
pub(crate) fn object_kind(word: &str) -> Result<ObjectKind> {
    match word {
        "json" => Ok(ObjectKind::Json),
        "bytes" => Ok(ObjectKind::Bytes),
        "pickle" => Ok(ObjectKind::Pickle),
        _ => {
            let message = "an object is json, bytes or pickle";
            Err(Error::new(Kind::InvalidInput, message).with("kind", word))
        }
    }
}
