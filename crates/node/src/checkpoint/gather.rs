//! Exchanges between the ranks of a host: each gives something, all get everything, in the order of ranks.
//!
//! Life cycle of an exchange: the first rank opens it; the last one completes it, and all that wait are answered. Who stops waiting takes back what it gave,
//! so that nobody completes an exchange that another has left. A complete exchange is remembered for a while, for clients that lost the answer.
//!
//! Limits: exchanges, ranks, and bytes of all of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use forebay_checkpoint::merge::missing_ranks;
use forebay_core::wire::{FRAME_BYTES_MAX, Gather};
use forebay_core::{Error, Kind, Result};
use parking_lot::Mutex;
use tokio::sync::watch;

/// Exchanges that are open or remembered.
const EXCHANGES_MAX: usize = 64;
/// What one exchange may hold: its answer fits a frame, with room for lengths.
const EXCHANGE_BYTES_MAX: usize = FRAME_BYTES_MAX / 2;
/// What all of them may hold.
const BYTES_MAX: usize = 4 * EXCHANGE_BYTES_MAX;
/// Ranks of one exchange.
const RANKS_MAX: u32 = 4096;
/// The longest name.
const KEY_BYTES_MAX: usize = 1024;
/// The longest wait.
const TIMEOUT_MAX: Duration = Duration::from_secs(24 * 3600);

/// All exchanges, by user and name.
#[derive(Debug, Default)]
pub(crate) struct Gathers {
    exchanges: Mutex<BTreeMap<(u32, String), Arc<Exchange>>>,
}

#[derive(Debug)]
struct Exchange {
    size: u32,
    /// When it was opened, among all of them.
    payloads: Mutex<BTreeMap<u32, Vec<u8>>>,
    complete: watch::Sender<bool>,
}

impl Exchange {
    fn bytes(&self) -> usize {
        self.payloads.lock().values().map(Vec::len).sum()
    }

    fn is_complete(&self) -> bool {
        *self.complete.borrow()
    }
}

impl Gathers {
    /// Gives what a rank has and waits for the others.
    pub(crate) async fn gather(&self, uid: u32, gather: Gather) -> Result<Vec<Vec<u8>>> {
        check(&gather)?;
        let timeout = Duration::from_millis(gather.timeout_ms.into()).min(TIMEOUT_MAX);
        let place = (uid, gather.key);
        let exchange = self.join(&place, gather.rank, gather.size, gather.payload)?;
        let leaving = Leaving {
            gathers: self,
            exchange: &exchange,
            place: &place,
            rank: gather.rank,
        };
        let mut complete = exchange.complete.subscribe();
        let answered = tokio::time::timeout(timeout, complete.wait_for(|complete| *complete)).await;
        if answered.is_err() && !exchange.is_complete() {
            let there: BTreeSet<u32> = exchange.payloads.lock().keys().copied().collect();
            let message =
                "ranks did not come to an exchange in time; start them all, with the same size of the world";
            return Err(Error::new(Kind::Timeout, message)
                .with("exchange", &place.1)
                .with("ranks", missing_ranks(exchange.size, &there)));
        }
        drop(leaving);
        let payloads = exchange.payloads.lock();
        Ok(payloads.values().cloned().collect())
    }

    fn join(&self, place: &(u32, String), rank: u32, size: u32, payload: Vec<u8>) -> Result<Arc<Exchange>> {
        let mut exchanges = self.exchanges.lock();
        let exchange = match exchanges.get(place) {
            Some(known) => Arc::clone(known),
            None => {
                make_room(&mut exchanges)?;
                let exchange = Arc::new(Exchange {
                    size,
                    payloads: Mutex::default(),
                    complete: watch::Sender::new(false),
                });
                exchanges.insert(place.clone(), Arc::clone(&exchange));
                exchange
            }
        };
        let all_bytes: usize = exchanges.values().map(|exchange| exchange.bytes()).sum();
        exchange.give(rank, size, payload, BYTES_MAX.saturating_sub(all_bytes))?;
        Ok(exchange)
    }
}

impl Exchange {
    fn give(&self, rank: u32, size: u32, payload: Vec<u8>, bytes_left: usize) -> Result<()> {
        let wrong = |kind, message: &str| Err(Error::new(kind, message).with("rank", rank));
        let mut payloads = self.payloads.lock();
        if size != self.size {
            return wrong(
                Kind::InvalidInput,
                "ranks of an exchange do not agree on how many they are",
            );
        }
        match payloads.get(&rank) {
            Some(given) if *given == payload => return Ok(()),
            Some(_) => {
                return wrong(
                    Kind::Conflict,
                    "a rank gave something else to this exchange before; name each exchange anew",
                );
            }
            None => {}
        }
        let bytes: usize = payloads.values().map(Vec::len).sum();
        if bytes + payload.len() > EXCHANGE_BYTES_MAX {
            return wrong(
                Kind::InvalidInput,
                "the ranks of an exchange give more than 8 MiB together",
            );
        }
        if payload.len() > bytes_left {
            return wrong(
                Kind::Busy,
                "the exchanges of this node hold too much; try again later",
            );
        }
        payloads.insert(rank, payload);
        if payloads.len() == self.size as usize {
            self.complete.send_replace(true);
        }
        Ok(())
    }
}

fn check(gather: &Gather) -> Result<()> {
    let fits = gather.size <= RANKS_MAX && gather.rank < gather.size && gather.key.len() <= KEY_BYTES_MAX;
    if fits {
        return Ok(());
    }
    let message = "an exchange has at most 4096 ranks, counted from zero, and a name of at most 1024 bytes";
    Err(Error::new(Kind::InvalidInput, message)
        .with("rank", gather.rank)
        .with("size", gather.size))
}

/// Forgets a complete exchange where there are too many.
fn make_room(exchanges: &mut BTreeMap<(u32, String), Arc<Exchange>>) -> Result<()> {
    if exchanges.len() < EXCHANGES_MAX {
        return Ok(());
    }
    let complete = exchanges.iter().find(|(_, exchange)| exchange.is_complete());
    let Some(place) = complete.map(|(place, _)| place.clone()) else {
        let message = "too many exchanges between ranks are open; try again later";
        return Err(Error::new(Kind::Busy, message).with("exchanges_max", EXCHANGES_MAX));
    };
    exchanges.remove(&place);
    Ok(())
}

/// A rank that waits. Dropped before the exchange is complete, it takes back what it gave.
struct Leaving<'a> {
    gathers: &'a Gathers,
    exchange: &'a Arc<Exchange>,
    place: &'a (u32, String),
    rank: u32,
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        let mut exchanges = self.gathers.exchanges.lock();
        if self.exchange.is_complete() {
            return;
        }
        let mut payloads = self.exchange.payloads.lock();
        payloads.remove(&self.rank);
        if payloads.is_empty() {
            exchanges.remove(self.place);
        }
    }
}
