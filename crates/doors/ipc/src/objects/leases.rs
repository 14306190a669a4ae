//! The book of leases: which bytes are held, under which number, by which sessions.
//!
//! A lease is entered when its bytes are handed out and leaves when its last holder releases it or is dead.
//! Whoever has been given a handle (a forked child, a process that unpickles a view) becomes a holder by
//! adopting it. A lease that is older than the time-out leaves the book too: the reservoir abandons its
//! memory, so that the view stays valid and the cache gets its budget back.
//!
//! Small items of one batch share a lease ([`SHARED_BYTES_MAX`]): they are mostly let go together, and a
//! lease costs as much as finding their bytes. What stays held for the sake of the last of them is little.
//!
//! Numbers grow and are never used twice, and a lease is numbered when it is entered, so the book is in the
//! order of time: the scan for old leases looks at old ones only. Leases are dropped outside of the lock,
//! because giving pages back takes other locks.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forebay_engine::ObjectInfo;
use forebay_reservoir::{Leased, TrustDomain};
use parking_lot::Mutex;

use crate::sessions::Session;

/// Least charge of a lease, so that many tiny ones have a limit too.
const CHARGE_BYTES_MIN: u64 = 4096;

/// Items of one batch share a lease up to so many bytes, and so many items.
const SHARED_BYTES_MAX: u64 = 256 << 10;
const SHARED_ITEMS_MAX: usize = 64;

/// Returns what a lease of so many bytes counts.
pub(super) fn charge_of(bytes: u64) -> u64 {
    bytes.max(CHARGE_BYTES_MIN)
}

/// Bytes on their way into the book; already counted for their session unless they are a copy.
#[derive(Debug)]
pub(super) struct Grant {
    pub(super) leased: Leased,
    pub(super) info: Arc<ObjectInfo>,
}

#[derive(Debug)]
struct Lease {
    /// All of one domain.
    grants: Vec<Grant>,
    /// Charge to each holder.
    charged_bytes: u64,
    holders: Holders,
    granted_at: Duration,
}

/// Nearly always one session.
#[derive(Debug)]
struct Holders {
    first: Option<u64>,
    others: Vec<u64>,
}

impl Holders {
    fn add(&mut self, session: u64) {
        match self.first {
            None => self.first = Some(session),
            Some(_) => self.others.push(session),
        }
    }

    fn remove(&mut self, session: u64) {
        if self.first == Some(session) {
            self.first = self.others.pop();
        } else {
            self.others.retain(|other| *other != session);
        }
    }

    fn all(&self) -> impl Iterator<Item = u64> {
        self.first.into_iter().chain(self.others.iter().copied())
    }
}

#[derive(Debug)]
struct SessionLeases {
    session: Arc<Session>,
    leases: HashSet<u64>,
}

#[derive(Debug, Default)]
struct Book {
    last_number: u64,
    leases: BTreeMap<u64, Lease>,
    sessions: HashMap<u64, SessionLeases>,
}

/// A lease that was held too long.
#[derive(Debug)]
pub(super) struct Expired {
    pub(super) grants: Vec<Grant>,
    pub(super) held_for: Duration,
    /// Names of those who hold it.
    pub(super) clients: Vec<String>,
}

/// All leases.
#[derive(Debug, Default)]
pub(super) struct Leases {
    book: Mutex<Book>,
    held: AtomicU64,
    held_bytes: AtomicU64,
}

impl Leases {
    /// A session may hold leases from now on.
    pub(super) fn open(&self, session: &Arc<Session>) {
        let held = SessionLeases {
            session: Arc::clone(session),
            leases: HashSet::new(),
        };
        self.book.lock().sessions.insert(session.number(), held);
    }

    /// Enters leases; returns the number for each grant. `None` if the session has ended: nobody is left to
    /// hold them.
    pub(super) fn enter(&self, session: &Session, grants: Vec<Grant>, now: Duration) -> Option<Vec<u64>> {
        let bytes = total_bytes(&grants);
        let mut numbers = Vec::with_capacity(grants.len());
        let groups = grouped(grants);
        let count = groups.len() as u64;
        let mut book = self.book.lock();
        let Book {
            last_number,
            leases,
            sessions,
        } = &mut *book;
        let Some(held) = sessions.get_mut(&session.number()) else {
            drop(book);
            drop(groups);
            return None;
        };
        for grants in groups {
            *last_number += 1;
            held.leases.insert(*last_number);
            numbers.extend(grants.iter().map(|_| *last_number));
            let lease = Lease {
                charged_bytes: grants.iter().map(|grant| charged_bytes(&grant.leased)).sum(),
                grants,
                holders: Holders {
                    first: Some(session.number()),
                    others: Vec::new(),
                },
                granted_at: now,
            };
            leases.insert(*last_number, lease);
        }
        drop(book);
        self.held.fetch_add(count, Ordering::Relaxed);
        self.held_bytes.fetch_add(bytes, Ordering::Relaxed);
        Some(numbers)
    }

