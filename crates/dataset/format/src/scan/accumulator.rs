//! Two things that every scanner needs: a few bytes at once although they come in pieces, and a CRC over
//! bytes that pass by.

use forebay_core::crc32c;

/// Collects bytes until there are enough.
#[derive(Debug, Default)]
pub(crate) struct Accumulator {
    bytes: Vec<u8>,
}

impl Accumulator {
    /// Takes from the front of `input` until `need` bytes are there; they stay until the next call after
    /// `clear`. Memory grows only with bytes that have come.
    pub(crate) fn fill(&mut self, input: &mut &[u8], need: usize) -> Option<&[u8]> {
        let missing = need.saturating_sub(self.bytes.len()).min(input.len());
        let (taken, rest) = input.split_at(missing);
        self.bytes.extend_from_slice(taken);
        *input = rest;
        (self.bytes.len() >= need).then_some(&self.bytes[..])
    }

    /// Lets go of what was collected.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
    }

    /// Returns whether nothing was collected.
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
}

/// The CRC of a number of bytes that pass by.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct StreamingCrc {
    left: u64,
    crc: u32,
}

impl StreamingCrc {
    pub(crate) fn new(bytes: u64) -> Self {
        Self { left: bytes, crc: 0 }
    }

    /// Takes its bytes from the front of `input`; the CRC, once all have come.
    pub(crate) fn take(&mut self, input: &mut &[u8]) -> Option<u32> {
        let here = usize::try_from(self.left).map_or(input.len(), |left| left.min(input.len()));
        let (taken, rest) = input.split_at(here);
        self.crc = crc32c::crc32c_append(self.crc, taken);
        self.left -= here as u64;
        *input = rest;
        (self.left == 0).then_some(self.crc)
    }
}
