//! The writer of a folder lake: bytes are gathered into pieces, and each piece is hashed and written off the
//! runtime while the next one is gathered.
//!
//! The bytes that a large object has written are synced while the rest comes in, so that the sync at the end
//! has little left to wait for; a file that is written past the page cache (`direct.rs`) is synced once. At
//! most two pieces are in memory, and one sync is under way. Nothing is visible before `finish`; dropping the
//! writer removes the temporary file (a piece being written at that moment removes it when it is done).

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use forebay_core::{Error, ObjectKey, Result};
use tokio::task::{JoinHandle, spawn_blocking};

use super::publish::{NewObject, publish};
use super::temp::{Temp, broken};
use super::tree::Tree;
use super::{FolderLake, joined, off_runtime};
use crate::etag::check_md5;
use crate::{LakeWriter, PutOptions, PutReceipt};

/// Bytes gathered before they are written: few hops, little memory.
const PIECE_BYTES: usize = 2 << 20;

/// Bytes written before a sync of them is started behind the writer.
const SYNC_BYTES: u64 = 16 << 20;

/// Bytes on their way into a temporary file.
pub(super) struct Sink {
    gathered: Vec<Bytes>,
    gathered_bytes: usize,
    state: SinkState,
    written_bytes: u64,
    /// Written since the last sync was started.
    unsynced_bytes: u64,
    sync: Option<JoinHandle<Result<()>>>,
}

enum SinkState {
    Idle(Temp),
    /// Owns the temporary file until the piece is written.
    Busy(JoinHandle<Result<Temp>>),
    Broken,
}

impl Sink {
    pub(super) fn new(temp: Temp) -> Self {
        Self {
            gathered: Vec::new(),
            gathered_bytes: 0,
            state: SinkState::Idle(temp),
            written_bytes: 0,
            unsynced_bytes: 0,
            sync: None,
        }
    }

    /// Takes bytes; waits for the piece before the last. Not cancel-safe: a cancelled sink is broken.
    pub(super) async fn write(&mut self, bytes: Bytes) -> Result<()> {
        self.written_bytes += bytes.len() as u64;
        self.gathered_bytes += bytes.len();
        self.gathered.push(bytes);
        if self.gathered_bytes >= PIECE_BYTES {
            let temp = self.settle().await?;
            self.sync_behind(&temp).await?;
            self.flush(temp);
        }
        Ok(())
    }

    /// Returns how many bytes were taken.
    pub(super) fn written_bytes(&self) -> u64 {
        self.written_bytes
    }

    /// Waits for the piece being written and hands over the file and what is left to write.
    pub(super) async fn finish(mut self) -> Result<(Temp, Vec<Bytes>)> {
        let temp = self.settle().await?;
        self.synced().await?;
        Ok((temp, self.gathered))
    }

    async fn settle(&mut self) -> Result<Temp> {
        match std::mem::replace(&mut self.state, SinkState::Broken) {
            SinkState::Idle(temp) => Ok(temp),
            SinkState::Busy(job) => joined(job.await),
            SinkState::Broken => Err(broken()),
        }
    }

    /// Starts a sync of what is written, if that is much and no other sync is under way.
    async fn sync_behind(&mut self, temp: &Temp) -> Result<()> {
        let is_busy = self.sync.as_ref().is_some_and(|job| !job.is_finished());
        if self.unsynced_bytes < SYNC_BYTES || is_busy || temp.is_direct() {
            return Ok(());
        }
        self.synced().await?;
        let sync = temp.sync_so_far()?;
        self.sync = Some(spawn_blocking(sync));
        self.unsynced_bytes = 0;
        Ok(())
    }

    /// Waits for the sync under way. Its error must not be lost: the kernel reports it once, not again at the
    /// end.
    async fn synced(&mut self) -> Result<()> {
        match self.sync.take() {
            Some(job) => joined(job.await),
            None => Ok(()),
        }
    }

    fn flush(&mut self, mut temp: Temp) {
        let pieces = std::mem::take(&mut self.gathered);
        self.unsynced_bytes += std::mem::take(&mut self.gathered_bytes) as u64;
        self.state = SinkState::Busy(spawn_blocking(move || {
            write_all(&mut temp, &pieces)?;
            Ok(temp)
        }));
    }
}

/// Hashes and writes.
pub(super) fn write_all(temp: &mut Temp, pieces: &[Bytes]) -> Result<()> {
    pieces.iter().try_for_each(|piece| temp.write(piece))
}

/// See the top of this file.
pub(super) struct FolderWriter {
    pub(super) tree: Arc<Tree>,
    pub(super) url: Arc<str>,
    pub(super) key: ObjectKey,
    pub(super) sink: Sink,
}

impl FolderWriter {
    fn at(&self) -> impl Fn(Error) -> Error + use<> {
        FolderLake::context(&self.url, &self.key)
    }
}

#[async_trait]
impl LakeWriter for FolderWriter {
    async fn write(&mut self, bytes: Bytes) -> Result<()> {
        let at = self.at();
        self.sink.write(bytes).await.map_err(at)
    }

    fn takes_attributes_at_finish(&self) -> bool {
        true
    }

    async fn finish(self: Box<Self>, options: PutOptions) -> Result<PutReceipt> {
        let at = self.at();
        let Self { tree, key, sink, .. } = *self;
        let (temp, rest) = sink.finish().await.map_err(&at)?;
        off_runtime(move || finish_put(&tree, temp, &key, &rest, options))
            .await
            .map_err(at)
    }

    async fn abort(self: Box<Self>) -> Result<()> {
        let at = self.at();
        let (temp, _) = self.sink.finish().await.map_err(&at)?;
        off_runtime(move || {
            drop(temp);
            Ok(())
        })
        .await
        .map_err(at)
    }
}

/// Writes what is left and makes the object visible.
pub(super) fn finish_put(
    tree: &Tree,
    mut temp: Temp,
    key: &ObjectKey,
    rest: &[Bytes],
    options: PutOptions,
) -> Result<PutReceipt> {
    write_all(&mut temp, rest)?;
    let etag = match &options.content {
        Some(content) if !temp.is_hashed() => format!("{content}-1"),
        _ => {
            let md5 = temp.md5();
            check_md5(options.md5, md5)?;
            hex::encode(md5)
        }
    };
    publish(
        tree,
        temp,
        NewObject {
            key,
            etag: &etag,
            attributes: options.attributes,
            mode: &options.mode,
        },
    )
}
