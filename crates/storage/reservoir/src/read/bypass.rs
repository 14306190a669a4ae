//! The way past the cache, for when there is no memory for even one page.
//!
//! Everything in RAM is leased or pinned, so the bytes go from the source to the reader as they come and
//! nothing is cached. Readers that want the same bytes at about the same time share one fetch
//! ([`super::shared_fetch`]). How many fetches there are at once is bounded; a reader that gets no permit for
//! one is told `Busy` after a while. A fetch that failed for a reason that may pass is tried once more.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use forebay_core::{ByteRange, Error, Kind, PAGE_BYTES, Result, Tier};

use super::shared_fetch::{FetchedBytes, Subscription};
use crate::fill::FillRequest;
use crate::reservoir::Reservoir;
use crate::{ObjectId, Priority};

/// The longest wait of a read for its permit.
const PERMIT_WAIT_MAX: Duration = Duration::from_secs(5);

/// A range on its way from the source to one reader.
pub(super) struct Bypass {
    reservoir: Arc<Reservoir>,
    id: ObjectId,
    request: FillRequest,
    range: ByteRange,
    position: u64,
    subscription: Option<Subscription>,
    /// Set while the fetch has failed since the last byte.
    has_failed: bool,
}

impl Bypass {
    /// Joins or starts the fetch of the first bytes, once it is this read's permit.
    pub(super) async fn open(
        reservoir: &Arc<Reservoir>,
        id: ObjectId,
        request: &FillRequest,
        range: ByteRange,
    ) -> Result<Self> {
        let mut bypass = Self {
            reservoir: Arc::clone(reservoir),
            id,
            request: request.clone(),
            range,
            position: range.start(),
            subscription: None,
            has_failed: false,
        };
        bypass.subscribe().await?;
        Ok(bypass)
    }

    /// The next bytes, at most a page; `None` at the end of the range.
    pub(super) async fn next(&mut self) -> Result<Option<(Bytes, Tier)>> {
        while self.position < self.range.end() {
            let Some(subscription) = self
                .subscription
                .as_ref()
                .filter(|subscription| self.position < subscription.end())
            else {
                self.subscribe().await?;
                continue;
            };
            match subscription.bytes_at(self.position).await {
                FetchedBytes::Bytes(mut bytes, tier) => {
                    let wanted = (self.range.end() - self.position).min(PAGE_BYTES);
                    bytes.truncate(usize::try_from(wanted).expect("at most a page"));
                    self.position += bytes.len() as u64;
                    self.has_failed = false;
                    self.reservoir.counters.bypassed_bytes.add(bytes.len() as u64);
                    return Ok(Some((bytes, tier)));
                }
                FetchedBytes::Gone => self.subscription = None,
                FetchedBytes::Failed(error) if self.has_failed || !error.is_retryable() => return Err(error),
                FetchedBytes::Failed(_) => (self.subscription, self.has_failed) = (None, true),
            }
        }
        Ok(None)
    }

    /// Takes a subscription in a fetch that has the next byte, or opens one.
    async fn subscribe(&mut self) -> Result<()> {
        let fetches = &self.reservoir.shared_fetches;
        let (request, end) = self.request.at(self.position, Priority::Demand);
        self.subscription = fetches.join(&self.id, self.position, &request.control);
        if self.subscription.is_some() {
            return Ok(());
        }
        let permit = tokio::time::timeout(PERMIT_WAIT_MAX, fetches.permit()).await;
        let busy = |_| Error::new(Kind::Busy, "all memory of the cache is in use; try again later");
        let range = ByteRange::new(self.position, self.range.end().min(end))?;
        let (subscription, producer) = fetches.join_or_open(self.id, range, &request, permit.map_err(busy)??);
        self.subscription = Some(subscription);
        if let Some(producer) = producer {
            self.reservoir.counters.fetched_demand_bytes.add(range.len());
            let filler = &self.reservoir.filler;
            filler.spawn(producer.pull(filler.fill(&request)));
        }
        Ok(())
    }
}
