//! The side table: CRC32C of every 64 KiB, so that any range is proved by what it reads.
//!
//! Blocks count from the start of a part; the last one is shorter. An empty part has none. The whole table is
//! proved by its BLAKE3 in the manifest, so an entry needs no checksum of its own.

use forebay_core::{Error, Kind, Result};

/// Bytes of a block.
pub const BLOCK_BYTES: u64 = 64 << 10;
const MAGIC: &[u8; 8] = b"FBCRCT01";
const HEADER_BYTES: usize = 24;

/// Returns how many blocks so many bytes have.
#[must_use]
pub const fn blocks(bytes: u64) -> u64 {
    bytes.div_ceil(BLOCK_BYTES)
}

/// Entries of a table while it is made or after it was read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Table {
    entries: Vec<u32>,
}

impl Table {
    /// Adds the blocks of a part; gives the index of its first.
    pub fn add(&mut self, crcs: &[u32]) -> u64 {
        let first = self.entries.len() as u64;
        self.entries.extend_from_slice(crcs);
        first
    }

    /// Returns how many entries there are.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.entries.len() as u64
    }

    /// Returns whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The entries of a part.
    pub fn part(&self, first_block: u64, bytes: u64) -> Result<&[u32]> {
        self.entries(first_block, blocks(bytes))
    }

    /// So many entries from this one on.
    pub fn entries(&self, first: u64, count: u64) -> Result<&[u32]> {
        let range = usize::try_from(first)
            .ok()
            .zip(usize::try_from(count).ok())
            .and_then(|(first, count)| self.entries.get(first..first.checked_add(count)?));
        range.ok_or_else(|| {
            Error::new(
                Kind::Corrupt,
                "a side table is too short for the parts that point to it",
            )
            .with("first_block", first)
            .with("entries", self.entries.len())
        })
    }

    /// As it lies in the lake.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER_BYTES + 4 * self.entries.len());
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&(BLOCK_BYTES as u32).to_le_bytes());
        bytes.extend_from_slice(&0u32.to_le_bytes());
        bytes.extend_from_slice(&self.len().to_le_bytes());
        for entry in &self.entries {
            bytes.extend_from_slice(&entry.to_le_bytes());
        }
        bytes
    }

    /// Reads one; its digest has been compared before.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let wrong = |what: &str| Error::new(Kind::Corrupt, format!("a side table {what}"));
        let header = bytes.get(..HEADER_BYTES).ok_or_else(|| wrong("is cut off"))?;
        if &header[..8] != MAGIC
            || header[8..12] != (BLOCK_BYTES as u32).to_le_bytes()
            || header[12..16] != [0; 4]
        {
            return Err(wrong(
                "has a header that this version does not know; update forebay",
            ));
        }
        let count = u64::from_le_bytes(header[16..24].try_into().expect("eight bytes"));
        let entries = &bytes[HEADER_BYTES..];
        if count.checked_mul(4) != Some(entries.len() as u64) {
            return Err(wrong("does not have as many entries as it says"));
        }
        let entry = |four: &[u8]| u32::from_le_bytes(four.try_into().expect("four bytes"));
        Ok(Self {
            entries: entries.chunks_exact(4).map(entry).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_are_these() {
        let mut table = Table::default();
        assert_eq!(table.add(&[0x0102_0304]), 0);
        assert_eq!(table.add(&[5, 6]), 1);
        let bytes = table.encode();
        assert_eq!(bytes[..24], *b"FBCRCT01\0\0\x01\0\0\0\0\0\x03\0\0\0\0\0\0\0");
        assert_eq!(bytes[24..], [4, 3, 2, 1, 5, 0, 0, 0, 6, 0, 0, 0]);
        assert_eq!(Table::decode(&bytes).unwrap(), table);
        assert_eq!(table.part(1, 2 * BLOCK_BYTES).unwrap(), [5, 6]);
        assert!(table.part(2, 2 * BLOCK_BYTES).is_err());
        assert!(table.part(u64::MAX, 1).is_err());
        assert!(table.part(3, 0).unwrap().is_empty());
    }

    #[test]
    fn a_damaged_table_is_refused() {
        let mut table = Table::default();
        table.add(&[1, 2, 3]);
        let good = table.encode();
        for length in 0..good.len() {
            assert!(Table::decode(&good[..length]).is_err(), "{length}");
        }
        for byte in 0..HEADER_BYTES {
            let mut bad = good.clone();
            bad[byte] ^= 0x80;
            assert!(Table::decode(&bad).is_err(), "{byte}");
        }
    }
}
