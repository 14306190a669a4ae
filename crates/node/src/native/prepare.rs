//! `Prepare` and `Plan`: what a reader says about what it will need.
//!
//! `Prepare` brings bytes in and leases nothing, so a client can ask for a window ahead of its use at the cost of a look per
//! page. `Plan` names objects that are read in rounds; the cache keeps what it has of them. A plan ends with its session at the latest.

use forebay_core::wire::{Answer, BATCH_ITEMS_MAX, Failure, Item, Plan, PlannedObject, Sources};
use forebay_core::{Result, Version};
use forebay_engine::{Engine, LeaseRequest};
use futures::{StreamExt, stream};

use super::connection::Context;
use super::read::{deadline, sources, too_late, too_many};

/// Items of one question that are fetched at once.
const ITEMS_AT_ONCE_MAX: usize = 64;

pub(super) async fn answer(context: &Context, items: &[Item], timeout_ms: u32) -> Result<Answer> {
    if items.len() > BATCH_ITEMS_MAX {
        return Err(too_many(items.len()));
    }
    let engine = context.parts.engine()?;
    let deadline = deadline(timeout_ms);
    let mut prepared = Vec::with_capacity(items.len());
    for item in items {
        prepared.push(async move {
            let prepared = tokio::time::timeout_at(deadline, prepare(context, engine, item)).await;
            let prepared = prepared.unwrap_or_else(|_| Err(too_late(item)));
            prepared.map_err(|error| Failure::from(&error))
        });
    }
    Ok(Answer::Prepared(
        stream::iter(prepared).buffered(ITEMS_AT_ONCE_MAX).collect().await,
    ))
}

async fn prepare(context: &Context, engine: &Engine, item: &Item) -> Result<Sources> {
    let (bucket, key) = context.object(&item.object)?;
    let version = item.version.as_deref().map(Version::new);
    let request = LeaseRequest {
        bucket: &bucket,
        key: &key,
        range: &item.range,
        version: version.as_ref(),
    };
    engine.prepare(request).await.map(sources)
}

/// Begins a plan, or adds to it. Objects that this user may not use are refused, as reading them would be.
pub(super) fn plan(context: &Context, plan: &Plan) -> Result<Answer> {
    let engine = context.parts.engine()?;
    let mut objects = Vec::with_capacity(plan.objects.len());
    for PlannedObject {
        object,
        version,
        bytes,
    } in &plan.objects
    {
        let (bucket, key) = context.object(object)?;
        objects.push(engine.object_id(&bucket, &key, &Version::new(version), *bytes)?);
    }
    let reservoir = &context.parts.reservoir;
    let begin = || reservoir.plan(plan.plan);
    context.session.add_to_plan(plan.reader, begin, |hold| {
        hold.add(plan.ahead_bytes, plan.is_dense, objects);
    })?;
    Ok(Answer::Planned {
        ram_bytes: reservoir.ram_bytes(),
    })
}
