//! Bucket names and the lakes behind them.
//!
//! A bucket is a top-level folder (prefix) of the default lake, or a name that the configuration maps to the
//! root of another lake. A bucket of the default lake exists when anything lies under its prefix; an empty
//! one is held by the document `.forebay/bucket.json`. That a bucket exists is remembered for a few seconds.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use forebay_core::{BucketName, Clock, Error, Kind, ObjectKey, RESERVED_PREFIX, Result, Version};
use forebay_lake::{Lake, ListOptions, Prefixed, PutMode, PutOptions, ReadScheduler};
use forebay_reservoir::{Source, TrustDomain};
use futures::{StreamExt, stream};
use parking_lot::RwLock;

use crate::derived::{Derived, DerivedSource};
use crate::document::DocumentsSeen;
use crate::engine::{BucketOptions, Consistency, LakeOptions, LakePromises};
use crate::{BucketLake, Engine, Sources, document};

/// The time for which a bucket that was there is believed to be there.
const EXISTS_FOR: Duration = Duration::from_secs(5);

/// Buckets of the default lake that are remembered; more are opened anew each time.
const REMEMBERED_MAX: usize = 4096;

/// Buckets that are asked for their date at a time.
const HEADS_IN_FLIGHT_MAX: usize = 16;

/// A bucket in a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketInfo {
    /// Its name.
    pub name: BucketName,
    /// The time when it was made, as far as is known.
    pub created: SystemTime,
}

/// A lake with its read scheduler, shared by all buckets in it.
#[derive(Debug)]
pub(crate) struct LakeHandle {
    pub(crate) lake: Arc<dyn Lake>,
    pub(crate) scheduler: Arc<ReadScheduler>,
    /// `None` until its self-test has passed.
    promises: RwLock<Option<LakePromises>>,
}

/// One bucket, opened.
#[derive(Debug)]
pub(crate) struct Bucket {
    pub(crate) name: BucketName,
    /// The lake behind it.
    pub(crate) handle: Arc<LakeHandle>,
    /// The lake seen from inside the bucket.
    pub(crate) lake: Arc<dyn Lake>,
    /// The same, as sources and computed objects see it.
    pub(crate) shared: BucketLake,
    /// The source of missing blocks.
    source: Arc<dyn Source>,
    /// Kinds of computed objects, each with the source of their blocks.
    derived: Vec<(Arc<dyn Derived>, Arc<dyn Source>)>,
    pub(crate) consistency: Consistency,
    /// The clients that may map its bytes.
    pub(crate) domain: TrustDomain,
    /// A bucket that the configuration names cannot be created or deleted.
    pub(crate) is_mapped: bool,
    /// Knows if there are documents beside its objects.
    pub(crate) documents: DocumentsSeen,
    /// The time when it was last seen to exist.
    seen: RwLock<Option<Duration>>,
}

/// The parts that every bucket is opened with.
#[derive(Debug)]
pub(crate) struct BucketParts {
    pub(crate) sources: Arc<dyn Sources>,
    pub(crate) derived: Vec<Arc<dyn Derived>>,
}

impl Bucket {
    /// A bucket below `prefix` of a lake; one that the configuration names has the whole lake.
    fn open(
        name: &BucketName,
        handle: Arc<LakeHandle>,
        prefix: Option<&str>,
        (consistency, domain): (Consistency, TrustDomain),
        parts: &BucketParts,
    ) -> Self {
        let lake: Arc<dyn Lake> = match prefix {
            Some(prefix) => Arc::new(Prefixed::new(Arc::clone(&handle.lake), prefix)),
            None => Arc::clone(&handle.lake),
        };
        let scheduler = Arc::clone(&handle.scheduler);
        let prefix_text = prefix.unwrap_or_default();
        let shared = BucketLake::new(name.clone(), Arc::clone(&lake), prefix_text, scheduler);
        let derived = parts.derived.iter().map(|derived| {
            let source = DerivedSource {
                derived: Arc::clone(derived),
                bucket: shared.clone(),
            };
            (Arc::clone(derived), Arc::new(source) as Arc<dyn Source>)
        });
        Self {
            name: name.clone(),
            handle,
            lake,
            source: parts.sources.source_of(&shared),
            derived: derived.collect(),
            shared,
            consistency,
            domain,
            is_mapped: prefix.is_none(),
            documents: DocumentsSeen::default(),
            seen: RwLock::new(None),
        }
    }

    /// The key as the lake behind the bucket knows it.
    pub(crate) fn full_key(&self, key: &ObjectKey) -> Result<ObjectKey> {
        self.shared.full_key(key)
    }

    /// The source of a version's blocks.
    pub(crate) fn source_of(&self, key: &ObjectKey, version: &Version) -> &Arc<dyn Source> {
        let mut derived = self.derived.iter();
        let own = derived.find(|(derived, _)| derived.has_version(key, version));
        own.map_or(&self.source, |(_, source)| source)
    }

