//! Copies objects: up, down, across, or from file to file.
//!
//! Nothing is visible at the target before all of it is there: lakes and files alike are written aside and
//! put in place whole. The source's version is pinned, so that an object replaced in the middle is an error,
//! never a mix. A copy that is told to stop gives up what it has written to a lake, except for a large file
//! (`upload`); what it has of a large or downloaded file stays for the next time. Limits: objects and parts of
//! objects on their way share the permits of [`TransferOptions::parallel`].

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use forebay_core::{Error, Kind, ObjectKey, Result, Version};
use forebay_lake::{Attributes, GetOptions, Lake, LakeWriter, PutOptions};
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use tokio::io::AsyncReadExt;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio_util::sync::CancellationToken;

use crate::observer::{CopyOutcome, Observer};
use crate::open_location::{Entry, OpenLocation};
use crate::upload::Upload;
use crate::{content_type, download, local};

/// Bytes read from a file at once.
const CHUNK_BYTES: usize = 4 << 20;
/// Objects on their way unless something else is said.
const PARALLEL_DEFAULT: usize = 8;

/// Options of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TransferOptions {
    /// Objects, or parts of large objects, on their way at once.
    pub parallel: usize,
    /// Copies also what is there already.
    pub is_forced: bool,
    /// Copies nothing, and only says what would be copied.
    pub is_dry_run: bool,
}

impl Default for TransferOptions {
    fn default() -> Self {
        Self {
            parallel: PARALLEL_DEFAULT,
            is_forced: false,
            is_dry_run: false,
        }
    }
}

/// Copies objects within limits that all of them share.
pub struct Transfer {
    permits: Semaphore,
    options: TransferOptions,
    observer: Arc<dyn Observer>,
    /// Fires when the copy shall end.
    stop: CancellationToken,
}

impl Transfer {
    /// A transfer that tells this observer.
    #[must_use]
    pub fn new(options: TransferOptions, observer: Arc<dyn Observer>) -> Self {
        Self {
            permits: Semaphore::new(options.parallel),
            options,
            observer,
            stop: CancellationToken::new(),
        }
    }

    /// Ends all copies in an orderly way: what is half written is given up, or stays for the next time.
    pub fn stop(&self) {
        self.stop.cancel();
    }

    /// Copies one object, to a key or into a folder. Dropping the future leaves a temporary file or upload.
    pub async fn copy_one(&self, source: &OpenLocation, target: &OpenLocation) -> Result<()> {
        let entry = source.entry().await?;
        let target = if target.is_folder() {
            target.child(&entry.relative)?
        } else {
            target.clone()
        };
        self.copy(&entry, &target).await
    }

    /// Copies everything below a location. An object that fails does not stop the others: the observer hears
    /// of it. Dropping the future leaves temporary files or uploads.
    pub async fn copy_tree(&self, source: &OpenLocation, target: &OpenLocation) {
        let walk = source.walk().take_until(self.stop.cancelled());
        walk.for_each_concurrent(self.options.parallel, |entry| async {
            let done = match entry {
                Ok(entry) if entry.relative.is_empty() || entry.relative.ends_with('/') => return,
                Ok(entry) => self.copy_below(&entry, target).await,
                Err(error) => Err(error),
            };
            if let Err(error) = done {
                self.observer.failed(error);
            }
        })
        .await;
    }

    async fn copy_below(&self, entry: &Entry, target: &OpenLocation) -> Result<()> {
        let target = target.child(&entry.relative)?;
        self.copy(entry, &target).await
    }

    /// Copies unless it is there already.
    async fn copy(&self, entry: &Entry, target: &OpenLocation) -> Result<()> {
        self.observer.started(entry);
        let is_wanted = self.options.is_forced || !is_there(entry, target).await?;
        let outcome = if is_wanted {
            CopyOutcome::Copied
        } else {
            CopyOutcome::Skipped
        };
        if is_wanted && !self.options.is_dry_run {
            self.write(entry, target).await?;
        } else {
            self.advance(entry.bytes);
        }
        self.observer.finished(entry, target, outcome);
        Ok(())
    }

    async fn write(&self, entry: &Entry, target: &OpenLocation) -> Result<()> {
        match (&entry.location, target) {
            (OpenLocation::Lake { lake, shown, key }, OpenLocation::Local(path)) => {
                let key = OpenLocation::object_key(key, shown)?;
                self.unless_stopped(download::run(self, lake, &key, entry, path))
                    .await
            }
            (OpenLocation::Local(path), OpenLocation::Lake { lake, shown, key }) => {
                let key = OpenLocation::object_key(key, shown)?;
                self.upload(path, entry, lake, &key).await
            }
            (
                OpenLocation::Lake { lake, shown, key },
                OpenLocation::Lake {
                    lake: to_lake,
                    shown: to_shown,
                    key: to_key,
                },
            ) => {
                let from = OpenLocation::object_key(key, shown)?;
                let to = OpenLocation::object_key(to_key, to_shown)?;
                self.across(lake, &from, entry, to_lake, &to).await
            }
            (OpenLocation::Local(from), OpenLocation::Local(to)) => {
                download::from_file(from, to).await?;
                self.advance(entry.bytes);
                Ok(())
            }
        }
    }

