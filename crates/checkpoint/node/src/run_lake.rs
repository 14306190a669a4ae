//! The folder of a run in its bucket, as the saver uses it: puts that can be repeated, creates that have one
//! winner, small documents.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use forebay_checkpoint::manifest::{DOCUMENT_BYTES_MAX, StepRef};
use forebay_checkpoint::names::{self, StepPath};
use forebay_core::{BucketName, ByteRange, Error, Kind, ObjectKey, Result, Version};
use forebay_engine::{
    Conditions, Engine, Finish, ObjectInfo, ObjectWrite, RangeRequest, ReadAnswer, WriteCondition,
    WriteRequest,
};
use forebay_lake::ListOptions;
use futures::TryStreamExt;

/// Bytes given to the lake at once.
const CHUNK_BYTES: usize = 8 << 20;
/// Attempts to read a document that others remove or replace meanwhile.
const LOOKS_MAX: u32 = 8;

/// A run.
#[derive(Debug, Clone)]
pub(crate) struct RunLake {
    engine: Arc<Engine>,
    bucket: BucketName,
    /// Empty, or ends with a slash.
    prefix: String,
}

impl RunLake {
    /// The run in this folder, which has no slash at its end and may be empty.
    pub(crate) fn new(engine: Arc<Engine>, bucket: BucketName, folder: &str) -> Result<Self> {
        if folder.ends_with('/') {
            let message = "the folder of a run has a slash at its end; leave it out";
            return Err(Error::new(Kind::InvalidInput, message).with("folder", folder));
        }
        let prefix = match folder {
            "" => String::new(),
            folder => format!("{folder}/"),
        };
        ObjectKey::new(&format!("{prefix}{}", names::STEPS))?;
        Ok(Self {
            engine,
            bucket,
            prefix,
        })
    }

    fn key(&self, path: &str) -> Result<ObjectKey> {
        ObjectKey::new(&format!("{}{path}", self.prefix))
    }

    /// Writes an object from pieces of memory, which are not copied; the same again is fine.
    pub(super) async fn put(&self, path: &str, pieces: &[Bytes]) -> Result<()> {
        self.write(path, pieces, WriteRequest::default()).await
    }

    /// Writes a data file whose content has this name; nobody reads it soon.
    pub(super) async fn put_data(&self, path: &str, content: &str, pieces: &[Bytes]) -> Result<()> {
        let request = WriteRequest {
            content: Some(content.to_owned()),
            ..WriteRequest::default()
        };
        self.write(path, pieces, request).await
    }

    /// Writes an object that must not be there: `PreconditionFailed` if it is.
    pub(super) async fn create(&self, path: &str, bytes: Bytes) -> Result<()> {
        let request = WriteRequest {
            condition: WriteCondition::Absent,
            ..WriteRequest::default()
        };
        self.write(path, &[bytes], request).await
    }

    /// Writes a document in the place of the one that has this version: `PreconditionFailed` or `NotFound` if
    /// another is there or none.
    pub(super) async fn replace(&self, path: &str, bytes: Bytes, version: Version) -> Result<()> {
        let request = WriteRequest {
            condition: WriteCondition::Version(version),
            ..WriteRequest::default()
        };
        self.write(path, &[bytes], request).await
    }

    /// Removes an object; one that is not there is fine.
    pub(super) async fn delete(&self, path: &str) -> Result<()> {
        self.engine.delete(&self.bucket, &self.key(path)?).await
    }

    /// Returns what the lake says now of an object; `None` if there is none.
    pub(super) async fn head(&self, path: &str) -> Result<Option<ObjectInfo>> {
        match self.engine.head_now(&self.bucket, &self.key(path)?).await {
            Err(error) if error.kind() == Kind::NotFound => Ok(None),
            other => other.map(Some),
        }
    }

    async fn write(&self, path: &str, pieces: &[Bytes], request: WriteRequest) -> Result<()> {
        let request = WriteRequest {
            bytes: Some(pieces.iter().map(|piece| piece.len() as u64).sum()),
            ..request
        };
        let mut write = self.engine.write(&self.bucket, &self.key(path)?, request).await?;
        for piece in pieces {
            let mut rest = piece.clone();
            while !rest.is_empty() {
                let chunk = rest.split_to(CHUNK_BYTES.min(rest.len()));
                if let Err(error) = write.push(chunk).await {
                    write.abort().await;
                    return Err(error);
                }
            }
        }
        write.finish(Finish::default()).await?;
        Ok(())
    }

    /// A document as it is in the lake now; `None` if there is none.
    pub(super) async fn read(&self, path: &str) -> Result<Option<Vec<u8>>> {
        let found = self.read_version(path).await?;
        Ok(found.map(|(bytes, _)| bytes))
    }

