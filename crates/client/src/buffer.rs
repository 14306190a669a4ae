//! Writable memory for one object: the node's own if it is on this host and has so much, else this process's.

use std::fmt;
use std::ops::{Deref, DerefMut};

use crate::local::StagingBuffer;

/// Writable memory for one object; see [`crate::Client::alloc`]. Dropping it gives it back.
pub struct WritableBuffer(pub(crate) Memory);

/// Whose memory it is.
pub(crate) enum Memory {
    /// The node's, which a put does not copy.
    Staging(StagingBuffer),
    /// This process's.
    Own(Vec<u8>),
}

impl WritableBuffer {
    /// Makes it shorter: a put writes what is left.
    pub fn truncate(&mut self, bytes: usize) {
        match &mut self.0 {
            Memory::Staging(buffer) => buffer.truncate(bytes),
            Memory::Own(buffer) => buffer.truncate(bytes),
        }
    }
}

impl Deref for WritableBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Memory::Staging(buffer) => buffer,
            Memory::Own(buffer) => buffer,
        }
    }
}

impl DerefMut for WritableBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.0 {
            Memory::Staging(buffer) => buffer,
            Memory::Own(buffer) => buffer,
        }
    }
}

impl fmt::Debug for WritableBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WritableBuffer")
            .field("bytes", &self.len())
            .finish_non_exhaustive()
    }
}
