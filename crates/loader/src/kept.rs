//! What is worth keeping, up to a number of bytes: the values that were used longest ago go first.
//!
//! A value is a cell that one thread fills while others wait for it, so the same work is not done twice. The bytes of a value count from when it is
//! filled; one that is in use when it goes lives on with its users. Keys are locked in ascending order by whoever needs several
//! ([`Kept::cells`] takes them sorted), so two threads cannot wait for each other.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A value that is there, or that somebody is about to make.
pub(crate) type Cell<V> = Arc<Mutex<Option<V>>>;

/// Values by key.
#[derive(Debug)]
pub(crate) struct Kept<K, V>(Mutex<Shelf<K, V>>);

#[derive(Debug)]
struct Shelf<K, V> {
    slots: HashMap<K, Slot<V>>,
    /// Keys by when they were used.
    used: BTreeMap<u64, K>,
    tick: u64,
    bytes: u64,
}

#[derive(Debug)]
struct Slot<V> {
    cell: Cell<V>,
    bytes: u64,
    tick: u64,
}

impl<K, V> Default for Kept<K, V> {
    fn default() -> Self {
        Self(Mutex::new(Shelf {
            slots: HashMap::new(),
            used: BTreeMap::new(),
            tick: 0,
            bytes: 0,
        }))
    }
}

/// Locks a cell. A thread that panicked while it filled one has left it empty.
pub(crate) fn lock<V>(cell: &Cell<V>) -> MutexGuard<'_, Option<V>> {
    cell.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<K: Hash + Eq + Clone, V> Kept<K, V> {
    fn shelf(&self) -> MutexGuard<'_, Shelf<K, V>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The cells of these keys, filled or not; they are now the youngest.
    pub(crate) fn cells(&self, keys: &[K]) -> Vec<Cell<V>> {
        let mut shelf = self.shelf();
        keys.iter().map(|key| shelf.cell(key)).collect()
    }

    /// The cell of one key.
    pub(crate) fn cell(&self, key: &K) -> Cell<V> {
        self.shelf().cell(key)
    }

    /// Says how large a value is that was filled in, and lets go of the oldest ones until all are below `bytes_max`; the newest always stays.
    pub(crate) fn filled(&self, key: &K, bytes: u64, bytes_max: u64) {
        let mut gone = Vec::new();
        let mut shelf = self.shelf();
        if let Some(slot) = shelf.slots.get_mut(key) {
            let before = std::mem::replace(&mut slot.bytes, bytes);
            shelf.bytes = shelf.bytes - before + bytes;
        }
        while shelf.bytes > bytes_max && shelf.slots.len() > 1 {
            let Some((_, oldest)) = shelf.used.pop_first() else {
                break;
            };
            if let Some(slot) = shelf.slots.remove(&oldest) {
                shelf.bytes -= slot.bytes;
                gone.push(slot);
            }
        }
        drop(shelf);
        // Large memory is given back without the lock.
        drop(gone);
    }

    #[cfg(test)]
    fn keys(&self) -> usize {
        self.shelf().slots.len()
    }
}

impl<K: Hash + Eq + Clone, V> Shelf<K, V> {
    fn cell(&mut self, key: &K) -> Cell<V> {
        self.tick += 1;
        let tick = self.tick;
        let slot = self.slots.entry(key.clone()).or_insert_with(|| Slot {
            cell: Cell::default(),
            bytes: 0,
            tick,
        });
        let before = std::mem::replace(&mut slot.tick, tick);
        let cell = Arc::clone(&slot.cell);
        self.used.remove(&before);
        self.used.insert(tick, key.clone());
        cell
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_goes_first_and_the_newest_stays() {
        let kept: Kept<u32, u32> = Kept::default();
        for key in 0..3 {
            *lock(&kept.cell(&key)) = Some(key);
            kept.filled(&key, 40, 100);
        }
        assert_eq!(kept.keys(), 2);
        assert_eq!(*lock(&kept.cell(&0)), None);
        assert_eq!(*lock(&kept.cell(&2)), Some(2));
        kept.filled(&2, 1000, 100);
        assert_eq!(*lock(&kept.cell(&2)), Some(2));
    }

    #[test]
    fn what_was_used_again_is_young() {
        let kept: Kept<u32, u32> = Kept::default();
        for key in 0..2 {
            *lock(&kept.cell(&key)) = Some(key);
            kept.filled(&key, 40, 100);
        }
        assert_eq!(*lock(&kept.cell(&0)), Some(0));
        *lock(&kept.cell(&2)) = Some(2);
        kept.filled(&2, 40, 100);
        assert_eq!(*lock(&kept.cell(&0)), Some(0));
        assert_eq!(*lock(&kept.cell(&1)), None);
    }
}
