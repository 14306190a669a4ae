//! Google Cloud Storage and Azure Blob Storage behind the lake trait, through `object_store`.
//!
//! Credentials come from the usual variables (`GOOGLE_APPLICATION_CREDENTIALS`, `AZURE_STORAGE_ACCOUNT_NAME`
//! …). Limits, all from `object_store`: keys must be paths (no `dir/`, `a//b`, `..`), parts of an upload must
//! be numbered from 1 without gaps, the condition of a multipart write is checked just before it completes
//! and not by the store, the only delimiter is `/`, and Azure takes no attributes for an upload that is
//! driven part by part.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use forebay_core::{Error, Kind, ObjectKey, Result};
use futures::{StreamExt, TryStreamExt};
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::list::PaginatedListStore;
use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path;
use object_store::{
    ClientOptions, ObjectStore, ObjectStoreExt, PutMultipartOptions, PutPayload, RetryConfig,
};

use crate::etag::{check_part_number, check_part_order};
use crate::{
    Attributes, ByteStream, CopyOptions, GetOptions, GetResult, Lake, LakeWriter, ListOptions, ListPage,
    ObjectMeta, PartNumber, PartReceipt, PutMode, PutOptions, PutReceipt, UploadId,
};

mod convert;
mod list;
mod writer;

use convert::{error_from, path_of};
use writer::ObjectStoreWriter;

/// A part that is passed on in one piece; `object_store` cannot stream it.
const PART_BYTES_MAX: u64 = 512 << 20;
const IDLE_CONNECTIONS_MAX: usize = 256;

/// Capabilities that we need of a store.
pub(crate) trait CloudStore: ObjectStore + MultipartStore + PaginatedListStore {}
impl<S: ObjectStore + MultipartStore + PaginatedListStore> CloudStore for S {}

/// A lake in a store that `object_store` knows.
#[derive(Clone)]
pub(crate) struct ObjectStoreLake {
    url: Arc<str>,
    store: Arc<dyn CloudStore>,
}

impl fmt::Debug for ObjectStoreLake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectStoreLake")
            .field("url", &self.url)
            .finish_non_exhaustive()
    }
}

/// `gs://bucket`.
pub(crate) fn open_gcs(bucket: &str) -> Result<ObjectStoreLake> {
    let builder = GoogleCloudStorageBuilder::from_env().with_bucket_name(bucket);
    let store = builder.with_client_options(client()).with_retry(retry()).build();
    let store = store.map_err(|error| cannot_open("GOOGLE_APPLICATION_CREDENTIALS", error))?;
    Ok(ObjectStoreLake::new(&format!("gs://{bucket}"), Arc::new(store)))
}

/// `az://container`.
pub(crate) fn open_azure(container: &str) -> Result<ObjectStoreLake> {
    let builder = MicrosoftAzureBuilder::from_env().with_container_name(container);
    let store = builder.with_client_options(client()).with_retry(retry()).build();
    let store = store
        .map_err(|error| cannot_open("AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY", error))?;
    Ok(ObjectStoreLake::new(
        &format!("az://{container}"),
        Arc::new(store),
    ))
}

fn cannot_open(variables: &str, error: object_store::Error) -> Error {
    Error::new(
        Kind::InvalidInput,
        format!("cannot set up the lake; check {variables}"),
    )
    .caused_by(error)
}

fn client() -> ClientOptions {
    ClientOptions::new()
        .with_http1_only()
        .with_pool_max_idle_per_host(IDLE_CONNECTIONS_MAX)
}

fn retry() -> RetryConfig {
    RetryConfig {
        max_retries: 2,
        retry_timeout: Duration::from_secs(20),
        ..RetryConfig::default()
    }
}

impl ObjectStoreLake {
    pub(crate) fn new(url: &str, store: Arc<dyn CloudStore>) -> Self {
        Self {
            url: url.into(),
            store,
        }
    }

    fn at(&self, error: Error, key: &ObjectKey) -> Error {
        error.with("lake", &self.url).with("key", key)
    }

    /// Maps an error of the store; `on_412` is what a failed condition means here.
    fn wrong(&self, key: &ObjectKey, on_412: Kind) -> impl Fn(object_store::Error) -> Error {
        move |error| self.at(error_from(error, on_412), key)
    }

