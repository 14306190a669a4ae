//! Inodes: a number for each version of an object, each folder and each file that is being written.
//!
//! The number of a version is the hash of key and ETag, so it is the same in every mount and after a restart,
//! and an object that is replaced has another number: descriptors and maps of the old version go on with it.
//! Two things whose hashes meet get neighbouring numbers.
//!
//! Life cycle: the kernel is told a number (`remember`) and says later how often it forgets it (`forget`).
//! Limits: past [`InodeTable::is_over`] names are taken back from the kernel (`session.rs`); at twice that many
//! nothing new is looked up.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use parking_lot::Mutex;
use xxhash_rust::xxh3::Xxh3Default;

use crate::staged::Staged;

/// Number of the root.
pub(crate) const ROOT: u64 = 1;

/// A version of an object.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Version {
    pub(crate) key: Box<str>,
    pub(crate) etag: Box<str>,
    pub(crate) bytes: u64,
    /// Seconds since 1970.
    pub(crate) modified: u64,
}

/// What a number stands for.
#[derive(Debug, Clone)]
pub(crate) enum Inode {
    /// All keys that start with this; empty, or ending with a slash.
    Folder(Arc<str>),
    Version(Arc<Version>),
    /// A file that is being written.
    Staged(Arc<Staged>),
}

impl Inode {
    fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Folder(one), Self::Folder(two)) => one == two,
            (Self::Version(one), Self::Version(two)) => one.key == two.key && one.etag == two.etag,
            (Self::Staged(one), Self::Staged(two)) => Arc::ptr_eq(one, two),
            _ => false,
        }
    }

    /// The number that it gets unless that is taken.
    fn wish(&self) -> u64 {
        let mut hash = Xxh3Default::new();
        match self {
            Self::Folder(prefix) => hash.update(prefix.as_bytes()),
            Self::Version(version) => {
                hash.update(version.key.as_bytes());
                hash.update(&[0]);
                hash.update(version.etag.as_bytes());
            }
            Self::Staged(staged) => {
                hash.update(&[0, 1]);
                hash.update(&staged.serial.to_le_bytes());
            }
        }
        hash.digest().max(ROOT + 1)
    }
}

#[derive(Debug)]
struct Slot {
    inode: Inode,
    lookups: u64,
}

/// All numbers that the kernel knows.
#[derive(Debug)]
pub(crate) struct InodeTable {
    slots: Mutex<HashMap<u64, Slot>>,
    inodes_max: usize,
}

impl InodeTable {
    pub(crate) fn new(root: &str, inodes_max: usize) -> Self {
        let inode = Inode::Folder(root.into());
        let slots = HashMap::from([(ROOT, Slot { inode, lookups: 1 })]);
        Self {
            slots: Mutex::new(slots),
            inodes_max,
        }
    }

    /// The number, counted once more as known to the kernel.
    pub(crate) fn remember(&self, inode: Inode) -> u64 {
        let mut slots = self.slots.lock();
        let mut number = inode.wish();
        loop {
            match slots.entry(number) {
                Entry::Vacant(vacant) => {
                    vacant.insert(Slot { inode, lookups: 1 });
                    return number;
                }
                Entry::Occupied(mut taken) if taken.get().inode.is(&inode) => {
                    taken.get_mut().lookups += 1;
                    return number;
                }
                Entry::Occupied(_) => number = number.wrapping_add(1).max(ROOT + 1),
            }
        }
    }

    /// The number that a listing shows, which the kernel does not keep.
    pub(crate) fn shown(inode: &Inode) -> u64 {
        inode.wish()
    }

    pub(crate) fn get(&self, number: u64) -> Option<Inode> {
        self.slots.lock().get(&number).map(|slot| slot.inode.clone())
    }

    pub(crate) fn forget(&self, number: u64, lookups: u64) {
        if number == ROOT {
            return;
        }
        let mut slots = self.slots.lock();
        if let Entry::Occupied(mut slot) = slots.entry(number) {
            let left = slot.get().lookups.saturating_sub(lookups);
            slot.get_mut().lookups = left;
            if left == 0 {
                slot.remove();
            }
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.lock().len()
    }

    /// True if names should be taken back from the kernel.
    pub(crate) fn is_over(&self) -> bool {
        self.len() > self.inodes_max
    }

    /// True if nothing new can be looked up.
    pub(crate) fn is_full(&self) -> bool {
        self.len() >= self.inodes_max.saturating_mul(2)
    }

    /// Names of files to take back, each with the number of its folder; at most `count`.
    pub(crate) fn victims(&self, count: usize) -> Vec<(u64, String)> {
        let slots = self.slots.lock();
        let excess = slots.len().saturating_sub(self.inodes_max).min(count);
        let files = slots.values().filter_map(|slot| match &slot.inode {
            Inode::Version(version) => Some(&version.key),
            Inode::Folder(_) | Inode::Staged(_) => None,
        });
        let named = files.map(|key| {
            let cut = key.rfind('/').map_or(0, |slash| slash + 1);
            let (prefix, name) = key.split_at(cut);
            let folder = Inode::Folder(prefix.into());
            let root = slots.get(&ROOT).is_some_and(|slot| slot.inode.is(&folder));
            let number = if root { ROOT } else { folder.wish() };
            (number, name.to_owned())
        });
        named.take(excess).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(key: &str, etag: &str) -> Inode {
        Inode::Version(Arc::new(Version {
            key: key.into(),
            etag: etag.into(),
            bytes: 1,
            modified: 0,
        }))
    }

    #[test]
    fn another_version_is_another_number_and_the_same_one_is_the_same() {
        let table = InodeTable::new("", 10);
        let first = table.remember(version("a", "1"));
        assert_eq!(table.remember(version("a", "1")), first);
        assert_ne!(table.remember(version("a", "2")), first);
        assert_ne!(table.remember(version("b", "1")), first);
        assert_eq!(InodeTable::new("", 10).remember(version("a", "1")), first);
    }

    #[test]
    fn a_number_lives_until_it_was_forgotten_as_often_as_it_was_told() {
        let table = InodeTable::new("", 10);
        let number = table.remember(version("a", "1"));
        table.remember(version("a", "1"));
        table.forget(number, 1);
        assert!(table.get(number).is_some());
        table.forget(number, 1);
        assert!(table.get(number).is_none());
        table.forget(ROOT, 5);
        assert!(table.get(ROOT).is_some());
    }

    #[test]
    fn what_is_over_the_limit_is_named_for_the_kernel_to_drop() {
        let table = InodeTable::new("data/", 2);
        for key in ["data/a", "data/b/c", "data/d"] {
            table.remember(version(key, "1"));
        }
        assert!(table.is_over() && table.is_full());
        let victims = table.victims(100);
        assert_eq!(victims.len(), 2);
        let folder = InodeTable::shown(&Inode::Folder("data/b/".into()));
        for (parent, name) in victims {
            let expected = if name == "c" { folder } else { ROOT };
            assert_eq!(parent, expected, "{name}");
        }
    }

    #[test]
    fn a_million_known_files_fit_into_300_megabytes() {
        // What is kept for one, as it is allocated: the slot at the table's load, and the version.
        let key = "datasets/imagenet/train/n01440764/n01440764_10026.JPEG";
        let etag = "\"0123456789abcdef0123456789abcdef\"";
        let slot = (size_of::<(u64, Slot)>() + 1) * 16 / 7;
        let version =
            size_of::<Version>() + 16 + key.len().next_multiple_of(16) + etag.len().next_multiple_of(16);
        assert!((slot + version) * 1_000_000 < 300 << 20, "{slot} + {version}");
    }
}