    /// A document as it is in the lake now, and which version that is.
    pub(super) async fn read_version(&self, path: &str) -> Result<Option<(Vec<u8>, Version)>> {
        let mut looks = 1;
        loop {
            let Some(info) = self.head(path).await? else {
                return Ok(None);
            };
            match self.read_whole(&info).await {
                // Another node has removed or replaced it since: look again.
                Err(error) if matches!(error.kind(), Kind::NotFound | Kind::Changed) && looks < LOOKS_MAX => {
                    looks += 1;
                }
                bytes => return Ok(Some((bytes?, info.version))),
            }
        }
    }

    async fn read_whole(&self, info: &ObjectInfo) -> Result<Vec<u8>> {
        if info.bytes > DOCUMENT_BYTES_MAX {
            let message = "a document of a step is larger than 256 MiB";
            return Err(Error::new(Kind::Corrupt, message).with("key", &info.key));
        }
        let mut bytes = Vec::new();
        if let Some(whole) = ByteRange::whole(info.bytes) {
            let mut pieces = self.engine.read_version(info, whole);
            while let Some(piece) = pieces.try_next().await? {
                bytes.extend_from_slice(&piece.bytes);
            }
        }
        Ok(bytes)
    }

    /// Begins an object whose size is not known yet; it is visible when it is finished.
    pub(super) async fn stream(&self, path: &str) -> Result<ObjectWrite> {
        let key = self.key(path)?;
        self.engine
            .write(&self.bucket, &key, WriteRequest::default())
            .await
    }

    /// Bytes of a file that never changes.
    pub(super) async fn read_range(&self, path: &str, range: Range<u64>) -> Result<Vec<u8>> {
        if range.is_empty() {
            return Ok(Vec::new());
        }
        let key = self.key(path)?;
        let wanted = RangeRequest::Bounded {
            first: range.start,
            last: range.end - 1,
        };
        let answer = self
            .engine
            .read(&self.bucket, &key, wanted, &Conditions::default())
            .await?;
        let mut bytes = Vec::new();
        if let ReadAnswer::Object(mut read) = answer {
            while let Some(piece) = read.pieces.try_next().await? {
                bytes.extend_from_slice(&piece.bytes);
            }
        }
        if bytes.len() as u64 == range.end - range.start {
            return Ok(bytes);
        }
        let message = "a file is shorter than its manifest says: it was cut off";
        Err(Error::new(Kind::Corrupt, message).with("file", path))
    }

    /// Generations of a step that are committed.
    pub(super) async fn generations(&self, step: u64) -> Result<BTreeSet<u32>> {
        let mut generations = BTreeSet::new();
        let prefix = format!("{}manifest-", names::step_folder(step));
        self.each_path(&prefix, |path| {
            if let StepPath::Manifest { generation, .. } = path {
                generations.insert(generation);
            }
        })
        .await?;
        Ok(generations)
    }

    /// The newest committed step and its highest generation. Lists folders of steps and looks into the
    /// highest until one has a manifest.
    pub(super) async fn latest(&self) -> Result<Option<StepRef>> {
        let mut steps = BTreeSet::new();
        let mut options = ListOptions {
            prefix: format!("{}{}", self.prefix, names::STEPS),
            delimiter: Some("/".into()),
            ..ListOptions::default()
        };
        loop {
            let page = self.engine.list(&self.bucket, options.clone()).await?;
            let folders = page
                .prefixes
                .iter()
                .filter_map(|key| key.strip_prefix(&self.prefix));
            steps.extend(folders.filter_map(names::step_of_folder));
            match page.next {
                Some(next) => options.start_after = Some(next),
                None => break,
            }
        }
        for step in steps.into_iter().rev() {
            if let Some(generation) = self.generations(step).await?.last().copied() {
                return Ok(Some(StepRef { step, generation }));
            }
        }
        Ok(None)
    }

    /// Ranks of an attempt whose records are there.
    pub(super) async fn recorded_ranks(
        &self,
        step: u64,
        attempt: &str,
        world_size: u32,
    ) -> Result<BTreeSet<u32>> {
        let mut found = BTreeSet::new();
        let prefix = names::attempt_file(step, attempt, "rank-");
        self.each_path(&prefix, |path| {
            if let StepPath::Attempt { name, .. } = path {
                found.insert(name);
            }
        })
        .await?;
        let is_there = |rank: &u32| found.contains(&names::record_file(*rank));
        Ok((0..world_size).filter(is_there).collect())
    }

    async fn each_path(&self, prefix: &str, mut see: impl FnMut(StepPath)) -> Result<()> {
        let mut options = ListOptions {
            prefix: format!("{}{prefix}", self.prefix),
            ..ListOptions::default()
        };
        loop {
            let page = self.engine.list(&self.bucket, options.clone()).await?;
            let keys = page.objects.iter().map(|object| object.key.as_str());
            let paths = keys.filter_map(|key| key.strip_prefix(&self.prefix));
            paths.filter_map(names::parse_path).for_each(&mut see);
            match page.next {
                Some(next) => options.start_after = Some(next),
                None => return Ok(()),
            }
        }
    }
}

#[cfg(test)]
mod tests;
