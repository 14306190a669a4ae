//! Reading a version that the caller already knows: metadata is not asked for again.
//!
//! For callers that look at an object before they know which bytes they want (the index of a tar shard, a batch of ranges of one
//! object): one look at the metadata serves all their reads. If the version is gone by then, they hear `Changed` and decide
//! themselves; the next [`Engine::head`] asks the lake.

use std::sync::Arc;

use forebay_core::{BucketName, ByteRange, ObjectKey, Result};
use forebay_reservoir::PieceStream;
use futures::StreamExt;

use crate::{Engine, ObjectInfo, ObjectPieces};

impl Engine {
    /// The bytes of this very version, in order, as they come. `Changed` or `NotFound`, at any piece, if the lake has another by now.
    #[must_use]
    pub fn read_version(&self, info: &ObjectInfo, range: ByteRange) -> PieceStream {
        let pieces = self.reservoir.read(&info.object_version(), range, &self.source);
        ObjectPieces::of(pieces, Arc::new(info.clone()), &self.freshness).boxed()
    }

    /// Metadata of one object, asked of the lake now, however fresh the cached one is. Cancel-safe.
    pub async fn head_now(&self, bucket: &BucketName, key: &ObjectKey) -> Result<ObjectInfo> {
        let bucket = self.buckets.open(bucket)?;
        let info = self.refresh(&bucket, key).await?;
        Ok(ObjectInfo::clone(&info))
    }
}
