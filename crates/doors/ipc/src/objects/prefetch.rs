//! `Prefetch` and `WorkingSet`: what a reader says about what it will need.
//!
//! `Prefetch` brings bytes in and leases nothing, so a client can ask for a window ahead of its use at the
//! cost of a look per page. `WorkingSet` names objects that are read in rounds; the cache keeps what it has
//! of them. A working set ends with its session at the latest.

use forebay_core::{Error, Kind, Result, Version};
use forebay_engine::{Engine, LeaseRequest};
use forebay_wire::objects::{Answer, WorkingSet, WorkingSetObject};
use forebay_wire::{BATCH_ITEMS_MAX, Failure, Item, TierBytes};
use futures::{StreamExt, stream};

use super::Context;
use super::read::{deadline, too_late, too_many};

/// Items of one request that are fetched at once.
const ITEMS_AT_ONCE_MAX: usize = 64;
/// Working sets that one session may have at a time.
const WORKING_SETS_MAX: usize = 64;

pub(super) async fn answer(context: Context<'_>, items: &[Item], timeout_ms: u32) -> Result<Answer> {
    if items.len() > BATCH_ITEMS_MAX {
        return Err(too_many(items.len()));
    }
    let engine = context.engine()?;
    let deadline = deadline(timeout_ms);
    let mut prefetched = Vec::with_capacity(items.len());
    for item in items {
        prefetched.push(async move {
            let prefetched = tokio::time::timeout_at(deadline, prefetch(context, engine, item)).await;
            let prefetched = prefetched.unwrap_or_else(|_| Err(too_late(item)));
            prefetched.map_err(|error| Failure::from(&error))
        });
    }
    Ok(Answer::Prefetched(
        stream::iter(prefetched)
            .buffered(ITEMS_AT_ONCE_MAX)
            .collect()
            .await,
    ))
}

async fn prefetch(context: Context<'_>, engine: &Engine, item: &Item) -> Result<TierBytes> {
    let (bucket, key) = context.object(&item.object)?;
    let version = item.version.as_deref().map(Version::new);
    let request = LeaseRequest {
        bucket: &bucket,
        key: &key,
        range: &item.range,
        version: version.as_ref(),
    };
    engine.prefetch(request).await
}

/// Begins a working set, or adds to it. Objects that this user may not use are refused, as reading them would
/// be.
pub(super) fn keep_working_set(context: Context<'_>, set: &WorkingSet) -> Result<Answer> {
    let engine = context.engine()?;
    let mut objects = Vec::with_capacity(set.objects.len());
    for WorkingSetObject {
        object,
        version,
        bytes,
    } in &set.objects
    {
        let (bucket, key) = context.object(object)?;
        objects.push(engine.object_id(&bucket, &key, &Version::new(version), *bytes)?);
    }
    let Context {
        objects: family,
        session,
    } = context;
    let reservoir = &family.services.reservoir;
    let mut working_sets = family.working_sets.lock();
    // Nobody would end it.
    session.check_open()?;
    let own = working_sets.entry(session.number()).or_default();
    if own.len() >= WORKING_SETS_MAX && !own.contains_key(&set.reader) {
        let message = "this client has too many working sets; drop some";
        return Err(Error::new(Kind::Busy, message).with("working_sets_max", WORKING_SETS_MAX));
    }
    let guard = own
        .entry(set.reader)
        .or_insert_with(|| reservoir.working_set(set.id));
    guard.add(set.ahead_bytes, set.is_dense, objects);
    Ok(Answer::WorkingSetKept {
        ram_bytes: reservoir.ram_bytes(),
    })
}

pub(super) fn drop_working_set(context: Context<'_>, reader: u64) -> Answer {
    let Context { objects, session } = context;
    let mut working_sets = objects.working_sets.lock();
    let guard = working_sets
        .get_mut(&session.number())
        .and_then(|own| own.remove(&reader));
    drop(working_sets);
    drop(guard);
    Answer::Done
}
