//! Writing an object: through to the lake, and into the reservoir on the way.
//!
//! Life cycle: [`Engine::write`] turns the condition into a lake condition and opens a writer;
//! [`ObjectWrite::push`] gives each chunk to the lake and to a pending fill; [`ObjectWrite::finish`] makes
//! the object visible. Until then the old object stays; dropping the write abandons it.

use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use forebay_core::{BucketName, Error, Kind, ObjectKey, Result, Version, WriteCondition};
use forebay_lake::{Attributes, LakeWriter, PutMode, PutOptions, PutReceipt};
use forebay_reservoir::Fill;

use crate::bucket::Bucket;
use crate::document::{self, Extras};
use crate::read::failed_condition;
use crate::{Engine, ObjectChecksum, ObjectInfo, Tag};

/// A write, as far as it is known before the body.
#[derive(Debug, Clone, Default)]
pub struct WriteRequest {
    /// Content type, user metadata …
    pub attributes: Attributes,
    /// Tags.
    pub tags: Vec<Tag>,
    /// The condition.
    pub condition: WriteCondition,
    /// Exact size, if the client said so; a body of another size is refused.
    pub bytes: Option<u64>,
    /// `Content-MD5`; checked before the object becomes visible.
    pub md5: Option<[u8; 16]>,
    /// Checksums that the client named in its headers. They become metadata if the write goes through, so the
    /// edge must still compare them with the body before it calls [`ObjectWrite::finish`].
    pub checksums: Vec<ObjectChecksum>,
    /// Set if more checksums may come with [`Finish`] (trailers).
    pub late_checksums: bool,
    /// For bulk that nobody reads soon: the caller's own digest of the bytes, 32 hexadecimal digits. The lake
    /// need not hash them, and they do not go into the cache.
    pub content: Option<String>,
}

/// The checksums that are known after the body.
#[derive(Debug, Clone, Default)]
pub struct Finish {
    /// All checksums to keep, already compared with the body.
    pub checksums: Vec<ObjectChecksum>,
}

/// An acknowledged write: the lake has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WriteReceipt {
    /// The new version.
    pub version: Version,
    /// Its size.
    pub bytes: u64,
    /// The time of the write.
    pub modified: SystemTime,
}

/// A body on its way. Dropping it abandons the write.
pub struct ObjectWrite {
    engine: Arc<Engine>,
    bucket: Arc<Bucket>,
    key: ObjectKey,
    request: WriteRequest,
    mode: PutMode,
    writer: Box<dyn LakeWriter>,
    /// The same bytes as pages that nobody can see yet.
    fill: Fill,
    bytes: u64,
}

impl Engine {
    /// Starts a write. The condition is checked here as far as possible, and again by the lake at the end.
    pub async fn write(
        self: &Arc<Self>,
        bucket: &BucketName,
        key: &ObjectKey,
        request: WriteRequest,
    ) -> Result<ObjectWrite> {
        let bucket = self.buckets.existing(bucket).await?;
        self.check_writable(&bucket, key).await?;
        let mode = self.put_mode(&bucket, key, &request.condition).await?;
        let mut attributes = document::with_checksums(request.attributes.clone(), &request.checksums);
        if request.late_checksums {
            attributes = document::with_extras(attributes);
        }
        let options = PutOptions {
            mode: mode.clone(),
            attributes,
            md5: request.md5,
            content: request.content.clone(),
        };
        let writer = bucket.lake.writer(key, options, request.bytes).await?;
        // A fill of an object that is larger than any gives up at once.
        let fill_bytes = request.content.as_ref().map_or(request.bytes, |_| Some(u64::MAX));
        let fill = self.reservoir.begin_fill_in(bucket.domain, fill_bytes);
        Ok(ObjectWrite {
            engine: Arc::clone(self),
            bucket,
            key: key.clone(),
            request,
            mode,
            writer,
            fill,
            bytes: 0,
        })
    }

    /// Returns what the condition means for the lake. A lake that does not keep the promise is never trusted
    /// with it.
    pub(crate) async fn put_mode(
        &self,
        bucket: &Arc<Bucket>,
        key: &ObjectKey,
        condition: &WriteCondition,
    ) -> Result<PutMode> {
        let unsupported = |what: &str| {
            let message = format!(
                "this lake does not keep {what}, so a conditional write could be lost; write without it"
            );
            Err(Error::new(Kind::Unsupported, message).with("lake", bucket.handle.lake.url()))
        };
        match condition {
            WriteCondition::None => Ok(PutMode::Overwrite),
            WriteCondition::Absent if !bucket.handle.promises()?.conditional_create => {
                unsupported("If-None-Match")
            }
            WriteCondition::Absent => match self.refresh(bucket, key).await {
                Ok(info) => Err(failed_condition(&info)),
                Err(error) if error.kind() == Kind::NotFound => Ok(PutMode::Create),
                Err(error) => Err(error),
            },
            WriteCondition::Version(_) if !bucket.handle.promises()?.conditional_update => {
                unsupported("If-Match")
            }
            WriteCondition::Version(version) => {
                let info = self.refresh(bucket, key).await?;
                if info.version != *version {
                    return Err(failed_condition(&info));
                }
                Ok(PutMode::Update(info.token.clone()))
            }
        }
    }