    fn path(&self, key: &ObjectKey) -> Result<Path> {
        path_of(key).map_err(|error| self.at(error, key))
    }

    /// Not atomic: the stores' multipart calls take no condition.
    async fn check_condition(&self, key: &ObjectKey, mode: &PutMode) -> Result<()> {
        if *mode == PutMode::Overwrite {
            return Ok(());
        }
        let found = match self.head(key).await {
            Ok(meta) => Some(meta.token),
            Err(error) if error.kind() == Kind::NotFound => None,
            Err(error) => return Err(error),
        };
        let (holds, kind) = match mode {
            PutMode::Create => (found.is_none(), Kind::AlreadyExists),
            PutMode::Update(token) => (found.as_ref() == Some(token), Kind::PreconditionFailed),
            PutMode::Overwrite => (true, Kind::PreconditionFailed),
        };
        let error = || {
            self.at(
                Error::new(
                    kind,
                    "the object in the lake does not meet the condition of the write",
                ),
                key,
            )
        };
        if holds { Ok(()) } else { Err(error()) }
    }

    async fn complete_parts(
        &self,
        key: &ObjectKey,
        upload: &UploadId,
        parts: Vec<PartId>,
    ) -> Result<PutReceipt> {
        let wrong = self.wrong(key, Kind::PreconditionFailed);
        let result = self
            .store
            .complete_multipart(&self.path(key)?, &upload.0, parts)
            .await
            .map_err(wrong)?;
        self.receipt(key, &result).await
    }

    async fn receipt(&self, key: &ObjectKey, result: &object_store::PutResult) -> Result<PutReceipt> {
        match convert::receipt(result) {
            Some(receipt) => Ok(receipt),
            None => {
                let meta = self.head(key).await?;
                Ok(PutReceipt {
                    version: meta.version,
                    token: meta.token,
                    modified: Some(meta.modified),
                })
            }
        }
    }
}

#[async_trait]
impl Lake for ObjectStoreLake {
    fn url(&self) -> &str {
        &self.url
    }

    async fn head(&self, key: &ObjectKey) -> Result<ObjectMeta> {
        let options = object_store::GetOptions {
            head: true,
            ..object_store::GetOptions::default()
        };
        let wrong = self.wrong(key, Kind::Changed);
        let answer = self
            .store
            .get_opts(&self.path(key)?, options)
            .await
            .map_err(wrong)?;
        convert::object_meta(key, &answer.meta, &answer.attributes).map_err(|error| self.at(error, key))
    }

    async fn get(&self, key: &ObjectKey, options: GetOptions) -> Result<GetResult> {
        let asked = convert::get_options(&options).map_err(|error| self.at(error, key))?;
        let wrong = self.wrong(key, Kind::Changed);
        let answer = self
            .store
            .get_opts(&self.path(key)?, asked)
            .await
            .map_err(wrong)?;
        let meta = convert::object_meta(key, &answer.meta, &answer.attributes)
            .map_err(|error| self.at(error, key))?;
        if options
            .if_match
            .as_ref()
            .is_some_and(|version| *version != meta.version)
        {
            return Err(self.at(
                Error::new(Kind::Changed, "the object has another version now"),
                key,
            ));
        }
        let (start, bytes) = (answer.range.start, answer.range.end - answer.range.start);
        let lake = self.clone();
        let named = key.clone();
        let chunks = answer
            .into_stream()
            .map_err(move |error| lake.wrong(&named, Kind::Changed)(error));
        Ok(GetResult {
            meta,
            start,
            bytes,
            body: convert::exactly(chunks.boxed(), bytes),
        })
    }

    async fn writer(
        &self,
        key: &ObjectKey,
        options: PutOptions,
        bytes_hint: Option<u64>,
    ) -> Result<Box<dyn LakeWriter>> {
        self.path(key)?;
        Ok(Box::new(ObjectStoreWriter::new(
            self.clone(),
            key.clone(),
            options,
            bytes_hint,
        )))
    }

