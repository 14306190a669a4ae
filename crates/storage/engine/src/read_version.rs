//! Reading a version that the caller already knows: metadata is not asked for again.
//!
//! For callers that look at an object before they know which bytes they want (the index of a tar shard, a
//! batch of ranges of one object): one look at the metadata serves all their reads. If the version is gone by
//! then, they hear `Changed` and decide themselves; the next [`Engine::head`] asks the lake.

use std::sync::Arc;

use forebay_core::ByteRange;
use forebay_reservoir::PieceStream;
use futures::{StreamExt, stream};

use crate::{Engine, ObjectInfo, ObjectPieces};

impl Engine {
    /// The bytes of this very version, in order, as they come. `Changed` or `NotFound`, at any piece, if the
    /// lake has another by now.
    #[must_use]
    pub fn read_version(&self, info: &ObjectInfo, range: ByteRange) -> PieceStream {
        let source = match self.source_of(info) {
            Ok(source) => source,
            Err(error) => return stream::once(async { Err(error) }).boxed(),
        };
        let pieces = self.reservoir.read(&info.object_version(), range, &source);
        ObjectPieces::of(pieces, Arc::new(info.clone()), &self.freshness).boxed()
    }
}
