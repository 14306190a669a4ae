//! `Read`: views of many items in one question, each with a result of its own.
//!
//! First every item is tried the warm way: metadata known, bytes in RAM; that needs no wait and no task. What is left is fetched
//! all at once, a bounded number at a time, while the leases of the others are already held. At the end all leases are entered into the book
//! under one lock. If the client goes away in between, everything is dropped and nothing stays held; fills go on for others.
//!
//! A client may hold only its share of the cache; beyond it the bytes are copied into memory of their own.

use std::sync::Arc;
use std::time::Duration;

use forebay_core::wire::{
    Answer, BATCH_ITEMS_MAX, Failure, Found, Item, ItemRange, ObjectName, READ_TIMEOUT_DEFAULT, Sources,
    View, ViewPart,
};
use forebay_core::{BucketName, ByteRange, Error, Kind, ObjectKey, Result, Version};
use forebay_engine::{Engine, LeasePlace, LeaseRequest, ObjectInfo, ObjectLease};
use forebay_reservoir::LeasedTiers;
use futures::{StreamExt, stream};
use tokio::time::Instant;

use super::connection::{Context, failed};
use super::leases::{Grant, charge_of};
use super::sessions::Session;

/// Items of one question that are fetched at once.
const COLD_ITEMS_MAX: usize = 64;

/// How often a member is looked for again because its shard changed.
const MEMBER_RESTARTS_MAX: usize = 3;

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

/// When an item must be there.
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

pub(super) async fn answer(context: &Context, items: &[Item], timeout_ms: u32) -> Answer {
    if items.len() > BATCH_ITEMS_MAX {
        return failed(&too_many(items.len()));
    }
    let engine = match context.parts.engine() {
        Ok(engine) => engine,
        Err(error) => return failed(&error),
    };
    let mut batch = Batch::new(items);
    let cold = batch.take_warm(context, engine);
    if !cold.is_empty() {
        let deadline = deadline(timeout_ms);
        let fetches = cold
            .into_iter()
            .map(|index| fetch_in_time(context, engine, items, index, deadline));
        let mut fetched = stream::iter(fetches.collect::<Vec<_>>()).buffer_unordered(COLD_ITEMS_MAX);
        while let Some((index, result)) = fetched.next().await {
            batch.put(index, result);
        }
    }
    batch.enter(context)
}

async fn fetch_in_time<'a>(
    context: &'a Context,
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
    items: &'a [Item],
    results: Vec<Option<Result<Found, Failure>>>,
    grants: Vec<Grant>,
    charges: Vec<Charge<'a>>,
    /// The item of each grant.
    granted: Vec<usize>,
}

impl<'a> Batch<'a> {
    fn new(items: &'a [Item]) -> Self {
        Self {
            items,
            results: items.iter().map(|_| None).collect(),
            grants: Vec::with_capacity(items.len()),
            charges: Vec::with_capacity(items.len()),
            granted: Vec::with_capacity(items.len()),
        }
    }

