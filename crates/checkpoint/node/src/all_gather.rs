//! All-gather between the ranks of a host: every rank gives a payload and gets the payloads of all ranks, in
//! the order of ranks.
//!
//! Knows nothing of what is gathered. Life cycle of a round: the first rank opens it; the last one completes
//! it, and all waiting ranks are answered. A rank that stops waiting takes its payload back, so that no round
//! completes with a payload whose rank has left. A complete round is remembered for a while, for clients that
//! lost the answer.
//!
//! Limits: rounds, ranks, and bytes of all rounds together.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use forebay_core::{Error, Kind, Result, missing_ranks};
use forebay_wire::FRAME_BYTES_MAX;
use forebay_wire::group::AllGather;
use parking_lot::Mutex;
use tokio::sync::watch;

/// Rounds that are open or remembered.
const ROUNDS_MAX: usize = 64;
/// Bytes of one round: its answer fits a frame, with room for lengths.
const ROUND_BYTES_MAX: usize = FRAME_BYTES_MAX / 2;
/// Bytes of all rounds.
const BYTES_MAX: usize = 4 * ROUND_BYTES_MAX;
/// Ranks of one round.
const RANKS_MAX: u32 = 4096;
/// The longest name.
const KEY_BYTES_MAX: usize = 1024;
/// The longest wait.
const TIMEOUT_MAX: Duration = Duration::from_secs(24 * 3600);

/// All rounds, by user and name.
#[derive(Debug, Default)]
pub struct AllGathers {
    rounds: Mutex<BTreeMap<(u32, String), Arc<Round>>>,
}

#[derive(Debug)]
struct Round {
    size: u32,
    /// By rank.
    payloads: Mutex<BTreeMap<u32, Vec<u8>>>,
    complete: watch::Sender<bool>,
}

impl Round {
    fn bytes(&self) -> usize {
        self.payloads.lock().values().map(Vec::len).sum()
    }

    fn is_complete(&self) -> bool {
        *self.complete.borrow()
    }
}

impl AllGathers {
    /// Gives what a rank has and waits for the others.
    pub async fn all_gather(&self, uid: u32, wanted: AllGather) -> Result<Vec<Vec<u8>>> {
        check(&wanted)?;
        let timeout = Duration::from_millis(wanted.timeout_ms.into()).min(TIMEOUT_MAX);
        let key = (uid, wanted.key);
        let round = self.join(&key, wanted.rank, wanted.size, wanted.payload)?;
        let waiting = WaitingRank {
            all_gathers: self,
            round: &round,
            key: &key,
            rank: wanted.rank,
        };
        let mut complete = round.complete.subscribe();
        let answered = tokio::time::timeout(timeout, complete.wait_for(|complete| *complete)).await;
        if answered.is_err() && !round.is_complete() {
            let there: BTreeSet<u32> = round.payloads.lock().keys().copied().collect();
            let message = "ranks did not come to an all-gather in time; start them all, with the same size of the world";
            return Err(Error::new(Kind::Timeout, message)
                .with("all_gather", &key.1)
                .with("ranks", missing_ranks(round.size, &there)));
        }
        drop(waiting);
        let payloads = round.payloads.lock();
        Ok(payloads.values().cloned().collect())
    }

    fn join(&self, key: &(u32, String), rank: u32, size: u32, payload: Vec<u8>) -> Result<Arc<Round>> {
        let mut rounds = self.rounds.lock();
        let round = match rounds.get(key) {
            Some(known) => Arc::clone(known),
            None => {
                make_room(&mut rounds)?;
                let round = Arc::new(Round {
                    size,
                    payloads: Mutex::default(),
                    complete: watch::Sender::new(false),
                });
                rounds.insert(key.clone(), Arc::clone(&round));
                round
            }
        };
        let all_bytes: usize = rounds.values().map(|round| round.bytes()).sum();
        round.give(rank, size, payload, BYTES_MAX.saturating_sub(all_bytes))?;
        Ok(round)
    }
}

impl Round {
    fn give(&self, rank: u32, size: u32, payload: Vec<u8>, bytes_left: usize) -> Result<()> {
        let wrong = |kind, message: &str| Err(Error::new(kind, message).with("rank", rank));
        let mut payloads = self.payloads.lock();
        if size != self.size {
            return wrong(
                Kind::InvalidInput,
                "ranks of an all-gather do not agree on how many they are",
            );
        }
        match payloads.get(&rank) {
            Some(given) if *given == payload => return Ok(()),
            Some(_) => {
                return wrong(
                    Kind::Conflict,
                    "a rank gave something else to this all-gather before; name each one anew",
                );
            }
            None => {}
        }
        let bytes: usize = payloads.values().map(Vec::len).sum();
        if bytes + payload.len() > ROUND_BYTES_MAX {
            return wrong(
                Kind::InvalidInput,
                "the ranks of an all-gather give more than 8 MiB together",
            );
        }
        if payload.len() > bytes_left {
            return wrong(
                Kind::Busy,
                "the all-gathers of this node hold too much; try again later",
            );
        }
        payloads.insert(rank, payload);
        if payloads.len() == self.size as usize {
            self.complete.send_replace(true);
        }
        Ok(())
    }
}

fn check(wanted: &AllGather) -> Result<()> {
    let fits = wanted.size <= RANKS_MAX && wanted.rank < wanted.size && wanted.key.len() <= KEY_BYTES_MAX;
    if fits {
        return Ok(());
    }
    let message = "an all-gather has at most 4096 ranks, counted from zero, and a name of at most 1024 bytes";
    Err(Error::new(Kind::InvalidInput, message)
        .with("rank", wanted.rank)
        .with("size", wanted.size))
}

/// Forgets a complete round where there are too many.
fn make_room(rounds: &mut BTreeMap<(u32, String), Arc<Round>>) -> Result<()> {
    if rounds.len() < ROUNDS_MAX {
        return Ok(());
    }
    let complete = rounds.iter().find(|(_, round)| round.is_complete());
    let Some(key) = complete.map(|(key, _)| key.clone()) else {
        let message = "too many all-gathers between ranks are open; try again later";
        return Err(Error::new(Kind::Busy, message).with("all_gathers_max", ROUNDS_MAX));
    };
    rounds.remove(&key);
    Ok(())
}

/// A rank that waits. Dropped before the round is complete, it takes back what it gave.
struct WaitingRank<'a> {
    all_gathers: &'a AllGathers,
    round: &'a Arc<Round>,
    key: &'a (u32, String),
    rank: u32,
}

impl Drop for WaitingRank<'_> {
    fn drop(&mut self) {
        let mut rounds = self.all_gathers.rounds.lock();
        if self.round.is_complete() {
            return;
        }
        let mut payloads = self.round.payloads.lock();
        payloads.remove(&self.rank);
        if payloads.is_empty() {
            rounds.remove(self.key);
        }
    }
}
