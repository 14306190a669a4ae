//! Several items on their way at once, handed on in order.
//!
//! Metadata is asked for up to [`ITEMS_AHEAD_MAX`] items ahead. Bytes are fetched ahead as long as they fit
//! into [`AHEAD_BYTES_MAX`]; shares of it are taken in the order of the items, so the item that is sent next
//! always has its share and no later one can starve it. A large item is fetched ahead in part only; the rest
//! comes while it is sent.

use std::sync::Arc;

use forebay_core::{Error, Kind, Result};
use forebay_wire::Item;
use futures::stream::BoxStream;
use futures::{StreamExt, stream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::item::{Batch, Found, Opened};

/// Bytes that one batch may have fetched and not yet sent. `limits.rs` counts them.
pub(crate) const AHEAD_BYTES_MAX: u64 = 16 << 20;

/// Items looked for at once, and items fetched at once.
const ITEMS_AHEAD_MAX: usize = 64;

/// Most bytes that are fetched ahead of one item.
const ITEM_AHEAD_BYTES_MAX: u64 = 2 << 20;

/// The items, found and begun, in order.
pub(super) fn open_all(batch: Arc<Batch>, items: Vec<Item>) -> BoxStream<'static, Result<Opened>> {
    let budget = Arc::new(Semaphore::new(AHEAD_BYTES_MAX as usize));
    let finder = Arc::clone(&batch);
    stream::iter(items)
        .map(move |item| find(Arc::clone(&finder), item))
        .buffered(ITEMS_AHEAD_MAX)
        .then(move |found| take_share(found, Arc::clone(&budget)))
        .map(move |found| open(Arc::clone(&batch), found))
        .buffered(ITEMS_AHEAD_MAX)
        .boxed()
}

async fn find(batch: Arc<Batch>, item: Item) -> Result<Found> {
    batch.find(item).await
}

/// Waits until there is room for the item's bytes.
async fn take_share(
    found: Result<Found>,
    budget: Arc<Semaphore>,
) -> Result<(Found, Option<OwnedSemaphorePermit>)> {
    let found = found?;
    let bytes = found.bytes().min(ITEM_AHEAD_BYTES_MAX);
    let Some(bytes) = u32::try_from(bytes).ok().filter(|bytes| *bytes > 0) else {
        return Ok((found, None));
    };
    let share = budget.acquire_many_owned(bytes).await;
    let share = share.map_err(|_| Error::new(Kind::Internal, "the budget of a batch was closed"))?;
    Ok((found, Some(share)))
}

async fn open(batch: Arc<Batch>, found: Result<(Found, Option<OwnedSemaphorePermit>)>) -> Result<Opened> {
    let (found, share) = found?;
    let first_bytes = share.as_ref().map_or(0, |share| share.num_permits() as u64);
    batch.open(found, first_bytes, share).await
}