    /// Takes what is warm; the rest has to be fetched.
    fn take_warm(&mut self, context: &'a Context, engine: &Engine) -> Vec<usize> {
        let mut cold = Vec::new();
        let mut last: Option<(&ObjectName, Arc<ObjectInfo>)> = None;
        for (index, item) in self.items.iter().enumerate() {
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
            sources: Sources::default(),
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
            sources: sources(leased.tiers()),
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

    fn enter(self, context: &Context) -> Answer {
        let Self {
            mut results,
            grants,
            charges,
            granted,
            ..
        } = self;
        if !grants.is_empty() {
            let now = context.parts.clock.monotonic();
            let Some(numbers) = context.parts.native.leases.enter(&context.session, grants, now) else {
                let message = "the session has ended; connect again";
                return failed(&Error::new(Kind::Unavailable, message));
            };
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
        Answer::Read(
            results
                .into_iter()
                .map(|result| result.unwrap_or_else(missing))
                .collect(),
        )
    }
}

pub(super) fn sources(tiers: LeasedTiers) -> Sources {
    Sources {
        ram: tiers.ram,
        nvme: tiers.nvme,
        // No node has peers yet.
        peer: 0,
        lake: tiers.lake,
        copied: tiers.copied,
    }
}

/// The item if it needs no wait.
fn warm<'a>(
    context: &'a Context,
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

/// Whether an item is some bytes of this object.
fn is_range_of(item: &Item, object: &ObjectName) -> bool {
    !matches!(item.range, ItemRange::Member(_)) && item.object == *object
}

/// Whether an item wants this version, or does not care.
fn has_version(item: &Item, info: &ObjectInfo) -> bool {
    item.version
        .as_deref()
        .is_none_or(|version| version == info.version.as_str())
}

/// Counts what was leased for the session.
fn warm_range(context: &Context, lease: Option<Result<ObjectLease>>) -> Result<Option<Ready<'_>>> {
    let Some(lease) = lease.transpose()? else {
        return Ok(None);
    };
    let Some(leased) = &lease.leased else {
        return Ok(Some(Ready { lease, charge: None }));
    };
    let charge = Charge::take(&context.session, leased.bytes(), context.lease_bytes_max());
    // Too much held already: the slow way makes a copy.
    Ok(charge.map(|charge| Ready {
        lease,
        charge: Some(charge),
    }))
}

/// The place of a member and the version of the shard in which it lies there, if both the shard and its index are known.
fn known_member(
    context: &Context,
    engine: &Engine,
    (bucket, key): (&BucketName, &ObjectKey),
    name: &str,
) -> Option<Result<(ItemRange, Version)>> {
    let info = engine.known(bucket, key)?;
    let range = context.parts.native.members.known_range(&info, name)?;
    Some(range.map(|range| (place_of(range), info.version.clone())))
}

fn place_of(range: Option<ByteRange>) -> ItemRange {
    ItemRange::Range {
        offset: range.map_or(0, ByteRange::start),
        length: range.map_or(0, ByteRange::len),
    }
}

/// The item, whatever has to be asked for.
async fn fetch<'a>(context: &'a Context, engine: &Engine, item: &Item) -> Result<Ready<'a>> {
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
    fetch_range(context, engine, request).await
}

/// A member of a tar shard: its place, then its bytes in the same version of the shard. Starts again if that is gone meanwhile.
async fn fetch_member<'a>(
    context: &'a Context,
    engine: &Engine,
    (bucket, key): (&BucketName, &ObjectKey),
    wanted: Option<&Version>,
    name: &str,
) -> Result<Ready<'a>> {
    let members = &context.parts.native.members;
    let mut restarts_left = MEMBER_RESTARTS_MAX;
    loop {
        let (object, range) = members.locate(engine, (bucket, key), wanted, name).await?;
        let place = place_of(range);
        let request = LeaseRequest {
            bucket,
            key,
            range: &place,
            version: Some(&object.version),
        };
        match fetch_range(context, engine, request).await {
            Err(error) if error.kind() == Kind::Changed && wanted.is_none() && restarts_left > 0 => {
                restarts_left -= 1;
            }
            fetched => return fetched,
        }
    }
}

async fn fetch_range<'a>(
    context: &'a Context,
    engine: &Engine,
    request: LeaseRequest<'_>,
) -> Result<Ready<'a>> {
    let mut charge = None;
    let place = |bytes| {
        drop(charge.take());
        charge = Charge::take(&context.session, bytes, context.lease_bytes_max());
        Ok(match charge {
            Some(_) => LeasePlace::Shared,
            None => LeasePlace::Copied,
        })
    };
    let lease = engine.lease(request, place).await?;
    // A copy is no part of the cache, also when it was made because the cache had no room.
    let is_shared = lease
        .leased
        .as_ref()
        .is_some_and(|leased| leased.tiers().copied == 0);
    let charge = charge.filter(|_| is_shared);
    Ok(Ready { lease, charge })
}

impl Context {
    fn lease_bytes_max(&self) -> u64 {
        self.parts.options.native.client_lease_bytes_max
    }
}
