//! A cache with a limit in bytes: the values that were used longest ago go first.
//!
//! A value is a cell that one thread fills while others wait for it, so the same work is not done twice. The
//! bytes of a value count from when it is filled; one that is in use when it goes lives on with its users.
//! Keys are locked in ascending order by whoever needs several ([`LruCache::cells`] takes them sorted), so
//! two threads cannot wait for each other.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A value that is there, or that somebody is about to make.
pub(crate) type Cell<V> = Arc<Mutex<Option<V>>>;

/// Values by key.
#[derive(Debug)]
pub(crate) struct LruCache<K, V>(Mutex<LruEntries<K, V>>);

#[derive(Debug)]
struct LruEntries<K, V> {
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

impl<K, V> Default for LruCache<K, V> {
    fn default() -> Self {
        Self(Mutex::new(LruEntries {
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

impl<K: Hash + Eq + Clone, V> LruCache<K, V> {
    fn entries(&self) -> MutexGuard<'_, LruEntries<K, V>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The cells of these keys, filled or not; they are now the youngest.
    pub(crate) fn cells(&self, keys: &[K]) -> Vec<Cell<V>> {
        let mut entries = self.entries();
        keys.iter().map(|key| entries.cell(key)).collect()
    }

    /// The cell of one key.
    pub(crate) fn cell(&self, key: &K) -> Cell<V> {
        self.entries().cell(key)
    }

    /// Says how large a value is that was filled in, and lets go of the oldest ones until all are below
    /// `bytes_max`; the newest always stays.
    pub(crate) fn filled(&self, key: &K, bytes: u64, bytes_max: u64) {
        let mut gone = Vec::new();
        let mut entries = self.entries();
        if let Some(slot) = entries.slots.get_mut(key) {
            let before = std::mem::replace(&mut slot.bytes, bytes);
            entries.bytes = entries.bytes - before + bytes;
        }
        while entries.bytes > bytes_max && entries.slots.len() > 1 {
            let Some((_, oldest)) = entries.used.pop_first() else {
                break;
            };
            if let Some(slot) = entries.slots.remove(&oldest) {
                entries.bytes -= slot.bytes;
                gone.push(slot);
            }
        }
        drop(entries);
        // Large memory is given back without the lock.
        drop(gone);
    }

    #[cfg(test)]
    fn keys(&self) -> usize {
        self.entries().slots.len()
    }
}

impl<K: Hash + Eq + Clone, V> LruEntries<K, V> {
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
        let cache: LruCache<u32, u32> = LruCache::default();
        for key in 0..3 {
            *lock(&cache.cell(&key)) = Some(key);
            cache.filled(&key, 40, 100);
        }
        assert_eq!(cache.keys(), 2);
        assert_eq!(*lock(&cache.cell(&0)), None);
        assert_eq!(*lock(&cache.cell(&2)), Some(2));
        cache.filled(&2, 1000, 100);
        assert_eq!(*lock(&cache.cell(&2)), Some(2));
    }

    #[test]
    fn what_was_used_again_is_young() {
        let cache: LruCache<u32, u32> = LruCache::default();
        for key in 0..2 {
            *lock(&cache.cell(&key)) = Some(key);
            cache.filled(&key, 40, 100);
        }
        assert_eq!(*lock(&cache.cell(&0)), Some(0));
        *lock(&cache.cell(&2)) = Some(2);
        cache.filled(&2, 40, 100);
        assert_eq!(*lock(&cache.cell(&0)), Some(0));
        assert_eq!(*lock(&cache.cell(&1)), None);
    }
}
