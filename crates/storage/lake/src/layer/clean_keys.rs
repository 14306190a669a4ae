//! A lake that takes keys for paths, kept from mixing objects up.
//!
//! Some stores fold `a//b`, `a\b` and `a/./b` to `a/b`: two keys, one object. The self-test finds that out
//! (`selftest.rs`) and switches this layer on; from then on such keys cannot be written, and are not there
//! when they are read. Until then everything passes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use forebay_core::{Error, Kind, ObjectKey, Result};

use crate::{
    Attributes, ByteStream, CopyOptions, GetOptions, GetResult, Lake, LakeWriter, ListOptions, ListPage,
    ObjectMeta, PartNumber, PartReceipt, PutOptions, PutReceipt, UpdateToken, UploadId,
};

/// Said of a key that would be another one's.
pub(crate) const TAKES_KEYS_FOR_PATHS: &str =
    "this lake takes keys for paths: no `\\`, `//`, `.` or `..` in them";

/// Returns whether a key names the same thing as a path.
pub(crate) fn is_clean_path(key: &str) -> bool {
    let is_folded = |segment: &str| matches!(segment, "" | "." | "..");
    let path = key.strip_suffix('/').unwrap_or(key);
    key.is_empty() || !(path.contains('\\') || path.split('/').any(is_folded))
}

/// A lake whose keys can be limited to clean paths.
#[derive(Debug)]
pub struct CleanKeys {
    inner: Arc<dyn Lake>,
    is_on: AtomicBool,
}

impl CleanKeys {
    /// Lets every key pass until it is told otherwise.
    #[must_use]
    pub fn new(inner: Arc<dyn Lake>) -> Self {
        Self {
            inner,
            is_on: AtomicBool::new(false),
        }
    }

    /// Refuses keys that are no clean paths from now on.
    pub fn refuse_unclean(&self) {
        self.is_on.store(true, Ordering::Relaxed);
    }

    fn is_refused(&self, key: &str) -> bool {
        self.is_on.load(Ordering::Relaxed) && !is_clean_path(key)
    }

    fn readable(&self, key: &ObjectKey) -> Result<()> {
        if self.is_refused(key.as_str()) {
            return Err(self.about(Error::new(Kind::NotFound, "not in the lake"), key));
        }
        Ok(())
    }

    fn writable(&self, key: &ObjectKey) -> Result<()> {
        if self.is_refused(key.as_str()) {
            return Err(self.about(Error::new(Kind::InvalidInput, TAKES_KEYS_FOR_PATHS), key));
        }
        Ok(())
    }

    fn about(&self, error: Error, key: &ObjectKey) -> Error {
        error.with("lake", self.inner.url()).with("key", key)
    }
}

#[async_trait]
impl Lake for CleanKeys {
    fn url(&self) -> &str {
        self.inner.url()
    }

    async fn head(&self, key: &ObjectKey) -> Result<ObjectMeta> {
        self.readable(key)?;
        self.inner.head(key).await
    }

    async fn get(&self, key: &ObjectKey, options: GetOptions) -> Result<GetResult> {
        self.readable(key)?;
        self.inner.get(key, options).await
    }

    async fn writer(
        &self,
        key: &ObjectKey,
        options: PutOptions,
        bytes_hint: Option<u64>,
    ) -> Result<Box<dyn LakeWriter>> {
        self.writable(key)?;
        self.inner.writer(key, options, bytes_hint).await
    }

    async fn put(&self, key: &ObjectKey, body: Bytes, options: PutOptions) -> Result<PutReceipt> {
        self.writable(key)?;
        self.inner.put(key, body, options).await
    }

    async fn delete(&self, key: &ObjectKey) -> Result<()> {
        // Nothing is there, and removing nothing is fine.
        if self.is_refused(key.as_str()) {
            return Ok(());
        }
        self.inner.delete(key).await
    }