    /// Makes a session a holder of a lease that still lives, if it may see its memory.
    pub(super) fn adopt(
        &self,
        session: &Session,
        number: u64,
        may_map: impl Fn(TrustDomain) -> bool,
    ) -> bool {
        let mut book = self.book.lock();
        let Book { leases, sessions, .. } = &mut *book;
        let (Some(lease), Some(held)) = (leases.get_mut(&number), sessions.get_mut(&session.number())) else {
            return false;
        };
        if !lease.grants.iter().all(|grant| may_map(grant.info.domain)) {
            return false;
        }
        if held.leases.insert(number) {
            lease.holders.add(session.number());
            session.charge(lease.charged_bytes);
        }
        true
    }

    /// Ends a session's share in leases; those that it does not hold are passed over.
    pub(super) fn release(&self, session: &Session, numbers: &[u64]) {
        let mut ended = Vec::new();
        let mut book = self.book.lock();
        for number in numbers {
            let held = book.sessions.get_mut(&session.number());
            if held.is_some_and(|held| held.leases.remove(number)) {
                ended.extend(book.let_go(session, *number));
            }
        }
        drop(book);
        self.count_out(&ended);
    }

    /// Ends all that a session holds.
    pub(super) fn close(&self, session: &Session) {
        let mut ended = Vec::new();
        let mut book = self.book.lock();
        if let Some(held) = book.sessions.remove(&session.number()) {
            for number in held.leases {
                ended.extend(book.let_go(session, number));
            }
        }
        drop(book);
        self.count_out(&ended);
    }

    /// Takes out what was entered before `oldest`.
    pub(super) fn expire(&self, oldest: Duration, now: Duration) -> Vec<Expired> {
        let mut expired = Vec::new();
        let mut book = self.book.lock();
        while let Some(entry) = book.leases.first_entry() {
            if entry.get().granted_at >= oldest {
                break;
            }
            let (number, lease) = entry.remove_entry();
            let mut clients = Vec::new();
            for holder in lease.holders.all() {
                if let Some(held) = book.sessions.get_mut(&holder) {
                    held.leases.remove(&number);
                    held.session.discharge(lease.charged_bytes);
                    clients.push(held.session.client().to_owned());
                }
            }
            expired.push(Expired {
                held_for: now.saturating_sub(lease.granted_at),
                grants: lease.grants,
                clients,
            });
        }
        drop(book);
        self.held.fetch_sub(expired.len() as u64, Ordering::Relaxed);
        let bytes = expired.iter().map(|expired| total_bytes(&expired.grants)).sum();
        self.held_bytes.fetch_sub(bytes, Ordering::Relaxed);
        expired
    }

    fn count_out(&self, ended: &[Vec<Grant>]) {
        let bytes = ended.iter().map(|grants| total_bytes(grants)).sum();
        self.held.fetch_sub(ended.len() as u64, Ordering::Relaxed);
        self.held_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Returns how many there are, and their bytes.
    pub(super) fn count_and_bytes(&self) -> (u64, u64) {
        (
            self.held.load(Ordering::Relaxed),
            self.held_bytes.load(Ordering::Relaxed),
        )
    }
}

impl Book {
    /// A session holds this lease no more; the lease itself, if it was the last.
    fn let_go(&mut self, session: &Session, number: u64) -> Option<Vec<Grant>> {
        let lease = self.leases.get_mut(&number)?;
        session.discharge(lease.charged_bytes);
        lease.holders.remove(session.number());
        if lease.holders.first.is_some() {
            return None;
        }
        self.leases.remove(&number).map(|lease| lease.grants)
    }
}

/// Puts neighbours together that may share a lease.
fn grouped(grants: Vec<Grant>) -> Vec<Vec<Grant>> {
    let mut groups: Vec<Vec<Grant>> = Vec::new();
    let mut bytes = 0;
    for grant in grants {
        bytes += grant.leased.bytes();
        match groups.last_mut() {
            Some(group) if bytes <= SHARED_BYTES_MAX && may_join(group, &grant) => group.push(grant),
            _ => {
                bytes = grant.leased.bytes();
                groups.push(vec![grant]);
            }
        }
    }
    groups
}

/// A copy is a segment of its own, which goes with its view.
fn may_join(group: &[Grant], grant: &Grant) -> bool {
    let is_copy = |grant: &Grant| grant.leased.tiers().copied > 0;
    let first = &group[0];
    group.len() < SHARED_ITEMS_MAX
        && first.info.domain == grant.info.domain
        && !is_copy(first)
        && !is_copy(grant)
}

/// A copy lies outside of the cache and counts for nobody's share of it.
fn charged_bytes(leased: &Leased) -> u64 {
    if leased.tiers().copied > 0 {
        0
    } else {
        charge_of(leased.bytes())
    }
}

fn total_bytes(grants: &[Grant]) -> u64 {
    grants.iter().map(|grant| grant.leased.bytes()).sum()
}
