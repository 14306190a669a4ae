//! The way past the cache, for when there is no memory for even one page.
//!
//! Everything in RAM is leased or pinned, so the bytes go from the source to the reader as they come and nothing is
//! cached. Readers that want the same bytes at about the same time share one fetch ([`super::flight`]). How many fetches there
//! are at once is bounded; a reader that gets no turn for one is told `Busy` after a while. A fetch that failed for a reason that
//! may pass is tried once more.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use forebay_core::{ByteRange, Error, Kind, PAGE_BYTES, Result};

use super::flight::{Found, Seat};
use crate::ObjectId;
use crate::fill::Want;
use crate::reservoir::Reservoir;

/// How long a read waits for its turn.
const TURN_WAIT_MAX: Duration = Duration::from_secs(5);

/// A range on its way from the source to one reader.
pub(super) struct Bypass {
    reservoir: Arc<Reservoir>,
    id: ObjectId,
    want: Want,
    range: ByteRange,
    position: u64,
    seat: Option<Seat>,
    /// Whether the fetch failed since the last byte.
    has_failed: bool,
}

impl Bypass {
    /// Joins or starts the fetch of the first bytes, once it is this read's turn.
    pub(super) async fn open(
        reservoir: &Arc<Reservoir>,
        id: ObjectId,
        want: &Want,
        range: ByteRange,
    ) -> Result<Self> {
        let mut bypass = Self {
            reservoir: Arc::clone(reservoir),
            id,
            want: want.clone(),
            range,
            position: range.start(),
            seat: None,
            has_failed: false,
        };
        bypass.board().await?;
        Ok(bypass)
    }

    /// The next bytes, at most a page; `None` at the end of the range.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>> {
        while self.position < self.range.end() {
            let Some(seat) = self.seat.as_ref().filter(|seat| self.position < seat.end()) else {
                self.board().await?;
                continue;
            };
            match seat.bytes_at(self.position).await {
                Found::Bytes(mut bytes) => {
                    let wanted = (self.range.end() - self.position).min(PAGE_BYTES);
                    bytes.truncate(usize::try_from(wanted).expect("at most a page"));
                    self.position += bytes.len() as u64;
                    self.has_failed = false;
                    self.reservoir.counters.bypassed_bytes.add(bytes.len() as u64);
                    return Ok(Some(bytes));
                }
                Found::Gone => self.seat = None,
                Found::Failed(error) if self.has_failed || !error.is_retryable() => return Err(error),
                Found::Failed(_) => (self.seat, self.has_failed) = (None, true),
            }
        }
        Ok(None)
    }

    /// Takes a seat in a flight that has the next byte, or opens one.
    async fn board(&mut self) -> Result<()> {
        let flights = &self.reservoir.flights;
        self.seat = flights.join(&self.id, self.position);
        if self.seat.is_some() {
            return Ok(());
        }
        let turn = tokio::time::timeout(TURN_WAIT_MAX, flights.turn()).await;
        let busy = |_| Error::new(Kind::Busy, "all memory of the cache is in use; try again later");
        let range = ByteRange::new(self.position, self.range.end())?;
        let (seat, puller) = flights.join_or_open(self.id, range, turn.map_err(busy)??);
        self.seat = Some(seat);
        if let Some(puller) = puller {
            self.reservoir.counters.fetched_demand_bytes.add(range.len());
            self.reservoir.filler.spawn(puller.pull(self.want.clone()));
        }
        Ok(())
    }
}
