//! A lake in memory: exact S3 semantics in the plainest code, so that it doubles as the reference model.
//!
//! Everything sits behind one mutex that is held for a map operation at a time; bodies are shared `Bytes`, so
//! a read goes on with what it started on while the object is replaced. Nothing is bounded and nothing
//! survives the process: it is for tests and for trying things out.

mod list;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::SystemTime;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use forebay_core::{Clock, Error, Kind, ObjectKey, Result, SystemClock, Version};
use futures::{StreamExt, TryStreamExt};
use parking_lot::Mutex;

use crate::etag::{
    self, check_md5, check_part_number, check_part_order, md5_of, missing_part, multipart_etag,
};
use crate::{
    Attributes, ByteStream, CopyOptions, GetOptions, GetResult, Lake, LakeWriter, ListOptions, ListPage,
    ObjectMeta, PartNumber, PartReceipt, PutMode, PutOptions, PutReceipt, UpdateToken, UploadId,
    resolve_range,
};

/// The size of the pieces in which a body is handed out.
const CHUNK_BYTES: usize = 1 << 20;

const URL: &str = "memory://";

/// A lake in memory. Clones share their content.
#[derive(Debug, Clone)]
pub struct MemoryLake {
    state: Arc<Mutex<Contents>>,
    clock: Arc<dyn Clock>,
}

#[derive(Debug, Default)]
struct Contents {
    objects: BTreeMap<ObjectKey, Stored>,
    uploads: HashMap<String, Upload>,
    uploads_started: u64,
}

#[derive(Debug, Clone)]
struct Stored {
    body: Bytes,
    version: Version,
    modified: SystemTime,
    attributes: Attributes,
}

#[derive(Debug)]
struct Upload {
    key: ObjectKey,
    attributes: Attributes,
    parts: BTreeMap<PartNumber, (Bytes, [u8; 16])>,
}

impl MemoryLake {
    /// An empty lake.
    #[must_use]
    pub fn new() -> Self {
        Self::with_clock(Arc::new(SystemClock::new()))
    }

    /// An empty lake that takes its times from `clock`.
    #[must_use]
    pub fn with_clock(clock: Arc<dyn Clock>) -> Self {
        Self {
            state: Arc::default(),
            clock,
        }
    }

    fn find(&self, key: &ObjectKey) -> Result<Stored> {
        self.state
            .lock()
            .objects
            .get(key)
            .cloned()
            .ok_or_else(|| not_found(key))
    }

    /// Checks the condition and replaces the object in one step.
    fn publish(&self, key: &ObjectKey, body: Bytes, etag: &str, options: PutOptions) -> Result<PutReceipt> {
        let modified = self.clock.wall();
        let version = Version::new(etag);
        let stored = Stored {
            body,
            version: version.clone(),
            modified,
            attributes: options.attributes,
        };
        let mut state = self.state.lock();
        check_mode(&options.mode, state.objects.get(key)).map_err(|error| at(error, key))?;
        state.objects.insert(key.clone(), stored);
        Ok(PutReceipt {
            token: token_of(&version),
            version,
            modified: Some(modified),
        })
    }
}

impl Default for MemoryLake {
    fn default() -> Self {
        Self::new()
    }
}

fn at(error: Error, key: &ObjectKey) -> Error {
    error.with("lake", URL).with("key", key)
}

fn not_found(key: &ObjectKey) -> Error {
    at(Error::new(Kind::NotFound, "no such object"), key)
}

fn token_of(version: &Version) -> UpdateToken {
    UpdateToken {
        etag: Some(version.as_str().to_owned()),
        version: None,
    }
}

fn meta_of(key: &ObjectKey, stored: &Stored) -> ObjectMeta {
    ObjectMeta {
        key: key.clone(),
        bytes: stored.body.len() as u64,
        version: stored.version.clone(),
        modified: stored.modified,
        attributes: stored.attributes.clone(),
        token: token_of(&stored.version),
    }
}

fn check_mode(mode: &PutMode, current: Option<&Stored>) -> Result<()> {
    match (mode, current) {
        (PutMode::Overwrite, _) | (PutMode::Create, None) => Ok(()),
        (PutMode::Create, Some(_)) => Err(Error::new(Kind::AlreadyExists, "an object with this key exists")),
        (PutMode::Update(token), Some(stored)) if *token == token_of(&stored.version) => Ok(()),
        (PutMode::Update(_), _) => Err(Error::new(
            Kind::PreconditionFailed,
            "the object is not the one the update names; read it again",
        )),
    }
}