    /// Makes a finished write known: cached metadata, pages, tags.
    pub(crate) fn info_of_write(
        &self,
        bucket: &Bucket,
        key: &ObjectKey,
        receipt: PutReceipt,
        bytes: u64,
        attributes: Attributes,
    ) -> ObjectInfo {
        ObjectInfo {
            bucket: bucket.name.clone(),
            key: key.clone(),
            domain: bucket.domain,
            bytes,
            version: receipt.version,
            modified: receipt.modified.unwrap_or_else(|| self.clock.wall()),
            attributes,
            token: receipt.token,
            checksums: Vec::new(),
            part_bytes: Vec::new(),
            tag_count: 0,
            id: std::sync::OnceLock::new(),
            source: crate::object::SourceCell::default(),
        }
    }
}

impl ObjectWrite {
    /// Adds bytes; waits while the lake is slower than the caller. Not cancel-safe: after a cancelled call
    /// the write can only be aborted.
    pub async fn push(&mut self, bytes: Bytes) -> Result<()> {
        self.bytes += bytes.len() as u64;
        if self.request.bytes.is_some_and(|expected| self.bytes > expected) {
            return Err(self.wrong_length());
        }
        self.fill.push(&bytes).await;
        self.writer.write(bytes).await
    }

    /// Makes the object visible, or fails and leaves the old one.
    pub async fn finish(self, finish: Finish) -> Result<WriteReceipt> {
        if self.request.bytes.is_some_and(|expected| self.bytes != expected) {
            let error = self.wrong_length();
            self.abort().await;
            return Err(error);
        }
        // The key may have become part of a view while the body came.
        if let Err(error) = self.engine.check_writable(&self.bucket, &self.key).await {
            self.abort().await;
            return Err(error);
        }
        let Self {
            engine,
            bucket,
            key,
            request,
            mode,
            writer,
            fill,
            bytes,
        } = self;
        // Metadata that came too late for the lake goes into a document.
        let needs_extras = !writer.takes_attributes_at_finish() && request.late_checksums;
        let kept = document::with_checksums(request.attributes.clone(), &finish.checksums);
        let options = PutOptions {
            mode,
            attributes: kept,
            md5: request.md5,
            content: request.content,
        };

        let write = engine.freshness.begin_write(&bucket.name, &key);
        let receipt = writer
            .finish(options)
            .await
            .map_err(|error| lost_race(error, &key))?;
        let mut info = engine.info_of_write(&bucket, &key, receipt, bytes, request.attributes);
        info.checksums = finish.checksums;
        if needs_extras {
            let extras = Extras {
                key: key.clone(),
                object_version: info.version.clone(),
                checksums: info.checksums.clone(),
                part_bytes: Vec::new(),
            };
            document::write_extras(&bucket, &extras).await?;
        }
        let object = info.object_version();
        let receipt = WriteReceipt {
            version: info.version.clone(),
            bytes,
            modified: info.modified,
        };
        if request.tags.is_empty() {
            write.done(Some(Arc::new(info)));
        } else {
            write.done(None);
            engine
                .tag_written(&bucket, &key, &receipt.version, request.tags)
                .await?;
        }
        fill.commit(&object);
        engine.reservoir.forget_others(&object);
        Ok(receipt)
    }

    /// Gives up; the old object stays.
    pub async fn abort(self) {
        if let Err(error) = self.writer.abort().await {
            tracing::debug!(key = %self.key, %error, "an abandoned write left something behind");
        }
    }

    fn wrong_length(&self) -> Error {
        Error::new(Kind::InvalidInput, "the body does not have the announced length")
            .with("code", "IncompleteBody")
            .with("key", &self.key)
            .with("announced_bytes", self.request.bytes.unwrap_or_default())
            .with("received_bytes", self.bytes)
    }
}

/// A lost race for a create-only key is a failed condition of the caller.
pub(crate) fn lost_race(error: Error, key: &ObjectKey) -> Error {
    if error.kind() == Kind::AlreadyExists {
        return Error::new(Kind::PreconditionFailed, "the object exists already")
            .with("key", key)
            .caused_by(error);
    }
    error
}
