//! Writes a body of unknown size: small ones in one request, large ones in parallel parts.
//!
//! The same shape as the S3 writer, on `object_store`'s upload, which takes attributes on every store.

use std::mem;

use async_trait::async_trait;
use bytes::Bytes;
use forebay_core::{Error, Kind, ObjectKey, Result};
use md5::{Digest, Md5};
use object_store::{MultipartUpload, PutMultipartOptions, PutPayload};
use tokio::task::JoinSet;

use super::ObjectStoreLake;
use super::convert::{attributes_of, mode_of};
use crate::backend::chunks::{Chunks, failed_already, late_md5};
use crate::etag::check_md5;
use crate::{LakeWriter, PutOptions, PutReceipt};

const PART_BYTES_MIN: u64 = 16 << 20;
const PARTS_IN_FLIGHT_MAX: usize = 4;
/// Fewer than the 10,000 that Google allows, with parts that grow with the expected size.
const PARTS_MAX: u64 = 9_000;

/// A body being written.
pub(super) struct ObjectStoreWriter {
    lake: ObjectStoreLake,
    key: ObjectKey,
    options: PutOptions,
    part_bytes: u64,
    chunks: Chunks,
    md5: Md5,
    upload: Option<Upload>,
    has_failed: bool,
}

struct Upload {
    upload: Box<dyn MultipartUpload>,
    in_flight: JoinSet<object_store::Result<()>>,
}

impl ObjectStoreWriter {
    pub(super) fn new(
        lake: ObjectStoreLake,
        key: ObjectKey,
        options: PutOptions,
        bytes_hint: Option<u64>,
    ) -> Self {
        // Without a hint parts of 64 MiB reach 600 GB.
        let part_bytes = bytes_hint.map_or(4 * PART_BYTES_MIN, |bytes| {
            bytes.div_ceil(PARTS_MAX).max(PART_BYTES_MIN)
        });
        Self {
            lake,
            key,
            options,
            part_bytes,
            chunks: Chunks::default(),
            md5: Md5::new(),
            upload: None,
            has_failed: false,
        }
    }

    /// Equal parts, because some stores insist on them.
    async fn add(&mut self, bytes: Bytes) -> Result<()> {
        if self.options.md5.is_some() {
            self.md5.update(&bytes);
        }
        self.chunks.push(bytes);
        while self.chunks.bytes() > self.part_bytes {
            let part = self.chunks.take(self.part_bytes);
            self.send(part).await?;
        }
        Ok(())
    }

    async fn send(&mut self, part: Vec<Bytes>) -> Result<()> {
        let wrong = self.lake.wrong(&self.key, Kind::PreconditionFailed);
        if self.upload.is_none() {
            let attributes = attributes_of(&self.options.attributes);
            let options = PutMultipartOptions {
                attributes,
                ..PutMultipartOptions::default()
            };
            let path = self.lake.path(&self.key)?;
            let upload = self
                .lake
                .store
                .put_multipart_opts(&path, options)
                .await
                .map_err(&wrong)?;
            self.upload = Some(Upload {
                upload,
                in_flight: JoinSet::new(),
            });
        }
        let Some(upload) = &mut self.upload else {
            return Err(Error::new(Kind::Internal, "no upload is open"));
        };
        while upload.in_flight.len() >= PARTS_IN_FLIGHT_MAX {
            join_one(&mut upload.in_flight, &wrong).await?;
        }
        upload
            .in_flight
            .spawn(upload.upload.put_part(PutPayload::from_iter(part)));
        Ok(())
    }

    async fn finish_upload(&mut self, options: &PutOptions) -> Result<PutReceipt> {
        let rest = self.chunks.take_all();
        self.send(rest).await?;
        let Some(upload) = &mut self.upload else {
            return Err(Error::new(Kind::Internal, "no upload is open"));
        };
        let wrong = self.lake.wrong(&self.key, Kind::PreconditionFailed);
        while !upload.in_flight.is_empty() {
            join_one(&mut upload.in_flight, &wrong).await?;
        }
        if options.md5.is_some() && self.options.md5.is_none() {
            return Err(late_md5());
        }
        check_md5(options.md5, mem::take(&mut self.md5).finalize().into())?;
        self.lake.check_condition(&self.key, &options.mode).await?;
        let result = upload.upload.complete().await.map_err(&wrong)?;
        self.lake.receipt(&self.key, &result).await
    }

    async fn put(&mut self, options: &PutOptions) -> Result<PutReceipt> {
        let chunks = self.chunks.take_all();
        if options.md5.is_some() {
            let mut md5 = Md5::new();
            chunks.iter().for_each(|chunk| md5.update(chunk));
            check_md5(options.md5, md5.finalize().into()).map_err(|error| self.lake.at(error, &self.key))?;
        }
        let put = object_store::PutOptions {
            mode: mode_of(&options.mode),
            attributes: attributes_of(&options.attributes),
            ..object_store::PutOptions::default()
        };
        let path = self.lake.path(&self.key)?;
        let wrong = self.lake.wrong(&self.key, Kind::PreconditionFailed);
        let result = self
            .lake
            .store
            .put_opts(&path, PutPayload::from_iter(chunks), put)
            .await
            .map_err(wrong)?;
        self.lake.receipt(&self.key, &result).await
    }
}

async fn join_one(
    in_flight: &mut JoinSet<object_store::Result<()>>,
    wrong: &impl Fn(object_store::Error) -> Error,
) -> Result<()> {
    match in_flight.join_next().await {
        Some(Ok(part)) => part.map_err(wrong),
        Some(Err(why)) => Err(Error::new(Kind::Internal, "a part's task ended early").caused_by(why)),
        None => Ok(()),
    }
}

#[async_trait]
impl LakeWriter for ObjectStoreWriter {
    async fn write(&mut self, bytes: Bytes) -> Result<()> {
        if self.has_failed {
            return Err(failed_already(&self.key));
        }
        self.has_failed = true;
        self.add(bytes).await?;
        self.has_failed = false;
        Ok(())
    }

    fn takes_attributes_at_finish(&self) -> bool {
        self.upload.is_none()
    }

    async fn finish(mut self: Box<Self>, options: PutOptions) -> Result<PutReceipt> {
        if self.has_failed {
            return Err(failed_already(&self.key));
        }
        if self.upload.is_none() {
            return self.put(&options).await;
        }
        let receipt = self.finish_upload(&options).await;
        if receipt.is_err() {
            // The first error is the one that counts.
            let _ = self.abort().await;
        }
        receipt
    }

    async fn abort(mut self: Box<Self>) -> Result<()> {
        let Some(mut upload) = self.upload.take() else {
            return Ok(());
        };
        upload.in_flight.shutdown().await;
        let wrong = self.lake.wrong(&self.key, Kind::PreconditionFailed);
        upload.upload.abort().await.map_err(wrong)
    }
}
