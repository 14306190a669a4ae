//! `Read`: views of many items in one request, each with a result of its own.
//!
//! First every item is tried the warm way: metadata known, bytes in RAM; that needs no wait and no task. What
//! is left is fetched all at once, a bounded number at a time, while the leases of the others are already
//! held. At the end all leases are entered into the book under one lock. If the client goes away in between,
//! everything is dropped and nothing stays held; fills go on for others.
//!
//! A client may hold only its share of the cache; beyond it the bytes are copied into memory of their own.

use std::sync::Arc;
use std::time::Duration;

use forebay_core::{BucketName, ByteRange, Error, Kind, ObjectKey, Result, Version};
use forebay_engine::{Engine, LeaseMemory, LeaseRequest, ObjectInfo, ObjectLease};
use forebay_wire::objects::{Answer, Found, View, ViewPart};
use forebay_wire::{BATCH_ITEMS_MAX, Failure, Item, ItemRange, ObjectName, READ_TIMEOUT_DEFAULT, TierBytes};
use futures::{StreamExt, stream};
use tokio::time::Instant;

use super::Context;
use super::leases::{Grant, charge_of};
use crate::family::{Handling, Reply};
use crate::sessions::Session;

/// Items of one request that are fetched at once.
const COLD_ITEMS_MAX: usize = 64;

/// Leased bytes counted for a session, taken back unless the book takes over.
struct Charge<'a> {
    session: &'a Session,
    bytes: u64,
}

impl<'a> Charge<'a> {
    /// `None` if the session has its share already.
    fn take(session: &'a Session, bytes: u64, max: u64) -> Option<Self> {
        let bytes = charge_of(bytes);
        session
            .charge_within(bytes, max)
            // Made only if it was counted: dropping it takes the count back.
            .then(|| Self { session, bytes })
    }

    /// From now on whoever ends the lease takes it back.
    fn hand_over(mut self) {
        self.bytes = 0;
    }
}

impl Drop for Charge<'_> {
    fn drop(&mut self) {
        self.session.discharge(self.bytes);
    }
}

/// Bytes that are held but not entered yet.
struct Ready<'a> {
    lease: ObjectLease,
    charge: Option<Charge<'a>>,
}

/// Deadline of an item.
pub(super) fn deadline(timeout_ms: u32) -> Instant {
    let timeout = match timeout_ms {
        0 => READ_TIMEOUT_DEFAULT,
        ms => Duration::from_millis(ms.into()),
    };
    Instant::now() + timeout
}

pub(super) fn too_late(item: &Item) -> Error {
    let error = Error::new(
        Kind::Timeout,
        "the bytes did not come in time; try again or wait longer",
    );
    error
        .with("bucket", &item.object.bucket)
        .with("key", &item.object.key)
}

pub(super) fn too_many(count: usize) -> Error {
    let error = Error::new(
        Kind::InvalidInput,
        "too many items in one batch; ask for fewer at once",
    );
    error.with("items", count).with("items_max", BATCH_ITEMS_MAX)
}

/// Answers at once if all items are warm; else what is cold is fetched, and the answer waits for it.
pub(super) fn handle<'a>(
    context: Context<'a>,
    items: Vec<Item>,
    timeout_ms: u32,
    reply: &'a mut Reply,
) -> Handling<'a> {
    let (engine, batch, cold) = match begin(context, &items) {
        Ok(begun) => begun,
        Err(error) => return Handling::Done(Err(error)),
    };
    if cold.is_empty() {
        return Handling::Done(batch.send(context, reply));
    }
    Handling::Waiting(Box::pin(async move {
        let batch = fetch_cold(context, engine, &items, batch, cold, timeout_ms).await;
        batch.send(context, reply)
    }))
}

/// Takes what is warm; returns the rest by index.
fn begin<'a>(context: Context<'a>, items: &[Item]) -> Result<(&'a Engine, Batch<'a>, Vec<usize>)> {
    if items.len() > BATCH_ITEMS_MAX {
        return Err(too_many(items.len()));
    }
    let engine = context.engine()?;
    let mut batch = Batch::new(items.len());
    let cold = batch.take_warm(context, engine, items);
    Ok((engine, batch, cold))
}

async fn fetch_cold<'a>(
    context: Context<'a>,
    engine: &Engine,
    items: &[Item],
    mut batch: Batch<'a>,
    cold: Vec<usize>,
    timeout_ms: u32,
) -> Batch<'a> {
    let deadline = deadline(timeout_ms);
    let fetches = cold
        .into_iter()
        .map(|index| fetch_in_time(context, engine, items, index, deadline));
    let mut fetched = stream::iter(fetches.collect::<Vec<_>>()).buffer_unordered(COLD_ITEMS_MAX);
    while let Some((index, result)) = fetched.next().await {
        batch.put(index, result);
    }
    drop(fetched);
    batch
}