    async fn upload(&self, path: &Path, entry: &Entry, lake: &Arc<dyn Lake>, key: &ObjectKey) -> Result<()> {
        let attributes = Attributes {
            content_type: content_type::of(key.as_str()).map(str::to_owned),
            ..Attributes::default()
        };
        let in_parts = Upload {
            transfer: self,
            path,
            entry,
            lake,
            key,
            attributes: attributes.clone(),
        };
        if in_parts.run().await? {
            return Ok(());
        }
        let _permit = self.permit().await?;
        let failed = |why| Error::io(format!("cannot read {}", path.display()), why);
        let file = tokio::fs::File::open(path).await.map_err(failed)?;
        let options = PutOptions {
            attributes,
            ..PutOptions::default()
        };
        let writer = lake.writer(key, options.clone(), Some(entry.bytes)).await?;
        let chunks = stream::try_unfold(file, |mut file| async move {
            let mut buffer = bytes::BytesMut::with_capacity(CHUNK_BYTES);
            while buffer.len() < CHUNK_BYTES && file.read_buf(&mut buffer).await? > 0 {}
            Ok::<_, io::Error>((!buffer.is_empty()).then(|| (buffer.freeze(), file)))
        });
        let (sent, writer) = self.pump(chunks.map_err(failed).boxed(), writer).await?;
        let now = local::entry(path, String::new())?;
        if sent != entry.bytes || now.bytes != entry.bytes || now.modified != entry.modified {
            // Best effort: an abandoned write is removed by age.
            let _ = writer.abort().await;
            let message = format!("{} changed while it was read; copy it again", path.display());
            return Err(Error::new(Kind::Changed, message));
        }
        writer.finish(options).await?;
        Ok(())
    }

    async fn across(
        &self,
        lake: &Arc<dyn Lake>,
        from: &ObjectKey,
        entry: &Entry,
        to_lake: &Arc<dyn Lake>,
        to: &ObjectKey,
    ) -> Result<()> {
        let _permit = self.permit().await?;
        let if_match = entry.etag.as_deref().map(Version::new);
        let got = lake
            .get(
                from,
                GetOptions {
                    range: None,
                    if_match,
                },
            )
            .await?;
        let attributes: Attributes = got.meta.attributes.clone();
        let options = PutOptions {
            attributes,
            ..PutOptions::default()
        };
        let writer = to_lake.writer(to, options.clone(), Some(got.bytes)).await?;
        let (_, writer) = self.pump(got.body, writer).await?;
        writer.finish(options).await?;
        Ok(())
    }

    /// Writes all chunks and says how many bytes they had. Gives the write up on failure or when told to
    /// stop.
    async fn pump(
        &self,
        mut chunks: BoxStream<'_, Result<Bytes>>,
        mut writer: Box<dyn LakeWriter>,
    ) -> Result<(u64, Box<dyn LakeWriter>)> {
        let mut sent = 0;
        let pumped = self.unless_stopped(async {
            while let Some(bytes) = chunks.try_next().await? {
                let count = bytes.len() as u64;
                writer.write(bytes).await?;
                sent += count;
                self.advance(count);
            }
            Ok(())
        });
        match pumped.await {
            Ok(()) => Ok((sent, writer)),
            Err(error) => {
                // Best effort: the first error is the one that counts.
                let _ = writer.abort().await;
                Err(error)
            }
        }
    }

    /// A permit for an object, or a part of one, on its way.
    pub(crate) async fn permit(&self) -> Result<SemaphorePermit<'_>> {
        let permit = self.permits.acquire().await;
        permit.map_err(|why| Error::new(Kind::Internal, "no permit to copy").caused_by(why))
    }

    pub(crate) fn advance(&self, bytes: u64) {
        self.observer.advanced(bytes);
    }

    pub(crate) async fn unless_stopped<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        tokio::select! {
            biased;
            () = self.stop.cancelled() => {
                Err(Error::new(Kind::Cancelled, "interrupted; run the same command again to go on"))
            }
            done = work => done,
        }
    }
}

impl fmt::Debug for Transfer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transfer")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

/// Returns whether the target has the same bytes already, as far as can be told without reading them: the
/// same ETag; or the same size and, for a file, the very date that a copy gives it; for an object, one
/// written after the source was last changed. In doubt (the same second, two MD5s that differ) it is copied
/// again.
async fn is_there(entry: &Entry, target: &OpenLocation) -> Result<bool> {
    let found = match target.entry().await {
        Err(error) if error.kind() == Kind::NotFound => return Ok(false),
        found => found?,
    };
    if found.bytes != entry.bytes {
        return Ok(false);
    }
    if let (Some(wanted), Some(etag)) = (&entry.etag, &found.etag)
        && (wanted == etag || is_md5(wanted) && is_md5(etag))
    {
        return Ok(wanted == etag);
    }
    Ok(match target {
        OpenLocation::Local(_) => found.modified == date_of_copy(entry),
        OpenLocation::Lake { .. } => seconds(found.modified) > seconds(entry.modified),
    })
}

/// The date that a file gets when it is copied from here. That of an object is cut to the second, because
/// listings and headers say it with different precision; a file that was changed after the copy hardly has
/// such a date.
pub(crate) fn date_of_copy(entry: &Entry) -> SystemTime {
    match entry.location {
        OpenLocation::Local(_) => entry.modified,
        OpenLocation::Lake { .. } => SystemTime::UNIX_EPOCH + Duration::from_secs(seconds(entry.modified)),
    }
}

/// Returns whether an ETag is the MD5 of the bytes rather than of parts or of anything else.
pub(crate) fn is_md5(etag: &str) -> bool {
    etag.len() == 32 && etag.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// HTTP dates have whole seconds, files finer ones.
fn seconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |age| age.as_secs())
}
