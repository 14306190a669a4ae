//! Sends one large file to a lake in parts, and goes on with an upload that was cut off.
//!
//! Nothing is kept on this machine: the unfinished upload lies in the lake, and the lake says which parts it
//! has. A part is taken as sent if its size and MD5 are those of the same bytes of the file, so a file that
//! was changed since is sent anew. The size of the parts follows from the size of the file, so a second run
//! cuts it at the same permits. An upload that is interrupted or fails is left for the next run; stores
//! remove what nobody goes on with by age.
//!
//! An upload of the same key with the very same parts counts as ours, whoever began it. If it is completed or
//! given up by another meanwhile, the file is sent once more under an upload of its own.

use std::collections::BTreeMap;
use std::io::SeekFrom;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::BytesMut;
use forebay_core::{Error, Kind, ObjectKey, Result};
use forebay_lake::{Attributes, ByteStream, Lake, PartNumber, PartReceipt, PutOptions, UploadId};
use futures::stream::{self, StreamExt, TryStreamExt};
use md5::{Digest, Md5};
use parking_lot::Mutex;
use tokio::fs::File;
use tokio::io::{AsyncReadExt, AsyncSeekExt};

use crate::local;
use crate::open_location::Entry;
use crate::transfer::{Transfer, is_md5};

/// Files up to this go in one piece or by the lake's own writer: too little to lose.
const SMALL_BYTES_MAX: u64 = 32 << 20;

/// The size of a part, unless the file has too many of them.
const PART_BYTES_MIN: u64 = 16 << 20;

/// S3's limit.
const PARTS_MAX: u64 = 10_000;

/// Bytes read from the file at once.
const CHUNK_BYTES: usize = 1 << 20;

/// Attempts to send a part.
const PART_TRIES_MAX: u32 = 4;

/// Unfinished uploads of a key that are looked at.
const UPLOADS_LOOKED_AT_MAX: usize = 8;

/// A file on its way to a lake.
pub(crate) struct Upload<'a> {
    pub(crate) transfer: &'a Transfer,
    pub(crate) path: &'a Path,
    pub(crate) entry: &'a Entry,
    pub(crate) lake: &'a Arc<dyn Lake>,
    pub(crate) key: &'a ObjectKey,
    pub(crate) attributes: Attributes,
}

/// A slice of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Slice {
    number: PartNumber,
    start: u64,
    bytes: u64,
}

type SentParts = BTreeMap<PartNumber, PartReceipt>;