    async fn delete_if(&self, key: &ObjectKey, token: &UpdateToken) -> Result<()> {
        self.readable(key)?;
        self.inner.delete_if(key, token).await
    }

    async fn copy(&self, from: &ObjectKey, to: &ObjectKey, options: CopyOptions) -> Result<PutReceipt> {
        self.readable(from)?;
        self.writable(to)?;
        self.inner.copy(from, to, options).await
    }

    async fn list(&self, options: ListOptions) -> Result<ListPage> {
        if self.is_refused(&options.prefix) {
            return Ok(ListPage::default());
        }
        self.inner.list(options).await
    }

    async fn start_upload(&self, key: &ObjectKey, attributes: Attributes) -> Result<UploadId> {
        self.writable(key)?;
        self.inner.start_upload(key, attributes).await
    }

    async fn upload_part(
        &self,
        key: &ObjectKey,
        upload: &UploadId,
        number: PartNumber,
        bytes: u64,
        body: ByteStream,
    ) -> Result<PartReceipt> {
        self.writable(key)?;
        self.inner.upload_part(key, upload, number, bytes, body).await
    }

    async fn complete_upload(
        &self,
        key: &ObjectKey,
        upload: &UploadId,
        parts: &[PartReceipt],
        options: PutOptions,
    ) -> Result<PutReceipt> {
        self.writable(key)?;
        self.inner.complete_upload(key, upload, parts, options).await
    }

    async fn open_uploads(&self, key: &ObjectKey) -> Result<Vec<UploadId>> {
        self.readable(key)?;
        self.inner.open_uploads(key).await
    }

    async fn upload_parts(&self, key: &ObjectKey, upload: &UploadId) -> Result<Vec<PartReceipt>> {
        self.readable(key)?;
        self.inner.upload_parts(key, upload).await
    }

    async fn abort_upload(&self, key: &ObjectKey, upload: &UploadId) -> Result<()> {
        self.readable(key)?;
        self.inner.abort_upload(key, upload).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MemoryLake, PutMode};

    #[test]
    fn only_keys_that_no_path_rule_changes_are_clean() {
        for key in ["a", "a/b", "a/", "a/..b", ".hidden", ""] {
            assert!(is_clean_path(key), "{key}");
        }
        for key in ["/a", "a//b", "a//", "a/../b", "..", ".", "a\\b", "/"] {
            assert!(!is_clean_path(key), "{key}");
        }
    }

    #[tokio::test]
    async fn unclean_keys_pass_until_they_are_refused() {
        let lake = CleanKeys::new(Arc::new(MemoryLake::new()));
        let (clean, unclean) = (ObjectKey::new("a/b").unwrap(), ObjectKey::new("a//b").unwrap());
        let options = || PutOptions {
            mode: PutMode::Overwrite,
            ..PutOptions::default()
        };
        let put = |key: &ObjectKey| {
            let (lake, key) = (&lake, key.clone());
            async move { lake.put(&key, Bytes::from_static(b"x"), options()).await }
        };
        put(&unclean).await.unwrap();
        lake.refuse_unclean();
        let kind = |error: Error| error.kind();
        assert_eq!(
            put(&unclean).await.map(|_| ()).map_err(kind),
            Err(Kind::InvalidInput)
        );
        assert_eq!(lake.head(&unclean).await.unwrap_err().kind(), Kind::NotFound);
        assert_eq!(lake.delete(&unclean).await.map_err(kind), Ok(()));
        put(&clean).await.unwrap();
        let copied = lake.copy(&clean, &unclean, CopyOptions::default()).await;
        assert_eq!(copied.unwrap_err().kind(), Kind::InvalidInput);
        let uploaded = lake.start_upload(&unclean, Attributes::default()).await;
        assert_eq!(uploaded.unwrap_err().kind(), Kind::InvalidInput);
        let listed = ListOptions {
            prefix: "a//".into(),
            ..ListOptions::default()
        };
        assert_eq!(lake.list(listed).await.unwrap(), ListPage::default());
    }
}
