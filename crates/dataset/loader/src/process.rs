//! A value that every process has for itself, so that no lock is inherited by a fork.
//!
//! A forked child gets a copy of its parent's memory, with locks as they were: one that a thread of the
//! parent held stays locked for ever. So whatever a dataset keeps behind locks lies here: the first use in a
//! child makes a fresh one, and leaves its parent's alone.

use std::sync::OnceLock;

/// One value per process.
#[derive(Debug)]
pub(crate) struct PerProcess<T> {
    pid: u32,
    value: T,
    /// That of a process that was forked from this one.
    next: OnceLock<Box<Self>>,
}

impl<T: Default> Default for PerProcess<T> {
    fn default() -> Self {
        Self {
            pid: std::process::id(),
            value: T::default(),
            next: OnceLock::new(),
        }
    }
}

impl<T: Default> PerProcess<T> {
    /// The value of this process.
    pub(crate) fn get(&self) -> &T {
        let pid = std::process::id();
        let mut slot = self;
        while slot.pid != pid {
            slot = slot.next.get_or_init(|| Box::new(Self::default()));
        }
        &slot.value
    }
}