impl Upload<'_> {
    /// Sends the file. `false` if this lake or file is not for it: small, or a lake that cannot say what it
    /// has.
    pub(crate) async fn run(&self) -> Result<bool> {
        if self.entry.bytes <= SMALL_BYTES_MAX {
            return Ok(false);
        }
        let open = match self.lake.open_uploads(self.key).await {
            Err(error) if error.kind() == Kind::Unsupported => return Ok(false),
            open => open?,
        };
        let slices = slices(self.entry.bytes);
        if let Some((upload, parts)) = self.find(open, &slices).await? {
            let sent: u64 = parts.values().map(|part| part.bytes).sum();
            tracing::info!(key = %self.key, sent, "going on with an unfinished upload");
            self.transfer.advance(sent);
            match self.send(&upload, &slices, parts).await {
                // Completed or given up by another.
                Err(error) if error.kind() == Kind::NotFound => {}
                done => return done.map(|()| true),
            }
        }
        let upload = self.lake.start_upload(self.key, self.attributes.clone()).await?;
        self.send(&upload, &slices, SentParts::new()).await.map(|()| true)
    }

    /// The unfinished upload that has most of this file, and its parts that are right.
    async fn find(&self, open: Vec<UploadId>, slices: &[Slice]) -> Result<Option<(UploadId, SentParts)>> {
        let mut best: Option<(UploadId, SentParts)> = None;
        for upload in open.into_iter().take(UPLOADS_LOOKED_AT_MAX) {
            let listed = match self.lake.upload_parts(self.key, &upload).await {
                // Finished in the meantime.
                Err(error) if error.kind() == Kind::NotFound => continue,
                listed => listed?,
            };
            let mut right = SentParts::new();
            for part in listed {
                let Some(slice) = slices.iter().find(|slice| slice.number == part.number) else {
                    continue;
                };
                if part.bytes == slice.bytes && part.etag == self.md5_of(*slice).await? {
                    right.insert(part.number, part);
                }
            }
            if right.len() > best.as_ref().map_or(0, |(_, parts)| parts.len()) {
                best = Some((upload, right));
            }
        }
        Ok(best)
    }

    /// Sends the parts that are missing and joins all of them.
    async fn send(&self, upload: &UploadId, slices: &[Slice], parts: SentParts) -> Result<()> {
        let missing: Vec<Slice> = slices
            .iter()
            .filter(|slice| !parts.contains_key(&slice.number))
            .copied()
            .collect();
        let all = Mutex::new(parts);
        let sent = &all;
        let sending = stream::iter(missing)
            .map(|slice| async move {
                let _permit = self.transfer.permit().await?;
                let receipt = self.send_part(upload, slice).await?;
                self.transfer.advance(slice.bytes);
                sent.lock().insert(slice.number, receipt);
                Ok::<_, Error>(())
            })
            .buffer_unordered(slices.len().min(64))
            .try_collect::<()>();
        self.transfer.unless_stopped(sending).await?;
        self.check_unchanged()?;
        let parts: Vec<PartReceipt> = all.into_inner().into_values().collect();
        let options = PutOptions {
            attributes: self.attributes.clone(),
            ..PutOptions::default()
        };
        self.lake
            .complete_upload(self.key, upload, &parts, options)
            .await?;
        Ok(())
    }

    async fn send_part(&self, upload: &UploadId, slice: Slice) -> Result<PartReceipt> {
        let mut tries = 1;
        loop {
            let digest = Arc::new(Mutex::new(Md5::new()));
            let body = body_of(self.path.to_path_buf(), slice, Arc::clone(&digest));
            let sent = self
                .lake
                .upload_part(self.key, upload, slice.number, slice.bytes, body)
                .await;
            match sent {
                Ok(receipt) => {
                    let md5 = hex::encode(digest.lock().clone().finalize());
                    if is_md5(&receipt.etag) && receipt.etag != md5 {
                        let error = Error::new(Kind::Checksum, "the lake has other bytes than were sent");
                        return Err(error.with("key", self.key).with("part", slice.number));
                    }
                    return Ok(receipt);
                }
                Err(error) if error.is_retryable() && tries < PART_TRIES_MAX => {
                    tracing::debug!(part = slice.number, %error, "sending a part again");
                    tries += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// A file that was changed while it was sent is not the file that anybody wanted.
    fn check_unchanged(&self) -> Result<()> {
        let now = local::entry(self.path, String::new())?;
        if now.bytes == self.entry.bytes && now.modified == self.entry.modified {
            return Ok(());
        }
        let path = self.path.display();
        let message = format!("{path} was changed while it was copied; copy it again");
        Err(Error::new(Kind::Changed, message))
    }

    async fn md5_of(&self, slice: Slice) -> Result<String> {
        let digest = Arc::new(Mutex::new(Md5::new()));
        let mut body = body_of(self.path.to_path_buf(), slice, Arc::clone(&digest));
        while body.try_next().await?.is_some() {}
        let md5 = digest.lock().clone().finalize();
        Ok(hex::encode(md5))
    }
}

/// Returns where the file is cut.
fn slices(file_bytes: u64) -> Vec<Slice> {
    // Whole MiB, so that a file that grows a little still has its parts at the same permits.
    let needed = file_bytes.div_ceil(PARTS_MAX).next_multiple_of(1 << 20);
    let part_bytes = needed.max(PART_BYTES_MIN);
    (1..)
        .zip((0..file_bytes).step_by(part_bytes as usize))
        .map(|(number, start)| Slice {
            number,
            start,
            bytes: part_bytes.min(file_bytes - start),
        })
        .collect()
}

/// The bytes of a slice, digested as they pass. A file that has become too short is an error.
fn body_of(path: PathBuf, slice: Slice, digest: Arc<Mutex<Md5>>) -> ByteStream {
    let start = async move {
        let wrong = |why| Error::io(format!("cannot read {}", path.display()), why);
        let mut file = File::open(&path).await.map_err(wrong)?;
        file.seek(SeekFrom::Start(slice.start)).await.map_err(wrong)?;
        Ok::<_, Error>((file, path))
    };
    let chunks = stream::once(start).map_ok(move |(file, path)| {
        let digest = Arc::clone(&digest);
        stream::try_unfold((file, slice.bytes), move |(mut file, left)| {
            let (digest, path) = (Arc::clone(&digest), path.clone());
            async move {
                let wanted = left.min(CHUNK_BYTES as u64) as usize;
                if wanted == 0 {
                    return Ok(None);
                }
                let mut buffer = BytesMut::zeroed(wanted);
                file.read_exact(&mut buffer)
                    .await
                    .map_err(|why| Error::io(format!("cannot read {}", path.display()), why))?;
                digest.lock().update(&buffer);
                Ok(Some((buffer.freeze(), (file, left - wanted as u64))))
            }
        })
    });
    chunks.try_flatten().boxed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_cover_the_file_and_stay_within_ten_thousand() {
        for bytes in [1, PART_BYTES_MIN, PART_BYTES_MIN + 1, 5 << 40] {
            let slices = slices(bytes);
            assert!(slices.len() as u64 <= PARTS_MAX, "{bytes}");
            assert_eq!(slices.iter().map(|slice| slice.bytes).sum::<u64>(), bytes);
            let ends = slices.iter().map(|slice| slice.start + slice.bytes);
            assert!(
                ends.zip(&slices[1..]).all(|(end, next)| end == next.start),
                "{bytes}"
            );
        }
    }
}
