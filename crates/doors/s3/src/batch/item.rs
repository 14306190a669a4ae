//! One item of a batch: may this key read it, which version, which bytes; then the first of them.
//!
//! All items of one batch that name the same object see the same metadata, asked for once, so that a thousand
//! members of one shard cost one look and belong to one version. If the object turns out to have changed, the
//! item starts again with the next version (`Engine::with_known_version`), and those behind it go by that one.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use forebay_core::{BucketName, ByteRange, Error, Kind, ObjectKey, Result, Version};
use forebay_engine::{Engine, ObjectInfo};
use forebay_engine::{Piece, PieceStream};
use forebay_wire::{Item, ItemRange};
use futures::StreamExt;
use parking_lot::Mutex;
use tokio::sync::{OnceCell, OwnedSemaphorePermit};

use super::BatchRoute;
use crate::access::AccessRules;
use crate::context::RequestContext;
use crate::members::MemberIndex;

/// Names of members are not longer than this; a path of a file system is not either.
const MEMBER_NAME_BYTES_MAX: usize = 4096;

/// State that the items of one batch share.
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
        let known = self.look(&bucket, &key).await?;
        let wanted = item.version.as_deref().map(Version::new);
        let (named, of) = (&item, &known);
        let ranged = self
            .engine
            .with_known_version(of, wanted.as_ref(), |info| async move {
                let range = self.range_in_version(named, &info).await?;
                Ok(range.map(|range| (info, range)))
            });
        let (info, range) = self.within(ranged).await??;
        self.go_by(&known, &info);
        Ok(Found { item, info, range })
    }

    /// Starts to read an item: all of it if it is not longer than `first_bytes`, else at least its first
    /// piece.
    pub(super) async fn open(
        &self,
        found: Found,
        first_bytes: u64,
        share: Option<OwnedSemaphorePermit>,
    ) -> Result<Opened> {
        let wanted = found.item.version.as_deref().map(Version::new);
        let found = &found;
        let opened = self
            .engine
            .with_known_version(&found.info, wanted.as_ref(), |info| async move {
                let range = match Arc::ptr_eq(&info, &found.info) {
                    true => found.range,
                    false => match self.within(self.range_in_version(&found.item, &info)).await? {
                        Ok(range) => range,
                        Err(no_member) => return Ok(Err(no_member)),
                    },
                };
                let (first, rest) = self.start(&info, range, first_bytes).await?;
                Ok(Ok((info, range, first, rest)))
            });
        let (info, range, first, rest) = opened.await??;
        self.go_by(&found.info, &info);
        Ok(Opened {
            info,
            range,
            first,
            rest,
            _share: share,
        })
    }

    /// The next piece, or `Timeout`.
    pub(super) async fn next_piece(&self, pieces: &mut PieceStream) -> Option<Result<Piece>> {
        match self.within(async { Ok(pieces.next().await) }).await {
            Ok(next) => next,
            Err(late) => Some(Err(late)),
        }
    }

    async fn start(
        &self,
        info: &ObjectInfo,
        range: Option<ByteRange>,
        first_bytes: u64,
    ) -> Result<(VecDeque<Piece>, Option<PieceStream>)> {
        let Some(range) = range else {
            return Ok((VecDeque::new(), None));
        };
        let mut pieces = self.engine.read_version(info, range);
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

    /// Like [`Self::range`]; that the shard has no such member is an error inside, because it is no reason to look
    /// at another version.
    async fn range_in_version(&self, item: &Item, info: &ObjectInfo) -> Result<Result<Option<ByteRange>>> {
        let range = self.range(&item.range, info).await;
        match range.map_err(|error| error.with("bucket", &info.bucket).with("key", &info.key)) {
            Err(error) if error.kind() == Kind::NotFound => Ok(Err(error)),
            range => range.map(Ok),
        }
    }

    /// The metadata that this batch goes by; asked for by whoever needs it first.
    async fn look(&self, bucket: &BucketName, key: &ObjectKey) -> Result<Arc<ObjectInfo>> {
        let look = {
            let mut looks = self.looks.lock();
            Arc::clone(looks.entry((bucket.clone(), key.clone())).or_default())
        };
        let ask = || self.within(async { self.engine.head(bucket, key).await.map(Arc::new) });
        match look.get_or_init(ask).await {
            Ok(info) => Ok(Arc::clone(info)),
            Err(error) => Err(error.share()),
        }
    }

    /// Has those who come next go by the version that was found instead of the one that was known.
    fn go_by(&self, known: &Arc<ObjectInfo>, found: &Arc<ObjectInfo>) {
        if !Arc::ptr_eq(known, found) {
            let name = (found.bucket.clone(), found.key.clone());
            let look = Arc::new(OnceCell::new_with(Some(Ok(Arc::clone(found)))));
            self.looks.lock().insert(name, look);
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
