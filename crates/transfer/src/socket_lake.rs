//! A bucket of a node on this host, seen as a lake through the node's socket.
//!
//! Bytes that are read are shared memory of the node, bytes that are written go through its staging memory.
//! The client blocks, so every call runs on a thread for blocking work (`client_call.rs`).
//!
//! Limits: what S3 alone has (uploads that are gone on with after a kill) goes to the S3 endpoint of the
//! same node, whose address the socket tells, if there are keys for it; without them such calls are
//! `Unsupported`, and a large file goes up in one go. Server-side copies are not offered.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use bytes::Bytes;
use forebay_client::{Client, Headers, ItemRange, ListRequest, Name, ObjectStat, View, WriteCondition};
use forebay_core::{ByteRange, Error, Kind, ObjectKey, Result, Version};
use forebay_lake::{
    Attributes, ByteStream, CopyOptions, GetOptions, GetRange, GetResult, Lake, LakeWriter, ListOptions,
    ListPage, ListedObject, ObjectMeta, PartNumber, PartReceipt, PutMode, PutOptions, PutReceipt,
    UpdateToken, UploadId,
};
use futures::{StreamExt, stream};

use crate::client_call::spawn_client_call;

/// Bytes that are leased at once.
const WINDOW_BYTES: u64 = 16 << 20;

/// A bucket of a node on this host.
pub struct SocketLake {
    client: Client,
    bucket: String,
    url: String,
    /// The same bucket at the node's S3 endpoint, if it can be used.
    s3_endpoint: Option<Arc<dyn Lake>>,
}

impl SocketLake {
    /// The bucket through this client, with its S3 endpoint for what S3 alone has.
    #[must_use]
    pub fn new(client: Client, bucket: &str, s3_endpoint: Option<Arc<dyn Lake>>) -> Self {
        Self {
            client,
            bucket: bucket.to_owned(),
            url: format!("forebay://{bucket}"),
            s3_endpoint,
        }
    }

    fn name(&self, key: &ObjectKey) -> Result<Name> {
        Name::new(&self.bucket, key.as_str())
    }

    async fn call<T: Send + 'static>(
        &self,
        key: &ObjectKey,
        call: impl FnOnce(&Client, &Name) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (client, name) = (self.client.clone(), self.name(key)?);
        spawn_client_call(move || call(&client, &name)).await
    }

    fn s3_endpoint(&self, key: &ObjectKey) -> Result<&Arc<dyn Lake>> {
        self.s3_endpoint.as_ref().ok_or_else(|| {
            let message = "this needs the S3 endpoint of the node and keys for it";
            Error::new(Kind::Unsupported, message).with("key", key)
        })
    }
}

#[async_trait]
impl Lake for SocketLake {
    fn url(&self) -> &str {
        &self.url
    }

    async fn head(&self, key: &ObjectKey) -> Result<ObjectMeta> {
        let stat = self.call(key, Client::stat).await?;
        Ok(meta(key.clone(), stat))
    }

    async fn get(&self, key: &ObjectKey, options: GetOptions) -> Result<GetResult> {
        let meta = self.head(key).await?;
        if options.if_match.is_some_and(|wanted| wanted != meta.version) {
            let message = "the object was replaced; start again";
            return Err(Error::new(Kind::Changed, message).with("key", key));
        }
        let (start, end) = ends(options.range, meta.bytes).map_err(|error| error.with("key", key))?;
        let read = Read {
            client: self.client.clone(),
            name: self.name(key)?,
            version: meta.version.to_string(),
            end,
        };
        Ok(GetResult {
            meta,
            start,
            bytes: end - start,
            body: read.body(start),
        })
    }

    async fn writer(
        &self,
        key: &ObjectKey,
        options: PutOptions,
        bytes_hint: Option<u64>,
    ) -> Result<Box<dyn LakeWriter>> {
        let writer = self
            .client
            .writer(&self.name(key)?, wanted(&options)?, bytes_hint);
        Ok(Box::new(SocketWriter {
            writer: Some(writer),
            options,
        }))
    }

    async fn delete(&self, key: &ObjectKey) -> Result<()> {
        self.call(key, Client::delete).await
    }