    async fn delete(&self, key: &ObjectKey) -> Result<()> {
        match self.store.delete(&self.path(key)?).await {
            Err(error) => match self.wrong(key, Kind::PreconditionFailed)(error) {
                error if error.kind() == Kind::NotFound => Ok(()),
                error => Err(error),
            },
            Ok(()) => Ok(()),
        }
    }

    async fn copy(&self, from: &ObjectKey, to: &ObjectKey, options: CopyOptions) -> Result<PutReceipt> {
        if options.attributes.is_none() && options.if_match.is_none() {
            let wrong = self.wrong(from, Kind::Changed);
            self.store
                .copy(&self.path(from)?, &self.path(to)?)
                .await
                .map_err(wrong)?;
            let meta = self.head(to).await?;
            return Ok(PutReceipt {
                version: meta.version,
                token: meta.token,
                modified: Some(meta.modified),
            });
        }
        // Neither a pin nor new attributes go with the store's own copy, so the bytes pass through here.
        let mut source = self
            .get(
                from,
                GetOptions {
                    range: None,
                    if_match: options.if_match,
                },
            )
            .await?;
        let attributes = options
            .attributes
            .unwrap_or_else(|| source.meta.attributes.clone());
        let put = PutOptions {
            attributes,
            ..PutOptions::default()
        };
        let mut writer = self.writer(to, put.clone(), Some(source.bytes)).await?;
        while let Some(chunk) = source.body.try_next().await? {
            writer.write(chunk).await?;
        }
        writer.finish(put).await
    }

    async fn list(&self, options: ListOptions) -> Result<ListPage> {
        let page = list::list(&*self.store, &options).await;
        page.map_err(|error| error.with("lake", &self.url).with("prefix", &options.prefix))
    }

    async fn start_upload(&self, key: &ObjectKey, attributes: Attributes) -> Result<UploadId> {
        let options = PutMultipartOptions {
            attributes: convert::attributes_of(&attributes),
            ..Default::default()
        };
        let wrong = self.wrong(key, Kind::PreconditionFailed);
        self.store
            .create_multipart_opts(&self.path(key)?, options)
            .await
            .map(UploadId)
            .map_err(wrong)
    }

    async fn upload_part(
        &self,
        key: &ObjectKey,
        upload: &UploadId,
        number: PartNumber,
        bytes: u64,
        body: ByteStream,
    ) -> Result<PartReceipt> {
        check_part_number(number).map_err(|error| self.at(error, key))?;
        if bytes > PART_BYTES_MAX {
            let error = Error::new(
                Kind::InvalidInput,
                "parts for this lake have at most 512 MiB; use smaller parts",
            );
            return Err(self.at(error.with("bytes", bytes), key));
        }
        let chunks: Vec<Bytes> = convert::exactly(body, bytes)
            .try_collect()
            .await
            .map_err(|error| self.at(error, key))?;
        let wrong = self.wrong(key, Kind::PreconditionFailed);
        let payload = PutPayload::from_iter(chunks);
        let position = usize::from(number) - 1;
        let part = self
            .store
            .put_part(&self.path(key)?, &upload.0, position, payload)
            .await
            .map_err(wrong)?;
        Ok(PartReceipt {
            number,
            etag: part.content_id,
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
        check_part_order(parts).map_err(|error| self.at(error, key))?;
        let has_gaps = parts
            .iter()
            .zip(1..=PartNumber::MAX)
            .any(|(part, number)| part.number != number);
        if has_gaps || options.md5.is_some() {
            let error = Error::new(
                Kind::Unsupported,
                "this lake joins only parts numbered from 1 without gaps, without an MD5 of the whole",
            );
            return Err(self.at(error, key));
        }
        self.check_condition(key, &options.mode).await?;
        let parts = parts
            .iter()
            .map(|part| PartId {
                content_id: part.etag.clone(),
            })
            .collect();
        self.complete_parts(key, upload, parts).await
    }

    async fn abort_upload(&self, key: &ObjectKey, upload: &UploadId) -> Result<()> {
        match self.store.abort_multipart(&self.path(key)?, &upload.0).await {
            Err(error) => match self.wrong(key, Kind::PreconditionFailed)(error) {
                error if error.kind() == Kind::NotFound => Ok(()),
                error => Err(error),
            },
            Ok(()) => Ok(()),
        }
    }
}
