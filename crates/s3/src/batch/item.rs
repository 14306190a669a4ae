//! One item of a batch: may this key read it, which version, which bytes; then the first of them.
//!
//! All items of one batch that name the same object see the same metadata, asked for once, so that a thousand members of one shard
//! cost one look and belong to one version. If the object turns out to have changed, the item asks again and starts afresh.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use forebay_core::wire::{Item, ItemRange};
use forebay_core::{BucketName, ByteRange, Error, Kind, ObjectKey, Result};
use forebay_engine::{Engine, ObjectInfo};
use forebay_reservoir::{Piece, PieceStream};
use futures::StreamExt;
use parking_lot::Mutex;
use tokio::sync::{OnceCell, OwnedSemaphorePermit};

use super::BatchRoute;
use crate::access::AccessRules;
use crate::context::RequestContext;
use crate::members::MemberIndex;

/// How often an item starts again because its object changed before its first byte.
const RESTARTS_MAX: usize = 3;

/// Names of members are not longer than this; a path of a file system is not either.
const MEMBER_NAME_BYTES_MAX: usize = 4096;

/// What the items of one batch share.
pub(super) struct Batch {
    engine: Arc<Engine>,
    rules: AccessRules,
    members: Option<Arc<dyn MemberIndex>>,
    who: Option<String>,
    pub(super) context: Arc<RequestContext>,
    timeout: Duration,
    looks: Mutex<HashMap<(BucketName, ObjectKey), Look>>,
}

/// Metadata of an object, asked for by whoever needs it first.
type Look = Arc<OnceCell<Result<Arc<ObjectInfo>>>>;

/// An item whose bytes are known by place.
pub(super) struct Found {
    item: Item,
    pub(super) info: Arc<ObjectInfo>,
    /// `None` if there are none.
    pub(super) range: Option<ByteRange>,
}

impl Found {
    pub(super) fn bytes(&self) -> u64 {
        self.range.map_or(0, ByteRange::len)
    }
}

/// An item whose first bytes are at hand.
pub(super) struct Opened {
    pub(super) info: Arc<ObjectInfo>,
    pub(super) range: Option<ByteRange>,
    /// The first pieces.
    pub(super) first: VecDeque<Piece>,
    /// The rest; `None` if there is none.
    pub(super) rest: Option<PieceStream>,
    /// Its share of the bytes on their way; `None` if it has none.
    pub(super) _share: Option<OwnedSemaphorePermit>,
}

impl Batch {
    pub(super) fn new(route: &BatchRoute, context: Arc<RequestContext>, timeout: Duration) -> Self {
        Self {
            engine: Arc::clone(&route.engine),
            rules: route.rules.clone(),
            members: route.members.clone(),
            who: context.who(),
            context,
            timeout,
            looks: Mutex::new(HashMap::new()),
        }
    }

    /// Finds out which bytes an item means.
    pub(super) async fn find(&self, item: Item) -> Result<Found> {
        let bucket = BucketName::new(&item.object.bucket)?;
        let key = ObjectKey::new(&item.object.key)?;
        if !self.rules.sees(self.who.as_deref(), bucket.as_str()) {
            let error = Error::new(Kind::Denied, "this access key has no access to this bucket");
            return Err(error.with("bucket", bucket));
        }
        for _ in 0..RESTARTS_MAX {
            let look = self.look(&bucket, &key);
            let info = self.info(&look, &bucket, &key, item.version.as_deref()).await?;
            match self.within(self.range(&item.range, &info)).await {
                Err(error) if error.kind() == Kind::Changed => self.forget(&look, &info),
                Err(error) => return Err(error.with("bucket", &bucket).with("key", &key)),
                Ok(range) => return Ok(Found { item, info, range }),
            }
        }
        Err(changing_too_fast(&bucket, &key))
    }

    /// Starts to read an item: all of it if it is not longer than `first_bytes`, else at least its first piece.
    pub(super) async fn open(
        &self,
        mut found: Found,
        first_bytes: u64,
        share: Option<OwnedSemaphorePermit>,
    ) -> Result<Opened> {
        for _ in 0..RESTARTS_MAX {
            match self.start(&found, first_bytes).await {
                Err(error) if matches!(error.kind(), Kind::Changed | Kind::NotFound) => {
                    let look = self.look(&found.info.bucket, &found.info.key);
                    self.forget(&look, &found.info);
                    found = self.find(found.item).await?;
                }
                Err(error) => return Err(error),
                Ok((first, rest)) => {
                    return Ok(Opened {
                        info: found.info,
                        range: found.range,
                        first,
                        rest,
                        _share: share,
                    });
                }
            }
        }
        Err(changing_too_fast(&found.info.bucket, &found.info.key))
    }

