//! CRC32C of a whole block that is not in the CPU's cache.
//!
//! A block that is handed out has mostly been out of the cache for long, so its check waits for memory and not for
//! arithmetic. Read from front to back, a core has too few cache lines under way; read at eight places at once it has enough. So a
//! full block is cut into eight lanes that are summed side by side and then joined: the checksum of `a ++ b` is that of `a`, moved
//! over as many zeros as `b` is long, xor that of `b`. Moving is linear, so it is four lookups in a table.
//!
//! The result is plain CRC32C. Blocks of another length, and CPUs without the instruction, are left to the `crc32c` crate; so are
//! builds without optimisation, in which that crate is optimised and this one is not.

use forebay_core::BLOCK_BYTES;

/// CRC32C of the bytes of a block.
pub(crate) fn block_checksum(bytes: &[u8]) -> u32 {
    #[cfg(target_arch = "x86_64")]
    if !cfg!(debug_assertions)
        && let Some(checksum) = lanes::checksum(bytes)
    {
        return checksum;
    }
    crc32c::crc32c(bytes)
}

#[cfg(target_arch = "x86_64")]
mod lanes {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_crc32_u64, _mm_prefetch};
    use std::sync::LazyLock;

    use super::BLOCK_BYTES;

    const LANES: usize = 8;
    const LANE_BYTES: usize = BLOCK_BYTES as usize / LANES;
    const LINE_BYTES: usize = 64;
    const WORD_BYTES: usize = 8;
    /// How far ahead of the sum each lane is asked for.
    const AHEAD_BYTES: usize = 512;

    /// CRC32C of a full block; `None` if it is another length, or the CPU cannot.
    pub(super) fn checksum(bytes: &[u8]) -> Option<u32> {
        let block = bytes.try_into().ok()?;
        // SAFETY: the CPU is asked for the instructions first.
        std::arch::is_x86_feature_detected!("sse4.2").then(|| unsafe { sum(block) })
    }

    #[target_feature(enable = "sse4.2")]
    fn sum(block: &[u8; BLOCK_BYTES as usize]) -> u32 {
        let (lanes, _) = block.as_chunks::<LANE_BYTES>();
        let mut sums = [0; LANES];
        sums[0] = u64::from(u32::MAX);
        for line in (0..LANE_BYTES).step_by(LINE_BYTES) {
            for lane in lanes {
                // Past the end of the block, too: a prefetch reads nothing and may name any address.
                _mm_prefetch::<_MM_HINT_T0>(lane.as_ptr().wrapping_add(line + AHEAD_BYTES).cast());
            }
            for word in (line..line + LINE_BYTES).step_by(WORD_BYTES) {
                for (sum, lane) in sums.iter_mut().zip(lanes) {
                    let word = lane[word..].first_chunk().expect("a lane has whole words");
                    *sum = _mm_crc32_u64(*sum, u64::from_le_bytes(*word));
                }
            }
        }
        let join = |before: u32, lane: u64| moved(before) ^ lane as u32;
        !sums[1..]
            .iter()
            .fold(sums[0] as u32, |before, lane| join(before, *lane))
    }

    /// A sum, moved over the zeros of one lane.
    fn moved(sum: u32) -> u32 {
        let bytes = sum.to_le_bytes();
        let parts = MOVED.iter().zip(bytes);
        parts.fold(0, |all, (table, byte)| all ^ table[usize::from(byte)])
    }

    /// For each byte of a sum and each of its values: the sum moved over the zeros of one lane.
    static MOVED: LazyLock<[[u32; 256]; 4]> = LazyLock::new(|| {
        let zeros = [0; LANE_BYTES];
        let mut tables = [[0; 256]; 4];
        for (position, table) in (0..).zip(&mut tables) {
            for (value, entry) in (0u32..).zip(table) {
                let sum = value << (8 * position);
                *entry = !crc32c::crc32c_append(!sum, &zeros);
            }
        }
        tables
    });
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn lanes_give_plain_crc32c() {
        let mut random = fastrand::Rng::with_seed(7);
        let mut block = vec![0; BLOCK_BYTES as usize];
        for _ in 0..32 {
            random.fill(&mut block);
            assert_eq!(lanes::checksum(&block), Some(crc32c::crc32c(&block)));
        }
        for byte in [0, 1, 0xff] {
            block.fill(byte);
            assert_eq!(lanes::checksum(&block), Some(crc32c::crc32c(&block)));
        }
    }

    #[test]
    fn a_bit_flipped_anywhere_changes_the_sum_of_the_lanes() {
        let mut block = vec![0x5a; BLOCK_BYTES as usize];
        let right = lanes::checksum(&block);
        for bit in (0..BLOCK_BYTES as usize * 8).step_by(8191) {
            block[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(lanes::checksum(&block), right, "bit {bit}");
            block[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn only_full_blocks_are_cut_into_lanes() {
        let bytes = vec![7; BLOCK_BYTES as usize + 1];
        for length in [0, 1, BLOCK_BYTES as usize - 1, BLOCK_BYTES as usize + 1] {
            assert_eq!(lanes::checksum(&bytes[..length]), None);
            assert_eq!(block_checksum(&bytes[..length]), crc32c::crc32c(&bytes[..length]));
        }
    }
}
