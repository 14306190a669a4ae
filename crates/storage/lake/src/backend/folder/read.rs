//! The body of a read: pieces of 256 KiB, which stay in the cache of the processor until they are copied, one
//! ahead of the consumer, each checked to be of the pinned version.
//!
//! The open descriptor keeps the bytes of an object that is replaced by rename, so a read that has begun ends
//! with what it began with. A foreign program may also write into the file in place: then size or
//! modification time differ after the piece was read, and the read ends with `Changed` instead of a mix.

use std::fs::File;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use forebay_core::{Error, Kind, Result};
use futures::stream::try_unfold;
use futures::{StreamExt, TryStreamExt};
use rustix::buffer::spare_capacity;
use rustix::fs::fstat;
use rustix::io::{Errno, pread};
use tokio::task::{JoinHandle, spawn_blocking};

use super::sidecar::Stamp;
use crate::ByteStream;

/// The size of a piece.
const CHUNK_BYTES: u64 = 256 << 10;

/// An open file that must stay what it was.
#[derive(Debug)]
pub(super) struct PinnedFile {
    file: File,
    stamp: Stamp,
}

impl PinnedFile {
    pub(super) fn new(file: File, stamp: Stamp) -> Self {
        Self { file, stamp }
    }

    /// The first piece of `range`; all of it if it is short. Empty only for an empty range.
    pub(super) fn read_chunk(&self, range: &Range<u64>) -> Result<Bytes> {
        let wanted = (range.end - range.start).min(CHUNK_BYTES) as usize;
        let mut bytes = Vec::with_capacity(wanted);
        while bytes.len() < wanted {
            let offset = range.start + bytes.len() as u64;
            match pread(&self.file, spare_capacity(&mut bytes), offset) {
                Ok(0) => return Err(self.check_unchanged().err().unwrap_or_else(|| too_short(offset))),
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(Error::io("cannot read the object's file", errno.into())),
            }
        }
        // The buffer may be larger than asked for, so the last read may have gone past the range.
        bytes.truncate(wanted);
        self.check_unchanged()?;
        Ok(bytes.into())
    }

    /// Fails with `Changed` if someone has written into the file since it was opened.
    pub(super) fn check_unchanged(&self) -> Result<()> {
        let stat =
            fstat(&self.file).map_err(|errno| Error::io("cannot look at the object's file", errno.into()))?;
        if Stamp::of(&stat) == self.stamp {
            return Ok(());
        }
        Err(Error::new(
            Kind::Changed,
            "the object's file was written to while it was being read",
        ))
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }
}

fn too_short(offset: u64) -> Error {
    Error::new(Kind::Unavailable, "the object's file ended before the object did").with("offset", offset)
}

/// The bytes of `range`, of which `first` is already there.
pub(super) fn body(
    pinned: PinnedFile,
    first: Bytes,
    range: Range<u64>,
    context: impl Fn(Error) -> Error + Send + 'static,
) -> ByteStream {
    let rest = range.start + first.len() as u64..range.end;
    let reader = Reader {
        pinned: Arc::new(pinned),
        ready: Some(first),
        ahead: None,
        rest,
    };
    try_unfold(reader, Reader::next).map_err(context).boxed()
}

struct Reader {
    pinned: Arc<PinnedFile>,
    ready: Option<Bytes>,
    /// The piece after `ready`, being read. It owns all it needs and ends by itself if the reader is dropped.
    ahead: Option<JoinHandle<Result<Bytes>>>,
    rest: Range<u64>,
}

impl Reader {
    async fn next(mut self) -> Result<Option<(Bytes, Self)>> {
        let ready = match (self.ready.take(), self.ahead.take()) {
            (Some(ready), _) => ready,
            (None, Some(ahead)) => super::joined(ahead.await)?,
            (None, None) => return Ok(None),
        };
        if self.ahead.is_none() && !self.rest.is_empty() {
            let (pinned, range) = (Arc::clone(&self.pinned), self.rest.clone());
            self.rest.start = range.end.min(range.start + CHUNK_BYTES);
            self.ahead = Some(spawn_blocking(move || pinned.read_chunk(&range)));
        }
        if ready.is_empty() {
            return Ok(None);
        }
        Ok(Some((ready, self)))
    }
}