fn check_version(wanted: Option<&Version>, stored: &Stored, key: &ObjectKey) -> Result<()> {
    match wanted {
        Some(wanted) if *wanted != stored.version => {
            let error = Error::new(Kind::Changed, "the object has another version now");
            Err(at(
                error.with("wanted", wanted).with("found", &stored.version),
                key,
            ))
        }
        _ => Ok(()),
    }
}

#[async_trait]
impl Lake for MemoryLake {
    fn url(&self) -> &str {
        URL
    }

    async fn head(&self, key: &ObjectKey) -> Result<ObjectMeta> {
        Ok(meta_of(key, &self.find(key)?))
    }

    async fn get(&self, key: &ObjectKey, options: GetOptions) -> Result<GetResult> {
        let stored = self.find(key)?;
        check_version(options.if_match.as_ref(), &stored, key)?;
        let range = resolve_range(options.range, stored.body.len() as u64).map_err(|error| at(error, key))?;
        let (start, bytes) = (range.start, range.end - range.start);
        let body = chunks(stored.body.slice(range.start as usize..range.end as usize));
        Ok(GetResult {
            meta: meta_of(key, &stored),
            start,
            bytes,
            body,
        })
    }

    async fn writer(
        &self,
        key: &ObjectKey,
        _options: PutOptions,
        bytes_hint: Option<u64>,
    ) -> Result<Box<dyn LakeWriter>> {
        // A hint is only a hint: memory is taken as bytes come in.
        let capacity = bytes_hint.unwrap_or(0).min(CHUNK_BYTES as u64) as usize;
        Ok(Box::new(Writer {
            lake: self.clone(),
            key: key.clone(),
            body: BytesMut::with_capacity(capacity),
        }))
    }

    async fn put(&self, key: &ObjectKey, body: Bytes, options: PutOptions) -> Result<PutReceipt> {
        let md5 = md5_of(&body);
        check_md5(options.md5, md5).map_err(|error| at(error, key))?;
        self.publish(key, body, &hex::encode(md5), options)
    }

    async fn delete(&self, key: &ObjectKey) -> Result<()> {
        self.state.lock().objects.remove(key);
        Ok(())
    }

    async fn delete_if(&self, key: &ObjectKey, token: &UpdateToken) -> Result<()> {
        let mut state = self.state.lock();
        let stored = state.objects.get(key).ok_or_else(|| not_found(key))?;
        check_mode(&PutMode::Update(token.clone()), Some(stored)).map_err(|error| at(error, key))?;
        state.objects.remove(key);
        Ok(())
    }

    async fn copy(&self, from: &ObjectKey, to: &ObjectKey, options: CopyOptions) -> Result<PutReceipt> {
        let source = self.find(from)?;
        check_version(options.if_match.as_ref(), &source, from)?;
        let attributes = options.attributes.unwrap_or(source.attributes);
        self.put(
            to,
            source.body,
            PutOptions {
                attributes,
                ..PutOptions::default()
            },
        )
        .await
    }

    async fn list(&self, options: ListOptions) -> Result<ListPage> {
        Ok(list::page_of(&self.state.lock().objects, &options))
    }

    async fn start_upload(&self, key: &ObjectKey, attributes: Attributes) -> Result<UploadId> {
        let mut state = self.state.lock();
        state.uploads_started += 1;
        let id = format!("memory-{}", state.uploads_started);
        state.uploads.insert(
            id.clone(),
            Upload {
                key: key.clone(),
                attributes,
                parts: BTreeMap::new(),
            },
        );
        Ok(UploadId(id))
    }

    async fn upload_part(
        &self,
        key: &ObjectKey,
        upload: &UploadId,
        number: PartNumber,
        bytes: u64,
        body: ByteStream,
    ) -> Result<PartReceipt> {
        check_part_number(number).map_err(|error| at(error, key))?;
        let body = collect(body).await?;
        if body.len() as u64 != bytes {
            let error = Error::new(
                Kind::InvalidInput,
                "the part's body does not have the announced size",
            );
            return Err(at(error.with("announced", bytes).with("actual", body.len()), key));
        }
        let md5 = md5_of(&body);
        self.state
            .lock()
            .upload(key, upload)?
            .parts
            .insert(number, (body, md5));
        Ok(PartReceipt {
            number,
            etag: hex::encode(md5),
            bytes,
        })
    }