async fn fetch_in_time<'a>(
    context: Context<'a>,
    engine: &Engine,
    items: &[Item],
    index: usize,
    deadline: Instant,
) -> (usize, Result<Ready<'a>>) {
    let item = &items[index];
    let fetched = tokio::time::timeout_at(deadline, fetch(context, engine, item)).await;
    (index, fetched.unwrap_or_else(|_| Err(too_late(item))))
}

/// The results of a batch as they come.
struct Batch<'a> {
    results: Vec<Option<Result<Found, Failure>>>,
    grants: Vec<Grant>,
    charges: Vec<Charge<'a>>,
    /// The item of each grant.
    granted: Vec<usize>,
}

impl<'a> Batch<'a> {
    fn new(items: usize) -> Self {
        Self {
            results: (0..items).map(|_| None).collect(),
            grants: Vec::with_capacity(items),
            charges: Vec::with_capacity(items),
            granted: Vec::with_capacity(items),
        }
    }

    /// Takes what is warm; the rest has to be fetched.
    fn take_warm(&mut self, context: Context<'a>, engine: &Engine, items: &[Item]) -> Vec<usize> {
        let mut cold = Vec::new();
        let mut last: Option<(&ObjectName, Arc<ObjectInfo>)> = None;
        for (index, item) in items.iter().enumerate() {
            // Items of one batch mostly lie in one object, which needs no second look.
            let result = match &last {
                Some((object, info)) if is_range_of(item, object) && has_version(item, info) => {
                    warm_range(context, engine.try_lease_known(info, &item.range))
                }
                _ => context
                    .bucket(&item.object.bucket)
                    .and_then(|bucket| warm(context, engine, item, &bucket)),
            };
            match result.transpose() {
                Some(result) => {
                    if let Ok(ready) = &result {
                        last = Some((&item.object, Arc::clone(&ready.lease.info)));
                    }
                    self.put(index, result);
                }
                None => cold.push(index),
            }
        }
        cold
    }

    fn put(&mut self, index: usize, result: Result<Ready<'a>>) {
        let result = match result {
            Ok(ready) => Ok(self.found(index, ready)),
            Err(error) => Err(Failure::from(&error)),
        };
        self.results[index] = Some(result);
    }

    fn found(&mut self, index: usize, ready: Ready<'a>) -> Found {
        let Ready { lease, charge } = ready;
        let found = Found {
            version: lease.info.version.as_str().into(),
            object_bytes: lease.info.bytes,
            offset: lease.range.map_or(0, ByteRange::start),
            view: None,
            sources: TierBytes::default(),
        };
        let Some(leased) = lease.leased else {
            return found;
        };
        let parts = leased.parts().iter().map(|part| ViewPart {
            segment: part.segment.0,
            offset: part.offset,
            bytes: part.bytes,
        });
        // The number comes when the lease is entered.
        let view = View {
            lease: 0,
            parts: parts.collect(),
        };
        let found = Found {
            view: Some(view),
            sources: leased.tiers(),
            ..found
        };
        self.granted.push(index);
        self.charges.extend(charge);
        self.grants.push(Grant {
            leased,
            info: lease.info,
        });
        found
    }

    /// Enters the leases into the book and writes the answer.
    fn send(self, context: Context<'_>, reply: &mut Reply) -> Result<()> {
        let answer = self.enter(context)?;
        let sent = reply.answer(&answer);
        if sent.is_err() {
            context.objects.release_granted(context.session, &answer);
        }
        sent
    }

    fn enter(self, context: Context<'_>) -> Result<Answer> {
        let Self {
            mut results,
            grants,
            charges,
            granted,
        } = self;
        if !grants.is_empty() {
            let now = context.objects.services.clock.monotonic();
            let entered = context.objects.leases.enter(context.session, grants, now);
            let numbers = entered.ok_or_else(|| {
                let message = "the session has ended; connect again";
                Error::new(Kind::Unavailable, message)
            })?;
            charges.into_iter().for_each(Charge::hand_over);
            for (lease, index) in numbers.into_iter().zip(granted) {
                if let Some(Some(Ok(Found { view: Some(view), .. }))) = results.get_mut(index) {
                    view.lease = lease;
                }
            }
        }
        let missing = || {
            Err(Failure::from(&Error::new(
                Kind::Internal,
                "an item has no result",
            )))
        };
        Ok(Answer::Read(
            results
                .into_iter()
                .map(|result| result.unwrap_or_else(missing))
                .collect(),
        ))
    }
}

/// The item if it needs no wait.
fn warm<'a>(
    context: Context<'a>,
    engine: &Engine,
    item: &Item,
    bucket: &BucketName,
) -> Result<Option<Ready<'a>>> {
    let key = ObjectKey::new(&item.object.key)?;
    let mut version = item.version.as_deref().map(Version::new);
    let mut place = None;
    if let ItemRange::Member(name) = &item.range {
        let known = known_member(context, engine, (bucket, &key), name);
        let Some((range, shard_version)) = known.transpose()? else {
            return Ok(None);
        };
        if version.is_some_and(|version| version != shard_version) {
            return Ok(None);
        }
        // The place holds in this version only.
        version = Some(shard_version);
        place = Some(range);
    }
    let request = LeaseRequest {
        bucket,
        key: &key,
        range: place.as_ref().unwrap_or(&item.range),
        version: version.as_ref(),
    };
    warm_range(context, engine.try_lease(request))
}

