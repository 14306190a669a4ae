//! Copying an object: inside the lake where possible, else as a read and a write.

use std::sync::Arc;

use forebay_core::Result;
use forebay_lake::CopyOptions;
use futures::StreamExt;

use crate::bucket::Bucket;
use crate::read::failed_condition;
use crate::{
    CopyRequest, Engine, Finish, ObjectInfo, RangeRequest, ReadAnswer, Verdict, WriteCondition, WriteReceipt,
    WriteRequest, document,
};

impl Engine {
    /// Copies. The source's version is pinned: it is copied whole or the copy fails.
    pub async fn copy(self: &Arc<Self>, request: CopyRequest) -> Result<WriteReceipt> {
        let source = self.buckets.open(&request.source.0)?;
        let target = self.buckets.existing(&request.target.0).await?;
        self.check_writable(&target, &request.target.1).await?;
        let info = self.refresh(&source, &request.source.1).await?;
        // For a copy "not modified" is a failed condition as well.
        if request.conditions.check(&info) != Verdict::Proceed {
            return Err(failed_condition(&info));
        }
        let tags = match &request.tags {
            Some(tags) => tags.clone(),
            None => document::read_tags(&source, &info).await?,
        };
        // The lake does not have what is computed.
        let is_stored = !source.is_derived(&info.key, &info.version);
        let inside_one_lake = is_stored && Arc::ptr_eq(&source.handle, &target.handle);
        if inside_one_lake && request.target_condition == WriteCondition::None {
            return self.copy_in_lake(&source, &target, &info, request, tags).await;
        }
        self.copy_through(&info, request, tags).await
    }

    async fn copy_in_lake(
        &self,
        source: &Arc<Bucket>,
        target: &Arc<Bucket>,
        info: &ObjectInfo,
        request: CopyRequest,
        tags: Vec<crate::Tag>,
    ) -> Result<WriteReceipt> {
        let key = request.target.1;
        let attributes = request
            .attributes
            .map(|attributes| document::with_checksums(attributes, &info.checksums));
        let options = CopyOptions {
            attributes,
            if_match: Some(info.version.clone()),
        };
        let (from, to) = (source.full_key(&info.key)?, target.full_key(&key)?);

        let write = self.freshness.begin_write(&target.name, &key);
        let receipt = target.handle.lake.copy(&from, &to, options).await?;
        write.done(None);
        self.reservoir.forget(&target.name, &key);
        let copied = self.refresh(target, &key).await?;
        if !tags.is_empty() {
            self.tag_written(target, &key, &receipt.version, tags).await?;
        }
        Ok(WriteReceipt {
            version: copied.version.clone(),
            bytes: copied.bytes,
            modified: copied.modified,
        })
    }

    async fn copy_through(
        self: &Arc<Self>,
        info: &ObjectInfo,
        request: CopyRequest,
        tags: Vec<crate::Tag>,
    ) -> Result<WriteReceipt> {
        let answer = self
            .read(&info.bucket, &info.key, RangeRequest::Whole, &request.conditions)
            .await?;
        let ReadAnswer::Object(mut read) = answer else {
            return Err(failed_condition(info));
        };
        let write_request = WriteRequest {
            attributes: request.attributes.unwrap_or_else(|| read.info.attributes.clone()),
            tags,
            condition: request.target_condition,
            bytes: Some(read.info.bytes),
            checksums: read.info.checksums.clone(),
            ..WriteRequest::default()
        };
        let checksums = read.info.checksums.clone();
        let mut write = self
            .write(&request.target.0, &request.target.1, write_request)
            .await?;
        while let Some(piece) = read.pieces.next().await {
            match piece {
                Ok(piece) => write.push(piece.bytes).await?,
                Err(error) => {
                    write.abort().await;
                    return Err(error);
                }
            }
        }
        write.finish(Finish { checksums }).await
    }
}
