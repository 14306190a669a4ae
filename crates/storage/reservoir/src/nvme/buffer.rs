//! Buffers that O_DIRECT accepts: 4 KiB aligned, from a small pool.
//!
//! A buffer is a longer vector and the place in it where alignment begins, so no unsafe code is needed. It
//! goes back to its pool when the last `Bytes` made of it is dropped; the pool keeps a few of each size class
//! and lets the rest go.

use std::fmt;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use forebay_core::{BLOCK_BYTES, PAGE_BYTES};
use parking_lot::Mutex;

use super::space::UNIT_BYTES;

const ALIGN: usize = UNIT_BYTES as usize;

/// Capacity of each size class and how many idle buffers of it are kept.
const CLASSES: [(usize, usize); 3] = [
    (16 << 10, 64),
    (BLOCK_BYTES as usize, 32),
    (PAGE_BYTES as usize, 16),
];

/// Idle buffers.
#[derive(Default)]
pub(crate) struct BufferPool {
    idle: Mutex<[Vec<Vec<u8>>; CLASSES.len()]>,
}

impl BufferPool {
    /// A buffer of `bytes`; its content is undefined (zeros or what was there before).
    pub(crate) fn take(self: &Arc<Self>, bytes: usize) -> AlignedBuffer {
        let class = CLASSES.iter().position(|(capacity, _)| bytes <= *capacity);
        let recycled = class.and_then(|class| self.idle.lock()[class].pop());
        let memory = recycled.unwrap_or_else(|| {
            let capacity = class.map_or(bytes, |class| CLASSES[class].0);
            vec![0; capacity + ALIGN]
        });
        let start = memory.as_ptr().align_offset(ALIGN);
        AlignedBuffer {
            memory,
            start,
            bytes,
            pool: Arc::downgrade(self),
        }
    }

    fn give_back(&self, memory: Vec<u8>) {
        let capacity = memory.len().saturating_sub(ALIGN);
        let Some(class) = CLASSES.iter().position(|(size, _)| *size == capacity) else {
            return;
        };
        let mut idle = self.idle.lock();
        if idle[class].len() < CLASSES[class].1 {
            idle[class].push(memory);
        }
    }
}

impl fmt::Debug for BufferPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let idle: Vec<usize> = self.idle.lock().iter().map(Vec::len).collect();
        f.debug_struct("BufferPool").field("idle", &idle).finish()
    }
}

/// Memory that starts at a multiple of 4 KiB.
pub(crate) struct AlignedBuffer {
    memory: Vec<u8>,
    start: usize,
    bytes: usize,
    pool: Weak<BufferPool>,
}

impl AlignedBuffer {
    /// The bytes.
    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.bytes]
    }

    /// The bytes without a copy; the memory goes back to the pool when the last clone is dropped.
    pub(crate) fn into_bytes(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for AlignedBuffer {
    fn as_ref(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.bytes]
    }
}

impl Drop for AlignedBuffer {
    fn drop(&mut self) {
        if let Some(pool) = self.pool.upgrade() {
            pool.give_back(std::mem::take(&mut self.memory));
        }
    }
}

impl fmt::Debug for AlignedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AlignedBuffer")
            .field("bytes", &self.bytes)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_and_come_back() {
        let pool = Arc::new(BufferPool::default());
        for bytes in [1, 4096, 16 << 10, 65536, 1 << 20, (1 << 20) + 1] {
            let mut buffer = pool.take(bytes);
            assert_eq!(buffer.as_mut_slice().as_ptr().addr() % ALIGN, 0);
            assert_eq!(buffer.as_ref().len(), bytes);
        }
        let kept = pool.take(4096).into_bytes();
        assert_eq!(pool.idle.lock()[0].len(), 0);
        drop(kept);
        assert_eq!(pool.idle.lock()[0].len(), 1);
    }
}
