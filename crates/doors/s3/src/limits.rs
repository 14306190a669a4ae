//! Admission: limits of requests and bytes in flight, and of what one client may hold of them.
//!
//! A request is admitted when its signature has been verified and its key may do what it asks (`access.rs`),
//! and counts until its answer's last byte has gone or its connection is lost. So a request that is refused
//! holds nothing. What counts is what the node holds, never what a head claims: a read counts about a page,
//! an upload counts its bytes as they come in, up to the window that its way to the lake can hold.
//!
//! Shares (`forebay_net::share_fits`) hold for each key, for all strangers together, and for each address:
//! whoever holds much gets no more while others would find nothing. Beyond a limit the answer is
//! `503 SlowDown` with `Retry-After`.
//!
//! A length that was announced is a promise of its key alone: a key that has promised its share begins no
//! other upload, so that those that are under way can end; other keys do not notice. The promise of a body
//! that does not come is struck out. Uploads that find no room for more bytes wait, and one at a time, in the
//! order in which they were admitted, may use the last quarter of the limit: there is always one that can
//! end.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use forebay_net::{Origin, share_fits, share_max};
use parking_lot::Mutex;

/// Charge of every request: about one page on its way to the socket.
const READ_COST_BYTES: u64 = 512 << 10;

/// A part is passed on while it comes in.
const PART_WINDOW_BYTES: u64 = 16 << 20;

/// A lake's writer cuts a large object into parts of at least this size and at most 10,000 of them, and holds
/// five.
const WRITER_PART_BYTES_MIN: u64 = 16 << 20;
const WRITER_PARTS_MAX: u64 = 10_000;
const WRITER_PARTS_HELD: u64 = 5;

/// Growing takes the lock once for so many bytes.
const GROWTH_BYTES: u64 = 1 << 20;

/// Load that a request puts on the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Load {
    /// A read, a listing, a change of settings.
    Small,
    /// A body that is held whole, of up to so many bytes.
    Document { bytes_max: u64 },
    /// An object; its size as announced, if it was.
    Object { bytes: Option<u64> },
    /// A part of an upload.
    Part { bytes: Option<u64> },
    /// Bytes that the node fetches itself, so many at a time: copies, batches.
    Fetched { bytes: u64 },
}

impl Load {
    /// A copy of an object through this node.
    pub(crate) const COPY: Self = Self::Fetched {
        bytes: WRITER_PART_BYTES_MIN * WRITER_PARTS_HELD,
    };
    /// A copy of a part.
    pub(crate) const PART_COPY: Self = Self::Fetched {
        bytes: PART_WINDOW_BYTES,
    };

    /// Bytes that it counts at once.
    fn bytes_now(self) -> u64 {
        match self {
            Self::Fetched { bytes } => bytes.max(READ_COST_BYTES),
            _ => READ_COST_BYTES,
        }
    }

    /// Bytes that it may count in the end: a body counts as it comes, also one that is longer than was announced.
    fn window_bytes(self) -> u64 {
        let bytes = match self {
            Self::Small => 0,
            Self::Document { bytes_max } => bytes_max,
            Self::Fetched { bytes } => bytes,
            Self::Part { .. } => PART_WINDOW_BYTES,
            Self::Object { bytes } => {
                let part_bytes = (bytes.unwrap_or(0) / WRITER_PARTS_MAX).max(WRITER_PART_BYTES_MIN);
                part_bytes * WRITER_PARTS_HELD
            }
        };
        bytes.max(self.bytes_now())
    }

    /// Bytes that it says it will count.
    fn announced_bytes(self) -> u64 {
        match self {
            Self::Part { bytes: Some(bytes) } | Self::Object { bytes: Some(bytes) } => {
                bytes.min(self.window_bytes())
            }
            _ => self.window_bytes(),
        }
    }
}

/// Holder of a request's share.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Holder {
    /// The owner of an access key.
    Key(Box<str>),
    /// Everybody without a key.
    Strangers,
    /// Whoever is at this address.
    Address(Origin),
}

/// Requests and bytes in flight at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct InFlight {
    /// Requests.
    pub requests: u64,
    /// Bytes they count for.
    pub bytes: u64,
}

/// The limits and what is in flight.
#[derive(Debug)]
pub(crate) struct Admission {
    max: InFlight,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    total: InFlight,
    holders: HashMap<Holder, Held>,
    next_number: u64,
    /// Permits that wait for bytes.
    waiting: BTreeSet<u64>,
    /// The one permit that may use the last quarter, until it ends or turns out to be slow.
    last_quarter: Option<u64>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Held {
    now: InFlight,
    /// Bytes that were announced and have not come.
    promised_bytes: u64,
}

impl Admission {
    pub(crate) fn new(requests_max: u64, bytes_max: u64) -> Arc<Self> {
        Arc::new(Self {
            max: InFlight {
                requests: requests_max,
                bytes: bytes_max,
            },
            table: Mutex::new(Table::default()),
        })
    }

