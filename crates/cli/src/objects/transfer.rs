//! Copies one object: up, down, across, or from file to file.
//!
//! Nothing is visible at the target before all of it is there: lakes and files alike are written aside and put
//! in place whole. The source's version is pinned, so that an object replaced in the middle is an error, never a
//! mix. A copy that is told to stop gives up what it has written to a lake, except for a large file (`upload`); what it
//! has of a large or downloaded file stays for the next time.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{Context, anyhow};
use bytes::Bytes;
use forebay_core::{Error, Kind, ObjectKey, Version};
use forebay_lake::{Attributes, GetOptions, Lake, LakeWriter, PutOptions};
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use indicatif::ProgressBar;
use tokio::io::AsyncReadExt;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::place::{Entry, Place};
use super::upload::Upload;
use super::{content_type, download};
use crate::exit::{Exit, Outcome};

/// Bytes read from a file at once.
const CHUNK_BYTES: usize = 4 << 20;

/// Whether there was anything to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Done {
    Copied,
    Skipped,
}

/// How to copy.
#[derive(Debug)]
pub(crate) struct Transfer {
    /// Places for objects and parts of objects on their way.
    pub(crate) places: Arc<Semaphore>,
    is_forced: bool,
    pub(crate) bar: ProgressBar,
    /// Fires when the copy shall end.
    pub(crate) stop: CancellationToken,
}

impl Transfer {
    pub(crate) fn new(parallel: usize, is_forced: bool, bar: ProgressBar) -> Self {
        Self {
            places: Arc::new(Semaphore::new(parallel)),
            is_forced,
            bar,
            stop: CancellationToken::new(),
        }
    }

    /// What a copy would do.
    pub(crate) async fn look(&self, entry: &Entry, target: &Place) -> Outcome<Done> {
        if self.is_forced || !is_there(entry, target).await? {
            Ok(Done::Copied)
        } else {
            Ok(Done::Skipped)
        }
    }

    /// Copies unless it is there already.
    pub(crate) async fn copy(&self, entry: &Entry, target: &Place) -> Outcome<Done> {
        if self.look(entry, target).await? == Done::Skipped {
            return Ok(Done::Skipped);
        }
        match (&entry.place, target) {
            (Place::Lake { lake, shown, key }, Place::Local(path)) => {
                let key = Place::object_key(key, shown)?;
                self.unless_stopped(download::run(self, lake, &key, entry, path))
                    .await?;
            }
            (Place::Local(path), Place::Lake { lake, shown, key }) => {
                self.upload(path, entry, lake, &Place::object_key(key, shown)?)
                    .await?;
            }
            (
                Place::Lake { lake, shown, key },
                Place::Lake {
                    lake: to_lake,
                    shown: to_shown,
                    key: to_key,
                },
            ) => {
                let (from, to) = (
                    Place::object_key(key, shown)?,
                    Place::object_key(to_key, to_shown)?,
                );
                self.across(lake, &from, entry, to_lake, &to).await?;
            }
            (Place::Local(from), Place::Local(to)) => {
                download::from_file(from, to).await?;
                self.bar.inc(entry.bytes);
            }
        }
        Ok(Done::Copied)
    }

    async fn upload(&self, path: &Path, entry: &Entry, lake: &Arc<dyn Lake>, key: &ObjectKey) -> Outcome {
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
        let _place = self.places.acquire().await.map_err(Exit::failure)?;
        let file = tokio::fs::File::open(path)
            .await
            .with_context(|| format!("cannot read {}", path.display()))?;
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
        let chunks = chunks
            .map_err(|why| Exit::failure(anyhow!(why).context(format!("cannot read {}", path.display()))));
        let (sent, writer) = self.pump(chunks.boxed(), writer).await?;
        let now = super::local::entry(path, String::new())?;
        if sent != entry.bytes || now.bytes != entry.bytes || now.modified != entry.modified {
            // Best effort: an abandoned write is removed by age.
            let _ = writer.abort().await;
            return Err(Exit::failure(anyhow!(
                "{} changed while it was read; copy it again",
                path.display()
            )));
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
    ) -> Outcome {
        let _place = self.places.acquire().await.map_err(Exit::failure)?;
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
        let (_, writer) = self.pump(got.body.map_err(Exit::from).boxed(), writer).await?;
        writer.finish(options).await?;
        Ok(())
    }

    /// Writes all chunks and says how many bytes they had. Gives the write up on failure or when told to stop.
    async fn pump(
        &self,
        mut chunks: BoxStream<'_, Outcome<Bytes>>,
        mut writer: Box<dyn LakeWriter>,
    ) -> Outcome<(u64, Box<dyn LakeWriter>)> {
        let mut sent = 0;
        let pumped = self.unless_stopped(async {
            while let Some(bytes) = chunks.try_next().await? {
                let count = bytes.len() as u64;
                writer.write(bytes).await?;
                sent += count;
                self.bar.inc(count);
            }
            Ok(())
        });
        match pumped.await {
            Ok(()) => Ok((sent, writer)),
            Err(exit) => {
                // Best effort: the first error is the one that counts.
                let _ = writer.abort().await;
                Err(exit)
            }
        }
    }

    pub(crate) async fn unless_stopped<T>(&self, work: impl Future<Output = Outcome<T>>) -> Outcome<T> {
        tokio::select! {
            biased;
            () = self.stop.cancelled() => Err(Exit::failure(anyhow!("interrupted; run the same command again to go on"))),
            done = work => done,
        }
    }
}

/// Whether the target has the same bytes already, as far as can be told without reading them: the same ETag; or
/// the same size and, for a file, the very date that a copy gives it; for an object, one written after the source
/// was last changed. In doubt (the same second, two MD5s that differ) it is copied again.
async fn is_there(entry: &Entry, target: &Place) -> Outcome<bool> {
    let found = match target.entry().await {
        Ok(found) => found,
        Err(exit) if exit.is_usage => return Err(exit),
        Err(exit) if is_missing(&exit) => return Ok(false),
        Err(exit) => return Err(exit),
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
        Place::Local(_) => found.modified == date_of_copy(entry),
        Place::Lake { .. } => seconds(found.modified) > seconds(entry.modified),
    })
}

/// The date that a file gets when it is copied from here. That of an object is cut to the second, because listings
/// and headers say it with different precision; a file that was changed after the copy hardly has such a date.
pub(crate) fn date_of_copy(entry: &Entry) -> SystemTime {
    match entry.place {
        Place::Local(_) => entry.modified,
        Place::Lake { .. } => SystemTime::UNIX_EPOCH + Duration::from_secs(seconds(entry.modified)),
    }
}

/// Whether an ETag is the MD5 of the bytes rather than of parts or of anything else.
fn is_md5(etag: &str) -> bool {
    etag.len() == 32 && etag.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// HTTP dates have whole seconds, files finer ones.
fn seconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |age| age.as_secs())
}

fn is_missing(exit: &Exit) -> bool {
    let by_lake = exit
        .error
        .downcast_ref::<Error>()
        .is_some_and(|error| error.kind() == Kind::NotFound);
    let by_system = exit
        .error
        .downcast_ref::<io::Error>()
        .is_some_and(|why| why.kind() == io::ErrorKind::NotFound);
    by_lake || by_system
}
