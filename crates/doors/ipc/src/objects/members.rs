//! Members of tar shards by name: an index for each version of a shard, made when it is first asked for.
//!
//! The index is made by scanning the shard from its start to its end, through the cache like any read:
//! windows of growing size while members are small, so that a lake's rate counts and not its latency; hops
//! from header to header where members are large, so that their bytes are not fetched. The whole shard has to
//! be seen because of two members with one name the last one counts. Whoever asks for an index that is being
//! made waits for it; if the maker goes away, the next one takes over and finds the blocks in the cache. That
//! a shard is no archive, or a damaged one, is remembered like an index; that the lake failed is not.
//!
//! Limits: memory of all indexes, members and name bytes of one, indexes made at once.

use std::sync::Arc;

use forebay_core::{BucketName, ByteRange, Error, Kind, ObjectKey, Result, Version};
use forebay_dataset::tar::{TarIndex, TarIndexBuilder, TarIndexLimits, TarScanner, Want};
use forebay_engine::{Engine, ObjectInfo};
use futures::StreamExt;
use quick_cache::sync::Cache;
use quick_cache::{OptionsBuilder, Weighter};
use tokio::sync::Semaphore;

/// Memory of the indexes that are kept.
const INDEXES_BYTES_MAX: u64 = 128 << 20;

/// One index is at most about half of that, so that two shards can be read side by side.
const INDEX_LIMITS: TarIndexLimits = TarIndexLimits {
    members_max: 1 << 20,
    names_bytes_max: 32 << 20,
};

/// Indexes made at once.
const BUILDS_MAX: usize = 4;

/// The first window, and the one after a hop: a block of the cache.
const WINDOW_BYTES_MIN: u64 = forebay_core::BLOCK_BYTES;

/// Windows grow up to this while headers lie close together.
const WINDOW_BYTES_MAX: u64 = 32 << 20;

/// A member at least this large is hopped over: fetching it would take longer than asking again behind it.
const HOP_BYTES_MIN: u64 = 4 << 20;

/// Key of an index: a changed shard has another one.
type Shard = (BucketName, ObjectKey, Version, u64);

/// Knowledge about a shard: its index, or why it has none.
type Scanned = Arc<Result<TarIndex>>;

/// The indexes of shards.
#[derive(Debug)]
pub struct Members {
    indexes: Cache<Shard, Scanned, IndexBytes>,
    builds: Semaphore,
}

#[derive(Debug, Clone)]
struct IndexBytes;

impl Weighter<Shard, Scanned> for IndexBytes {
    fn weight(&self, _: &Shard, scanned: &Scanned) -> u64 {
        /// An error and the name of the shard.
        const ENTRY_BYTES: usize = 2048;
        let index_bytes = scanned.as_ref().as_ref().map_or(0, TarIndex::memory_bytes);
        (ENTRY_BYTES + index_bytes) as u64
    }
}

impl Members {
    pub(super) fn new() -> Self {
        let options = OptionsBuilder::new()
            .shards(1)
            .estimated_items_capacity(1024)
            .weight_capacity(INDEXES_BYTES_MAX)
            .build()
            .expect("all that has no default is given");
        Self {
            indexes: Cache::with_options(options, IndexBytes, Default::default(), Default::default()),
            builds: Semaphore::new(BUILDS_MAX),
        }
    }

    /// Returns where the member lies, if that is known without waiting; `None` inside if it has no bytes.
    pub(super) fn known_range(&self, object: &ObjectInfo, name: &str) -> Option<Result<Option<ByteRange>>> {
        let scanned = self.indexes.get(&shard(object))?;
        Some(find(&scanned, object, name))
    }

    /// Returns where the member lies in this version of the shard; `None` if it has no bytes. Cancel-safe.
    ///
    /// Errors: `NotFound` (no such member), `InvalidInput` (no tar archive), `Corrupt`, `Unsupported` (a
    /// sparse member, too many members), `Changed` (the shard has another version by now), and what the lake
    /// says.
    pub async fn member_range(
        &self,
        engine: &Engine,
        object: &ObjectInfo,
        name: &str,
    ) -> Result<Option<ByteRange>> {
        let scanned = self
            .indexes
            .get_or_insert_async(&shard(object), self.build(engine, object))
            .await?;
        find(&scanned, object, name)
    }

