//! CRC32C, the checksum of blocks, frames and records.
//!
//! One place decides who computes it. `crc-fast` folds with carry-less multiplication where the CPU has it,
//! which is twice as fast as the `crc32` instruction: a block that is checked on its way to a socket then
//! costs little more than the copy that follows. Older CPUs get that instruction or a table, with the same
//! result.

use crc_fast::{CrcAlgorithm, Digest};

const ALGORITHM: CrcAlgorithm = CrcAlgorithm::Crc32Iscsi;

/// The checksum of these bytes.
#[must_use]
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// The checksum of what has the checksum `before`, with these bytes behind it.
#[must_use]
pub fn crc32c_append(before: u32, bytes: &[u8]) -> u32 {
    let mut digest = Digest::new_with_init_state(ALGORITHM, u64::from(!before));
    digest.update(bytes);
    narrow(digest.finalize())
}

/// The checksum of `before` and `after` one behind the other, from theirs.
#[must_use]
pub fn crc32c_combine(before: u32, after: u32, after_bytes: usize) -> u32 {
    let joined = crc_fast::checksum_combine(ALGORITHM, before.into(), after.into(), after_bytes as u64);
    narrow(joined)
}

fn narrow(checksum: u64) -> u32 {
    u32::try_from(checksum).expect("a CRC32C has 32 bits")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Bit by bit, as the polynomial says.
    fn plain(bytes: &[u8]) -> u32 {
        !bytes.iter().fold(u32::MAX, |sum, byte| {
            (0..8).fold(sum ^ u32::from(*byte), |sum, _| {
                (sum >> 1) ^ (0x82F6_3B78 * (sum & 1))
            })
        })
    }

    #[test]
    fn the_check_value_of_the_standard_is_met() {
        assert_eq!(crc32c(b"123456789"), 0xE306_9283);
        assert_eq!(crc32c(b""), 0);
    }

    #[test]
    fn lengths_around_every_way_of_computing_give_the_same() {
        let bytes: Vec<u8> = (0u32..70_000).map(|at| (at * 31 + at / 251) as u8).collect();
        for length in [
            1, 7, 8, 15, 16, 31, 63, 64, 127, 128, 129, 255, 256, 257, 4095, 4096, 65_535, 65_536, 70_000,
        ] {
            assert_eq!(
                crc32c(&bytes[..length]),
                plain(&bytes[..length]),
                "{length} bytes"
            );
        }
    }

    #[test]
    fn a_bit_flipped_anywhere_changes_the_sum_of_a_block() {
        let mut block = vec![0x5a; crate::BLOCK_BYTES as usize];
        let right = crc32c(&block);
        for bit in (0..block.len() * 8).step_by(8191) {
            block[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(crc32c(&block), right, "bit {bit}");
            block[bit / 8] ^= 1 << (bit % 8);
        }
    }

    proptest! {
        #[test]
        fn pieces_add_up_to_the_whole(bytes in proptest::collection::vec(any::<u8>(), 0..2000), cut in 0..2000usize) {
            let cut = cut.min(bytes.len());
            let (front, back) = bytes.split_at(cut);
            let whole = plain(&bytes);
            prop_assert_eq!(crc32c(&bytes), whole);
            prop_assert_eq!(crc32c_append(crc32c(front), back), whole);
            prop_assert_eq!(crc32c_combine(crc32c(front), crc32c(back), back.len()), whole);
        }
    }
}