    async fn complete_upload(
        &self,
        key: &ObjectKey,
        upload: &UploadId,
        parts: &[PartReceipt],
        options: PutOptions,
    ) -> Result<PutReceipt> {
        check_part_order(parts).map_err(|error| at(error, key))?;
        let (body, etag, attributes) = self.state.lock().upload(key, upload)?.join(parts, key)?;
        check_md5(options.md5, md5_of(&body)).map_err(|error| at(error, key))?;
        let receipt = self.publish(
            key,
            body,
            &etag,
            PutOptions {
                attributes,
                ..options
            },
        )?;
        self.state.lock().uploads.remove(&upload.0);
        Ok(receipt)
    }

    async fn open_uploads(&self, key: &ObjectKey) -> Result<Vec<UploadId>> {
        let state = self.state.lock();
        let of_key = state.uploads.iter().filter(|(_, upload)| upload.key == *key);
        let mut ids: Vec<&String> = of_key.map(|(id, _)| id).collect();
        // Ids count up, so longer ones are newer.
        ids.sort_by_key(|id| std::cmp::Reverse((id.len(), id.as_str())));
        Ok(ids.into_iter().map(|id| UploadId(id.clone())).collect())
    }

    async fn upload_parts(&self, key: &ObjectKey, upload: &UploadId) -> Result<Vec<PartReceipt>> {
        let mut state = self.state.lock();
        let parts = state.upload(key, upload)?.parts.iter();
        let receipts = parts.map(|(number, (bytes, md5))| PartReceipt {
            number: *number,
            etag: hex::encode(md5),
            bytes: bytes.len() as u64,
        });
        Ok(receipts.collect())
    }

    async fn abort_upload(&self, key: &ObjectKey, upload: &UploadId) -> Result<()> {
        let mut state = self.state.lock();
        if state.upload(key, upload).is_ok() {
            state.uploads.remove(&upload.0);
        }
        Ok(())
    }
}

impl Contents {
    fn upload(&mut self, key: &ObjectKey, id: &UploadId) -> Result<&mut Upload> {
        let upload = self.uploads.get_mut(&id.0).filter(|upload| upload.key == *key);
        upload.ok_or_else(|| {
            at(
                Error::new(Kind::NotFound, "no such upload").with("upload", &id.0),
                key,
            )
        })
    }
}

impl Upload {
    fn join(&self, parts: &[PartReceipt], key: &ObjectKey) -> Result<(Bytes, String, Attributes)> {
        let mut body = BytesMut::new();
        let mut md5s = Vec::with_capacity(parts.len());
        for part in parts {
            let stored = self.parts.get(&part.number);
            let named = stored.filter(|(_, md5)| etag::parse_md5(&part.etag) == Some(*md5));
            let (bytes, md5) = named.ok_or_else(|| at(missing_part(part), key))?;
            body.extend_from_slice(bytes);
            md5s.push(*md5);
        }
        Ok((body.freeze(), multipart_etag(&md5s), self.attributes.clone()))
    }
}

fn chunks(body: Bytes) -> ByteStream {
    let count = body.len().div_ceil(CHUNK_BYTES);
    let cut = move |index: usize| {
        let start = index * CHUNK_BYTES;
        Ok(body.slice(start..body.len().min(start + CHUNK_BYTES)))
    };
    futures::stream::iter((0..count).map(cut)).boxed()
}

async fn collect(body: ByteStream) -> Result<Bytes> {
    let whole = body.try_fold(BytesMut::new(), |mut whole, bytes| async move {
        whole.extend_from_slice(&bytes);
        Ok(whole)
    });
    Ok(whole.await?.freeze())
}

struct Writer {
    lake: MemoryLake,
    key: ObjectKey,
    body: BytesMut,
}

#[async_trait]
impl LakeWriter for Writer {
    async fn write(&mut self, bytes: Bytes) -> Result<()> {
        self.body.extend_from_slice(&bytes);
        Ok(())
    }

    fn takes_attributes_at_finish(&self) -> bool {
        true
    }

    async fn finish(self: Box<Self>, options: PutOptions) -> Result<PutReceipt> {
        self.lake.put(&self.key, self.body.freeze(), options).await
    }

    async fn abort(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}