    /// Kinds of computed objects, in the order in which they are asked.
    pub(crate) fn derived(&self) -> impl Iterator<Item = &Arc<dyn Derived>> {
        self.derived.iter().map(|(derived, _)| derived)
    }

    /// Returns whether this version is computed.
    pub(crate) fn is_derived(&self, key: &ObjectKey, version: &Version) -> bool {
        self.derived().any(|derived| derived.has_version(key, version))
    }
}

/// All buckets.
#[derive(Debug)]
pub(crate) struct Buckets {
    default: Arc<LakeHandle>,
    consistency: Consistency,
    /// Consistency of buckets in the default lake that have one of their own.
    consistency_of: BTreeMap<BucketName, Consistency>,
    /// Trust domains of buckets that have one of their own.
    domain_of: BTreeMap<BucketName, TrustDomain>,
    mapped: BTreeMap<BucketName, Arc<Bucket>>,
    parts: BucketParts,
    opened: RwLock<BTreeMap<BucketName, Arc<Bucket>>>,
    clock: Arc<dyn Clock>,
}

impl Buckets {
    pub(crate) fn new(
        lake: LakeOptions,
        consistency: Consistency,
        own: Vec<BucketOptions>,
        parts: BucketParts,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let mut mapped = BTreeMap::new();
        let mut consistency_of = BTreeMap::new();
        let mut domain_of = BTreeMap::new();
        for bucket in own {
            consistency_of.insert(bucket.name.clone(), bucket.consistency);
            domain_of.insert(bucket.name.clone(), bucket.domain);
            if let Some(options) = bucket.lake {
                let handle = Arc::new(LakeHandle::new(options));
                let settings = (bucket.consistency, bucket.domain);
                let opened = Bucket::open(&bucket.name, handle, None, settings, &parts);
                mapped.insert(bucket.name, Arc::new(opened));
            }
        }
        let default = Arc::new(LakeHandle::new(lake));
        Self {
            default,
            consistency,
            consistency_of,
            domain_of,
            mapped,
            parts,
            opened: RwLock::default(),
            clock,
        }
    }

    pub(crate) fn set_promises(&self, bucket: Option<&BucketName>, promises: Option<LakePromises>) {
        let handle = match bucket {
            None => Some(&self.default),
            Some(name) => self.mapped.get(name).map(|bucket| &bucket.handle),
        };
        if let Some(handle) = handle {
            *handle.promises.write() = promises;
        }
    }

    /// The bucket of this name, whether it exists or not.
    pub(crate) fn open(&self, name: &BucketName) -> Result<Arc<Bucket>> {
        if let Some(bucket) = self.mapped.get(name) {
            return Ok(Arc::clone(bucket));
        }
        if let Some(bucket) = self.opened.read().get(name) {
            return Ok(Arc::clone(bucket));
        }
        let settings = (
            self.consistency_of.get(name).copied().unwrap_or(self.consistency),
            self.domain_of.get(name).copied().unwrap_or_default(),
        );
        let (prefix, handle) = (format!("{name}/"), Arc::clone(&self.default));
        let bucket = Arc::new(Bucket::open(name, handle, Some(&prefix), settings, &self.parts));
        let mut opened = self.opened.write();
        if opened.len() < REMEMBERED_MAX {
            return Ok(Arc::clone(opened.entry(name.clone()).or_insert(bucket)));
        }
        Ok(bucket)
    }

    /// The bucket of this name, or `NotFound`.
    pub(crate) async fn existing(&self, name: &BucketName) -> Result<Arc<Bucket>> {
        let bucket = self.open(name)?;
        self.check_exists(&bucket).await?;
        Ok(bucket)
    }

    /// `NotFound` if nothing lies in the bucket and nothing holds it.
    pub(crate) async fn check_exists(&self, bucket: &Bucket) -> Result<()> {
        let now = self.clock.monotonic();
        if bucket.is_mapped
            || bucket
                .seen
                .read()
                .is_some_and(|seen| now.saturating_sub(seen) < EXISTS_FOR)
        {
            return Ok(());
        }
        let page = bucket
            .lake
            .list(ListOptions {
                limit: 1,
                ..ListOptions::default()
            })
            .await?;
        if page.objects.is_empty() && page.prefixes.is_empty() && page.next.is_none() {
            *bucket.seen.write() = None;
            self.opened.write().remove(&bucket.name);
            let error = Error::new(
                Kind::NotFound,
                "there is no such bucket; create it or check the name",
            );
            return Err(error.with("bucket", &bucket.name));
        }
        *bucket.seen.write() = Some(now);
        Ok(())
    }
}

impl LakeHandle {
    fn new(options: LakeOptions) -> Self {
        Self {
            scheduler: ReadScheduler::new(Arc::clone(&options.lake), options.scheduler),
            lake: options.lake,
            promises: RwLock::new(Some(LakePromises {
                conditional_create: options.conditional_create,
                conditional_update: options.conditional_update,
                conditional_delete: options.conditional_delete,
            })),
        }
    }

