//! The connections of a door: how many there are, from where, and which of them may go.
//!
//! A door has so many places. Nobody gets more of them than its share (`share.rs`), counted by [`Origin`].
//! When there is no place for a connection, those that have stood idle for longest are closed, and with them
//! those that are still sending the head of a request; one in the middle of a request is never closed. A
//! [`Seat`] is the place of one connection, [`Activity`] what its stream and its server know about it
//! together: reading a head, answering, idle.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::share::{Origin, share_fits};

/// One search for idle connections makes room for several, so that a flood of connections does not cost a
/// search each: this part of those that were looked through.
const CLOSED_PART: usize = 16;

/// The places of one door.
#[derive(Debug)]
pub struct Connections {
    max: usize,
    table: Mutex<Table>,
    /// A place may have become free.
    changed: Notify,
    /// Counts the moments at which connections fell idle; none is 0.
    moments: Arc<AtomicU64>,
}

#[derive(Debug, Default)]
struct Table {
    next_id: u64,
    seats: HashMap<u64, (Origin, Arc<Activity>)>,
    by_origin: HashMap<Origin, usize>,
}

/// Why a connection has no place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoSeat {
    /// All places are taken by requests, and its origin has none: it shall have the next that becomes free.
    Full,
    /// Its origin has its share.
    Share,
}

impl Connections {
    /// A door with so many places.
    #[must_use]
    pub fn new(max: usize) -> Arc<Self> {
        Arc::new(Self {
            max: max.max(1),
            table: Mutex::new(Table::default()),
            changed: Notify::new(),
            moments: Arc::new(AtomicU64::new(0)),
        })
    }

    /// Gives a connection a place, if need be one that an idle connection has had.
    pub fn enter(self: &Arc<Self>, origin: Origin) -> Result<Seat, NoSeat> {
        let mut table = self.table.lock();
        let mine = table.count(origin);
        if table.seats.len() >= self.max {
            // Only who holds less may have the place of another.
            if !table.close_idle(|from, theirs| from == origin || theirs > mine) {
                return Err(if mine == 0 { NoSeat::Full } else { NoSeat::Share });
            }
        } else if !share_fits(mine as u64, table.seats.len() as u64, 1, self.max as u64)
            && !table.close_idle(|from, _| from == origin)
        {
            return Err(NoSeat::Share);
        }
        let id = table.next_id;
        table.next_id += 1;
        let activity = Arc::new(Activity::new(Arc::clone(&self.moments)));
        table.seats.insert(id, (origin, Arc::clone(&activity)));
        *table.by_origin.entry(origin).or_default() += 1;
        Ok(Seat {
            connections: Arc::clone(self),
            id,
            activity,
        })
    }

    /// Waits until a place may have become free. Cancel-safe.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Returns how many places are taken.
    #[must_use]
    pub fn len(&self) -> usize {
        self.table.lock().seats.len()
    }

    /// Returns whether no place is taken.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Table {
    fn count(&self, origin: Origin) -> usize {
        self.by_origin.get(&origin).copied().unwrap_or(0)
    }

    /// Closes those that have been idle for longest, among the origins that are chosen by who they are and
    /// how many connections they have. Returns whether there was one.
    fn close_idle(&mut self, is_chosen: impl Fn(Origin, usize) -> bool) -> bool {
        let mut looked_through = 0;
        let mut idle: Vec<(u64, u64)> = Vec::new();
        for (id, (from, activity)) in &self.seats {
            if is_chosen(*from, self.count(*from)) {
                looked_through += 1;
                idle.extend(activity.idle_since().map(|since| (since, *id)));
            }
        }
        idle.sort_unstable();
        idle.truncate((looked_through / CLOSED_PART).max(1));
        for (_, id) in &idle {
            if let Some(activity) = self.remove(*id) {
                activity.close.notify_one();
            }
        }
        !idle.is_empty()
    }

    fn remove(&mut self, id: u64) -> Option<Arc<Activity>> {
        let (origin, activity) = self.seats.remove(&id)?;
        if let Some(count) = self.by_origin.get_mut(&origin) {
            *count -= 1;
            if *count == 0 {
                self.by_origin.remove(&origin);
            }
        }
        Some(activity)
    }
}

/// The place of one connection; dropping it gives it back.
#[derive(Debug)]
pub struct Seat {
    connections: Arc<Connections>,
    id: u64,
    activity: Arc<Activity>,
}

impl Seat {
    /// Activity of this connection.
    #[must_use]
    pub fn activity(&self) -> &Arc<Activity> {
        &self.activity
    }

    /// Waits until the place was given to another connection: this one has to end. Cancel-safe.
    pub async fn closed(&self) {
        self.activity.close.notified().await;
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.connections.table.lock().remove(self.id);
        self.connections.changed.notify_one();
    }
}

const IDLE: u8 = 0;
const HEAD: u8 = 1;
const ANSWERING: u8 = 2;
const FLUSHING: u8 = 3;

/// Activity of one connection. Changed by its own task, read by the table.
#[derive(Debug)]
pub struct Activity {
    phase: AtomicU8,
    /// The moment at which it last fell idle.
    idle_since: AtomicU64,
    moments: Arc<AtomicU64>,
    unread: AtomicBool,
    close: Notify,
}

impl Activity {
    fn new(moments: Arc<AtomicU64>) -> Self {
        let since = moments.fetch_add(1, Ordering::Relaxed) + 1;
        Self {
            phase: AtomicU8::new(IDLE),
            idle_since: AtomicU64::new(since),
            moments,
            unread: AtomicBool::new(false),
            close: Notify::new(),
        }
    }