    async fn copy(&self, from: &ObjectKey, _to: &ObjectKey, _options: CopyOptions) -> Result<PutReceipt> {
        let message = "objects are not copied inside of the lake over a socket; read and write it";
        Err(Error::new(Kind::Unsupported, message).with("key", from))
    }

    async fn list(&self, options: ListOptions) -> Result<ListPage> {
        let request = ListRequest {
            bucket: self.bucket.clone(),
            prefix: options.prefix,
            delimiter: options.delimiter,
            after: options.start_after,
            limit: u32::try_from(options.limit).unwrap_or(u32::MAX),
        };
        let client = self.client.clone();
        let listed = spawn_client_call(move || client.list_page(request)).await?;
        let object = |listed: forebay_client::ListedObject| {
            Ok(ListedObject {
                key: ObjectKey::new(&listed.key)?,
                bytes: listed.bytes,
                version: Version::new(&listed.version),
                modified: time(listed.modified),
            })
        };
        Ok(ListPage {
            objects: listed.objects.into_iter().map(object).collect::<Result<_>>()?,
            prefixes: listed.prefixes,
            next: listed.next,
        })
    }

    async fn start_upload(&self, key: &ObjectKey, attributes: Attributes) -> Result<UploadId> {
        self.s3_endpoint(key)?.start_upload(key, attributes).await
    }

    async fn upload_part(
        &self,
        key: &ObjectKey,
        upload: &UploadId,
        number: PartNumber,
        bytes: u64,
        body: ByteStream,
    ) -> Result<PartReceipt> {
        self.s3_endpoint(key)?
            .upload_part(key, upload, number, bytes, body)
            .await
    }

    async fn complete_upload(
        &self,
        key: &ObjectKey,
        upload: &UploadId,
        parts: &[PartReceipt],
        options: PutOptions,
    ) -> Result<PutReceipt> {
        self.s3_endpoint(key)?
            .complete_upload(key, upload, parts, options)
            .await
    }

    async fn open_uploads(&self, key: &ObjectKey) -> Result<Vec<UploadId>> {
        match self.s3_endpoint(key)?.open_uploads(key).await {
            // The socket lets this user in; keys that do not fit are no reason to fail.
            Err(error) if error.kind() == Kind::Denied => {
                tracing::warn!(%error, "the keys do not fit the S3 endpoint; a large file goes up in one go");
                Err(Error::new(Kind::Unsupported, "the keys do not fit the S3 endpoint").caused_by(error))
            }
            open => open,
        }
    }

    async fn upload_parts(&self, key: &ObjectKey, upload: &UploadId) -> Result<Vec<PartReceipt>> {
        self.s3_endpoint(key)?.upload_parts(key, upload).await
    }

    async fn abort_upload(&self, key: &ObjectKey, upload: &UploadId) -> Result<()> {
        self.s3_endpoint(key)?.abort_upload(key, upload).await
    }
}

impl fmt::Debug for SocketLake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SocketLake")
            .field("url", &self.url)
            .finish_non_exhaustive()
    }
}

/// A read of one version, window by window.
#[derive(Clone)]
struct Read {
    client: Client,
    name: Name,
    version: String,
    end: u64,
}

impl Read {
    fn body(self, start: u64) -> ByteStream {
        stream::try_unfold(start, move |offset| {
            let read = self.clone();
            async move {
                if offset == read.end {
                    return Ok(None);
                }
                let bytes = spawn_client_call(move || read.window(offset)).await?;
                let next = offset + bytes.len() as u64;
                Ok(Some((bytes, next)))
            }
        })
        .boxed()
    }

    fn window(&self, offset: u64) -> Result<Bytes> {
        let length = WINDOW_BYTES.min(self.end - offset);
        let range = ItemRange::Range { offset, length };
        let view = self.client.get(&self.name, range, Some(&self.version));
        let view = view.map_err(|error| match error.kind() {
            Kind::PreconditionFailed | Kind::NotFound => Error::new(
                Kind::Changed,
                "the object was replaced while it was read; start again",
            )
            .with("object", &self.name)
            .caused_by(error),
            _ => error,
        })?;
        if view.len() as u64 != length {
            return Err(
                Error::new(Kind::Internal, "the node gave another number of bytes")
                    .with("object", &self.name),
            );
        }
        Ok(Bytes::from_owner(MappedView(view)))
    }
}

