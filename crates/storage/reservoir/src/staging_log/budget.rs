//! Budget of a staging log: bytes that all entries may take on disk together.
//!
//! Bytes are counted from before they are written until their entry is gone, so also those that an earlier
//! incarnation left; of these there may be more than the budget, and then nobody gets any until they are
//! gone. Entries of one group end together: what they hold never makes room for one of them, so a group that
//! is too large is told at once instead of waiting for itself.

use std::collections::BTreeMap;

use tokio::sync::watch;

use super::name::EntryName;

/// Bytes that the smallest file takes.
pub(super) const BLOCK_BYTES: u64 = 4096;

/// Answer to a reservation of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reservation {
    /// The bytes are reserved.
    Reserved,
    /// There is no room now; other entries give theirs back as they end.
    Full,
    /// There can never be room: the entries of this group need so many bytes together.
    TooLarge {
        /// Bytes of the group, with these.
        bytes: u64,
        /// The budget.
        bytes_max: u64,
    },
    /// The entry is gone.
    Removed,
}

/// See the top of this file.
#[derive(Debug)]
pub(super) struct Budget {
    bytes_max: u64,
    /// Bytes of each entry.
    held: watch::Sender<BTreeMap<EntryName, u64>>,
}

impl Budget {
    pub(super) fn new(bytes_max: u64) -> Self {
        Self {
            bytes_max,
            held: watch::Sender::default(),
        }
    }

    /// Bytes of all entries.
    pub(super) fn held_bytes(&self) -> u64 {
        self.held.borrow().values().sum()
    }

    pub(super) fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    /// Opens the account of an entry in which these pieces lie already.
    pub(super) fn open(&self, name: &EntryName, pieces: impl Iterator<Item = u64>) {
        let bytes = pieces.map(on_disk).sum();
        self.held.send_modify(|held| {
            held.insert(name.clone(), bytes);
        });
    }

    /// Gives the bytes of an entry back: it is gone.
    pub(super) fn close(&self, name: &EntryName) {
        self.held.send_modify(|held| {
            held.remove(name);
        });
    }

    /// Reserves bytes for a piece, if there is room now.
    pub(super) fn try_reserve(&self, name: &EntryName, bytes: u64) -> Reservation {
        let bytes = on_disk(bytes);
        let mut answer = Reservation::Removed;
        self.held.send_if_modified(|held| {
            let held_bytes: u64 = held.values().sum();
            let group_bytes = bytes + group_bytes(held, name);
            let Some(own) = held.get_mut(name) else {
                return false;
            };
            answer = if group_bytes > self.bytes_max {
                Reservation::TooLarge {
                    bytes: group_bytes,
                    bytes_max: self.bytes_max,
                }
            } else if held_bytes + bytes > self.bytes_max {
                Reservation::Full
            } else {
                *own += bytes;
                Reservation::Reserved
            };
            answer == Reservation::Reserved
        });
        answer
    }

    /// Waits for room for a piece; never `Full`. Cancel-safe.
    pub(super) async fn reserve(&self, name: &EntryName, bytes: u64) -> Reservation {
        let mut changes = self.held.subscribe();
        loop {
            changes.mark_unchanged();
            let answer = self.try_reserve(name, bytes);
            if answer != Reservation::Full || changes.changed().await.is_err() {
                return answer;
            }
        }
    }

    /// Reservations that wait.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.held.receiver_count()
    }
}

/// Bytes that a piece takes on disk.
fn on_disk(bytes: u64) -> u64 {
    bytes.max(1).next_multiple_of(BLOCK_BYTES)
}

/// Bytes of all entries of this group.
fn group_bytes(held: &BTreeMap<EntryName, u64>, name: &EntryName) -> u64 {
    let own = held.iter().filter(|(other, _)| other.group() == name.group());
    own.map(|(_, bytes)| bytes).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(group: &str, member: &str) -> EntryName {
        EntryName::new(group, member).unwrap()
    }

    #[test]
    fn a_group_that_is_too_large_is_told_at_once() {
        let budget = Budget::new(2 * BLOCK_BYTES);
        budget.open(&name("a", "0"), [1].into_iter());
        budget.open(&name("a", "1"), [1].into_iter());
        budget.open(&name("b", "0"), std::iter::empty());
        let too_large = Reservation::TooLarge {
            bytes: 3 * BLOCK_BYTES,
            bytes_max: 2 * BLOCK_BYTES,
        };
        assert_eq!(budget.try_reserve(&name("a", "1"), 1), too_large);
        assert_eq!(budget.try_reserve(&name("b", "0"), 1), Reservation::Full);
        assert_eq!(budget.try_reserve(&name("c", "0"), 1), Reservation::Removed);
    }

    #[tokio::test]
    async fn a_reservation_waits_until_another_entry_is_gone() {
        let budget = Budget::new(BLOCK_BYTES);
        budget.open(&name("a", "0"), [1].into_iter());
        budget.open(&name("b", "0"), std::iter::empty());
        let second = name("b", "0");
        let (reserved, ()) = tokio::join!(budget.reserve(&second, 1), async {
            while budget.waiting() == 0 {
                tokio::task::yield_now().await;
            }
            budget.close(&name("a", "0"));
        });
        assert_eq!(reserved, Reservation::Reserved);
        assert_eq!(budget.held_bytes(), BLOCK_BYTES);
    }

    #[tokio::test]
    async fn a_reservation_of_an_entry_that_is_gone_ends() {
        let budget = Budget::new(BLOCK_BYTES);
        budget.open(&name("a", "0"), [1].into_iter());
        budget.open(&name("b", "0"), std::iter::empty());
        let second = name("b", "0");
        let (reserved, ()) = tokio::join!(budget.reserve(&second, 1), async {
            while budget.waiting() == 0 {
                tokio::task::yield_now().await;
            }
            budget.close(&name("b", "0"));
        });
        assert_eq!(reserved, Reservation::Removed);
    }
}
