//! A part of a lake as a lake of its own: all keys lie below a prefix, callers see them without it.
//!
//! Errors come from the lake below and show the full key.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use forebay_core::{Error, KEY_BYTES_MAX, Kind, ObjectKey, Result};

use crate::{
    Attributes, ByteStream, CopyOptions, GetOptions, GetResult, Lake, LakeWriter, ListOptions, ListPage,
    ObjectMeta, PartNumber, PartReceipt, PutOptions, PutReceipt, UpdateToken, UploadId,
};

/// The keys of a lake below a prefix.
#[derive(Debug, Clone)]
pub struct Prefixed {
    inner: Arc<dyn Lake>,
    prefix: String,
    url: String,
}

impl Prefixed {
    /// The keys that start with `prefix`, which is put before each key as it is (usually it ends with `/`).
    #[must_use]
    pub fn new(inner: Arc<dyn Lake>, prefix: impl Into<String>) -> Self {
        let prefix = prefix.into();
        let url = format!("{}/{prefix}", inner.url().trim_end_matches('/'));
        Self { inner, prefix, url }
    }

    fn full(&self, key: &ObjectKey) -> Result<ObjectKey> {
        let bytes = self.prefix.len() + key.as_str().len();
        if bytes > KEY_BYTES_MAX {
            let message = format!(
                "in the lake the key lies below '{}', and together they are longer than {KEY_BYTES_MAX} bytes; \
                 use at most {} bytes",
                self.prefix,
                KEY_BYTES_MAX.saturating_sub(self.prefix.len())
            );
            let error = Error::new(Kind::InvalidInput, message).with("code", "KeyTooLongError");
            return Err(error.with("lake", &self.url));
        }
        ObjectKey::new(&format!("{}{key}", self.prefix)).map_err(|error| error.with("lake", &self.url))
    }

    /// Returns what the caller sees of a name that the lake below has listed.
    fn strip<'a>(&self, name: &'a str) -> Result<&'a str> {
        name.strip_prefix(&self.prefix).ok_or_else(|| {
            let error = Error::new(
                Kind::Internal,
                "the lake has listed a name without the prefix that was asked for",
            );
            error.with("lake", &self.url).with("name", name)
        })
    }
}

#[async_trait]
impl Lake for Prefixed {
    fn url(&self) -> &str {
        &self.url
    }

    async fn head(&self, key: &ObjectKey) -> Result<ObjectMeta> {
        let meta = self.inner.head(&self.full(key)?).await?;
        Ok(ObjectMeta {
            key: key.clone(),
            ..meta
        })
    }

    async fn get(&self, key: &ObjectKey, options: GetOptions) -> Result<GetResult> {
        let mut result = self.inner.get(&self.full(key)?, options).await?;
        result.meta.key = key.clone();
        Ok(result)
    }

    async fn writer(
        &self,
        key: &ObjectKey,
        options: PutOptions,
        bytes_hint: Option<u64>,
    ) -> Result<Box<dyn LakeWriter>> {
        self.inner.writer(&self.full(key)?, options, bytes_hint).await
    }

    async fn put(&self, key: &ObjectKey, body: Bytes, options: PutOptions) -> Result<PutReceipt> {
        self.inner.put(&self.full(key)?, body, options).await
    }

    async fn delete(&self, key: &ObjectKey) -> Result<()> {
        self.inner.delete(&self.full(key)?).await
    }

    async fn delete_if(&self, key: &ObjectKey, token: &UpdateToken) -> Result<()> {
        self.inner.delete_if(&self.full(key)?, token).await
    }

    async fn copy(&self, from: &ObjectKey, to: &ObjectKey, options: CopyOptions) -> Result<PutReceipt> {
        self.inner.copy(&self.full(from)?, &self.full(to)?, options).await
    }

    async fn list(&self, options: ListOptions) -> Result<ListPage> {
        let below = ListOptions {
            prefix: format!("{}{}", self.prefix, options.prefix),
            start_after: options.start_after.map(|start| format!("{}{start}", self.prefix)),
            ..options
        };
        let mut page = self.inner.list(below).await?;
        // A key that is the prefix itself would have no name here.
        page.objects.retain(|object| object.key.as_str() != self.prefix);
        for object in &mut page.objects {
            object.key = ObjectKey::new(self.strip(object.key.as_str())?)?;
        }
        for prefix in &mut page.prefixes {
            *prefix = self.strip(prefix)?.to_owned();
        }
        page.next = page
            .next
            .map(|next| self.strip(&next).map(str::to_owned))
            .transpose()?;
        Ok(page)
    }

    async fn start_upload(&self, key: &ObjectKey, attributes: Attributes) -> Result<UploadId> {
        self.inner.start_upload(&self.full(key)?, attributes).await
    }

    async fn upload_part(
        &self,
        key: &ObjectKey,
        upload: &UploadId,
        number: PartNumber,
        bytes: u64,
        body: ByteStream,
    ) -> Result<PartReceipt> {
        self.inner
            .upload_part(&self.full(key)?, upload, number, bytes, body)
            .await
    }

    async fn complete_upload(
        &self,
        key: &ObjectKey,
        upload: &UploadId,
        parts: &[PartReceipt],
        options: PutOptions,
    ) -> Result<PutReceipt> {
        self.inner
            .complete_upload(&self.full(key)?, upload, parts, options)
            .await
    }

    async fn open_uploads(&self, key: &ObjectKey) -> Result<Vec<UploadId>> {
        self.inner.open_uploads(&self.full(key)?).await
    }

    async fn upload_parts(&self, key: &ObjectKey, upload: &UploadId) -> Result<Vec<PartReceipt>> {
        self.inner.upload_parts(&self.full(key)?, upload).await
    }

    async fn abort_upload(&self, key: &ObjectKey, upload: &UploadId) -> Result<()> {
        self.inner.abort_upload(&self.full(key)?, upload).await
    }
}