/// Shared memory that lives as long as somebody looks at it.
struct MappedView(View);

impl AsRef<[u8]> for MappedView {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// An object on its way to the node.
struct SocketWriter {
    /// Gone when a call with it was given up: then nothing is written.
    writer: Option<forebay_client::ObjectWriter>,
    options: PutOptions,
}

impl SocketWriter {
    fn take(&mut self) -> Result<forebay_client::ObjectWriter> {
        self.writer
            .take()
            .ok_or_else(|| Error::new(Kind::Cancelled, "this write was given up; nothing was written"))
    }
}

#[async_trait]
impl LakeWriter for SocketWriter {
    async fn write(&mut self, bytes: Bytes) -> Result<()> {
        let mut writer = self.take()?;
        let written = spawn_client_call(move || writer.write(&bytes).map(|()| writer)).await?;
        self.writer = Some(written);
        Ok(())
    }

    fn takes_attributes_at_finish(&self) -> bool {
        false
    }

    async fn finish(mut self: Box<Self>, options: PutOptions) -> Result<PutReceipt> {
        if options.attributes != self.options.attributes || options.mode != self.options.mode {
            let message =
                "over a socket the attributes and the condition of a write are those of its beginning";
            return Err(Error::new(Kind::Unsupported, message));
        }
        let writer = self.take()?;
        let receipt = spawn_client_call(move || writer.finish()).await?;
        Ok(PutReceipt {
            token: token(&receipt.version),
            version: Version::new(&receipt.version),
            modified: None,
        })
    }

    async fn abort(mut self: Box<Self>) -> Result<()> {
        match self.writer.take() {
            Some(writer) => spawn_client_call(move || writer.abort()).await,
            None => Ok(()),
        }
    }
}

/// The options of a write in the words of the client.
fn wanted(options: &PutOptions) -> Result<forebay_client::PutOptions> {
    if options.md5.is_some() {
        let message = "an MD5 is not compared over a socket";
        return Err(Error::new(Kind::Unsupported, message));
    }
    let condition = match &options.mode {
        PutMode::Overwrite => WriteCondition::None,
        PutMode::Create => WriteCondition::Absent,
        PutMode::Update(token) => {
            WriteCondition::Version(Version::new(token.etag.as_deref().unwrap_or_default()))
        }
    };
    let attributes = options.attributes.clone();
    Ok(forebay_client::PutOptions {
        condition,
        headers: Headers {
            content_type: attributes.content_type,
            content_encoding: attributes.content_encoding,
            content_language: attributes.content_language,
            content_disposition: attributes.content_disposition,
            cache_control: attributes.cache_control,
        },
        metadata: attributes.user.into_iter().collect(),
        ..forebay_client::PutOptions::default()
    })
}

/// First byte and the one behind the last.
fn ends(range: Option<GetRange>, object_bytes: u64) -> Result<(u64, u64)> {
    let (start, end) = match range {
        None => return Ok((0, object_bytes)),
        Some(GetRange::Last(count)) => return Ok((object_bytes.saturating_sub(count), object_bytes)),
        Some(GetRange::From(start)) => (start, object_bytes),
        Some(GetRange::Bounded(range)) => (range.start(), ByteRange::end(range).min(object_bytes)),
    };
    if start >= object_bytes {
        let error = Error::new(Kind::OutOfRange, "the range starts behind the end of the object");
        return Err(error.with("start", start).with("object_bytes", object_bytes));
    }
    Ok((start, end))
}

fn meta(key: ObjectKey, stat: ObjectStat) -> ObjectMeta {
    let Headers {
        content_type,
        content_encoding,
        content_language,
        content_disposition,
        cache_control,
    } = stat.headers;
    ObjectMeta {
        key,
        bytes: stat.bytes,
        token: token(&stat.version),
        version: Version::new(&stat.version),
        modified: time(stat.modified),
        attributes: Attributes {
            content_type,
            content_encoding,
            content_language,
            content_disposition,
            cache_control,
            user: stat.metadata.into_iter().collect(),
        },
    }
}

fn token(version: &str) -> UpdateToken {
    UpdateToken {
        etag: Some(version.to_owned()),
        version: None,
    }
}

fn time(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
}
