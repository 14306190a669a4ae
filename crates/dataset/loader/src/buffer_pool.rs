//! A pool of memory for packed batches: fresh memory costs several times what a copy costs.
//!
//! A buffer goes back to the pool it came from when the last one who looks at it lets it go, which may be an
//! array in Python long after. The pool keeps a few of the last ones, up to a number of bytes, and ends with
//! its loader; buffers live on without it.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Bytes and buffers that a pool keeps.
const KEPT_BYTES_MAX: usize = 256 << 20;
const KEPT_MAX: usize = 16;
/// Smaller ones are cheap to make.
const KEPT_BYTES_MIN: usize = 64 << 10;
/// A buffer may be so many times as large as what is asked for.
const WASTE_MAX: usize = 2;

/// Buffers that are free.
#[derive(Debug, Clone, Default)]
pub(crate) struct BufferPool(Arc<Mutex<Vec<Vec<u8>>>>);

/// Memory of a packed batch.
pub struct PooledBuffer {
    bytes: Vec<u8>,
    home: Weak<Mutex<Vec<Vec<u8>>>>,
}

impl BufferPool {
    /// An empty vector with room for so many bytes.
    pub(crate) fn take(&self, bytes: usize) -> Vec<u8> {
        if bytes >= KEPT_BYTES_MIN {
            let mut free = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let fits =
                |buffer: &Vec<u8>| (bytes..=bytes.saturating_mul(WASTE_MAX)).contains(&buffer.capacity());
            if let Some(at) = free.iter().position(fits) {
                return free.swap_remove(at);
            }
        }
        Vec::with_capacity(bytes)
    }

    /// A buffer that comes back here.
    pub(crate) fn own(&self, bytes: Vec<u8>) -> PooledBuffer {
        PooledBuffer {
            bytes,
            home: Arc::downgrade(&self.0),
        }
    }
}

impl Deref for PooledBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl DerefMut for PooledBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl fmt::Debug for PooledBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PooledBuffer")
            .field("bytes", &self.bytes.len())
            .finish_non_exhaustive()
    }
}

impl Drop for PooledBuffer {
    fn drop(&mut self) {
        let mut bytes = std::mem::take(&mut self.bytes);
        if bytes.capacity() < KEPT_BYTES_MIN {
            return;
        }
        let Some(home) = self.home.upgrade() else { return };
        // In a forked child somebody may have held it for ever: then the memory just goes.
        let Ok(mut free) = home.try_lock() else { return };
        let kept: usize = free.iter().map(Vec::capacity).sum();
        if free.len() < KEPT_MAX && kept + bytes.capacity() <= KEPT_BYTES_MAX {
            bytes.clear();
            free.push(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_used_again_by_what_fits() {
        let pool = BufferPool::default();
        let mut bytes = pool.take(1 << 20);
        bytes.resize(1 << 20, 7);
        let place = bytes.as_ptr();
        let buffer = pool.own(bytes);
        assert_eq!(buffer[5], 7);
        drop(buffer);
        let small = pool.take(1 << 18);
        assert_ne!(small.as_ptr(), place);
        let again = pool.take(900 << 10);
        assert_eq!((again.as_ptr(), again.len()), (place, 0));
    }

    #[test]
    fn a_buffer_lives_on_without_its_pool() {
        let pool = BufferPool::default();
        let buffer = pool.own(vec![1; 1 << 20]);
        drop(pool);
        assert_eq!(buffer.len(), 1 << 20);
    }
}