/// Returns whether an item is some bytes of this object.
fn is_range_of(item: &Item, object: &ObjectName) -> bool {
    !matches!(item.range, ItemRange::Member(_)) && item.object == *object
}

/// Returns whether an item wants this version, or does not care.
fn has_version(item: &Item, info: &ObjectInfo) -> bool {
    item.version
        .as_deref()
        .is_none_or(|version| version == info.version.as_str())
}

/// Counts what was leased for the session.
fn warm_range<'a>(context: Context<'a>, lease: Option<Result<ObjectLease>>) -> Result<Option<Ready<'a>>> {
    let Some(lease) = lease.transpose()? else {
        return Ok(None);
    };
    let Some(leased) = &lease.leased else {
        return Ok(Some(Ready { lease, charge: None }));
    };
    let charge = Charge::take(context.session, leased.bytes(), context.lease_bytes_max());
    // Too much held already: the slow way makes a copy.
    Ok(charge.map(|charge| Ready {
        lease,
        charge: Some(charge),
    }))
}

/// The place of a member and the version of the shard in which it lies there, if both the shard and its index
/// are known.
fn known_member(
    context: Context<'_>,
    engine: &Engine,
    (bucket, key): (&BucketName, &ObjectKey),
    name: &str,
) -> Option<Result<(ItemRange, Version)>> {
    let info = engine.known(bucket, key)?;
    let range = context.objects.members.known_range(&info, name)?;
    Some(range.map(|range| (range_of_member(range), info.version.clone())))
}

fn range_of_member(range: Option<ByteRange>) -> ItemRange {
    ItemRange::Range {
        offset: range.map_or(0, ByteRange::start),
        length: range.map_or(0, ByteRange::len),
    }
}

/// The item, whatever has to be asked for.
async fn fetch<'a>(context: Context<'a>, engine: &Engine, item: &Item) -> Result<Ready<'a>> {
    let (bucket, key) = context.object(&item.object)?;
    let version = item.version.as_deref().map(Version::new);
    if let ItemRange::Member(name) = &item.range {
        return fetch_member(context, engine, (&bucket, &key), version.as_ref(), name).await;
    }
    let request = LeaseRequest {
        bucket: &bucket,
        key: &key,
        range: &item.range,
        version: version.as_ref(),
    };
    let mut charge = LeaseCharge::new(context);
    let lease = engine.lease(request, |bytes| Ok(charge.choose(bytes))).await?;
    Ok(charge.ready(lease))
}

/// A member of a tar shard: its place, then its bytes, both in one version of the shard.
async fn fetch_member<'a>(
    context: Context<'a>,
    engine: &Engine,
    (bucket, key): (&BucketName, &ObjectKey),
    wanted: Option<&Version>,
    name: &str,
) -> Result<Ready<'a>> {
    let members = &context.objects.members;
    let fetched = engine.with_version(bucket, key, wanted, |shard| async move {
        let place = match members.range_in_version(engine, &shard, name).await? {
            Ok(range) => range_of_member(range),
            Err(no_member) => return Ok(Err(no_member)),
        };
        let mut charge = LeaseCharge::new(context);
        let lease = engine
            .lease_version(&shard, &place, |bytes| Ok(charge.choose(bytes)))
            .await?;
        Ok(Ok(charge.ready(lease)))
    });
    fetched.await?
}

/// Chooses the memory of a lease: the cache while the session has not its share yet, else a copy.
struct LeaseCharge<'a> {
    context: Context<'a>,
    charge: Option<Charge<'a>>,
}

impl<'a> LeaseCharge<'a> {
    fn new(context: Context<'a>) -> Self {
        Self {
            context,
            charge: None,
        }
    }

    fn choose(&mut self, bytes: u64) -> LeaseMemory {
        drop(self.charge.take());
        let context = self.context;
        self.charge = Charge::take(context.session, bytes, context.lease_bytes_max());
        match self.charge {
            Some(_) => LeaseMemory::Shared,
            None => LeaseMemory::Copied,
        }
    }

    fn ready(self, lease: ObjectLease) -> Ready<'a> {
        // A copy is no part of the cache, also when it was made because the cache had no room.
        let is_shared = lease
            .leased
            .as_ref()
            .is_some_and(|leased| leased.tiers().copied == 0);
        let charge = self.charge.filter(|_| is_shared);
        Ready { lease, charge }
    }
}

impl Context<'_> {
    fn lease_bytes_max(self) -> u64 {
        self.objects.limits.client_lease_bytes_max
    }
}
