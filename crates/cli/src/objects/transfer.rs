//! Copies one object: up, down, across, or from file to file.
//!
//! Nothing is visible at the target before all of it is there: lakes and files alike are written aside and put
//! in place whole. The source's version is pinned, so that an object replaced in the middle is an error, never a
//! mix.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use anyhow::{Context, anyhow};
use forebay_core::{Error, Kind, ObjectKey, Version};
use forebay_lake::{Attributes, GetOptions, Lake, PutOptions};
use futures::TryStreamExt;
use indicatif::ProgressBar;
use tokio::io::AsyncReadExt;
use tokio::sync::Semaphore;

use super::download;
use super::place::{Entry, Place};
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
}

impl Transfer {
    pub(crate) fn new(parallel: usize, is_forced: bool, bar: ProgressBar) -> Self {
        Self {
            places: Arc::new(Semaphore::new(parallel)),
            is_forced,
            bar,
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
                download::run(self, lake, &key, entry, path).await?;
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
        let _place = self.places.acquire().await.map_err(Exit::failure)?;
        let mut file = tokio::fs::File::open(path)
            .await
            .with_context(|| format!("cannot read {}", path.display()))?;
        let options = PutOptions::default();
        let mut writer = lake.writer(key, options.clone(), Some(entry.bytes)).await?;
        let mut sent = 0;
        loop {
            let mut buffer = bytes::BytesMut::with_capacity(CHUNK_BYTES);
            while buffer.len() < CHUNK_BYTES {
                let read = file.read_buf(&mut buffer).await;
                if read.with_context(|| format!("cannot read {}", path.display()))? == 0 {
                    break;
                }
            }
            if buffer.is_empty() {
                break;
            }
            let bytes = buffer.len() as u64;
            writer.write(buffer.freeze()).await?;
            sent += bytes;
            self.bar.inc(bytes);
        }
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
        let mut got = lake
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
        let mut writer = to_lake.writer(to, options.clone(), Some(got.bytes)).await?;
        while let Some(bytes) = got.body.try_next().await? {
            self.bar.inc(bytes.len() as u64);
            writer.write(bytes).await?;
        }
        writer.finish(options).await?;
        Ok(())
    }
}

/// Whether the target has it: the same size, and the same ETag or no older than the source.
async fn is_there(entry: &Entry, target: &Place) -> Outcome<bool> {
    let found = match target.entry().await {
        Ok(found) => found,
        Err(exit) if exit.is_usage => return Err(exit),
        Err(exit) if is_missing(&exit) => return Ok(false),
        Err(exit) => return Err(exit),
    };
    let same_etag = entry.etag.is_some() && entry.etag == found.etag;
    Ok(found.bytes == entry.bytes && (same_etag || seconds(found.modified) >= seconds(entry.modified)))
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