    /// Promises of the lake; `Unavailable` while it has not passed its self-test.
    pub(crate) fn promises(&self) -> Result<LakePromises> {
        self.promises.read().ok_or_else(|| {
            let message =
                "the lake has not passed its self-test yet, so a condition cannot be kept; try again later";
            Error::new(Kind::Unavailable, message).with("lake", self.lake.url())
        })
    }
}

impl Engine {
    /// All buckets: those of the configuration and the top-level folders of the default lake, by name.
    pub async fn list_buckets(&self) -> Result<Vec<BucketInfo>> {
        let buckets = &self.buckets;
        let mut found: BTreeSet<BucketName> = buckets.mapped.keys().cloned().collect();
        let mut options = ListOptions {
            delimiter: Some("/".into()),
            ..ListOptions::default()
        };
        loop {
            let page = buckets.default.lake.list(options.clone()).await?;
            for prefix in &page.prefixes {
                // A folder whose name is no bucket name (upper case, our own `.forebay`) cannot be asked for.
                let Ok(name) = BucketName::new(prefix.trim_end_matches('/')) else {
                    continue;
                };
                found.insert(name);
            }
            match page.next {
                Some(next) => options.start_after = Some(next),
                None => break,
            }
        }
        let infos = stream::iter(found).map(|name| async {
            let created = self.bucket_created(&name).await;
            BucketInfo { name, created }
        });
        Ok(infos.buffered(HEADS_IN_FLIGHT_MAX).collect().await)
    }

    async fn bucket_created(&self, name: &BucketName) -> SystemTime {
        let marker = async {
            let bucket = self.buckets.open(name)?;
            bucket.lake.head(&document::bucket_key()).await
        };
        // A bucket that was there before Forebay has no marker; S3 clients need some date.
        marker.await.map_or(SystemTime::UNIX_EPOCH, |meta| meta.modified)
    }

    /// Makes a bucket; `AlreadyExists` if it is there.
    pub async fn create_bucket(&self, name: &BucketName) -> Result<()> {
        let bucket = self.buckets.open(name)?;
        let exists = || Error::new(Kind::AlreadyExists, "this bucket exists already").with("bucket", name);
        match self.buckets.check_exists(&bucket).await {
            Ok(()) => return Err(exists()),
            Err(error) if error.kind() == Kind::NotFound => {}
            Err(error) => return Err(error),
        }
        let bucket = self.buckets.open(name)?;
        let body = Bytes::from_static(b"{\"format\":\"forebay-bucket\",\"version\":1}\n");
        let options = PutOptions {
            mode: PutMode::Overwrite,
            ..PutOptions::default()
        };
        bucket.lake.put(&document::bucket_key(), body, options).await?;
        *bucket.seen.write() = Some(self.clock.monotonic());
        Ok(())
    }

    /// The lake of a bucket, and who may map its bytes: for whoever answers other nodes.
    pub fn shared_bucket(&self, name: &BucketName) -> Result<(BucketLake, TrustDomain)> {
        let bucket = self.buckets.open(name)?;
        Ok((bucket.shared.clone(), bucket.domain))
    }

    /// `NotFound` if it is not there.
    pub async fn head_bucket(&self, name: &BucketName) -> Result<()> {
        self.buckets.existing(name).await.map(|_| ())
    }

    /// Removes a bucket; `Conflict` if objects are in it. Our own documents and open uploads go with it.
    pub async fn delete_bucket(&self, name: &BucketName) -> Result<()> {
        let bucket = self.buckets.existing(name).await?;
        if bucket.is_mapped {
            let message = "this bucket is mapped by the configuration; remove its [[bucket]] entry instead";
            return Err(Error::new(Kind::Unsupported, message).with("bucket", name));
        }
        let page = self
            .list(
                name,
                ListOptions {
                    limit: 1,
                    ..ListOptions::default()
                },
            )
            .await?;
        if !page.objects.is_empty() || !page.prefixes.is_empty() {
            let message = "the bucket is not empty; delete its objects first";
            return Err(Error::new(Kind::Conflict, message).with("bucket", name));
        }
        // The lake would keep the parts of open uploads when their documents are gone.
        for upload in self.list_uploads(name, "").await? {
            self.abort_upload(name, &upload.key, &upload.id).await?;
        }
        let mut options = ListOptions {
            prefix: RESERVED_PREFIX.into(),
            ..ListOptions::default()
        };
        loop {
            let page = bucket.lake.list(options.clone()).await?;
            for document in &page.objects {
                bucket.lake.delete(&document.key).await?;
            }
            match page.next {
                Some(next) => options.start_after = Some(next),
                None => break,
            }
        }
        *bucket.seen.write() = None;
        self.buckets.opened.write().remove(name);
        Ok(())
    }
}
