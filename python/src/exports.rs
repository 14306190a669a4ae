//! Users of memory that was handed to Python.
//!
//! The buffer protocol counts its users: each takes a buffer and gives it back. Most keep it while they use
//! the memory (memoryview, numpy, pyarrow). Some do not: `torch.frombuffer` gives it back at once and keeps a
//! reference to the object instead, which nobody can count. They are known by what they ask for, plain memory
//! without a shape; so do callers who only copy (`file.write`), and both are treated alike: memory that was
//! lent in this way stays where it is until the object is gone.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use pyo3::ffi;

/// The users of one object's memory. All calls are made with the interpreter held, which orders them.
#[derive(Default)]
pub(crate) struct Exports {
    held: AtomicUsize,
    lent: AtomicBool,
}

impl Exports {
    /// Somebody takes a buffer.
    pub(crate) fn take(&self, flags: c_int) {
        self.held.fetch_add(1, Ordering::Relaxed);
        if flags & ffi::PyBUF_ND == 0 {
            self.lent.store(true, Ordering::Relaxed);
        }
    }

    /// Somebody gives one back.
    pub(crate) fn give_back(&self) {
        self.held.fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns whether somebody certainly uses the memory now.
    pub(crate) fn is_held(&self) -> bool {
        self.held.load(Ordering::Relaxed) > 0
    }

    /// Returns whether somebody may use it as long as the object lives.
    pub(crate) fn is_lent(&self) -> bool {
        self.lent.load(Ordering::Relaxed)
    }
}