    /// Lets a request in, or not.
    pub(crate) fn admit(self: &Arc<Self>, who: Holder, from: Origin, load: Load) -> Option<Permit> {
        let share = share_max(self.max.bytes);
        let bytes = load.bytes_now().min(share);
        let bytes_max = load.window_bytes().clamp(bytes, share);
        let announced_bytes = load.announced_bytes().clamp(bytes, share);
        let holders = [who, Holder::Address(from)];
        let mut table = self.table.lock();
        let is_free = holders.iter().all(|holder| {
            let mine = table.held(holder).now;
            share_fits(mine.requests, table.total.requests, 1, self.max.requests)
                && share_fits(mine.bytes, table.total.bytes, bytes, self.max.bytes)
        });
        let promises = table.held(&holders[0]);
        let promised_bytes = announced_bytes - bytes;
        let is_kept =
            promised_bytes == 0 || promises.now.bytes + promises.promised_bytes + announced_bytes <= share;
        if !is_free || !is_kept {
            return None;
        }
        for holder in &holders {
            table.change(holder, |held| {
                held.now.requests += 1;
                held.now.bytes += bytes;
            });
        }
        table.change(&holders[0], |held| held.promised_bytes += promised_bytes);
        table.total.requests += 1;
        table.total.bytes += bytes;
        table.next_number += 1;
        Some(Permit {
            number: table.next_number,
            admission: Arc::clone(self),
            holders,
            bytes,
            bytes_max,
            received_bytes: 0,
            promised_bytes,
        })
    }

    pub(crate) fn in_flight(&self) -> InFlight {
        self.table.lock().total
    }
}

impl Table {
    fn held(&self, holder: &Holder) -> Held {
        self.holders.get(holder).copied().unwrap_or_default()
    }

    /// One at a time, in the order of admission.
    fn may_use_last_quarter(&self, number: u64) -> bool {
        match self.last_quarter {
            Some(user) => user == number,
            None => self.waiting.first().is_none_or(|first| number <= *first),
        }
    }

    fn leave_last_quarter(&mut self, number: u64) {
        if self.last_quarter == Some(number) {
            self.last_quarter = None;
        }
    }

    fn change(&mut self, holder: &Holder, change: impl FnOnce(&mut Held)) {
        let held = self.holders.entry(holder.clone()).or_default();
        change(held);
        if *held == Held::default() {
            self.holders.remove(holder);
        }
    }
}

/// A place among the requests in flight; dropping it gives it back.
#[derive(Debug)]
pub(crate) struct Permit {
    admission: Arc<Admission>,
    number: u64,
    holders: [Holder; 2],
    bytes: u64,
    bytes_max: u64,
    received_bytes: u64,
    promised_bytes: u64,
}

impl Permit {
    /// Counts bytes that have come in. Returns false if there is no room for them now: ask again.
    pub(crate) fn receive(&mut self, bytes: u64) -> bool {
        let received = self.received_bytes.saturating_add(bytes);
        let needed = received.min(self.bytes_max);
        if needed > self.bytes && !self.grow(needed) {
            return false;
        }
        self.received_bytes = received;
        true
    }

    /// Takes what is needed, and a step more if that is free.
    fn grow(&mut self, needed: u64) -> bool {
        let max = self.admission.max.bytes;
        let mut table = self.admission.table.lock();
        let fits = |table: &Table, more: u64| {
            let share = |holder| share_fits(table.held(holder).now.bytes, table.total.bytes, more, max);
            table.total.bytes + more <= share_max(max) && self.holders.iter().all(share)
        };
        let (least, step) = (
            needed - self.bytes,
            (self.bytes + GROWTH_BYTES).min(self.bytes_max),
        );
        let step = step.max(needed) - self.bytes;
        let more = if fits(&table, step) {
            step
        } else if fits(&table, least) {
            least
        } else if table.may_use_last_quarter(self.number) && table.total.bytes + least <= max {
            table.last_quarter = Some(self.number);
            least
        } else {
            table.waiting.insert(self.number);
            return false;
        };
        table.waiting.remove(&self.number);
        table.total.bytes += more;
        for holder in &self.holders {
            table.change(holder, |held| held.now.bytes += more);
        }
        let kept = self.promised_bytes.min(more);
        table.change(&self.holders[0], |held| held.promised_bytes -= kept);
        self.promised_bytes -= kept;
        self.bytes += more;
        true
    }

    /// Strikes out what was announced and does not come.
    pub(crate) fn break_promise(&mut self) {
        let promised_bytes = std::mem::take(&mut self.promised_bytes);
        let mut table = self.admission.table.lock();
        table.change(&self.holders[0], |held| held.promised_bytes -= promised_bytes);
        table.leave_last_quarter(self.number);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut table = self.admission.table.lock();
        table.leave_last_quarter(self.number);
        table.waiting.remove(&self.number);
        table.total.requests -= 1;
        table.total.bytes -= self.bytes;
        for holder in &self.holders {
            table.change(holder, |held| {
                held.now.requests -= 1;
                held.now.bytes -= self.bytes;
            });
        }
        table.change(&self.holders[0], |held| {
            held.promised_bytes -= self.promised_bytes;
        });
    }
}

#[cfg(test)]
mod tests;