    /// Like [`Self::member_range`], for use inside [`Engine::with_version`]: that the shard has no such member is
    /// an error inside, because it is no reason to look at another version.
    pub(super) async fn range_in_version(
        &self,
        engine: &Engine,
        object: &ObjectInfo,
        name: &str,
    ) -> Result<Result<Option<ByteRange>>> {
        match self.member_range(engine, object, name).await {
            Err(error) if error.kind() == Kind::NotFound => Ok(Err(error)),
            found => found.map(Ok),
        }
    }

    async fn build(&self, engine: &Engine, object: &ObjectInfo) -> Result<Scanned> {
        let _place = self.builds.acquire().await;
        let scanned = scan(engine, object).await.map(TarIndexBuilder::finish);
        if let Ok(index) = &scanned {
            let (members, index_bytes) = (index.len(), index.memory_bytes());
            tracing::debug!(bucket = %object.bucket, key = %object.key, members, index_bytes, "tar shard indexed");
        }
        match scanned {
            Err(error) if !is_about_content(&error) => Err(at(error, object)),
            scanned => Ok(Arc::new(scanned)),
        }
    }
}

/// Returns whether the bytes of the shard are the reason, so that another try would end the same way.
fn is_about_content(error: &Error) -> bool {
    matches!(
        error.kind(),
        Kind::InvalidInput | Kind::Corrupt | Kind::Unsupported
    )
}

/// Reads the shard's headers, window by window.
async fn scan(engine: &Engine, object: &ObjectInfo) -> Result<TarIndexBuilder> {
    let mut scanner = TarScanner::new(object.bytes);
    let mut index = TarIndex::builder(INDEX_LIMITS);
    let mut window_bytes = WINDOW_BYTES_MIN;
    while let Want::From(offset) = scanner.want() {
        let window = window(offset, window_bytes, object.bytes)?;
        let mut pieces = engine.read_version(object, window);
        let mut hops = false;
        while let Some(piece) = pieces.next().await {
            let piece = piece?;
            scanner.push(piece.start, &piece.bytes, |member| index.add(&member))?;
            let piece_end = piece.start + piece.bytes.len() as u64;
            hops = matches!(scanner.want(), Want::From(next) if next >= piece_end + HOP_BYTES_MIN);
            if hops || scanner.want() == Want::End {
                break;
            }
        }
        if scanner.want() == Want::From(offset) {
            return Err(Error::new(Kind::Internal, "a read of a shard gave no bytes"));
        }
        window_bytes = match hops {
            true => WINDOW_BYTES_MIN,
            false => (window_bytes * 2).min(WINDOW_BYTES_MAX),
        };
        // A shard that is in RAM never waits; others want the thread as well.
        tokio::task::yield_now().await;
    }
    Ok(index)
}

/// So many bytes from `offset`, up to the end of a block of the cache, which has to be fetched anyway.
fn window(offset: u64, bytes: u64, object_bytes: u64) -> Result<ByteRange> {
    let end = offset.saturating_add(bytes).next_multiple_of(WINDOW_BYTES_MIN);
    ByteRange::new(offset, end.min(object_bytes))
}

fn find(scanned: &Result<TarIndex>, object: &ObjectInfo, name: &str) -> Result<Option<ByteRange>> {
    let place = match scanned {
        Ok(index) => index.find(name),
        Err(error) => Err(error.share()),
    };
    Ok(place.map_err(|error| at(error, object))?.range())
}

fn shard(object: &ObjectInfo) -> Shard {
    (
        object.bucket.clone(),
        object.key.clone(),
        object.version.clone(),
        object.bytes,
    )
}

fn at(error: Error, object: &ObjectInfo) -> Error {
    error.with("bucket", &object.bucket).with("key", &object.key)
}

#[cfg(test)]
mod tests;