    /// A request's head is complete.
    pub fn begin_answer(&self) {
        self.phase.store(ANSWERING, Ordering::Relaxed);
    }

    /// The answer has been handed to the connection, which may still have to send it.
    pub fn end_answer(&self) {
        self.phase.store(FLUSHING, Ordering::Relaxed);
    }

    /// Returns whether a request is being answered.
    #[must_use]
    pub fn is_answering(&self) -> bool {
        matches!(self.phase.load(Ordering::Relaxed), ANSWERING | FLUSHING)
    }

    /// Waits until the time has passed and no request is being answered: then nothing is lost by an end.
    pub async fn quiet_after(&self, time: Duration) {
        tokio::time::sleep(time).await;
        while self.is_answering() {
            tokio::time::sleep(time).await;
        }
    }

    /// A request was answered before its body had been read: the connection has to close gently, or the
    /// client gets a reset instead of the answer.
    pub fn leave_unread(&self) {
        self.unread.store(true, Ordering::Relaxed);
    }

    /// Returns whether a body was left unread.
    #[must_use]
    pub fn has_unread(&self) -> bool {
        self.unread.load(Ordering::Relaxed)
    }

    /// Everything was sent.
    pub(crate) fn flushed(&self) {
        if self.phase.load(Ordering::Relaxed) == FLUSHING {
            let since = self.moments.fetch_add(1, Ordering::Relaxed) + 1;
            self.idle_since.store(since, Ordering::Relaxed);
            self.phase.store(IDLE, Ordering::Release);
        }
    }

    /// Bytes came in; returns whether they are part of a head that is not complete.
    pub(crate) fn received(&self) -> bool {
        let idle_to_head = self
            .phase
            .compare_exchange(IDLE, HEAD, Ordering::Relaxed, Ordering::Relaxed);
        idle_to_head.is_ok() || idle_to_head == Err(HEAD)
    }

    /// Returns whether a head is being received.
    pub(crate) fn is_in_head(&self) -> bool {
        self.phase.load(Ordering::Relaxed) == HEAD
    }

    /// The moment since which nothing is asked or answered here; `None` in the middle of a request.
    fn idle_since(&self) -> Option<u64> {
        let is_idle = matches!(self.phase.load(Ordering::Acquire), IDLE | HEAD);
        is_idle.then(|| self.idle_since.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(last: u8) -> Origin {
        Origin::of(Some(([10, 0, 0, last], 1).into()))
    }

    fn busy(connections: &Arc<Connections>, from: u8) -> Seat {
        let seat = connections.enter(origin(from)).expect("a place");
        seat.activity().begin_answer();
        seat
    }

    #[tokio::test]
    async fn the_oldest_idle_connection_gives_its_place_up() {
        let connections = Connections::new(3);
        let answering = busy(&connections, 1);
        let oldest = connections.enter(origin(2)).expect("a place");
        let later = connections.enter(origin(3)).expect("a place");
        let _new = connections.enter(origin(4)).expect("the place of the oldest");
        oldest.closed().await;
        assert_eq!(connections.len(), 3);
        let _newer = connections.enter(origin(5)).expect("the place of the next");
        later.closed().await;
        drop((oldest, later, answering));
        assert_eq!(connections.len(), 2, "a place is given back once");
    }

    #[test]
    fn requests_are_never_closed_for_others() {
        let connections = Connections::new(2);
        let (_one, two) = (busy(&connections, 1), busy(&connections, 2));
        assert_eq!(connections.enter(origin(3)).unwrap_err(), NoSeat::Full);
        two.activity().end_answer();
        assert_eq!(
            connections.enter(origin(3)).unwrap_err(),
            NoSeat::Full,
            "an answer that is not sent yet"
        );
        two.activity().flushed();
        assert!(connections.enter(origin(3)).is_ok());
    }

    #[test]
    fn a_head_that_is_not_complete_is_idle() {
        let connections = Connections::new(1);
        let slow = connections.enter(origin(1)).expect("a place");
        assert!(slow.activity().received());
        assert!(connections.enter(origin(2)).is_ok());
    }

    #[test]
    fn one_address_gets_its_share_and_replaces_its_own_idle_ones_only() {
        let connections = Connections::new(8);
        let mut mine: Vec<Seat> = (0..6).map(|_| busy(&connections, 1)).collect();
        assert_eq!(connections.enter(origin(1)).unwrap_err(), NoSeat::Share);
        let other = connections.enter(origin(2)).expect("there is room for others");
        assert_eq!(connections.enter(origin(1)).unwrap_err(), NoSeat::Share);
        mine[3].activity().end_answer();
        mine[3].activity().flushed();
        mine.push(
            connections
                .enter(origin(1))
                .expect("the place of its own idle one"),
        );
        assert!(other.activity().idle_since().is_some());
        assert_eq!(connections.len(), 7);
        drop(mine);
        assert_eq!(connections.len(), 1);
    }

    #[test]
    fn who_holds_more_never_gets_the_place_of_who_holds_less() {
        let connections = Connections::new(4);
        let _mine: Vec<Seat> = (0..2).map(|_| busy(&connections, 1)).collect();
        let small = connections.enter(origin(2)).expect("a place");
        let _third = connections.enter(origin(3)).expect("a place");
        assert_eq!(connections.enter(origin(1)).unwrap_err(), NoSeat::Share);
        assert!(small.activity().idle_since().is_some() && connections.len() == 4);
        assert!(connections.enter(origin(4)).is_ok(), "somebody new gets it");
    }
}
