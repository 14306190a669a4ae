//! The way past the cache, for when there is no memory for even one page.
//!
//! Everything in RAM is leased or pinned, so the bytes go from the source to the reader as they come and nothing is
//! kept. How many reads do this at once is bounded; one more gets `Busy` after a while.

use std::time::Duration;

use bytes::Bytes;
use forebay_core::{ByteRange, Error, Kind, PAGE_BYTES, Result};
use futures::StreamExt;
use futures::stream::BoxStream;
use tokio::sync::OwnedSemaphorePermit;

use crate::fill::Want;
use crate::reservoir::Reservoir;

/// Reads that may go past the cache at once.
pub(crate) const BYPASSES_MAX: usize = 64;
/// How long a read waits for its turn.
const TURN_WAIT_MAX: Duration = Duration::from_secs(5);

/// A range on its way from the source to one reader.
pub(super) struct Bypass {
    stream: BoxStream<'static, Result<Bytes>>,
    left_bytes: u64,
    /// What the source sent in one chunk beyond what fits a piece.
    rest: Bytes,
    _turn: OwnedSemaphorePermit,
}

impl Bypass {
    /// Asks the source once it is this read's turn.
    pub(super) async fn open(reservoir: &Reservoir, want: &Want, range: ByteRange) -> Result<Self> {
        let turn = std::sync::Arc::clone(&reservoir.bypasses).acquire_owned();
        let busy = || Error::new(Kind::Busy, "all memory of the cache is in use; try again later");
        let turn = tokio::time::timeout(TURN_WAIT_MAX, turn)
            .await
            .map_err(|_| busy())?
            .map_err(|_| busy())?;
        reservoir.counters.fetched_demand_bytes.add(range.len());
        reservoir.counters.bypassed_bytes.add(range.len());
        let stream = want.source.fetch(&want.object, range, want.priority).await?;
        Ok(Self {
            stream,
            left_bytes: range.len(),
            rest: Bytes::new(),
            _turn: turn,
        })
    }

    /// The next bytes, `None` at the end of the range.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>> {
        while self.left_bytes > 0 {
            if self.rest.is_empty() {
                let Some(bytes) = self.stream.next().await else {
                    return Err(Error::new(
                        Kind::Unavailable,
                        "the lake sent fewer bytes than were asked for",
                    ));
                };
                self.rest = bytes?;
            }
            let bytes = (self.rest.len() as u64).min(self.left_bytes).min(PAGE_BYTES);
            if bytes > 0 {
                self.left_bytes -= bytes;
                return Ok(Some(
                    self.rest
                        .split_to(usize::try_from(bytes).expect("at most a page")),
                ));
            }
        }
        Ok(None)
    }
}