    /// The next piece, or `Timeout`.
    pub(super) async fn next_piece(&self, pieces: &mut PieceStream) -> Option<Result<Piece>> {
        match self.within(async { Ok(pieces.next().await) }).await {
            Ok(next) => next,
            Err(late) => Some(Err(late)),
        }
    }

    async fn start(&self, found: &Found, first_bytes: u64) -> Result<(VecDeque<Piece>, Option<PieceStream>)> {
        let Some(range) = found.range else {
            return Ok((VecDeque::new(), None));
        };
        let mut pieces = self.engine.read_version(&found.info, range);
        let (mut first, mut come_bytes) = (VecDeque::new(), 0);
        loop {
            let Some(piece) = self.next_piece(&mut pieces).await else {
                return Ok((first, None));
            };
            let piece = piece?;
            come_bytes += piece.bytes.len() as u64;
            first.push_back(piece);
            if come_bytes >= first_bytes || come_bytes >= range.len() {
                return Ok((first, Some(pieces)));
            }
        }
    }

    async fn range(&self, range: &ItemRange, info: &ObjectInfo) -> Result<Option<ByteRange>> {
        let ItemRange::Member(name) = range else {
            return range.resolve(info.bytes);
        };
        if name.len() > MEMBER_NAME_BYTES_MAX {
            return Err(Error::new(
                Kind::InvalidInput,
                "the name of a member is longer than 4096 bytes",
            ));
        }
        let members = self.members.as_ref().ok_or_else(|| {
            let message = "members of archives cannot be read from this node";
            Error::new(Kind::Unsupported, message)
        })?;
        members.member_range(&self.engine, info, name).await
    }

    /// The metadata that this batch goes by, in the version that is wanted.
    async fn info(
        &self,
        look: &Look,
        bucket: &BucketName,
        key: &ObjectKey,
        wanted: Option<&str>,
    ) -> Result<Arc<ObjectInfo>> {
        let ask = || self.within(async { self.engine.head(bucket, key).await.map(Arc::new) });
        let info = match look.get_or_init(ask).await {
            Ok(info) => info,
            Err(error) => return Err(error.share()),
        };
        let Some(wanted) = wanted.filter(|wanted| *wanted != info.version.as_str()) else {
            return Ok(Arc::clone(info));
        };
        // Maybe what we know is old.
        let now = self.within(self.engine.head_now(bucket, key)).await?;
        if now.version.as_str() == wanted {
            return Ok(Arc::new(now));
        }
        let message = "the object has another version now; read it without a version, or start again";
        let error = Error::new(Kind::Changed, message)
            .with("bucket", bucket)
            .with("key", key);
        Err(error.with("version", &now.version).with("wanted", wanted))
    }

    fn look(&self, bucket: &BucketName, key: &ObjectKey) -> Look {
        let mut looks = self.looks.lock();
        let look = looks.entry((bucket.clone(), key.clone())).or_default();
        Arc::clone(look)
    }

    /// The version is gone: whoever comes next looks again.
    fn forget(&self, look: &Look, info: &ObjectInfo) {
        let mut looks = self.looks.lock();
        let name = (info.bucket.clone(), info.key.clone());
        if looks.get(&name).is_some_and(|current| Arc::ptr_eq(current, look)) {
            looks.remove(&name);
        }
    }

    async fn within<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        tokio::time::timeout(self.timeout, work)
            .await
            .unwrap_or_else(|_| {
                let message = "the item took longer than it may; ask again, or give it more time";
                Err(Error::new(Kind::Timeout, message).with("timeout_ms", self.timeout.as_millis()))
            })
    }
}

fn changing_too_fast(bucket: &BucketName, key: &ObjectKey) -> Error {
    let message = "the object is replaced faster than it can be read; try again";
    Error::new(Kind::Changed, message)
        .with("bucket", bucket)
        .with("key", key)
}
